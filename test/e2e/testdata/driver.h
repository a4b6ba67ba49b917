// driver.h - how the programs of these tests call the driver: by name, found at run time. A program includes this and calls
// find_driver first. Before, it defines FUNCTIONS(F), a list of F(name, parameters), if it calls others than COMMON_FUNCTIONS.
#ifndef TEST_DRIVER_H
#define TEST_DRIVER_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

typedef void *handle;
typedef unsigned long long ptr;

#define LAUNCH_PARAMETERS handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **
#define COMMON_FUNCTIONS(F) \
	F(cuInit, (unsigned)) \
	F(cuDevicePrimaryCtxRetain, (handle *, int)) \
	F(cuCtxCreate_v2, (handle *, unsigned, int)) \
	F(cuCtxDestroy_v2, (handle)) \
	F(cuCtxSetCurrent, (handle)) \
	F(cuCtxSynchronize, (void)) \
	F(cuModuleLoad, (handle *, const char *)) \
	F(cuModuleLoadData, (handle *, const void *)) \
	F(cuModuleUnload, (handle)) \
	F(cuModuleGetFunction, (handle *, handle, const char *)) \
	F(cuLaunchKernel, (LAUNCH_PARAMETERS, void **)) \
	F(cuLaunchHostFunc, (handle, void (*)(void *), void *)) \
	F(cuStreamCreate, (handle *, unsigned)) \
	F(cuStreamDestroy_v2, (handle)) \
	F(cuStreamSynchronize, (handle)) \
	F(cuStreamQuery, (handle)) \
	F(cuStreamWaitEvent, (handle, handle, unsigned)) \
	F(cuStreamWaitValue32_v2, (handle, ptr, unsigned, unsigned)) \
	F(cuStreamBeginCapture_v2, (handle, int)) \
	F(cuStreamEndCapture, (handle, handle *)) \
	F(cuGraphInstantiateWithFlags, (handle *, handle, unsigned long long)) \
	F(cuGraphLaunch, (handle, handle)) \
	F(cuGraphExecDestroy, (handle)) \
	F(cuEventCreate, (handle *, unsigned)) \
	F(cuEventRecord, (handle, handle)) \
	F(cuEventQuery, (handle)) \
	F(cuEventSynchronize, (handle)) \
	F(cuMemAlloc_v2, (ptr *, size_t)) \
	F(cuMemFree_v2, (ptr)) \
	F(cuMemHostAlloc, (void **, size_t, unsigned)) \
	F(cuMemcpyDtoH_v2, (void *, ptr, size_t)) \
	F(cuMemcpyHtoD_v2, (ptr, const void *, size_t)) \
	F(cuMemcpyDtoHAsync_v2, (void *, ptr, size_t, handle)) \
	F(cuMemcpyHtoDAsync_v2, (ptr, const void *, size_t, handle)) \
	F(cuMemsetD8Async, (ptr, unsigned char, size_t, handle)) \
	F(cuMemsetD32Async, (ptr, unsigned, size_t, handle))
#ifndef FUNCTIONS
#define FUNCTIONS(F)
#endif

#define DECLARE_COMMON(name, parameters) static int(*name) parameters __attribute__((unused));
#define DECLARE(name, parameters) static int(*name) parameters; // the compiler warns of one that is not called
COMMON_FUNCTIONS(DECLARE_COMMON)
FUNCTIONS(DECLARE)

// Ends the program, at once: other threads may still run.
#define OK(call) \
	do { \
		int r_ = (call); \
		if (r_ != 0) { \
			fprintf(stderr, "%s:%d: %s returned %d\n", __FILE__, __LINE__, #call, r_); \
			_Exit(1); \
		} \
	} while (0)

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			printf("line %d: not so: %s\n", __LINE__, #condition); \
			exit(1); \
		} \
	} while (0)

static inline handle find_driver(void)
{
	handle library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		_Exit(1);
	}
#define FIND(name, parameters) \
	if (!(name = (int(*) parameters)dlsym(library, #name))) { \
		fprintf(stderr, "no %s\n", #name); \
		_Exit(1); \
	}
	COMMON_FUNCTIONS(FIND)
	FUNCTIONS(FIND)
	return library;
}

#endif
