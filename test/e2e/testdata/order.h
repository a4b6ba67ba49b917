// order.h - shared by programs whose results show whether work overtook what it comes behind. They hang if a call waits for something that
// the program does only after the call. Without the library such a call returns at once. Before such a program includes this, it defines
// MORE_FUNCTIONS(F), as FUNCTIONS of driver.h, if it calls others than these. Its main is serve.
#ifndef TEST_ORDER_H
#define TEST_ORDER_H

#include "../../../api/gpreempt.h"
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifndef MORE_FUNCTIONS
#define MORE_FUNCTIONS(F)
#endif
#define FUNCTIONS(F) \
	F(cuStreamSynchronize_ptsz, (handle)) \
	F(cuStreamQuery_ptsz, (handle)) \
	F(cuEventRecord_ptsz, (handle, handle)) \
	F(cuLaunchKernel_ptsz, (LAUNCH_PARAMETERS, void **)) \
	MORE_FUNCTIONS(F)

struct launch_attribute {
	unsigned id;
	char pad[4], value[64];
};
struct launch_config {
	unsigned grid[3], block[3], shared;
	void *stream;
	const struct launch_attribute *attributes;
	unsigned count;
};

#include "driver.h"

typedef struct CUstream_st *stream_t;

enum { BLOCKS = 8000, NON_BLOCKING = 1, RELAXED = 2, GLOBAL = 0, NOT_READY = 600 };
enum { SYNCHRONIZATION_POLICY = 3, LAUNCH_COMPLETION_EVENT = 12 };
static handle context, chain, waits;
static const char *image;

// A buffer, and what launches make of it.
struct chained {
	ptr data;
	uint32_t want, *have;
};

static inline struct chained buffer(void)
{
	struct chained b = {.want = 0};
	OK(cuMemAlloc_v2(&b.data, BLOCKS * 4));
	OK(cuMemHostAlloc((void **)&b.have, BLOCKS * 4, 0));
	OK(cuMemsetD32Async(b.data, 0, BLOCKS, NULL));
	OK(cuStreamSynchronize(NULL));
	return b;
}

static inline void launch_by(int (*by)(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
				       handle, void **, void **),
			     struct chained *b, handle stream, unsigned add, unsigned us)
{
	unsigned n = 1;
	void *parameters[] = {&b->data, &n, &add, &us};
	OK(by(chain, BLOCKS, 1, 1, 256, 1, 1, 0, stream, parameters, NULL));
	b->want = b->want * 3 + add;
}

static inline void launch(struct chained *b, handle stream, unsigned add, unsigned us)
{
	launch_by(cuLaunchKernel, b, stream, add, us);
}

static inline void copy(struct chained *b, handle stream)
{
	OK(cuMemcpyDtoHAsync_v2(b->have, b->data, BLOCKS * 4, stream));
}

static inline bool right(const struct chained *b)
{
	for (int i = 0; i < BLOCKS; i++)
		if (b->have[i] != b->want)
			return false;
	return true;
}

static handle stream_of(unsigned flags)
{
	handle s;
	OK(cuStreamCreate(&s, flags));
	return s;
}

static inline handle new_event(void)
{
	handle e;
	OK(cuEventCreate(&e, 2));
	return e;
}

static inline void plain(unsigned rounds)
{
	struct chained b = buffer();
	for (unsigned r = 0; r < rounds; r++)
		launch(&b, NULL, r, 100);
	copy(&b, NULL);
	OK(cuStreamSynchronize(NULL));
	CHECK(right(&b));
}

static inline void load(void)
{
	handle module;
	OK(cuModuleLoad(&module, image));
	OK(cuModuleGetFunction(&chain, module, "sim_chain"));
	OK(cuModuleGetFunction(&waits, module, "sim_marlin"));
}

static _Atomic bool released;
static inline void host_wait(void *none)
{
	(void)none;
	while (!released)
		usleep(50);
}

static ptr word;
static inline void wait_for_value(handle stream)
{
	*(_Atomic uint32_t *)(uintptr_t)word = 0;
	OK(cuStreamWaitValue32_v2(stream, word, 1, 0));
}

static inline void release(void)
{
	*(_Atomic uint32_t *)(uintptr_t)word = 1;
	released = true;
}

// A kernel that waits until the program writes a word.
static inline void spin_until(handle stream, ptr at)
{
	ptr data = at;
	int n = 0;
	unsigned us = 10;
	void *parameters[] = {&at, &data, &n, &us};
	*(_Atomic uint32_t *)(uintptr_t)at = 7;
	OK(cuLaunchKernel(waits, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
}

static inline void write_word(ptr at) { *(_Atomic uint32_t *)(uintptr_t)at = 0; }

static inline void spin(handle stream) { spin_until(stream, word); }

static inline void let_go(void) { write_word(word); }

// The test that started the program answers when some stops have begun and ended.
static inline void until_stopped(void)
{
	char line[64];
	printf("until stopped\n");
	CHECK(fgets(line, sizeof line, stdin));
}

static inline void until_reached(handle event)
{
	while (cuEventQuery(event) == NOT_READY)
		usleep(50);
}

// How long a program waits for what comes at once unless the test has failed, on a loaded machine too.
enum { PATIENCE_S = 60 };

// True: it came.
static inline bool comes(const _Atomic bool *it)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	for (time_t until = now.tv_sec + PATIENCE_S; !*it && now.tv_sec < until; clock_gettime(CLOCK_MONOTONIC, &now))
		usleep(1000);
	return *it;
}

// Waits until a thread of this process waits in a call: it was asleep at some looks, or has ended. A thread that a loaded machine keeps
// from the processor is not asleep.
static inline void until_waiting(pid_t thread)
{
	enum { LOOKS = 10 };
	char path[64], stat[256], *state;
	snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)thread);
	for (int asleep = 0; asleep < LOOKS; usleep(2000)) {
		FILE *file = fopen(path, "r");
		if (!file)
			return;
		state = fgets(stat, sizeof stat, file) ? strrchr(stat, ')') : NULL;
		fclose(file);
		if (!state || state[2] == 'Z' || state[2] == 'X')
			return;
		asleep += state[2] == 'S';
	}
}

// The same for a thread that is about to say that it begins.
static inline void until_it_waits(const _Atomic pid_t *begins)
{
	while (!*begins)
		usleep(50);
	until_waiting(*begins);
}

struct wait {
	handle stream;
	_Atomic bool over;
};

static inline void *wait_for_stream(void *wait)
{
	struct wait *w = wait;
	OK(cuCtxSetCurrent(context));
	OK(cuStreamSynchronize(w->stream));
	w->over = true;
	return NULL;
}

static inline void *write_later(void *at)
{
	usleep(2000);
	write_word((ptr)(uintptr_t)at);
	return NULL;
}

// A task that a line of the input names.
struct task {
	const char *name;
	void (*run)(unsigned rounds);
};

// Does at each line of the input "<what> <rounds>" a piece of work and answers "right", or says what was not.
static inline int serve(int argc, char **argv, const struct task *what, size_t count)
{
	char line[64], name[32];
	unsigned rounds;
	if (argc != 2)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	find_driver();
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	image = argv[1];
	load();
	OK(cuMemAlloc_v2(&word, 8));
	printf("ready\n");
	while (fgets(line, sizeof line, stdin)) {
		CHECK(sscanf(line, "%31s %u", name, &rounds) == 2);
		bool known = false;
		for (size_t i = 0; i < count; i++)
			if (!strcmp(name, what[i].name)) {
				known = true;
				what[i].run(rounds);
			}
		CHECK(known);
		printf("right\n");
	}
	return 0;
}

#endif
