// objective.h - the steps of an engine, and slots of GPU time that a latency-critical process lends out of its objective.
//
// A step ends where the program learns that a result copy is done: a small copy to the host, behind its kernels. Or the program
// says so. gp_step_* find that, the law (law.h) says what may be lent, and gp_lend holds the process's next launch back for so long:
// its window closes, lower levels run, and the launch opens the window again. Under MPS lower levels run
// beside it, and a launch is held back only where that leaves credit over.
#ifndef GPREEMPT_OBJECTIVE_H
#define GPREEMPT_OBJECTIVE_H

#include "preempt/gpu/gpu.h"
#include "preempt/gpu/law.h"

// An objective: times slower than alone (1 to 20) or a step's mean time (0.1 ms to a minute), not both; neither: there is none.
struct gp_wish {
	double slowdown, step_ns;
	double first_ns;   // from a request's arrival to its first result; 0: any
	double percentile; // of the means that are to be within the objective, 0 to 1
};

// 1: there is an objective; else none of the functions of steps and slots is called. Writers: gp_objective_*, below, one at a time.
extern _Atomic uint32_t gp_objective_on;

// Takes the configuration, before hooks are installed: the process's own wish, slots, and the steps of a mean.
void gp_objective_begin(const struct gp_wish *, double min_slot_ns, double max_slot_ns, uint32_t over_steps);
// Whether the process has a level that may have an objective.
void gp_objective_allow(bool);
// The program's own wish, from now on. False: it makes no sense, others told another one, or the process can have none.
bool gp_objective_set(double slowdown, double step_ns, double first_ns);
// An objective of people or of a broker, which counts instead of the process's own wish. NULL: they say nothing.
void gp_objective_tell(const struct gp_wish *);
bool gp_objective_read(struct gp_wish *); // what is in force; false: none

enum gp_lending {
	GP_LENDS_NOT,
	GP_LENDS_ALL,  // its window closes first
	GP_LENDS_MORE, // lower levels run beside its window
};
// A kernel or graph is about to be launched. Returns whether the launch is to be held back: call gp_lend.
enum gp_lending gp_step_launch(struct gp_context *, const struct gp_operation *);
void gp_step_submits(struct gp_context *); // The calling thread submits a launch or a copy.
// The driver has taken an operation: sequence is its number on the stream.
void gp_step_copied(struct gp_context *, struct gp_stream *, uint64_t sequence, uint64_t bytes); // A result copy.
void gp_step_recorded(struct gp_context *, struct gp_stream *, CUevent);
// The program learnt that an event, a stream up to a sequence, or all results up to a number are done.
void gp_step_event_done(struct gp_context *, CUevent);
void gp_step_stream_done(struct gp_context *, struct gp_stream *, uint64_t sequence);
void gp_step_all_done(struct gp_context *, uint64_t results);
uint64_t gp_step_result_bytes(const struct gp_gpu *); // a larger copy to the host is no result of a step
uint64_t gp_step_results(struct gp_context *);        // the number of the latest result copy
void gp_step_event_forget(CUevent);
void gp_step_said(struct gp_gpu *); // the program says that a step has ended: from now on only these count

// The window opens or has closed. g->lock is held.
void gp_objective_opens(struct gp_gpu *, uint64_t now_ns);
void gp_objective_closes(struct gp_gpu *, uint64_t now_ns);
void gp_objective_watch(struct gp_gpu *, uint64_t now_ns); // a look of the watcher at an open window

void gp_lend(struct gp_context *, enum gp_lending); // Holds the calling thread back.
void gp_lend_over(struct gp_gpu *);                 // Its launch has opened the window.
bool gp_lend_drains(const struct gp_gpu *);         // The window is to close as soon as no work is unfinished.
bool gp_lent(const struct gp_gpu *);                // Lower levels have a slot.
// Under MPS lower levels run beside the window in a slot, as if it were closed. g->lock is held.
uint64_t gp_shared_slot_turns(const struct gp_gpu *,
			      uint64_t now_ns); // nanoseconds until a slot ends; 0: it begins or ends now, also without the lock
int gp_shared_slot_turn(struct gp_gpu *, uint64_t now_ns);    // 1: it began; -1: it ended; 0: neither
bool gp_shared_slot_opens(struct gp_gpu *);                   // the window opens: true if it does in a slot
bool gp_shared_slot_closes(struct gp_gpu *, uint64_t now_ns); // the window closes: true if a slot ended with it
// ranks.c: the process is a rank of an engine on several GPUs, known by kernels that it launches or has in graphs. A handle may be of all
// contexts, and its name is looked at once: so the process is one, not its engine on a GPU. Never 0 again.
extern _Atomic uint32_t gp_is_rank;
void gp_rank_kernel(CUfunction);
// Ends slots early, on all GPUs.
void gp_lend_request(uint64_t now_ns); // a request has arrived
void gp_lend_capture(void);            // a capture begins

#endif
