// submit.c - what happens at every operation that an application puts on a stream, and where it waits.
#define _GNU_SOURCE
#include "blp.h"
#include "code.h"
#include "core.h"

#include <limits.h>

static void gate(struct gp_gpu *g)
{
	struct gp_segment *s = g->segment;
	struct gp_slot *slot = gp_own_slot(g);
	uint64_t began = gp_now_ns(), now = began, blocking;

	gp_count(&slot->gate_waits, 1);
	while ((blocking = s->open & g->higher & ~g->ignored) && !g->forced) {
		bool watched = gp_rewritten; // then blp_stop.c sees to this process's share
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

bool gp_holds(struct gp_context *c)
{
	return gp_settings.hold && !c->gpu->mps && c->gpu->lower_peers && gp_hold_usable(c);
}

// In the token, beside the context.
static const uint64_t FOLLOWS = 1; // work before this submission may be unfinished
static const uint64_t LOADS = 2;   // the call may wait for the whole context

static void before_submit(struct gp_submission *s)
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
	if (result == CUDA_SUCCESS_ && !c->gpu->worked)
		c->gpu->worked = 1;
	if (s->token & LOADS) {
		c->context_waits--;
		if (result == CUDA_SUCCESS_)
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
	if (s->blocking && result == CUDA_SUCCESS_) {
		struct gp_stream *stream = gp_find_stream(c, s->stream, false);
		// Every thread has a per-thread default stream of its own, and they share an entry.
		if (stream && s->stream != GP_STREAM_PER_THREAD)
			gp_completed(c, stream, s->sequence);
	}
}

static void after_submit(struct gp_submission *s, CUresult result)
{
	submitted(s, result);
	if (s->entered)
		gp_leave_owner();
}

// What the calling thread waits for, between before_wait and after_wait.
static __thread struct {
	struct gp_context *context;
	uint64_t whole; // places of the contexts that it may wait for as a whole, a bit each
	bool counted; // in waits
	const void *loads;
	struct gp_stream *stream;
	uint64_t sequence;
} waiting __attribute__((tls_model("initial-exec")));

// Calls that are counted as waiting: in processes that take turns.
static bool waits(enum gp_wait kind)
{
	return gp_settings.turns && kind != GP_ASK_STREAM && kind != GP_ASK_EVENT;
}

static uint64_t place_of(const struct gp_context *c) { return 1ull << (c - gp_context); }
_Static_assert(GP_CONTEXTS <= 64, "a bit for each context");

void gp_forget_wait(struct gp_context *c)
{
	if (waiting.whole & place_of(c))
		c->context_waits--;
	waiting.whole &= ~place_of(c);
	if (waiting.context != c)
		return;
	if (waiting.counted)
		c->waits--;
	waiting.counted = false;
	waiting.context = NULL;
}

// The calling thread's wait that has not ended: the driver called a profiler back inside of it, which waits too, or the
// program left it by longjmp. What it counted would never be taken back.
static void forget_outer(void)
{
	for (uint64_t left = waiting.whole; left; left &= left - 1)
		gp_forget_wait(&gp_context[__builtin_ctzll(left)]);
	if (waiting.context)
		gp_forget_wait(waiting.context);
}

// The contexts that a call may wait for, or whose code it may load, which waits too.
static uint64_t waited_for(enum gp_wait kind, void *what, const struct gp_context *current)
{
	const struct gp_gpu *gpu = NULL;
	uint64_t places = 0;

	if (kind == GP_WAIT_CONTEXT || kind == GP_LOAD || (kind == GP_TAKE && what == GP_CURRENT))
		return current ? place_of(current) : 0;
	if (kind == GP_TAKE && what) {
		const struct gp_context *c = gp_find_context(what);
		return c ? place_of(c) : 0;
	}
	if (kind == GP_TAKE_MEMORY && gp_gpu[1].known)
		gpu = gp_gpu_of_memory((CUdeviceptr)(uintptr_t)what);
	for (int i = 0; i < GP_CONTEXTS; i++)
		if (gp_context[i].handle && (!gpu || gp_context[i].gpu == gpu))
			places |= place_of(&gp_context[i]);
	return places;
}

static void wait_whole(struct gp_context *c)
{
	c->context_waits++;
	if (c->hold.state == GP_HOLD_ARMED && gp_own_slot(c->gpu))
		gp_count(&gp_own_slot(c->gpu)->holds_released, 1);
	gp_hold_end(c);
}

static void waited_whole(struct gp_context *c, const struct gp_context *current)
{
	c->context_waits--;
	if (c == current && c->open && gp_holds(c)) // another's hold comes with its next work
		gp_hold_arm(c);
}

static bool before_wait(enum gp_wait kind, void *what)
{
	bool over = gp_blp_before_wait(kind, what);
	struct gp_context *c = gp_current_context();
	forget_outer();
	waiting.context = c;
	waiting.stream = NULL;
	waiting.loads = NULL;
	if (kind == GP_LOAD) {
		if (!c || gp_is_loaded(c, what)) {
			waiting.context = NULL;
			return over;
		}
		waiting.loads = what;
	}
	if (gp_waits_for_context(kind))
		waiting.whole = waited_for(kind, what, c);
	for (uint64_t left = waiting.whole; left; left &= left - 1)
		wait_whole(&gp_context[__builtin_ctzll(left)]);
	if (!c)
		return over;
	if (waits(kind)) { // perhaps for work of the driver's own, which nobody counts: that is demand for a turn too
		c->waits++;
		waiting.counted = true;
		if (!c->open && c->gpu->turn_peers)
			gp_window_wake(c->gpu, gp_window_open(c));
	}
	if (gp_waits_for_context(kind))
		return over;
	if (kind == GP_WAIT_STREAM || kind == GP_ASK_STREAM) {
		waiting.stream = what == GP_STREAM_PER_THREAD ? NULL : gp_find_stream(c, what, false);
		waiting.sequence = waiting.stream ? waiting.stream->submitted : 0;
	} else {
		for (int i = 0; i < GP_STREAMS && c->stream[i].handle; i++)
			if (c->stream[i].event == (CUevent)what) {
				waiting.stream = c->stream[i].handle == GP_STREAM_PER_THREAD ? NULL : &c->stream[i];
				waiting.sequence = c->stream[i].event_at;
				break;
			}
	}
	return over;
}

static void after_wait(enum gp_wait kind, void *what, CUresult result)
{
	struct gp_context *c = waiting.context;
	(void)what;
	waiting.context = NULL;
	if (waiting.loads && c && result == CUDA_SUCCESS_)
		gp_remember_loaded(c, waiting.loads);
	for (uint64_t left = waiting.whole; left; left &= left - 1)
		waited_whole(&gp_context[__builtin_ctzll(left)], c);
	waiting.whole = 0;
	if (!c)
		return;
	if (waiting.counted)
		c->waits--;
	waiting.counted = false;
	if (gp_waits_for_context(kind))
		return;
	if (waiting.stream && result == CUDA_SUCCESS_)
		gp_completed(c, waiting.stream, waiting.sequence);
	if ((!c->yielded && c->hold.state != GP_HOLD_ARMED) || !gp_all_complete(c))
		return;
	if (c->yielded) {
		c->yielded = 0;
		if (c->open && gp_holds(c))
			gp_hold_arm(c);
	} else {
		gp_hold_settle(c);
	}
}

static struct gp_hooks hooks = {
	.before_submit = before_submit,
	.after_submit = after_submit,
	.event_recorded = gp_event_recorded,
	.before_wait = before_wait,
	.after_wait = after_wait,
	.connecting = gp_mps_connecting,
	.connected = gp_mps_connected,
	.context_current = gp_context_current,
	.context_destroying = gp_context_destroying,
	.stream_creating = gp_stream_creating,
	.stream_created = gp_stream_created,
	.stream_priority = gp_stream_priority,
	.stream_destroying = gp_stream_destroying,
	.graph_instantiated = gp_graph_instantiated,
	.graph_destroying = gp_forget_graph,
	.capture_beginning = gp_capture_beginning,
	.capture_ended = gp_capture_ended,
	.rm_ioctl = gp_rm_ioctl,
	.pinned = gp_hint_pinned,
};

static void fill_in(void)
{
	gp_load_hooks(&hooks);
	gp_blp_hooks(&hooks);
	gp_fill_hooks(&hooks);
}

const struct gp_hooks *gp_core_hooks(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT; // others read them from the first time on
	pthread_once(&once, fill_in);
	return &hooks;
}
