// width.c - see width.h: learns the widest level that costs a kind of request next to nothing.
//
// A kind begins at level 0, and its durations there are the yardstick. A level is tried for some windows and judged by it; if it is good,
// the next one is tried. Slow windows, or much faster ones, end a level at once: windows leave nothing until the yardstick is measured
// anew. The new yardstick tells the cause. If the request has changed, the level that stood is tried. If the level was too wide, the one
// below is left, and this one is tried again after a long while. A machine makes some windows slow whatever is left. So one slow window
// alone, or some after a level has stood for a while, give that level one more chance.
//
// The level is not to blame for a kernel that hurts at any width. The process that runs it finds that out, and says so after the slow
// window (harm.c). Then all is as before that window.
//
// Where requests follow each other closely a window holds several. So the yardstick is a line: the time of each operation, and beside
// that the time of each window, the stop. Windows that all have as many operations are compared as they are.
#include "preempt/gpu/width.h"

#include <string.h>

// A stop and a narrow relaunch take about 200 us together: of a window below this nothing is left to lower levels.
static const uint64_t SHORT_NS = 400 * 1000;

enum {                // percent of the yardstick
	GOOD = 104,   // the median of a level's first windows, at most
	WORSE = 108,  // of later ones. A yardstick beyond this, either way, is another request's
	SLOW = 115,   // one of them may be
	BROKEN = 150, // none may be
	ALIKE = 102,  // windows are that differ by less
};
enum {
	STANDS = 32,    // judged windows
	CONTROL = 32,   // one window of so many leaves nothing: clocks drift
	PATIENCE = 256, // windows until a level that was too wide is tried again, at first
	MOST_PATIENCE = 4096,
	AGREE = 3,   // windows that are alike are a new yardstick
	EXCUSES = 6, // for slow windows, until a level stands for so long again: then it is to blame itself
};

typedef unsigned __int128 wide; // products of times and numbers of operations

static void add(struct gp_durations *d, uint64_t ns, uint32_t operations)
{
	uint32_t at = d->count++ % GP_WIDTH_SAMPLES;
	d->ns[at] = ns;
	d->operations[at] = operations;
}

static void empty(struct gp_durations *d) { d->count = 0; }

static bool full(const struct gp_durations *d) { return d->count >= GP_WIDTH_SAMPLES; }

// Into ascending order; also those that go with them.
static void sort(__int128 *by, uint32_t *with, uint32_t count)
{
	for (uint32_t i = 1; i < count; i++) {
		__int128 one = by[i];
		uint32_t its = with[i], at = i;
		for (; at > 0 && by[at - 1] > one; at--) {
			by[at] = by[at - 1];
			with[at] = with[at - 1];
		}
		by[at] = one;
		with[at] = its;
	}
}

static uint64_t between(uint64_t one, uint64_t other) { return one / 2 + other / 2; }

// The latest few that agree stand for all: they are as good a yardstick. Others of as many operations would say no more.
static void settle(struct gp_durations *d)
{
	uint64_t least = UINT64_MAX, most = 0;
	struct gp_durations latest = {.count = 0};

	if (d->count < AGREE || full(d))
		return;
	for (uint32_t i = d->count - AGREE; i < d->count; i++) {
		least = d->ns[i] < least ? d->ns[i] : least;
		most = d->ns[i] > most ? d->ns[i] : most;
		if (d->operations[i] != d->operations[d->count - 1])
			return;
	}
	if (most / ALIKE > least / 100)
		return;
	while (!full(&latest)) {
		uint32_t i = d->count - AGREE + latest.count % AGREE;
		add(&latest, d->ns[i], d->operations[i]);
	}
	*d = latest;
}

// Of those that are full.
static uint64_t median(const uint64_t *ns)
{
	__int128 sorted[GP_WIDTH_SAMPLES];
	uint32_t with[GP_WIDTH_SAMPLES] = {0};
	for (int i = 0; i < GP_WIDTH_SAMPLES; i++)
		sorted[i] = ns[i];
	sort(sorted, with, GP_WIDTH_SAMPLES);
	return between((uint64_t)sorted[GP_WIDTH_SAMPLES / 2 - 1], (uint64_t)sorted[GP_WIDTH_SAMPLES / 2]);
}

// The median of the slopes between any two windows, which no single window can bend. A window takes something of its own beside its
// operations, and not less than nothing: so an operation takes at most its part of the whole. That it takes so much is all that windows
// say which have as many.
static uint64_t each(const struct gp_durations *d)
{
	enum { PAIRS = GP_WIDTH_SAMPLES * (GP_WIDTH_SAMPLES - 1) / 2 };
	__int128 slopes[PAIRS];
	uint64_t parts[GP_WIDTH_SAMPLES];
	uint32_t with[PAIRS] = {0}, count = 0;

	for (int i = 0; i < GP_WIDTH_SAMPLES; i++) {
		parts[i] = d->ns[i] / d->operations[i];
		for (int j = 0; j < i; j++)
			if (d->operations[i] != d->operations[j])
				slopes[count++] =
					((__int128)d->ns[i] - d->ns[j]) / ((int64_t)d->operations[i] - d->operations[j]);
	}
	uint64_t most = median(parts);
	if (!count)
		return most;
	sort(slopes, with, count);
	__int128 middle = (slopes[(count - 1) / 2] + slopes[count / 2]) / 2;
	return middle < 0 ? 0 : middle < most ? (uint64_t)middle : most;
}

// Of windows that are full.
static struct gp_yardstick fit(const struct gp_durations *d)
{
	struct gp_yardstick y = {.each_ns = each(d), .median_ns = median(d->ns), .least = UINT32_MAX};
	__int128 rest[GP_WIDTH_SAMPLES];
	uint32_t of[GP_WIDTH_SAMPLES];

	for (uint32_t i = 0; i < GP_WIDTH_SAMPLES; i++) {
		uint32_t n = d->operations[i];
		rest[i] = d->ns[i] - (__int128)y.each_ns * n;
		of[i] = i;
		y.least = n < y.least ? n : y.least;
		y.most = n > y.most ? n : y.most;
	}
	sort(rest, of, GP_WIDTH_SAMPLES);
	for (int i = 0; i < 2; i++) {
		uint32_t middle = of[GP_WIDTH_SAMPLES / 2 - 1 + i];
		y.ns[i] = d->ns[middle];
		y.operations[i] = d->operations[middle];
	}
	return y;
}

// How long a window of so many operations has work alone, at least 1 ns.
static uint64_t alone(const struct gp_yardstick *y, uint32_t operations)
{
	uint64_t ns[2];
	for (int i = 0; i < 2; i++) {
		__int128 is = y->ns[i] + (__int128)y->each_ns * ((int64_t)operations - y->operations[i]);
		ns[i] = is < 2 ? 2 : is < UINT64_MAX ? (uint64_t)is : UINT64_MAX;
	}
	return between(ns[0], ns[1]);
}

// Whether the yardstick says something of windows of so many operations.
static bool covers(const struct gp_yardstick *y, uint32_t operations)
{
	return operations >= y->least / 2 && operations / 2 <= y->most;
}

static bool above(uint64_t ns, int percent, uint64_t yardstick) { return ns / (uint64_t)percent > yardstick / 100; }

// How long the latest windows would have had work, each with as many operations as the one that took so long alone.
static void scale(const struct gp_durations *d, const struct gp_yardstick *y, uint64_t to, uint64_t *ns)
{
	for (uint32_t i = 0; i < d->count && i < GP_WIDTH_SAMPLES; i++) {
		wide is = (wide)d->ns[i] * to / alone(y, d->operations[i]);
		ns[i] = is < UINT64_MAX ? (uint64_t)is : UINT64_MAX;
	}
}

// How many of the latest windows took longer than that, or shorter by as much.
static uint32_t slower(const uint64_t *ns, uint32_t count, int percent, uint64_t yardstick)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < count && i < GP_WIDTH_SAMPLES; i++)
		n += above(ns[i], percent, yardstick);
	return n;
}

static uint32_t faster(const uint64_t *ns, uint32_t count, int percent, uint64_t yardstick)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < count && i < GP_WIDTH_SAMPLES; i++)
		n += above(yardstick, percent, ns[i]);
	return n;
}

static bool may_climb(const struct gp_width *w)
{
	uint32_t next = w->level + 1u;
	if (next == GP_WIDTH_LEVELS || w->yardstick.median_ns < SHORT_NS)
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
	w->before = w->yardstick;
	w->given_up = w->level;
	w->had_stood = w->stood > GP_WIDTH_SAMPLES;
	w->harmed = harmed;
	take_up(w, 0);
	empty(&w->alone);
}

// The yardstick is measured anew. True: the level that was given up was too wide.
static bool decide(struct gp_width *w)
{
	const struct gp_yardstick *y = &w->yardstick;
	uint32_t n = y->operations[0]; // if windows have others now, of those that had most, or least
	n = n < w->before.least ? w->before.least : n > w->before.most ? w->before.most : n;
	uint64_t now = alone(y, n), before = alone(&w->before, n);
	w->before.most = 0;
	if (y->median_ns < SHORT_NS || above(now, WORSE, before) || above(before, WORSE, now)) {
		w->too_wide = 0; // but the patience stays: of a kind that varies much the median does too
		w->had_chance = false;
		if (y->median_ns >= SHORT_NS) // it is tried with what it left before
			take_up(w, w->had_stood ? w->given_up : w->given_up - 1u);
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

// broken: it was found to be slow while it was open.
static void judge(struct gp_width *w, uint64_t busy_ns, uint32_t operations, bool broken)
{
	uint64_t yardstick = alone(&w->yardstick, operations), ns[GP_WIDTH_SAMPLES];

	add(&w->beside, busy_ns, operations);
	scale(&w->beside, &w->yardstick, yardstick, ns);
	w->stood++;
	bool slow = slower(ns, w->beside.count, SLOW, yardstick) > 1 ||
		    (full(&w->beside) && above(median(ns), w->stood <= GP_WIDTH_SAMPLES ? GOOD : WORSE, yardstick));
	if (slow || broken || above(busy_ns, BROKEN, yardstick)) {
		give_up(w, w->had_chance || (slow && w->stood < STANDS));
		w->had_chance = !w->harmed;
		return;
	}
	if (above(yardstick, BROKEN, busy_ns) || faster(ns, w->beside.count, SLOW, yardstick) > 1) {
		give_up(w, false);
		return;
	}
	if (w->stood % STANDS == 0)
		w->excused = 0;
	if (w->stood == STANDS) {
		w->had_chance = false;
		if (w->level >= w->too_wide) // it is not any more, or none was
			w->patience = w->too_wide = 0;
	}
	if (full(&w->beside) && may_climb(w) && !above(median(ns), GOOD, yardstick))
		take_up(w, w->level + 1u);
}

// The kind's width is settled for now: its yardstick is measured, and no level is on trial or to be tried.
static bool is_known(const struct gp_width *w)
{
	return full(&w->alone) && !w->before.most && (!w->level || full(&w->beside)) && !may_climb(w);
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
	all->slow = false;
	all->kinds -= is_known(w);
	w->windows++;
	all->kinds += is_known(w); // what was too wide may be tried again
	all->level = w->windows % CONTROL && !w->unknown ? w->level : 0;
	return all->level;
}

static uint32_t number(uint64_t operations)
{
	return !operations ? 1 : operations < INT32_MAX ? (uint32_t)operations : INT32_MAX;
}

// More operations may come: it is slow if it took too long for all that it has, and for as few as windows ever had.
bool gp_width_falls(struct gp_widths *all, uint64_t busy_ns, uint64_t operations)
{
	if (!all->open || !all->level)
		return false;
	const struct gp_yardstick *y = &all->width[all->open - 1].yardstick;
	uint32_t n = number(operations);
	if (n < y->least)
		n = y->least;
	all->slow = above(busy_ns, BROKEN, alone(y, n));
	return all->slow || !covers(y, n);
}

// A window that left nothing is over.
static bool measure(struct gp_width *w, uint64_t busy_ns, uint32_t operations)
{
	bool too_wide = false;

	add(&w->alone, busy_ns, operations);
	if (w->before.most)
		settle(&w->alone);
	if (!full(&w->alone))
		return false;
	w->yardstick = fit(&w->alone);
	if (w->before.most)
		too_wide = decide(w);
	if (w->level && w->yardstick.median_ns < SHORT_NS)
		take_up(w, 0);
	if (!w->level && may_climb(w))
		take_up(w, 1);
	if (++w->asked == GP_WIDTH_SAMPLES || covers(&w->yardstick, w->unknown))
		w->unknown = 0;
	return too_wide;
}

enum gp_verdict gp_width_verdict(const struct gp_widths *all, uint64_t busy_ns, uint64_t operations)
{
	if (!all->open || !all->level)
		return GP_UNJUDGED;
	const struct gp_yardstick *y = &all->width[all->open - 1].yardstick;
	uint32_t n = number(operations);
	if (!all->slow && !covers(y, n))
		return GP_UNJUDGED;
	return all->slow || above(busy_ns, WORSE, alone(y, n)) ? GP_SLOW : GP_GOOD;
}

// The kind is as before, but for the number of its windows. Not so if the cause of the slow window is known by now.
void gp_width_excuse(struct gp_widths *all)
{
	uint32_t at = all->before_of - 1;
	all->before_of = 0;
	if (at >= GP_WIDTH_KINDS || all->key[at] != all->before_key || all->before.excused == EXCUSES)
		return;
	struct gp_width *w = &all->width[at];
	uint32_t windows = w->windows;
	if (windows - all->before.windows > GP_WIDTH_SAMPLES || (w->level != all->before.level && !w->before.most))
		return;
	all->kinds -= is_known(w);
	*w = all->before;
	w->windows = windows;
	w->excused++;
	all->kinds += is_known(w);
}

void gp_width_closes(struct gp_widths *all, uint64_t busy_ns, uint64_t operations, bool judged)
{
	if (!all->open)
		return;
	struct gp_width *w = &all->width[all->open - 1];
	uint32_t n = number(operations);
	if (judged && gp_width_verdict(all, busy_ns, operations) == GP_SLOW) {
		all->before = *w;
		all->before_of = all->open;
		all->before_key = all->key[all->open - 1];
	}
	all->open = 0;
	if (!judged)
		return;
	all->kinds -= is_known(w);
	if (!all->level) {
		all->too_wide += measure(w, busy_ns, n);
	} else if (all->slow || covers(&w->yardstick, n)) {
		judge(w, busy_ns, n, all->slow);
	} else {
		w->unknown = n;
		w->asked = 0;
	}
	all->kinds += is_known(w);
}

uint32_t gp_width_sms(uint32_t level, uint32_t sms) { return level ? sms >> (GP_WIDTH_LEVELS - level) & ~7u : 0; }
