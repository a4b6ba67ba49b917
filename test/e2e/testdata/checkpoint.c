// A program that is locked, checkpointed, restored and unlocked. It answers each line of its input:
//   run              begins to launch kernels, again and again, by a thread
//   own WHAT [MS]    lock, checkpoint, restore or unlock, as the program itself does it; how long a lock may take
//   other WHAT       as another process does it, by a call that is not intercepted; fail: every later restore fails
//   count            how many kernels are over
//   slice            the timeslice of its TSG, us; 0: it has none
//   busy, free      a stream waits for the program, and does no more
//   end              whether all has come out right
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define FUNCTIONS(F) \
	F(cuCheckpointProcessGetState, (int, int *)) \
	F(cuCheckpointProcessLock, (int, void *)) \
	F(cuCheckpointProcessCheckpoint, (int, void *)) \
	F(cuCheckpointProcessRestore, (int, void *)) \
	F(cuCheckpointProcessUnlock, (int, void *))

#include "driver.h"

enum { BLOCKS = 2000, KERNEL_us = 2000, NON_BLOCKING = 1, LARGE = 2 << 20, FILL = 77 };
static handle context, module, kernel, stream, waiting;
static void *word;
static ptr memory, large; // large: words that may be moved
static atomic_uint count;
static atomic_bool stop;
static uint32_t want;

static void *launch(void *unused)
{
	OK(cuCtxSetCurrent(context));
	for (unsigned i = 1; !stop; i++) {
		unsigned n = 1, us = KERNEL_us;
		void *parameters[] = {&memory, &n, &i, &us};
		OK(cuLaunchKernel(kernel, BLOCKS, 1, 1, 256, 1, 1, 0, stream, parameters, NULL));
		want = want * 3 + i;
		OK(cuStreamSynchronize(stream));
		count++;
	}
	return unused;
}

static int own(const char *what, unsigned ms)
{
	struct { // CUcheckpointLockArgs
		unsigned timeout_ms, reserved;
		uint64_t more[7];
	} arguments = {.timeout_ms = ms};
	return *what == 'l' ? cuCheckpointProcessLock(getpid(), &arguments) :
	       *what == 'c' ? cuCheckpointProcessCheckpoint(getpid(), NULL) :
	       *what == 'r' ? cuCheckpointProcessRestore(getpid(), NULL) :
			      cuCheckpointProcessUnlock(getpid(), NULL);
}

static void check(void)
{
	static uint32_t have[BLOCKS], filled[LARGE];
	OK(cuMemcpyDtoH_v2(have, memory, sizeof have));
	OK(cuMemcpyDtoH_v2(filled, large, sizeof filled));
	for (int i = 0; i < LARGE; i++)
		if (filled[i] != FILL) {
			printf("word %d is %u\n", i, filled[i]);
			return;
		}
	for (int i = 0; i < BLOCKS; i++)
		if (have[i] != want) {
			printf("block %d has %u, must have %u\n", i, have[i], want);
			return;
		}
	puts("right");
}

int main(int arguments, char **argument)
{
	char line[64], what[32];
	pthread_t thread;
	bool running = false;
	int state;

	if (arguments != 2)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	handle driver = find_driver();
	int (*other)(const char *) = (int (*)(const char *))dlsym(driver, "simcuda_process");
	uint64_t (*slice_ns)(int) = (uint64_t (*)(int))dlsym(driver, "simcuda_timeslice_ns");
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	OK(cuModuleLoad(&module, argument[1]));
	OK(cuModuleGetFunction(&kernel, module, "sim_chain"));
	OK(cuStreamCreate(&stream, NON_BLOCKING));
	OK(cuStreamCreate(&waiting, NON_BLOCKING));
	OK(cuMemHostAlloc(&word, sizeof(uint32_t), 0));
	*(uint32_t *)word = 0;
	OK(cuMemAlloc_v2(&memory, BLOCKS * sizeof(uint32_t)));
	OK(cuMemAlloc_v2(&large, LARGE * sizeof(uint32_t)));
	OK(cuMemsetD32Async(memory, 0, BLOCKS, stream));
	OK(cuMemsetD32Async(large, FILL, LARGE, stream));
	OK(cuStreamSynchronize(stream));
	puts("ready");
	while (fgets(line, sizeof line, stdin)) {
		unsigned ms = 0;
		if (!strcmp(line, "run\n")) {
			OK(pthread_create(&thread, NULL, launch, NULL));
			running = true;
			puts("running");
		} else if (sscanf(line, "own %31s %u", what, &ms) >= 1) {
			printf("own %s %d\n", what, own(what, ms));
		} else if (sscanf(line, "other %31s", what) == 1) {
			printf("other %s %d\n", what, other(what));
		} else if (!strcmp(line, "state\n")) {
			OK(cuCheckpointProcessGetState(getpid(), &state));
			printf("state %d\n", state);
		} else if (!strcmp(line, "count\n")) {
			printf("count %u\n", count);
		} else if (!strcmp(line, "slice\n")) {
			printf("slice %llu\n", (unsigned long long)slice_ns(0) / 1000);
		} else if (!strcmp(line, "busy\n")) {
			OK(cuStreamWaitValue32_v2(waiting, (ptr)(uintptr_t)word, 1, 1)); // equal
			puts("busy");
		} else if (!strcmp(line, "free\n")) {
			*(volatile uint32_t *)word = 1;
			puts("free");
		} else if (!strcmp(line, "end\n")) {
			stop = true;
			if (running)
				OK(pthread_join(thread, NULL));
			check();
		} else {
			puts("unknown command");
		}
	}
	return 0;
}
