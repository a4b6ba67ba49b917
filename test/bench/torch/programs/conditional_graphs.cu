// Graphs with nodes that run if and while a kernel says so, with nodes that allocate and free, and launched by the device.
#include "program.h"

__global__ void go_on(cudaGraphConditionalHandle handle, uint32_t *left)
{
	uint32_t now = *left ? --*left : 0;
	cudaGraphSetConditional(handle, now > 0);
}

__global__ void if_odd(cudaGraphConditionalHandle handle, uint32_t *counter)
{
	cudaGraphSetConditional(handle, ++*counter & 1);
}

__global__ void set(uint32_t *word, uint32_t value) { *word = value; }

__global__ void launch(cudaGraphExec_t graph, uint32_t *failed)
{
	if (cudaGraphLaunch(graph, cudaStreamGraphTailLaunch) != cudaSuccess)
		*failed = 1;
}

template <typename Work> static void capture_into(cudaGraph_t graph, Work work)
{
	cudaStream_t stream;
	CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	CHECK(cudaStreamBeginCaptureToGraph(stream, graph, nullptr, nullptr, 0, cudaStreamCaptureModeRelaxed));
	work(stream);
	CHECK(cudaStreamEndCapture(stream, &graph));
	CHECK(cudaStreamDestroy(stream));
}

// Adds a conditional node behind all that the graph has; returns the graph inside it.
static cudaGraph_t add_conditional(cudaGraph_t graph, cudaGraphConditionalHandle handle, cudaGraphConditionalNodeType type)
{
	size_t count = 0;
	CHECK(cudaGraphGetNodes(graph, nullptr, &count));
	std::vector<cudaGraphNode_t> nodes(count);
	CHECK(cudaGraphGetNodes(graph, nodes.data(), &count));
	cudaGraphNodeParams parameters = {};
	parameters.type = cudaGraphNodeTypeConditional;
	parameters.conditional.handle = handle;
	parameters.conditional.type = type;
	parameters.conditional.size = 1;
	cudaGraphNode_t node;
	CHECK(cudaGraphAddNode(&node, graph, nodes.data(), nullptr, count, &parameters));
	return parameters.conditional.phGraph_out[0];
}

static uint64_t conditional(uint32_t *data, uint32_t *words)
{
	cudaGraph_t graph;
	cudaGraphExec_t runnable;
	cudaGraphConditionalHandle loop, choice;
	CHECK(cudaGraphCreate(&graph, 0));
	CHECK(cudaGraphConditionalHandleCreate(&loop, graph, 1, cudaGraphCondAssignDefault));
	capture_into(graph, [&](cudaStream_t stream) {
		set<<<1, 1, 0, stream>>>(words, 20);
		mix<<<256, 256, 0, stream>>>(data, WORDS, 1);
	});
	cudaGraph_t body = add_conditional(graph, loop, cudaGraphCondTypeWhile);
	CHECK(cudaGraphConditionalHandleCreate(&choice, body, 0, cudaGraphCondAssignDefault));
	capture_into(body, [&](cudaStream_t stream) {
		mix<<<256, 256, 0, stream>>>(data, WORDS, 2);
		if_odd<<<1, 1, 0, stream>>>(choice, words + 1);
		go_on<<<1, 1, 0, stream>>>(loop, words);
	});
	cudaGraph_t sometimes = add_conditional(body, choice, cudaGraphCondTypeIf);
	capture_into(sometimes, [&](cudaStream_t stream) { mix<<<64, 256, 0, stream>>>(data, WORDS, 3); });
	CHECK(cudaGraphInstantiate(&runnable, graph, 0));
	for (int i = 0; i < 25; i++)
		CHECK(cudaGraphLaunch(runnable, nullptr));
	CHECK(cudaDeviceSynchronize());
	CHECK(cudaGraphExecDestroy(runnable));
	CHECK(cudaGraphDestroy(graph));
	return checksum(data, WORDS);
}

static uint64_t with_memory(uint32_t *data, uint64_t sum)
{
	cudaGraph_t graph;
	cudaGraphExec_t runnable;
	CHECK(cudaGraphCreate(&graph, 0));
	cudaMemAllocNodeParams allocation = {};
	allocation.poolProps.allocType = cudaMemAllocationTypePinned;
	allocation.poolProps.location.type = cudaMemLocationTypeDevice;
	allocation.bytesize = WORDS * sizeof(uint32_t);
	cudaGraphNode_t allocated, copied, mixed, back, freed;
	CHECK(cudaGraphAddMemAllocNode(&allocated, graph, nullptr, 0, &allocation));
	CHECK(cudaGraphAddMemcpyNode1D(&copied, graph, &allocated, 1, allocation.dptr, data, WORDS * sizeof(uint32_t),
				       cudaMemcpyDeviceToDevice));
	unsigned words = WORDS;
	uint32_t step = 5;
	void *values[] = {&allocation.dptr, &words, &step};
	cudaKernelNodeParams kernel = {};
	kernel.func = (void *)mix;
	kernel.gridDim = 256, kernel.blockDim = 256, kernel.kernelParams = values;
	CHECK(cudaGraphAddKernelNode(&mixed, graph, &copied, 1, &kernel));
	CHECK(cudaGraphAddMemcpyNode1D(&back, graph, &mixed, 1, data, allocation.dptr, WORDS * sizeof(uint32_t),
				       cudaMemcpyDeviceToDevice));
	CHECK(cudaGraphAddMemFreeNode(&freed, graph, &back, 1, allocation.dptr));
	CHECK(cudaGraphInstantiate(&runnable, graph, 0));
	for (int i = 0; i < 100; i++)
		CHECK(cudaGraphLaunch(runnable, nullptr));
	CHECK(cudaDeviceSynchronize());
	CHECK(cudaGraphExecDestroy(runnable));
	CHECK(cudaGraphDestroy(graph));
	CHECK(cudaDeviceGraphMemTrim(0));
	return checksum(data, WORDS, sum);
}

static uint64_t by_device(uint32_t *data, uint32_t *words, uint64_t sum)
{
	cudaGraph_t inner, outer;
	cudaGraphExec_t launched, launching;
	CHECK(cudaGraphCreate(&inner, 0));
	capture_into(inner, [&](cudaStream_t stream) {
		for (int i = 0; i < 5; i++)
			mix<<<256, 256, 0, stream>>>(data, WORDS, i);
	});
	CHECK(cudaGraphInstantiate(&launched, inner, cudaGraphInstantiateFlagDeviceLaunch));
	CHECK(cudaGraphUpload(launched, nullptr));
	CHECK(cudaGraphCreate(&outer, 0));
	capture_into(outer, [&](cudaStream_t stream) { launch<<<1, 1, 0, stream>>>(launched, words + 2); });
	CHECK(cudaGraphInstantiate(&launching, outer, 0));
	for (int i = 0; i < 30; i++) {
		CHECK(cudaGraphLaunch(launching, nullptr));
		CHECK(cudaStreamSynchronize(nullptr));
	}
	uint32_t failed;
	CHECK(cudaMemcpy(&failed, words + 2, sizeof failed, cudaMemcpyDeviceToHost));
	CHECK(failed);
	CHECK(cudaGraphExecDestroy(launching));
	CHECK(cudaGraphExecDestroy(launched));
	return checksum(data, WORDS, sum);
}

int main()
{
	uint32_t *data, *words;
	CHECK(cudaMalloc(&data, WORDS * sizeof *data));
	CHECK(cudaMalloc(&words, 16));
	CHECK(cudaMemset(data, 0, WORDS * sizeof *data));
	CHECK(cudaMemset(words, 0, 16));
	uint64_t sum = conditional(data, words);
	sum = with_memory(data, sum);
	sum = by_device(data, words, sum);
	printf("%016llx\n", (unsigned long long)sum);
	return 0;
}
