// put_off.c - whether a stop waits for a while, since the window may be over by then.
//
// A client of an MPS server whose priority is lower does little harm to short windows: work of higher levels waits for blocks that run, and no
// longer. A stop takes as long as a few such waits, and best-effort work loses its time. So the watcher tries both ways, and compares how long windows
// are open, as their processes count it. Beside blocks of 10 us on an H200, one kernel of 40 us took 99 us either way (p50), and best-effort work got
// 0.96 or 0.82 of the rest. 50 kernels of 10 us took 1.45 ms by priorities alone, and 1.23 ms with stops.
#include "preempt/blp/domain.h"
#include "preempt/gpu/gpu.h"

#ifndef GP_TEST
// A stop waits for no longer, in nanoseconds. Windows that last as long with stops are all stopped for: a stop is a small part of them. Most of a
// window of one kernel is its grace, 500 us or less.
static const uint64_t blp_long_ns = 1000 * 1000;
enum { blp_tolerance = 0 }; // percent by which windows may last longer without stops
#endif

enum {
	FIRST = BLP_LAST, // windows of each way, in turn, before the ways are compared
	EACH = 256,       // from then on one window in as many goes the other way: fewer than a p99 shows
};

static uint64_t median(const struct blp_windows *w, enum blp_way way)
{
	uint64_t sorted[BLP_LAST];
	uint32_t n = w->count[way] < BLP_LAST ? w->count[way] : BLP_LAST;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t at = i;
		for (; at && sorted[at - 1] > w->lasted_ns[way][i]; at--)
			sorted[at] = sorted[at - 1];
		sorted[at] = w->lasted_ns[way][i];
	}
	return sorted[(n - 1) / 2];
}

static enum blp_way choose(struct blp_windows *w)
{
	if (w->count[BLP_STOPS] < FIRST || w->count[BLP_WAITS] < FIRST)
		return w->count[BLP_STOPS] > w->count[BLP_WAITS] ? BLP_WAITS : BLP_STOPS;
	uint64_t stops = median(w, BLP_STOPS), waits = median(w, BLP_WAITS);
	if (stops >= blp_long_ns)
		return BLP_STOPS;
	bool other = ++w->since_other % EACH == 0;
	return (waits <= stops + stops / 100 * blp_tolerance) != other ? BLP_WAITS : BLP_STOPS;
}

// The windows of higher levels so far, as their processes count them.
static struct blp_counted counted(const struct gp_gpu *g)
{
	struct blp_counted sum = {0, 0};
	for (uint64_t m = g->higher; m; m &= m - 1) {
		const struct gp_slot *slot = &g->segment->slot[__builtin_ctzll(m)];
		sum.windows += slot->windows;
		sum.ns += slot->window_ns;
	}
	return sum;
}

static bool is_busy(const struct gp_gpu *g)
{
	for (int i = 0; i < BLP_DOMAINS && blp_domains[i]; i++)
		if (blp_domains[i]->gpu == g && blp_domains[i]->recorded)
			return true;
	return false;
}

static void opens(struct blp_windows *w, const struct gp_gpu *g, uint64_t now)
{
	w->since_ns = now;
	w->before = counted(g);
	w->counts = g->mps && gp_mps_lowered && is_busy(g) && gp_heeds_windows(g);
	w->way = w->counts ? choose(w) : BLP_STOPS;
}

// Windows that opened during a stop that took longer than theirs went the same way: their mean counts.
static void closes(struct blp_windows *w, const struct gp_gpu *g)
{
	struct blp_counted now = counted(g);
	uint64_t windows = now.windows - w->before.windows + 1; // the counters may be any number
	if (w->counts && windows)
		w->lasted_ns[w->way][w->count[w->way]++ % BLP_LAST] = (now.ns - w->before.ns) / windows;
	w->since_ns = w->passed = 0;
}

// writers of ignored: this thread, and threads that submit. readers: threads that submit, stop or resume. pairing: each change is atomic. what
// breaks: a thread that saw an older window close takes the new one's bit out, and the stop comes at once.
uint64_t blp_put_off(struct blp_windows *w, struct gp_gpu *g, uint64_t now)
{
	uint64_t open = gp_windows_open(g->segment, g->higher & ~(g->ignored & ~w->passed));
	if (!open && w->since_ns)
		closes(w, g);
	if (open && !w->since_ns)
		opens(w, g, now);
	if (!open || w->way == BLP_STOPS)
		return 0;
	if (now - w->since_ns >= blp_long_ns) {
		g->ignored &= ~w->passed;
		w->passed = 0;
		return 0;
	}
	if (open & ~g->ignored) {
		w->passed |= open;
		g->ignored |= open;
		gp_ring_gate(g); // threads that were quicker than this one go on
	}
	return blp_long_ns - (now - w->since_ns);
}
