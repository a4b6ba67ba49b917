// room.c - what becomes of a call that the driver refuses with CUDA_ERROR_OUT_OF_MEMORY.
//
// A thread that waits first lets lower levels run, since their work must end before their memory can go. It claims as much as it
// wants (account.c) until its call is over, and rings the segment's bell. Agents make room, and the agent of the waiting process says
// when to try again.
#define _GNU_SOURCE
#include "preempt/memory/memory.h"

#include <limits.h>
#include <stdatomic.h>

enum {
	LOWEST_LEVEL = GP_LEVELS - 1,
	GUESS_BYTES = 64 << 20, // what a call wants that does not say it, and what more is tried for one that does:
				// twice as much each time it is refused though there was room
	PATIENCE = 4,           // so often in a row before more is tried: the driver may have had it a moment later
	DOUBLINGS = 16,
	UNKNOWN_PART = 8, // a call that does not say what it wants needs less than this part of the GPU
	CERTAIN = 3, // refusals in a row beside room after which no room helps: others may take it and give it back once
};

// A waiter reads changes, then the rest. The agent stores changes last.
static struct {
	_Atomic uint32_t changes;       // a futex
	_Atomic bool enough;            // as much is free as waiters want
	_Atomic uint64_t least_refused; // waiting for so many bytes or more is in vain; 0: for no number
	_Atomic bool unanswered;        // nobody makes room, or would say so to a call that waits
} room[GP_GPUS];

// A substitute has waited for this call in vain, or knows that it would: the interceptor around it must not wait.
static __thread bool in_vain __attribute__((tls_model("initial-exec")));

void gp_memory_room_changed(int gpu, uint64_t most, bool enough)
{
	room[gpu].enough = enough;
	room[gpu].least_refused = most == UINT64_MAX ? 0 : most + 1;
	room[gpu].unanswered = !most;
	room[gpu].changes++;
	gp_futex_wake(&room[gpu].changes, INT_MAX, false);
}

static bool refused(int gpu, uint64_t bytes)
{
	uint64_t least = room[gpu].least_refused;
	return least && bytes >= least;
}

uint64_t gp_memory_left(const struct gp_gpu *gpu, uint64_t beside)
{
	const struct gp_memory *m = &gp_memory[gpu - gp_gpu];
	uint64_t total = gp_memory_total(gpu), limit = gp_memory_limit(total), own = m->resident + m->swapped + m->pinned;
	uint64_t all = own + beside + gp_memory_managed(gpu);
	uint64_t of_gpu = total > own ? total - own : 0, of_limit = limit > all ? limit - all : 0;
	return limit && of_limit < of_gpu ? of_limit : of_gpu;
}

// The GPU's free memory by what all processes publish. Their numbers are untrusted, so the sum saturates.
static uint64_t unpublished(const struct gp_gpu *g)
{
	struct gp_segment *s = g->segment;
	const struct gp_memory *m = &gp_memory[g - gp_gpu];
	uint64_t total = gp_memory_total(g), taken = m->resident + m->pinned, other = 0, peers = 0;
	if (!s) // not attached yet: others may be there
		return 0;
	for (uint64_t members = s->members; members; members &= members - 1) {
		const struct gp_slot *slot = &s->slot[__builtin_ctzll(members)];
		uint64_t seen = slot->memory.other, resident = slot->memory.resident, pinned = slot->memory.pinned;
		other = seen > other ? seen : other;
		if (slot == &s->slot[g->slot]) // counted above
			continue;
		peers++;
		if (__builtin_add_overflow(taken, resident, &taken) || __builtin_add_overflow(taken, pinned, &taken))
			return 0;
	}
	if (peers && !other) // not measured yet: contexts always have something
		return 0;
	return __builtin_add_overflow(taken, other, &taken) || taken > total ? 0 : total - taken;
}

// Whether a refusal is a cap's (MPS v3, pinned memory limits) or has another cause, so that more room on the GPU does not help. The last
// GUESS_BYTES of the GPU may not be had in one piece. A cap that the driver tells of bounds what it says is free: then what all publish counts.
// counted: the accounts have these bytes already.
static bool is_capped(const struct gp_gpu *g, uint64_t bytes, bool counted)
{
	const struct gp_memory *m = &gp_memory[g - gp_gpu];
	uint64_t wants = bytes ? bytes : gp_memory_total(g) / UNKNOWN_PART, more = counted ? 0 : wants;
	size_t free, total;
	if (wants > UINT64_MAX / 2 || !gp_memory_ask_free(g, &free, &total))
		return false;
	if (free >= wants + GUESS_BYTES)
		return true;
	return gp_memory_is_cap(g, total) &&
	       (m->resident + m->pinned + more > total || unpublished(g) >= more + GUESS_BYTES);
}

void gp_memory_refused(const struct gp_gpu *g, uint64_t bytes, struct gp_retry *r)
{
	r->at_cap = is_capped(g, bytes, true);
}

static void say_capped(struct gp_memory *m)
{
	static _Atomic bool said;
	if (!m->cap)
		m->cap = m->resident + m->pinned;
	if (!atomic_exchange(&said, true))
		gp_log_line("the driver refuses memory that the GPU has: a cap of this process (MPS, control group); "
			    "its calls are out of memory at once");
}

// The bytes that a call is thought to need. The driver may want more than it was asked for, such as a block for a few bytes of it, or
// memory in one piece. Where no memory helps, this grows until it is more than there can be.
static uint64_t need_of(const struct gp_retry *r, uint64_t bytes)
{
	uint64_t rounded = bytes > UINT64_MAX / 2 ? bytes : (bytes + GP_GRANULE - 1) / GP_GRANULE * GP_GRANULE;
	uint32_t doublings = r->refused - (bytes ? PATIENCE : 0);
	if (bytes && r->refused < PATIENCE)
		return rounded;
	uint64_t more = (uint64_t)GUESS_BYTES << (doublings < DOUBLINGS ? doublings : DOUBLINGS);
	return rounded < UINT64_MAX / 2 ? rounded + more : rounded;
}

// told: the answer came while this call waited. An older answer does not count: since then the program may have freed memory,
// as programs that are out of memory do before they try again.
static uint64_t most_of(const struct gp_gpu *g, bool told)
{
	uint64_t beside = gp_memory_limit(gp_memory_total(g)) ? gp_memory_beside(g) : 0;
	uint64_t least = told ? room[g - gp_gpu].least_refused : 0, left = gp_memory_left(g, beside);
	return least && least - 1 < left ? least - 1 : left;
}

// 0: there is none. The level is that of now: a broker may have given the process another one.
static uint64_t deadline(uint64_t began_ns)
{
	bool bounded = gp_settings.level != LOWEST_LEVEL && gp_memory_settings.wait_ns;
	return bounded ? began_ns + gp_memory_settings.wait_ns : 0;
}

// Sleeps until the agent says that something has changed, or until the deadline. False: the deadline has passed, or there is no agent
// any more.
static bool wait_change(int gpu, uint32_t seen, uint64_t until_ns)
{
	while (room[gpu].changes == seen) {
		uint64_t now = gp_now_ns();
		if ((until_ns && now >= until_ns) || gp_helper_gone)
			return false;
		gp_futex_wait(&room[gpu].changes, seen,
			      until_ns && until_ns - now < GP_LOOK_NS ? until_ns - now : GP_LOOK_NS, false);
	}
	return true;
}

// False: nothing changed before the deadline, or no call is to have so much.
static bool wait_for(struct gp_gpu *g, uint64_t need, struct gp_retry *r)
{
	int gpu = (int)(g - gp_gpu);
	struct gp_memory *m = &gp_memory[gpu];
	uint32_t seen = room[gpu].changes;

	if (room[gpu].unanswered)
		return false;
	gp_account_claim(g, need, r);
	m->waiting++;
	gp_memory_others.give_way(g, true);
	gp_ring(g); // where no segment is attached yet, the agent's first look finds what is wanted
	bool changed = wait_change(gpu, seen, deadline(r->began_ns)) && !refused(gpu, need);
	gp_memory_others.give_way(g, false);
	m->waiting--;
	r->roomy = changed && room[gpu].enough;
	return changed;
}

// A thread that waits learns how much there can be at most. A call that may need less than was guessed is made once more.
static bool wait_for_room(struct gp_gpu *g, uint64_t bytes, struct gp_retry *r)
{
	for (int told = 0; told < 2; told++) {
		uint64_t need = need_of(r, bytes), most = most_of(g, told);
		bool all = need >= most;
		if (most < (bytes ? bytes : 1) || (all && r->all && r->roomy))
			return false;
		need = all ? most : need;
		if (wait_for(g, need, r)) {
			r->all = all;
			return true;
		}
		if (!refused((int)(g - gp_gpu), need))
			return false;
	}
	return false;
}

// Whether another process has been faster: less is free than this call claimed, though it heard of enough. Its refusal says nothing then.
static bool taken_meanwhile(const struct gp_gpu *g, const struct gp_retry *r)
{
	size_t free, total;
	struct gp_context *c = r->roomy ? gp_memory_try_context(g) : NULL;
	if (!c)
		return false;
	bool taken = !gp_driver.cuMemGetInfo(&free, &total) && free < r->claim;
	gp_memory_leave_context(c);
	return taken;
}

bool gp_memory_wait_for_room(struct gp_gpu *g, uint64_t bytes, struct gp_retry *r)
{
	struct gp_memory *m = &gp_memory[g - gp_gpu];
	uint64_t since = gp_now_ns();
	if (!r->began_ns)
		r->began_ns = since;
	if (!gp_memory_settings.asks) {
		in_vain = true;
		return false;
	}
	r->capped = r->at_cap ? r->capped + 1 : 0;
	if (r->at_cap) {
		r->at_cap = false;
		in_vain = r->capped >= CERTAIN;
		if (in_vain)
			say_capped(m);
		return !in_vain;
	}
	if (taken_meanwhile(g, r))
		r->roomy = false;
	r->refused = r->roomy ? r->refused + 1 : bytes ? 0 : r->refused;
	uint32_t inside = gp_memory_step_out();
	bool again = wait_for_room(g, bytes, r);
	gp_memory_step_in(inside);
	gp_count(&m->waits, 1);
	gp_count(&m->wait_ns, gp_now_ns() - since);
	in_vain = !again;
	return again;
}

void gp_memory_no_room_helps(void) { in_vain = true; }

bool gp_memory_wait_again(struct gp_retry *r, struct gp_gpu *g)
{
	bool asked = in_vain, again = false;
	if (gp_memory_counts && !asked && g) {
		r->at_cap = is_capped(g, r->bytes, false);
		again = gp_memory_wait_for_room(g, 0, r);
	}
	in_vain = false;
	if (!again)
		gp_memory_call_over(r);
	return again;
}
