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
	if (c->handle && gp_is_open(c) && !(wait = gp_window_watch(c, now)))
		gp_hint_closed(c, gp_now_ns());
	pthread_mutex_unlock(&c->query_lock);
	return wait;
}

static _Atomic bool looks;

// Nanoseconds to the next look; 0: no window is open, or the driver lets no question through.
static uint64_t watch(void)
{
	uint64_t now = gp_now_ns(), next = 0;

	if (!gp_takes_part())
		return 0;
	looks = true;
	for (int i = 0; i < GP_CONTEXTS; i++) {
		struct gp_context *c = &gp_context[i];
		if (!c->handle || !gp_is_open(c))
			continue;
		uint64_t wait = look(c, now);
		if (wait && (!next || wait < next))
			next = wait;
	}
	looks = false;
	gp_wake_hint_thread(); // behind the looks, which arm the hold that a hint asks for: the woken thread may take the processor
	return next;
}

void gp_watch_forever(void)
{
	for (;;) {
		uint32_t seen = gp_wake;
		gp_futex_wait(&gp_wake, seen, watch(), false);
	}
}

// A number that changes with each operation on a GPU, while the program or the watcher's question waits there. 0: neither waits.
uint64_t gp_waits_behind(const struct gp_gpu *g)
{
	uint64_t sum = 0;
	bool waits = false;
	for (uint32_t i = 0; i < gp_context_places; i++) {
		const struct gp_context *c = &gp_context[i];
		if (!c->handle || c->gpu != g || !gp_is_open(c))
			continue;
		sum += gp_activity(c) + 1;
		waits |= c->waits || c->context_waits || looks;
	}
	return waits ? sum : 0;
}
