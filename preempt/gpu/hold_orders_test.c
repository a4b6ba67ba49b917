// hold_orders_test.c - interleaved with preempt/gpu/hold.c preempt/process/facts.c preempt/driver/environment.c preempt/process/thread.c preempt/process/process.c.
//
// A hold is armed, makes room, ends and is forgotten, in every order with other threads. They wait for the context, yield, close the
// window or take the context apart.
#define _GNU_SOURCE
#include "preempt/gpu/gpu.h"
#include "test/units/interleave/interleave.h"

#include <string.h>

void gp_thread_ends(void) {}

enum { WORDS = 1024, EXPIRED = 16, CHAIN = 2, HOUR_NS = 3600u };

static struct gp_context *const c = &gp_context[0];
static struct gp_hold *const h = &gp_context[0].hold;
static uint32_t words[WORDS];
static uint32_t waits, links; // calls in the driver that wait for the context; links that were launched

// The driver takes no link while a call waits in it with its lock: that waits for the links before, and those for their successors.
static CUresult launch(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
		       unsigned shared, CUstream stream, void **parameters, void **extra)
{
	(void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream,
		(void)parameters, (void)extra;
	CHECK(!waits);
	CHECK(h->state == GP_HOLD_ARMING); // the thread that launches has the hold to itself
	links++;
	return CUDA_SUCCESS;
}
uint32_t gp_rm_channels(void) { return 0; }
void gp_log_line(const char *text) { (void)text; }
struct gp_driver gp_driver = {.cuLaunchKernel = launch};

bool gp_context_pin(struct gp_context *context, CUcontext handle) { return context->handle == handle; }
void gp_context_unpin(struct gp_context *context) { (void)context; }
void gp_switch_seen(struct gp_gpu *g, uint64_t not_after_ns, uint64_t after_ns)
{
	(void)g, (void)not_after_ns, (void)after_ns;
}
bool gp_switch_sampled(struct gp_gpu *g) { return g == NULL; }

static bool all_ended(void) { return words[0] == h->queued; }

static void idle(void)
{
	memset(c, 0, sizeof *c);
	memset(words, 0, sizeof words);
	waits = links = 0;
	gp_membership = GP_JOINED;
	gp_settings.hold = 1;
	gp_settings.chain = CHAIN;
	gp_settings.max_hold_ns = HOUR_NS * 1000000000ull;
	gp_gpu[0].lower_peers = 1;
	c->gpu = &gp_gpu[0];
	c->handle = (CUcontext)c;
	c->window |= GP_WINDOW_OPEN;
	h->word = words;
	h->state = GP_HOLD_IDLE;
}

static void holding(void)
{
	idle();
	gp_hold_arm(c);
	CHECK(h->state == GP_HOLD_ARMED && links == CHAIN && !all_ended());
}

static void expired(void)
{
	holding();
	words[EXPIRED] = h->chain;
}

static void arm(void) { gp_hold_arm(c); }
static void make_room(void) { gp_hold_step(c); }

// As a call that waits for the whole context (preempt/waits.c).
static void wait_whole(void)
{
	c->context_waits++;
	gp_hold_end(c);
	CHECK(all_ended());
	waits++;
	interleave_point();
	CHECK(all_ended()); // nor does one begin
	interleave_point();
	waits--;
	c->context_waits--;
}

static void yield(void) { gp_hold_yield(c); }

// As the watcher (preempt/gpu/window.c).
static void close_window(void)
{
	c->window &= ~(uint64_t)GP_WINDOW_OPEN;
	gp_hold_release(c);
}

// As the program that has itself locked (preempt/checkpoint.c).
static void lock_process(void)
{
	gp_membership = GP_LEAVING;
	gp_hold_release(c);
}

static void forget(void)
{
	c->context_waits++;
	gp_hold_forget(c);
	CHECK(all_ended());
	c->context_waits--;
}

// The thread that moves the hold puts it back, and what runs belongs to a hold that is armed.
static void settled(void)
{
	CHECK(h->state == GP_HOLD_IDLE || h->state == GP_HOLD_ARMED || h->state == GP_HOLD_ABSENT);
	CHECK(h->state == GP_HOLD_ARMED ? words[0] == h->queued - CHAIN : all_ended());
}

static void released(void)
{
	settled();
	CHECK(h->state == GP_HOLD_IDLE);
}

static void absent(void)
{
	settled();
	CHECK(h->state == GP_HOLD_ABSENT);
}

int main(void)
{
	const struct interleaving tests[] = {
		{"arms while another waits", idle, {arm, wait_whole}, settled, 4},
		{"steps while another waits", holding, {make_room, wait_whole}, settled, 4},
		{"two arm while a third waits", idle, {arm, arm, wait_whole}, settled, 2},
		{"arms while two wait", idle, {arm, wait_whole, wait_whole}, settled, 2},
		{"arms while another yields", idle, {arm, yield}, released, 4},
		{"steps while another yields", holding, {make_room, yield}, released, 4},
		{"arms while the window closes", idle, {arm, close_window}, released, 4},
		{"steps while the window closes", holding, {make_room, close_window}, released, 4},
		{"arms and steps while the window closes", holding, {arm, make_room, close_window}, released, 2},
		{"arms while the process is locked", idle, {arm, lock_process}, released, 4},
		{"steps while the process is locked", holding, {make_room, lock_process}, released, 4},
		{"arms while the context ends", idle, {arm, forget}, absent, 4},
		{"steps while the context ends", holding, {make_room, forget}, absent, 4},
		{"two find it expired", expired, {arm, arm}, settled, 3},
		{"one finds it expired, another waits", expired, {arm, wait_whole}, settled, 3},
	};
	for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
		interleave(&tests[i]);
	return 0;
}
