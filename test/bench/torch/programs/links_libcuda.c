// A program that links libcuda and uses it as compilers' runtimes do: primary context, module from memory,
// launches by parameter array and by buffer, stream of its own, legacy stream, copies.
//   links_libcuda MODULE.fatbin
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
int cuInit(unsigned);
int cuDeviceGet(int *, int);
int cuDevicePrimaryCtxRetain(CUcontext *, int);
int cuDevicePrimaryCtxRelease_v2(int);
int cuCtxSetCurrent(CUcontext);
int cuCtxSynchronize(void);
int cuModuleLoadData(CUmodule *, const void *);
int cuModuleUnload(CUmodule);
int cuModuleGetFunction(CUfunction *, CUmodule, const char *);
int cuMemAlloc_v2(CUdeviceptr *, size_t);
int cuMemFree_v2(CUdeviceptr);
int cuMemcpyHtoD_v2(CUdeviceptr, const void *, size_t);
int cuMemcpyDtoH_v2(void *, CUdeviceptr, size_t);
int cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, size_t, CUstream);
int cuStreamCreate(CUstream *, unsigned);
int cuStreamSynchronize(CUstream);
int cuStreamDestroy_v2(CUstream);
int cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **,
		   void **);

#define CHECK(call) \
	do { \
		int result = (call); \
		if (result) { \
			fprintf(stderr, "%s: error %d\n", #call, result); \
			exit(1); \
		} \
	} while (0)

int main(int count, char **values)
{
	enum { WORDS = 1 << 20 };
	static char image[4 << 20];
	static uint32_t host[WORDS];
	FILE *file = count == 2 ? fopen(values[1], "rb") : NULL;
	if (!file || !fread(image, 1, sizeof image, file)) {
		fprintf(stderr, "usage: links_libcuda MODULE.fatbin\n");
		return 2;
	}
	int device;
	CUcontext context;
	CUmodule module;
	CUfunction mix;
	CUstream stream;
	CUdeviceptr data, copy;
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&device, 0));
	CHECK(cuDevicePrimaryCtxRetain(&context, device));
	CHECK(cuCtxSetCurrent(context));
	CHECK(cuModuleLoadData(&module, image));
	CHECK(cuModuleGetFunction(&mix, module, "bench_mix"));
	CHECK(cuStreamCreate(&stream, 0));
	CHECK(cuMemAlloc_v2(&data, sizeof host));
	CHECK(cuMemAlloc_v2(&copy, sizeof host));
	for (uint32_t i = 0; i < WORDS; i++)
		host[i] = i;
	CHECK(cuMemcpyHtoD_v2(data, host, sizeof host));
	for (uint32_t i = 0; i < 300; i++) {
		uint32_t words = WORDS, rounds = 50 + i % 7;
		void *parameters[] = {&data, &words, &rounds};
		struct {
			CUdeviceptr data;
			uint32_t words, rounds;
		} buffer = {data, words, rounds};
		size_t size = sizeof buffer;
		// CU_LAUNCH_PARAM_BUFFER_POINTER, _SIZE and _END of cuda.h
		void *extra[] = {(void *)1, &buffer, (void *)2, &size, (void *)0};
		CUstream on = i % 3 ? stream : NULL;
		if (i % 2)
			CHECK(cuLaunchKernel(mix, 256, 1, 1, 256, 1, 1, 0, on, parameters, NULL));
		else
			CHECK(cuLaunchKernel(mix, 256, 1, 1, 256, 1, 1, 0, on, NULL, extra));
		if (i % 10 == 0)
			CHECK(cuMemcpyDtoDAsync_v2(copy, data, sizeof host, stream));
		if (i % 25 == 0)
			CHECK(cuStreamSynchronize(stream));
		if (i % 60 == 0)
			CHECK(cuCtxSynchronize());
	}
	uint64_t hash = 14695981039346656037ull;
	CUdeviceptr results[] = {data, copy};
	for (int r = 0; r < 2; r++) {
		CHECK(cuMemcpyDtoH_v2(host, results[r], sizeof host));
		for (uint32_t i = 0; i < WORDS; i++)
			hash = (hash ^ host[i]) * 1099511628211ull;
		CHECK(cuMemFree_v2(results[r]));
	}
	CHECK(cuStreamDestroy_v2(stream));
	CHECK(cuModuleUnload(module));
	CHECK(cuDevicePrimaryCtxRelease_v2(device));
	printf("%016llx\n", (unsigned long long)hash);
	return 0;
}
