/* gpreempt.h - what a latency-critical program may tell libgpreempt.so about itself. Optional: programs
 * need not be changed to be preempting. SPDX-License-Identifier: Apache-2.0 */
#ifndef GPREEMPT_H
#define GPREEMPT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Says that this process will put work on the GPU in delay_us microseconds (0: now), so that the GPU can be
 * taken from best-effort processes meanwhile: 300 hides a context switch. confidence is a probability, 0 to 1.
 * Hints that turn out wrong cost best-effort processes GPU time; who gives too many is not listened to for
 * a while. Any thread may call it; it takes about a microsecond and never blocks. On a thread with a current
 * context a hint for so soon that the GPU has to be taken at once takes as long as two kernel launches.
 *
 * Returns 0 where the hint was taken to be considered, and -1 where it makes no sense (a negative delay, a
 * confidence outside 0 to 1) or nobody listens: not started yet, not a latency-critical process, hints off.
 *
 * The symbol is weak: a program that runs without the library preloaded must look whether it is there,
 *
 *	if (gpreempt_hint)
 *		gpreempt_hint(300, 1);
 */
extern int gpreempt_hint(int64_t delay_us, double confidence) __attribute__((weak));

#ifdef __cplusplus
}
#endif

#endif
