// room.c - what becomes of a call that the driver refuses with CUDA_ERROR_OUT_OF_MEMORY.
//
// Who waits first lets lower levels run: their work must end before their memory can go. It says how much it wants in
// gp_memory, and rings the segment's bell. Agents make room, and the waiting process's own agent says when to try again.
#define _GNU_SOURCE
#include "preempt/memory/memory.h"

#include <limits.h>

enum {
	LOWEST_LEVEL = GP_LEVELS - 1,
	GUESS_BYTES = 64 << 20, // what a call wants that does not say it; twice as much each time it is refused again,
	DOUBLINGS = 4,          // up to 1 GiB: a context takes half of that
};

// A waiter reads changes, then most. The agent stores most, then changes.
static struct {
	_Atomic uint32_t changes;       // a futex
	_Atomic uint64_t least_refused; // who asks for so many bytes or more waits in vain; 0: nobody does
} room[GP_GPUS];

// A substitute has asked for this call, in vain: the interceptor around it must not ask once more.
static __thread bool in_vain __attribute__((tls_model("initial-exec")));

void gp_memory_room_changed(int gpu, uint64_t most)
{
	room[gpu].least_refused = most == UINT64_MAX ? 0 : most + 1;
	room[gpu].changes++;
	gp_futex_wake(&room[gpu].changes, INT_MAX, false);
}

static bool refused(int gpu, uint64_t bytes)
{
	uint64_t least = room[gpu].least_refused;
	return least && bytes >= least;
}

static bool beyond_limit(const struct gp_memory *m, uint64_t bytes)
{
	uint64_t limit = gp_memory_settings.limit_bytes, has = m->resident + m->swapped + m->pinned;
	return limit && (bytes > limit || has > limit - bytes);
}

// 0: none.
static uint64_t deadline(uint64_t began_ns)
{
	bool bounded = gp_settings.level != LOWEST_LEVEL && gp_memory_settings.wait_ns;
	return bounded ? began_ns + gp_memory_settings.wait_ns : 0;
}

// Sleeps until the agent says that something has changed, or until the deadline. False: the deadline has passed.
static bool wait_change(int gpu, uint32_t seen, uint64_t until_ns)
{
	while (room[gpu].changes == seen) {
		uint64_t now = gp_now_ns();
		if (until_ns && now >= until_ns)
			return false;
		gp_futex_wait(&room[gpu].changes, seen, until_ns ? until_ns - now : 0, false);
	}
	return true;
}

static bool wait_for_room(struct gp_gpu *g, uint64_t bytes, uint64_t began_ns)
{
	int gpu = (int)(g - gp_gpu);
	struct gp_memory *m = &gp_memory[gpu];
	uint32_t seen = room[gpu].changes;

	if (beyond_limit(m, bytes) || refused(gpu, bytes))
		return false;
	m->wanted += bytes;
	m->waiting++;
	gp_memory_others.give_way(g, true);
	struct gp_segment *s = g->segment; // where it is not attached yet, the agent's first look finds what is wanted
	if (s)
		gp_ring(s);
	bool changed = wait_change(gpu, seen, deadline(began_ns)) && !refused(gpu, bytes);
	gp_memory_others.give_way(g, false);
	m->waiting--;
	m->wanted -= bytes;
	return changed;
}

bool gp_memory_wait_for_room(struct gp_gpu *g, uint64_t bytes, uint64_t began_ns)
{
	struct gp_memory *m = &gp_memory[g - gp_gpu];
	uint64_t since = gp_now_ns();
	uint32_t inside = gp_memory_step_out();
	bool again = wait_for_room(g, bytes, began_ns);
	gp_memory_step_in(inside);
	gp_count(&m->waits, 1);
	gp_count(&m->wait_ns, gp_now_ns() - since);
	in_vain = !again;
	return again;
}

bool gp_memory_wait_again(struct gp_retry *r, struct gp_gpu *g)
{
	bool asked = in_vain;
	in_vain = false;
	if (!gp_memory_on || asked || !g)
		return false;
	if (!r->began_ns)
		r->began_ns = gp_now_ns();
	uint64_t guess = (uint64_t)GUESS_BYTES << r->tries;
	if (r->tries < DOUBLINGS)
		r->tries++;
	bool again = gp_memory_wait_for_room(g, guess, r->began_ns);
	in_vain = false;
	return again;
}
