// copies.c - pinned copies in bulk as a swap makes them, in chunks of which some are in flight. It also measures what small copies of the
// same and of a second process feel of them.
#include <stdlib.h>
#include <string.h>

#include "memory.h"

static const size_t chunks[] = {2 * MIB, 8 * MIB, 32 * MIB, 256 * MIB};
enum { CHUNKS = sizeof chunks / sizeof *chunks, MOST_FLIGHT = 4 };
// How many chunks are in flight; where it is one, a pause may follow it.
static const struct flight {
	unsigned count;
	double pause_us;
	const char *name;
} flights[] = {{1, 0, "1 in flight"}, {2, 0, "2 in flight"}, {4, 0, "4 in flight"}, {1, 50, "1 in flight and 50 us"}};
enum { FLIGHTS = sizeof flights / sizeof *flights };

struct bulk {
	CUdeviceptr device;
	struct area host;
	char *whole; // the same bytes in one cuMemHostAlloc
	CUstream stream;
	CUevent event[MOST_FLIGHT];
	bool out;
	size_t chunk; // 0: one copy of the whole
	const struct flight *flight;
	pthread_t thread;
	atomic_bool stop;
	double until_us;
	struct samples rate; // GB/s of each pass
};

static void submit(struct bulk *b, char *host, size_t at, size_t bytes)
{
	if (b->out)
		CHECK(cuMemcpyDtoHAsync(host + at, b->device + at, bytes, b->stream));
	else
		CHECK(cuMemcpyHtoDAsync(b->device + at, host + at, bytes, b->stream));
}

static void pass_whole(struct bulk *b)
{
	submit(b, b->whole, 0, amounts.bulk);
	CHECK(cuStreamSynchronize(b->stream));
}

static void pass_chunks(struct bulk *b)
{
	size_t i = 0;
	for (size_t at = 0; at < amounts.bulk; at += b->chunk, i++) {
		CUevent event = b->event[i % b->flight->count];
		if (i >= b->flight->count)
			CHECK(cuEventSynchronize(event));
		if (b->flight->pause_us > 0)
			pause_us(b->flight->pause_us);
		submit(b, b->host.address, at, amounts.bulk - at < b->chunk ? amounts.bulk - at : b->chunk);
		CHECK(cuEventRecord(event, b->stream));
	}
	CHECK(cuStreamSynchronize(b->stream));
}

static void *passes(void *argument)
{
	struct bulk *b = argument;
	CHECK(cuCtxSetCurrent(context));
	do {
		double began = now_us();
		if (b->chunk)
			pass_chunks(b);
		else
			pass_whole(b);
		add(&b->rate, (double)amounts.bulk / (now_us() - began) / 1000);
	} while (!atomic_load(&b->stop) && now_us() < b->until_us);
	return NULL;
}

static void bulk_start(struct bulk *b, size_t chunk, const struct flight *flight, double seconds)
{
	b->chunk = chunk, b->flight = flight;
	atomic_store(&b->stop, false);
	b->until_us = now_us() + seconds * 1e6;
	b->rate.count = 0;
	if (pthread_create(&b->thread, NULL, passes, b))
		give_up("no thread");
}

static void bulk_wait(struct bulk *b) { pthread_join(b->thread, NULL); }

static void bulk_stop(struct bulk *b)
{
	atomic_store(&b->stop, true);
	bulk_wait(b);
}

static void bulk_make(struct bulk *b, bool out, int node)
{
	struct samples us = {0};
	memset(b, 0, sizeof *b);
	b->out = out;
	CHECK(cuStreamCreate(&b->stream, CU_STREAM_NON_BLOCKING));
	for (int i = 0; i < MOST_FLIGHT; i++)
		CHECK(cuEventCreate(&b->event[i], CU_EVENT_DISABLE_TIMING));
	CHECK(cuMemAlloc(&b->device, amounts.bulk));
	area_make(&b->host, amounts.bulk, node, true);
	area_touch(&b->host, amounts.touchers);
	area_pin(&b->host, 256 * MIB, &us);
	free(us.value);
}

static void bulk_free(struct bulk *b)
{
	struct samples us = {0};
	area_unpin(&b->host, &us);
	area_free(&b->host);
	if (b->whole)
		CHECK(cuMemFreeHost(b->whole));
	CHECK(cuMemFree(b->device));
	free(us.value);
	free(b->rate.value);
}

static void rates(struct bulk both[2], size_t chunk, const struct flight *flight, const char *how, const char *where)
{
	static const char *const ways[] = {"to the device", "to the host"};
	for (int i = 0; i < 2; i++) {
		bulk_start(&both[i], chunk, flight, plan.seconds);
		bulk_wait(&both[i]);
		figure(sum_up(&both[i].rate), "GB/s", "copy %s, %s%s", ways[i], how, where);
	}
	for (int i = 0; i < 2; i++)
		bulk_start(&both[i], chunk, flight, plan.seconds);
	for (int i = 0; i < 2; i++)
		bulk_wait(&both[i]);
	for (int i = 0; i < 2; i++)
		figure(sum_up(&both[i].rate), "GB/s", "copy both ways, %s, %s%s", ways[i], how, where);
}

// One copy that begins in one registration and ends in the next.
static void across_registrations(struct bulk *b)
{
	if (amounts.bulk <= 256 * MIB)
		return;
	CUresult result = cu.cuMemcpyHtoDAsync(b->device, b->host.address + 255 * MIB, 2 * MIB, b->stream);
	fact(error_name(result), "a copy from memory across two registrations");
	CHECK(cuStreamSynchronize(b->stream));
}

static void rates_of_node(int node, const char *where)
{
	struct bulk both[2];
	for (int i = 0; i < 2; i++)
		bulk_make(&both[i], i == 1, node);
	across_registrations(&both[0]);
	for (int c = 0; c < CHUNKS; c++)
		for (int f = 0; f < FLIGHTS; f++)
			if (!plan.quick || (c == 0 && f < 2))
				rates(both, chunks[c], &flights[f],
				      text("%llu MiB, %s", chunks[c] / MIB, flights[f].name), where);
	if (!*where) {
		for (int i = 0; i < 2; i++)
			CHECK(cuMemHostAlloc((void **)&both[i].whole, amounts.bulk, CU_MEMHOSTALLOC_PORTABLE));
		rates(both, 0, &flights[0], "whole", where);
	}
	for (int i = 0; i < 2; i++)
		bulk_free(&both[i]);
}

void section_copies(void)
{
	int list[8], count = nodes(list, 8), own = node_of_device();
	fact(text("%llu", amounts.bulk / MIB), "MiB that are copied in a pass");
	fact(text("%d", own), "NUMA node of the device");
	fact(text("%d", count), "NUMA nodes with memory");
	rates_of_node(own, "");
	for (int i = 0; i < count; i++)
		if (own >= 0 && list[i] != own) {
			rates_of_node(list[i], text(", memory of node %d", list[i]));
			break;
		}
}

static struct beat beat;

static void small_copies(const char *beside)
{
	struct summary sums[SERIES];
	beat_start(&beat, "copies");
	pause_us(plan.seconds * 1e6);
	beat_stop(&beat);
	for (int i = 0; i < SERIES; i++)
		sums[i] = sum_up(&beat.series[i]);
	beat_figures("same process", "copies", sums, beside);
	neighbour_begin("copies");
	pause_us(plan.seconds * 1e6);
	neighbour_end("%s", beside);
}

static void launches(const char *beside)
{
	neighbour_begin("launch");
	pause_us(plan.seconds * 1e6);
	neighbour_end("%s", beside);
}

void section_beside_copies(void)
{
	static const char *const ways[] = {"bulk to the device", "bulk to the host"};
	neighbour_start();
	small_copies("nothing");
	launches("nothing");
	for (int way = 0; way < 2; way++) {
		struct bulk b;
		bulk_make(&b, way == 1, node_of_device());
		for (int c = 0; c < CHUNKS; c++)
			for (int f = 0; f < FLIGHTS; f++) {
				if (plan.quick && (c || f))
					continue;
				char beside[128];
				snprintf(beside, sizeof beside, "%s, %llu MiB, %s", ways[way], chunks[c] / MIB,
					 flights[f].name);
				bulk_start(&b, chunks[c], &flights[f], 1e6);
				small_copies(beside);
				if (f < 2)
					launches(beside);
				bulk_stop(&b);
				figure(sum_up(&b.rate), "GB/s", "%s, beside small copies", beside);
			}
		bulk_free(&b);
	}
}
