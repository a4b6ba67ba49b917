// nvml.c - a simulated libnvidia-ml.so.1: which processes use the simulated GPUs, as far as gpreempt asks.
//
// It reads the files that the processes share: who holds the lock of an index is the process, and its TSGs say whether it ran since
// the last question. SIMNVML_FAIL names functions that fail, with what they return: nvmlInit_v2:9,nvmlDeviceGetProcessUtilization:3.
#define _GNU_SOURCE
#include "../driver/gpus.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

// ---- nvml.h
typedef int nvmlReturn_t;
typedef struct device *nvmlDevice_t;
typedef struct {
	unsigned pid;
	unsigned long long usedGpuMemory; // bytes
	unsigned gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;
typedef struct {
	unsigned pid;
	unsigned long long timeStamp; // us since 1970
	unsigned smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;
enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_UNINITIALIZED = 1,
	NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_NOT_SUPPORTED = 3,
	NVML_ERROR_NOT_FOUND = 6,
	NVML_ERROR_INSUFFICIENT_SIZE = 7,
	NVML_ERROR_DRIVER_NOT_LOADED = 9,
};

static struct device {
	int gpu, slice;
	uint64_t ran_ns[ENGINE_PROCESSES]; // at the last question
} devices[SIM_GPUS], slices[SIM_GPUS][SIM_SLICES];
static bool initialised;

static int asked(const char *function)
{ // what SIMNVML_FAIL says that it returns
	const char *at = getenv("SIMNVML_FAIL");
	size_t length = strlen(function);
	for (; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
		if (strncmp(at, function, length) == 0 && at[length] == ':')
			return atoi(at + length + 1);
	}
	return initialised || strcmp(function, "nvmlInit_v2") == 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

#define REFUSE \
	do { \
		int is = asked(__func__); \
		if (is) \
			return is; \
	} while (0)

API const char *nvmlErrorString(nvmlReturn_t error)
{
	switch (error) {
	case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
	case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
	}
	return "Unknown Error";
}

API nvmlReturn_t nvmlInit_v2(void)
{
	REFUSE;
	initialised = true;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
	REFUSE;
	*count = (unsigned)sim_gpus();
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
	REFUSE;
	if (index >= (unsigned)sim_gpus())
		return NVML_ERROR_INVALID_ARGUMENT;
	devices[index].gpu = (int)index;
	devices[index].slice = -1;
	*device = &devices[index];
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
	REFUSE;
	if (device->slice >= 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	*current = *pending = sim_slices() != 0;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count)
{
	REFUSE;
	(void)device;
	*count = SIM_SLICES; // also where there are fewer
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *slice)
{
	REFUSE;
	if (device->slice >= 0 || index >= SIM_SLICES)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (index >= (unsigned)sim_slices())
		return NVML_ERROR_NOT_FOUND;
	*slice = &slices[device->gpu][index];
	(*slice)->gpu = device->gpu;
	(*slice)->slice = (int)index;
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *text, unsigned length)
{
	REFUSE;
	int n = sim_uuid_text(device->gpu, device->slice, text, length);
	return n < (int)length ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

static int open_device(const struct device *device)
{
	char path[600];
	sim_state(path, sizeof path, device->gpu, device->slice);
	return open(path, O_RDWR | O_CLOEXEC);
}

// owner is the process of an index, -1 where there is none. 0: in another PID namespace.
static pid_t owner(int fd, int index)
{
	struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = index, .l_len = 1};
	return fcntl(fd, F_GETLK, &l) == 0 && l.l_type != F_UNLCK ? l.l_pid : -1;
}

static bool read_engine(int fd, struct engine *engine)
{
	uint64_t head;
	return pread(fd, &head, sizeof head, 0) == sizeof head && (head & 0xffff) < 2 * ENGINE_PROCESSES &&
	       pread(fd, engine, sizeof *engine,
		     (off_t)(offsetof(struct shared, buffer) + (head & 0xffff) * sizeof *engine)) == sizeof *engine;
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *list)
{
	REFUSE;
	unsigned room = *count;
	struct engine engine = {0};
	*count = 0;
	int fd = open_device(device);
	if (fd < 0)
		return NVML_SUCCESS; // nobody has used it yet
	read_engine(fd, &engine);
	for (int i = 0; i < ENGINE_PROCESSES; i++) {
		pid_t pid = owner(fd, i);
		if (pid < 0)
			continue;
		if (*count < room)
			list[*count] = (nvmlProcessInfo_t){(unsigned)pid, engine.memory[i], ~0u, ~0u};
		(*count)++;
	}
	close(fd);
	return *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *list)
{
	REFUSE;
	return nvmlDeviceGetComputeRunningProcesses_v3(device, count, list);
}

API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *list,
						 unsigned *count, unsigned long long since_us)
{
	REFUSE;
	(void)since_us;
	if (sim_slices()) // neither of a slice nor of a GPU that is cut
		return NVML_ERROR_NOT_SUPPORTED;
	unsigned room = *count, found = 0;
	struct engine engine;
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	int fd = open_device(device);
	if (fd < 0 || !read_engine(fd, &engine)) {
		if (fd >= 0)
			close(fd);
		return NVML_ERROR_NOT_FOUND;
	}
	for (int i = 0; i < ENGINE_PROCESSES; i++) {
		pid_t pid = owner(fd, i);
		uint64_t ran_ns = 0;
		bool works = false;
		for (int t = 0; t < ENGINE_TSGS; t++) {
			if (!engine.tsg[t].used || engine.tsg[t].process != (uint32_t)i)
				continue;
			ran_ns += engine.tsg[t].ran_ns;
			works |= engine.tsg[t].work_ns > engine.tsg[t].ran_ns || engine.tsg[t].hold_until > engine.at;
		}
		works |= ran_ns > device->ran_ns[i];
		if (pid < 0 || !works)
			continue;
		if (found < room) {
			unsigned long long us =
				(unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000;
			list[found] = (nvmlProcessUtilizationSample_t){(unsigned)pid, us, 50, 0, 0, 0};
			device->ran_ns[i] = ran_ns;
		}
		found++;
	}
	close(fd);
	*count = found;
	return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : found ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
