// Stream-ordered memory: pools with and without a threshold, memory that goes from stream to stream, and into graphs.
#include "program.h"

int main()
{
	CHECK(cudaSetDevice(0));
	cudaMemPool_t pool;
	cudaMemPoolProps properties = {};
	properties.allocType = cudaMemAllocationTypePinned;
	properties.location.type = cudaMemLocationTypeDevice;
	CHECK(cudaMemPoolCreate(&pool, &properties));
	uint64_t keeps = UINT64_MAX;
	CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keeps));
	cudaStream_t streams[4];
	cudaEvent_t done;
	CHECK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
	for (cudaStream_t &stream : streams)
		CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	uint32_t *data;
	CHECK(cudaMallocAsync(&data, WORDS * sizeof *data, streams[0]));
	CHECK(cudaMemsetAsync(data, 3, WORDS * sizeof *data, streams[0]));
	for (uint32_t step = 0; step < 300; step++) { // through a temporary of this stream, on to the next
		cudaStream_t on = streams[step % 4], next = streams[(step + 1) % 4];
		uint32_t *temporary;
		size_t bytes = (WORDS + step * 1000) * sizeof *temporary;
		if (step % 2)
			CHECK(cudaMallocFromPoolAsync(&temporary, bytes, pool, on));
		else
			CHECK(cudaMallocAsync(&temporary, bytes, on));
		CHECK(cudaMemcpyAsync(temporary, data, WORDS * sizeof *data, cudaMemcpyDeviceToDevice, on));
		mix<<<256, 256, 0, on>>>(temporary, WORDS, step);
		CHECK(cudaMemcpyAsync(data, temporary, WORDS * sizeof *data, cudaMemcpyDeviceToDevice, on));
		CHECK(cudaFreeAsync(temporary, on));
		CHECK(cudaEventRecord(done, on));
		CHECK(cudaStreamWaitEvent(next, done));
		if (step % 50 == 0)
			CHECK(cudaMemPoolTrimTo(pool, 0));
	}
	cudaGraph_t graph;
	cudaGraphExec_t runnable;
	CHECK(cudaStreamBeginCapture(streams[0], cudaStreamCaptureModeRelaxed));
	uint32_t *inside;
	CHECK(cudaMallocAsync(&inside, WORDS * sizeof *inside, streams[0]));
	CHECK(cudaMemcpyAsync(inside, data, WORDS * sizeof *data, cudaMemcpyDeviceToDevice, streams[0]));
	mix<<<256, 256, 0, streams[0]>>>(inside, WORDS, 7);
	CHECK(cudaMemcpyAsync(data, inside, WORDS * sizeof *data, cudaMemcpyDeviceToDevice, streams[0]));
	CHECK(cudaFreeAsync(inside, streams[0]));
	CHECK(cudaStreamEndCapture(streams[0], &graph));
	CHECK(cudaGraphInstantiate(&runnable, graph, 0));
	for (int i = 0; i < 100; i++)
		CHECK(cudaGraphLaunch(runnable, streams[0]));
	CHECK(cudaStreamSynchronize(streams[0]));
	uint64_t sum = checksum(data, WORDS);
	CHECK(cudaFreeAsync(data, streams[0]));
	CHECK(cudaStreamSynchronize(streams[0]));
	CHECK(cudaMemPoolDestroy(pool));
	printf("%016llx\n", (unsigned long long)sum);
	return 0;
}
