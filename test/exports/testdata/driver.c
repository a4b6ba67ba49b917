// A driver to intercept: every function prints its name, and its stream where it has one.
#include "preempt/driver/hooks.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAY(...) (printf("driver " __VA_ARGS__), puts(""), fflush(stdout), 0)

// So many calls of a function are out of memory at first.
#define REFUSE(n) \
	(getenv("TEST_REFUSE") && (n)++ < atoi(getenv("TEST_REFUSE")) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS)

CUresult cuInit(unsigned int f) { return SAY("cuInit"); }
CUresult cuDeviceGetCount(int *n)
{
	*n = 1;
	return SAY("cuDeviceGetCount");
}
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
			unsigned s, CUstream stream, void **p, void **e)
{
	return SAY("cuLaunchKernel %p %u.%u.%u %u.%u.%u %u %p %p %p", (void *)f, gx, gy, gz, bx, by, bz, s,
		   (void *)stream, (void *)p, (void *)e);
}
CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
			     unsigned s, CUstream stream, void **p, void **e)
{
	return SAY("cuLaunchKernel_ptsz");
}
CUresult cuLaunchKernelEx(const void *c, CUfunction f, void **p, void **e) { return SAY("cuLaunchKernelEx"); }
CUresult cuMemcpyHtoD_v2(CUdeviceptr d, const void *s, size_t n) { return SAY("cuMemcpyHtoD_v2"); }
CUresult cuMemcpyAsync(CUdeviceptr d, CUdeviceptr s, size_t n, CUstream h) { return SAY("cuMemcpyAsync"); }
CUresult cuMemFree_v2(CUdeviceptr d)
{
	static int refused;
	SAY("cuMemFree_v2");
	return REFUSE(refused);
}
CUresult cuPointerGetAttribute(void *p, int attribute, CUdeviceptr d) { return SAY("cuPointerGetAttribute"); }
CUresult cuEventRecord(CUevent e, CUstream h) { return SAY("cuEventRecord"); }
CUresult cuEventSynchronize(CUevent e)
{
	SAY("cuEventSynchronize");
	return 999;
}
CUresult cuStreamSynchronize(CUstream h) { return SAY("cuStreamSynchronize"); }
CUresult cuStreamCreateWithPriority(CUstream *h, unsigned f, int p)
{
	static int refused;
	*h = (CUstream)0x7000;
	SAY("cuStreamCreateWithPriority");
	return REFUSE(refused);
}
CUresult cuStreamGetPriority(CUstream h, int *p)
{
	*p = -2;
	return SAY("cuStreamGetPriority");
}
CUresult cuStreamDestroy_v2(CUstream h) { return SAY("cuStreamDestroy_v2"); }
CUresult cuGraphInstantiateWithFlags(CUgraphExec *e, CUgraph g, unsigned long long f)
{
	static int refused;
	*e = (CUgraphExec)0x60;
	SAY("cuGraphInstantiateWithFlags");
	return REFUSE(refused);
}
CUresult cuGraphLaunch(CUgraphExec e, CUstream h)
{
	static int refused;
	SAY("cuGraphLaunch");
	return REFUSE(refused);
}
CUresult cuGraphExecDestroy(CUgraphExec e) { return SAY("cuGraphExecDestroy"); }
CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d)
{
	static int refused;
	*c = (CUcontext)0xC0;
	SAY("cuDevicePrimaryCtxRetain");
	return REFUSE(refused);
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice d) { return SAY("cuDevicePrimaryCtxRelease_v2"); }
CUresult cuDevicePrimaryCtxGetState(CUdevice d, unsigned *flags, int *active) { return *active = 0; }
CUresult cuCtxSetCurrent(CUcontext c) { return SAY("cuCtxSetCurrent"); }

static CUstream origin;
CUresult cuStreamBeginCapture_v2(CUstream h, int mode)
{
	origin = h;
	return SAY("cuStreamBeginCapture_v2");
}
CUresult cuStreamEndCapture(CUstream h, CUgraph *g)
{
	origin = NULL;
	return SAY("cuStreamEndCapture");
}
CUresult cuStreamIsCapturing(CUstream h, int *status)
{
	*status = h == origin;
	return 0;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags, int *status);

static const struct {
	const char *symbol;
	uint64_t flags;
	void *function;
} functions[] = {
#define F(name) {#name, 0, (void *)name}
#define V2(name) {#name, 0, (void *)name##_v2}
	F(cuInit),
	F(cuDeviceGetCount),
	F(cuLaunchKernel),
	{"cuLaunchKernel", 2, (void *)cuLaunchKernel_ptsz},
	F(cuLaunchKernelEx),
	V2(cuMemcpyHtoD),
	F(cuMemcpyAsync),
	V2(cuMemFree),
	F(cuEventRecord),
	F(cuEventSynchronize),
	F(cuStreamSynchronize),
	V2(cuStreamDestroy),
	F(cuStreamCreateWithPriority),
	F(cuStreamGetPriority),
	{"cuGraphInstantiate", 0, (void *)cuGraphInstantiateWithFlags},
	F(cuGraphLaunch),
	F(cuGraphExecDestroy),
	F(cuDevicePrimaryCtxRetain),
	V2(cuDevicePrimaryCtxRelease),
	F(cuCtxSetCurrent),
	V2(cuStreamBeginCapture),
	F(cuStreamEndCapture),
	V2(cuGetProcAddress),
};

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags, int *status)
{
	for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
		if (strcmp(symbol, functions[i].symbol) == 0 && flags == functions[i].flags) {
			if (pfn)
				*pfn = functions[i].function;
			if (status)
				*status = 0;
			return 0;
		}
	if (status)
		*status = 1;
	return 500;
}
CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, uint64_t flags)
{
	return cuGetProcAddress_v2(symbol, pfn, version, flags, NULL);
}
