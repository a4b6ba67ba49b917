// slots.c - lends slots of GPU time to lower levels, out of what the objective leaves.
#define _GNU_SOURCE
#include "preempt/gpu/engine.h"

#include <limits.h>

enum {
	// Late slots are counted by a leaky counter: each adds LATE_COSTS, each slot in time takes 1 away, and at MOST_LATE lending stops for a
	// while. So three in a row stop it, and so do more than one of 50 in the long run.
	LATE_COSTS = 50,
	MOST_LATE = 3 * LATE_COSTS,
};

static const uint64_t MOST_DRAIN_NS = 200 * 1000 * 1000; // Work that takes longer is no step: the process lends nothing then.
static const uint64_t LOOK_NS = 1000 * 1000;             // How often a slot looks whether lower levels still have work.
static const uint64_t LATE_NS = 2000 * 1000;             // A slot that ends so much later is late.
static const uint64_t OFF_NS = 60ull * 1000 * 1000 * 1000; // For so long after late slots the process lends nothing.

static bool is_wanted(const struct gp_gpu *g)
{
	struct gp_segment *s = g->segment;
	return s && g->lower_peers && (gp_any_busy(s, g->lower) || gp_any_uncounted(s, g->lower));
}

// How much others of this level or above, whose windows are open, let this process lend: lower levels run only while all of them lend.
// Their words are untrusted: a slot is never longer than this process's own credit. until_ns: the end of a slot of theirs that it may
// join; 0: none.
static double others_lend(struct gp_gpu *g, uint64_t now, double slot, uint64_t *until_ns)
{
	struct gp_segment *s = g->segment;
	*until_ns = 0;
	for (uint64_t slots = g->same | g->higher; slots; slots &= slots - 1) {
		struct gp_line *line = gp_line_of(s, (uint32_t)__builtin_ctzll(slots));
		uint64_t lent_until = line->lent_until_ns;
		double credit = line->credit_us * 1e3;
		if (lent_until > now && (!*until_ns || lent_until < *until_ns))
			*until_ns = lent_until;
		if (line->window_opened_ns && credit < slot)
			slot = credit;
	}
	return slot;
}

// The state of the objective once a step has ended. The lock is held.
enum gp_objective_state gp_engine_state(const struct gp_gpu *g, const struct gp_engine *e, uint64_t now)
{
	if (gp_is_rank && e->settings.slowdown > 0)
		return GP_OBJECTIVE_RANKS;
	if (!gp_law_attainable(&e->law))
		return GP_OBJECTIVE_UNATTAINABLE;
	if (now < e->off_until_ns)
		return GP_OBJECTIVE_LATE;
	if (e->in_a_row >= FEW_IN_A_ROW || e->usual_in_a_row >= FEW_IN_A_ROW)
		return GP_OBJECTIVE_LENDS;
	return e->usual_in_a_row > 0 ? GP_OBJECTIVE_RESTS : GP_OBJECTIVE_NONE; // before the first rest that is not known
}

// A slot is due, or goes on, if credit pays for it. The lock is held.
void gp_engine_consider(struct gp_gpu *g, struct gp_engine *e, uint64_t now)
{
	const struct gp_law_settings *law = &e->settings;
	double slot = gp_law_slot(&e->law, law, (double)gp_switch_ns(g));
	uint64_t until;

	if (e->shared >= MOST_SHARED || gp_engine_state(g, e, now) != GP_OBJECTIVE_LENDS || gp_capturing())
		slot = 0;
	if (g->segment)
		gp_own_line(g)->credit_us = (uint32_t)(slot / 1e3);
	uint32_t was = e->slot;
	bool shared = was == SHARED || was == HELD;
	if (slot <= 0 || (was != NONE && !shared) || !is_wanted(g)) // a slot that is not lengthened ends by itself
		return;
	slot = others_lend(g, now, slot, &until);
	if (slot < law->min_slot_ns && !(until && slot > 0))
		return;
	if (g->mps && (!until || now + (uint64_t)slot < until))
		until = now + (uint64_t)slot;
	if (!shared) {
		e->slot_ns = (uint64_t)slot;
		e->until_ns = until;
		move(e, NONE, DUE);
		return;
	}
	e->until_ns = until; // credit pays for what is left of the slot, too
	// Half of it pays for the step behind. Credit for less than two slots pays for steps alone. Beside another open window no slot is
	// longer.
	bool more = slot >= 2 * law->min_slot_ns && !gp_windows_open(g->segment, g->same | g->higher);
	e->held_ns = more ? (uint64_t)slot / 2 : 0;
	gp_own_line(g)->lent_until_ns = until;
}

static void wake(struct gp_engine *e) { gp_futex_wake(&e->slot, INT_MAX, false); }

void gp_engine_cut(struct gp_gpu *g, enum gp_slot_cut why)
{
	struct gp_engine *e = engine_of(g);
	for (;;) {
		uint32_t slot = e->slot, next = RETURNING;
		if (slot == NONE || slot == RETURNING || slot == ENDING)
			return;
		if (slot == DUE)
			next = NONE;
		else if (slot == SHARED || slot == HELD)
			next = ENDING;
		if (!move(e, slot, next))
			continue;
		if (slot == DUE)
			return;
		break;
	}
	struct gp_objective_counters *n = counters(g);
	if (n)
		gp_count(&n->cut[why], 1);
	wake(e);
}

// A slot ended. The lock is held.
static void count_late(struct gp_engine *e, uint64_t now, bool late)
{
	if (!late)
		e->late -= e->late > 0;
	else if ((e->late += LATE_COSTS) >= MOST_LATE) {
		e->late = 0;
		e->off_until_ns = now + OFF_NS;
	}
}

// A slot in which lower levels ran is over. end: when it was to be. The lock is held.
static void count_slot(struct gp_gpu *g, struct gp_engine *e, uint64_t now, uint64_t lent_ns, uint64_t end)
{
	struct gp_objective_counters *n = counters(g);
	if (n) {
		gp_count(&n->slots, 1);
		gp_count(&n->lent_ns, lent_ns);
	}
	count_late(e, now, now > end + LATE_NS);
}

// Counts a slot beside the window that is over, once. late: it may be. g->lock is held, so that no other begins meanwhile.
static void finish(struct gp_gpu *g, struct gp_engine *e, uint64_t now, bool late)
{
	if (!__atomic_exchange_n((uint32_t *)&e->unfinished, 0, __ATOMIC_ACQ_REL))
		return;
	pthread_mutex_lock(&e->lock);
	count_slot(g, e, now, now - e->lent_at_ns, late ? (uint64_t)e->until_ns : now);
	e->ended_ns = now;
	pthread_mutex_unlock(&e->lock);
	if (g->segment)
		gp_own_line(g)->lent_until_ns = 0;
	wake(e);
}

// A held launch may go on meanwhile, HELD to SHARED: so SHARED is tried again.
static bool end_shared(struct gp_gpu *g, struct gp_engine *e, uint64_t now, bool late)
{
	if (!move(e, SHARED, NONE) && !move(e, HELD, NONE) && !move(e, SHARED, NONE) && !move(e, ENDING, NONE))
		return false;
	finish(g, e, now, late);
	return true;
}

bool gp_shared_slot_closes(struct gp_gpu *g, uint64_t now)
{
	struct gp_engine *e = engine_of(g);
	return __builtin_expect(is_shared(e->slot), 0) && (move(e, HELD, LENT) || end_shared(g, e, now, false));
}

bool gp_shared_slot_opens(struct gp_gpu *g)
{
	struct gp_engine *e = engine_of(g);
	if (__builtin_expect(e->slot != REOPENING, 1))
		return false;
	pthread_mutex_lock(&e->lock);
	bool opens = move(e, REOPENING, SHARED);
	e->beside |= opens;
	pthread_mutex_unlock(&e->lock);
	return opens;
}

uint64_t gp_shared_slot_turns(const struct gp_gpu *g, uint64_t now)
{
	const struct gp_engine *e = engine_of(g);
	uint32_t slot = e->slot;
	uint64_t until = e->until_ns;
	if (slot == ENDING || (slot == DUE && g->mps))
		return 0;
	if (slot != SHARED && slot != HELD)
		return UINT64_MAX;
	return now < until && is_wanted(g) ? until - now : 0;
}

int gp_shared_slot_turn(struct gp_gpu *g, uint64_t now)
{
	struct gp_engine *e = engine_of(g);
	if (gp_shared_slot_turns(g, now))
		return 0;
	if (e->slot != DUE) {
		if (now < e->until_ns && !is_wanted(g))
			gp_engine_cut(g, GP_CUT_IDLE);
		return end_shared(g, e, now, true) ? -1 : 0;
	}
	pthread_mutex_lock(&e->lock);
	bool begins = move(e, DUE, SHARED);
	if (begins) {
		e->lent_at_ns = now;
		e->held_ns = 0;
		e->beside = true;
		e->unfinished = 1;
	}
	pthread_mutex_unlock(&e->lock);
	if (begins && g->segment)
		gp_own_line(g)->lent_until_ns = e->until_ns;
	return begins;
}

// The watcher closed the window since a launch waits, or since the program has no work.
void gp_objective_closes(struct gp_gpu *g, uint64_t now)
{
	struct gp_engine *e = engine_of(g);
	if (e->slot != LENT)
		e->lent_at_ns = now;
	if (move(e, DRAINING, LENT)) {
		uint64_t until = now + e->slot_ns;
		if (e->until_ns && e->until_ns < until)
			until = e->until_ns;
		if (g->segment)
			gp_own_line(g)->lent_until_ns = until;
		wake(e);
		return;
	}
	if (e->slot == LENT || e->slot == RETURNING || e->slot == REOPENING)
		return;
	pthread_mutex_lock(&e->lock);
	e->closed_ns = now;
	if (g->segment)
		gp_own_line(g)->credit_us = 0;
	pthread_mutex_unlock(&e->lock);
}

enum gp_lending gp_engine_lends(struct gp_context *c, const struct gp_operation *o, uint32_t slot)
{
	struct gp_engine *e = engine_of(c->gpu);
	if (slot == DUE && !gp_is_open(c) && has_rested(e, gp_now_ns())) { // the launch begins a request
		move(e, DUE, NONE);
		return GP_LENDS_NOT;
	}
	if ((slot == DUE && c->gpu->mps) || (o->work != GP_GRAPH && e->uses_graphs))
		return GP_LENDS_NOT;
	if (slot == DUE)
		return move(e, DUE, DRAINING) ? GP_LENDS_ALL : GP_LENDS_NOT;
	return gp_is_open(c) && move(e, SHARED, HELD) ? GP_LENDS_MORE : GP_LENDS_NOT;
}

bool gp_lend_drains(const struct gp_gpu *g) { return engine_of(g)->slot == DRAINING; }

bool gp_lent(const struct gp_gpu *g) { return engine_of(g)->slot == LENT; }

void gp_lend_request(uint64_t now)
{
	for (int k = 0; k < GP_GPUS && gp_gpu[k].known; k++) {
		uint64_t none = 0;
		__atomic_compare_exchange_n((uint64_t *)&gp_engines[k].arrived_ns, &none, now, false, __ATOMIC_ACQ_REL,
					    __ATOMIC_RELAXED);
		if (gp_engines[k].first_ns)
			gp_engine_cut(&gp_gpu[k], GP_CUT_REQUEST);
	}
}

void gp_lend_capture(void)
{
	for (int k = 0; k < GP_GPUS && gp_gpu[k].known; k++)
		gp_engine_cut(&gp_gpu[k], GP_CUT_CAPTURE);
}

// Waits until the window has closed. False: it has not.
static bool drain(struct gp_gpu *g, struct gp_engine *e, uint64_t began)
{
	if (!gp_objective_on) // it was on as the launch began, and no thread looks for the slot any more
		gp_engine_cut(g, GP_CUT_CHANGED);
	while (e->slot == DRAINING) {
		gp_futex_wait(&e->slot, DRAINING, MOST_DRAIN_NS, false);
		if (gp_now_ns() - began > MOST_DRAIN_NS)
			gp_engine_cut(g, GP_CUT_UNDRAINED);
	}
	return e->lent_at_ns >= began;
}

// Waits until the slot ends. Returns when.
static uint64_t wait_out(struct gp_gpu *g, struct gp_engine *e, uint64_t end)
{
	uint64_t now;
	while ((now = gp_now_ns()) < end && e->slot == LENT) {
		gp_futex_wait(&e->slot, LENT, end - now < LOOK_NS ? end - now : LOOK_NS, false);
		if (!is_wanted(g))
			gp_engine_cut(g, GP_CUT_IDLE);
	}
	return now;
}

// The launch waits, so that lower levels have the GPU to themselves. The slot may end before.
static void wait_held(struct gp_gpu *g, struct gp_engine *e, uint64_t began)
{
	uint64_t end = began + __atomic_exchange_n((uint64_t *)&e->held_ns, 0, __ATOMIC_RELAXED), now = began;
	uint32_t slot;
	while (((slot = e->slot) == HELD || slot == LENT) && (now = gp_now_ns()) < end && now < e->until_ns) {
		gp_futex_wait(&e->slot, slot, end - now < LOOK_NS ? end - now : LOOK_NS, false);
		if (!is_wanted(g))
			gp_engine_cut(g, GP_CUT_IDLE);
	}
	pthread_mutex_lock(&e->lock);
	uint64_t from = latest(began, e->from_ns); // a step may have ended meanwhile
	e->lent_ns += now > from ? now - from : 0;
	pthread_mutex_unlock(&e->lock);
	if (!move(e, HELD, SHARED))
		move(e, LENT, REOPENING);
}

void gp_lend(struct gp_context *c, enum gp_lending how)
{
	struct gp_gpu *g = c->gpu;
	struct gp_engine *e = engine_of(g);
	uint64_t began = gp_now_ns();

	if (how == GP_LENDS_MORE) {
		wait_held(g, e, began);
		return;
	}
	pthread_mutex_lock(&g->lock);
	bool open = g->open_contexts;
	if (!open) // nothing is under way
		gp_objective_closes(g, began);
	pthread_mutex_unlock(&g->lock);
	if (open)
		gp_wake_watcher();
	if (drain(g, e, began)) {
		uint64_t from = e->lent_at_ns, end = from + e->slot_ns;
		if (e->until_ns && e->until_ns < end)
			end = e->until_ns;
		uint64_t now = wait_out(g, e, end);
		pthread_mutex_lock(&e->lock);
		e->lent_ns += now - from;
		count_slot(g, e, now, now - from, end);
		pthread_mutex_unlock(&e->lock);
	}
	move(e, LENT, RETURNING);
	if (g->segment)
		gp_own_line(g)->lent_until_ns = 0;
}

void gp_lend_over(struct gp_gpu *g)
{
	struct gp_engine *e = engine_of(g);
	if (e->slot != REOPENING && e->slot != RETURNING)
		return;
	// A slot whose window had closed, and that was cut, or another thread opened the window.
	pthread_mutex_lock(&g->lock);
	if (move(e, REOPENING, NONE) || move(e, RETURNING, NONE))
		finish(g, e, gp_now_ns(), false);
	pthread_mutex_unlock(&g->lock);
}
