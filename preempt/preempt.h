// preempt.h - what the files of this folder share: they know all houses below, and no house knows them.
#ifndef GPREEMPT_PREEMPT_H
#define GPREEMPT_PREEMPT_H

#include "preempt/process/process.h"

// submit.c
void gp_before_submit(struct gp_submission *);
void gp_after_submit(struct gp_submission *, CUresult);

// waits.c
bool gp_before_wait(enum gp_wait, void *);
void gp_after_wait(enum gp_wait, void *, CUresult);
void gp_forget_wait(struct gp_context *); // the calling thread's wait ends with its context

// lifecycle.c
void gp_context_destroying(CUcontext);
void gp_stream_destroying(CUstream);
void gp_capture_beginning(CUstream);
void gp_graph_made(CUgraphExec, CUgraph);
void gp_graph_ending(CUgraphExec);
void gp_unknown_function(const char *name);

// watch.c
void gp_watch_forever(void);

// api.c
void gp_streams_forget(CUstream);
void gp_streams_forget_context(CUcontext);

// hooks.c
const struct gp_hooks *gp_core_hooks(void);

#endif
