// gate_orders_test.c - interleaved with preempt/memory/gate.c preempt/process/thread.c preempt/process/captures.c preempt/process/process.c preempt/driver/driver.c.
//
// Threads pass the gate, wait at it, step out of it and begin captures, while the mover closes and opens it, in every order.
#define _GNU_SOURCE
#include "preempt/memory/memory.h"
#include "test/units/interleave/interleave.h"

#include <string.h>

void gp_thread_ends(void) { gp_memory_thread_ends(); }

static const uint64_t HOUR_NS = 3600ull * 1000000000;
static const CUstream stream = (CUstream)0x10;

static _Atomic uint32_t inside;    // threads that use memory
static _Atomic uint32_t capturing; // streams of which the driver has begun a capture
static _Atomic bool synchronizes;  // a thread waits for a context in the driver

static void start(void)
{
	gp_memory_on = 1;
	gp_gpu[0].known = 1;
	memset(gp_memory, 0, sizeof gp_memory);
	inside = capturing = 0;
	CHECK(!gp_memory_closed() && !gp_captures);
}

static void use(void)
{
	inside++;
	CHECK(gp_memory_inside());
	inside--;
}

static void pass(void)
{
	gp_memory_enter();
	use();
	gp_memory_leave();
}

static void step(void)
{
	gp_memory_enter();
	use();
	uint32_t depth = gp_memory_step_out();
	CHECK(depth == 1 && !gp_memory_inside());
	gp_memory_step_in(depth);
	use();
	gp_memory_leave();
}

static void capture(void)
{
	gp_memory_enter(); // as gp_capture_beginning (preempt/lifecycle.c)
	gp_capture_begins(stream);
	gp_memory_leave();
	CHECK(!synchronizes);
	capturing++;
	pass(); // as launches that are captured
	capturing--;
	gp_capture_ended(stream);
}

static bool may_fail; // the time to close it may be over
static void move(void)
{
	if (!gp_memory_close(gp_now_ns() + HOUR_NS)) {
		CHECK(may_fail && !gp_memory_closed());
		return;
	}
	CHECK(gp_memory_closed());
	CHECK(!inside && !capturing);
	interleave_point();
	CHECK(!inside && !capturing);
	gp_memory_open();
}

static _Atomic bool passed;
static void pass_once(void)
{
	gp_memory_enter();
	use();
	passed = true;
	gp_memory_leave();
}

// A thread that waits at the gate passes before the gate closes again.
static void move_for_one(void)
{
	passed = false;
	CHECK(gp_memory_close(gp_now_ns() + HOUR_NS));
	bool waits = gp_memory[0].waiting;
	gp_memory_open();
	CHECK(gp_memory_close(gp_now_ns() + HOUR_NS));
	CHECK(!waits || passed);
	gp_memory_open();
}

static void move_twice(void)
{
	move();
	move();
}

static void synchronize(void)
{
	int cancel;
	if (!gp_captures_keep_off(&cancel))
		return;
	synchronizes = true;
	CHECK(!capturing);
	interleave_point();
	synchronizes = false;
	gp_captures_let_on(cancel);
}

static void all_out(void)
{
	CHECK(!inside && !gp_captures && !gp_memory_closed() && !gp_memory[0].waiting);
	CHECK(gp_memory_close(gp_now_ns() + 1)); // nobody is counted in any more
	gp_memory_open();
}

static CUresult get_current(CUcontext *context) { return *context = NULL, CUDA_SUCCESS; }

int main(void)
{
	gp_driver.cuCtxGetCurrent = get_current;
	const struct interleaving tests[] = {
		{"one passes", start, {pass, move}, all_out, 2},
		{"two pass", start, {pass, pass, move}, all_out, 1},
		{"one passes, and memory moves twice", start, {pass, move_twice}, all_out, 2},
		{"one steps out", start, {step, move}, all_out, 2},
		{"one steps out, and memory moves twice", start, {step, move_twice}, all_out, 2},
		{"one waits, and memory moves twice", start, {pass_once, move_for_one}, all_out, 2},
		{"memory moves though one is late", start, {pass, move_twice}, all_out, 2, .bounds = true},
		{"one captures", start, {capture, move}, all_out, 2},
		{"one captures as another synchronizes", start, {capture, synchronize}, all_out, 3},
		{"two synchronize", start, {capture, synchronize, synchronize}, all_out, 2},
	};
	for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
		may_fail = tests[i].bounds;
		interleave(&tests[i]);
	}
	return 0;
}
