// hints.h - where sources of hints meet the code that carries hints out, and what both tell the rest.
//
// A hint says that this process will put work on the GPU from start_ns on. The sources (source.c, socket.c, nvtx.c, and the
// learner, which is Go) find out when. carry.c takes the GPU then, and keeps it until the work comes.
#ifndef GPREEMPT_HINTS_H
#define GPREEMPT_HINTS_H

#include <stdbool.h>
#include <stdint.h>

#include "configs/rows.h"

struct gp_context;
struct gp_operation;

// Gives a hint, from any thread: lock-free, with one futex system call. Where the work is due about as soon as a switch takes, the caller
// takes the GPU for it, with its lock and two launches. The work is expected from start_ns (CLOCK_MONOTONIC) to start_ns + valid_ns.
// Senseless arguments are dropped.
typedef void gp_hint_fn(enum gp_hint_source, uint64_t start_ns, uint64_t valid_ns, double confidence);

// When requests came. The launch path writes an entry at the first work after idle; the learner reads it and sets it to zero.
// GP_BELL_ARRIVALS is rung some time after.
struct gp_arrivals {
	_Atomic uint32_t count;
	struct gp_arrival {
		_Atomic uint64_t at_ns;   // stored last
		_Atomic uint64_t held_ns; // since when a hint kept the GPU for it; 0: none did
		_Atomic uint64_t due_ns;  // when the next known hint was due; 0: none was known
		_Atomic uint32_t ready;   // the GPU was there already
		_Atomic uint32_t dropped; // enum gp_hint_dropped: why the latest hint since the request before came to nothing
	} arrival[256];
};

enum gp_hint_dropped {
	GP_DROPPED_NONE,
	GP_DROPPED_DOUBTFUL, // The confidence is too low, or the time makes no sense.
	GP_DROPPED_OFF,      // Its source was off.
	GP_DROPPED_UNPAID,   // Its source had cost too much.
	GP_DROPPED_OVERLAPS, // Another hint is for the same time.
	GP_DROPPED_NOBODY,   // There is no process to preempt.
	GP_DROPPED_WRONG,    // The wait for the work ended before it came.
	GP_DROPPED_AWAY,     // Memory of the process was out: the hint brought it back instead.
};

#define GP_LEAST_CONFIDENCE 0.5 // hints that are less sure are not carried out

// The carrying out (carry.c, work.c).
extern struct gp_arrivals gp_arrivals;
extern _Atomic uint64_t gp_last_arrival_ns;
gp_hint_fn gp_hint;
// Begins to carry hints out. max_cost: the part of the GPU's time that they may cost; wait_ns: how long work is waited for; copies:
// whether copies are hints too.
void gp_hint_start(double max_cost, uint64_t wait_ns, bool copies);
void gp_hint_run(void); // Carries hints out. Never returns.
// Before the first work after idle, or awaited work. Returns since when a hint has awaited it; 0: none has.
uint64_t gp_hint_work(struct gp_context *, const struct gp_operation *);
void gp_hint_pinned(void);
void gp_wake_hint_thread(void); // by the watcher, which callers wake instead of the thread of gp_hint_run
void gp_hint_closed(struct gp_context *, uint64_t now);

#endif
