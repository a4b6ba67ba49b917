/* gpreempt.h - what a program may tell libgpreempt.so, and ask of it. Optional: programs need not be changed to be
 * preempting or preempted. SPDX-License-Identifier: Apache-2.0
 *
 * All symbols are weak: a program that runs without the library preloaded must look whether they are there,
 *
 *	if (gpreempt_hint)
 *		gpreempt_hint(300, 1);
 */
#ifndef GPREEMPT_H
#define GPREEMPT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef GPREEMPT_WEAK
#define GPREEMPT_WEAK __attribute__((weak))
#endif

/* Says that this process will put work on the GPU in delay_us microseconds (0: now), so that the GPU can be
 * taken from best-effort processes meanwhile: 300 hides a context switch. confidence is a probability, 0 to 1.
 * Hints that turn out wrong cost best-effort processes GPU time; who gives too many is not listened to for
 * a while. Any thread may call it; it takes about a microsecond and never blocks. On a thread with a current
 * context a hint for so soon that the GPU has to be taken at once takes as long as two kernel launches.
 *
 * Returns 0 where the hint was taken to be considered, and -1 where it makes no sense (a negative delay, a
 * confidence outside 0 to 1) or nobody listens: not started yet, not a latency-critical process, hints off.
 */
extern int gpreempt_hint(int64_t delay_us, double confidence) GPREEMPT_WEAK;

/* Streams of one process.
 *
 * A program with urgent work on one stream and work that can wait on another can stop the latter and let it go on
 * later. That needs block-level preemption: mechanisms = ["blp"] (and any others) in gpreempt.toml, and a role below lc
 * (GPREEMPT_PRIORITY=be, or 1 to 7) or [blp] lc_streams = true. Kernels are then rewritten as they are loaded.
 *
 * Work on a stopped stream is neither lost nor reordered. Kernels launched on it are noted down and launched when it
 * is restored; where the driver refuses one then, the next launch returns its error. Other calls that put work on
 * it, and launches when more than a hundred wait, wait until it is restored, and those that wait for it
 * (cuStreamSynchronize and the like) do, as does what waits for everything (cuCtxSynchronize, cuMemFree) or ends the
 * stream: restore a stream from another thread than the ones that use it, or before. So do calls that put work on
 * the legacy stream behind that of a stopped blocking stream, or the other way round: use streams that are non-
 * blocking (CU_STREAM_NON_BLOCKING). When the process exits, stopped streams go on.
 *
 * A stream is a CUstream, which is a cudaStream_t, of the context that is current on the calling thread; NULL is the
 * legacy default stream. The per-thread default stream cannot be used. Any thread may call any of the functions.
 */
struct CUstream_st;

enum gpreempt_level {
	GPREEMPT_LEVEL_QUEUE = 1, /* what is launched already runs to its end; the rest waits */
	GPREEMPT_LEVEL_BLOCK = 2  /* what runs stops between two blocks, and goes on there later */
};

enum gpreempt_result {
	GPREEMPT_SUCCESS = 0,
	GPREEMPT_ERROR_OFF = 1,         /* block-level preemption is not on in this process, or CUDA not initialised */
	GPREEMPT_ERROR_INVALID = 2,     /* an argument makes no sense; no context is current; no stream of it */
	GPREEMPT_ERROR_NOT_ENABLED = 3, /* the stream was not enabled, or ended since */
	GPREEMPT_ERROR_CAPTURING = 4,   /* the stream is being captured */
	GPREEMPT_ERROR_LIMIT = 5,       /* too many streams are enabled, or memory ran out */
	GPREEMPT_ERROR_DRIVER = 6,      /* the driver refused a call; the stream runs, and cannot be stopped any more */
	GPREEMPT_ERROR_UNSUPPORTED = 7  /* the driver lacks what is needed */
};

/* Makes a stream one that can be stopped. Enabling it again changes the level, while it is not stopped. It takes
 * effect for what is launched from then on, so it waits for what the stream holds. */
extern int gpreempt_stream_enable(struct CUstream_st *stream, enum gpreempt_level level) GPREEMPT_WEAK;

/* The inverse. A stopped stream goes on. */
extern int gpreempt_stream_disable(struct CUstream_st *stream) GPREEMPT_WEAK;

/* Stops the stream. With wait not 0 it returns when nothing of the stream runs any more: on level block after the
 * blocks that run have ended. Stopping a stopped stream does nothing (but wait). */
extern int gpreempt_stream_preempt(struct CUstream_st *stream, int wait) GPREEMPT_WEAK;

/* Lets the stream go on. With wait not 0 it returns when what was stopped has been launched again. Restoring a
 * stream that is not stopped does nothing. Once, however often it was stopped. */
extern int gpreempt_stream_restore(struct CUstream_st *stream, int wait) GPREEMPT_WEAK;

/* Sets the priority of what is launched on the stream from now on, as cuStreamCreateWithPriority takes it: lower numbers
 * first, 0 the least. The stream need not be enabled, and block-level preemption not be on. */
extern int gpreempt_stream_set_priority(struct CUstream_st *stream, int priority) GPREEMPT_WEAK;

struct gpreempt_stream_state {
	size_t size;             /* of this struct, set by the caller */
	int level;               /* enum gpreempt_level; 0: not enabled */
	int preempted;           /* 1: stopped, by gpreempt_stream_preempt */
	uint64_t preemptions;    /* times it was stopped since it was enabled */
	uint64_t preempted_ns;   /* time that it was stopped, with the present one */
};

/* Says how it stands with a stream. A stream that is not enabled is no error. */
extern int gpreempt_stream_query(struct CUstream_st *stream, struct gpreempt_stream_state *state) GPREEMPT_WEAK;

#undef GPREEMPT_WEAK

#ifdef __cplusplus
}
#endif

#endif
