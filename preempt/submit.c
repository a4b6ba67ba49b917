// submit.c - what happens at every operation that an application puts on a stream.
#define _GNU_SOURCE
#include "preempt/preempt.h"
#include "hints/hints.h"
#include "preempt/blp/blp.h"
#include "preempt/code/code.h"
#include "preempt/gpu/gpu.h"

#include <limits.h>

static void gate(struct gp_gpu *g)
{
	struct gp_segment *s = g->segment;
	struct gp_slot *slot = gp_own_slot(g);
	uint64_t began = gp_now_ns(), now = began, blocking;

	gp_count(&slot->gate_waits, 1);
	while ((blocking = s->open & g->higher & ~g->ignored) && !g->forced) {
		bool watched = gp_rewritten; // then blp/stop.c sees to this process's share
		if (now - began > gp_settings.max_hold_ns && !watched) {
			g->ignored |= blocking; // the agent looks at these again
			break;
		}
		uint32_t seen = s->gate;
		s->gate_waiters++;
		if (s->open & g->higher & ~g->ignored && !g->forced)
			gp_futex_wait(&s->gate, seen, gp_settings.max_hold_ns - (watched ? 0 : now - began) + 1, true);
		s->gate_waiters--;
		now = gp_now_ns();
	}
	gp_count(&slot->gate_ns, now - began);
}

static bool gates(const struct gp_gpu *g)
{
	return !g->forced && (gp_settings.gate == GP_GATE_ON || (gp_settings.gate == GP_GATE_UNDER_MPS && g->mps) || gp_rewritten);
}

// In the token, beside the context.
static const uint64_t FOLLOWS = 1; // work before this submission may be unfinished
static const uint64_t LOADS = 2;   // the call may wait for the whole context

void gp_before_submit(struct gp_submission *s)
{
	s->entered = s->work != GP_KERNEL && gp_enter_owner(s->stream); // the driver refuses kernels on another's streams
	struct gp_context *c = gp_current_context();
	s->token = 0;
	s->cpu |= s->work == GP_GRAPH && gp_rewritten && gp_graph_waits_for_cpu(s->graph);
	if (s->work == GP_OTHER && s->function)
		gp_code_let_pass(s->function);
	if (!c)
		return;
	struct gp_gpu *g = c->gpu;
	struct gp_segment *segment = g->segment; // NULL before the agent has attached
	if (g->ignored && segment)
		g->ignored &= segment->open; // the next window counts again
	if (gates(g) && segment && (segment->open & g->higher & ~g->ignored) && !(s->work == GP_KERNEL && gp_code_of(s->function) && gp_blp_logs(c)))
		gate(g);
	s->token = (uintptr_t)c | (gp_holds(c) && !gp_all_complete(c) ? FOLLOWS : 0);
	struct gp_stream *stream = gp_find_stream(c, s->stream, true);
	if (stream)
		s->sequence = ++stream->submitted;
	else
		c->overflow = 1;
	c->activity++;
	if (!c->open || c->hint.awaited_ns || c->copied_ns)
		gp_hint_work(c, s);
	uint64_t idle_since = c->idle_since_ns;
	if (idle_since) {
		gp_note_gap(c, gp_now_ns() - idle_since);
		c->idle_since_ns = 0;
	}
	// The hold goes first: behind a kernel it would come too late to keep the engine. Others are told of the window
	// when the work is on its way: that takes longer than the launch.
	if (!c->open && (s->wakes = gp_window_open(c)) && s->blocking) {
		gp_window_wake(g, s->wakes);
		s->wakes = 0;
	}
	if (!gp_holds(c))
		return;
	if ((s->work == GP_KERNEL && !gp_is_loaded(c, s->function)) || (s->work == GP_GRAPH && !gp_is_loaded(c, s->graph))) {
		s->token |= LOADS;
		c->context_waits++;
		gp_hold_end(c);
		return;
	}
	if (s->work != GP_COPY || gp_settings.hint_copy) // a copy announces kernels: the switch overlaps it
		gp_hold_arm(c);
}

static void submitted(struct gp_submission *s, CUresult result)
{
	struct gp_context *c = (struct gp_context *)(uintptr_t)(s->token & ~(FOLLOWS | LOADS));
	if (s->twin)
		gp_blp_graph_launched(s, result);
	if (s->passing)
		gp_blp_passed(s, result);
	if (!c)
		return;
	if (s->wakes)
		gp_window_wake(c->gpu, s->wakes);
	if (result == CUDA_SUCCESS && !c->gpu->worked)
		c->gpu->worked = 1;
	if (s->token & LOADS) {
		c->context_waits--;
		if (result == CUDA_SUCCESS)
			gp_remember_loaded(c, s->work == GP_KERNEL ? (void *)s->function : (void *)s->graph);
		if (gp_holds(c))
			gp_hold_arm(c);
	}
	if (s->work <= GP_GRAPH && gp_holds(c)) {
		enum gp_fit fit = s->work == GP_KERNEL ? gp_hold_fit(c, s) : gp_graph_fit(s->graph);
		bool follows = s->token & FOLLOWS;
		// A link that made room would sit down between this kernel and those before it; with nothing
		// before it, it cannot. Where there is no hold, none may be armed before this is over, by a hint for one.
		if (fit != GP_FITS && !follows && s->work == GP_KERNEL && c->hold.state == GP_HOLD_ARMED)
			gp_hold_step(c);
		else if (fit == GP_BLOCKED)
			gp_hold_yield(c);
	}
	if (s->blocking && result == CUDA_SUCCESS) {
		struct gp_stream *stream = gp_find_stream(c, s->stream, false);
		// Every thread has a per-thread default stream of its own, and they share an entry.
		if (stream && s->stream != GP_STREAM_PER_THREAD)
			gp_completed(c, stream, s->sequence);
	}
}

void gp_after_submit(struct gp_submission *s, CUresult result)
{
	submitted(s, result);
	if (s->entered)
		gp_leave_owner();
}
