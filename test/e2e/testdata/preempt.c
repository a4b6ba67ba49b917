// A program that stops a stream of its own. Commands on standard input, an answer for each.
#define _GNU_SOURCE
#include "../../../api/gpreempt.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct CUstream_st *stream_t;

#define FUNCTIONS(F) \
	F(cuStreamGetPriority, (handle, int *)) \
	F(cuFuncSetAttribute, (handle, int, int))

#include "driver.h"

enum { BLOCKS = 8000, CHAIN_us = 2000, SCRATCH_BYTES = 2048 };
static handle context, background, urgent, chain;
static ptr memory, scratch;
static uint32_t have[BLOCKS];
static uint32_t want = 0;
static atomic_uint launched;
static bool stopped_at_end;

#define SAY(what, call) printf(what " %d ", call) // one after the other, as arguments of one call need not be

static void launch_for(unsigned count, unsigned us)
{
	unsigned n = 1;
	for (unsigned i = 0; i < count; i++) {
		void *parameters[] = {&memory, &n, &i, &us};
		OK(cuLaunchKernel(chain, BLOCKS, 1, 1, 256, 1, 1, 0, background, parameters, NULL));
		want = want * 3 + i;
		launched++;
	}
}

static void launch(unsigned count) { launch_for(count, CHAIN_us); }

static void read_memory(void)
{
	OK(cuMemcpyDtoHAsync_v2(have, memory, sizeof have, urgent));
	OK(cuStreamSynchronize(urgent));
}

// How many launches each block has behind it is of no interest; that none changes is.
static uint64_t sum(void)
{
	uint64_t s = 0;
	read_memory();
	for (int i = 0; i < BLOCKS; i++)
		s = s * 31 + have[i];
	return s;
}

static void wait_urgent(unsigned us)
{
	unsigned n = 1;
	void *parameters[] = {&scratch, &n, &n, &us};
	OK(cuLaunchKernel(chain, 1, 1, 1, 256, 1, 1, 0, urgent, parameters, NULL));
	OK(cuStreamSynchronize(urgent));
}

static bool right(void)
{
	read_memory();
	for (int i = 0; i < BLOCKS; i++)
		if (have[i] != want) {
			printf("block %d has %u, must have %u\n", i, have[i], want);
			return false;
		}
	return true;
}

// Stops and restores while a chain runs; says how often nothing moved while it was stopped, and whether it all came out right.
static void rounds(unsigned count, int level, int wait)
{
	unsigned still = 0, busy = 0;
	OK(gpreempt_stream_enable(background, level));
	for (unsigned i = 0; i < count; i++) {
		launch(6);
		usleep(rand() % 8000);
		OK(gpreempt_stream_preempt(background, 1));
		uint64_t before = sum();
		wait_urgent(4000);
		still += sum() == before;
		busy += cuStreamQuery(background) == 600; // CUDA_ERROR_NOT_READY
		OK(gpreempt_stream_restore(background, wait));
	}
	OK(cuStreamSynchronize(background));
	struct gpreempt_stream_state state = {.size = sizeof state};
	OK(gpreempt_stream_query(background, &state));
	if (right())
		printf("still %u busy %d preempted %llu, now %d, for %d level %d\n", still, busy > 0,
		       (unsigned long long)state.preemptions, state.preempted, state.preempted_ns >= count * 4000000ull,
		       state.level);
	OK(gpreempt_stream_disable(background));
}

// Stops a stream that has a width, and waits for it while it is stopped: what was cut, and what was launched since, has run then.
static void narrow(unsigned count, int sms)
{
	unsigned ended = 0;
	OK(gpreempt_stream_enable(background, GPREEMPT_LEVEL_BLOCK));
	OK(gpreempt_stream_set_width(background, sms));
	for (unsigned i = 0; i < count; i++) {
		launch_for(3, 400);
		usleep(rand() % 1000);
		OK(gpreempt_stream_preempt(background, 1));
		launch_for(2, 200);
		OK(cuStreamSynchronize(background));
		struct gpreempt_stream_state state = {.size = sizeof state};
		OK(gpreempt_stream_query(background, &state));
		ended += state.preempted && right();
		launch_for(2, 200);
		OK(gpreempt_stream_restore(background, (int)i & 1));
	}
	OK(cuStreamSynchronize(background));
	if (right())
		printf("ended %u of %u while stopped\n", ended, count);
	OK(gpreempt_stream_disable(background));
}

// Takes the width of a stopped stream away while it goes on in it; says how often nothing moved from the next call on that waits.
static void taken(unsigned count, int sms)
{
	unsigned still = 0, busy = 0;
	OK(gpreempt_stream_enable(background, GPREEMPT_LEVEL_BLOCK));
	for (unsigned i = 0; i < count; i++) {
		OK(gpreempt_stream_set_width(background, sms));
		launch(6);
		OK(gpreempt_stream_preempt(background, 1));
		for (uint64_t first = sum(); sum() == first && cuStreamQuery(background) == 600;) // CUDA_ERROR_NOT_READY
			usleep(100);
		OK(gpreempt_stream_set_width(background, 0));
		OK(gpreempt_stream_preempt(background, 1));
		uint64_t before = sum();
		wait_urgent(4000);
		still += sum() == before;
		busy += cuStreamQuery(background) == 600;
		OK(gpreempt_stream_restore(background, 1));
	}
	OK(cuStreamSynchronize(background));
	if (right())
		printf("taken %u of %u, busy %d\n", still, count, busy > 0);
	OK(gpreempt_stream_disable(background));
}

// All blocks of a launch fit on the GPU at once, and not on so few SMs. Where they do not wait for each other it goes on there; where they
// may, it runs when the stream is restored.
static void at_once(handle marlin)
{
	enum { AT_ONCE = 600, SMS = 32 };
	ptr data, word;
	unsigned n = 1, add = 5, us = 300, got[AT_ONCE], wrong = 0;
	void *alone[] = {&data, &n, &add, &us}, *waits[] = {&word, &data, &n, &us};

	OK(cuMemAlloc_v2(&data, sizeof got));
	OK(cuMemAlloc_v2(&word, 4));
	OK(cuMemsetD8Async(data, 0, sizeof got, background));
	OK(cuMemsetD8Async(word, 0, 4, background));
	OK(cuStreamSynchronize(background));
	OK(gpreempt_stream_enable(background, GPREEMPT_LEVEL_BLOCK));
	OK(gpreempt_stream_set_width(background, SMS));
	OK(gpreempt_stream_preempt(background, 1));
	OK(cuLaunchKernel(chain, AT_ONCE, 1, 1, 256, 1, 1, 0, background, alone, NULL));
	OK(cuStreamSynchronize(background));
	OK(cuLaunchKernel(marlin, AT_ONCE, 1, 1, 256, 1, 1, 0, background, waits, NULL));
	puts("ended");
	CHECK(getchar() == '\n');
	printf("held %d ", cuStreamQuery(background) == 600); // CUDA_ERROR_NOT_READY
	OK(gpreempt_stream_restore(background, 0));
	OK(cuStreamSynchronize(background));
	OK(cuMemcpyDtoH_v2(got, data, sizeof got));
	for (int i = 0; i < AT_ONCE; i++)
		wrong += got[i] != 5 + 1;
	printf("wrong %u\n", wrong);
	OK(gpreempt_stream_disable(background));
}

enum { LARGE = 1 << 15 };

// How many blocks of a large launch have run.
static unsigned ran(ptr data)
{
	const volatile uint32_t *word = (const volatile uint32_t *)(uintptr_t)data; // the simulated driver's device memory
	unsigned n = 0;
	for (unsigned i = 0; i < LARGE; i++)
		n += word[i] != 0;
	return n;
}

static void until_more(ptr data, unsigned before)
{
	while (ran(data) == before)
		usleep(100);
}

// Stops a large launch as soon as a wave of its blocks has run. Says how many blocks have run by the end of the stop. "wide": the launch is
// unchanged. "narrow": it was launched while the stream was stopped, and goes on in a width. "cut": it was stopped before, and the stop
// that counts comes later.
static void large(handle kernel, const char *how, unsigned threads, unsigned shared, int sms)
{
	enum { DYNAMIC_SHARED = 8, SMS = 132, THREADS = 2048 }; // of an SM
	unsigned on_sm = shared ? 1 : THREADS / threads, waves = (LARGE + SMS * on_sm - 1) / (SMS * on_sm);
	unsigned n = 1, add = 5, us = 600000 + waves * 4000, before = 0, wrong = 0;
	static ptr data;
	void *parameters[] = {&data, &n, &add, &us};

	if (!data)
		OK(cuMemAlloc_v2(&data, LARGE * 4));
	OK(cuMemsetD8Async(data, 0, LARGE * 4, background));
	OK(cuStreamSynchronize(background));
	OK(cuFuncSetAttribute(kernel, DYNAMIC_SHARED, (int)shared));
	OK(gpreempt_stream_enable(background, GPREEMPT_LEVEL_BLOCK));
	if (strcmp(how, "narrow") == 0) {
		OK(gpreempt_stream_set_width(background, sms));
		OK(gpreempt_stream_preempt(background, 1));
	}
	OK(cuLaunchKernel(kernel, LARGE, 1, 1, threads, 1, 1, shared, background, parameters, NULL));
	if (strcmp(how, "cut") == 0) {
		until_more(data, 0);
		OK(gpreempt_stream_preempt(background, 1));
		before = ran(data);
		OK(gpreempt_stream_set_width(background, sms));
	}
	until_more(data, before);
	OK(gpreempt_stream_set_width(background, 0)); // what runs narrow is stopped soon
	OK(gpreempt_stream_preempt(background, 0));
	puts("stops");
	CHECK(getchar() == '\n');
	OK(gpreempt_stream_preempt(background, 1));
	printf("ran %u ", ran(data) - before);
	OK(gpreempt_stream_restore(background, 0));
	OK(cuStreamSynchronize(background));
	for (unsigned i = 0; i < LARGE; i++)
		wrong += ((const uint32_t *)(uintptr_t)data)[i] != add;
	printf("wrong %u\n", wrong);
	OK(gpreempt_stream_disable(background));
}

// The driver refuses a call while kernels run narrow. Later work still comes behind them.
static void given_up(void)
{
	enum { FEW = 64, LONG_us = 600000 };
	unsigned n = 1, sum = 0, got;
	OK(gpreempt_stream_enable(background, GPREEMPT_LEVEL_BLOCK));
	OK(gpreempt_stream_set_width(background, 64));
	OK(gpreempt_stream_preempt(background, 1));
	for (unsigned i = 1; i <= 3; i++) {
		unsigned us = i == 1 ? LONG_us : 100;
		void *parameters[] = {&scratch, &n, &i, &us};
		if (i == 3) {
			usleep(LONG_us / 4);
			SAY("restored", gpreempt_stream_restore(background, 1));
		}
		OK(cuLaunchKernel(chain, 1, 1, 1, 256, 1, 1, 0, background, parameters, NULL));
		sum = sum * 3 + i;
	}
	OK(cuStreamSynchronize(background));
	OK(cuMemcpyDtoH_v2(&got, scratch, sizeof got));
	printf("%s\n", got == sum ? "in order" : "overtaken");
}

// The driver refuses a call in the first launch on a stopped stream. The thread that launches is the one that would end the stop.
static void given_up_stopped(void)
{
	OK(gpreempt_stream_enable(background, GPREEMPT_LEVEL_BLOCK));
	OK(gpreempt_stream_preempt(background, 1));
	launch(3);
	OK(cuStreamSynchronize(background));
	SAY("restored", gpreempt_stream_restore(background, 1));
	launch(3);
	OK(cuStreamSynchronize(background));
	if (right())
		printf("right\n");
}

// Launches a kernel behind what is there, and stops it when its first block has run; whether its last one had not.
static bool cut_behind(void)
{
	enum { LONG_us = 60000 };
	uint32_t before = want;
	launch_for(1, LONG_us);
	do
		read_memory();
	while (have[0] != want);
	OK(gpreempt_stream_preempt(background, 1));
	read_memory();
	return have[BLOCKS - 1] == before;
}

// A kernel with clusters that has ended, and one that is cut behind it. In the stop neither of them can begin again, for longer than a stop
// waits, since the urgent stream has all SMs.
static void clusters(handle clustered)
{
	enum { REQUIRED_CLUSTER_WIDTH = 11, SMS = 132, AWAY_us = 300000 };
	unsigned n = 1, us = 100, away = AWAY_us, add = 5;
	void *first[] = {&memory, &n, &add, &us}, *all[] = {&scratch, &n, &n, &away};
	OK(cuFuncSetAttribute(clustered, REQUIRED_CLUSTER_WIDTH, 2));
	OK(gpreempt_stream_enable(background, GPREEMPT_LEVEL_BLOCK));
	OK(gpreempt_stream_set_width(background, 64)); // from the first green context on, blocks have room or not
	OK(gpreempt_stream_set_width(background, 0));
	OK(cuLaunchKernel(clustered, BLOCKS, 1, 1, 256, 1, 1, 0, background, first, NULL));
	want = want * 3 + add;
	bool cut = cut_behind();
	OK(cuLaunchKernel(chain, 2 * SMS, 1, 1, 1024, 1, 1, 0, urgent, all, NULL));
	OK(gpreempt_stream_restore(background, 1));
	OK(gpreempt_stream_preempt(background, 1));
	bool away_yet = cuStreamQuery(urgent) == 600; // CUDA_ERROR_NOT_READY
	OK(gpreempt_stream_restore(background, 0));
	OK(cuStreamSynchronize(background));
	OK(cuStreamSynchronize(urgent));
	if (right())
		printf("%s\n", !cut ? "not cut" : !away_yet ? "not kept off" : "right");
	OK(gpreempt_stream_disable(background));
}

// Kernels that have ended when a stop cuts what is behind them, each with clusters of another size, which the launch does not name.
static void ended(handle clustered)
{
	enum { REQUIRED_CLUSTER_WIDTH = 11 };
	unsigned n = 1, us = 1, add = 5, cut = 0;
	void *parameters[] = {&memory, &n, &add, &us};
	OK(gpreempt_stream_enable(background, GPREEMPT_LEVEL_BLOCK));
	for (int width = 1; width <= 8; width *= 2) {
		OK(cuFuncSetAttribute(clustered, REQUIRED_CLUSTER_WIDTH, width));
		OK(cuLaunchKernel(clustered, BLOCKS, 1, 1, 32, 1, 1, 0, background, parameters, NULL));
		want = want * 3 + add;
		cut += cut_behind();
		OK(gpreempt_stream_restore(background, 1));
	}
	OK(cuStreamSynchronize(background));
	if (right())
		printf("%u cut\n", cut);
	OK(gpreempt_stream_disable(background));
}

static void widths(void)
{
	handle other, made;
	SAY("not enabled", gpreempt_stream_set_width(background, 16));
	OK(gpreempt_stream_enable(background, GPREEMPT_LEVEL_BLOCK));
	SAY("negative", gpreempt_stream_set_width(background, -1));
	SAY("more than there are", gpreempt_stream_set_width(background, 133));
	SAY("all", gpreempt_stream_set_width(background, 132));
	SAY("few", gpreempt_stream_set_width(background, 7));
	for (int sms = 8; sms <= 64; sms += 8) // with that of all: one more than there are places
		if (gpreempt_stream_set_width(background, sms))
			SAY("too many", gpreempt_stream_set_width(background, sms));
	SAY("one of them", gpreempt_stream_set_width(background, 23));
	OK(cuCtxCreate_v2(&made, 0, 0));
	OK(cuStreamCreate(&other, 1));
	int enabled = gpreempt_stream_enable(other, GPREEMPT_LEVEL_BLOCK); // once the context has a domain
	for (int i = 0; enabled && i < 10000; i++, usleep(1000))
		enabled = gpreempt_stream_enable(other, GPREEMPT_LEVEL_BLOCK);
	SAY("another context", gpreempt_stream_set_width(other, 16));
	printf("\n");
	OK(cuCtxDestroy_v2(made));
	OK(cuCtxSetCurrent(context));
	OK(gpreempt_stream_disable(background));
}

static void until_done(void *none)
{
	(void)none;
	const volatile uint32_t *at = (const volatile uint32_t *)(uintptr_t)memory; // the simulated driver's device memory
	for (int i = 0; i < BLOCKS; i++)
		while (at[i] != *(const volatile uint32_t *)&want)
			usleep(50);
}

// Widths are asked for while a stream waits for work that is only logged. The call waits until the end of a stop that another thread sees
// to, which has another stream to see to first. Or it waits until the stream has gone on in the present width. It does not wait for a
// stream that waits for the program.
static void waited(void)
{
	uint32_t value = want;
	OK(gpreempt_stream_enable(background, GPREEMPT_LEVEL_BLOCK));
	OK(gpreempt_stream_preempt(background, 1));
	launch_for(1, 100);
	OK(cuLaunchHostFunc(urgent, until_done, NULL));
	OK(gpreempt_stream_restore(background, 0));
	SAY("going on", gpreempt_stream_set_width(background, 16));
	OK(gpreempt_stream_preempt(background, 1));
	uint32_t before = want;
	launch_for(40, 100);
	while (*(const volatile uint32_t *)(uintptr_t)memory == before) // it goes on only while nothing else is on its way
		usleep(50);
	OK(cuLaunchHostFunc(urgent, until_done, NULL));
	SAY("narrow", gpreempt_stream_set_width(background, 32));
	OK(gpreempt_stream_restore(background, 1));
	OK(cuStreamSynchronize(urgent));
	value = want++;
	OK(cuLaunchHostFunc(urgent, until_done, NULL));
	SAY("busy", gpreempt_stream_set_width(background, 64));
	want = value;
	OK(cuStreamSynchronize(urgent));
	SAY("idle", gpreempt_stream_set_width(background, 64));
	printf("right %d\n", right());
	OK(gpreempt_stream_disable(background));
}

static void *feed(void *unused)
{
	OK(cuCtxSetCurrent(context));
	launch(3000); // more than a log holds back
	return unused;
}

// A thread that feeds a stopped stream: it waits, at the latest when nothing more can be noted down.
static void fed(int level)
{
	pthread_t thread;
	OK(gpreempt_stream_enable(background, level));
	OK(gpreempt_stream_preempt(background, 1));
	uint64_t before = sum();
	launched = 0;
	OK(pthread_create(&thread, NULL, feed, NULL));
	wait_urgent(20000);
	bool unchanged = sum() == before, waits = launched < 3000;
	OK(gpreempt_stream_restore(background, 0));
	OK(pthread_join(thread, NULL));
	OK(cuStreamSynchronize(background));
	if (right())
		printf("unchanged %d waits %d launched %u\n", unchanged, waits, launched);
	OK(gpreempt_stream_disable(background));
}

// A launch into a stopped stream that the driver would refuse is refused at once.
static void refused(void)
{
	unsigned n = 1, us = 10;
	void *parameters[] = {&memory, &n, &n, &us};
	OK(gpreempt_stream_enable(background, GPREEMPT_LEVEL_BLOCK));
	OK(gpreempt_stream_preempt(background, 1));
	int at_once = cuLaunchKernel(chain, BLOCKS, 1, 1, 2000, 1, 1, 0, background, parameters, NULL);
	launch(1);
	OK(gpreempt_stream_restore(background, 1));
	launch(1);
	OK(cuStreamSynchronize(background));
	if (right())
		printf("at once %d\n", at_once);
	OK(gpreempt_stream_disable(background));
}

// Stops a launch in its middle, where its blocks take 20 ms, and right then something is kept from going on for 400 ms.
static void kept_from(void (*going_on)(unsigned ms))
{
	OK(gpreempt_stream_enable(background, GPREEMPT_LEVEL_BLOCK));
	launch(2);
	launch_for(1, 160000);                       // which changes each word, since these did
	while (*(volatile uint32_t *)memory != want) // the simulated driver's device memory
		usleep(100);
	going_on(400);
	OK(gpreempt_stream_preempt(background, 1));
	OK(gpreempt_stream_restore(background, 1));
	OK(cuStreamSynchronize(background));
	if (right())
		printf("right\n");
	OK(gpreempt_stream_disable(background));
}

// Stops the stream, and asks what became of it 20 ms later.
static void unwatched(void)
{
	OK(gpreempt_stream_enable(background, GPREEMPT_LEVEL_BLOCK));
	launch(6);
	OK(gpreempt_stream_preempt(background, 0));
	wait_urgent(20000);
	OK(gpreempt_stream_restore(background, 1));
	OK(cuStreamSynchronize(background));
	if (right())
		printf("right\n");
	OK(gpreempt_stream_disable(background));
}

// Holds back new launches and waits for those that run. Where the driver refuses that wait, nothing of these is lost.
static void held(void)
{
	OK(gpreempt_stream_enable(background, GPREEMPT_LEVEL_QUEUE));
	launch(6);
	int stop = gpreempt_stream_preempt(background, 1), go_on = gpreempt_stream_restore(background, 1);
	launch(1);
	OK(cuStreamSynchronize(background));
	if (right())
		printf("stop %d go on %d\n", stop, go_on);
	OK(gpreempt_stream_disable(background));
}

static void *launch_on_legacy(void *unused)
{
	OK(cuCtxSetCurrent(context));
	background = NULL;
	launch(1);
	return unused;
}

// The legacy stream is ordered with a blocking one, which is stopped.
static void legacy(unsigned count)
{
	handle before = background, blocking;
	pthread_t thread;
	OK(cuStreamCreate(&blocking, 0));
	OK(gpreempt_stream_enable(blocking, GPREEMPT_LEVEL_BLOCK));
	for (unsigned i = 0; i < count; i++) {
		background = blocking;
		launch(3);
		OK(gpreempt_stream_preempt(blocking, 1));
		OK(pthread_create(&thread, NULL, launch_on_legacy, NULL));
		wait_urgent(20000);
		OK(gpreempt_stream_restore(blocking, 0));
		OK(pthread_join(thread, NULL));
	}
	OK(cuStreamSynchronize(NULL));
	if (right())
		printf("in order\n");
	OK(cuStreamDestroy_v2(blocking));
	background = before;
}

static void errors(void)
{
	struct gpreempt_stream_state state = {.size = sizeof state, .level = 9}, short_state = {.size = 1};
	handle graph, other;
	SAY("level", gpreempt_stream_enable(background, 9));
	SAY("thread", gpreempt_stream_enable((stream_t)2, GPREEMPT_LEVEL_BLOCK));
	SAY("preempt", gpreempt_stream_preempt(background, 1));
	SAY("restore", gpreempt_stream_restore(background, 1));
	SAY("disable", gpreempt_stream_disable(background));
	SAY("query", gpreempt_stream_query(background, &state));
	SAY("level", state.level);
	SAY("nowhere", gpreempt_stream_query(background, NULL));
	SAY("short", gpreempt_stream_query(background, &short_state));
	OK(cuStreamCreate(&other, 1));
	OK(cuStreamBeginCapture_v2(other, 2));
	SAY("capturing", gpreempt_stream_enable(other, GPREEMPT_LEVEL_BLOCK));
	OK(cuStreamEndCapture(other, &graph));
	SAY("enable", gpreempt_stream_enable(other, GPREEMPT_LEVEL_BLOCK));
	SAY("again", gpreempt_stream_enable(other, GPREEMPT_LEVEL_QUEUE));
	SAY("stop", gpreempt_stream_preempt(other, 0));
	SAY("twice", gpreempt_stream_preempt(other, 1));
	SAY("change", gpreempt_stream_enable(other, GPREEMPT_LEVEL_BLOCK));
	SAY("same", gpreempt_stream_enable(other, GPREEMPT_LEVEL_QUEUE));
	SAY("restore", gpreempt_stream_restore(other, 0));
	SAY("twice", gpreempt_stream_restore(other, 1));
	OK(gpreempt_stream_query(other, &state));
	SAY("preemptions", (int)state.preemptions);
	OK(cuStreamDestroy_v2(other));
	SAY("gone", gpreempt_stream_preempt(other, 0));
	OK(cuCtxSetCurrent(NULL));
	SAY("no context", gpreempt_stream_enable(background, GPREEMPT_LEVEL_BLOCK));
	SAY("either", gpreempt_stream_preempt(background, 1));
	SAY("nor", gpreempt_stream_query(background, &state));
	printf("\n");
	OK(cuCtxSetCurrent(context));
}

static void priorities(int (*priority_of)(handle))
{
	SAY("set", gpreempt_stream_set_priority(background, -3));
	SAY("has", priority_of(background));
	SAY("less", gpreempt_stream_set_priority(background, 1));
	SAY("more", gpreempt_stream_set_priority(background, -6));
	printf("\n");
}

// A handler like cudart's for the end of a program, registered when it starts.
static void at_exit(void)
{
	if (context && stopped_at_end) {
		OK(cuStreamSynchronize(background));
		printf("ended %d\n", right());
	}
}

static void leave(void)
{
	OK(gpreempt_stream_enable(background, GPREEMPT_LEVEL_BLOCK));
	launch(10);
	OK(gpreempt_stream_preempt(background, 1));
	stopped_at_end = true;
	exit(0);
}

// Children that are forked while a stream is stopped, and goes on narrow, end by exit. One that waits for a lock of its parent's dies.
static void children(unsigned count)
{
	enum { PATIENCE_s = 20 };
	unsigned ended = 0;
	OK(gpreempt_stream_enable(background, GPREEMPT_LEVEL_BLOCK));
	OK(gpreempt_stream_set_width(background, 32));
	OK(gpreempt_stream_preempt(background, 1));
	for (int status = 0; ended < count && status == 0;) {
		launch(1);
		pid_t pid = fork();
		if (pid == 0) {
			alarm(PATIENCE_s);
			exit(0);
		}
		CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
		ended += status == 0;
	}
	OK(gpreempt_stream_restore(background, 1));
	OK(cuStreamSynchronize(background));
	if (right())
		printf("ended %u of %u children\n", ended, count);
	OK(gpreempt_stream_disable(background));
}

static atomic_bool capturing;
static atomic_uint captures, broken;

static void *capture(void *unused)
{
	unsigned n = 1, us = 1;
	void *parameters[] = {&scratch, &n, &n, &us};
	handle stream, graph;
	OK(cuCtxSetCurrent(context));
	OK(cuStreamCreate(&stream, 1));
	while (capturing) {
		OK(cuStreamBeginCapture_v2(stream, 0)); // global: no thread may make a call that could wait
		for (int i = 0; i < 20; i++) {
			cuLaunchKernel(chain, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL);
			usleep(50);
		}
		broken += cuStreamEndCapture(stream, &graph) != 0;
		captures++;
	}
	return unused;
}

// Streams come and go, and take all of their records several times, while another thread captures.
static void beside_captures(void)
{
	unsigned n = 1, us = 1;
	void *parameters[] = {&scratch, &n, &n, &us};
	pthread_t thread;
	capturing = true;
	OK(pthread_create(&thread, NULL, capture, NULL));
	while (!captures)
		usleep(1000);
	for (int i = 0; i < 20; i++) {
		handle stream;
		OK(cuStreamCreate(&stream, 1));
		OK(gpreempt_stream_enable(stream, GPREEMPT_LEVEL_BLOCK));
		for (int k = 0; i == 0 && k < 120000; k++)
			OK(cuLaunchKernel(chain, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
		OK(cuStreamDestroy_v2(stream));
	}
	while (captures <= 20)
		usleep(1000);
	capturing = false;
	OK(pthread_join(thread, NULL));
	printf("captures %d broken %u\n", captures > 20, broken);
}

// As many as there may be, and one.
static void many(void)
{
	int last = 0, count = 0;
	while (count < 200) {
		handle s;
		OK(cuStreamCreate(&s, 1));
		if ((last = gpreempt_stream_enable(s, GPREEMPT_LEVEL_BLOCK)))
			break;
		count++;
	}
	printf("enabled %d then %d\n", count > 0, last);
}

int main(int argc, char **argv)
{
	handle library = NULL, module, clustered, marlin;
	char line[64], how[16];
	unsigned n, shared;
	int level, wait;
	setvbuf(stdout, NULL, _IOLBF, 0);
	atexit(at_exit);
	if (!gpreempt_stream_enable || !gpreempt_stream_query) {
		printf("no library\n");
		return 0;
	}
	if (argc != 2)
		return 1;
	library = find_driver();
	int early = gpreempt_stream_enable(NULL, GPREEMPT_LEVEL_BLOCK), before = gpreempt_stream_preempt(NULL, 1);
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	OK(cuModuleLoad(&module, argv[1]));
	OK(cuModuleGetFunction(&chain, module, "sim_chain"));
	OK(cuModuleGetFunction(&marlin, module, "sim_marlin"));
	OK(cuModuleLoad(&module, argv[1])); // whose functions have attributes of their own
	OK(cuModuleGetFunction(&clustered, module, "sim_chain"));
	OK(cuStreamCreate(&background, 1));
	OK(cuStreamCreate(&urgent, 1));
	OK(cuMemAlloc_v2(&memory, BLOCKS * 4));
	OK(cuMemAlloc_v2(&scratch, SCRATCH_BYTES));
	OK(cuMemsetD8Async(memory, 0, BLOCKS * 4, background));
	OK(cuMemsetD8Async(scratch, 0, SCRATCH_BYTES, background));
	OK(cuStreamSynchronize(background));
	printf("before %d %d after %d\n", early, before, gpreempt_stream_enable(background, GPREEMPT_LEVEL_BLOCK));
	gpreempt_stream_disable(background);
	while (fgets(line, sizeof line, stdin))
		if (sscanf(line, "rounds %u %d %d", &n, &level, &wait) == 3)
			rounds(n, level, wait);
		else if (sscanf(line, "fed %d", &level) == 1)
			fed(level);
		else if (sscanf(line, "legacy %u", &n) == 1)
			legacy(n);
		else if (strcmp(line, "gpu away\n") == 0)
			kept_from((void (*)(unsigned))dlsym(library, "simcuda_gpu_away"));
		else if (strcmp(line, "thread away\n") == 0)
			kept_from((void (*)(unsigned))dlsym(library, "simcuda_answer_late"));
		else if (strcmp(line, "waited\n") == 0)
			waited();
		else if (strcmp(line, "unwatched\n") == 0)
			unwatched();
		else if (strcmp(line, "held\n") == 0)
			held();
		else if (strcmp(line, "refused\n") == 0)
			refused();
		else if (strcmp(line, "errors\n") == 0)
			errors();
		else if (strcmp(line, "leave\n") == 0)
			leave();
		else if (sscanf(line, "children %u", &n) == 1)
			children(n);
		else if (strcmp(line, "many\n") == 0)
			many();
		else if (strcmp(line, "beside captures\n") == 0)
			beside_captures();
		else if (sscanf(line, "taken %u %d", &n, &level) == 2)
			taken(n, level);
		else if (sscanf(line, "narrow %u %d", &n, &level) == 2)
			narrow(n, level);
		else if (strcmp(line, "at once\n") == 0)
			at_once(marlin);
		else if (sscanf(line, "large %15s %u %u %d", how, &n, &shared, &level) == 4)
			large(clustered, how, n, shared, level);
		else if (strcmp(line, "given up\n") == 0)
			given_up();
		else if (strcmp(line, "given up while stopped\n") == 0)
			given_up_stopped();
		else if (strcmp(line, "clusters\n") == 0)
			clusters(clustered);
		else if (strcmp(line, "ended\n") == 0)
			ended(clustered);
		else if (strcmp(line, "widths\n") == 0)
			widths();
		else if (strcmp(line, "priorities\n") == 0)
			priorities((int (*)(handle))dlsym(library, "simcuda_stream_priority"));
	return 0;
}
