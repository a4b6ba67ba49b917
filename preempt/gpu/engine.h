// engine.h - what steps.c, slots.c and objective.c know of the engine that works on a GPU.
#ifndef GPREEMPT_ENGINE_H
#define GPREEMPT_ENGINE_H

#include "preempt/gpu/objective.h"

enum {
	RESULTS = 64, // result copies that are remembered; an engine has a few under way at once
	EVENTS = 64,  // events behind result copies; a further one takes the place of the oldest
	// Steps that follow each other without a rest. A service with one request a step has few: slack there is a lack of requests, and a
	// slot would delay the next one for nothing.
	FEW_IN_A_ROW = 8,
	// Steps beside lower levels, one after the other. Then one is made alone: from it the law learns what a step takes.
	MOST_SHARED = 64,
	PAUSE_NS = 20 * 1000 * 1000, // Credit outlives a shorter pause: the engine computed on the CPU.
};

// A slot: NONE -> DUE (a step ended) -> DRAINING (the launch that it is for waits) -> LENT (the window closed). Then RETURNING (the
// launch goes on, and opens the window) -> NONE. A cut takes DUE to NONE, and DRAINING and LENT to RETURNING.
// Under MPS: NONE -> DUE -> SHARED (the watcher took the window back, and lower levels run beside it) -> NONE (the watcher published it again,
// or it closed). Where credit is left over, a launch waits in it: SHARED -> HELD -> SHARED. If the window closes meanwhile: HELD -> LENT ->
// REOPENING (the launch goes on) -> SHARED (it opened the window). A cut takes SHARED and HELD to ENDING, and the watcher that to NONE.
enum slot { NONE, DUE, DRAINING, LENT, RETURNING, REOPENING, SHARED, HELD, ENDING };

// Launches of a step are counted where its result copy is submitted: with asynchronous scheduling the next step is queued by then.
struct result {
	uint64_t number;   // from 1 on, as they were submitted
	uint64_t launches; // kernels and graphs ahead of it, ever
	uint64_t first;    // the first of these behind the result before
	uint64_t bytes;    // 0: the program said that a step ended
	bool graphs;       // some of these were graphs
};

struct gp_engine {
	// Writers: program threads, before each launch. Readers: the thread that submits a result copy, which resets first and graphs.
	_Alignas(64) _Atomic uint64_t launches, first;
	_Atomic uint32_t graphs;
	// The thread that learnt of the latest result (pthread_self), until it submits more; 0: none. Writers: under the lock. Readers: threads
	// that submit, which look for themselves alone.
	_Atomic uintptr_t knows;
	// Writers: each change of state is a compare-and-swap in move(). Readers: all, and the launch that waits on it as a futex. Two threads
	// that both took a slot would hold two launches back.
	_Alignas(64) _Atomic uint32_t slot;
	_Atomic uint32_t uses_graphs; // The latest step had graphs: a slot is for the next graph, not for a small kernel before it.
	_Atomic uint32_t takes_large; // Results have up to LARGE_RESULT_BYTES.
	_Atomic uint64_t slot_ns, until_ns,
		lent_at_ns;          // of the slot: length, end at the latest (0: none), when the window closed
	_Atomic uint32_t unfinished; // a slot beside the window, until it is counted
	_Atomic uint64_t held_ns;    // in a shared slot: for so long the next launch is to wait; 0: not at all
	_Atomic uint64_t arrived_ns; // the oldest request without a result; 0: none
	_Atomic uint64_t first_ns;   // The objective for that time. Writers: under the lock.

	pthread_mutex_t lock; // of the rest; taken within g->lock
	struct result result[RESULTS];
	uint64_t results;      // the latest that was submitted
	_Atomic uint64_t done; // the latest that the program knows of
	struct {
		CUevent event;
		uint64_t result;
	} event[EVENTS];
	// Of event[]: how many entries stand for an event. Writers: under the lock. Readers: also threads without it, which pass by when
	// nothing they could change is there. A thread sees its own records; of two that use an event at once, neither is first for the
	// program either.
	_Atomic uint32_t remembered;
	uint32_t event_at;
	bool said;             // The program says where its steps end.
	uint64_t counted;      // Launches up to the end of the latest step.
	uint64_t step;         // The result that ended that step.
	uint64_t from_ns;      // The step under way began: the end of the one before, or the window's opening.
	uint64_t lent_ns;      // Lent since then.
	bool beside;           // Lower levels ran beside it.
	uint64_t ended_ns;     // The latest slot beside the window.
	uint32_t shared;       // Steps beside lower levels since the latest one alone.
	uint64_t pass_from_ns; // The pass under way began, where a step has several.
	uint64_t stepped_ns;
	struct { uint64_t launches, own_ns, bytes; } before; // the latest step
	uint32_t passes, parts;                              // since then, which did not end it
	uint64_t knew_ns;                                    // when knows learnt of it
	// How long a thread looks at a result before it submits more: of four times, three are shorter.
	uint64_t looks_ns;
	bool unlooked; // The thread that learnt of the latest result did not look at it.
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
	struct gp_law_settings settings; // of the objective in force
	struct gp_law law;
};
extern struct gp_engine gp_engines[GP_GPUS];

static inline struct gp_engine *engine_of(const struct gp_gpu *g) { return &gp_engines[g - gp_gpu]; }

static inline bool is_shared(uint32_t slot) { return slot >= SHARED; }

static inline bool move(struct gp_engine *e, uint32_t from, uint32_t to)
{
	return __atomic_compare_exchange_n((uint32_t *)&e->slot, &from, to, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static inline struct gp_objective_counters *counters(struct gp_gpu *g)
{
	struct gp_slot *slot = gp_own_slot(g);
	return slot ? &slot->objective : NULL;
}

static inline uint64_t latest(uint64_t a, uint64_t b) { return a > b ? a : b; }

// The process had no work for more than twice as long as it works at a step. An engine waits for its program between steps: llama.cpp's
// server on an H200 for up to 1.9 times as long. A pause above PAUSE_NS is a rest unless a step takes longer.
static inline bool has_rested(const struct gp_engine *e, uint64_t now)
{
	uint64_t working = e->working_ns, twice = 2 * working < PAUSE_NS ? 2 * working : PAUSE_NS;
	return working && now > e->closed_ns + latest(working, twice);
}

// slots.c, under gp_engine.lock
enum gp_objective_state gp_engine_state(const struct gp_gpu *, const struct gp_engine *,
					uint64_t now_ns);                      // Once a step has ended.
void gp_engine_consider(struct gp_gpu *, struct gp_engine *, uint64_t now_ns); // A slot is due, or goes on, if credit pays for it.
// slots.c, without it
enum gp_lending gp_engine_lends(struct gp_context *, const struct gp_operation *, uint32_t slot); // DUE or SHARED
void gp_engine_cut(struct gp_gpu *, enum gp_slot_cut why);                                        // Ends a slot early.

#endif
