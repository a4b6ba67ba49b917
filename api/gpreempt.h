/* gpreempt.h - what a program may tell libgpreempt.so, and ask of it. Optional: programs need not be changed to be
 * preempting or preempted. SPDX-License-Identifier: Apache-2.0
 *
 * All symbols are weak. A program that may run without the library must look whether they are there:
 *
 *	if (gpreempt_hint)
 *		gpreempt_hint(300, 1);
 *
 * The library starts when the program initialises CUDA (cuInit, or its first call of the CUDA runtime). Earlier calls do nothing, and
 * return -1 or GPREEMPT_ERROR_OFF.
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

/* Says that this process will put work on the GPU in delay_us microseconds (0: now). The library takes the GPU from
 * best-effort processes meanwhile; a delay of 300 hides a context switch. confidence is a probability, 0 to 1.
 * Wrong hints cost best-effort processes GPU time: a program that gives too many of them is ignored for a while.
 * Any thread may call it. It takes about a microsecond and never blocks. A call that has to
 * take the GPU at once, from a thread with a current context, lasts as long as two kernel launches.
 *
 * Returns 0 if the hint is considered. Returns -1 if it makes no sense (a negative delay, a confidence outside
 * 0 to 1) or nobody listens: the library has not started, the process is not latency-critical, hints are off.
 */
extern int gpreempt_hint(int64_t delay_us, double confidence) GPREEMPT_WEAK;

/* Objectives of a latency-critical process that serves a model: docs/serving.md.
 *
 * Sets how slow the process may be from now on, in place of [objective] in gpreempt.toml and GPREEMPT_OBJECTIVE. slowdown: how many
 * times slower than alone a step may be, 1 to 20; or step_ms: the mean time between the results of steps. The other one is 0. first_ms:
 * the longest time from a request's arrival to its first result, or 0 for any. All 0: no objective, latency-critical work comes first.
 * Times are in milliseconds, 0.1 to 60000. Any thread may call it; it never blocks.
 *
 * Returns 0, or -1 if the values make no sense or the process can have no other objective: the library has not started, the level is be, or
 * people (gpreempt set) or a broker's policy have said another one.
 */
extern int gpreempt_objective(double slowdown, double step_ms, double first_ms) GPREEMPT_WEAK;

/* Says that a step of the engine has ended: its results are there. From the first call on, only these calls end steps on the GPU of the
 * calling thread's current context. Needed only where the library finds no steps by itself (gpreempt top says so). Call it once a step.
 * The end of an NVTX range that objective.step_range names does the same.
 *
 * Returns 0, or -1 if nobody listens: there is no objective, or no current context.
 */
extern int gpreempt_step(void) GPREEMPT_WEAK;

/* Streams of one process.
 *
 * A program may have urgent work on one stream, and work that can wait on another. It can stop the second stream and let
 * it go on later. This needs block-level preemption: mechanisms = ["blp"] (and any others) in gpreempt.toml, and a role below
 * lc (GPREEMPT_PRIORITY=be, or 1 to 7) or [blp] lc_streams = true. Kernels are then rewritten as they are loaded.
 *
 * Work on a stopped stream is neither lost nor reordered. Kernels that are launched on it are kept and go to the driver
 * when the stream is restored. If the driver refuses one then, the next launch returns the error.
 *
 * These calls wait until the stream is restored:
 *   - other calls that put work on it, and launches when more than a hundred are kept already;
 *   - calls that wait for it (cuStreamSynchronize and the like) or for everything (cuCtxSynchronize, cuMemFree);
 *   - calls that end the stream;
 *   - calls that put work on the legacy stream behind a stopped blocking stream, or the other way round.
 *
 * So restore a stream from a thread that does not use it, and use non-blocking streams (CU_STREAM_NON_BLOCKING). When the
 * process exits, stopped streams go on.
 *
 * A stream is a CUstream, which is a cudaStream_t, of the context that is current on the calling thread. NULL is the
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
	GPREEMPT_ERROR_INVALID = 2,     /* a wrong argument, no current context, or not a stream of it */
	GPREEMPT_ERROR_NOT_ENABLED = 3, /* the stream is not enabled, or was destroyed */
	GPREEMPT_ERROR_CAPTURING = 4,   /* the stream is being captured */
	GPREEMPT_ERROR_LIMIT = 5,       /* too many streams are enabled, or memory ran out */
	GPREEMPT_ERROR_DRIVER = 6,      /* the driver refused a call; the stream runs and cannot be stopped any more */
	GPREEMPT_ERROR_UNSUPPORTED = 7, /* the driver lacks what is needed */
	GPREEMPT_ERROR_BUSY = 8         /* the context had work all the time, for 2 s */
};

/* Makes a stream one that can be stopped. Enabling it again changes the level, unless it is stopped. Waits for the work that
 * the stream has: only later launches can be stopped. */
extern int gpreempt_stream_enable(struct CUstream_st *stream, enum gpreempt_level level) GPREEMPT_WEAK;

/* Makes a stream one that cannot be stopped. A stopped stream goes on. */
extern int gpreempt_stream_disable(struct CUstream_st *stream) GPREEMPT_WEAK;

/* Stops the stream. If wait is not 0, returns when nothing of the stream runs any more; on GPREEMPT_LEVEL_BLOCK that is when
 * the running blocks have ended. Stopping a stopped stream only waits. */
extern int gpreempt_stream_preempt(struct CUstream_st *stream, int wait) GPREEMPT_WEAK;

/* Lets the stream go on. If wait is not 0, returns when the stopped work has been launched again. One restore undoes any
 * number of preempts. Restoring a stream that is not stopped does nothing. */
extern int gpreempt_stream_restore(struct CUstream_st *stream, int wait) GPREEMPT_WEAK;

/* Sets the priority of later launches on the stream, as cuStreamCreateWithPriority takes it: lower numbers come first, 0 is
 * the lowest priority. The stream need not be enabled; block-level preemption need not be on. */
extern int gpreempt_stream_set_priority(struct CUstream_st *stream, int priority) GPREEMPT_WEAK;

/* Sets the stream's width: on how many SMs it goes on while it is stopped, so that work on other streams has the rest. 0, the
 * value of a stream that was enabled: on none. A width below 8 is none, others are rounded down to a multiple of 8, at least
 * one less than the GPU has. Stopping such a stream first stops all of it. Then kernels go on in the order of their launches, also
 * later ones, each on the SMs of the width alone. Calls that wait for the stream end when these have run. The library holds some
 * work back, with all that is behind it:
 *   - cooperative launches, and clusters of more than 8 blocks;
 *   - kernels whose blocks may wait for each other and do not have room at once;
 *   - graphs;
 *   - work behind other calls that are not over;
 *   - the legacy stream and other blocking streams;
 *   - everything, while a process of a higher level works.
 *
 * GPREEMPT_LEVEL_BLOCK only. A width that the stream has had may be set at any time, also while the stream is stopped. For a new
 * width the driver makes a green context, and waits for all work of the context, with its lock. So set new widths before any thread
 * puts work there that waits for a later call of the program. A kernel that polls host memory is such work. GPREEMPT_ERROR_UNSUPPORTED: the
 * driver has no green contexts (before CUDA 12.5), or the stream is not of the primary context, which that of the CUDA runtime is.
 * GPREEMPT_ERROR_LIMIT: memory ran out, or the stream has had 8 other widths. A width takes about 6 MB of the GPU's memory. It is made
 * at a moment when the context has no work: as it begins, or while what keeps the GPU busy is stopped. GPREEMPT_ERROR_BUSY: there was none. */
extern int gpreempt_stream_set_width(struct CUstream_st *stream, int sms) GPREEMPT_WEAK;

struct gpreempt_stream_state {
	size_t size;           /* of this struct, set by the caller */
	int level;             /* enum gpreempt_level; 0: not enabled */
	int preempted;         /* 1: stopped, by gpreempt_stream_preempt */
	uint64_t preemptions;  /* times it was stopped since it was enabled */
	uint64_t preempted_ns; /* time for which it was stopped, up to now */
};

/* Fills in the state of a stream, which need not be enabled. */
extern int gpreempt_stream_query(struct CUstream_st *stream, struct gpreempt_stream_state *state) GPREEMPT_WEAK;

#undef GPREEMPT_WEAK

#ifdef __cplusplus
}
#endif

#endif
