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

// Who is woken when a window opens or closes: this process's watcher, the agents of peers, peers that stop between blocks, launches that
// wait. Not under the lock: who is woken may take the processor.
enum { WAKE_WATCHER = GP_WAKE_WATCHER, WAKE_AGENTS = 2, WAKE_STOPPERS = 4, WAKE_GATE = 8 };

static const uint64_t POLL_NS = 50 * 1000; // how often the watcher asks about unfinished work
static const uint64_t TURN_GRACE_NS =
	2 * 1000 *
	1000; // idle time after which a turn is handed on: a hand-over costs about 1 ms, two calls of the resource manager
static const uint64_t TURN_POLL_NS = 500 * 1000;
static const uint64_t ALONE_POLL_NS = 10 * 1000 * 1000;
static const uint64_t SWITCH_WEIGHT = 25; // a switch in a request hurts this much more than BE time lost

// What windows leave to lower levels, by GPU; under its lock.
static struct measure {
	struct gp_widths widths;
	uint64_t opened_ns, finished_ns; // of the window; the work of its contexts that are closed had finished
	uint64_t operations;             // of these contexts, in the window
	bool contested;                  // when it opened, a lower level that goes on beside it had work
	uint64_t slow_ns; // when the latest window opened that was slow, until somebody takes the blame; 0: none was
	bool joined;      // by a second context: where one has no work, another may have
	uint64_t copy;    // kind of the copy that opened it, while it is not known what follows; 0: none did, or it is
	struct gp_context *copied_in;
} measures[GP_GPUS];

// What kind of request begins with an operation: alike are those that begin with the same function, or graph, on as many blocks, or with as
// large a copy.
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

// Whether who runs beside a window says that it says nothing of what it left: they run a kernel that hurts, and keep that back from now on; or they
// kept all back. Nobody trusts it: gp_width_excuse bounds it.
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

// How many SMs the window leaves that opens. Nothing where it is not known what comes, nor where another process needs room too. A copy
// says little: many requests begin with one as large.
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

// The launch path takes no lock for that: the watcher goes on from here. What comes too late, or is of another window that was closed
// meanwhile, makes one window one of another kind.
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
		line->judged_ns = gp_judged(opened, verdict == GP_SLOW); // before the window closes: who sees that sees this
	gp_width_closes(&m->widths, lasted - gaps, m->operations, judged);
	slot->width.kinds = m->widths.kinds;
	slot->width.too_wide = m->widths.too_wide;
}

// Writes into the own line what is told. There is a segment, and g->lock is held. Returns whether it said anything else.
static bool tell(struct gp_gpu *g)
{
	struct gp_line *line = gp_own_line(g);
	uint32_t busy = gp_takes_part() ? g->told.busy : 0;
	bool other = line->window_opened_ns != g->told.window_opened_ns || line->busy != busy ||
		     line->leaves != g->told.leaves;

	if (!g->told.window_opened_ns)
		line->window_opened_ns = 0;
	line->leaves = g->told.leaves;
	line->window_opened_ns = g->told.window_opened_ns; // last: who sees the window sees what it leaves
	line->busy = busy;
	return other;
}

// Returns who is to be woken. first: the operation that opens the window; NULL: it is open already, or none does.
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

// Takes the window back that others see. Those that wait for it are to be woken.
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

// Returns who is to be woken.
static uint32_t unpublish(struct gp_gpu *g, uint64_t now)
{
	uint32_t wakes = 0;

	if (!g->segment)
		return 0;
	if (g->told.window_opened_ns) {
		withdraw(g, now);
		wakes |= WAKE_GATE | (g->stoppable ? WAKE_STOPPERS : 0);
	}
	g->told.busy = g->probing ? GP_ASKS : GP_IDLE;
	tell(g);
	if (g->turn_peers || g->between)
		wakes |= WAKE_AGENTS;
	return wakes;
}

// From whatever word. The GPU's lock is held: no other thread opens, closes or drops the window.
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
	// Without a handle the context ends, and nobody would close the window. Another has its place where the GPU is another.
	if (gp_is_open(c) || !c->handle || c->gpu != g) {
		pthread_mutex_unlock(&g->lock);
		return 0;
	}
	uint64_t now = gp_now_ns();
	if (g->open_contexts++ == 0) {
		g->busy_since_ns = now;
		if (gp_objective.on)
			gp_objective_opens(g, now);
		c->follows = 0;
		measures[g - gp_gpu].copied_in = c;
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
	if (wakes & WAKE_WATCHER) {
		gp_wake++;
		gp_futex_wake(&gp_wake, 1, false);
	}
}

void gp_gpu_probe(struct gp_gpu *g, bool on)
{
	pthread_mutex_lock(&g->lock);
	g->probing = on;
	g->told.busy = g->open_contexts ? GP_WORKS : on ? GP_ASKS : GP_IDLE;
	tell(g);
	pthread_mutex_unlock(&g->lock);
}

// Puts pages of a view in the place of another's, one by one, since they may be of several mappings, the last first. What is left of them is
// given back one by one too: the place that a page has left is free, and another thread's by now.
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

// Replaces the segment's memory by another, of either kind, in which this process has a slot or which nobody else sees. The address
// stays, so that no pointer dangles. A slot that is still owned is copied. What it writes itself is replaced under the lock, which
// launches wait for; the rest, 129 pages, after it: threads read either memory meanwhile. Nothing is decided by that.
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
		// Before the memory goes at which they wait, also for what another thread has closed and not yet told.
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
	g->told.busy = g->probing ? GP_ASKS : GP_IDLE;
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

// g->lock is held. finished_ns: when the work of the context had; 0: it may not have. Returns who is to be woken.
static uint32_t close_context(struct gp_context *c, uint64_t finished_ns)
{
	struct gp_gpu *g = c->gpu;
	uint64_t now = gp_now_ns();

	measure(c, finished_ns, g->open_contexts == 1);
	if (--g->open_contexts != 0)
		return 0;
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
	if (gp_objective.on && !g->open_contexts)
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
	// Since then a hint has kept the window open, whatever the grace is.
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

// A window that a copy opened leaves something as soon as it is known what follows. Who goes on beside it is told: it may wait for nothing
// but the window's end.
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
	// In this order: gaps that end later make it seem to have had work for less, and operations for more. Below what there were before is a
	// gap that two threads had counted when it opened, and one took back.
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
	uint64_t wait = gp_objective.on && gp_lend_drains(c->gpu) ? 0 : grace(c),
		 passed = now > idle_since ? now - idle_since : 0;
	if (passed < wait)
		return wait - passed > POLL_NS && heeds_equals(c->gpu) ? POLL_NS : wait - passed;
	if (!close_window(c, word))
		return poll;
	c->yielded = 0;
	return 0;
}

uint64_t gp_window_watch(struct gp_context *c, uint64_t now)
{
	watch_kind(c);
	if (gp_objective.on)
		gp_objective_watch(c->gpu, now);
	watch_width(c, now);
	uint64_t hold = watch_hold(c, now), work = watch_work(c, now);
	return hold && hold < work ? hold : work;
}

// Publishes the window, or takes it back, as is_public says. If another process has written over it, this tells it again, and wakes threads
// that wait for its end. g->lock is held. Returns who is to be woken.
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
