// window.c - opens, publishes and closes windows.
//
// A context is open from its first submission after idle until everything submitted has finished and
// nothing came for a grace period. Submitters open; the watcher (a thread in gp_watch) closes. Work and window are one word (window_word.h).
// Writers of waits and hints: threads that wait, or have a hint. Reader: the watcher. Pairing: each first counts its wait or its hint, then
// looks whether the window is open; the watcher first closes, then looks at both again. Without the second look this breaks: a thread that
// waits has no window, and lower levels run beside it. window_orders_test.c tries every order.
#define _GNU_SOURCE
#include "preempt/gpu/gpu.h"
#include "preempt/gpu/objective.h"
#include "preempt/gpu/width.h"

#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	LOWEST_LEVEL = GP_LEVELS - 1,
};

// A window that opens or closes wakes some of these: this process's watcher, the agents of peers, peers that stop between blocks,
// launches that wait. The caller wakes them after the lock: a woken thread may take the processor.
enum { WAKE_WATCHER = 1, WAKE_AGENTS = 2, WAKE_STOPPERS = 4, WAKE_GATE = 8 };

static const uint64_t POLL_NS = 50 * 1000; // how often the watcher asks about unfinished work
static const uint64_t TURN_GRACE_NS =
	2 * 1000 *
	1000; // idle time after which a turn is handed on: a hand-over costs about 1 ms, two calls of the resource manager
static const uint64_t TURN_POLL_NS = 500 * 1000;
static const uint64_t ALONE_POLL_NS = 10 * 1000 * 1000;
static const uint64_t SWITCH_WEIGHT = 25; // a switch in a request hurts this much more than BE time lost

// How many SMs windows leave to lower levels, and what they suffer from it, by GPU; under its lock.
static struct measure {
	struct gp_widths widths;
	uint64_t opened_ns, finished_ns; // When the window opened, and when the work of its closed contexts had finished.
	uint64_t operations;             // Operations of these contexts, in the window.
	bool contested;                  // When it opened, a lower level that goes on beside it had work.
	uint64_t slow_ns; // When the latest slow window opened, until a process takes the blame; 0: there was none.
	bool joined;      // A second context joined the window: where one has no work, another may have.
	uint64_t copy; // Kind of the copy that opened the window, until its follower is known; 0: no copy did, or it is.
	struct gp_context *copied_in;
} measures[GP_GPUS];

// The kind of request that begins with an operation. Requests are alike that begin with the same function on as many blocks, with the
// same graph, or with as large a copy.
static uint64_t kind(const struct gp_operation *o)
{
	uint64_t of[4] = {o->work}, key = 14695981039346656037ull; // FNV-1a

	if (o->work == GP_KERNEL) {
		of[1] = (uintptr_t)o->launch.function;
		of[2] = (uint64_t)o->launch.grid[0] << 32 | o->launch.grid[1];
		of[3] = (uint64_t)o->launch.grid[2] << 32 | o->launch.block[0];
	} else if (o->work == GP_GRAPH) {
		of[1] = (uintptr_t)o->graph;
	} else if (o->work == GP_COPY || o->work == GP_MEMSET) {
		of[1] = o->memory.width;
		of[2] = o->memory.height;
	}
	for (size_t i = 0; i < sizeof of; i++)
		key = (key ^ ((unsigned char *)of)[i]) * 1099511628211ull;
	return key ? key : 1;
}

// Lower levels hear of a window. The state of the process is read under g->lock, and its writer publishes anew, under the lock too.
static bool is_public(const struct gp_gpu *g) { return g->lower_peers && !g->giving_way && gp_takes_part(); }

static bool in_the_way(struct gp_gpu *g) { return gp_windows_open(g->segment, g->same | g->higher); }

// Whether a process beside a window excuses its width. It runs a kernel that hurts, and keeps that back from now on; or it kept all back.
// gp_width_excuse bounds how often that is believed.
static bool is_excused(const struct gp_gpu *g, uint64_t opened_ns)
{
	for (uint64_t slots = g->going_on; slots; slots &= slots - 1)
		if (gp_line_of(g->segment, (uint32_t)__builtin_ctzll(slots))->excuses_ns == opened_ns)
			return true;
	return false;
}

// The window leaves what is learnt of its kind: how many SMs.
static uint32_t leave_of(struct gp_gpu *g, uint64_t key)
{
	uint32_t sms = gp_width_sms(gp_width_opens(&measures[g - gp_gpu].widths, key), (uint32_t)g->sms);
	if (sms)
		gp_count(&gp_own_slot(g)->width.leaving, 1);
	return sms;
}

// How many SMs the window leaves that opens. None where the first operation is not known, nor where another process needs room too. A
// copy says little: many requests begin with one as large.
static uint32_t leave(struct gp_gpu *g, const struct gp_operation *first, uint64_t now)
{
	struct measure *m = &measures[g - gp_gpu];
	m->copy = 0;
	if (m->slow_ns && is_excused(g, m->slow_ns)) {
		gp_width_excuse(&m->widths);
		m->slow_ns = 0;
	}
	if (!g->going_on || !first || in_the_way(g))
		return 0;
	m->opened_ns = now;
	m->finished_ns = m->operations = 0;
	m->joined = false;
	m->contested = gp_any_busy(g->segment, g->going_on);
	if (first->work != GP_COPY)
		return leave_of(g, kind(first));
	m->copy = kind(first);
	return 0;
}

// The launch path takes no lock for that: the watcher goes on from here. A note that comes too late, or belongs to a window that was
// closed meanwhile, puts one window into another kind.
void gp_window_follow(struct gp_context *c, const struct gp_operation *o) { c->follows = kind(o); }

// A context is closed whose work had finished at a time; 0: it may not have. last: so the window is over.
static void measure(struct gp_context *c, uint64_t finished_ns, bool last)
{
	struct gp_gpu *g = c->gpu;
	struct measure *m = &measures[g - gp_gpu];
	struct gp_slot *slot = gp_own_slot(g);

	m->operations += c->seen_activity - c->activity_before;
	c->activity_before = c->seen_activity;
	if (!finished_ns)
		m->contested = false;
	if (m->finished_ns < finished_ns)
		m->finished_ns = finished_ns;
	if (last)
		m->copy = 0;
	if (!last || !m->widths.open)
		return;
	uint64_t lasted = m->finished_ns > m->opened_ns ? m->finished_ns - m->opened_ns : 0;
	uint64_t gaps = m->joined ? 0 : c->gaps_ns - c->gaps_before_ns;
	// More than the window lasted: one that a thread counted as it ended, when a hint or a wait had opened this window before; or one that
	// two threads counted, of which one took it back.
	bool judged = m->contested && !in_the_way(g) && gaps <= lasted;
	enum gp_verdict verdict = judged ? gp_width_verdict(&m->widths, lasted - gaps, m->operations) : GP_UNJUDGED;
	struct gp_line *line = gp_own_line(g);
	uint64_t opened = g->told.window_opened_ns;
	if (verdict == GP_SLOW)
		m->slow_ns = opened;
	else if (verdict == GP_GOOD && is_excused(g, opened)) // nothing ran beside it
		judged = false;
	if (verdict != GP_UNJUDGED)
		line->judged_ns = gp_judged(opened, verdict == GP_SLOW); // first: a reader of the closed window sees this
	gp_width_closes(&m->widths, lasted - gaps, m->operations, judged);
	slot->width.kinds = m->widths.kinds;
	slot->width.too_wide = m->widths.too_wide;
}

// Writes g->told into the process's own line. There is a segment, and g->lock is held. Returns whether the line said anything else.
static bool tell(struct gp_gpu *g)
{
	struct gp_line *line = gp_own_line(g);
	uint32_t busy = gp_takes_part() ? g->told.busy : 0;
	bool other = line->window_opened_ns != g->told.window_opened_ns || line->busy != busy ||
		     line->leaves != g->told.leaves;

	if (!g->told.window_opened_ns)
		line->window_opened_ns = 0;
	line->leaves = g->told.leaves;
	line->window_opened_ns = g->told.window_opened_ns; // last: a reader of the window sees what it leaves
	line->busy = busy;
	return other;
}

// Returns the WAKE_ bits. first: the operation that opens the window; NULL: it is open already, or no operation opens it.
static uint32_t publish(struct gp_gpu *g, const struct gp_operation *first, uint64_t now)
{
	struct gp_segment *s = g->segment;
	struct gp_slot *slot = gp_own_slot(g);
	uint32_t wakes = 0;

	if (!s)
		return 0;
	if (is_public(g)) {
		gp_count(&slot->windows, 1);
		if (gp_any_busy(s, g->lower))
			gp_count(&slot->switches, 1);
		g->told.leaves = leave(g, first, now);
		g->told.window_opened_ns = now;
	}
	if (!g->told.busy && g->turn_peers)
		wakes |= WAKE_AGENTS;
	g->told.busy = GP_WORKS;
	tell(g);
	if (g->stoppable && g->lower_peers)
		wakes |= WAKE_STOPPERS;
	if (g->between && g->lower_peers)
		wakes |= WAKE_AGENTS;
	return wakes;
}

// The busy word of a process without an open window.
static uint32_t idle_word(const struct gp_gpu *g) { return g->probing || g->at_gate ? GP_ASKS : GP_IDLE; }

// Takes the window back that others see. The caller wakes the threads that wait for it.
static void withdraw(struct gp_gpu *g, uint64_t now)
{
	struct gp_slot *slot = gp_own_slot(g);
	uint64_t lasted = now - g->told.window_opened_ns;
	gp_width_closes(&measures[g - gp_gpu].widths, 0, 0, false); // unless it was measured, its work goes on
	measures[g - gp_gpu].copy = 0;
	gp_count(&slot->window_ns, lasted);
	gp_count_time(&slot->times.windows, lasted);
	g->told.window_opened_ns = 0;
	tell(g);
}

// Returns the WAKE_ bits.
static uint32_t unpublish(struct gp_gpu *g, uint64_t now)
{
	uint32_t wakes = 0;

	if (!g->segment)
		return 0;
	if (g->told.window_opened_ns) {
		withdraw(g, now);
		wakes |= WAKE_GATE | (g->stoppable ? WAKE_STOPPERS : 0);
	}
	g->told.busy = idle_word(g);
	tell(g);
	if (g->turn_peers || g->between)
		wakes |= WAKE_AGENTS;
	return wakes;
}

// From any word. The GPU's lock is held: no other thread opens, closes or drops the window.
static void change(struct gp_context *c, enum gp_window_event event)
{
	uint64_t word = c->window;
	while (gp_window_after(word, event) != word && !gp_window_change(&c->window, word, event))
		word = c->window;
}

uint32_t gp_window_open(struct gp_context *c, const struct gp_operation *first)
{
	struct gp_gpu *g = c->gpu;
	uint32_t wakes = WAKE_WATCHER;

	pthread_mutex_lock(&g->lock);
	// Without a handle the context ends, and no thread would close the window. Another has its place where the GPU is another.
	if (gp_is_open(c) || !c->handle || c->gpu != g) {
		pthread_mutex_unlock(&g->lock);
		return 0;
	}
	uint64_t now = gp_now_ns();
	if (g->open_contexts++ == 0) {
		g->busy_since_ns = now;
		if (gp_objective_on)
			gp_objective_opens(g, now);
		c->follows = 0;
		measures[g - gp_gpu].copied_in = c;
		g->giving_way += gp_shared_slot_opens(g);
		wakes |= publish(g, first, now);
	} else {
		measures[g - gp_gpu].joined = true;
	}
	c->gaps_before_ns = c->gaps_ns;
	change(c, GP_OPENS);
	pthread_mutex_unlock(&g->lock);
	return wakes;
}

void gp_window_wake(struct gp_gpu *g, uint32_t wakes)
{
	if (wakes & WAKE_GATE)
		gp_ring_gate(g);
	if (wakes & WAKE_STOPPERS)
		gp_ring_windows(g);
	if (wakes & WAKE_AGENTS)
		gp_ring(g);
	if (wakes & WAKE_WATCHER)
		gp_wake_watcher();
}

void gp_gpu_probe(struct gp_gpu *g, bool on)
{
	pthread_mutex_lock(&g->lock);
	g->probing = on;
	g->told.busy = g->open_contexts ? GP_WORKS : idle_word(g);
	tell(g);
	pthread_mutex_unlock(&g->lock);
}

void gp_gpu_waits(struct gp_gpu *g, bool on)
{
	pthread_mutex_lock(&g->lock);
	g->at_gate += on ? 1 : UINT32_MAX;
	if (!g->open_contexts)
		g->told.busy = idle_word(g);
	tell(g);
	pthread_mutex_unlock(&g->lock);
}

// Puts pages of a view in the place of another's, one by one, since they may be of several mappings, the last first. The rest of each
// GP_PAGE is given back one by one too: the place that a page has left is free, and another thread's by now.
static bool replace(struct gp_view *view, struct gp_view *next, size_t from, size_t to)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE); // all words are in the first of a GP_PAGE
	bool all = true;
	for (size_t at = to; at > from; at -= GP_PAGE) {
		char *is = (char *)next + at - GP_PAGE, *was = (char *)view + at - GP_PAGE;
		bool moved = mremap(is, page, page, MREMAP_MAYMOVE | MREMAP_FIXED, was) != MAP_FAILED;
		size_t left = moved ? GP_PAGE - page : GP_PAGE;
		if (left)
			munmap(is + GP_PAGE - left, left);
		all = moved && all;
	}
	return all;
}

// Replaces the segment's memory by another, of either kind, in which this process has a slot or which no other process sees. The address
// stays, so that no pointer dangles. A slot that is still owned is copied. The pages that the process writes itself are replaced under
// the lock, which launches wait for. The rest, 129 pages, follows after it: threads read either memory meanwhile, and decide nothing by
// that.
bool gp_gpu_move(struct gp_gpu *g, void *memory, uint32_t slot, bool paged, bool owned)
{
	struct gp_view *view = gp_view_of(g->segment), *next = memory;
	const size_t own = sizeof view->segment; // from here on it writes itself

	pthread_mutex_lock(&g->lock);
	uint64_t now = gp_now_ns();
	if (owned) {
		if (g->open_contexts)
			unpublish(g, now);
		g->told.busy = GP_IDLE; // the next slot may have another line
		tell(g);
		// Wakes waiters before the memory goes at which they wait, also for windows that another thread has closed and not yet
		// told.
		gp_window_wake(g, WAKE_GATE | WAKE_STOPPERS | WAKE_AGENTS);
		for (size_t page = 0; page < sizeof next->own; page += GP_PAGE)
			memcpy((char *)&next->own + page, (char *)&view->own + page, 4096); // all of its words
	}
	bool moved = replace(view, next, own, sizeof *next);
	if (moved) {
		g->slot = slot;
		g->paged = paged;
	}
	g->told.window_opened_ns = 0; // the window is opened there
	g->told.busy = idle_word(g);
	tell(g);
	uint32_t wakes = g->open_contexts ? publish(g, NULL, now) : 0;
	pthread_mutex_unlock(&g->lock);
	if (moved)
		replace(view, next, 0, own); // fails for no mapping that is there
	else
		munmap(next, own);
	gp_window_wake(g, wakes);
	return moved;
}

void gp_gpu_attached(struct gp_gpu *g)
{
	pthread_mutex_lock(&g->lock);
	uint32_t wakes = g->open_contexts ? publish(g, NULL, gp_now_ns()) : 0;
	pthread_mutex_unlock(&g->lock);
	gp_window_wake(g, wakes);
}

// g->lock is held. finished_ns: when the work of the context had finished; 0: it may not have. Returns the WAKE_ bits.
static uint32_t close_context(struct gp_context *c, uint64_t finished_ns)
{
	struct gp_gpu *g = c->gpu;
	uint64_t now = gp_now_ns();

	measure(c, finished_ns, g->open_contexts == 1);
	if (--g->open_contexts != 0)
		return 0;
	g->giving_way -= gp_shared_slot_closes(g, now);
	uint32_t wakes = unpublish(g, now);
	g->busy_ns += now - g->busy_since_ns;
	if (gp_own_slot(g))
		gp_count(&gp_own_slot(g)->busy_ns, now - g->busy_since_ns);
	return wakes;
}

// How long the process had unfinished work on the GPU, until now.
uint64_t gp_gpu_busy_ns(struct gp_gpu *g)
{
	pthread_mutex_lock(&g->lock);
	uint64_t busy = g->busy_ns + (g->open_contexts ? gp_now_ns() - g->busy_since_ns : 0);
	pthread_mutex_unlock(&g->lock);
	return busy;
}

// word: of when the grace was over. False if work, a wait or a hint came in the meantime.
static bool close_window(struct gp_context *c, uint64_t word)
{
	struct gp_gpu *g = c->gpu;

	pthread_mutex_lock(&g->lock);
	bool closed = gp_window_change(&c->window, word, GP_CLOSES);
	bool reopens = closed && (c->waits || c->hint.until_ns > gp_now_ns());
	if (reopens)
		change(c, GP_OPENS);
	if (!closed || reopens) {
		pthread_mutex_unlock(&g->lock);
		return false;
	}
	gp_hold_release(c); // before anybody can open the next window
	uint32_t wakes = close_context(c, c->idle_since_ns);
	if (gp_objective_on && !g->open_contexts)
		gp_objective_closes(g, gp_now_ns());
	pthread_mutex_unlock(&g->lock);
	gp_window_wake(g, wakes);
	return true;
}

// Drops the window of a context that ends, though work may be unfinished.
void gp_window_drop(struct gp_context *c)
{
	struct gp_gpu *g = c->gpu;

	pthread_mutex_lock(&g->lock);
	uint32_t wakes = gp_is_open(c) ? close_context(c, 0) : 0;
	change(c, GP_ENDS);
	pthread_mutex_unlock(&g->lock);
	gp_window_wake(g, wakes);
}

void gp_note_gap(struct gp_context *c, uint64_t idle_since_ns, uint64_t awaited_since_ns)
{
	// Since then a hint has kept the window open, beyond the grace.
	uint64_t until = awaited_since_ns ? awaited_since_ns : gp_now_ns();
	uint64_t us = until > idle_since_ns ? (until - idle_since_ns) / 1000 : 0;
	int bucket = us ? 64 - __builtin_clzll(us) : 0;
	if (bucket >= GP_GAP_BUCKETS)
		bucket = GP_GAP_BUCKETS - 1;
	if (++c->gaps[bucket] >= 1024) // forget slowly: behaviour changes
		for (int i = 0; i < GP_GAP_BUCKETS; i++)
			c->gaps[i] = c->gaps[i] / 2;
}

// Windows are open for less where another process of this level waits. None rings when it opens its window. Without lower levels they have
// another grace (grace).
static bool heeds_equals(struct gp_gpu *g)
{
	return g->same && g->lower_peers && gp_settings.grace_equals_ns < gp_settings.grace_max_ns;
}

// The grace period, nanoseconds, from the idle gaps seen. A window that closes too early costs the request's next submission a
// context switch. One that closes too late costs the lower levels GPU time.
static uint64_t grace(struct gp_context *c)
{
	if (gp_settings.level == LOWEST_LEVEL || !c->gpu->lower_peers)
		return TURN_GRACE_NS;
	uint64_t most = gp_settings.grace_max_ns;
	if (heeds_equals(c->gpu) && gp_equals_open(c->gpu))
		most = gp_settings.grace_equals_ns;
	uint64_t best = most, best_cost = UINT64_MAX, cut = gp_switch_ns(c->gpu) * SWITCH_WEIGHT;
	uint32_t samples = 0;
	for (int i = 0; i < GP_GAP_BUCKETS; i++)
		samples += c->gaps[i];
	if (samples < 8)
		return best;
	for (int t = 0; t < GP_GAP_BUCKETS; t++) {
		uint64_t limit = 1000ull << t, cost = 0;
		if (limit < gp_settings.grace_min_ns)
			limit = gp_settings.grace_min_ns;
		if (limit > most)
			limit = most;
		for (int i = 0; i < GP_GAP_BUCKETS; i++) {
			uint64_t gap = (1000ull << i) * 3 / 4; // middle of the bucket
			cost += c->gaps[i] * (gap < limit ? gap : limit + cut);
		}
		if (cost < best_cost) {
			best_cost = cost;
			best = limit;
		}
	}
	return best;
}

// A window that a copy opened leaves SMs once the operation behind the copy is known. The watcher rings processes that go on beside it:
// they may wait for the window's end alone.
static void watch_kind(struct gp_context *c)
{
	struct gp_gpu *g = c->gpu;
	struct measure *m = &measures[g - gp_gpu];
	uint32_t leaves = 0;

	if (!c->follows)
		return;
	pthread_mutex_lock(&g->lock);
	if (m->copy && m->copied_in == c) {
		if (!in_the_way(g)) {
			g->told.leaves = leaves = leave_of(g, m->copy ^ c->follows);
			tell(g);
		}
		m->copy = 0;
	}
	c->follows = 0;
	pthread_mutex_unlock(&g->lock);
	if (leaves && g->stoppable) {
		gp_ring_windows(g);
		gp_ring_gate(g);
	}
}

// A window that is much slower than without best effort beside it leaves nothing any more, though it is open. While no work is there,
// or was announced, nothing suffers.
static void watch_width(struct gp_context *c, uint64_t now)
{
	struct gp_gpu *g = c->gpu;
	struct measure *m = &measures[g - gp_gpu];

	if (!g->segment || !g->told.leaves || c->hint.until_ns > now)
		return;
	pthread_mutex_lock(&g->lock);
	// In this order: gaps that end later make it seem to have had work for less, and operations for more. A smaller sum than before
	// comes of a gap that two threads had counted when it opened, and one took back.
	uint64_t gaps = c->gaps_ns, before = c->gaps_before_ns;
	if (!gp_is_idle(c) && !m->joined && gaps >= before) {
		uint64_t from = m->opened_ns + (gaps - before);
		if (now > from && gp_width_falls(&m->widths, now - from, gp_activity(c) - c->activity_before)) {
			g->told.leaves = 0;
			tell(g);
		}
	}
	pthread_mutex_unlock(&g->lock);
}

// Returns nanoseconds to the next look.
static uint64_t watch_hold(struct gp_context *c, uint64_t now)
{
	struct gp_hold *h = &c->hold;
	bool unfinished = !gp_is_idle(c) && gp_activity(c);

	if (!unfinished)
		c->unfinished_ns = 0;
	else if (!c->unfinished_ns)
		c->unfinished_ns = now;
	uint64_t started = h->started_ns; // may be later than now
	if (h->state == GP_HOLD_ARMED && now > started && now - started > gp_settings.max_hold_ns) {
		gp_hold_release(c);
		double share = gp_settings.lower_share;
		h->blocked_until_ns = now + (uint64_t)((double)gp_settings.max_hold_ns * share / (1 - share));
		gp_count(&gp_own_slot(c->gpu)->windows_cut, 1);
	}
	return gp_hold_look(c, now, unfinished);
}

// Closes the window when all is done and the grace is over. Returns nanoseconds to the next look; 0: it is closed.
static uint64_t watch_work(struct gp_context *c, uint64_t now)
{
	bool lower = c->gpu->lower_peers;
	uint64_t poll = lower ? POLL_NS : c->gpu->turn_peers ? TURN_POLL_NS : ALONE_POLL_NS;
	uint64_t word = c->window, activity = gp_window_activity(word);

	if (c->hint.until_ns > now) // work is announced
		return POLL_NS;
	bool quiet = activity == c->seen_activity;
	c->seen_activity = activity;
	if (c->waits) {
		gp_window_change(&c->window, word, GP_CALLED);
		return poll;
	}
	if (gp_window_state(word) == GP_OPEN) {
		if (!quiet || !gp_query(c) || !gp_idle(c, word, now))
			return poll;
		word = gp_window_after(word, GP_FINISHED);
	}
	if (!c->idle_since_ns) // a hint or a wait opened it before any work
		c->idle_since_ns = now;
	uint64_t idle_since = c->idle_since_ns;
	uint64_t wait = gp_objective_on && gp_lend_drains(c->gpu) ? 0 : grace(c),
		 passed = now > idle_since ? now - idle_since : 0;
	if (passed < wait)
		return wait - passed > POLL_NS && heeds_equals(c->gpu) ? POLL_NS : wait - passed;
	if (!close_window(c, word))
		return poll;
	c->yielded = 0;
	return 0;
}

// Publishes the window, or takes it back, as is_public says. If another process has written over it, this writes it again, and wakes
// threads that wait for its end. g->lock is held. Returns the WAKE_ bits.
static uint32_t republish(struct gp_gpu *g)
{
	bool wanted = is_public(g);
	uint32_t wakes = 0;
	if (!g->segment)
		return 0;
	if (tell(g))
		wakes |= WAKE_GATE | WAKE_STOPPERS | WAKE_AGENTS;
	if (!wanted && g->told.window_opened_ns) {
		withdraw(g, gp_now_ns());
		wakes |= WAKE_GATE | WAKE_STOPPERS;
	} else if (wanted && g->open_contexts && !g->told.window_opened_ns) {
		wakes |= publish(g, NULL, gp_now_ns()); // lower levels came while the window was open
	}
	return wakes;
}

// Lower levels run beside the window while a slot lasts. An objective that is no more ends it, too. Returns nanoseconds until it ends.
static uint64_t watch_slot(struct gp_gpu *g, uint64_t now)
{
	uint64_t left = gp_shared_slot_turns(g, now);
	if (left)
		return left;
	pthread_mutex_lock(&g->lock);
	int began = g->open_contexts ? gp_shared_slot_turn(g, now) : 0;
	g->giving_way += (uint32_t)began;
	uint32_t wakes = began ? republish(g) : 0;
	left = gp_shared_slot_turns(g, now);
	pthread_mutex_unlock(&g->lock);
	gp_window_wake(g, wakes);
	return left ? left : POLL_NS;
}

uint64_t gp_window_watch(struct gp_context *c, uint64_t now)
{
	watch_kind(c);
	if (gp_objective_on)
		gp_objective_watch(c->gpu, now);
	uint64_t slot = watch_slot(c->gpu, now);
	watch_width(c, now);
	uint64_t hold = watch_hold(c, now), work = watch_work(c, now);
	uint64_t next = hold && hold < work ? hold : work;
	return work && slot < next ? slot : next;
}

void gp_gpu_give_way(struct gp_gpu *g, bool on)
{
	pthread_mutex_lock(&g->lock);
	g->giving_way += on ? 1 : UINT32_MAX;
	uint32_t wakes = republish(g);
	pthread_mutex_unlock(&g->lock);
	gp_window_wake(g, wakes);
}

void gp_gpu_rescind(struct gp_gpu *g)
{
	if (!g->segment)
		return;
	pthread_mutex_lock(&g->lock);
	uint32_t wakes = republish(g);
	pthread_mutex_unlock(&g->lock);
	gp_window_wake(g, wakes);
	for (int i = 0; i < GP_CONTEXTS && !g->lower_peers; i++)
		if (gp_context[i].handle && gp_context[i].gpu == g)
			gp_hold_release(&gp_context[i]);
}
