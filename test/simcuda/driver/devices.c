// devices.c - the beginning, and what devices there are.
#define _GNU_SOURCE
#include "sim.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int device_count;
// The driver names its threads, by the numbers that the process's own PID namespace gives them: /proc must be of that namespace.
static bool names_threads(void)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/task/%d/comm", getpid(), gettid());
	int fd = open(path, O_RDWR | O_CLOEXEC);
	char name[16];
	ssize_t n = fd < 0 ? -1 : read(fd, name, sizeof name);
	bool named = n > 0 && write(fd, name, (size_t)n - 1) == n - 1; // the name that it has
	if (fd >= 0)
		close(fd);
	return named;
}

CALL(cuInit, (unsigned flags), (flags))
{
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (sim_forked)
		return CUDA_ERROR_NOT_INITIALIZED;
	static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
	pthread_mutex_lock(&once);
	CUresult r = CUDA_SUCCESS;
	if (!faults_understood())
		r = 999; // CUDA_ERROR_UNKNOWN
	if (getenv("SIMCUDA_NAME_THREADS") && !names_threads())
		r = 304; // CUDA_ERROR_OPERATING_SYSTEM
	if (!sim_initialized && r == CUDA_SUCCESS) {
		mps_connect();
		device_count = sim_devices();
		for (int i = 0; i < device_count && r == CUDA_SUCCESS; i++)
			if (engine_attach(i) != 0) {
				fprintf(stderr, "simulated CUDA driver: cannot open the shared state of device %d\n", i);
				r = 999;
			}
		if (device_count == 0)
			r = 100; // CUDA_ERROR_NO_DEVICE
		if (r == CUDA_SUCCESS && rm_open() != 0)
			r = 999;
		sim_initialized = r == CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&once);
	return r;
}

CALL(cuDriverGetVersion, (int *version), (version))
{
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = sim_driver_version();
	return CUDA_SUCCESS;
}

CUresult check_device(CUdevice d, const void *out)
{
	if (sim_forked || !sim_initialized)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	return d >= 0 && d < device_count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CALL(cuDeviceGet, (CUdevice * out, int ordinal), (out, ordinal))
{
	CUresult r = check_device(ordinal, out);
	if (r == CUDA_SUCCESS)
		*out = ordinal;
	return r;
}

CALL(cuDeviceGetCount, (int *out), (out))
{
	if (sim_forked || !sim_initialized)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = device_count;
	return CUDA_SUCCESS;
}

CALL(cuDeviceGetName, (char *out, int length, CUdevice d), (out, length, d))
{
	CUresult r = check_device(d, out);
	if (r == CUDA_SUCCESS && length > 0)
		snprintf(out, (size_t)length, "%s%s", machine.name, sim_slices() ? " MIG" : "");
	return r;
}

CALL(cuDeviceGetAttribute, (int *out, int attribute, CUdevice d), (out, attribute, d))
{
	CUresult r = check_device(d, out);
	if (r == CUDA_SUCCESS && machine_attribute(d, attribute, out) != 0)
		r = CUDA_ERROR_INVALID_VALUE;
	return r;
}

CALL(cuDeviceGetUuid_v2, (uint8_t *out, CUdevice d), (out, d))
{
	CUresult r = check_device(d, out);
	if (r == CUDA_SUCCESS)
		sim_uuid_of(sim_part(d).gpu, sim_part(d).slice, out);
	return r;
}

// The UUID of a slice is its GPU's.
CALL(cuDeviceGetUuid, (uint8_t *out, CUdevice d), (out, d))
{
	CUresult r = check_device(d, out);
	if (r == CUDA_SUCCESS)
		sim_uuid_of(sim_part(d).gpu, -1, out);
	return r;
}

CALL(cuDeviceTotalMem_v2, (size_t *out, CUdevice d), (out, d))
{
	CUresult r = check_device(d, out);
	if (r == CUDA_SUCCESS)
		*out = sim_memory_bytes();
	return r;
}

CALL(cuDeviceGetPCIBusId, (char *out, int length, CUdevice d), (out, length, d))
{
	CUresult r = check_device(d, out);
	if (r == CUDA_SUCCESS && length > 0)
		snprintf(out, (size_t)length, "0000:%02x:00.0", sim_part(d).gpu + 1);
	return r;
}

CALL(cuDeviceComputeCapability, (int *major, int *minor, CUdevice d), (major, minor, d))
{
	CUresult r = check_device(d, major);
	if (r == CUDA_SUCCESS && minor) {
		*major = machine.cc_major;
		*minor = machine.cc_minor;
	}
	return r;
}
