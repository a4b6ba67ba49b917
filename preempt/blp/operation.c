// operation.c - what becomes of an operation of the program, by its kind.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"

// The watcher stops a domain within this time after a window has opened, or has the window ignored.
static const uint64_t HEARD_NS = 100 * 1000;

bool gp_blp_logs(const struct gp_operation *o)
{
	const struct gp_domain *d = o->handle && o->work == GP_KERNEL && !o->joint ? blp_domain_for(o) : NULL;
	if (!d || !blp_logs_launch(&o->launch))
		return false;
	for (uint64_t until = gp_now_ns() + HEARD_NS; blp_wanted_stopped(d);) {
		if (blp_is_closed(d))
			return true;
		if (gp_now_ns() >= until)
			return false;
	}
	return false;
}

static bool begin(struct gp_operation *o)
{
	if (o->captured && (o->work != GP_KERNEL || o->joint)) {
		if (o->work == GP_RECORD)
			blp_event_captured(o->event);
		return false;
	}
	switch (o->work) {
	case GP_KERNEL:
		if (!o->joint)
			return blp_launch(o, &o->launch);
		break;
	case GP_GRAPH:
		if (blp_launch_graph(o))
			return true;
		break;
	case GP_COPY:
	case GP_MEMSET:
		if (blp_fill(o))
			return true;
		break;
	case GP_RECORD: return blp_record(o);
	case GP_AWAIT: return blp_await(o);
	case GP_OTHER:
	case GP_FRAME: break;
	}
	blp_barrier(o);
	return false;
}

// Until the end the thread may have the domain's lock, or count there, while it is in the driver. Launches are left out, since two calls more
// would make each slower, and they wait there only for room in a queue. So is a wait for a frame, which may never come.
static void begin_uncancelled(struct gp_operation *o)
{
	if (o->work != GP_KERNEL && o->work != GP_GRAPH && o->work != GP_FRAME && !o->captured)
		o->cancellable = gp_cancel_off() == PTHREAD_CANCEL_ENABLE;
}

bool gp_blp_begin(struct gp_operation *o)
{
	begin_uncancelled(o);
	bool carried_out = begin(o);
	if (!o->logging)
		blp_enter_late();
	return carried_out;
}

void gp_blp_end(struct gp_operation *o)
{
	if (o->work == GP_AWAIT && (o->logging || o->passing))
		blp_awaited(o);
	if (o->logging)
		blp_logged(o);
	blp_end_late();
	if (o->twin)
		blp_graph_launched(o);
	if (o->passing)
		blp_passed(o);
	if (o->cancellable)
		gp_cancel_on(PTHREAD_CANCEL_ENABLE);
}
