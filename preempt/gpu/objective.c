// objective.c - the objective in force: the process's own wish, or the one that others set.
#define _GNU_SOURCE
#include "preempt/gpu/engine.h"

_Atomic uint32_t gp_objective_on;
struct gp_engine gp_engines[GP_GPUS] = {[0 ... GP_GPUS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

// The process's own objective, and the one that others set. The latter counts first.
static struct {
	pthread_mutex_t lock;          // of all; engines' locks are taken within it
	struct gp_wish own, told, now; // now: the latest that came into force
	bool is_told, allowed;
	double min_slot_ns, max_slot_ns; // where first_ns allows them
	uint32_t over_steps;
} wishes = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool is_none(const struct gp_wish *w) { return w->slowdown == 0 && w->step_ns == 0 && w->first_ns == 0; }

static bool are_same(const struct gp_wish *a, const struct gp_wish *b)
{
	return a->slowdown == b->slowdown && a->step_ns == b->step_ns && a->first_ns == b->first_ns &&
	       a->percentile == b->percentile;
}

static bool makes_sense(const struct gp_wish *w)
{
	static const double LEAST_NS = 1e5, MOST_NS = 60e9, MOST_SLOWDOWN = 20; // as in ../../configs/objective.go
	bool steps = (w->slowdown >= 1 && w->slowdown <= MOST_SLOWDOWN && w->step_ns == 0) ||
		     (w->slowdown == 0 && w->step_ns >= LEAST_NS && w->step_ns <= MOST_NS);
	return is_none(w) || (steps && (w->first_ns == 0 || (w->first_ns >= LEAST_NS && w->first_ns <= MOST_NS)));
}

static const struct gp_wish *in_force(void)
{
	static const struct gp_wish none;
	return !wishes.allowed ? &none : wishes.is_told ? &wishes.told : &wishes.own;
}

// Steps are looked for from now on: earlier results say nothing. The lock is held.
static void begin(struct gp_engine *e)
{
	gp_law_begin(&e->law);
	e->done = e->step = e->results;
	e->counted = e->launches;
	e->pass_from_ns = e->from_ns = e->lent_ns = e->stepped_ns = e->working_ns = e->working_from_ns =
		e->off_until_ns = 0;
	e->before.launches = e->before.own_ns = e->before.bytes = 0;
	e->passes = e->parts = e->takes_large = 0;
	e->knows = 0;
	e->unlooked = false;
	e->in_a_row = e->late = e->shared = 0;
	e->usual_in_a_row = 0;
}

// The objective is no more. A step that ends meanwhile sees that under the lock.
static void end(struct gp_gpu *g)
{
	struct gp_engine *e = engine_of(g);
	pthread_mutex_lock(&e->lock);
	struct gp_objective_counters *n = counters(g);
	if (n)
		n->state = n->objective_ns = 0;
	if (g->segment)
		gp_own_line(g)->credit_us = 0;
	pthread_mutex_unlock(&e->lock);
	gp_engine_cut(g, GP_CUT_CHANGED); // a step that ended before has made its slot due by now
}

// Puts the wish that counts in force. wishes.lock is held.
static void apply(void)
{
	const struct gp_wish *w = in_force();
	bool was = gp_objective_on;

	if (is_none(w)) {
		gp_objective_on = 0;
		for (int k = 0; was && k < GP_GPUS && gp_gpu[k].known; k++)
			end(&gp_gpu[k]);
		return;
	}
	if (was && are_same(w, &wishes.now)) // credit and means stay
		return;
	wishes.now = *w;
	double most = wishes.max_slot_ns;
	if (w->first_ns > 0 && w->first_ns / 6 < most)
		most = w->first_ns / 6;
	const struct gp_law_settings settings = {
		.slowdown = w->slowdown,
		.step_ns = w->step_ns,
		.percentile = w->percentile,
		.min_slot_ns = wishes.min_slot_ns < most ? wishes.min_slot_ns : most,
		.max_slot_ns = most,
		.over_steps = wishes.over_steps,
	};
	for (int k = 0; k < GP_GPUS; k++) {
		struct gp_engine *e = &gp_engines[k];
		pthread_mutex_lock(&e->lock);
		if (!was)
			begin(e);
		e->settings = settings;
		e->first_ns = (uint64_t)w->first_ns;
		e->law.over_steps = 0; // credit and means are another objective's
		gp_law_idle(&e->law);
		pthread_mutex_unlock(&e->lock);
		if (was && gp_gpu[k].known)
			gp_engine_cut(&gp_gpu[k], GP_CUT_CHANGED); // the credit of the objective before paid for it
	}
	gp_objective_on = 1;
}

void gp_objective_begin(const struct gp_wish *own, double min_slot_ns, double max_slot_ns, uint32_t over_steps)
{
	pthread_mutex_lock(&wishes.lock);
	wishes.own = *own;
	wishes.min_slot_ns = min_slot_ns;
	wishes.max_slot_ns = max_slot_ns;
	wishes.over_steps = over_steps;
	apply();
	pthread_mutex_unlock(&wishes.lock);
}

void gp_objective_allow(bool allowed)
{
	pthread_mutex_lock(&wishes.lock);
	if (wishes.allowed != allowed) {
		wishes.allowed = allowed;
		apply();
	}
	pthread_mutex_unlock(&wishes.lock);
}

bool gp_objective_set(double slowdown, double step_ns, double first_ns)
{
	pthread_mutex_lock(&wishes.lock);
	struct gp_wish wish = {slowdown, step_ns, first_ns, wishes.own.percentile};
	bool counts = wishes.allowed && !wishes.is_told && makes_sense(&wish);
	if (counts) {
		wishes.own = wish;
		apply();
	}
	pthread_mutex_unlock(&wishes.lock);
	return counts;
}

void gp_objective_tell(const struct gp_wish *told)
{
	pthread_mutex_lock(&wishes.lock);
	wishes.is_told = told && makes_sense(told);
	if (wishes.is_told)
		wishes.told = *told;
	apply();
	pthread_mutex_unlock(&wishes.lock);
}

bool gp_objective_read(struct gp_wish *wish)
{
	pthread_mutex_lock(&wishes.lock);
	*wish = *in_force();
	pthread_mutex_unlock(&wishes.lock);
	return !is_none(wish);
}
