// width.c - see width.h: learns the widest level that costs a kind of request next to nothing.
//
// A kind begins at level 0, and its durations there are the yardstick. A level is tried for some windows and judged by it; if it
// is good, the next one is tried. What makes windows slow, or much faster, ends a level at once: nothing is left until the yardstick
// is measured anew. Only then is it known what it was: the request has changed (all is learnt anew), or the level is too wide (the
// one below is left, and this one is tried again after a long while). A machine makes some windows slow whatever is left. So one slow
// window alone, or some after a level has stood for a while, give that level one more chance.
#include "preempt/gpu/width.h"

#include <string.h>

// A stop and a narrow relaunch take about 200 us together: of a window below this nothing is left to lower levels.
static const uint64_t SHORT_NS = 400 * 1000;

enum {                // percent of the yardstick
	GOOD = 104,   // the median of a level's first windows, at most
	WORSE = 108,  // of later ones. A yardstick beyond this, either way, is another request's
	SLOW = 115,   // one of them may be
	BROKEN = 150, // none may be
};
enum {
	STANDS = 32,    // judged windows
	CONTROL = 32,   // one window of so many leaves nothing: clocks drift
	PATIENCE = 256, // windows until a level that was too wide is tried again, at first
	MOST_PATIENCE = 4096,
};

static void add(struct gp_durations *d, uint64_t ns) { d->ns[d->count++ % GP_WIDTH_SAMPLES] = ns; }

static void empty(struct gp_durations *d) { d->count = 0; }

static bool full(const struct gp_durations *d) { return d->count >= GP_WIDTH_SAMPLES; }

// Of those that are full.
static uint64_t median(const struct gp_durations *d)
{
	uint64_t sorted[GP_WIDTH_SAMPLES];
	for (int i = 0; i < GP_WIDTH_SAMPLES; i++) {
		int at = i;
		for (; at > 0 && sorted[at - 1] > d->ns[i]; at--)
			sorted[at] = sorted[at - 1];
		sorted[at] = d->ns[i];
	}
	return sorted[GP_WIDTH_SAMPLES / 2 - 1] / 2 + sorted[GP_WIDTH_SAMPLES / 2] / 2;
}

static bool above(uint64_t ns, int percent, uint64_t yardstick) { return ns / (uint64_t)percent > yardstick / 100; }

// How many of the latest windows took longer than that, or shorter by as much.
static uint32_t slower(const struct gp_durations *d, int percent, uint64_t yardstick)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < d->count && i < GP_WIDTH_SAMPLES; i++)
		n += above(d->ns[i], percent, yardstick);
	return n;
}

static uint32_t faster(const struct gp_durations *d, int percent, uint64_t yardstick)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < d->count && i < GP_WIDTH_SAMPLES; i++)
		n += above(yardstick, percent, d->ns[i]);
	return n;
}

static bool may_climb(const struct gp_width *w)
{
	uint32_t next = w->level + 1u;
	if (next == GP_WIDTH_LEVELS || median(&w->alone) < SHORT_NS)
		return false;
	return !w->too_wide || next < w->too_wide || w->windows >= w->retry_after;
}

static void take_up(struct gp_width *w, uint32_t level)
{
	w->level = (uint8_t)level;
	w->stood = 0;
	empty(&w->beside);
}

static void give_up(struct gp_width *w, bool harmed)
{
	w->before_ns = median(&w->alone);
	w->given_up = w->level;
	w->harmed = harmed;
	take_up(w, 0);
	empty(&w->alone);
}

// The yardstick is measured anew. True: the level that was given up was too wide.
static bool decide(struct gp_width *w)
{
	uint64_t now = median(&w->alone), before = w->before_ns;
	w->before_ns = 0;
	if (now < SHORT_NS || above(now, WORSE, before) || above(before, WORSE, now)) {
		w->too_wide = 0; // but the patience stays: of a kind that varies much the median does too
		w->had_chance = false;
		return false;
	}
	if (!w->harmed) {
		take_up(w, w->given_up);
		return false;
	}
	w->too_wide = w->given_up;
	w->patience = !w->patience ? PATIENCE : w->patience < MOST_PATIENCE ? 2 * w->patience : MOST_PATIENCE;
	w->retry_after = w->windows + w->patience;
	take_up(w, w->given_up - 1u);
	return true;
}

static void judge(struct gp_width *w, uint64_t ns)
{
	uint64_t yardstick = median(&w->alone);

	add(&w->beside, ns);
	w->stood++;
	bool slow =
		slower(&w->beside, SLOW, yardstick) > 1 ||
		(full(&w->beside) && above(median(&w->beside), w->stood <= GP_WIDTH_SAMPLES ? GOOD : WORSE, yardstick));
	if (slow || above(ns, BROKEN, yardstick)) {
		give_up(w, w->had_chance || (slow && w->stood < STANDS));
		w->had_chance = !w->harmed;
		return;
	}
	if (above(yardstick, BROKEN, ns) || faster(&w->beside, SLOW, yardstick) > 1) {
		give_up(w, false);
		return;
	}
	if (w->stood == STANDS) {
		w->had_chance = false;
		if (w->level >= w->too_wide) // it is not any more, or none was
			w->patience = w->too_wide = 0;
	}
	if (full(&w->beside) && may_climb(w) && !above(median(&w->beside), GOOD, yardstick))
		take_up(w, w->level + 1u);
}

// Nothing more is to be found out for now.
static bool is_known(const struct gp_width *w)
{
	return full(&w->alone) && !w->before_ns && (!w->level || full(&w->beside)) && !may_climb(w);
}

static uint32_t find(struct gp_widths *all, uint64_t key)
{
	uint32_t oldest = 0;
	for (uint32_t i = 0; i < GP_WIDTH_KINDS; i++)
		if (all->key[i] == key)
			return i;
	for (uint32_t i = 1; i < GP_WIDTH_KINDS; i++)
		if (all->used[i] < all->used[oldest])
			oldest = i;
	all->kinds -= all->key[oldest] && is_known(&all->width[oldest]);
	all->key[oldest] = key;
	memset(&all->width[oldest], 0, sizeof all->width[oldest]);
	return oldest;
}

uint32_t gp_width_opens(struct gp_widths *all, uint64_t key)
{
	uint32_t at = find(all, key ? key : 1);
	struct gp_width *w = &all->width[at];

	all->used[at] = ++all->clock;
	all->open = at + 1;
	all->kinds -= is_known(w);
	w->windows++;
	all->kinds += is_known(w); // what was too wide may be tried again
	all->level = w->windows % CONTROL ? w->level : 0;
	return all->level;
}

void gp_width_closes(struct gp_widths *all, uint64_t lasted_ns, bool judged)
{
	if (!all->open)
		return;
	struct gp_width *w = &all->width[all->open - 1];
	all->open = 0;
	if (!judged)
		return;
	all->kinds -= is_known(w);
	if (all->level) {
		judge(w, lasted_ns);
	} else {
		add(&w->alone, lasted_ns);
		if (full(&w->alone)) {
			if (w->before_ns)
				all->too_wide += decide(w);
			if (w->level && median(&w->alone) < SHORT_NS)
				take_up(w, 0);
			if (!w->level && may_climb(w))
				take_up(w, 1);
		}
	}
	all->kinds += is_known(w);
}

uint32_t gp_width_sms(uint32_t level, uint32_t sms) { return level ? sms >> (GP_WIDTH_LEVELS - level) & ~7u : 0; }
