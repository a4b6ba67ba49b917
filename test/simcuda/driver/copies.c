// copies.c - the bus between the host and a device, where SIMCUDA_COPY_GBS gives it a rate.
//
// In each direction a process has one copy on the bus at a time; the next is taken from the same stream if that has one ready.
// Processes share a direction evenly. The bytes move as the time goes by, so a copy that is cut short has moved a part.
#include "executor.h"

#define LOOK_NS 500000 // how often a copy on the bus asks who else is there
#define DEVICES 8

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
