// hold_look_test.c - with preempt/gpu/hold.c preempt/process/facts.c preempt/driver/environment.c preempt/process/thread.c preempt/process/process.c.
//
// The watcher's looks at a hold: it renews the lease, steps, asks where the engine is, and gives way. The clock is the test's.
#define _GNU_SOURCE
#include "preempt/gpu/gpu.h"
#include "test/units/check.h"

#include <stdlib.h>
#include <string.h>

void gp_thread_ends(void) {}

enum { WORDS = 1024, BEAT = 1, EXPIRED = 16, PLACE = 32, BEGUN = GP_HOLD_BEGUN, FETCHED = 48, CHAIN = 2, US = 1000 };

static struct gp_gpu *const g = &gp_gpu[0];
static struct gp_context *const c = &gp_context[0];
static struct gp_hold *const h = &gp_context[0].hold;
static uint32_t words[WORDS];
static struct gp_view *view;
static uint64_t now = 1000000000000;
int clock_gettime(clockid_t id, struct timespec *t)
{
	(void)id;
	*t = (struct timespec){(time_t)(now / 1000000000), (long)(now % 1000000000)};
	return 0;
}

// The driver: links are counted, and probes are fetched where a test says so.
static uint32_t links, probes, pushes, seen_switches;
static bool fetches, refuses_probe, refuses_push, sampled;
static CUresult launch(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
		       unsigned shared, CUstream stream, void **parameters, void **extra)
{
	(void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream,
		(void)parameters, (void)extra;
	links++;
	return CUDA_SUCCESS;
}
static CUresult write_value(CUstream stream, CUdeviceptr at, uint32_t value, unsigned flags)
{
	CHECK(stream == h->probe.stream && at == (CUdeviceptr)(uintptr_t)&words[FETCHED] && !flags);
	if (refuses_probe)
		return CUDA_ERROR_INVALID_VALUE;
	probes++;
	if (fetches)
		words[FETCHED] = value;
	return CUDA_SUCCESS;
}
static CUresult push(CUcontext context)
{
	CHECK(context == c->handle);
	pushes++;
	return refuses_push ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}
static CUresult pop(CUcontext *context)
{
	CHECK(pushes > 0);
	pushes--;
	*context = NULL;
	return CUDA_SUCCESS;
}
uint32_t gp_rm_channels(void) { return 0; }
void gp_log_line(const char *text) { (void)text; }
struct gp_driver gp_driver = {.cuLaunchKernel = launch,
			      .cuStreamWriteValue32 = (void *)write_value,
			      .cuCtxPushCurrent = push,
			      .cuCtxPopCurrent = pop};

bool gp_context_pin(struct gp_context *context, CUcontext handle) { return context->handle == handle; }
void gp_context_unpin(struct gp_context *context) { (void)context; }
void gp_switch_seen(struct gp_gpu *gpu, uint64_t not_after_ns, uint64_t after_ns)
{
	CHECK(gpu == g && not_after_ns <= after_ns);
	seen_switches++;
}
bool gp_switch_sampled(struct gp_gpu *gpu) { return gpu == g && sampled; }

// The chain's first link runs, or does not.
static void runs(bool is) { words[BEGUN] = is ? words[0] + 1 : words[0]; }

static uint64_t look(uint64_t after_ns, bool unfinished)
{
	now += after_ns;
	uint64_t next = gp_hold_look(c, now, unfinished);
	CHECK(refuses_push || !pushes);
	pushes = 0;
	return next;
}

static void start(bool armed)
{
	memset(c, 0, sizeof *c);
	memset(words, 0, sizeof words);
	memset(view, 0, sizeof *view);
	links = probes = seen_switches = 0;
	fetches = true;
	refuses_probe = refuses_push = sampled = false;
	gp_settings.hold = 1;
	gp_settings.chain = CHAIN;
	gp_settings.max_hold_ns = UINT64_MAX / 2;
	gp_settings.hold_step_ns = 4000 * US;
	g->lower_peers = 1;
	g->same = g->higher = 0;
	g->segment = &view->segment;
	c->gpu = g;
	c->handle = (CUcontext)c;
	c->window |= GP_WINDOW_OPEN;
	h->word = words;
	h->state = GP_HOLD_IDLE;
	if (armed)
		gp_hold_arm(c);
	c->unfinished_ns = now;
}

static void test_lease(void)
{
	start(false);
	CHECK(look(0, true) == UINT64_MAX && !words[BEAT]); // there is none
	start(true);
	CHECK(look(0, true) == 50 * US && words[BEAT] == 1);
	CHECK(look(0, false) == 1000 * US && words[BEAT] == 2); // four beats a lease
	c->context_waits = 1;
	words[EXPIRED] = h->chain;
	CHECK(look(0, true) == 50 * US && words[BEAT] == 3 && h->state == GP_HOLD_ARMED); // others look after it
	c->context_waits = 0;
	refuses_push = true;
	look(0, true);
	CHECK(words[BEAT] == 4 && h->state == GP_HOLD_ARMED && links == CHAIN);
	refuses_push = false;
	look(0, true); // it ran out: the next one comes for work that is there
	CHECK(h->state == GP_HOLD_ARMED && links == 2 * CHAIN && view->own.holds_expired == 1);
	words[EXPIRED] = h->chain;
	look(0, false);
	CHECK(h->state == GP_HOLD_IDLE && links == 2 * CHAIN);
	h->state = GP_HOLD_FAILED;
	CHECK(look(0, true) == UINT64_MAX);
}

static void test_announced(void)
{
	start(false);
	c->hint.awaited_ns = 1;
	CHECK(look(0, false) == 1000 * US && h->state == GP_HOLD_ARMED && links == CHAIN);
	g->same = 1ull << 9;
	gp_line_of(g->segment, 9)->window_opened_ns = 1;
	CHECK(look(0, false) == 50 * US && h->state == GP_HOLD_IDLE); // work of this level goes first
	CHECK(look(0, false) == 50 * US && h->state == GP_HOLD_IDLE);
	c->hint.awaited_ns = 0;
	gp_hold_arm(c);
	look(0, true);
	CHECK(h->state == GP_HOLD_ARMED); // it has work itself
}

static void test_steps(void)
{
	start(true);
	runs(true);
	look(10 * US, true);
	CHECK(links == CHAIN);
	look(4000 * US - 20 * US, true);
	CHECK(links == CHAIN);
	uint32_t ended = words[0];
	look(20 * US, true);
	CHECK(links == CHAIN + 1 && words[0] == ended + 1 && h->state == GP_HOLD_ARMED);
	runs(true);
	look(3000 * US, true); // since the step
	CHECK(links == CHAIN + 1);
	look(1001 * US, true);
	CHECK(links == CHAIN + 2);
	runs(true);
	look(9000 * US, false); // nothing is unfinished
	CHECK(links == CHAIN + 2);
	runs(false);
	look(9000 * US, true); // it does not run: it stands in no work's way
	CHECK(links == CHAIN + 2);
	// Work that is unfinished only now.
	start(true);
	runs(true);
	look(10 * US, false);
	now += 9000 * US;
	c->unfinished_ns = now;
	look(0, true);
	CHECK(links == CHAIN);
}

static void test_probes(void)
{
	enum { MOST_MISSED = 2 };
	start(true);
	runs(true);
	look(10 * US, true);
	uint32_t before = probes;
	CHECK(before == 1 && view->own.holds_stalled == 0);
	look(199 * US, true); // it was fetched; the next is not due
	CHECK(probes == before);
	fetches = false;
	look(2 * US, true);
	CHECK(probes == before + 1);
	look(99 * US, true);
	CHECK(links == CHAIN);
	look(2 * US, true); // late: the engine is elsewhere
	CHECK(links == CHAIN + 1 && view->own.holds_stalled == 1);
	for (uint32_t i = 1; i < MOST_MISSED + 3; i++) { // nor is it after steps: the streams share a channel
		runs(true);
		look(10 * US, true);
		look(101 * US, true);
	}
	CHECK(view->own.holds_stalled == MOST_MISSED && links == CHAIN + MOST_MISSED && probes == before + 1);

	// Another chain is asked about anew. One that is refused is not waited for.
	gp_hold_release(c);
	gp_hold_arm(c);
	words[FETCHED] = h->probe.sent;
	refuses_probe = true;
	runs(true);
	links = 0;
	look(1000 * US, true);
	look(1000 * US, true);
	CHECK(!links && view->own.holds_stalled == MOST_MISSED);

	// Nor where an equal may have the GPU.
	start(true);
	memset(&h->probe, 0, sizeof h->probe);
	runs(true);
	fetches = false;
	look(1000 * US, true);
	g->same = 1ull << 9;
	gp_line_of(g->segment, 9)->window_opened_ns = 1;
	for (int i = 0; i < 5; i++)
		look(200 * US, true);
	CHECK(links == CHAIN && !view->own.holds_stalled);
}

// A switch was seen: the links were launched when a lower level had the GPU, and the watcher looked until the first one ran.
static void test_switches(void)
{
	start(true);
	sampled = true;
	view->own.switches = 1;
	runs(false);
	CHECK(look(10 * US, true) == 10 * US && look(10 * US, true) == 10 * US && !seen_switches);
	runs(true);
	look(0, true);
	CHECK(seen_switches == 1 && view->own.times.switches.sum_ns);
	CHECK(look(10 * US, true) == 50 * US); // it is over
	uint64_t sum = view->own.times.switches.sum_ns;
	look(10 * US, true);
	CHECK(seen_switches == 1 && view->own.times.switches.sum_ns == sum);

	// Beside another's window it says nothing; nor where the link ran at the first look, or no process was switched away from.
	for (int i = 0; i < 3; i++) {
		start(true);
		sampled = true;
		view->own.switches = i != 2;
		g->higher = i == 0 ? 1ull << 9 : 0;
		gp_line_of(g->segment, 9)->window_opened_ns = 1;
		runs(i == 1);
		look(10 * US, true);
		runs(true);
		look(0, true);
		CHECK(!seen_switches && !view->own.times.switches.sum_ns == (i == 2));
	}
	start(true);
	sampled = true;
	view->own.switches = 1;
	runs(false);
	CHECK(look(2001 * US, true) == 50 * US); // too long for a switch
}

int main(void)
{
	view = aligned_alloc(GP_PAGE, sizeof *view);
	CHECK(view);
	test_lease();
	test_announced();
	test_steps();
	test_probes();
	test_switches();
	free(view);
	return 0;
}
