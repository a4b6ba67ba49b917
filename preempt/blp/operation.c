// operation.c - what becomes of an operation of the program, by its kind.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"

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
	case GP_OTHER: break;
	}
	blp_barrier(o);
	return false;
}

bool gp_blp_begin(struct gp_operation *o)
{
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
}
