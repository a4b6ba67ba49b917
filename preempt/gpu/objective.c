// objective.c - finds where the steps of an engine end, and lends what its objective leaves.
#define _GNU_SOURCE
#include "preempt/gpu/objective.h"

#include <limits.h>
#include <string.h>

enum {
	RESULTS = 64, // result copies that are remembered; an engine has a few under way at once
	EVENTS = 64,  // events behind result copies; a further one takes the place of the oldest
	FURTHER = 8,  // a result with less than this part of a step's launches belongs to that step
	PASSES = 3,   // without most sequences of a batch, one after the other; then the batch is smaller
	// Late slots are counted by a leaky counter: each adds LATE_COSTS, each slot in time takes 1 away, and at MOST_LATE lending stops for a
	// while. So three in a row stop it, and so do more than one of 50 in the long run.
	LATE_COSTS = 50,
	MOST_LATE = 3 * LATE_COSTS,
	// Steps that follow each other without a rest. A service with one request a step has few: slack there is a lack of requests, and a
	// slot would delay the next one for nothing.
	FEW_IN_A_ROW = 8,
};

static const uint64_t MOST_DRAIN_NS = 200 * 1000 * 1000; // work that takes longer is no step: nothing is lent then
static const uint64_t LOOK_NS = 1000 * 1000;             // how often a slot looks whether lower levels still have work
static const uint64_t LATE_NS = 2000 * 1000;             // a slot that ends so much later is late
static const uint64_t OFF_NS = 60ull * 1000 * 1000 * 1000; // nothing is lent for so long after late slots
// A result that comes later is a step's own: steps of decode take longer. One that was lent in also waits for switches and its program.
static const uint64_t FURTHER_NS = 1000 * 1000, FURTHER_LENT_NS = 3000 * 1000;
// A copy of more bytes is no result of a step. Some programs copy a word for each entry of their vocabulary, for each sequence; keys and values
// that are copied to the host have as many bytes. So larger copies count only where smaller ones ended no step in half the time after which
// there is none.
static const uint64_t RESULT_BYTES = 64 * 1024, LARGE_RESULT_BYTES = 64 * 1024 * 1024;
static const uint64_t PAUSE_NS =
	20 * 1000 * 1000; // a window that opens again so soon: the engine computed on the CPU meanwhile
static const uint64_t STEPLESS_NS = 2ull * 1000 * 1000 * 1000; // an open window without a step's end has none

struct gp_objective gp_objective;

// A slot: NONE -> DUE (a step ended) -> DRAINING (the launch that it is for waits) -> LENT (the window closed) -> RETURNING (the launch
// goes on, and opens the window) -> NONE. A cut takes DUE to NONE, and DRAINING and LENT to RETURNING.
enum slot { NONE, DUE, DRAINING, LENT, RETURNING };

// Launches of a step are counted where its result copy is submitted: with asynchronous scheduling the next step is queued by then.
struct result {
	uint64_t number;   // from 1 on, as they were submitted
	uint64_t launches; // kernels and graphs ahead of it, ever
	uint64_t first;    // the first of these behind the result before
	uint64_t bytes;    // 0: the program said that a step ended
	bool graphs;       // some of these were graphs
};

static struct engine {
	// Writers: program threads, before each launch. Readers: the thread that submits a result copy, which resets first and graphs.
	_Alignas(64) _Atomic uint64_t launches, first;
	_Atomic uint32_t graphs;
	// Writers: each change of state is a compare-and-swap in move(). Readers: all, and the launch that waits on it as a futex. Two threads
	// that both took a slot would hold two launches back.
	_Alignas(64) _Atomic uint32_t slot;
	_Atomic uint32_t uses_graphs; // the latest step had graphs: a slot is for the next graph, not for a small kernel before it
	_Atomic uint32_t is_rank;     // of an engine on several GPUs
	_Atomic uint32_t takes_large; // results have up to LARGE_RESULT_BYTES
	_Atomic uint64_t slot_ns, until_ns,
		lent_at_ns;          // of the slot: length, end at the latest (0: none), when the window closed
	_Atomic uint64_t arrived_ns; // the oldest request without a result; 0: none

	pthread_mutex_t lock; // of the rest; taken within g->lock
	struct result result[RESULTS];
	uint64_t results;      // the latest that was submitted
	_Atomic uint64_t done; // the latest that the program knows of
	struct {
		CUevent event;
		uint64_t result;
	} event[EVENTS];
	// Of event[]: how many entries stand for an event. Writers: under the lock. Readers: also threads without it, which pass by when nothing they
	// could change is there. A thread sees its own records; of two that use an event at once, neither is first for the program either.
	_Atomic uint32_t remembered;
	uint32_t event_at;
	bool said;             // the program says where its steps end
	uint64_t counted;      // launches up to the end of the latest step
	uint64_t step;         // result that ended it
	uint64_t from_ns;      // the step under way began: the end of the one before, or the window's opening
	uint64_t lent_ns;      // since then
	uint64_t pass_from_ns; // or the pass under way, where a step has several
	uint64_t stepped_ns;
	struct { uint64_t launches, own_ns, bytes; } before; // the latest step
	uint32_t passes;                                     // since then, which did not end it
	// Writers: under the lock. Reader: a launch that a slot is due for, which tolerates the values of one step before.
	_Atomic uint64_t working_ns; // mean time of a step from its first launch on, over about 16 steps
	_Atomic uint64_t closed_ns;  // the window closed, not for a slot
	struct {
		uint64_t at_ns, lent_ns; // the latter: in the step before that
	} opened;                        // the window, not behind a slot
	uint64_t working_from_ns;        // the step under way: its first launch, or the end of the one before
	uint32_t in_a_row;               // steps since the latest rest
	double usual_in_a_row;           // between rests, over about 8
	uint32_t late;
	uint64_t off_until_ns;
	uint32_t set; // gp_objective.set as of the latest step
	struct gp_law law;
} engines[GP_GPUS] = {[0 ... GP_GPUS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

static struct engine *engine_of(const struct gp_gpu *g) { return &engines[g - gp_gpu]; }

static bool move(struct engine *e, uint32_t from, uint32_t to)
{
	return __atomic_compare_exchange_n((uint32_t *)&e->slot, &from, to, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static struct gp_objective_counters *counters(struct gp_gpu *g)
{
	struct gp_slot *slot = gp_own_slot(g);
	return slot ? &slot->objective : NULL;
}

static void say(struct gp_gpu *g, enum gp_objective_state state)
{
	struct gp_objective_counters *n = counters(g);
	if (n && n->state != state)
		n->state = state;
}

void gp_step_launch(struct gp_context *c, const struct gp_operation *o)
{
	struct engine *e = engine_of(c->gpu);
	bool graph = o->work == GP_GRAPH;

	if (!e->first)
		e->first = graph ? (uintptr_t)o->graph : (uintptr_t)o->launch.function;
	if (graph && !e->graphs)
		e->graphs = 1;
	__atomic_fetch_add((uint64_t *)&e->launches, 1, __ATOMIC_RELAXED);
}

// Kernels of which all ranks of an engine wait for each other: NCCL's, and those of engines of their own. A slot of another rank is then
// part of this one's step, and cannot be told from what the step takes alone.
void gp_step_first_launch(struct gp_context *c, const char *kernel)
{
	static const char *const together[] = {"allreduce", "all_reduce", "AllReduce", "cross_device_reduce"};
	bool is_rank = !strncmp(kernel, "nccl", 4);
	for (size_t i = 0; i < sizeof together / sizeof *together; i++)
		is_rank |= strstr(kernel, together[i]) != NULL;
	if (is_rank)
		engine_of(c->gpu)->is_rank = 1;
}

// A result was submitted. The lock is held.
static uint64_t submit(struct engine *e, uint64_t bytes)
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
	struct engine *e = engine_of(c->gpu);
	if (stream == &c->others) // streams that found no place share one
		return;
	pthread_mutex_lock(&e->lock);
	uint64_t number = submit(e, bytes);
	pthread_mutex_unlock(&e->lock);
	stream->result = number;
	stream->result_at = sequence;
}

// The lock is held. event: NULL forgets what the entry has.
static void remember(struct engine *e, int at, CUevent event, uint64_t result)
{
	e->remembered += (event != NULL) - (e->event[at].event != NULL);
	e->event[at].event = event;
	e->event[at].result = result;
}

void gp_step_recorded(struct gp_context *c, struct gp_stream *stream, CUevent event)
{
	struct engine *e = engine_of(c->gpu);
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
static uint64_t take_event(struct engine *e, CUevent event)
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
		if (!engines[k].remembered)
			continue;
		pthread_mutex_lock(&engines[k].lock);
		take_event(&engines[k], event);
		pthread_mutex_unlock(&engines[k].lock);
	}
}

// Of the step under way, without what was lent in it. The lock is held.
static uint64_t own_ns(const struct engine *e, uint64_t now)
{
	uint64_t period = now > e->from_ns ? now - e->from_ns : 0;
	return period > e->lent_ns ? period - e->lent_ns : 0;
}

// The same since the window opened, where that was later.
static uint64_t own_open_ns(const struct engine *e, uint64_t now)
{
	if (e->opened.at_ns <= e->from_ns)
		return own_ns(e, now);
	uint64_t period = now > e->opened.at_ns ? now - e->opened.at_ns : 0, lent = e->lent_ns - e->opened.lent_ns;
	return period > lent ? period - lent : 0;
}

// Whether graphs were launched between the results that ended the step before and this one. A step may copy several results, of which the
// program waits for the last. The lock is held.
static bool has_graphs(const struct engine *e, const struct result *r)
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
static bool is_further(const struct engine *e, const struct result *r, uint64_t launches, uint64_t now)
{
	uint64_t own = has_graphs(e, r) ? own_ns(e, now) : own_open_ns(e, now);
	return own < (e->lent_ns ? FURTHER_LENT_NS : FURTHER_NS) && own * 2 < e->before.own_ns &&
	       launches * FURTHER < e->before.launches;
}

// Some engines run prefill as a pass of its own, whose result has a word for each of the new sequences only. The others wait meanwhile, so their
// step goes on until they have a result too: the time between the tokens of a client is what the objective is for. Such a pass has many
// more launches than the graph of decode before it; a step whose result is smaller for another reason, such as drafts, has not.
static bool is_pass_of_few(const struct engine *e, const struct result *r, uint64_t launches)
{
	return r->bytes && r->bytes * 2 < e->before.bytes && launches >= 2 * e->before.launches && e->passes < PASSES;
}

static bool is_wanted(struct gp_gpu *g)
{
	struct gp_segment *s = g->segment;
	return s && g->lower_peers && (gp_any_busy(s, g->lower) || gp_any_uncounted(s, g->lower));
}

// How much others of this level or above, whose windows are open, let this process lend: lower levels run only while all of them lend. Their words
// are untrusted: a slot is never longer than this process's own credit. until_ns: the end of a slot of theirs that it may join; 0: none.
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
static enum gp_objective_state state_of(const struct gp_gpu *g, const struct engine *e, uint64_t now)
{
	if (g->mps)
		return GP_OBJECTIVE_NONE;
	if (e->is_rank && gp_objective.law.slowdown > 0)
		return GP_OBJECTIVE_RANKS;
	if (!gp_law_attainable(&e->law))
		return GP_OBJECTIVE_UNATTAINABLE;
	if (now < e->off_until_ns)
		return GP_OBJECTIVE_LATE;
	if (e->in_a_row >= FEW_IN_A_ROW || e->usual_in_a_row >= FEW_IN_A_ROW)
		return GP_OBJECTIVE_LENDS;
	return e->usual_in_a_row > 0 ? GP_OBJECTIVE_RESTS : GP_OBJECTIVE_NONE; // before the first rest that is not known
}

// A slot is due if credit pays for it. The lock is held.
static void consider(struct gp_gpu *g, struct engine *e, uint64_t now)
{
	const struct gp_law_settings *law = &gp_objective.law;
	double slot = gp_law_slot(&e->law, law, (double)gp_switch_ns(g));
	uint64_t until;

	if (g->segment)
		gp_own_line(g)->credit_us = (uint32_t)(slot / 1e3);
	if (slot <= 0 || e->slot != NONE || state_of(g, e, now) != GP_OBJECTIVE_LENDS || gp_capturing() || !is_wanted(g))
		return;
	slot = others_lend(g, now, slot, &until);
	if (slot < law->min_slot_ns && !(until && slot > 0))
		return;
	e->slot_ns = (uint64_t)slot;
	e->until_ns = until;
	move(e, NONE, DUE);
}

static void count(struct gp_gpu *g, struct engine *e, bool known, bool over, uint64_t period)
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
	n->theta_ppm = (uint64_t)(e->law.theta * 1e6);
	n->credit_ns = (uint64_t)(int64_t)e->law.credit_ns;
}

// A step or a pass has ended: the first result of a request that arrived before it began. The lock is held.
static void count_request(struct gp_gpu *g, struct engine *e, uint64_t now)
{
	struct gp_objective_counters *n = counters(g);
	uint64_t arrived = e->arrived_ns;
	if (n && arrived && arrived <= e->pass_from_ns &&
	    __atomic_exchange_n((uint64_t *)&e->arrived_ns, 0, __ATOMIC_ACQ_REL)) {
		gp_count(&n->requests, 1);
		gp_count(&n->late_requests, gp_objective.first_ns > 0 && (double)(now - arrived) > gp_objective.first_ns);
	}
	e->pass_from_ns = now;
}

// A step ended: how long the process works at one, pauses between them apart. The lock is held.
static void work(struct engine *e, uint64_t now)
{
	if (e->working_from_ns) {
		uint64_t worked = now > e->working_from_ns ? now - e->working_from_ns : 0;
		worked = worked > e->lent_ns ? worked - e->lent_ns : 0;
		e->working_ns = e->working_ns ? e->working_ns + worked / 16 - e->working_ns / 16 : worked;
	}
	e->working_from_ns = now;
	e->in_a_row++;
}

// The process had no work for longer than it works at a step.
static bool has_rested(const struct engine *e, uint64_t now)
{
	return e->working_ns && now > e->closed_ns + e->working_ns;
}

// A step ended. The lock is held.
static void end_step(struct gp_gpu *g, struct engine *e, const struct result *r, uint64_t launches, uint64_t now)
{
	uint64_t period = now > e->from_ns ? now - e->from_ns : 0;
	const struct result *begun = &e->result[(e->step + 1) % RESULTS];
	uint64_t first = begun->number == e->step + 1 ? begun->first : r->first;
	uint64_t key = (first ^ (64 - (uint64_t)__builtin_clzll(launches | 1))) * 1099511628211ull;

	e->before.launches = launches;
	e->before.bytes = r->bytes;
	e->passes = 0;
	e->before.own_ns = own_ns(e, now);
	work(e, now);
	e->uses_graphs = has_graphs(e, r);
	e->counted = r->launches;
	e->step = r->number;
	e->stepped_ns = now;
	if (!gp_objective.on) // it was on as the program's call began
		return;
	if (e->set != gp_objective.set) { // credit and means are another objective's
		e->set = gp_objective.set;
		e->law.over_steps = 0;
		gp_law_idle(&e->law);
	}
	if (e->from_ns) {
		double promised = e->slot == NONE ? 0 : (double)e->slot_ns; // a later step pays for it
		bool over = gp_law_step(&e->law, &gp_objective.law, now, (double)period, (double)e->lent_ns, promised,
					key, (double)gp_switch_ns(g));
		count(g, e, e->law.periods == gp_objective.law.over_steps, over, period);
		count_request(g, e, now);
		say(g, state_of(g, e, now));
	}
	e->lent_ns = 0;
	e->from_ns = now;
	consider(g, e, now);
}

// A pass has ended, and its step goes on. The lock is held.
static void pass(struct gp_gpu *g, struct engine *e, uint64_t now)
{
	e->passes++;
	e->stepped_ns = now;
	struct gp_objective_counters *n = counters(g);
	if (n)
		gp_count(&n->steps, 1);
	count_request(g, e, now);
}

// The program knows of a result. The lock is held.
static void know(struct gp_gpu *g, struct engine *e, uint64_t number)
{
	if (number <= e->done)
		return;
	e->done = number;
	const struct result *r = &e->result[number % RESULTS];
	uint64_t launches = r->launches - e->counted, now = gp_now_ns();
	if (r->number != number || !launches || is_further(e, r, launches, now))
		return;
	if (r->bytes <= RESULT_BYTES && e->takes_large) { // there are small results after all
		e->takes_large = 0;
		e->before.bytes = 0;
	}
	if (is_pass_of_few(e, r, launches))
		pass(g, e, now);
	else
		end_step(g, e, r, launches, now);
}

static void done(struct gp_gpu *g, uint64_t number)
{
	struct engine *e = engine_of(g);
	pthread_mutex_lock(&e->lock);
	if (!e->said)
		know(g, e, number);
	pthread_mutex_unlock(&e->lock);
}

void gp_step_event_done(struct gp_context *c, CUevent event)
{
	struct engine *e = engine_of(c->gpu);
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
	struct engine *e = engine_of(c->gpu);
	pthread_mutex_lock(&e->lock);
	uint64_t results = e->results;
	pthread_mutex_unlock(&e->lock);
	return results;
}

void gp_step_said(struct gp_gpu *g)
{
	struct engine *e = engine_of(g);
	pthread_mutex_lock(&e->lock);
	e->said = true;
	uint64_t number = submit(e, 0);
	const struct result *r = &e->result[number % RESULTS];
	e->done = number;
	if (r->launches != e->counted)
		end_step(g, e, r, r->launches - e->counted, gp_now_ns());
	pthread_mutex_unlock(&e->lock);
}

static uint64_t latest(uint64_t a, uint64_t b) { return a > b ? a : b; }

// A request begins after a rest, and pays for no slot; what was before it says nothing of its batch. The lock is held.
static void end_row(struct engine *e)
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
	struct engine *e = engine_of(g);
	uint32_t slot = e->slot;
	if (slot == LENT || slot == RETURNING) // a slot is no idle time
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

static void wake(struct engine *e) { gp_futex_wake(&e->slot, INT_MAX, false); }

// The watcher closed the window since a launch waits, or since the program has no work.
void gp_objective_closes(struct gp_gpu *g, uint64_t now)
{
	struct engine *e = engine_of(g);
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
	if (e->slot == LENT || e->slot == RETURNING)
		return;
	pthread_mutex_lock(&e->lock);
	e->closed_ns = now;
	if (g->segment)
		gp_own_line(g)->credit_us = 0;
	pthread_mutex_unlock(&e->lock);
}

void gp_objective_watch(struct gp_gpu *g, uint64_t now)
{
	struct engine *e = engine_of(g);
	pthread_mutex_lock(&e->lock);
	if (e->stepped_ns && !e->takes_large && now > e->stepped_ns + STEPLESS_NS / 2) {
		e->takes_large = 1;
		e->before.bytes = 0; // of a copy of another kind
	}
	if (e->stepped_ns && now > e->stepped_ns + STEPLESS_NS)
		say(g, GP_OBJECTIVE_STEPLESS);
	pthread_mutex_unlock(&e->lock);
}

bool gp_lends(struct gp_context *c, const struct gp_operation *o)
{
	struct engine *e = engine_of(c->gpu);
	if (__builtin_expect(e->slot != DUE, 1))
		return false;
	if (!gp_is_open(c) && has_rested(e, gp_now_ns())) { // the launch begins a request
		move(e, DUE, NONE);
		return false;
	}
	return (o->work == GP_GRAPH || !e->uses_graphs) && move(e, DUE, DRAINING);
}

bool gp_lend_drains(const struct gp_gpu *g) { return engine_of(g)->slot == DRAINING; }

bool gp_lent(const struct gp_gpu *g) { return engine_of(g)->slot == LENT; }

static void cut(struct gp_gpu *g, enum gp_slot_cut why)
{
	struct engine *e = engine_of(g);
	// In the order in which a slot goes through its states: it cannot slip by.
	if (move(e, DUE, NONE) || !(move(e, DRAINING, RETURNING) || move(e, LENT, RETURNING)))
		return;
	struct gp_objective_counters *n = counters(g);
	if (n)
		gp_count(&n->cut[why], 1);
	wake(e);
}

void gp_lend_request(uint64_t now)
{
	for (int k = 0; k < GP_GPUS && gp_gpu[k].known; k++) {
		uint64_t none = 0;
		__atomic_compare_exchange_n((uint64_t *)&engines[k].arrived_ns, &none, now, false, __ATOMIC_ACQ_REL,
					    __ATOMIC_RELAXED);
		if (gp_objective.first_ns > 0)
			cut(&gp_gpu[k], GP_CUT_REQUEST);
	}
}

void gp_lend_capture(void)
{
	for (int k = 0; k < GP_GPUS && gp_gpu[k].known; k++)
		cut(&gp_gpu[k], GP_CUT_CAPTURE);
}

// The process's own objective, and the one that others set. The latter counts first.
static struct {
	pthread_mutex_t lock; // of all; engines' locks are taken within it
	struct gp_wish own, told;
	bool is_told, allowed;
	double min_slot_ns, max_slot_ns; // where first_ns allows them
} wishes = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool is_none(const struct gp_wish *w) { return w->slowdown == 0 && w->step_ns == 0 && w->first_ns == 0; }

static bool makes_sense(const struct gp_wish *w)
{
	static const double MOST_NS = 60e9, MOST_SLOWDOWN = 20;
	bool steps = (w->slowdown >= 1 && w->slowdown <= MOST_SLOWDOWN && w->step_ns == 0) ||
		     (w->slowdown == 0 && w->step_ns > 0 && w->step_ns <= MOST_NS);
	return is_none(w) || (steps && w->first_ns >= 0 && w->first_ns <= MOST_NS);
}

static const struct gp_wish *in_force(void)
{
	static const struct gp_wish none;
	return !wishes.allowed ? &none : wishes.is_told ? &wishes.told : &wishes.own;
}

// Steps are looked for from now on: what was seen before says nothing.
static void begin(struct engine *e)
{
	pthread_mutex_lock(&e->lock);
	gp_law_begin(&e->law);
	e->done = e->step = e->results;
	e->counted = e->launches;
	e->pass_from_ns = e->from_ns = e->lent_ns = e->stepped_ns = e->working_ns = e->working_from_ns =
		e->off_until_ns = 0;
	e->before.launches = e->before.own_ns = e->before.bytes = 0;
	e->passes = e->takes_large = 0;
	e->in_a_row = e->late = 0;
	e->usual_in_a_row = 0;
	pthread_mutex_unlock(&e->lock);
}

// The objective is no more. A step that ends meanwhile sees that under the lock.
static void end(struct gp_gpu *g)
{
	struct engine *e = engine_of(g);
	pthread_mutex_lock(&e->lock);
	struct gp_objective_counters *n = counters(g);
	if (n)
		n->state = n->objective_ns = 0;
	pthread_mutex_unlock(&e->lock);
	cut(g, GP_CUT_CHANGED); // a step that ended before has made its slot due by now
}

// Puts the wish that counts in force. wishes.lock is held.
static void apply(void)
{
	const struct gp_wish *w = in_force();
	struct gp_law_settings *law = &gp_objective.law;
	bool was = gp_objective.on;

	if (is_none(w)) {
		gp_objective.on = 0;
		for (int k = 0; was && k < GP_GPUS && gp_gpu[k].known; k++)
			end(&gp_gpu[k]);
		return;
	}
	double most = wishes.max_slot_ns;
	if (w->first_ns > 0 && w->first_ns / 6 < most)
		most = w->first_ns / 6;
	law->slowdown = w->slowdown;
	law->step_ns = w->step_ns;
	law->percentile = w->percentile;
	law->max_slot_ns = most;
	law->min_slot_ns = wishes.min_slot_ns < most ? wishes.min_slot_ns : most;
	gp_objective.first_ns = w->first_ns;
	for (int k = 0; !was && k < GP_GPUS; k++)
		begin(&engines[k]);
	gp_objective.set++;
	gp_objective.on = 1;
	__atomic_thread_fence(__ATOMIC_SEQ_CST); // pairs with preempt/submit.c, where launches are remembered
	if (!was)
		gp_forget_loaded(NULL); // which kernels it launches is looked at as they are launched for the first time
}

void gp_objective_begin(const struct gp_wish *own, double min_slot_ns, double max_slot_ns, uint32_t over_steps)
{
	pthread_mutex_lock(&wishes.lock);
	wishes.own = *own;
	wishes.min_slot_ns = min_slot_ns;
	wishes.max_slot_ns = max_slot_ns;
	gp_objective.law.over_steps = over_steps;
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

// Waits until the window has closed. False: it has not.
static bool drain(struct gp_gpu *g, struct engine *e, uint64_t began)
{
	if (!gp_objective.on) // it was as the launch began, and nobody looks for the slot any more
		cut(g, GP_CUT_CHANGED);
	while (e->slot == DRAINING) {
		gp_futex_wait(&e->slot, DRAINING, MOST_DRAIN_NS, false);
		if (gp_now_ns() - began > MOST_DRAIN_NS)
			cut(g, GP_CUT_UNDRAINED);
	}
	return e->lent_at_ns >= began;
}

// Waits until the slot ends. Returns when.
static uint64_t wait_out(struct gp_gpu *g, struct engine *e, uint64_t end)
{
	uint64_t now;
	while ((now = gp_now_ns()) < end && e->slot == LENT) {
		gp_futex_wait(&e->slot, LENT, end - now < LOOK_NS ? end - now : LOOK_NS, false);
		if (!is_wanted(g))
			cut(g, GP_CUT_IDLE);
	}
	return now;
}

// A slot ended. The lock is held.
static void count_late(struct engine *e, uint64_t now, bool late)
{
	if (!late)
		e->late -= e->late > 0;
	else if ((e->late += LATE_COSTS) >= MOST_LATE) {
		e->late = 0;
		e->off_until_ns = now + OFF_NS;
	}
}

void gp_lend(struct gp_context *c)
{
	struct gp_gpu *g = c->gpu;
	struct engine *e = engine_of(g);
	uint64_t began = gp_now_ns();

	pthread_mutex_lock(&g->lock);
	bool open = g->open_contexts;
	if (!open) // nothing is under way
		gp_objective_closes(g, began);
	pthread_mutex_unlock(&g->lock);
	if (open)
		gp_window_wake(g, GP_WAKE_WATCHER);
	if (drain(g, e, began)) {
		uint64_t from = e->lent_at_ns, end = from + e->slot_ns;
		if (e->until_ns && e->until_ns < end)
			end = e->until_ns;
		uint64_t now = wait_out(g, e, end);
		struct gp_objective_counters *n = counters(g);
		if (n) {
			gp_count(&n->slots, 1);
			gp_count(&n->lent_ns, now - from);
		}
		pthread_mutex_lock(&e->lock);
		e->lent_ns += now - from;
		count_late(e, now, now > end + LATE_NS);
		pthread_mutex_unlock(&e->lock);
	}
	move(e, LENT, RETURNING);
	if (g->segment)
		gp_own_line(g)->lent_until_ns = 0;
}

void gp_lend_over(struct gp_gpu *g) { move(engine_of(g), RETURNING, NONE); }
