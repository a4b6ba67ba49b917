// driver.c - the driver, a context, and small kernels.
#include <dlfcn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <time.h>

#include "probe.h"

struct driver cu;
CUdevice device;
CUcontext context;
CUfunction kernel_work, kernel_chain;

// The second one's kernels are for sm_90, and known to the simulated driver, too.
__asm__(".section .rodata\n"
	".balign 16\n"
	"bench_image: .incbin \"kernels/bench.fatbin\"\n"
	".balign 16\n"
	"chain_image: .incbin \"test/simcuda/kernels/sim.cubin\"\n"
	".quad 0\n"
	".previous");
extern const char bench_image[], chain_image[];

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
	fprintf(stderr, "memory_probe: ");
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

// A kernel of one block, of some microseconds.
void launch_small(CUstream stream, CUdeviceptr scratch)
{
	unsigned long long iterations = 500;
	void *parameters[] = {&scratch, &iterations};
	CHECK(cuLaunchKernel(kernel_work, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
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
	CUmodule module;
	CHECK(cuModuleLoadData(&module, bench_image));
	CHECK(cuModuleGetFunction(&kernel_work, module, "bench_work"));
	CHECK(cuModuleLoadData(&module, chain_image));
	CHECK(cuModuleGetFunction(&kernel_chain, module, "sim_chain"));
}
