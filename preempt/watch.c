// watch.c - the watcher: a thread that closes windows.
#define _GNU_SOURCE
#include "preempt/preempt.h"
#include "hints/hints.h"
#include "preempt/gpu/gpu.h"

// One look at a context. Under query_lock no context leaves its place and none takes one, so that a look that began at one
// context cannot end at another. Nanoseconds to the next look; 0: its window is closed.
static uint64_t look(struct gp_context *c, uint64_t now)
{
	static bool relaxed; // the watcher's
	uint64_t wait = 0;

	if (!relaxed) // not as the thread begins: the driver may not be initialised yet, and refuses it then
		gp_relax_captures(); // a capture in global mode must not be broken by our queries
	relaxed = true;
	pthread_mutex_lock(&c->query_lock);
	if (c->handle && c->open && !(wait = gp_window_watch(c, now)))
		gp_hint_closed(c, gp_now_ns());
	pthread_mutex_unlock(&c->query_lock);
	return wait;
}

// Nanoseconds to the next look; 0: no window is open.
static uint64_t watch(void)
{
	uint64_t now = gp_now_ns(), next = 0;

	for (int i = 0; i < GP_CONTEXTS; i++) {
		struct gp_context *c = &gp_context[i];
		if (!c->handle || !c->open)
			continue;
		uint64_t wait = look(c, now);
		if (wait && (!next || wait < next))
			next = wait;
	}
	gp_hint_pass_on(); // behind the looks, which arm the hold that a hint asks for: who is woken may take the processor
	return next;
}

void gp_watch_forever(void)
{
	for (;;) {
		uint32_t seen = gp_wake;
		gp_futex_wait(&gp_wake, seen, watch(), false);
	}
}
