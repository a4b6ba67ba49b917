// blp.h - block-level preemption: launches of rewritten kernels that stop between two blocks and go on later.
//
// A domain is what stops together: all streams of a context, or one stream that was given a domain of its own. While
// somebody lives who could want a stop, every launch of a guarded kernel in a domain is put into the domain's log, with
// its arguments, until it is known to be complete; so are records of events and waits for them, where they follow such
// launches. A stop sets the flag that a launch's first blocks read, and freezes the records of launches that have begun
// (../kernels/guard/guard.h). What is queued then ends without running, in order; from the records it is known where each
// was cut, and what is left is launched again in the order of the log, as is what was only logged meanwhile; streams run
// beside each other then as before. What has not ended in time is left running, and nobody waits for it (beside.c).
//
// Nothing else may overtake what was cut. Work that can neither be stopped nor repeated (a barrier: a copy, a host
// function, a kernel without guard) waits on the host until the launches before it on its stream are complete.
//
// But it must not wait for what waits for the program. A stream is tainted while it may wait for the CPU (a host function,
// a value, an event or another stream that do): what comes behind is not logged and not waited for, and the driver keeps
// its order. That a kernel waits for the CPU cannot be seen: who has waited for one for long lets it run, and until it is
// over its domain is only held, not cut (blp_let_run).
//
// Streams that are captured have nothing in the log, and nor has the legacy stream while anything is captured, since it may
// not be used then: both are flushed before the driver hears of a capture. All else goes on beside it as ever.
//
// Lock order: gp_domain.control, gp_domain.lock, the table of events. No lock but control is held while the GPU
// is waited for, and nobody who holds lock waits for control.
#ifndef GPREEMPT_BLP_H
#define GPREEMPT_BLP_H

#include "preempt/process/process.h"

struct gp_domain;

// Kernels of this process are stopped from here on: the driver has what that takes (gp_driver_lacks_for_blp).
void gp_blp_start(void);
bool gp_blp_started(void);
// Makes the domain of a context, off the launch path. Nothing is done where the GPU's processes are not to be stopped.
CUresult gp_blp_prepare(struct gp_context *, const char **call);
void gp_blp_context_destroying(CUcontext);
void gp_blp_stream_destroying(CUstream);
void gp_blp_graph_instantiated(CUgraphExec, CUgraph);
void gp_blp_graph_changed(CUgraphExec); // or about to be destroyed
void gp_blp_capture_beginning(CUstream); // counted as begun
bool gp_blp_before_wait(enum gp_wait, void *);
// Around what is put on a stream past the log, and is behind what the log holds.
void gp_blp_pass(struct gp_submission *);
void gp_blp_passed(struct gp_submission *, CUresult);
void gp_blp_graph_launched(struct gp_submission *, CUresult); // the program's own, of which there is a twin
// Stops and resumes this process's domains on a GPU as windows of higher levels open and close; for good.
void gp_blp_watch(struct gp_gpu *);

// What the driver answers where a context has ended, as all do when a process exits.
static inline bool gp_blp_is_gone(CUresult result)
{
	return result == CUDA_ERROR_DEINITIALIZED || result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

// Why a domain is stopped: a bit set, it goes on when the last is gone.
enum gp_blp_reason {
	GP_BLP_WINDOW = 1, // a higher level has an open window
	GP_BLP_ASKED = 2,  // the program asked for it
	GP_BLP_HELD = 4,   // the program asked for no more to be launched: what is queued runs, unless there is another reason
};

// Launches a kernel in place of the driver's function; guarded ones are logged, others are barriers. False: nothing was
// done, the driver's function is to be called. Also for kernels of ours: s may then be NULL.
bool gp_blp_launch(struct gp_submission *s, const struct gp_launch *, CUresult *);

// Whether launches need not wait at the gate, since the context's domain logs them: it is stopped, or about to be.
bool gp_blp_logs(struct gp_context *);

// Returns when the launches that come before new work of the stream are complete. A stop is waited out.
void gp_blp_flush(CUstream);
void gp_blp_come_behind(CUstream); // or will not be cut: for a call that only has to come behind them
// The same for all streams of a context, or of the process (NULL); and of the GPU that some memory belongs to.
void gp_blp_flush_all(CUcontext);
void gp_blp_flush_owner(CUdeviceptr);

// The domain that launches on the stream belong to, in the context that is current; NULL: none (yet).
struct gp_domain *gp_blp_domain(CUstream);
bool gp_blp_is_separate(CUstream); // it has a domain of its own
// Gives a stream of the current context a domain of its own, once.
CUresult gp_blp_separate(CUstream);

// Stops a domain: no further block begins once the flag has reached the GPU, which is not waited for. Launches wait
// from now on.
void gp_blp_stop(struct gp_domain *, enum gp_blp_reason);
// Returns when no block of a stopped domain runs any more, or some take too long, and it is known what was cut.
void gp_blp_drain(struct gp_domain *);
// The first alone, for a caller who has something urgent to do. Where a domain is only held: when all that is queued has run.
void gp_blp_quiesce(struct gp_domain *);
// Takes the reason back. Without another, what was cut goes on, before anything that waits.
void gp_blp_resume(struct gp_domain *, enum gp_blp_reason);
bool gp_blp_given_up(struct gp_domain *); // the driver refused a call: it is not stopped any more
// What is stopped goes on, and nothing is stopped any more.
void gp_blp_retire(void);


// Hooks (preempt/driver/hooks.h).
bool gp_blp_launch_graph(struct gp_submission *, CUresult *);
void gp_blp_before_barrier(struct gp_submission *);
bool gp_blp_before_record(struct gp_submission *, CUevent);
void gp_blp_after_record(struct gp_submission *, CUevent, CUresult);
bool gp_blp_before_stream_wait(struct gp_submission *, CUevent);
void gp_blp_after_stream_wait(struct gp_submission *, CUevent, CUresult);
void gp_blp_event_captured(CUevent);
CUresult gp_blp_answer(enum gp_wait, void *, CUresult);
void gp_blp_event_destroying(CUevent);
void gp_blp_event_shared(CUevent);
bool gp_blp_complete(CUfunction, struct gp_arguments *);

// fill.c: memsets and copies by kernels that can be stopped. Loads them into a context; slow, not on the launch path.
CUresult gp_fill_prepare(struct gp_context *, const char **call);
bool gp_fill(struct gp_submission *, CUresult *);

#endif
