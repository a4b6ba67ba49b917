// gate_test.c - with preempt/memory/gate.c preempt/process/thread.c preempt/process/process.c preempt/process/captures.c preempt/driver/driver.c.
//
// Threads pass the gate while another closes it. The mover's changes are not atomic, so the thread sanitizer sees whether the gate orders
// them.
#define _GNU_SOURCE
#include "preempt/memory/memory.h"
#include "test/units/check.h"

#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

void gp_thread_ends(void) { gp_memory_thread_ends(); }

enum { THREADS = 4, CLOSINGS = 1000 };
static const uint64_t SHORT_NS = 5 * 1000 * 1000, LONG_NS = 60ull * 1000 * 1000 * 1000, SECOND_NS = 1000 * 1000 * 1000;

static uint64_t memory[2]; // equal, but while the gate is closed
static uint64_t seen[THREADS];
static _Atomic bool end;
static _Atomic uint32_t inside, passes;

static void __attribute__((noinline)) nested(uint64_t *mine)
{
	gp_memory_enter();
	*mine += memory[0] != memory[1];
	gp_memory_leave();
}

static void *pass(void *arg)
{
	uint64_t *mine = arg;
	for (int n = 0; !end; n++) {
		gp_memory_enter();
		inside++;
		*mine += memory[0] != memory[1];
		if (n % 3 == 0)
			nested(mine);
		inside--;
		if (n % 5 == 0) {
			uint32_t depth = gp_memory_step_out();
			gp_memory_step_in(depth);
			*mine += memory[0] != memory[1];
		}
		gp_memory_leave();
		passes++;
	}
	return NULL;
}

static void test_closings(void)
{
	pthread_t thread[THREADS];
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&thread[i], NULL, pass, &seen[i]));
	for (int i = 0; i < CLOSINGS; i++) {
		CHECK(gp_memory_close(gp_now_ns() + LONG_NS) && gp_memory_closed());
		CHECK(!inside);
		memory[0]++;
		memory[1]++;
		CHECK(!inside);
		gp_memory_open();
		CHECK(!gp_memory_closed());
		for (uint32_t before = passes; passes - before < 2;)
			usleep(10);
	}
	end = true;
	for (int i = 0; i < THREADS; i++) {
		pthread_join(thread[i], NULL);
		CHECK(!seen[i]);
	}
	CHECK(!gp_memory[0].waiting);
}

// The only thread there is closes the gate on itself.
static bool is_inside(void)
{
	bool closes = gp_memory_close(gp_now_ns() + SHORT_NS);
	CHECK(gp_memory_closed() == closes);
	gp_memory_open();
	return !closes;
}

static jmp_buf back;

static void __attribute__((noinline)) leave_by_longjmp(void)
{
	char frame[256] = {0};
	gp_memory_enter();
	__asm__ volatile("" : : "r"(frame) : "memory");
	longjmp(back, 1);
}

static void test_depth(void)
{
	uint64_t wrong = 0;
	CHECK(!is_inside());
	gp_memory_enter();
	CHECK(gp_memory_inside() && is_inside());
	nested(&wrong);
	CHECK(is_inside()); // still
	gp_memory_enter_again(NULL);
	gp_memory_leave();
	CHECK(is_inside());
	uint32_t depth = gp_memory_step_out();
	CHECK(!gp_memory_inside() && !is_inside());
	gp_memory_step_in(depth);
	CHECK(is_inside());
	gp_memory_leave();
	CHECK(!gp_memory_inside() && !is_inside());
	gp_memory_leave(); // once too often
	CHECK(!is_inside());
}

// A thread that left a call by longjmp is inside until its next call, which counts as the outermost.
static void test_longjmp(void)
{
	if (!setjmp(back))
		leave_by_longjmp();
	CHECK(is_inside());
	gp_memory_enter();
	CHECK(is_inside());
	gp_memory_leave();
	CHECK(!is_inside());
}

static void *end_inside(void *frame)
{
	gp_memory_enter_slowly(frame);
	gp_memory_enter_again(frame);
	pthread_exit(NULL);
}

// As a thread that is cancelled in a call of the driver.
static void test_end(void)
{
	pthread_t thread;
	char frame;
	CHECK(!pthread_create(&thread, NULL, end_inside, &frame));
	pthread_join(thread, NULL);
	CHECK(!is_inside());
}

static void *end_capture(void *unused)
{
	usleep(20000);
	gp_capture_ended(GP_STREAM_PER_THREAD);
	return NULL;
}

static void *pass_once(void *unused)
{
	gp_memory_enter();
	gp_memory_leave();
	return NULL;
}

// A thread that waits is counted at the GPUs that were known when it began to wait, and only while it waits.
static void test_waits(void)
{
	pthread_t thread;
	gp_gpu[0].known = true;
	CHECK(gp_memory_close(gp_now_ns() + LONG_NS));
	CHECK(!pthread_create(&thread, NULL, pass_once, NULL));
	while (gp_memory[0].waiting != 1)
		usleep(10);
	gp_gpu[1].known = true;
	gp_memory_open();
	pthread_join(thread, NULL);
	CHECK(!gp_memory[0].waiting && gp_memory[0].waits == 1 && gp_memory[0].wait_ns);
	CHECK(!gp_memory[1].waiting && !gp_memory[1].waits);
}

// A thread that waited passes before the gate closes again, however soon that is: memory that came back for a call does not leave before
// that.
static void test_who_waited_passes(void)
{
	enum { ROUNDS = 200 };
	pthread_t thread;
	for (int i = 0; i < ROUNDS; i++) {
		CHECK(gp_memory_close(gp_now_ns() + LONG_NS));
		CHECK(!pthread_create(&thread, NULL, pass_once, NULL));
		while (gp_memory[0].waiting != 1)
			usleep(10);
		gp_memory_open();
		uint64_t began = gp_now_ns();
		CHECK(gp_memory_close(gp_now_ns() + LONG_NS));
		CHECK(!gp_memory[0].waiting || gp_now_ns() - began >= SECOND_NS); // it had no processor
		gp_memory_open();
		pthread_join(thread, NULL);
	}
}

static sigjmp_buf before;
static void jump(int signal)
{
	(void)signal;
	siglongjmp(before, 1);
}
static _Atomic bool left_it;
static void *leave_by_jump(void *unused)
{
	(void)unused;
	if (!sigsetjmp(before, 1))
		gp_memory_enter();
	left_it = true;
	while (left_it)
		usleep(10);
	return NULL;
}

// One that left its wait by longjmp never passes. It costs the bound once, and not at every second closing, and as it ends it
// does not wait any more.
static void test_never_passes(void)
{
	pthread_t thread;
	signal(SIGUSR1, jump);
	CHECK(gp_memory_close(gp_now_ns() + LONG_NS));
	CHECK(!pthread_create(&thread, NULL, leave_by_jump, NULL));
	while (gp_memory[0].waiting != 1)
		usleep(10);
	CHECK(!pthread_kill(thread, SIGUSR1));
	while (!left_it)
		usleep(10);
	gp_memory_open();
	CHECK(gp_memory_close(gp_now_ns() + LONG_NS));
	gp_memory_open();
	uint64_t least[2] = {UINT64_MAX, UINT64_MAX};
	for (int i = 0; i < 6; i++) {
		uint64_t began = gp_now_ns();
		CHECK(gp_memory_close(gp_now_ns() + LONG_NS));
		uint64_t took = gp_now_ns() - began;
		least[i % 2] = took < least[i % 2] ? took : least[i % 2];
		gp_memory_open();
	}
	CHECK(least[0] < SECOND_NS && least[1] < SECOND_NS);
	CHECK(gp_memory[0].waiting == 1);
	left_it = false;
	pthread_join(thread, NULL);
	CHECK(!gp_memory[0].waiting);
}

static void end_thread(int signal)
{
	(void)signal;
	pthread_exit(NULL);
}

static _Atomic int waiter;
static void *pass_and_tell(void *unused)
{
	waiter = gettid();
	return pass_once(unused);
}

static bool sleeps(int tid)
{
	char path[64], state = 0;
	snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
	FILE *f = fopen(path, "r");
	CHECK(f && fscanf(f, "%*d (%*[^)]) %c", &state) == 1 && !fclose(f));
	return state == 'S';
}

// One whose signal handler ends it costs nothing.
static void test_ends_in_wait(void)
{
	pthread_t thread;
	signal(SIGUSR1, end_thread);
	for (int i = 0; i < 4; i++) {
		CHECK(gp_memory_close(gp_now_ns() + LONG_NS));
		CHECK(!pthread_create(&thread, NULL, pass_and_tell, NULL));
		while (gp_memory[0].waiting != 1 || !sleeps(waiter)) // it has counted what it has to
			usleep(10);
		CHECK(!pthread_kill(thread, SIGUSR1));
		pthread_join(thread, NULL);
		CHECK(!gp_memory[0].waiting && !gp_memory[1].waiting && !is_inside());
		gp_memory_open();
	}
}

static _Atomic bool keeps, kept;
static void keep_waiter(int signal)
{
	(void)signal;
	kept = true;
	while (keeps)
		usleep(10);
}

// Starts a thread that waits at the closed gate and does not see it open before keeps is false.
static pthread_t start_late(void)
{
	pthread_t thread;
	keeps = true;
	kept = false;
	CHECK(!pthread_create(&thread, NULL, pass_and_tell, NULL));
	while (gp_memory[0].waiting != 1 || !sleeps(waiter))
		usleep(10);
	CHECK(!pthread_kill(thread, SIGUSR1));
	while (!kept)
		usleep(10);
	return thread;
}

static void *let_pass_while_closing(void *unused)
{
	while (!gp_memory_closed())
		usleep(10);
	keeps = false;
	return unused;
}

// One that was too late costs the next one nothing: that passes before the gate closes.
static void test_too_late(void)
{
	pthread_t late, next, helper;
	signal(SIGUSR1, keep_waiter);
	CHECK(gp_memory_close(gp_now_ns() + LONG_NS));
	late = start_late();
	gp_memory_open();
	CHECK(gp_memory_close(gp_now_ns() + LONG_NS) && gp_memory[0].waiting == 1);
	keeps = false;
	gp_memory_open();
	pthread_join(late, NULL);
	CHECK(gp_memory_close(gp_now_ns() + LONG_NS));
	next = start_late();
	gp_memory_open();
	CHECK(!pthread_create(&helper, NULL, let_pass_while_closing, NULL));
	uint64_t began = gp_now_ns();
	CHECK(gp_memory_close(gp_now_ns() + LONG_NS));
	CHECK(!gp_memory[0].waiting || gp_now_ns() - began >= SECOND_NS); // it had no processor
	gp_memory_open();
	pthread_join(helper, NULL);
	pthread_join(next, NULL);
}

static void test_captures(void)
{
	pthread_t thread;
	gp_capture_begins(GP_STREAM_PER_THREAD);
	CHECK(is_inside());
	CHECK(!pthread_create(&thread, NULL, end_capture, NULL));
	CHECK(gp_memory_close(gp_now_ns() + LONG_NS) && !gp_captures); // waits for its end
	gp_memory_open();
	pthread_join(thread, NULL);
}

static CUresult get_current(CUcontext *context) { return *context = NULL, CUDA_SUCCESS; }

int main(void)
{
	gp_driver.cuCtxGetCurrent = get_current;
	gp_memory_enter(); // not counted: swap is not used
	gp_memory_on = 1;
	gp_memory_leave();
	test_depth();
	test_longjmp();
	test_end();
	test_captures();
	test_waits();
	test_who_waited_passes();
	test_never_passes();
	test_ends_in_wait();
	test_too_late();
	test_closings();
	return 0;
}
