// bridge.c - see bridge.h.
#define _GNU_SOURCE
#include "hints/bridge.h"
#include "hints/source.h"
#include "preempt/gpu/gpu.h"

#include <pthread.h>
#include <stddef.h>

// A forked child has no thread that takes hints.
static void in_child(void) { gp_give = NULL; }

void gp_hints_begin(uint32_t sources)
{
	gp_sources = sources;
	pthread_atfork(NULL, NULL, in_child);
	gp_give = gp_hint;
}

void gp_give_arrival(uint64_t from_ns, uint64_t valid_ns, double confidence)
{
	gp_hint_fn *give = gp_give;
	if (give)
		give(GP_HINT_ARRIVAL, from_ns, valid_ns, confidence);
}

uint32_t gp_arrivals_count(void) { return gp_arrivals.count; }

void gp_arrivals_take(uint32_t i, struct gp_arrival_taken *to)
{
	struct gp_arrival *a = &gp_arrivals.arrival[i % 256];
	uint64_t at = __atomic_exchange_n((uint64_t *)&a->at_ns, 0, __ATOMIC_ACQ_REL);
	*to = (struct gp_arrival_taken){at, a->held_ns, a->due_ns, a->ready, a->dropped};
}

uint64_t gp_hint_saves_ns(void) { return gp_taking_longest_ns(); }

uint32_t gp_announcements_count(void) { return gp_announcements; }

void gp_announcements_take(uint32_t i, struct gp_announcement_taken *to)
{
	struct gp_announcement *a = &gp_announcement[i % GP_ANNOUNCEMENTS];
	uint64_t at = __atomic_exchange_n((uint64_t *)&a->at_ns, 0, __ATOMIC_ACQ_REL);
	*to = (struct gp_announcement_taken){at, a->key, a->estimate, a->fd, a->generation};
}

void gp_estimate_set(uint32_t place, uint64_t key, uint64_t delay_ns, uint64_t valid_ns, uint32_t likely_ppm)
{
	struct gp_estimate *e = &gp_estimate[place % GP_KEYS];
	if (e->key != key)
		return; // another's place by now
	e->delay_ns = delay_ns;
	e->valid_ns = valid_ns;
	e->likely_ppm = likely_ppm;
}
