// bus.c - how the bytes of copies and memsets move, and the bus between host and device, where SIMCUDA_COPY_GBS gives it a rate.
//
// In each direction a process has one copy on the bus at a time; the next is taken from the same stream if that has one ready.
// Processes share a direction evenly. The bytes move as the time goes by, so a copy that is cut short has moved a part.
#define _GNU_SOURCE
#include "executor.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>

#define LOOK_NS 500000   // how often a copy on the bus asks who else is there
#define PIECE (1u << 20) // bytes that are moved before it is asked again whether they may be
#define DEVICES 8

static void fill(const struct work *w, uint64_t from, uint64_t bytes)
{
	char *to = (char *)w->dst + from;
	if (w->width == 1)
		memset(to, (int)w->value, bytes);
	else
		for (uint64_t i = 0; i < bytes; i += (uint64_t)w->width)
			memcpy(to + i, &w->value, (size_t)w->width);
}

static bool reaches(const struct work *w, uint64_t from, uint64_t bytes)
{
	if (w->kind == OP_MEMSET)
		return address_copied(w->dst + from, bytes);
	return (!w->known_dst || address_copied(w->dst + from, bytes)) &&
	       (!w->known_src || w->staged || address_copied(w->src + from, bytes));
}

// ---- pages of zeros. Most of these are untouched pages: a copy of them touches none
#define PAGE 4096ull
#define WORTH (64u << 10) // bytes of a copy that is looked at so

static bool nothing_is_swapped(void)
{
	static _Atomic int answer; // -1: something may be
	struct sysinfo machine_has;
	if (!answer)
		answer = sysinfo(&machine_has) == 0 && machine_has.totalswap == 0 ? 1 : -1;
	return answer > 0;
}

// Whether each page of a range of at most a piece has been touched. The memory is anonymous, or of a file that is in memory.
static bool find_touched(uint64_t from, uint64_t pages, unsigned char *touched)
{
	return mincore((void *)from, pages * PAGE, touched) == 0;
}

static bool all_zeros(const char *from, uint64_t bytes) { return !*from && !memcmp(from, from + 1, bytes - 1); }

// Moves at most a piece. A piece that begins or ends in the middle of a page has only a part of that page.
static void move(const struct work *w, char *to, const char *from, uint64_t bytes)
{
	unsigned char source[PIECE / PAGE + 1], target[PIECE / PAGE + 1];
	uint64_t first = (uint64_t)from / PAGE, first_to = (uint64_t)to / PAGE;
	bool apart = (uint64_t)(to - from) >= bytes && (uint64_t)(from - to) >= bytes;
	if (bytes < WORTH || !apart || !w->known_dst || !w->known_src || w->staged || !nothing_is_swapped() ||
	    !find_touched(first * PAGE, ((uint64_t)from + bytes - 1) / PAGE - first + 1, source) ||
	    !find_touched(first_to * PAGE, ((uint64_t)to + bytes - 1) / PAGE - first_to + 1, target)) {
		memmove(to, from, bytes);
		return;
	}
	for (uint64_t done = 0, n; done < bytes; done += n) { // up to the next page of either
		uint64_t at = (uint64_t)from + done, at_to = (uint64_t)to + done, left = PAGE - at % PAGE;
		n = left < PAGE - at_to % PAGE ? left : PAGE - at_to % PAGE;
		n = n < bytes - done ? n : bytes - done;
		bool zeros = !(source[at / PAGE - first] & 1) || all_zeros(from + done, n);
		if (!zeros)
			memmove(to + done, from + done, n);
		else if (target[at_to / PAGE - first_to] & 1)
			memset(to + done, 0, n);
	}
}

// Moves the bytes from .. to - 1 in pieces, since another thread may unmap the memory meanwhile.
bool transfer(struct CUctx_st *c, const struct work *w, uint64_t from, uint64_t to)
{
	for (; from < to; from += PIECE) {
		uint64_t bytes = to - from < PIECE ? to - from : PIECE;
		if (!reaches(w, from, bytes)) {
			fault(c);
			return false;
		}
		if (w->bytes >= PIECE && !sim_contents())
			continue;
		virtual_hold();
		sim_unlock();
		device_acts();
		if (w->kind == OP_COPY)
			move(w, (char *)w->dst + from, (w->staged ? (char *)w->staged : (char *)w->src) + from, bytes);
		else
			fill(w, from, bytes);
		device_acted();
		virtual_let_go();
		pthread_mutex_lock(&sim_lock);
	}
	return true;
}

static struct op *on_bus[DEVICES][2]; // of this process

// Moves a copy's bytes that the bus has carried since the last look, at the rate of that time. Sets the rate from now on.
bool step_bus(struct pass *p, struct op *o)
{
	struct work *w = &o->work;
	int device = p->c->device, direction = w->from_device;
	struct op **mine = &on_bus[device][direction];
	if (*mine && *mine != o)
		return false; // its end wakes us
	uint64_t now = now_ns();
	if (!*mine) {
		*mine = o;
		trace_line("bus", direction ? "from" : "to", w->bytes);
		o->carried_ns = now + machine.copy_latency_ns;
		o->rate = 0;
	}
	if (now > o->carried_ns) {
		o->carried += (double)(now - o->carried_ns) * o->rate;
		o->carried_ns = now;
	}
	uint64_t carried = o->carried < (double)w->bytes ? (uint64_t)o->carried : w->bytes;
	if (!transfer(p->c, w, o->moved, carried))
		return true;
	o->moved = carried;
	if (carried == w->bytes)
		return true;
	uint64_t begin = o->carried_ns > now ? o->carried_ns : now;
	struct bus_users users =
		engine_bus(device, direction,
			   o->rate > 0 ? begin + (uint64_t)(((double)w->bytes - o->carried) / o->rate) : begin + LOOK_NS);
	o->rate = sim_bus_rate(direction, users.opposite > 0) / (1 + users.beside);
	uint64_t end = begin + (uint64_t)(((double)w->bytes - o->carried) / o->rate) + 1;
	due(p, end < now + LOOK_NS ? end : now + LOOK_NS);
	return false;
}

void leave_bus(struct op *o, int device)
{
	for (int direction = 0; direction < 2; direction++)
		if (on_bus[device][direction] == o) {
			on_bus[device][direction] = NULL;
			trace_line("free", direction ? "from" : "to", o->moved);
			engine_bus(device, direction, 0);
		}
}
