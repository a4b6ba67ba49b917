// executor.h - executor.c is the thread that carries out a context's work. It shares this with blocks.c (launches whose blocks count one by
// one) and bus.c (how bytes move).
#ifndef SIM_EXECUTOR_H
#define SIM_EXECUTOR_H

#include "sim.h"

#define NEVER UINT64_MAX
#define HOLDS 16

struct pass { // One look of the executor at all work of its context.
	struct CUctx_st *c;
	struct engine engine;
	bool running;      // Our TSG has the engine.
	uint64_t run;      // The run clock now.
	uint64_t deadline; // The time when something is due.
	struct op *hold[HOLDS];
	int holds;
	bool completed;
	bool fetched;           // Work left its channel, so the work behind it may begin.
	bool turned, unfetched; // The host engine has turned from our TSG, and something waits to be fetched.
};

static inline void due(struct pass *p, uint64_t at)
{
	if (at < p->deadline)
		p->deadline = at;
}

void due_for_word(struct pass *, uint64_t since_ns); // Something looks at a word, and has waited for it since then (executor.c).

static inline uint64_t blocks_of(const struct work *w) { return (uint64_t)w->grid[0] * w->grid[1] * w->grid[2]; }

static inline void fault(struct CUctx_st *c)
{
	if (!c->error)
		c->error = CUDA_ERROR_ILLEGAL_ADDRESS;
}

// Each says whether the operation is over. A launch that a stop cut is over.
bool step_guarded(struct pass *, struct op *); // Its launch has a record.
bool step_waiting(struct pass *, struct op *); // Its blocks wait for each other.
bool step_placed(struct pass *, struct op *);  // Its blocks are placed on SMs (sms.c).
bool step_bus(struct pass *, struct op *);     // A copy over a bus with a rate.
void leave_bus(struct op *, int device);
bool transfer(struct CUctx_st *, const struct work *, uint64_t from, uint64_t to); // False: an illegal address.
bool effect(const struct work *, uint64_t from, uint64_t to); // The effect of the blocks from .. to - 1, which have ended.
// The guard of a launch with a record; the last two only where the record is one.
bool guard_valid(const struct work *);
uint64_t guard_begins(const struct work *);            // The first block that has not run in an earlier launch.
bool guard_exits(const struct work *, uint64_t block); // True: the block is not to begin, nor is any later one.

// ---- SMs (sms.c), of a context that has had a green context.
void begin_placed(struct pass *, struct op *); // The launch begins.
void place(struct pass *);                     // Lets blocks begin and end up to now, or until a launch is over.
uint64_t blocks_at_once(const struct work *);  // The blocks for which its SMs have room.

#endif
