// waits.c - the way of every call that waits, or asks whether work is done.
#define _GNU_SOURCE
#include "preempt/preempt.h"
#include "hints/hints.h"
#include "preempt/blp/blp.h"
#include "preempt/gpu/gpu.h"
#include "preempt/gpu/objective.h"

// The calling thread's wait, from gp_wait_begin to gp_wait_end.
GP_OF_THREAD struct waiting {
	struct gp_context *context;
	uint64_t whole; // The contexts that it may wait for as a whole: one bit for each place in gp_context.
	bool counted;   // The thread is counted in the context's waits.
	bool answers;   // The driver's function is not called: gp_wait_end waits for the streams, beside a hold.
	uint32_t loading[GP_CONTEXTS]; // Launches under way that load code, each counted in its context's waits.
	uint64_t settled[GP_STREAMS];  // How much each stream of the context had settled when that wait began.
	CUstream handle[GP_STREAMS];
	const void *loads;
	struct gp_stream *stream;
	uint64_t sequence;
	uint64_t results; // result copies that were on their way when the wait began
} waiting;

// Calls are counted as waiting in processes that take turns.
static bool waits(enum gp_wait kind) { return gp_settings.turns && kind != GP_ASK_STREAM && kind != GP_ASK_EVENT; }

static uint64_t place_of(const struct gp_context *c) { return 1ull << (c - gp_context); }
_Static_assert(GP_CONTEXTS <= 64, "a bit for each context");

void gp_forget_wait(struct gp_context *c)
{
	struct waiting *w = GP_MINE(waiting);
	if (w->whole & place_of(c))
		c->context_waits--;
	w->whole &= ~place_of(c);
	if (w->context != c)
		return;
	if (w->counted)
		c->waits--;
	w->counted = false;
	w->context = NULL;
}

// Forgets a wait of the calling thread that has not ended. Either the driver called a profiler back during the wait, and the
// profiler waits too; or the program left the wait by longjmp. Its counts would never be taken back.
static void forget_outer(void)
{
	struct waiting *w = GP_MINE(waiting);
	w->answers = false;
	for (uint64_t left = w->whole; left; left &= left - 1)
		gp_forget_wait(&gp_context[__builtin_ctzll(left)]);
	if (w->context)
		gp_forget_wait(w->context);
}

// A thread that ends within a call, as by pthread_cancel in the driver, takes its counts back as it ends. Else no hold would come in those
// contexts any more, and the process would want a turn for ever.
void gp_waits_end_with_thread(void)
{
	struct waiting *w = GP_MINE(waiting);
	forget_outer();
	for (int i = 0; i < GP_CONTEXTS; i++) {
		if (w->loading[i])
			gp_context[i].context_waits -= w->loading[i];
		w->loading[i] = 0;
	}
}

void gp_load_begin(struct gp_context *c)
{
	struct waiting *w = GP_MINE(waiting);
	w->loading[c - gp_context]++;
	c->context_waits++;
	gp_hold_end(c);
}

void gp_load_end(struct gp_context *c)
{
	struct waiting *w = GP_MINE(waiting);
	w->loading[c - gp_context]--;
	c->context_waits--;
}

// The contexts that a call may wait for as a whole. Loading their code counts, since it waits too.
static uint64_t waited_for(enum gp_wait kind, void *what, const struct gp_context *current)
{
	const struct gp_gpu *gpu = NULL;
	uint64_t places = 0;

	bool named = kind == GP_TAKE || kind == GP_WAIT_ALL;
	if (kind == GP_WAIT_CONTEXT || kind == GP_PIN || kind == GP_LOAD || (named && what == GP_CURRENT))
		return current ? place_of(current) : 0;
	if (named && what) {
		const struct gp_context *c = gp_find_context(what);
		return c ? place_of(c) : 0;
	}
	if (kind == GP_TAKE_MEMORY && gp_gpu[1].known)
		gpu = gp_gpu_of_memory((CUdeviceptr)(uintptr_t)what);
	for (uint32_t i = 0; i < gp_context_places; i++)
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
	if (c == current && gp_is_open(c) && gp_holds(c)) // in another context the hold comes with the next work
		gp_hold_arm(c);
}

// Whether a wait for all of a context can be one for each of its streams: the hold's stream is none of them. So the hold stays.
static bool answers(enum gp_wait kind, const void *what, struct gp_context *c)
{
	return kind == GP_WAIT_ALL && gp_settings.hold_synchronize && c && (what == GP_CURRENT || what == c->handle) &&
	       gp_is_open(c) && c->hold.state == GP_HOLD_ARMED && !gp_blp_started &&
	       !gp_find_stream(c, GP_STREAM_PER_THREAD,
			       false); // another thread's can only be waited for by way of the legacy stream
}

static void note_settled(struct gp_context *c)
{
	struct waiting *w = GP_MINE(waiting);
	for (int i = 0; i < GP_STREAMS; i++) {
		w->handle[i] = c->stream[i].handle;
		w->settled[i] = c->stream[i].settled;
		if (!w->handle[i])
			break;
	}
}

// Of the streams that were there when the wait began.
static void note_completed(struct gp_context *c)
{
	struct waiting *w = GP_MINE(waiting);
	for (int i = 0; i < GP_STREAMS && w->handle[i]; i++)
		if (c->stream[i].handle == w->handle[i])
			gp_completed(c, &c->stream[i], w->settled[i]);
}

bool gp_wait_begin(enum gp_wait kind, void *what)
{
	struct waiting *w = GP_MINE(waiting);
	CUcontext handle = gp_current_handle();
	bool calls = !gp_blp_started || !gp_blp_begin_wait(kind, what, handle);
	struct gp_context *c = gp_find_context(handle);
	forget_outer();
	w->context = c;
	w->stream = NULL;
	w->loads = NULL;
	if (kind == GP_LOAD) {
		if (!c || gp_is_loaded(c, what)) {
			w->context = NULL;
			return calls;
		}
		w->loads = what;
	}
	w->answers = answers(kind, what, c);
	if (w->answers)
		note_settled(c);
	else if (gp_waits_for_context(kind))
		w->whole = waited_for(kind, what, c);
	for (uint64_t left = w->whole; left; left &= left - 1)
		wait_whole(&gp_context[__builtin_ctzll(left)]);
	if (!c)
		return calls;
	if (__builtin_expect(gp_objective_on, 0))
		w->results = gp_step_results(c);
	if (waits(kind)) { // also for uncounted work of the driver itself: a wait is demand for a turn
		c->waits++;
		w->counted = true;
		if (!gp_is_open(c) && c->gpu->turn_peers)
			gp_window_wake(c->gpu, gp_window_open(c));
	}
	if (w->answers)
		return false;
	if (gp_waits_for_context(kind))
		return calls;
	if (kind == GP_WAIT_STREAM || kind == GP_ASK_STREAM) {
		w->stream = what == GP_STREAM_PER_THREAD ? NULL : gp_find_stream(c, what, false);
		w->sequence = w->stream ? w->stream->settled : 0;
	} else {
		for (int i = 0; i < GP_STREAMS && c->stream[i].handle; i++)
			if (c->stream[i].event == (CUevent)what) {
				w->stream = c->stream[i].handle == GP_STREAM_PER_THREAD ? NULL : &c->stream[i];
				w->sequence = c->stream[i].event_at;
				break;
			}
	}
	return calls;
}

static void settle(enum gp_wait kind, void *what, CUresult result)
{
	struct waiting *w = GP_MINE(waiting);
	struct gp_context *c = w->context;
	w->context = NULL;
	if (w->loads && c && result == CUDA_SUCCESS)
		gp_remember_loaded(c, w->loads);
	for (uint64_t left = w->whole; left; left &= left - 1)
		waited_whole(&gp_context[__builtin_ctzll(left)], c);
	w->whole = 0;
	if (!c)
		return;
	if (w->counted)
		c->waits--;
	w->counted = false;
	if (__builtin_expect(gp_objective_on, 0) && result == CUDA_SUCCESS)
		gp_steps_waited(c, kind, what, w->stream, w->sequence, w->results);
	if (w->answers && result == CUDA_SUCCESS)
		note_completed(c);
	else if (gp_waits_for_context(kind))
		return;
	if (w->stream && result == CUDA_SUCCESS)
		gp_completed(c, w->stream, w->sequence);
	if ((!c->yielded && c->hold.state != GP_HOLD_ARMED) || !gp_all_complete(c))
		return;
	if (c->yielded) {
		c->yielded = 0;
		if (gp_is_open(c) && gp_holds(c))
			gp_hold_arm(c);
	} else {
		gp_hold_settle(c);
	}
}

// Where not all streams are known, the wait goes the usual way after all.
static CUresult synchronize(void)
{
	struct waiting *w = GP_MINE(waiting);
	struct gp_context *c = w->context;
	CUcontext handle = gp_current_handle();
	if (gp_wait_for_streams(handle))
		return CUDA_SUCCESS;
	w->answers = false;
	if (c) { // else it was forgotten meanwhile
		w->whole = place_of(c);
		wait_whole(c);
	}
	uint64_t destructions = gp_known_destructions();
	CUresult result = gp_driver.cuCtxSynchronize();
	if (result == CUDA_SUCCESS)
		gp_known_synchronized(handle, destructions);
	return result;
}

CUresult gp_wait_end(enum gp_wait kind, void *what, CUresult result)
{
	struct waiting *w = GP_MINE(waiting);
	if (w->answers)
		result = synchronize();
	if (gp_blp_started)
		result = gp_blp_end_wait(kind, what, result);
	settle(kind, what, result);
	if (kind == GP_PIN && result == CUDA_SUCCESS && !gp_capturing())
		gp_hint_pinned();
	return result;
}
