// work.c - the launch path's part: work meets a hint, counts as an arrival, and a copy is a hint itself.
#define _GNU_SOURCE
#include "hints/carry.h"

struct gp_arrivals gp_arrivals;
_Atomic uint64_t gp_last_arrival_ns;

uint64_t gp_hint_work(struct gp_context *c, const struct gp_operation *s)
{
	if (!gp_settings.hints)
		return 0;
	uint64_t now = gp_now_ns();
	bool kernels = s->work == GP_KERNEL || s->work == GP_GRAPH;
	uint64_t awaited =
		c->hint.awaited_ns ? __atomic_exchange_n((uint64_t *)&c->hint.awaited_ns, 0, __ATOMIC_ACQ_REL) : 0;
	uint64_t copied =
		kernels && c->copied_ns ? __atomic_exchange_n((uint64_t *)&c->copied_ns, 0, __ATOMIC_ACQ_REL) : 0;
	struct gp_slot *slot = gp_own_slot(c->gpu);
	// A copy that opens the window announces kernels.
	bool hint = !gp_is_open(c) && s->work == GP_COPY && !awaited && slot && gp_settings.hint_copy && gp_holds(c);

	if (hint)
		c->copied_ns = now;
	if (awaited) {
		c->hint.met_ns = now;
		c->hint.until_ns = 0;
	}
	if (awaited || !gp_is_open(c)) {
		gp_last_arrival_ns = now;
		struct gp_arrival *a = &gp_arrivals.arrival[gp_arrivals.count++ % 256];
		a->held_ns = awaited;
		a->due_ns = gp_hint_due_ns;
		a->ready = awaited && gp_hold_begun(&c->hold); // under an MPS server no thread sees that
		a->dropped = __atomic_exchange_n((uint32_t *)&gp_hint_dropped, GP_DROPPED_NONE, __ATOMIC_RELAXED);
		a->at_ns = now;
	}
	if (!slot)
		return awaited;
	struct gp_hint_counters *counters = &slot->hint[GP_HINT_COPY];
	if (hint) {
		gp_count(&counters->given, 1);
	} else if (copied) {
		uint64_t waited = now > copied ? now - copied : 0;
		gp_count(&counters->hit, 1);
		gp_hint_copy_hit();
		gp_count(&counters->waited_ns, waited);
		uint64_t most = gp_switch_ns(c->gpu);
		gp_count(&counters->saved_ns, waited < most ? waited : most);
	}
	return awaited;
}

// A program that pins memory after idle is about to copy.
void gp_hint_pinned(void)
{
	if (!gp_settings.hint_copy)
		return;
	for (int i = 0; i < GP_CONTEXTS; i++)
		if (gp_is_open(&gp_context[i]))
			return;
	gp_hint(GP_HINT_COPY, gp_now_ns(), 0, 1);
}

void gp_hint_closed(struct gp_context *c, uint64_t now)
{
	uint64_t copied = __atomic_exchange_n((uint64_t *)&c->copied_ns, 0, __ATOMIC_ACQ_REL);
	struct gp_slot *slot = gp_own_slot(c->gpu);

	if (copied && slot) {
		gp_count(&slot->hint[GP_HINT_COPY].wrong, 1);
		uint64_t waited = now > copied ? now - copied : 0; // the next window's may have come
		gp_count(&slot->hint[GP_HINT_COPY].waited_ns, waited);
		gp_hint_copy_wrong(waited);
	}
	if (gp_settings.hints) {
		gp_ring_helper(GP_BELL_ARRIVALS);
	}
}
