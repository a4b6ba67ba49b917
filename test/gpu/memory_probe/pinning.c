// pinning.c - page-locking host memory: its cost by piece, touching threads and huge pages, and its effect on a second process's launches.
#include <stdlib.h>

#include "memory.h"

static void measure(size_t piece, unsigned threads, bool huge, size_t bytes)
{
	struct samples pin = {0}, unpin = {0};
	const char *how =
		text("pieces of %llu MiB, touched by %u, %s pages", piece / MIB, threads, huge ? "huge" : "small");
	struct area a;
	area_make(&a, bytes, node_of_device(), huge);
	double gib = (double)a.bytes / GIB, touched = threads ? area_touch(&a, threads) : 0;
	neighbour_begin("launch");
	area_pin(&a, piece, &pin);
	neighbour_end("cuMemHostRegister, %s", how);
	neighbour_begin("launch");
	area_unpin(&a, &unpin);
	neighbour_end("cuMemHostUnregister, %s", how);
	area_free(&a);
	struct samples one = {0};
	add(&one, touched / 1000 / gib);
	figure(sum_up(&one), "ms/GiB", "touching, %s", how);
	for (int i = 0; i < 2; i++) {
		const char *call = i ? "cuMemHostUnregister" : "cuMemHostRegister";
		struct summary sum = sum_up(i ? &unpin : &pin), per = sum;
		double scale = (double)GIB / (double)(piece < a.bytes ? piece : a.bytes) / 1000;
		per.p50 *= scale, per.p99 *= scale, per.max *= scale;
		figure(sum, "us", "%s, %s", call, how);
		figure(per, "ms/GiB", "%s, %s, per GiB", call, how);
	}
	free(pin.value), free(unpin.value), free(one.value);
}

struct share {
	struct area area;
	struct samples us;
	pthread_t thread;
};

static void *pin_share(void *argument)
{
	struct share *s = argument;
	CHECK(cuCtxSetCurrent(context));
	area_touch(&s->area, 1);
	area_pin(&s->area, 256 * MIB, &s->us);
	return NULL;
}

// Threads that each touch and pin a part of their own.
static void measure_parallel(unsigned threads, size_t bytes)
{
	struct share *all = calloc(threads, sizeof *all);
	if (!all)
		give_up("no memory");
	for (unsigned i = 0; i < threads; i++)
		area_make(&all[i].area, bytes / threads, node_of_device(), true);
	double began = now_us();
	for (unsigned i = 0; i < threads; i++)
		if (pthread_create(&all[i].thread, NULL, pin_share, &all[i]))
			give_up("no thread");
	for (unsigned i = 0; i < threads; i++)
		pthread_join(all[i].thread, NULL);
	struct samples one = {0};
	add(&one, (now_us() - began) / 1000 / ((double)bytes / GIB));
	figure(sum_up(&one), "ms/GiB", "touching and cuMemHostRegister, %u threads with a part each, huge pages", threads);
	for (unsigned i = 0; i < threads; i++) {
		area_unpin(&all[i].area, &one);
		area_free(&all[i].area);
		free(all[i].us.value);
	}
	free(all), free(one.value);
}

static void measure_allocated(size_t bytes)
{
	struct samples alloc = {0}, release = {0};
	void *p[8];
	size_t piece = bytes < 256 * MIB ? bytes : 256 * MIB, count = bytes / piece > 8 ? 8 : bytes / piece;
	for (size_t i = 0; i < count; i++)
		TIMED(&alloc, cuMemHostAlloc(&p[i], piece, CU_MEMHOSTALLOC_PORTABLE));
	for (size_t i = 0; i < count; i++)
		TIMED(&release, cuMemFreeHost(p[i]));
	figure(sum_up(&alloc), "us", "cuMemHostAlloc, pieces of %llu MiB", piece / MIB);
	figure(sum_up(&release), "us", "cuMemFreeHost, pieces of %llu MiB", piece / MIB);
	free(alloc.value), free(release.value);
}

void section_pinning(void)
{
	static const unsigned touching[] = {0, 1, 4, 8};
	size_t bytes = plan.quick ? 8 * MIB : 2 * GIB, room = host_available();
	if (bytes > room)
		bytes = room;
	neighbour_start();
	neighbour_begin("launch");
	pause_us(plan.seconds * 1e6);
	neighbour_end("nothing");
	for (int huge = 1; huge >= 0; huge--)
		for (size_t piece = 64 * MIB; piece <= 256 * MIB; piece *= 4)
			for (int i = 0; i < 4; i++)
				if (!plan.quick || (i == 1 && piece == 64 * MIB))
					measure(piece, touching[i], huge, bytes);
	for (unsigned threads = 1; threads <= 8; threads *= 2)
		if (!plan.quick || threads == 2)
			measure_parallel(threads, bytes);
	measure_allocated(bytes);
}
