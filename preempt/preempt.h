// preempt.h - what the files of this folder share. They may use all houses; no house uses them.
#ifndef GPREEMPT_PREEMPT_H
#define GPREEMPT_PREEMPT_H

#include "preempt/gpu/objective.h"
#include "preempt/process/process.h"

// submit.c
bool gp_operation_begin(struct gp_operation *);
CUresult gp_operation_end(struct gp_operation *, CUresult);

// queue.c: hooks that come before those below. They make a launch later, or wait for those that were to be made before.
bool gp_queue_begin(struct gp_operation *);
bool gp_queue_begin_wait(enum gp_wait, void *);
CUresult gp_queue_end_wait(enum gp_wait, void *, CUresult);
void gp_queue_ending(enum gp_thing, void *handle);
void gp_queue_capture_beginning(CUstream);
bool gp_queue_module_unload(CUmodule, CUresult *);
bool gp_queue_library_unload(CUlibrary, CUresult *);
void gp_queue_clusters_changed(void);
void gp_queue_unknown_function(const char *name);
void gp_queue_checkpoint_begins(enum gp_checkpoint);
void gp_queue_feed(void); // A thread runs it, and it does not return. From its start on launches may be made later.
void gp_queue_end(void);  // From its return on none is, and those that were are made.

// waits.c
bool gp_wait_begin(enum gp_wait, void *);
CUresult gp_wait_end(enum gp_wait, void *, CUresult);
void gp_waits_end_with_thread(void);
void gp_forget_wait(struct gp_context *); // the calling thread waits no more: the context is being destroyed
// Around a launch that loads code, for which the driver waits for the context. The hold ends, and none comes.
void gp_load_begin(struct gp_context *);
void gp_load_end(struct gp_context *);

// steps.c, of processes with an objective
void gp_steps_lend(struct gp_context *, enum gp_lending);                // the next launch is held back for a while
void gp_steps_settled(struct gp_context *, const struct gp_operation *); // the driver has taken it
// A wait has succeeded, or a question was answered with yes: for a stream up to a sequence, an event, or all results up to a number.
void gp_steps_waited(struct gp_context *, enum gp_wait, void *what, struct gp_stream *, uint64_t sequence,
		     uint64_t results);

// lifecycle.c
void gp_context_usable(CUcontext);
void gp_ending(enum gp_thing, void *handle);
void gp_ended(enum gp_thing, void *handle, bool is);
void gp_event_shared(CUevent);
void gp_capture_beginning(CUstream);
void gp_graph_made(CUgraphExec, CUgraph);
void gp_graph_changing(CUgraphExec);
void gp_node_given(CUfunction);
void gp_unknown_function(const char *name);
void gp_membership_changed(void); // gp_membership: carries out what it is now

// checkpoint.c
void gp_checkpoint_begins(enum gp_checkpoint);
void gp_checkpoint_ended(enum gp_checkpoint, CUresult);
// The driver took an operation that began behind the question, where the process seemed to be locked.
void gp_checkpoint_refuted(uint64_t question);
bool gp_checkpoint_can_watch(void); // The driver can be asked.
void gp_checkpoint_watch(void);     // A thread runs it, and it does not return.

// unload.c
bool gp_unload_module(CUmodule, CUresult *);
bool gp_unload_library(CUlibrary, CUresult *);
void gp_unloads_finish(CUcontext); // it is about to be destroyed
bool gp_unloads_await(void); // memory is missing. Waits a while for an unload that is under way; false: none ended

// swap.c
const char *gp_swap_start(void *armed, void *substitute); // see gp_bridge_start_memory
void gp_memory_count(void *substitute);                   // see gp_bridge_count_memory
void gp_memory_used(const void *frame);
void gp_memory_done(void);
bool gp_refused_memory(struct gp_retry *, CUdevice);

// threads.c. Threads of lanes call these. False: no more threads can be started.
// Starts the threads that close windows, carry hints out, and put suspended TSGs back. After gp_driver_resolve and, with hints, gp_hint_start.
bool gp_threads_start(bool hints, bool suspends);
bool gp_guard_start(void); // The last of these, before a TSG is taken off the runlist.
// Starts the thread of gp_checkpoint_watch after the first gp_membership_doubt, and that of gp_queue_feed once a log was full. gp_notify rings
// for both.
void gp_threads_start_wanted(void);
// Starts the thread that stops the process's kernels on a GPU, once that is attached (gp_bridge_gpu_attach).
bool gp_windows_watch(struct gp_gpu *);

// watch.c
void gp_watch_forever(void);
uint64_t gp_waits_behind(const struct gp_gpu *);

// api.c
void gp_streams_forget(CUstream);
void gp_streams_forget_context(CUcontext);

// hooks.c
extern const struct gp_hooks gp_core_hooks;

#endif
