// beat.c - a small piece of work that a thread of its own does again and again, and times. A latency-critical program would feel the same.
#include <stdlib.h>
#include <string.h>

#include "memory.h"

static const size_t copy_bytes[] = {4 << 10, 256 << 10};
#define ALLOCATION (2 * MIB)

static const char *const names[][1 + SERIES] = {
	{"launch", "launch and wait"},
	{"memset", "memset of 256 MiB"},
	{"alloc", "cuMemAlloc of 2 MiB", "cuMemFree of 2 MiB"},
	{"copies", "4 KiB to the device", "4 KiB to the host", "256 KiB to the device", "256 KiB to the host"},
};

const char *series_name(const char *kind, int series)
{
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (strcmp(names[i][0], kind) == 0)
			return series < SERIES ? names[i][1 + series] : NULL;
	give_up("no beat %s", kind);
}

static size_t memset_bytes(void) { return plan.quick ? MIB : 256 * MIB; }

static void copy_both_ways(struct beat *b)
{
	for (int i = 0; i < SERIES; i++) {
		double began = now_us();
		if (i % 2)
			CHECK(cuMemcpyDtoHAsync(b->pinned, b->memory, copy_bytes[i / 2], b->stream));
		else
			CHECK(cuMemcpyHtoDAsync(b->memory, b->pinned, copy_bytes[i / 2], b->stream));
		CHECK(cuStreamSynchronize(b->stream));
		add(&b->series[i], now_us() - began);
	}
}

static void once(struct beat *b)
{
	CUdeviceptr allocated;
	double began = now_us();
	switch (*b->kind) {
	case 'l':
		launch_small(b->stream, b->memory);
		CHECK(cuStreamSynchronize(b->stream));
		break;
	case 'm':
		CHECK(cuMemsetD8Async(b->memory, 1, memset_bytes(), b->stream));
		CHECK(cuStreamSynchronize(b->stream));
		break;
	case 'a':
		CHECK(cuMemAlloc(&allocated, ALLOCATION));
		add(&b->series[0], now_us() - began);
		TIMED(&b->series[1], cuMemFree(allocated));
		return;
	default: copy_both_ways(b); return;
	}
	add(&b->series[0], now_us() - began);
}

static void *go_on(void *argument)
{
	struct beat *b = argument;
	CHECK(cuCtxSetCurrent(context));
	while (!atomic_load(&b->stop)) {
		once(b);
		atomic_store(&b->began, true);
		pause_us(100);
	}
	return NULL;
}

void beat_start(struct beat *b, const char *kind)
{
	b->kind = kind;
	atomic_store(&b->stop, false);
	atomic_store(&b->began, false);
	if (!b->stream) {
		CHECK(cuStreamCreate(&b->stream, CU_STREAM_NON_BLOCKING));
		CHECK(cuMemAlloc(&b->memory, memset_bytes()));
		CHECK(cuMemHostAlloc((void **)&b->pinned, copy_bytes[1], 0));
	}
	for (int i = 0; i < 3; i++)
		once(b); // warm
	for (int i = 0; i < SERIES; i++)
		b->series[i].count = 0;
	if (pthread_create(&b->thread, NULL, go_on, b))
		give_up("no thread");
	while (!atomic_load(&b->began))
		pause_us(50);
}

void beat_stop(struct beat *b)
{
	atomic_store(&b->stop, true);
	pthread_join(b->thread, NULL);
}

void beat_figures(const char *who, const char *kind, const struct summary *sums, const char *beside)
{
	for (int i = 0; series_name(kind, i); i++)
		figure(sums[i], "us", "%s: %s, beside %s", who, series_name(kind, i), beside);
}
