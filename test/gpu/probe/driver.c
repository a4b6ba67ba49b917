// driver.c - the driver and a context.
#include <dlfcn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <time.h>

#include "probe.h"

struct driver cu;
CUdevice device;
CUcontext context;

double now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

void pause_us(double us)
{
	struct timespec t = {(time_t)(us / 1e6), (long)((us - (double)(time_t)(us / 1e6) * 1e6) * 1e3)};
	nanosleep(&t, NULL);
}

void give_up(const char *format, ...)
{
	va_list list;
	va_start(list, format);
	fprintf(stderr, "%s: ", probe.name);
	vfprintf(stderr, format, list);
	fprintf(stderr, "\n");
	va_end(list);
	exit(1);
}

const char *error_name(CUresult result)
{
	const char *name = NULL;
	if (result == NO_SUCH_FUNCTION)
		return "no such function";
	if (cu.cuGetErrorName && cu.cuGetErrorName(result, &name) == CUDA_SUCCESS && name)
		return name;
	return text("%d", result);
}

size_t device_free(void)
{
	size_t free_bytes, total;
	CHECK(cuMemGetInfo(&free_bytes, &total));
	return free_bytes;
}

CUstream stream_of(int priority)
{
	CUstream stream;
	CHECK(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, priority));
	return stream;
}

CUfunction function_of(const void *image, const char *name)
{
	static const void *loaded;
	static CUmodule module;
	CUfunction function;
	if (image != loaded)
		CHECK(cuModuleLoadData(&module, image));
	loaded = image;
	CHECK(cuModuleGetFunction(&function, module, name));
	return function;
}

void driver_begin(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library)
		give_up("%s", dlerror());
#define LOOK_UP(field, symbol, parameters) cu.field = (CUresult(*) parameters)dlsym(library, #symbol);
	DRIVER(LOOK_UP)
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&device, 0));
	CHECK(cuDevicePrimaryCtxRetain(&context, device));
	CHECK(cuCtxSetCurrent(context));
	if (probe.begin)
		probe.begin();
}
