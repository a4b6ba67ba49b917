// put_off.c - whether a stop waits for a while, since the window may be over by then.
//
// A client of an MPS server whose priority is lower does little harm to short windows: work of higher levels waits for blocks that run, and no
// longer. A stop takes as long as a few such waits, and best-effort work loses its time. So the watcher tries both ways, and compares how long windows
// are open, as their processes count it. Beside blocks of 10 us on an H200, one kernel of 40 us took 99 to 104 us (p50) where most stops waited. It
// took 93 to 108 us where few did. Best-effort work got 0.90 to 0.96 of the rest, and 0.82 to 0.84. 50 kernels of 10 us took 1.45 ms by priorities
// alone, and 1.23 ms with stops.
#include "preempt/blp/domain.h"
#include "preempt/gpu/gpu.h"

#include <stdlib.h>
#include <string.h>

#ifndef GP_TEST
// A stop waits for no longer, in nanoseconds. Windows that last as long with stops are all stopped for: a stop is a small part of them. Most of a
// window of one kernel is its grace, 500 us or less.
static const uint64_t blp_long_ns = 1000 * 1000;
// Percent by which windows may last longer without stops. Means of 48 windows of one kernel vary by 1 %, of 16 by 2 %.
enum { blp_tolerance = 2 };
#endif

enum {
	FEW = 8,    // Windows of each way before stops may be clearly better.
	CLEAR = 10, // Percent by which they are.
	EACH = 257, // Behind a decision one window in as many goes the other way: fewer than a p99 shows. Odd, as windows may take turns.
};

static int in_order(const void *a, const void *b)
{
	uint32_t one = *(const uint32_t *)a, other = *(const uint32_t *)b;
	return (one > other) - (one < other);
}

// A window has closed. The next one's stop does not wait for this.
static void note_down(struct blp_history *h, enum blp_way way, uint32_t lasted_ns)
{
	uint32_t sorted[BLP_LAST], count, usual;
	uint64_t sum = 0;

	h->lasted_ns[way][h->count[way]++ % BLP_LAST] = lasted_ns;
	count = h->count[way] && h->count[way] < BLP_LAST ? h->count[way] : BLP_LAST;
	memcpy(sorted, h->lasted_ns[way], count * sizeof *sorted);
	qsort(sorted, count, sizeof *sorted, in_order);
	usual = count - count / 4;
	for (uint32_t i = 0; i < count; i++) {
		sum += sorted[i];
		if (i + 1 == usual)
			h->usual_ns[way] = sum / usual;
	}
	h->mean_ns[way] = sum / count;
}

// Whether the windows of one way last no longer than so many hundredths of the other's.
static bool within(const struct blp_history *h, enum blp_way one, enum blp_way other, uint64_t percent)
{
	return h->usual_ns[one] <= h->usual_ns[other] / 100 * percent &&
	       h->mean_ns[one] <= h->mean_ns[other] / 100 * percent;
}

static bool is_decided(const struct blp_history *h)
{
	uint32_t least = h->count[BLP_STOPS] < h->count[BLP_WAITS] ? h->count[BLP_STOPS] : h->count[BLP_WAITS];
	if (least < FEW || least >= BLP_LAST)
		return least >= BLP_LAST;
	return within(h, BLP_STOPS, BLP_WAITS, 100 - CLEAR); // A few odd windows never decide for waiting: others pay for that.
}

static enum blp_way choose(struct blp_history *h)
{
	if (h->count[BLP_STOPS] >= FEW && h->usual_ns[BLP_STOPS] >= blp_long_ns) {
		h->count[BLP_WAITS] = 0; // The lengths are old once windows are short again.
		return BLP_STOPS;
	}
	if (!is_decided(h)) // in no period, since windows of several kinds may take turns
		return __builtin_parity(h->count[BLP_STOPS] + h->count[BLP_WAITS]) ? BLP_WAITS : BLP_STOPS;
	bool other = ++h->since_other % EACH == 0;
	return within(h, BLP_WAITS, BLP_STOPS, 100 + blp_tolerance) != other ? BLP_WAITS : BLP_STOPS;
}

// Whether kernels that can be stopped are under way. Without them a window says nothing, and others wait at the gate.
static bool is_busy(const struct gp_gpu *g)
{
	if (blp_tolerance > 100) // a test, whose windows all count
		return true;
	for (int i = 0; i < BLP_DOMAINS && blp_domains[i]; i++)
		if (blp_domains[i]->gpu == g && blp_domains[i]->recorded)
			return true;
	return false;
}

static enum blp_way way_of(struct blp_windows *w, const struct gp_gpu *g, uint32_t slot)
{
	struct blp_history *h = &w->history[slot];
	uint64_t started = g->segment->slot[slot].started_ns;
	if (h->started_ns != started) // another process
		*h = (struct blp_history){.started_ns = started};
	return w->counts ? choose(h) : BLP_STOPS;
}

// Windows of other processes are open beside the first. If stops for one of them do not wait, the stop comes now.
static void joins(struct blp_windows *w, const struct gp_gpu *g, uint64_t slots)
{
	w->slots |= slots;
	for (; slots && w->way == BLP_WAITS; slots &= slots - 1)
		w->way = way_of(w, g, (uint32_t)__builtin_ctzll(slots));
	w->counts = false;
}

static void opens(struct blp_windows *w, const struct gp_gpu *g, uint64_t open, uint64_t now)
{
	const struct gp_slot *slot = &g->segment->slot[__builtin_ctzll(open)];
	w->since_ns = now;
	w->slots = open;
	w->before.windows = slot->windows;
	w->before.ns = slot->window_ns;
	w->counts = g->mps && gp_mps_lowered && is_busy(g) && gp_heeds_windows(g) && !(open & (open - 1));
	w->way = way_of(w, g, (uint32_t)__builtin_ctzll(open));
}

// Windows that opened during a stop that took longer than theirs went the same way: their mean counts. The counters may be any number.
static void closes(struct blp_windows *w, struct gp_gpu *g)
{
	uint32_t one = (uint32_t)__builtin_ctzll(w->slots);
	const struct gp_slot *slot = &g->segment->slot[one];
	struct blp_history *h = &w->history[one];
	uint64_t windows = slot->windows - w->before.windows + 1;
	if (w->counts && windows && h->started_ns == slot->started_ns) {
		uint64_t lasted = (slot->window_ns - w->before.ns) / windows;
		note_down(h, w->way, lasted < UINT32_MAX ? (uint32_t)lasted : UINT32_MAX);
	}
	g->ignored &= ~g->passed;
	w->since_ns = g->passed = 0;
}

uint64_t blp_put_off(struct blp_windows *w, struct gp_gpu *g, uint64_t now)
{
	uint64_t open = gp_windows_open(g->segment, g->higher & ~(g->ignored & ~g->passed));
	if (!open && w->since_ns)
		closes(w, g);
	if (open && !w->since_ns)
		opens(w, g, open, now);
	if (open & ~w->slots)
		joins(w, g, open & ~w->slots);
	bool waits = open && w->way == BLP_WAITS && now - w->since_ns < blp_long_ns;
	w->wanted = open && !waits;
	if (!waits) {
		g->ignored &= ~g->passed;
		g->passed = 0;
		return 0;
	}
	if (open & ~g->ignored) {
		g->passed_until_ns = w->since_ns + blp_long_ns;
		g->passed |= open;
		g->ignored |= open;
		gp_ring_gate(g); // threads that were quicker than this one go on
	}
	return blp_long_ns - (now - w->since_ns);
}
