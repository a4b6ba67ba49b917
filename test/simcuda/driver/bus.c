// bus.c - how the bytes of copies and memsets move, and the bus between host and device, where SIMCUDA_COPY_GBS gives it a rate.
//
// In each direction a process has one copy on the bus at a time; the next is taken from the same stream if that has one ready.
// Processes share a direction evenly. The bytes move as the time goes by, so a copy that is cut short has moved a part.
#include "executor.h"

#include <string.h>

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
			memmove((char *)w->dst + from, (w->staged ? (char *)w->staged : (char *)w->src) + from, bytes);
		else
			fill(w, from, bytes);
		device_acted();
		virtual_let_go();
		pthread_mutex_lock(&sim_lock);
	}
	return true;
}

static struct op *on_bus[DEVICES][2]; // of this process

// Moves what the bus has carried of a copy since the last look, at the rate of that time, and sets the rate from now on.
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
