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

// Lower levels hear of a window. The state of the process is read under g->lock, and its writer publishes anew, under the lock too.
static bool is_public(const struct gp_gpu *g) { return g->lower_peers && !g->giving_way && gp_takes_part(); }

// Writes g->told into the process's own line. There is a segment, and g->lock is held. Returns whether the line said anything else.
static bool tell(struct gp_gpu *g)
{
	struct gp_line *line = gp_own_line(g);
	uint32_t busy = gp_takes_part() ? g->told.busy : 0;
	bool other = line->window_opened_ns != g->told.window_opened_ns || line->busy != busy;

	line->window_opened_ns = g->told.window_opened_ns;
	line->busy = busy;
	return other;
}

// Returns the WAKE_ bits.
static uint32_t publish(struct gp_gpu *g, uint64_t now)
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

uint32_t gp_window_open(struct gp_context *c)
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
		g->giving_way += gp_shared_slot_opens(g);
		wakes |= publish(g, now);
	}
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
	uint32_t wakes = g->open_contexts ? publish(g, now) : 0;
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
	uint32_t wakes = g->open_contexts ? publish(g, gp_now_ns()) : 0;
	pthread_mutex_unlock(&g->lock);
	gp_window_wake(g, wakes);
}

// g->lock is held. Returns the WAKE_ bits.
static uint32_t close_context(struct gp_context *c)
{
	struct gp_gpu *g = c->gpu;
	uint64_t now = gp_now_ns();

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
	uint32_t wakes = close_context(c);
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
	uint32_t wakes = gp_is_open(c) ? close_context(c) : 0;
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
		wakes |= publish(g, gp_now_ns()); // lower levels came while the window was open
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
	if (gp_objective_on)
		gp_objective_watch(c->gpu, now);
	uint64_t slot = watch_slot(c->gpu, now);
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
