// window_orders_test.c - interleaved with preempt/gpu/window.c preempt/gpu/objective.c preempt/gpu/steps.c preempt/gpu/slots.c preempt/gpu/law.c preempt/process/streams.c preempt/process/captures.c preempt/process/process.c.
//
// Work comes, threads begin to wait, and hints announce work, while the watcher closes the window, in every order: what is not done has a
// window.
#define _GNU_SOURCE
#include "preempt/gpu/gpu.h"
#include "test/units/interleave/interleave.h"

#include <string.h>

static struct gp_view view;
static struct gp_gpu *const g = &gp_gpu[0];
static struct gp_context *const c = &gp_context[0], *const second = &gp_context[1];
static const CUstream a = (CUstream)0x10, b = (CUstream)0x20;

// The driver: launches on a stream are done only when a test says so.
static _Atomic uint32_t launched[2], done[2];
static _Atomic uint32_t *of(_Atomic uint32_t *counts, CUstream stream) { return &counts[stream == b]; }
static CUresult query(CUstream stream)
{
	if (stream != a && stream != b)
		return CUDA_SUCCESS;
	return *of(done, stream) < *of(launched, stream) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
static CUresult push(CUcontext context) { return context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT; }
static CUresult pop(CUcontext *context) { return *context = NULL, CUDA_SUCCESS; }
struct gp_driver gp_driver = {.cuStreamQuery = query, .cuCtxPushCurrent = push, .cuCtxPopCurrent = pop};

struct gp_context *gp_current_context(void) { return NULL; }

// No holds.
static _Atomic uint32_t released;
_Atomic uint64_t gp_loaded[GP_LOADED];
_Atomic uint32_t gp_is_rank;
void gp_rank_kernel(CUfunction kernel) { (void)kernel; }
void gp_hold_release(struct gp_context *context) { released += context != NULL; }
uint64_t gp_hold_look(struct gp_context *context, uint64_t now, bool unfinished)
{
	(void)context, (void)now, (void)unfinished;
	return UINT64_MAX;
}
uint64_t gp_switch_ns(struct gp_gpu *gpu) { return gpu ? 100000 : 0; }

static void closed(void)
{
	memset(&view, 0, sizeof view);
	memset(gp_context, 0, 2 * sizeof *gp_context);
	memset(g, 0, sizeof *g);
	memset(launched, 0, sizeof launched);
	memset(done, 0, sizeof done);
	gp_settings.level = 0;
	gp_settings.grace_min_ns = gp_settings.grace_max_ns = gp_settings.grace_equals_ns = 0;
	gp_settings.max_hold_ns = 3600ull * 1000000000;
	g->segment = &view.segment;
	g->known = g->lower_peers = g->turn_peers = 1;
	c->gpu = second->gpu = g;
	c->handle = (CUcontext)c;
	second->handle = (CUcontext)second;
}

// A hint has opened it: no work was there yet.
static void open(void)
{
	closed();
	gp_window_open(c);
}

static void idle(void)
{
	open();
	CHECK(gp_window_state(c->window) == GP_GRACE);
	c->idle_since_ns = gp_now_ns();
}

// Its work is done, and no thread has said so yet. Another thread may submit to b.
static void waited(void)
{
	open();
	struct gp_stream *s = gp_find_stream(c, a, true);
	s->submitted = s->settled = launched[0] = done[0] = 1;
	gp_window_submit(c, false);
}

// As preempt/submit.c.
static void submit_to(struct gp_context *to, CUstream stream)
{
	struct gp_stream *place = gp_find_stream(to, stream, true);
	uint32_t wakes = 0;
	place->submitted++;
	uint64_t idle_since = gp_window_submit(to, false);
	if (idle_since)
		gp_note_gap(to, idle_since, 0);
	if (!gp_is_open(to))
		wakes = gp_window_open(to);
	(*of(launched, stream))++;
	gp_settled(place);
	gp_window_wake(g, wakes);
}

static void submit(void) { submit_to(c, b); }
static void submit_to_second(void) { submit_to(second, b); }

// As preempt/watch.c.
static void look(void)
{
	pthread_mutex_lock(&c->query_lock);
	if (gp_is_open(c))
		gp_window_watch(c, gp_now_ns());
	pthread_mutex_unlock(&c->query_lock);
}

static void watch(void)
{
	look();
	look();
}

static bool is_open(void)
{
	pthread_mutex_lock(&g->lock);
	bool is = gp_is_open(c);
	CHECK(!is == !gp_own_line(g)->window_opened_ns);
	pthread_mutex_unlock(&g->lock);
	return is;
}

// As preempt/waits.c: a thread that waits wants a turn.
static void wait(void)
{
	c->waits++;
	if (!gp_is_open(c))
		gp_window_open(c);
	CHECK(is_open());
	interleave_point();
	CHECK(is_open());
	c->waits--;
}

// As hints/carry.c.
static void announce(void)
{
	c->hint.until_ns = UINT64_MAX;
	if (!gp_is_open(c))
		gp_window_open(c);
	CHECK(is_open());
	interleave_point();
	CHECK(is_open());
}

static void succeed(void) { gp_completed(c, gp_find_stream(c, a, false), 1); }

// All that is there is done, then more comes, and that is done too.
static uint64_t came_ns;
static void go_on(void)
{
	watch();
	submit();
	came_ns = gp_now_ns();
	done[1] = launched[1];
	watch();
}

static void give_way(void)
{
	gp_gpu_give_way(g, true);
	CHECK(!gp_own_line(g)->window_opened_ns);
	interleave_point();
	CHECK(!gp_own_line(g)->window_opened_ns);
	gp_gpu_give_way(g, false);
}

// The line says what holds.
static void told(void)
{
	uint32_t contexts = gp_is_open(c) + gp_is_open(second);
	CHECK(g->open_contexts == contexts);
	CHECK(!contexts == !gp_own_line(g)->window_opened_ns);
	CHECK(!contexts == !gp_own_line(g)->busy);
}

static void unfinished(void)
{
	told();
	CHECK(gp_window_state(c->window) == GP_OPEN);
}

static void never_back(void)
{
	told();
	CHECK(!gp_is_idle(c) || c->idle_since_ns >= came_ns);
}

static void both(void)
{
	told();
	CHECK(gp_is_open(second));
}

static void over(void)
{
	told();
	c->seen_activity = gp_activity(c);
	look();
	look();
	CHECK(!gp_is_open(c));
	told();
}

// As gp_watch_forever: it sleeps only where it has seen what is open.
static void sleep_until_open(void)
{
	for (uint32_t seen; seen = gp_wake, !gp_is_open(c);)
		gp_futex_wait(&gp_wake, seen, 0, false);
}

// An RM-wide bell: an agent hears of the window where turns are taken.
static void hear(void)
{
	for (uint32_t seen; seen = view.shared.bell, !gp_own_line(g)->busy;)
		gp_futex_wait(&view.shared.bell, seen, 0, true);
}

// A launch of a lower level waits at the gate until the window closes.
static void wait_at_gate(void)
{
	for (uint32_t seen; seen = gp_gate_seen(g, 0), gp_windows_open(&view.segment, 1);)
		gp_wait_gate(g, 0, seen, 0, true);
}

int main(void)
{
	const struct interleaving tests[] = {
		{"work comes as the window closes", idle, {submit, watch}, unfinished, 2},
		{"work comes as it is found to be done", waited, {submit, watch}, unfinished, 2},
		{"work comes before a window", closed, {submit, watch}, unfinished, 3},
		{"two submit as the window closes", idle, {submit, submit, watch}, unfinished, 1},
		{"work comes to another context", idle, {submit_to_second, watch}, both, 2},
		{"work comes as other work is found to be done", waited, {submit, succeed, watch}, unfinished, 2},
		{"a thread is late to say that work was done", waited, {succeed, go_on}, never_back, 2},
		{"a thread waits as the window closes", idle, {wait, watch}, over, 2},
		{"work is announced as the window closes", idle, {announce, watch}, told, 2},
		{"lower levels are to run as the window opens", closed, {submit, give_way}, unfinished, 2},
		{"lower levels are to run as the window closes", idle, {look, give_way}, told, 2},
		{"two let lower levels run", open, {give_way, give_way}, told, 2},
		{"the watcher sleeps as the window opens", closed, {submit, sleep_until_open}, unfinished, 2},
		{"an agent sleeps as the window opens", closed, {submit, hear}, unfinished, 2},
		{"a launch waits as the window closes", idle, {wait_at_gate, look}, told, 2},
		{"a launch waits as lower levels are to run", idle, {wait_at_gate, give_way, look}, told, 1},
	};
	for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
		interleave(&tests[i]);
	return 0;
}
