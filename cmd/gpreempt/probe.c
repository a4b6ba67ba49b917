// probe.c - `gpreempt doctor-probe [context|version|processes]`: what the CUDA driver says of itself and its devices, on
// standard output, for gpreempt doctor to read. Hidden, and a process of its own: a driver that crashes
// or hangs takes nothing with it.
//
// It runs from a constructor, before the Go runtime of this command would start: under the preloaded
// library the process then is what any CUDA program is. With "context" it makes a context on each
// device, puts work on it, and then stays until its standard input ends. With "version" it says only the
// driver's version, for which nothing is initialised. With "processes" it is what nvml.c says.
//
//   driver <CUDA version>
//   device <UUID> <compute capability> <compute mode> <name>
//   memory <UUID> <virtual memory management: 0 or 1> <bytes>
//   context <UUID> ok
//   error <function> <CUresult or 0> <text>
//   ready
#define _GNU_SOURCE
#include "nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// From cuda.h.
typedef int CUresult;
typedef int CUdevice;
typedef struct CUctx_st *CUcontext;
typedef unsigned long long CUdeviceptr;
typedef struct { unsigned char bytes[16]; } CUuuid;
typedef char UUIDText[48]; // as nvidia-smi writes it
enum {
	CU_DEVICE_ATTRIBUTE_COMPUTE_MODE = 20,
	CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
	CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
	CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
};

static void *driver;

static void *symbol(const char *name)
{
	void *found = dlsym(driver, name);
	if (!found)
		printf("error dlsym 0 libcuda.so.1 has no %s\n", name);
	return found;
}

// CALL is true if the function exists and succeeded.
#define CALL(name, types, ...) \
	({ \
		CUresult(*function) types = symbol(#name); \
		CUresult result = function ? function(__VA_ARGS__) : -1; \
		if (function && result != 0) \
			complain(#name, result); \
		result == 0; \
	})

static void complain(const char *name, CUresult result)
{
	CUresult (*describe)(CUresult, const char **) = dlsym(driver, "cuGetErrorString");
	const char *text = NULL;
	if (describe)
		describe(result, &text);
	printf("error %s %d %s\n", name, result, text ? text : "unknown error");
}

// The identity of a device as the library has it (preempt/process/contexts.c): of a slice another UUID than that of its GPU.
static int identify(CUdevice device, UUIDText text)
{
	CUresult (*newer)(CUuuid *, CUdevice) = dlsym(driver, "cuDeviceGetUuid_v2"); // CUDA 11.4
	CUuuid whole, uuid;
	if (!CALL(cuDeviceGetUuid, (CUuuid *, CUdevice), &whole, device))
		return 0;
	if (!newer || newer(&uuid, device) != 0)
		uuid = whole;
	const unsigned char *u = uuid.bytes;
	snprintf(text, sizeof(UUIDText), "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
		 memcmp(&whole, &uuid, sizeof uuid) ? "MIG" : "GPU", u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7],
		 u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
	return 1;
}

static void use(CUdevice device, const UUIDText uuid)
{
	CUcontext context;
	CUdeviceptr memory;
	if (CALL(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice), &context, device) &&
	    CALL(cuCtxSetCurrent, (CUcontext), context) && CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t), &memory, 4096) &&
	    CALL(cuMemsetD8_v2, (CUdeviceptr, unsigned char, size_t), memory, 0, 4096) && CALL(cuCtxSynchronize, (void))) {
		printf("context %s ok\n", uuid);
	}
}

static void tell_memory(CUdevice device, const UUIDText uuid)
{
	CUresult (*ask)(int *, int, CUdevice) =
		dlsym(driver, "cuDeviceGetAttribute"); // an old driver does not know the question
	int managed = 0;
	size_t bytes;
	if (!CALL(cuDeviceTotalMem_v2, (size_t *, CUdevice), &bytes, device))
		return;
	if (!ask || ask(&managed, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device) != 0)
		managed = 0;
	printf("memory %s %d %zu\n", uuid, managed != 0, bytes);
}

static void probe_device(int index, int context)
{
	CUdevice device;
	UUIDText uuid;
	char name[100] = "";
	int major = 0, minor = 0, mode = 0;
	if (!CALL(cuDeviceGet, (CUdevice *, int), &device, index) || !identify(device, uuid) ||
	    !CALL(cuDeviceGetName, (char *, int, CUdevice), name, sizeof name - 1, device) ||
	    !CALL(cuDeviceGetAttribute, (int *, int, CUdevice), &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
		  device) ||
	    !CALL(cuDeviceGetAttribute, (int *, int, CUdevice), &minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
		  device) ||
	    !CALL(cuDeviceGetAttribute, (int *, int, CUdevice), &mode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, device))
		return;
	printf("device %s %d.%d %d %s\n", uuid, major, minor, mode, name);
	tell_memory(device, uuid);
	if (context)
		use(device, uuid);
}

static int tell_version(void)
{
	int version;
	if (!CALL(cuDriverGetVersion, (int *), &version))
		return 0;
	printf("driver %d.%d\n", version / 1000, version % 1000 / 10);
	return 1;
}

static void probe(int context, int version)
{
	int count;
	driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	if (!driver) {
		printf("error dlopen 0 %s\n", dlerror());
		return;
	}
	if (version) {
		tell_version();
		return;
	}
	if (!CALL(cuInit, (unsigned), 0) || !tell_version() || !CALL(cuDeviceGetCount, (int *), &count))
		return;
	for (int i = 0; i < count; i++)
		probe_device(i, context);
}

__attribute__((constructor)) static void doctor_probe(int argc, char **argv)
{
	if (argc < 2 || strcmp(argv[1], "doctor-probe") != 0)
		return;
	if (argc > 2 && strcmp(argv[2], "processes") == 0) {
		probe_processes();
		_exit(0);
	}
	int context = argc > 2 && strcmp(argv[2], "context") == 0;
	probe(context, argc > 2 && strcmp(argv[2], "version") == 0);
	printf("ready\n");
	fflush(stdout);
	char byte;
	while (context && read(STDIN_FILENO, &byte, 1) > 0)
		;
	_exit(0);
}
