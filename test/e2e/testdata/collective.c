// A program whose kernels on two GPUs wait for each other. A collective operation does that which one process launches on each of its GPUs
// in turn. Says "ready" and, for each line of its input, how many launches were right.
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define FUNCTIONS(F) F(cuMemFreeHost, (void *))

#include "driver.h"

enum { BLOCKS = 16, THREADS = 256, NON_BLOCKING = 1 };

static handle context[2], kernel[2], stream[2];
static ptr data[2];

static int counted(int gpu)
{
	int each[BLOCKS];
	OK(cuCtxSetCurrent(context[gpu]));
	OK(cuStreamSynchronize(stream[gpu]));
	OK(cuMemcpyDtoH_v2(each, data[gpu], sizeof each));
	for (int i = 1; i < BLOCKS; i++)
		CHECK(each[i] == each[0]);
	CHECK(each[0] % 2 == 0); // once before a block waits and once behind it
	return each[0] / 2;
}

// Blocks of a launch end when all BLOCKS after the last multiple of BLOCKS have counted. The word is one ahead, so the last block of
// each launch waits for those of the next launch, which is on the other GPU. Between two launches the memory of the GPU that is about
// to have work is freed, which waits for its last launch: that one has what it waits for when the launch in between has counted. The
// next one is launched only then, or blocks of two launches would count in any order.
static int operation(int launches)
{
	_Atomic uint32_t *word;
	int before[2] = {counted(0), counted(1)}, n = 1;
	unsigned us = 200;

	OK(cuMemHostAlloc((void **)&word, sizeof *word, 0));
	*word = 1;
	for (int i = 0; i < launches; i++) {
		int gpu = i % 2;
		ptr memory;
		void *parameters[] = {&word, &data[gpu], &n, &us};
		OK(cuCtxSetCurrent(context[gpu]));
		OK(cuMemAlloc_v2(&memory, 4096));
		OK(cuCtxSetCurrent(context[i / 2 % 2])); // the memory says which GPU is waited for
		OK(cuMemFree_v2(memory));
		while (*word < 1 + (uint32_t)(BLOCKS * i))
			sched_yield();
		OK(cuCtxSetCurrent(context[gpu]));
		OK(cuLaunchKernel(kernel[gpu], BLOCKS, 1, 1, THREADS, 1, 1, 0, stream[gpu], parameters, NULL));
	}
	atomic_fetch_add(word, BLOCKS - 1); // for the last one
	int done = counted(0) - before[0] + counted(1) - before[1];
	OK(cuMemFreeHost((void *)word));
	return done;
}

int main(int count, char **argument)
{
	handle module;
	char line[64];
	int launches;

	if (count != 2)
		return 2;
	find_driver();
	OK(cuInit(0));
	for (int i = 0; i < 2; i++) {
		OK(cuDevicePrimaryCtxRetain(&context[i], i));
		OK(cuCtxSetCurrent(context[i]));
		OK(cuModuleLoad(&module, argument[1]));
		OK(cuModuleGetFunction(&kernel[i], module, "sim_barrier"));
		OK(cuStreamCreate(&stream[i], NON_BLOCKING));
		OK(cuMemAlloc_v2(&data[i], BLOCKS * sizeof(int)));
		OK(cuMemsetD32Async(data[i], 0, BLOCKS, stream[i]));
	}
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin) && sscanf(line, "operation %d", &launches) == 1) {
		printf("right %d\n", operation(launches));
		fflush(stdout);
	}
	return 0;
}
