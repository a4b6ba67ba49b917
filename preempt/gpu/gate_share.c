// gate_share.c - the share of a process whose launches wait at the gate (share.min_be, or what the broker says).
//
// Where processes do not trust each other, a page's windows bind only the process that wrote it: it may open a window again as soon as it
// has closed one, for ever. So the time counts that threads waited here, by their own clock. The debt grows to what one window of the
// longest allowed length makes. Then launches pass for that time, though windows are open. With share.min_be = 0 the debt is 0.
#define _GNU_SOURCE
#include "preempt/gpu/gpu.h"

static uint64_t lesser(uint64_t a, uint64_t b) { return a < b ? a : b; }

// Counts the time since the last call. Returns whether launches pass now. g->lock is held.
static bool account(struct gp_gpu *g, uint64_t now)
{
	struct gp_owed *o = &g->owed;
	double share = gp_settings.own_share, rate = share / (1 - share);
	uint64_t limit = (uint64_t)((double)gp_settings.max_hold_ns * rate);
	uint64_t passed = now > o->at_ns ? now - o->at_ns : 0, free = passed; // of it launches passed

	if (o->waiting)
		free = o->until_ns > o->at_ns ? lesser(o->until_ns - o->at_ns, passed) : 0;
	o->at_ns += passed;
	o->ns -= lesser(o->ns, free);
	o->ns += (uint64_t)((double)(passed - free) * rate);
	if (!g->paged || !limit) {
		o->ns = o->until_ns = 0;
		return false;
	}
	if (o->ns >= limit && o->until_ns <= now)
		o->until_ns = now + o->ns;
	return now < o->until_ns;
}

static bool change(struct gp_gpu *g, uint64_t now, bool comes, bool goes)
{
	pthread_mutex_lock(&g->lock);
	bool owed = account(g, now);
	g->owed.waiting += comes && !owed;
	g->owed.waiting -= goes;
	pthread_mutex_unlock(&g->lock);
	return owed;
}

bool gp_gate_enter(struct gp_gpu *g, uint64_t now) { return !change(g, now, true, false); }

bool gp_gate_owes(struct gp_gpu *g, uint64_t now) { return change(g, now, false, false); }

void gp_gate_leave(struct gp_gpu *g, uint64_t now) { change(g, now, false, true); }
