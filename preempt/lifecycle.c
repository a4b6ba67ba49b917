// lifecycle.c - contexts, streams, events, captures, graphs, threads and code come and go. This file alone knows which parts hear of
// that, and in which order.
#define _GNU_SOURCE
#include "preempt/preempt.h"
#include "preempt/blp/blp.h"
#include "preempt/code/code.h"
#include "preempt/gpu/gpu.h"
#include "preempt/gpu/objective.h"
#include "preempt/memory/memory.h"
#include "preempt/objects/objects.h"

#include <stdio.h>

// The calling thread prepares a context: what a profiler's callbacks do meanwhile is passed by.
static __thread bool preparing __attribute__((tls_model("initial-exec")));

static void refused(struct gp_refused_call *r, const char *call, CUresult result)
{
	r->call = call;
	r->result = result;
}

// False: the driver has not initialised the context yet, which a program may do long after it retained a primary context.
static bool prepare(struct gp_context *c)
{
	const char *hold = NULL, *fill = NULL, *blp = NULL;
	if (c->gpu->mps) // as was said before there was a context
		c->gpu->mps = gp_under_mps(c->gpu->device);
	// At the lowest level no process can be kept off the GPU, and under an MPS server the GPU is never another's alone.
	bool lowest = gp_settings.level == GP_LEVELS - 1;
	CUresult of_hold = gp_settings.hold && !lowest && !c->gpu->mps ? gp_hold_prepare(c, &hold) : CUDA_SUCCESS;
	if (of_hold == CUDA_ERROR_CONTEXT_IS_DESTROYED) {
		c->hold.state = GP_HOLD_ABSENT;
		return false;
	}
	// Its kernels are loaded before it has a domain: a load keeps a stop from going on.
	CUresult of_fill = gp_fill_prepare(c, &fill);
	CUresult of_blp = of_fill == CUDA_ERROR_CONTEXT_IS_DESTROYED ? of_fill : gp_blp_prepare(c, &blp);
	if (of_blp == CUDA_ERROR_CONTEXT_IS_DESTROYED)
		return false;
	if (gp_memory_prepare(c) == CUDA_ERROR_CONTEXT_IS_DESTROYED)
		return false;
	refused(&c->hold_refusal, hold, of_hold);
	refused(&c->blp_refusal, of_blp ? blp : fill, of_blp ? of_blp : of_fill);
	return true;
}

// Makes what is ours in a context before the program puts work there: on the thread for which the context becomes usable first,
// while others for which it becomes usable wait. To load a module waits for all work of the context, and keeps others from
// putting work there. Later it could wait for ever, behind work that waits for what the program would put there next.
void gp_context_usable(CUcontext handle)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	struct gp_context *c = gp_context_current(handle);

	if (!c || c->prepared || preparing)
		return;
	gp_exiting();
	int cancel = gp_cancel_off();
	pthread_mutex_lock(&lock);
	preparing = true;
	if (c->handle == handle && !c->prepared && prepare(c)) {
		c->prepared = c->initialised = 1;
		gp_notify();
	}
	preparing = false;
	pthread_mutex_unlock(&lock);
	gp_cancel_on(cancel);
}

static void forget(struct gp_context *c)
{
	gp_forget_wait(c);
	c->context_waits++;
	gp_hold_end(c);
	gp_forget_loaded(c);
	pthread_mutex_lock(&c->life_lock);
	pthread_mutex_lock(&c->query_lock);
	gp_hold_forget(c);
	c->hint.until_ns = c->hint.awaited_ns = 0;
	gp_context_leaves(c); // first: a window that another thread opened behind the drop would stay open
	gp_window_drop(c);
	pthread_mutex_unlock(&c->query_lock);
	pthread_mutex_unlock(&c->life_lock);
	c->context_waits--;
}

static void end_context(CUcontext handle)
{
	struct gp_context *c = gp_find_context(handle);

	if (!handle) // as nothing has that it is known of
		return;
	gp_memory_context_destroying(handle);
	gp_streams_forget_context(handle); // before the context's domains end
	gp_blp_context_destroying(handle);
	gp_objects_set_apart(handle);
	gp_unloads_finish(handle);
	gp_code_context_destroying(handle);
	if (!c)
		return;
	forget(c);
	gp_arena_context_destroying(handle); // no thread uses the context from here on, so none pins in it any more
	gp_notify();
}

// The driver refuses to destroy them: they end with their context.
static bool is_default(CUstream stream)
{
	return !stream || stream == GP_STREAM_LEGACY || stream == GP_STREAM_PER_THREAD;
}

static void end_stream(CUstream stream)
{
	if (is_default(stream))
		return;
	gp_known_stream_ends(stream);
	gp_streams_forget(stream); // before the stream's domain ends
	gp_blp_stream_destroying(stream);
	gp_stream_forget(stream);
	gp_object_set_apart(GP_STREAM, stream);
}

static void end_graph(CUgraphExec exec)
{
	gp_blp_graph_changed(exec);
	gp_object_set_apart(GP_GRAPH_INSTANCE, exec);
}

void gp_ending(enum gp_thing thing, void *handle)
{
	if (thing == GP_CONTEXT || thing == GP_STREAM)
		gp_captures_end_with(thing, handle);
	switch (thing) {
	case GP_CONTEXT:
		gp_contexts_ending++; // until gp_ended
		end_context(handle);
		break;
	case GP_STREAM: end_stream(handle); break;
	case GP_GRAPH_INSTANCE: end_graph(handle); break;
	case GP_EVENT:
		gp_event_forget(handle);
		if (gp_objective_on)
			gp_step_event_forget(handle);
		gp_object_set_apart(GP_EVENT, handle);
		break;
	}
}

// A context that goes on keeps the objects that were made in it, and the facts about them. Only its kernels are stopped no more: there
// may be work on its way that no log has.
static void ended_context(CUcontext handle, bool is)
{
	struct gp_context *c = gp_find_leaving(handle);

	gp_memory_context_destroyed(c, handle, is);
	gp_objects_destroyed(handle, is);
	if (c && gp_context_left(c, is)) {
		gp_hold_put_back(c);
		if (gp_blp_started)
			gp_log_line(
				"the driver keeps a context that the program has ended: its kernels are not stopped "
				"any more");
		gp_notify();
	}
	gp_contexts_ending--;
}

void gp_ended(enum gp_thing thing, void *handle, bool is)
{
	if (thing == GP_CONTEXT || thing == GP_STREAM)
		gp_captures_ended_with(thing, handle, is);
	if (thing == GP_CONTEXT)
		ended_context(handle, is);
	else if (thing != GP_STREAM || !is_default(handle))
		gp_object_destroyed(thing, handle, is);
}

// It is counted out of the gate last: until then it may use memory.
void gp_thread_ends(void)
{
	gp_waits_end_with_thread();
	gp_blp_thread_ends();
	gp_memory_claims_end();
	gp_memory_thread_ends();
}

void gp_event_shared(CUevent event)
{
	if (gp_blp_started)
		gp_blp_event_shared(event);
}

// Counted in: none begins while memory moves.
void gp_capture_beginning(CUstream stream)
{
	if (gp_objective_on)
		gp_lend_capture();
	gp_memory_enter();
	gp_capture_begins(stream);
	gp_blp_capture_beginning(stream);
	gp_memory_leave();
}

void gp_node_given(CUfunction function)
{
	gp_graph_kernel(gp_current_context(), function);
	gp_rank_kernel(function);
}

void gp_graph_changing(CUgraphExec exec)
{
	int cancel = gp_cancel_off();
	gp_blp_graph_changed(exec);
	gp_graph_changes(exec);
	gp_cancel_on(cancel);
}

void gp_graph_made(CUgraphExec exec, CUgraph graph)
{
	int cancel = gp_cancel_off();
	gp_object_begin(GP_GRAPH_INSTANCE, exec, NULL);
	struct gp_object *o = gp_graph_find(exec);
	if (o)
		o->graph.context = gp_current_handle();
	gp_blp_graph_instantiated(exec, graph);
	gp_graph_instantiated(exec, graph, gp_blp_wanted());
	gp_cancel_on(cancel);
}

void gp_unknown_function(const char *name)
{
	char text[192];

	bool was_wanted = gp_blp_unwant();
	gp_blp_retire(NULL); // also where another thread is at it
	if (!was_wanted)
		return;
	snprintf(text, sizeof text,
		 "the program uses %s of the driver, which is not known here and could overtake kernels that are "
		 "stopped: none is made preemptible, or stopped, from here on",
		 name);
	gp_log_line(text);
}

// May run on several threads at once: each carries out what the state is by then. It waits for nothing, since the driver may let no call
// begin.
void gp_membership_changed(void)
{
	for (uint32_t i = 0; i < gp_context_places && gp_membership != GP_JOINED; i++)
		if (gp_context[i].handle)
			gp_hold_release(&gp_context[i]);
	for (int i = 0; i < GP_GPUS && gp_gpu[i].known; i++) {
		gp_gpu_rescind(&gp_gpu[i]);
		gp_ring_gate(&gp_gpu[i]);
		gp_ring_windows(&gp_gpu[i]);
		gp_ring(&gp_gpu[i]);
	}
	gp_wake_watcher();
}
