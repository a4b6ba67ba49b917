// watch.c - the watcher: a thread that closes windows.
#define _GNU_SOURCE
#include "preempt/preempt.h"
#include "hints/hints.h"
#include "preempt/gpu/gpu.h"

// Nanoseconds to the next look; 0: no window is open.
static uint64_t watch(void)
{
	uint64_t now = gp_now_ns(), next = 0;

	for (int i = 0; i < GP_CONTEXTS; i++) {
		struct gp_context *c = &gp_context[i];
		if (!c->handle || !c->open)
			continue;
		uint64_t wait = gp_window_watch(c, now);
		if (!wait)
			gp_hint_closed(c, gp_now_ns());
		else if (!next || wait < next)
			next = wait;
	}
	return next;
}

void gp_watch_forever(void)
{
	gp_relax_captures(); // a capture in global mode must not be broken by our queries
	for (;;) {
		uint32_t seen = gp_wake;
		gp_futex_wait(&gp_wake, seen, watch(), false);
	}
}
