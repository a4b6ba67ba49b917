// Green contexts: two streams that have half of the SMs each, beside the context's own.
#include "program.h"

int main()
{
	uint32_t *data[3];
	CHECK(cudaSetDevice(0));
	CHECK(cudaFree(nullptr));
	CUdevResource all, halves[2];
	CHECK(DRIVER(cuDeviceGetDevResource)(0, &all, CU_DEV_RESOURCE_TYPE_SM));
	unsigned groups = 1;
	CHECK(DRIVER(cuDevSmResourceSplitByCount)(&halves[0], &groups, &all, &halves[1], 0, all.sm.smCount / 2));
	CUstream streams[3] = {};
	CUgreenCtx contexts[2];
	for (int i = 0; i < 2; i++) {
		CUdevResourceDesc description;
		CHECK(DRIVER(cuDevResourceGenerateDesc)(&description, &halves[i], 1));
		CHECK(DRIVER(cuGreenCtxCreate)(&contexts[i], description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
		CHECK(DRIVER(cuGreenCtxStreamCreate)(&streams[i], contexts[i], CU_STREAM_NON_BLOCKING, 0));
	}
	CHECK(cudaStreamCreateWithFlags((cudaStream_t *)&streams[2], cudaStreamNonBlocking));
	for (uint32_t *&each : data) {
		CHECK(cudaMalloc(&each, WORDS * sizeof *each));
		CHECK(cudaMemset(each, 1, WORDS * sizeof *each));
	}
	CHECK(cudaDeviceSynchronize());
	cudaEvent_t done;
	CHECK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
	for (uint32_t step = 0; step < 300; step++) {
		for (int i = 0; i < 3; i++)
			mix<<<256, 256, 0, (cudaStream_t)streams[i]>>>(data[i], WORDS, step + i);
		CHECK(cudaGetLastError());
		if (step % 20 == 0) { // the streams wait for each other
			CHECK(cudaEventRecord(done, (cudaStream_t)streams[2]));
			CHECK(cudaStreamWaitEvent((cudaStream_t)streams[0], done));
			CHECK(cudaMemcpyAsync(data[0], data[2], WORDS * 2, cudaMemcpyDeviceToDevice,
					      (cudaStream_t)streams[0]));
			CHECK(cudaStreamSynchronize((cudaStream_t)streams[0]));
		}
	}
	uint64_t sum = 14695981039346656037ull;
	for (int i = 0; i < 3; i++) {
		CHECK(cudaStreamSynchronize((cudaStream_t)streams[i]));
		sum = checksum(data[i], WORDS, sum);
	}
	for (int i = 0; i < 2; i++) {
		CHECK(DRIVER(cuStreamDestroy)(streams[i]));
		CHECK(DRIVER(cuGreenCtxDestroy)(contexts[i]));
	}
	printf("%016llx\n", (unsigned long long)sum);
	return 0;
}
