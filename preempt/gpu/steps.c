// steps.c - finds where the steps of an engine end.
#define _GNU_SOURCE
#include "preempt/gpu/engine.h"

enum {
	FURTHER = 8, // a result with less than this part of a step's launches belongs to that step
	PASSES = 3,  // without most sequences of a batch, one after the other; then the batch is smaller
	PARTS = 16,  // of a batch that is split, behind its first one
};

// A result that comes later is a step's own: steps of decode take longer. One that was lent in also waits for switches and its program.
static const uint64_t FURTHER_NS = 1000 * 1000, FURTHER_LENT_NS = 3000 * 1000;
// A copy of more bytes is no result of a step. Some programs copy a word for each entry of their vocabulary, for each sequence; keys and values
// that are copied to the host have as many bytes. So larger copies count only where smaller ones ended no step in half the time after which
// there is none.
static const uint64_t RESULT_BYTES = 64 * 1024, LARGE_RESULT_BYTES = 64 * 1024 * 1024;
// An engine that copies such results may split a batch. It waits for one part, with its result, and copies the input of the next one at once:
// nobody looked at the result, and the step goes on. That tells nothing of programs which never look at results for long. Of llama.cpp's server
// on an H200 none of 4064 gaps was between 45 and 150 us.
static const uint64_t AT_ONCE_NS = 60 * 1000, LOOKS_NS = 4 * AT_ONCE_NS;
// Lower levels may still run behind a slot beside the window: blocks that end, and kernels that no stop reaches. No step is learnt from
// meanwhile.
static const uint64_t SETTLE_NS = 10 * 1000 * 1000;
static const uint64_t STEPLESS_NS = 2ull * 1000 * 1000 * 1000; // an open window without a step's end has none

static void say(struct gp_gpu *g, enum gp_objective_state state)
{
	struct gp_objective_counters *n = counters(g);
	if (n && n->state != state)
		n->state = state;
}

// All that a launch needs while no slot is due: each further function costs the program the cache lines of its code.
enum gp_lending gp_step_launch(struct gp_context *c, const struct gp_operation *o)
{
	struct gp_engine *e = engine_of(c->gpu);
	bool graph = o->work == GP_GRAPH;

	if (!graph && __builtin_expect(!gp_name_is_known(o->launch.function), 0))
		gp_rank_kernel(o->launch.function);
	if (!e->first)
		e->first = graph ? (uintptr_t)o->graph : (uintptr_t)o->launch.function;
	if (graph && !e->graphs)
		e->graphs = 1;
	__atomic_fetch_add((uint64_t *)&e->launches, 1, __ATOMIC_RELAXED);
	uint32_t slot = e->slot;
	if (__builtin_expect(slot != DUE && (slot != SHARED || !e->held_ns), 1))
		return GP_LENDS_NOT;
	return gp_engine_lends(c, o, slot);
}

void gp_step_submits(struct gp_context *c)
{
	struct gp_engine *e = engine_of(c->gpu);
	uintptr_t self = e->knows;

	if (!self || self != (uintptr_t)pthread_self())
		return;
	pthread_mutex_lock(&e->lock);
	if (e->knows == self) {
		uint64_t now = gp_now_ns(), looked = now > e->knew_ns ? now - e->knew_ns : 0;
		e->knows = 0;
		e->unlooked = looked < AT_ONCE_NS && e->looks_ns >= LOOKS_NS;
		if (looked > e->looks_ns) // up three times as fast as down, so that a quarter is above it
			e->looks_ns += e->looks_ns * 3 / 16 + 1000;
		else
			e->looks_ns -= e->looks_ns / 16;
	}
	pthread_mutex_unlock(&e->lock);
}

// A result was submitted. The lock is held.
static uint64_t submit(struct gp_engine *e, uint64_t bytes)
{
	struct result *r = &e->result[++e->results % RESULTS];
	*r = (struct result){e->results, e->launches, __atomic_exchange_n((uint64_t *)&e->first, 0, __ATOMIC_RELAXED),
			     bytes, __atomic_exchange_n((uint32_t *)&e->graphs, 0, __ATOMIC_RELAXED)};
	return r->number;
}

uint64_t gp_step_result_bytes(const struct gp_gpu *g)
{
	return engine_of(g)->takes_large ? LARGE_RESULT_BYTES : RESULT_BYTES;
}

void gp_step_copied(struct gp_context *c, struct gp_stream *stream, uint64_t sequence, uint64_t bytes)
{
	struct gp_engine *e = engine_of(c->gpu);
	if (stream == &c->others) // streams that found no place share one
		return;
	pthread_mutex_lock(&e->lock);
	uint64_t number = submit(e, bytes);
	pthread_mutex_unlock(&e->lock);
	stream->result = number;
	stream->result_at = sequence;
}

// The lock is held. event: NULL forgets what the entry has.
static void remember(struct gp_engine *e, int at, CUevent event, uint64_t result)
{
	e->remembered += (event != NULL) - (e->event[at].event != NULL);
	e->event[at].event = event;
	e->event[at].result = result;
}

void gp_step_recorded(struct gp_context *c, struct gp_stream *stream, CUevent event)
{
	struct gp_engine *e = engine_of(c->gpu);
	uint64_t result = stream->result;
	int at = -1;

	if (result <= e->done && !e->remembered) // most records stand behind no result
		return;
	pthread_mutex_lock(&e->lock);
	bool open = result > e->done;
	for (int i = 0; i < EVENTS && at < 0; i++)
		if (e->event[i].event == event)
			at = i;
	if (at < 0 && open)
		at = (int)(e->event_at++ % EVENTS);
	if (at >= 0) // the event stands for its latest record only
		remember(e, at, open ? event : NULL, result);
	pthread_mutex_unlock(&e->lock);
}

// The number of the result that an event stands behind; 0: none. The lock is held.
static uint64_t take_event(struct gp_engine *e, CUevent event)
{
	for (int i = 0; i < EVENTS; i++)
		if (e->event[i].event == event) {
			uint64_t result = e->event[i].result;
			remember(e, i, NULL, 0);
			return result;
		}
	return 0;
}

void gp_step_event_forget(CUevent event)
{
	for (int k = 0; k < GP_GPUS && gp_gpu[k].known; k++) {
		if (!gp_engines[k].remembered)
			continue;
		pthread_mutex_lock(&gp_engines[k].lock);
		take_event(&gp_engines[k], event);
		pthread_mutex_unlock(&gp_engines[k].lock);
	}
}

// Of the step under way, without what was lent in it. The lock is held.
static uint64_t own_ns(const struct gp_engine *e, uint64_t now)
{
	uint64_t period = now > e->from_ns ? now - e->from_ns : 0;
	return period > e->lent_ns ? period - e->lent_ns : 0;
}

// The same since the window opened, where that was later.
static uint64_t own_open_ns(const struct gp_engine *e, uint64_t now)
{
	if (e->opened.at_ns <= e->from_ns)
		return own_ns(e, now);
	uint64_t period = now > e->opened.at_ns ? now - e->opened.at_ns : 0, lent = e->lent_ns - e->opened.lent_ns;
	return period > lent ? period - lent : 0;
}

// Whether graphs were launched between the results that ended the step before and this one. A step may copy several results, of which the
// program waits for the last. The lock is held.
static bool has_graphs(const struct gp_engine *e, const struct result *r)
{
	bool graphs = false;
	for (uint64_t number = r->number; number > e->step && e->result[number % RESULTS].number == number; number--)
		graphs |= e->result[number % RESULTS].graphs;
	return graphs;
}

// A step can have several results: speculative decoding copies drafts and tokens, a loop over tokens also asks whether all sequences
// have ended. A further one comes soon, and with few launches beside those of the step before. Neither alone tells: a graph is one
// launch, and a step of prefill has a hundred times as many as one of decode behind it. A program that looks at its next request has few
// kernels, and time on the CPU before them: without graphs only the time since the window opened counts.
static bool is_further(const struct gp_engine *e, const struct result *r, uint64_t launches, uint64_t now)
{
	// Beside lower levels a launch may have waited while the GPU was still at the step before: that was no time of this one's own.
	uint64_t own = e->beside ? now - e->from_ns : has_graphs(e, r) ? own_ns(e, now) : own_open_ns(e, now);
	return own < (e->lent_ns || e->beside ? FURTHER_LENT_NS : FURTHER_NS) && own * 2 < e->before.own_ns &&
	       launches * FURTHER < e->before.launches;
}

// Some engines run prefill as a pass of its own, whose result has a word for each of the new sequences only. The others wait meanwhile, so their
// step goes on until they have a result too: the time between the tokens of a client is what the objective is for. Such a pass has many
// more launches than the graph of decode before it; a step whose result is smaller for another reason, such as drafts, has not.
static bool is_pass_of_few(const struct gp_engine *e, const struct result *r, uint64_t launches)
{
	return r->bytes && r->bytes * 2 < e->before.bytes && launches >= 2 * e->before.launches && e->passes < PASSES;
}

static void count(struct gp_gpu *g, struct gp_engine *e, bool known, bool over, uint64_t period)
{
	struct gp_objective_counters *n = counters(g);
	if (!n)
		return;
	gp_count(&n->steps, 1);
	gp_count(&n->step_ns, period);
	gp_count(&n->means, known);
	gp_count(&n->over, over);
	n->objective_ns = (uint64_t)e->law.objective_ns;
	n->mean_ns = e->law.periods ? (uint64_t)(e->law.sum_ns / e->law.periods) : 0;
	n->unlent_ns = (uint64_t)e->law.usual_ns;
	n->theta_ppm = (uint64_t)(e->law.theta * 1e6);
	n->credit_ns = (uint64_t)(int64_t)e->law.credit_ns;
}

// A step or a pass has ended: the first result of a request that arrived before it began. The lock is held.
static void count_request(struct gp_gpu *g, struct gp_engine *e, uint64_t now)
{
	struct gp_objective_counters *n = counters(g);
	uint64_t arrived = e->arrived_ns;
	if (n && arrived && arrived <= e->pass_from_ns &&
	    __atomic_exchange_n((uint64_t *)&e->arrived_ns, 0, __ATOMIC_ACQ_REL)) {
		gp_count(&n->requests, 1);
		gp_count(&n->late_requests, e->first_ns && now - arrived > e->first_ns);
	}
	e->pass_from_ns = now;
}

// A step ended: how long the process works at one, pauses between them apart. The lock is held.
static void work(struct gp_engine *e, uint64_t now)
{
	if (e->working_from_ns) {
		uint64_t worked = now > e->working_from_ns ? now - e->working_from_ns : 0;
		worked = worked > e->lent_ns ? worked - e->lent_ns : 0;
		e->working_ns = e->working_ns ? e->working_ns + worked / 16 - e->working_ns / 16 : worked;
	}
	e->working_from_ns = now;
	e->in_a_row++;
}

// A step ended. The lock is held.
static void end_step(struct gp_gpu *g, struct gp_engine *e, const struct result *r, uint64_t launches, uint64_t now)
{
	uint64_t period = now > e->from_ns ? now - e->from_ns : 0;
	const struct result *begun = &e->result[(e->step + 1) % RESULTS];
	uint64_t first = begun->number == e->step + 1 ? begun->first : r->first;
	uint64_t key = (first ^ (64 - (uint64_t)__builtin_clzll(launches | 1))) * 1099511628211ull;

	e->before.launches = launches;
	e->before.bytes = r->bytes;
	e->passes = e->parts = 0;
	e->before.own_ns = own_ns(e, now);
	work(e, now);
	e->uses_graphs = has_graphs(e, r);
	e->counted = r->launches;
	e->step = r->number;
	e->stepped_ns = now;
	if (!gp_objective_on) // it was on as the program's call began
		return;
	bool shared = is_shared(e->slot);
	e->beside |= shared || (e->ended_ns && e->from_ns < e->ended_ns + SETTLE_NS);
	if (e->from_ns) {
		double promised = e->slot == NONE || shared ? 0 : (double)e->slot_ns; // a later step pays for it
		double own = e->beside ? -1 : (double)e->before.own_ns;
		// Steps of a kind that is not known, or that takes another time than before, are made alone until it is.
		bool known = gp_law_knows(&e->law, key, own);
		e->shared = !known ? MOST_SHARED : e->beside ? e->shared + 1 : 0;
		bool over = gp_law_step(&e->law, &e->settings, now, (double)period, own, promised, key,
					(double)gp_switch_ns(g));
		count(g, e, e->law.periods == e->settings.over_steps, over, period);
		count_request(g, e, now);
		say(g, gp_engine_state(g, e, now));
	}
	e->lent_ns = 0;
	e->from_ns = now;
	e->beside = shared;
	gp_engine_consider(g, e, now);
}

// Another part of a batch has ended, whose first part ended the step. The lock is held.
static void part(struct gp_gpu *g, struct gp_engine *e, uint64_t now)
{
	e->stepped_ns = now;
	count_request(g, e, now);
}

// A pass has ended, and its step goes on. The lock is held.
static void pass(struct gp_gpu *g, struct gp_engine *e, uint64_t now)
{
	struct gp_objective_counters *n = counters(g);
	if (n)
		gp_count(&n->steps, 1);
	e->passes++;
	part(g, e, now);
}

// The program knows of a result. The lock is held.
static void know(struct gp_gpu *g, struct gp_engine *e, uint64_t number)
{
	if (number <= e->done)
		return;
	e->done = number;
	const struct result *r = &e->result[number % RESULTS];
	uint64_t launches = r->launches - e->counted, now = gp_now_ns();
	bool unlooked = e->unlooked;
	e->knows = (uintptr_t)pthread_self();
	e->knew_ns = now;
	e->unlooked = false;
	if (r->number != number || !launches || is_further(e, r, launches, now))
		return;
	if (r->bytes <= RESULT_BYTES && e->takes_large) { // there are small results after all
		e->takes_large = 0;
		e->before.bytes = 0;
	}
	if (unlooked && r->bytes > RESULT_BYTES && e->parts++ < PARTS)
		part(g, e, now);
	else if (is_pass_of_few(e, r, launches))
		pass(g, e, now);
	else
		end_step(g, e, r, launches, now);
}

static void done(struct gp_gpu *g, uint64_t number)
{
	struct gp_engine *e = engine_of(g);
	pthread_mutex_lock(&e->lock);
	if (!e->said)
		know(g, e, number);
	pthread_mutex_unlock(&e->lock);
}

void gp_step_event_done(struct gp_context *c, CUevent event)
{
	struct gp_engine *e = engine_of(c->gpu);
	if (!e->remembered)
		return;
	pthread_mutex_lock(&e->lock);
	uint64_t number = take_event(e, event);
	pthread_mutex_unlock(&e->lock);
	if (number)
		done(c->gpu, number);
}

void gp_step_stream_done(struct gp_context *c, struct gp_stream *stream, uint64_t sequence)
{
	if (stream->result_at && stream->result_at <= sequence)
		done(c->gpu, stream->result);
}

void gp_step_all_done(struct gp_context *c, uint64_t results) { done(c->gpu, results); }

uint64_t gp_step_results(struct gp_context *c)
{
	struct gp_engine *e = engine_of(c->gpu);
	pthread_mutex_lock(&e->lock);
	uint64_t results = e->results;
	pthread_mutex_unlock(&e->lock);
	return results;
}

void gp_step_said(struct gp_gpu *g)
{
	struct gp_engine *e = engine_of(g);
	pthread_mutex_lock(&e->lock);
	e->said = true;
	uint64_t number = submit(e, 0);
	const struct result *r = &e->result[number % RESULTS];
	e->done = number;
	if (r->launches != e->counted)
		end_step(g, e, r, r->launches - e->counted, gp_now_ns());
	pthread_mutex_unlock(&e->lock);
}

// A request begins after a rest, and pays for no slot; what was before it says nothing of its batch. The lock is held.
static void end_row(struct gp_engine *e)
{
	move(e, DUE, NONE);
	e->before.bytes = e->passes = 0;
	if (!e->in_a_row)
		return;
	double row = e->in_a_row < 2 * FEW_IN_A_ROW ? e->in_a_row : 2 * FEW_IN_A_ROW; // longer rows are long enough
	e->usual_in_a_row += (row - e->usual_in_a_row) / 8;
	e->in_a_row = 0;
}

void gp_objective_opens(struct gp_gpu *g, uint64_t now)
{
	struct gp_engine *e = engine_of(g);
	uint32_t slot = e->slot;
	if (slot == LENT || slot == RETURNING || slot == REOPENING) // a slot is no idle time
		return;
	pthread_mutex_lock(&e->lock);
	if (!e->law.theta)
		gp_law_begin(&e->law);
	if (now > e->closed_ns + PAUSE_NS || !e->from_ns) {
		gp_law_idle(&e->law); // credit is not kept while there is no work, debt is
		e->from_ns = e->pass_from_ns = e->stepped_ns = now;
		e->lent_ns = 0;
	}
	if (!e->working_from_ns)
		e->working_from_ns = now;
	else // nothing was under way since the window closed
		e->working_from_ns += now - latest(e->closed_ns, e->working_from_ns);
	e->opened.at_ns = now;
	e->opened.lent_ns = e->lent_ns;
	if (has_rested(e, now))
		end_row(e);
	pthread_mutex_unlock(&e->lock);
}

void gp_objective_watch(struct gp_gpu *g, uint64_t now)
{
	struct gp_engine *e = engine_of(g);
	pthread_mutex_lock(&e->lock);
	if (e->stepped_ns && !e->takes_large && now > e->stepped_ns + STEPLESS_NS / 2) {
		e->takes_large = 1;
		e->before.bytes = 0; // of a copy of another kind
	}
	if (e->stepped_ns && now > e->stepped_ns + STEPLESS_NS)
		say(g, GP_OBJECTIVE_STEPLESS);
	pthread_mutex_unlock(&e->lock);
}
