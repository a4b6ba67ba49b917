// submit.c - the way of every operation that the program puts on a stream.
#define _GNU_SOURCE
#include "preempt/preempt.h"
#include "hints/hints.h"
#include "preempt/blp/blp.h"
#include "preempt/code/code.h"
#include "preempt/gpu/gpu.h"
#include "preempt/gpu/objective.h"
#include "preempt/memory/memory.h"

#include <limits.h>

// Waits while a higher level has its window open. Memory may move meanwhile: it is that level which may want the room.
static void gate(struct gp_gpu *g, const struct gp_operation *o)
{
	struct gp_segment *s = g->segment;
	struct gp_slot *slot = gp_own_slot(g);
	uint64_t began = gp_now_ns(), now = began, blocking;
	bool counted = !gp_images_rewritten; // else blp/stop.c keeps this process's share

	if (counted && !gp_gate_enter(g, now))
		return;
	uint32_t inside = gp_memory_step_out();
	bool told = g->mps; // else turns decide which process runs
	if (told)
		gp_gpu_waits(g, true);
	gp_count(&slot->gate_waits, 1);
	while ((blocking = gp_windows_open(s, g->higher & ~g->ignored)) && gp_heeds_windows(g)) {
		uint32_t first = (uint32_t)__builtin_ctzll(blocking), seen = gp_gate_seen(g, first);
		if ((counted && gp_gate_owes(g, now)) || gp_blp_logs(o)) // the stop may have come late
			break;
		bool watched = gp_images_rewritten;      // a module was loaded meanwhile
		uint64_t most = gp_settings.max_hold_ns; // a broker may change it
		if (now - began > most && !watched) {
			g->ignored |= blocking; // until the agent looks at the peers again
			break;
		}
		gp_wait_gate(g, first, seen, most - (watched ? 0 : now - began) + 1, true);
		now = gp_now_ns();
	}
	if (told)
		gp_gpu_waits(g, false);
	if (counted)
		gp_gate_leave(g, now);
	gp_count(&slot->gate_ns, now - began);
	gp_memory_step_in(inside);
}

static bool gates(const struct gp_gpu *g)
{
	return !g->forced && (gp_settings.gate == GP_GATE_ON || (gp_settings.gate == GP_GATE_UNDER_MPS && g->mps) ||
			      gp_images_rewritten);
}

// The one place on the way where the driver is asked which context is current, and which one the stream belongs to.
static void resolve(struct gp_operation *o)
{
	o->handle = gp_current_handle();
	o->entered = o->work != GP_KERNEL &&
		     gp_enter_owner(o->stream, &o->handle); // the driver refuses kernels on another's streams
	o->context = gp_find_context(o->handle);
}

// Of a context that is not known, or could not be prepared yet.
static __attribute__((noinline)) void meet(struct gp_operation *o)
{
	if (o->context)
		gp_context_usable(o->handle);
	if (gp_blp_started)
		gp_blp_meet(o);
}

static void prepare(struct gp_operation *o)
{
	o->cpu |= o->work == GP_GRAPH && gp_images_rewritten && gp_graph_waits_for_cpu(o->graph);
	if (o->work == GP_OTHER && o->launch.function)
		gp_code_let_pass(o->launch.function);
	if (__builtin_expect(!o->context || !o->context->prepared, 0))
		meet(o);
	struct gp_context *c = o->context;
	if (!c)
		return;
	if (__builtin_expect(gp_objective_on, 0) && o->work <= GP_MEMSET) // before windows, slots and the driver, which take time
		gp_step_submits(c);
	struct gp_gpu *g = c->gpu;
	struct gp_segment *segment = g->segment; // NULL before the agent has attached
	if (g->ignored && segment)
		gp_forget_closed(g);
	if (__builtin_expect(gp_membership != GP_JOINED, 0))
		o->asked = gp_takes_part() ? 0 : gp_membership_question();
	else if (gates(g) && segment && gp_windows_open(segment, g->higher & ~g->ignored) && !gp_blp_logs(o))
		gate(g, o);
	enum gp_lending lent = GP_LENDS_NOT;
	if (__builtin_expect(gp_objective_on, 0) && o->work <= GP_GRAPH &&
	    __builtin_expect((lent = gp_step_launch(c, o)) != GP_LENDS_NOT, 0))
		gp_steps_lend(c, lent);
	o->follows = gp_holds(c) && !gp_all_complete(c);
	struct gp_stream *stream = gp_find_stream(c, o->stream, true);
	o->place = stream ? stream : &c->others;
	o->sequence = o->place->settled + 1;
	o->place->submitted++;
	uint64_t awaited = 0, idle_since = gp_window_submit(c, lent);
	if ((!gp_is_open(c) && !lent) || c->hint.awaited_ns || c->copied_ns)
		awaited = gp_hint_work(c, o);
	if (idle_since)
		gp_note_gap(c, idle_since, awaited);
	// The hold goes first: behind a kernel it would come too late to keep the engine. The library wakes others for the window only
	// when the work is on its way, since waking takes longer than the launch. A call that blocks comes back too late for that.
	if (!gp_is_open(c) && (o->wakes = gp_window_open(c)) && o->blocking) {
		gp_window_wake(g, o->wakes);
		o->wakes = 0;
	}
	if (lent)
		gp_lend_over(g);
	if (!gp_holds(c))
		return;
	if ((o->work == GP_KERNEL && !gp_is_loaded(c, o->launch.function)) ||
	    (o->work == GP_GRAPH && !gp_graph_is_loaded(c, o->graph))) {
		o->loads = true;
		gp_load_begin(c);
		return;
	}
	if (o->work != GP_COPY || gp_settings.hint_copy) // kernels follow a copy: the switch overlaps the copy
		gp_hold_arm(c);
}

// The operation is on its way, or the driver refused it.
static void settle(struct gp_operation *o)
{
	struct gp_context *c = o->context;
	if (o->place) // else that was done before the driver was called (wait_outside)
		gp_settled(o->place);
	if (o->wakes)
		gp_window_wake(c->gpu, o->wakes);
	if (o->result == CUDA_SUCCESS && !c->gpu->worked)
		c->gpu->worked = 1;
	if (o->loads) {
		gp_load_end(c);
		if (o->result == CUDA_SUCCESS && o->work == GP_GRAPH)
			gp_remember_loaded_graph(c, o->graph);
		else if (o->result == CUDA_SUCCESS)
			gp_remember_loaded(c, o->launch.function);
		if (gp_holds(c))
			gp_hold_arm(c);
	}
	if (o->work <= GP_GRAPH && gp_holds(c)) {
		enum gp_fit fit = o->work == GP_KERNEL ? gp_hold_fit(c, &o->launch) : gp_graph_fit(o->graph);
		// With work ahead of the kernel, a link that makes room would run between that work and the kernel. Without a hold, a
		// hint must not arm one before a blocked kernel has ended.
		if (fit != GP_FITS && !o->follows && o->work == GP_KERNEL && c->hold.state == GP_HOLD_ARMED)
			gp_hold_step(c);
		else if (fit == GP_BLOCKED)
			gp_hold_yield(c);
	}
	if (o->result != CUDA_SUCCESS)
		return;
	if (o->blocking && o->stream != GP_STREAM_PER_THREAD && o->place != &c->others) // these share one place
		gp_completed(c, o->place, o->sequence);
	if (o->work == GP_RECORD)
		gp_event_recorded(c, o->place, o->event, o->sequence);
	if (__builtin_expect(gp_objective_on, 0) && o->work != GP_KERNEL && o->work != GP_GRAPH)
		gp_steps_settled(c, o);
}

static void leave(struct gp_operation *o)
{
	if (o->asked && o->result == CUDA_SUCCESS)
		gp_checkpoint_refuted(o->asked);
	if (o->entered)
		gp_leave_owner();
	if (o->counted)
		gp_memory_leave_slowly();
}

static CUresult finish(struct gp_operation *o)
{
	if (gp_blp_started)
		gp_blp_end(o);
	if (o->blocking && o->work == GP_COPY && o->result == CUDA_SUCCESS && o->context)
		gp_copy_returned(o);
	if (o->context)
		settle(o);
	if (o->entered | o->counted | !!o->asked)
		leave(o);
	return o->result;
}

// A captured operation puts no work on a stream. But a kernel's code may be loaded, and the arguments of a rewritten kernel have
// to be completed.
static bool begin_captured(struct gp_operation *o)
{
	o->captured = true;
	if (o->work == GP_KERNEL)
		gp_wait_begin(GP_LOAD, o->launch.function);
	if (!gp_blp_started || !gp_blp_begin(o))
		return true;
	gp_operation_end(o, o->result);
	return false;
}

// Comes first: while its memory is out, a process counts as idle, opens no window and arms no hold. Several kernels of one
// call are nested. The operation lies in the frame of the interceptor.
static __attribute__((noinline)) void count_in(struct gp_operation *o)
{
	if (o->joint)
		gp_memory_enter_again(o);
	else
		gp_memory_enter_slowly(o);
	o->counted = true;
}

// Another thread's call waits for the context (preempt/blp/take.c). Its memory may move meanwhile.
static __attribute__((noinline)) void keep_off(const struct gp_operation *o)
{
	if (!gp_blp_keeps_off(o))
		return;
	uint32_t inside = gp_memory_step_out();
	gp_blp_keep_off(o);
	gp_memory_step_in(inside);
}

// The call waits for a frame that may never come. Meanwhile memory may move: the driver's own work for the frame does not use it. The
// window may close too, for no work of this process is under way.
static __attribute__((noinline)) void wait_outside(struct gp_operation *o)
{
	if (o->place)
		gp_settled(o->place);
	o->place = NULL;
	if (o->wakes)
		gp_window_wake(o->context->gpu, o->wakes);
	o->wakes = 0;
	if (o->counted)
		gp_memory_leave_slowly();
	o->counted = false;
}

bool gp_operation_begin(struct gp_operation *o)
{
	if (__builtin_expect(gp_memory_on, 0))
		count_in(o);
	if (gp_is_captured(o->stream))
		return begin_captured(o);
	resolve(o);
	if (__builtin_expect(gp_blp_takes, 0))
		keep_off(o);
	prepare(o);
	if (gp_blp_started && gp_blp_begin(o)) {
		if (!o->taken) // what was only logged proves nothing
			o->asked = 0;
		finish(o);
		return false;
	}
	if (__builtin_expect(o->work == GP_FRAME, 0))
		wait_outside(o);
	return true;
}

CUresult gp_operation_end(struct gp_operation *o, CUresult result)
{
	o->result = result;
	if (!o->captured)
		return finish(o);
	if (o->work == GP_KERNEL)
		gp_wait_end(GP_LOAD, o->launch.function, result);
	if (o->counted)
		gp_memory_leave_slowly();
	return result;
}
