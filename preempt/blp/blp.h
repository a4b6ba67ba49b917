// blp.h - block-level preemption (BLP): a rewritten kernel stops between two blocks and goes on later.
//
// Domain: the streams that stop together. These are all streams of a context, or one stream that has a domain of its own.
//
// Log: while a peer or the program could ask for a stop, a domain's log takes every launch of a guarded kernel, with its arguments. A
// launch stays there until it is known to be complete. Event records, and waits for them, are logged too where they follow such a launch.
//
// Stop: the flag that a launch's first blocks read is set, and the records of launches that have begun are frozen
// (kernels/guard/guard.h). Queued launches then end in order without running. The records tell where each launch was cut.
//
// Resumption: the library launches the rest again in the order of the log, together with the launches that were logged during the stop.
// Streams run beside each other as before. A launch that did not drain in time is left running; no thread waits for it (beside.c).
//
// Barrier: work that can neither be stopped nor repeated (a copy, a host function, a kernel without guard). It must not
// overtake what was cut, so it waits on the host until the launches before it on its stream are complete.
//
// Host block: a barrier must not wait for a stream that waits for the program. A stream is host-blocked while it may wait for the CPU
// (behind a host function, a value, or an event or stream that is host-blocked). Work behind a host block is neither logged nor waited
// for; the driver keeps its order. Whether a kernel waits for the CPU cannot be seen. A thread that has waited long for a kernel lets it
// run: until it is over, a stop of its domain only holds back new launches and cuts nothing (blp_let_run).
//
// Captures: the log holds no entry of a captured stream, nor of the legacy stream while any stream is captured: that stream must not be
// used then. Both are flushed before the driver hears of a capture.
//
// Lock order: that of the twins (graph.c), gp_domain.control, gp_domain.lock, the lock of the events (preempt/objects). A thread that
// waits for the GPU holds control at most. A thread that holds lock never waits for control. No thread holds the lock of two domains.
#ifndef GPREEMPT_BLP_H
#define GPREEMPT_BLP_H

#include "preempt/process/process.h"

struct gp_domain;

// Kernels of this process are stopped from here on: the driver has what that takes (gp_driver_lacks_for_blp).
void gp_blp_start(void);
extern bool gp_blp_started;
// Makes the domain of a context, off the launch path; does nothing where no kernel is to be stopped.
CUresult gp_blp_prepare(struct gp_context *, const char **call);
void gp_blp_context_destroying(CUcontext);
void gp_blp_stream_destroying(CUstream);
void gp_blp_graph_instantiated(CUgraphExec, CUgraph);
void gp_blp_graph_changed(CUgraphExec);                  // the instance is about to be changed or destroyed
void gp_blp_event_shared(CUevent);                       // other processes may see it
void gp_blp_capture_beginning(CUstream);                 // after gp_capture_begins
bool gp_blp_complete(CUfunction, struct gp_arguments *); // a hook (preempt/driver/hooks.h)

// operation.c: around the driver's function, in a process whose kernels are stopped. True: the operation is carried out, or
// logged to be carried out later, with its result; the driver's function must not be called. gp_blp_end always follows.
bool gp_blp_begin(struct gp_operation *);
// Comes first where the context was not prepared when the operation began: it may have no domain, and get one meanwhile.
void gp_blp_meet(struct gp_operation *);
void gp_blp_end(struct gp_operation *);

// event.c: around a wait or a question. True: the wait is over, and the driver's function is not to be called.
bool gp_blp_begin_wait(enum gp_wait, void *object, CUcontext current);
CUresult gp_blp_end_wait(enum gp_wait, void *object, CUresult); // returns the program's result

void gp_blp_thread_ends(void); // the calling one

// Stops and resumes this process's domains on a GPU as windows of higher levels open and close, once that is attached. Never returns.
void gp_blp_watch(struct gp_gpu *);

// Whether the driver's answer means that the context has ended, as all contexts do when a process exits.
static inline bool gp_blp_is_gone(CUresult result)
{
	return result == CUDA_ERROR_DEINITIALIZED || result == CUDA_ERROR_INVALID_CONTEXT ||
	       result == CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

// Why a domain is stopped: a set of bits. The domain goes on when the last bit is cleared.
enum gp_blp_reason {
	GP_BLP_WINDOW = 1, // a higher level has an open window
	GP_BLP_ASKED = 2,  // the program asked for it
	GP_BLP_HELD = 4,   // the program asked for no new launches: queued work runs, unless another bit is set
};

// Whether an operation need not wait at the gate while a window is open: its domain is stopped, or about to be, and the log takes it. The log
// takes only kernels there. All else waits at the gate as well, since nothing goes on in a window.
bool gp_blp_logs(const struct gp_operation *);

// For launches that are made later (preempt/queue.c). Whether a log has entries, in any domain.
bool gp_blp_has_work(void);
bool gp_blp_is_nested(void); // The calling thread is within a call of the library to the driver, or one that has a count (take.c).
bool gp_blp_may_load(CUcontext current, CUfunction); // The driver may load its code, for which it waits for the context.
extern _Atomic bool gp_blp_was_full; // A launch has found no room in a log. From then on the queue is of use.
// Whether a launch on a stream would wait for room in the log, or for the end of a stop. Asks the driver.
bool gp_blp_is_full(CUcontext, CUstream);
// The parameters of a launch's kernel, if the driver takes the launch for certain, also from another thread; NULL: it may not, or the
// program stops streams itself.
const struct gp_code *gp_blp_takes_later(CUcontext, CUstream, const struct gp_launch *);
// Writes the arguments of a launch, in either form, as its kernel has them: code->bytes.
void gp_blp_pack(const struct gp_code *, void **parameters, void **extra, char *to);
bool gp_blp_fills_later(CUcontext, const struct gp_operation *); // The same of a memset.
CUresult gp_blp_take_late(void); // what the next launch would return, since the driver refused one that was only logged; once

// Waits until the launches that come before new work of the stream are complete, or will not be cut any more: for a call that only
// has to come behind them.
void gp_blp_come_behind(CUstream);
// Waits until all launches of a context (NULL: of the process) are complete, or of the GPU that the memory at an address belongs to.
void gp_blp_flush_all(CUcontext);
void gp_blp_flush_owner(CUdeviceptr);
void gp_blp_flush_array(CUcontext); // Waits for all launches of the process, and of a context that the driver waits for.
// Calls under way for which the driver waits for a context with its lock. Work waits for those that began before it came, but not for the
// calling thread's own. Comes before anything of the operation is counted.
extern _Atomic uint32_t gp_blp_takes;
bool gp_blp_keeps_off(const struct gp_operation *); // whether it is to wait
void gp_blp_keep_off(const struct gp_operation *);  // waits
// Around the driver's cuCtxSynchronize: for what the log had as the first was called. False: the driver is to be asked once more, since
// it has what the log has forgotten.
void gp_blp_expect_all(CUcontext);
bool gp_blp_wait_expected(CUcontext);
bool gp_blp_has_log(CUcontext); // An entry may be cut, or is only logged, in a context (NULL: in any).
// Around a function of the driver's that loads code in the current context, for which the driver may wait with its lock (take.c).
void gp_blp_loading(bool begins);
// Waits until the driver has all work of this process that may be cut, and all of it has run. The caller keeps new work away.
// The library launches no work again after this. False: not by the deadline.
bool gp_blp_wait_empty(uint64_t deadline_ns);

// The domain of the stream in the current context; NULL: there is none, or not yet.
struct gp_domain *gp_blp_domain(CUstream);
// Gives a stream of the current context a domain of its own, once.
CUresult gp_blp_separate(CUstream);

// Stops a domain. Returns before the flag has reached the GPU; no block begins after that. New launches are only logged.
void gp_blp_stop(struct gp_domain *, enum gp_blp_reason);
// Waits until no block of a stopped domain runs, or the rest has taken too long, and finds out what was cut.
void gp_blp_drain(struct gp_domain *);
// Waits for the blocks alone, for a caller in a hurry. Where the domain is only held: until all queued work has run.
void gp_blp_quiesce(struct gp_domain *);
// Clears a reason. If it was the last one, what was cut goes on, before anything that waits behind it.
void gp_blp_resume(struct gp_domain *, enum gp_blp_reason);
// Sets how many SMs a domain goes on with while the program has it stopped; 0: none. A multiple of 8. Makes the width's stream and
// context now. CUDA_ERROR_NOT_SUPPORTED: the driver or the context has none. CUDA_ERROR_OUT_OF_MEMORY: too many widths.
// CUDA_ERROR_NOT_READY: that can only be made while the context has no work. Or what the driver returns.
CUresult gp_blp_set_width(struct gp_domain *, uint32_t sms);
bool gp_blp_given_up(struct gp_domain *); // the driver refused a call: the domain is never stopped again
// Resumes all domains; none is stopped again in this process.
void gp_blp_retire(CUcontext whole); // whole: of a gp_context; NULL: all stops have ended when it returns, else those there

// fill.c: memsets and copies by kernels that can be stopped. Loads them into a context; slow, not on the launch path.
CUresult gp_fill_prepare(struct gp_context *, const char **call);

#endif
