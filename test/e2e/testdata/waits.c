// A best-effort program whose blocks wait for other blocks of their launch, or of launches on other streams. Says "ready",
// and for each line of its input "<what> <kernel> <blocks> <threads> <launches>" how many of its elements are wrong.
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define FUNCTIONS(F) \
	F(cuGraphDestroy, (handle)) \
	F(cuMemsetD8_v2, (ptr, unsigned char, size_t)) \
	F(cuMemsetD32_v2, (ptr, unsigned, size_t))

#include "driver.h"

enum { MOST = 1 << 14, NON_BLOCKING = 1, US = 300, SLOW_US = 250000 };
static handle module;
static ptr word, data, elsewhere;

static void launch_for(handle kernel, unsigned blocks, unsigned threads, int us, handle stream)
{
	int n = 1;
	void *parameters[] = {&word, &data, &n, &us};
	OK(cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, NULL));
}

static void launch(handle kernel, unsigned blocks, unsigned threads, handle stream)
{
	launch_for(kernel, blocks, threads, US, stream);
}

static void other_work(handle stream, unsigned us)
{
	static handle chain;
	int n = 1, add = 1;
	void *parameters[] = {&elsewhere, &n, &add, &us};
	if (!chain)
		OK(cuModuleGetFunction(&chain, module, "sim_chain"));
	OK(cuLaunchKernel(chain, 1320, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL));
}

// One of the two blocks of sim_barrier waits for one more arrival than theirs, since the word does not begin at 0: for
// that of a launch on another stream, or of the program, once it has seen the end of work on another stream.
static int crossed(handle barrier, bool by_program, int launches, handle a, handle b)
{
	int wrong = 0;
	for (int i = 0; i < launches; i++) {
		OK(cuMemsetD32_v2(word, 1, 1));
		OK(cuStreamSynchronize(NULL));
		other_work(a, 100 * (i % 7));
		launch(barrier, 2, 256, a);
		other_work(b, 100 * (i % 13));
		if (by_program) {
			other_work(b, 200);
			OK(cuStreamSynchronize(b));
			atomic_fetch_add((_Atomic uint32_t *)word, 1); // the simulated driver's device memory
		} else {
			launch(barrier, 1, 256, b);
		}
		OK(cuStreamSynchronize(a));
		OK(cuStreamSynchronize(b));
		wrong += *(_Atomic uint32_t *)word != 4;
	}
	return wrong;
}

// Of the two kernels of the graph the first takes us microseconds.
static void in_graph(handle kernel, unsigned blocks, unsigned threads, int us, int launches, handle stream)
{
	handle graph, instance;
	OK(cuStreamBeginCapture_v2(stream, 2)); // relaxed
	launch_for(kernel, blocks, threads, us, stream);
	launch(kernel, blocks, threads, stream);
	OK(cuStreamEndCapture(stream, &graph));
	OK(cuGraphInstantiateWithFlags(&instance, graph, 0));
	for (int i = 0; i < launches; i += 2)
		OK(cuGraphLaunch(instance, stream));
	OK(cuStreamSynchronize(stream));
	OK(cuGraphExecDestroy(instance));
	OK(cuGraphDestroy(graph));
}

// Launches of a kernel, alone and as a graph. For every second one, streams that wait for the program take all hardware channels, and the
// program waits for a stop to end meanwhile. Returns how many were made.
static int behind_the_program(handle kernel, unsigned blocks, unsigned threads, int launches, handle stream, handle other)
{
	static _Atomic uint32_t *said;
	static handle waits[32];
	const char *connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
	int channels = connections ? atoi(connections) : 8;
	handle graph, instance;
	if (!said) {
		OK(cuMemHostAlloc((void **)&said, 8, 0));
		for (int c = 0; c < channels; c++)
			OK(cuStreamCreate(&waits[c], NON_BLOCKING));
	}
	OK(cuStreamBeginCapture_v2(stream, 2)); // relaxed
	launch(kernel, blocks, threads, stream);
	OK(cuStreamEndCapture(stream, &graph));
	OK(cuGraphInstantiateWithFlags(&instance, graph, 0));
	for (int i = 0; i < launches; i += 2) {
		OK(cuGraphLaunch(instance, stream));
		OK(cuStreamSynchronize(stream));
		other_work(other, 300);
		*said = 0;
		for (int c = 0; c < channels; c++)
			OK(cuStreamWaitValue32_v2(waits[c], (ptr)(uintptr_t)said, 1, 0)); // at least
		if (i % 4)
			launch(kernel, blocks, threads, stream);
		else
			OK(cuGraphLaunch(instance, stream));
		OK(cuMemcpyDtoHAsync_v2((void *)(said + 1), elsewhere, 4,
					other)); // returns when what is ahead of it on that stream is over, and no stop
		*said = 1;
		OK(cuStreamSynchronize(stream));
		OK(cuStreamSynchronize(other));
	}
	OK(cuGraphExecDestroy(instance));
	OK(cuGraphDestroy(graph));
	return launches + launches % 2;
}

// A kernel for which no stop waits. Behind it on its stream comes one that is also behind another stream's launch, which is stopped several
// times.
static int behind_a_slow_one(handle kernel, int launches, handle slow, handle stream)
{
	enum { BLOCKS = 8000 };
	static handle event, chain;
	static unsigned result[BLOCKS];
	int n = 1, add[] = {1, 2}, us[] = {2 * SLOW_US, US}, wrong = 0;
	if (!event) {
		OK(cuEventCreate(&event, 0));
		OK(cuModuleGetFunction(&chain, module, "sim_chain"));
	}
	for (int i = 0; i < launches; i++) {
		OK(cuMemsetD8_v2(elsewhere, 0, sizeof result));
		OK(cuStreamSynchronize(NULL));
		launch_for(kernel, 132, 256, SLOW_US, slow);
		void *first[] = {&elsewhere, &n, &add[0], &us[0]}, *second[] = {&elsewhere, &n, &add[1], &us[1]};
		OK(cuLaunchKernel(chain, BLOCKS, 1, 1, 256, 1, 1, 0, stream, first, NULL));
		OK(cuEventRecord(event, stream));
		OK(cuStreamWaitEvent(slow, event, 0));
		OK(cuLaunchKernel(chain, BLOCKS, 1, 1, 256, 1, 1, 0, slow, second, NULL));
		OK(cuStreamSynchronize(slow));
		OK(cuMemcpyDtoH_v2(result, elsewhere, sizeof result));
		for (int k = 0; k < BLOCKS; k++)
			wrong += result[k] != 1 * 3 + 2; // each adds to three times what it finds
	}
	return wrong;
}

// Kernels behind one that no stop waits for, launched while the stop begins.
static int during_stops(handle kernel, int launches, handle stream)
{
	static handle chain;
	int n = 1, us = 1, wrong = 0;
	if (!chain)
		OK(cuModuleGetFunction(&chain, module, "sim_chain"));
	for (int i = 0; i < launches; i++) {
		unsigned result, want = 0;
		OK(cuMemsetD8_v2(elsewhere, 0, sizeof result));
		OK(cuStreamSynchronize(NULL));
		launch_for(kernel, 132, 256, 100500 + i % 20 * 200, stream); // ends soon after the stop has given up on it
		for (int k = 0; k < 120; k++) {                              // fewer than the library lets queue
			void *parameters[] = {&elsewhere, &n, &k, &us};
			for (volatile int pause = 0; pause < 10000; pause++)
				;
			OK(cuLaunchKernel(chain, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
			want = want * 3 + (unsigned)k;
		}
		OK(cuStreamSynchronize(stream));
		OK(cuMemcpyDtoH_v2(&result, elsewhere, sizeof result));
		wrong += result != want;
	}
	return wrong;
}

int main(int count, char **argument)
{
	static int result[MOST];
	char line[128], what[16], name[32];
	handle context, stream, second;
	unsigned blocks, threads;
	int launches;

	if (count != 2)
		return 2;
	find_driver();
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	OK(cuModuleLoad(&module, argument[1]));
	OK(cuStreamCreate(&stream, NON_BLOCKING));
	OK(cuStreamCreate(&second, NON_BLOCKING));
	OK(cuMemAlloc_v2(&elsewhere, sizeof result));
	OK(cuMemAlloc_v2(&word, 4));
	OK(cuMemAlloc_v2(&data, sizeof result));
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin) &&
	       sscanf(line, "%15s %31s %u %u %d", what, name, &blocks, &threads, &launches) == 5) {
		handle kernel;
		bool by_program = !strcmp(what, "program");
		int wrong = 0;
		OK(cuModuleGetFunction(&kernel, module, name));
		OK(cuMemsetD8_v2(word, 0, 4));
		OK(cuMemsetD8_v2(data, 0, sizeof result));
		OK(cuStreamSynchronize(NULL));
		if (by_program || !strcmp(what, "streams")) {
			wrong = crossed(kernel, by_program, launches, stream, second);
			printf("wrong %d\n", wrong);
			fflush(stdout);
			continue;
		}
		if (!strcmp(what, "other") || !strcmp(what, "during")) {
			wrong = *what == 'o' ? behind_a_slow_one(kernel, launches, stream, second) :
					       during_stops(kernel, launches, stream);
			printf("wrong %d\n", wrong);
			fflush(stdout);
			continue;
		}
		if (!strcmp(what, "graph"))
			in_graph(kernel, blocks, threads, US, launches, stream);
		else if (!strcmp(what, "slow"))
			in_graph(kernel, blocks, threads, SLOW_US, launches, stream);
		else if (!strcmp(what, "behind"))
			launches = behind_the_program(kernel, blocks, threads, launches, stream, second);
		else
			for (int i = 0; i < launches; i++)
				launch(kernel, blocks, threads, stream);
		OK(cuStreamSynchronize(stream));
		OK(cuMemcpyDtoH_v2(result, data, sizeof result));
		int times = strcmp(name, "sim_barrier") ? 1 : 2;
		for (unsigned i = 0; i < MOST; i++)
			wrong += result[i] != (i < blocks ? launches * times : 0);
		printf("wrong %d\n", wrong);
		fflush(stdout);
	}
	return 0;
}
