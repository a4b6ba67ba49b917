// steps.c - where the steps of an engine show in the program's calls, and what the program may say of them (../api/gpreempt.h).
#define _GNU_SOURCE
#include "preempt/preempt.h"
#include "preempt/gpu/objective.h"
#include "preempt/memory/memory.h"
#define GPREEMPT_WEAK // here they are defined
#include "api/gpreempt.h"

#define PUBLIC __attribute__((visibility("default")))

void gp_steps_lend(struct gp_context *c, enum gp_lending how)
{
	uint32_t inside = gp_memory_step_out();
	gp_lend(c, how);
	gp_memory_step_in(inside);
}

// The bytes of a result: of a copy to the host's memory that is small enough. 0: it is none.
static uint64_t result_bytes(const struct gp_context *c, const struct gp_operation *o)
{
	uint64_t most = gp_step_result_bytes(c->gpu);
	if (o->work != GP_COPY)
		return 0;
	if (o->memory.height != 1) // else cuMemcpy and the like, from and to any memory
		return o->memory.to_host <= most ? o->memory.to_host : 0;
	if (!o->memory.width || o->memory.width > most)
		return 0;
	unsigned type = gp_memory_type(o->memory.to);
	return type == GP_MEMORY_PAGEABLE || type == CU_MEMORYTYPE_HOST ? o->memory.width : 0;
}

void gp_steps_settled(struct gp_context *c, const struct gp_operation *o)
{
	if (!o->place)
		return;
	if (o->work == GP_RECORD && o->event) {
		gp_step_recorded(c, o->place, o->event);
		return;
	}
	uint64_t bytes = result_bytes(c, o);
	if (bytes) {
		gp_step_copied(c, o->place, o->sequence, bytes);
		if (o->blocking)
			gp_step_stream_done(c, o->place, o->sequence);
	}
}

void gp_steps_waited(struct gp_context *c, enum gp_wait kind, void *what, struct gp_stream *stream, uint64_t sequence,
		     uint64_t results)
{
	if (kind == GP_WAIT_EVENT || kind == GP_ASK_EVENT)
		gp_step_event_done(c, what);
	else if ((kind == GP_WAIT_STREAM || kind == GP_ASK_STREAM) && stream)
		gp_step_stream_done(c, stream, sequence);
	else if (kind == GP_WAIT_ALL)
		gp_step_all_done(c, results);
}

PUBLIC int gpreempt_step(void)
{
	struct gp_context *c = gp_driver.cuCtxGetCurrent && gp_objective_on ? gp_current_context() : NULL;
	if (!c)
		return -1;
	gp_step_said(c->gpu);
	return 0;
}

PUBLIC int gpreempt_objective(double slowdown, double step_ms, double first_ms)
{
	return gp_objective_set(slowdown, step_ms * 1e6, first_ms * 1e6) ? 0 : -1;
}
