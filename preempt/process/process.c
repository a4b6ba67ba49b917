// process.c - the state of the process, the clock, and futexes.
#define _GNU_SOURCE
#include "preempt/process/process.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct gp_context gp_context[GP_CONTEXTS];
_Atomic uint32_t gp_context_places;
struct gp_gpu gp_gpu[GP_GPUS];
struct gp_settings gp_settings;
struct gp_kernel_counters gp_kernels;
_Atomic uint32_t gp_wake, gp_events;
_Atomic uint32_t gp_away, gp_recalled;

uint64_t gp_now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

void gp_futex_wake(_Atomic uint32_t *word, int count, bool shared)
{
	syscall(SYS_futex, word, FUTEX_WAKE | (shared ? 0 : FUTEX_PRIVATE_FLAG), count, NULL, NULL, 0);
}

void gp_count_time(struct gp_histogram *h, uint64_t ns)
{
	const uint64_t second = 1000000000;
	uint32_t i = 0;
	while (i < GP_TIME_BUCKETS - 1 &&
	       (i < GP_FIRST_BUCKET ? ns > second >> (GP_FIRST_BUCKET - i) : ns > second << (i - GP_FIRST_BUCKET)))
		i++;
	gp_count(&h->buckets[i], 1);
	gp_count(&h->sum_ns, ns);
}

int gp_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns, bool shared)
{
	struct timespec t = {(time_t)(timeout_ns / 1000000000ull), (long)(timeout_ns % 1000000000ull)};
	return (int)syscall(SYS_futex, word, FUTEX_WAIT | (shared ? 0 : FUTEX_PRIVATE_FLAG), seen,
			    timeout_ns ? &t : NULL, NULL, 0);
}

void gp_ring(struct gp_segment *s)
{
	s->bell++;
	gp_futex_wake(&s->bell, INT_MAX, true);
}

void gp_ring_windows(struct gp_segment *s)
{
	s->windows++;
	gp_futex_wake(&s->windows, INT_MAX, true);
}

void gp_notify(void)
{
	gp_events++;
	gp_futex_wake(&gp_events, INT_MAX, false);
}

// Nothing but the first recall since memory left is of use.
void gp_recall(void)
{
	if (__atomic_exchange_n((uint32_t *)&gp_recalled, 1, __ATOMIC_ACQ_REL))
		return;
	for (int i = 0; i < GP_GPUS && gp_gpu[i].known; i++) {
		struct gp_segment *s = gp_gpu[i].segment;
		if (s)
			gp_ring(s);
	}
}
