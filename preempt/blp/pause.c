// pause.c - a thread waits for the end of a stop, or between two questions to the driver.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"

#include <sched.h>
#include <time.h>

void blp_pause(uint64_t since_ns)
{
	enum { AWAKE_NS = 200000, ASLEEP_NS = 20000 };
	if (gp_now_ns() - since_ns < AWAKE_NS)
		sched_yield();
	else
		gp_nap(ASLEEP_NS);
}

uint64_t blp_patience(void)
{
	// A window lasts max_hold at most, and then kernels drain. A thread that waits longer may be what a kernel waits for.
	return gp_now_ns() + 2 * gp_settings.max_hold_ns + 200000000;
}

void blp_wait_step(struct gp_domain *d, uint64_t deadline_ns)
{
	struct timespec t = gp_kernel_time(deadline_ns);
	if (!blp_is_closed(d) || !d->context)
		return;
	gp_wait_changed(&d->resumed, &d->lock, deadline_ns ? &t : NULL);
}

bool blp_wait_turn(struct gp_domain *d, uint64_t deadline_ns)
{
	while (blp_is_closed(d) && d->state != BLP_NARROW && d->context && gp_now_ns() < deadline_ns)
		blp_wait_step(d, deadline_ns);
	return !blp_is_stopped(d) || !d->context;
}

bool blp_wait_resumed(struct gp_domain *d, uint64_t deadline_ns)
{
	while (blp_is_closed(d) && d->context) {
		if (deadline_ns && gp_now_ns() >= deadline_ns)
			return false;
		blp_wait_step(d, deadline_ns);
	}
	return true;
}

bool blp_wanted_stopped(const struct gp_domain *d)
{
	struct gp_gpu *g = d->gpu;
	struct gp_segment *s = g->segment;
	uint64_t ignored = g->ignored;
	if (ignored & g->passed && gp_now_ns() >= g->passed_until_ns) // the watcher may be launching what was cut
		ignored &= ~g->passed;
	return s && gp_heeds_windows(g) && !blp_retired && !d->given_up && gp_windows_open(s, g->higher & ~ignored);
}
