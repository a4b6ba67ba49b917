// engine.c - steps as an engine with continuous batching makes them. A step is a graph of kernels, a few kernels behind it, and a small
// copy to the host on a copy stream. Another thread waits for an event at its end, while the next step is queued already.
//
// usage: engine STEP_US [sync] [kernels] [says] [silent] [pushes] [starts] [domain] [early] [rests] [parts] [rank]   runs until its input ends,
// then prints: steps N sync: the thread that submits waits for each step. kernels: no graphs. says: gpreempt_step() at the end of each.
// silent: nothing is copied to the host, so that no step's end can be found. pushes, starts, domain: an NVTX range "decode" around each
// wait, of that kind. early: NVTX is there before CUDA. rests: sync, and each step is a request of its own, 100 ms after the one before.
// parts: sync, results are large, and each step has a second part, whose input is copied as soon as the first part has ended.
// rank: its second kernel has a name of NCCL's, and is loaded before each launch. Its result is that each step ran once.
#define FUNCTIONS(F) F(cuFuncLoad, (handle))
#include "driver.h"
#include "nvtx.h"

#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

enum { DEEP = 2, LARGE = 128 << 10 }; // steps under way at once; bytes of large results and inputs
static handle stream, copies, ready[DEEP], copied[DEEP];
static sem_t submitted, finished;
static uint32_t *host;
static bool says, pushes, starts, domain, early, large;
static bool over; // written before submitted is posted for the last time

// Pushed ranges have others within and around them.
static void wait(handle event)
{
	static struct nvtx_attributes decode = {.version = 3, .size = sizeof decode, .kind = 1, .message = "decode"};
	uint64_t id = starts && nvtx_start ? nvtx_start("decode") : 0;
	if (pushes && nvtx_push)
		nvtx_push("outside"), nvtx_push("decode"), nvtx_push("within"), nvtx_pop();
	if (domain && nvtx_domain_push)
		nvtx_domain_push(&decode, &decode);
	OK(cuEventSynchronize(event));
	if (domain && nvtx_domain_pop)
		nvtx_domain_pop(&decode);
	if (pushes && nvtx_pop)
		nvtx_pop(), nvtx_pop();
	if (starts && nvtx_end)
		nvtx_end(id);
}

static void ended(int step)
{
	static int (*say)(void);
	wait(copied[step % DEEP]);
	if (says && !say)
		CHECK((say = (int (*)(void))dlsym(RTLD_DEFAULT, "gpreempt_step")) != NULL);
	if (says)
		(void)say(); // -1 before somebody is there to lend to
}

static void copy_result(int at, ptr counter, bool silent)
{
	OK(cuEventRecord(ready[at], stream));
	OK(cuStreamWaitEvent(copies, ready[at], 0));
	if (!silent)
		OK(cuMemcpyDtoHAsync_v2(host + at, counter, large ? LARGE : 4, copies));
	OK(cuEventRecord(copied[at], copies));
}

static void *reads(void *context)
{
	OK(cuCtxSetCurrent(context));
	for (int i = 0;; i++) {
		sem_wait(&submitted);
		if (over)
			return NULL;
		ended(i);
		sem_post(&finished);
	}
}

static bool input_ended(void)
{
	struct pollfd input = {.fd = 0, .events = POLLIN};
	return poll(&input, 1, 0) != 0;
}

int main(int count, char **argument)
{
	handle context, module, spin, add, graph, instance;
	ptr counter;
	bool sync = false, kernels = false, silent = false, rests = false, parts = false, rank = false;
	pthread_t reader;
	uint64_t us = strtoull(argument[1], NULL, 10), words = 1;
	uint32_t one = 1, steps = 0;
	static uint32_t input[LARGE / 4];
	for (int i = 2; i < count; i++) {
		sync = sync || !strcmp(argument[i], "sync");
		kernels = kernels || !strcmp(argument[i], "kernels");
		says = says || !strcmp(argument[i], "says");
		silent = silent || !strcmp(argument[i], "silent");
		pushes = pushes || !strcmp(argument[i], "pushes");
		starts = starts || !strcmp(argument[i], "starts");
		domain = domain || !strcmp(argument[i], "domain");
		early = early || !strcmp(argument[i], "early");
		rank = rank || !strcmp(argument[i], "rank");
		rests = rests || !strcmp(argument[i], "rests");
		parts = parts || !strcmp(argument[i], "parts");
	}
	sync = sync || rests || parts;
	large = parts;
	if (early)
		nvtx_load();
	find_driver();
	OK(cuInit(0));
	if (pushes || starts || domain)
		nvtx_load();
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	OK(cuModuleLoadData(&module, "simulated image"));
	OK(cuModuleGetFunction(&spin, module, "sim_spin_us"));
	OK(cuModuleGetFunction(&add, module, rank ? "ncclDevKernel_sim_add" : "sim_add"));
	OK(cuStreamCreate(&stream, 1));
	OK(cuStreamCreate(&copies, 1));
	OK(cuMemAlloc_v2(&counter, 2 * LARGE));
	OK(cuMemHostAlloc((void **)&host, 2 * LARGE, 0));
	OK(cuMemsetD32Async(counter, 0, 1024, stream));
	for (int i = 0; i < DEEP; i++) {
		OK(cuEventCreate(&ready[i], 2));
		OK(cuEventCreate(&copied[i], 2));
	}
	void *spins[] = {&us}, *adds[] = {&counter, &words, &one};
	OK(cuStreamBeginCapture_v2(stream, 2));
	OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, spins, NULL));
	OK(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, stream, adds, NULL));
	OK(cuStreamEndCapture(stream, &graph));
	OK(cuGraphInstantiateWithFlags(&instance, graph, 0));
	sem_init(&submitted, 0, 0);
	sem_init(&finished, 0, sync ? 1 : DEEP);
	if (!sync && pthread_create(&reader, NULL, reads, context))
		return 1;
	for (; !input_ended(); steps++) {
		int at = (int)(steps % DEEP);
		sem_wait(&finished);
		if (kernels) {
			OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, spins, NULL));
			if (rank)
				OK(cuFuncLoad(add));
			OK(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, stream, adds, NULL));
		} else {
			OK(cuGraphLaunch(instance, stream));
		}
		copy_result(at, counter, silent);
		if (sync) {
			ended(at);
			if (parts) {
				OK(cuMemcpyHtoD_v2(counter + LARGE, input, sizeof input)); // from memory that is not pinned
				OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, spins, NULL));
				copy_result(at, counter, silent);
				ended(at);
				usleep(1000); // it looks at the results of both
			}
			sem_post(&finished);
			if (rests)
				usleep(100 * 1000);
		} else {
			sem_post(&submitted);
		}
	}
	for (int i = 0; i < (sync ? 0 : DEEP); i++)
		sem_wait(&finished); // what was submitted is read
	over = true;
	sem_post(&submitted);
	if (!sync)
		pthread_join(reader, NULL);
	OK(cuMemcpyDtoH_v2(host, counter, 4));
	CHECK(host[0] == steps);
	printf("steps %u\n", steps);
	return 0;
}
