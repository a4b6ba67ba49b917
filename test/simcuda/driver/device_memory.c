// device_memory.c - the memory of a device, which its processes share (engine.c): charges, and scrubbing.
#include "sim.h"

#include <stdlib.h>
#include <unistd.h>

#define DEVICES 8

static uint64_t small[DEVICES]; // bytes of the small allocations
static uint64_t taken[DEVICES]; // by this process, in pages

uint64_t memory_pages(uint64_t bytes) { return (bytes + LARGE - 1) / LARGE * LARGE; }

bool memory_charge(int device, uint64_t bytes)
{
	if (bytes > sim_memory_bytes())
		return false;
	uint64_t cap = sim_cap_bytes();
	uint64_t before = bytes < LARGE ? memory_pages(small[device]) : 0;
	uint64_t after = memory_pages(bytes < LARGE ? small[device] + bytes : bytes);
	if (cap && after != before && taken[device] + after - before > cap)
		return false;
	if (after != before && !engine_take_memory(device, after - before, sim_memory_bytes()))
		return false;
	taken[device] += after - before;
	if (bytes < LARGE)
		small[device] += bytes;
	return true;
}

uint64_t memory_taken(int device) { return taken[device]; }

// The answer of cuMemGetInfo. A cap that it tells of bounds both.
void memory_info(int device, size_t *free_bytes, size_t *total)
{
	uint64_t used = engine_memory(device), cap = sim_cap_is_told() ? sim_cap_bytes() : 0;
	*total = sim_memory_bytes();
	*free_bytes = used < *total ? *total - used : 0;
	if (!cap || cap >= *total)
		return;
	uint64_t left = taken[device] < cap ? cap - taken[device] : 0;
	*total = cap;
	*free_bytes = left < *free_bytes ? left : *free_bytes;
}

bool memory_to_make(int device)
{
	uint64_t needs = sim_making_bytes();
	return !needs || engine_memory(device) + needs <= sim_memory_bytes();
}

// capped: the process's cap counts these bytes.
static void discharge(int device, uint64_t bytes, bool capped)
{
	uint64_t before = memory_pages(bytes < LARGE ? small[device] : bytes), after = 0;
	if (bytes < LARGE) {
		small[device] -= bytes;
		after = memory_pages(small[device]);
	}
	if (before != after)
		engine_give_memory(device, before - after);
	if (capped)
		taken[device] -= before - after;
}

void memory_discharge(int device, uint64_t bytes) { discharge(device, bytes, true); }

void memory_away(void)
{
	for (int i = 0; i < sim_devices(); i++)
		if (taken[i])
			engine_give_memory(i, taken[i]);
}

bool memory_back(void)
{
	for (int i = 0; i < sim_devices(); i++)
		if (taken[i] && !engine_take_memory(i, taken[i], sim_memory_bytes())) {
			while (i-- > 0)
				if (taken[i])
					engine_give_memory(i, taken[i]);
			return false;
		}
	return true;
}

// Memory that was freed and is not scrubbed yet. Scrubbing takes one after the other, so the list is in the order of their times.
static struct scrub {
	struct scrub *next;
	int device;
	uint64_t bytes, due_ns;
} *scrubs, **last_scrub = &scrubs;
static pthread_cond_t scrub_work = PTHREAD_COND_INITIALIZER;

static void *scrubber(void *nothing)
{
	pthread_mutex_lock(&sim_lock);
	while (!sim_dead) {
		struct scrub *s = scrubs;
		uint64_t now = now_ns();
		if (!s) {
			sim_wait(&scrub_work);
		} else if (s->due_ns > now) {
			sim_unlock();
			usleep((useconds_t)((s->due_ns - now) / 1000 + 1)); // only this thread takes it off the list
			pthread_mutex_lock(&sim_lock);
		} else {
			discharge(s->device, s->bytes, s->bytes < LARGE);
			scrubs = s->next;
			last_scrub = scrubs ? last_scrub : &scrubs;
			free(s);
		}
	}
	sim_unlock();
	return nothing;
}

void memory_freed(int device, uint64_t bytes)
{
	static bool running;
	static uint64_t last_ns;
	uint64_t takes = sim_scrub_ns(bytes), now = now_ns();
	struct scrub *s = takes ? malloc(sizeof *s) : NULL;
	pthread_t thread;
	if (s && !running)
		running = pthread_create(&thread, NULL, scrubber, NULL) == 0 && pthread_detach(thread) == 0;
	if (!s || !running) {
		free(s);
		memory_discharge(device, bytes);
		return;
	}
	taken[device] -= bytes < LARGE ? 0 : memory_pages(bytes);
	last_ns = (last_ns > now ? last_ns : now) + takes;
	*s = (struct scrub){NULL, device, bytes, last_ns};
	*last_scrub = s;
	last_scrub = &s->next;
	pthread_cond_signal(&scrub_work);
}

uint64_t memory_next_id(void)
{
	static uint64_t last;
	return ++last;
}
