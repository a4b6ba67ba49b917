// gate.c - counts the threads that may use device memory, and keeps them out while memory moves.
//
// Writers: threads, of the counters; the mover, of closed. Readers: each of what the other writes.
// Pairing: a thread first counts itself in, then looks whether the gate is closed. The mover first closes the gate, then
// reads the counters. All four are sequentially consistent, so one of the two sees the other: either the thread finds the gate
// closed and counts itself out again, or the mover finds it counted in and waits. Once the mover has read zero in a counter of the closed
// gate, a thread that counts in there later finds the gate closed. So the counters need not be zero at one instant: the mover waits for one
// after the other. Without a second look this breaks: a thread uses memory that moves. gate_orders_test.c tries every order.
// Counting out releases what the thread did, and the mover's reading acquires it. Opening releases what the mover did, and
// looking at the gate acquires it. So neither needs a lock for ranges and chunks.
// The other way round for the mover's sleep: a thread first counts out, then looks at the gate; the mover closed it before it
// read the counter. Either the mover read the new count, or the thread wakes it.
// Memory comes back for threads that wait at the gate. They pass before it is closed again, however late they get a processor, or it would
// come and go for nothing. So the mover first closes the gate to others only (CLOSING), until all threads have passed for which it was
// opened. Each thread counts itself in waiting, for the next opening, looks whether that is still to come, and only then counts out of its
// counter. It counts itself out of waiting once it is in again. So from its wait to the end of its call it is counted in one of the two: a
// launch has reached the driver before the memory leaves. A thread that has stepped out for a window of a higher level is counted in
// neither, and waits here again then.
#define _GNU_SOURCE
#include "preempt/memory/memory.h"

#include <limits.h>

enum {
	COUNTERS = 64,
	CAPTURE_NAP_NS = 1000000, // between two looks whether a capture is over
	// So much time threads that waited have to pass. One that a signal handler took out of its wait by longjmp never does, and one
	// whose handler works on does late: the mover does not wait for these again.
	PASSING_NS = 1000000000,
};

// Threads on different processors rarely share a cache line.
static struct {
	_Atomic uint32_t in;
	char rest[60];
} counter[COUNTERS] __attribute__((aligned(64)));
enum { OPEN, CLOSING, CLOSED };
static _Atomic uint32_t closed;
static _Atomic uint32_t opened;     // how often the gate was; a futex of threads that wait for the next time
static _Atomic uint32_t waiting[2]; // [n % 2]: threads that wait for the opening behind number n
static uint32_t never[2];     // of these, threads that did not pass in time when the gate closed last; the mover's
static _Atomic uint32_t left; // a futex of the mover: a thread counted out of the closed gate, or waits no more

struct gp_memory gp_memory[GP_GPUS];
_Atomic uint32_t gp_memory_on, gp_memory_counts;
struct gp_memory_settings gp_memory_settings;

// Where the thread is. frame is in the caller that counted in first.
enum { NEVER = -1 }; // it was never counted in
static __thread struct {
	int32_t depth;
	const void *frame;
} mine __attribute__((tls_model("initial-exec"))) = {NEVER, NULL};

// The thread's own part of the shared counts of waits; a signal handler that comes meanwhile may wait, too. A thread raises the shared
// count before its part, and lowers its part before the shared count. So wherever it ends, it takes back no more than it added.
GP_OF_THREAD struct thread_waits {
	uint32_t behind[2]; // in waiting
	uint8_t gpu[GP_GPUS];
} waits;

static _Atomic uint32_t *my_counter(void)
{
	// Places of thread-local storage differ by stack sizes: a multiplication spreads their bits.
	uint64_t place = (uintptr_t)&mine * 0x9e3779b97f4a7c15ull;
	return &counter[place >> 58].in;
}
_Static_assert(COUNTERS == 1 << (64 - 58), "a hash of 6 bits");

static __attribute__((noinline)) void wake_mover(void)
{
	left++;
	gp_futex_wake(&left, 1, false);
}

static inline __attribute__((always_inline)) void count_out(void)
{
	(*my_counter())--;
	if (__builtin_expect(closed, 0))
		wake_mover();
}

static void end_wait(uint32_t behind)
{
	struct thread_waits *w = GP_MINE(waits);
	w->behind[behind % 2]--;
	waiting[behind % 2]--;
	wake_mover();
}

// Returns the number of openings behind which the thread waits for another one.
static uint32_t begin_wait(void)
{
	struct thread_waits *w = GP_MINE(waits);
	for (;;) {
		uint32_t behind = opened;
		waiting[behind % 2]++;
		w->behind[behind % 2]++;
		if (opened == behind)
			return behind;
		end_wait(behind);
	}
}

// The thread counts itself in. Returns as begin_wait.
static uint32_t pass(uint32_t behind)
{
	for (;;) {
		while (opened == behind && closed)
			gp_futex_wait(&opened, behind, 0, false);
		(*my_counter())++;
		if (closed != CLOSED)
			return behind;
		end_wait(behind); // too late
		behind = begin_wait();
		count_out();
	}
}

// The thread has counted itself in at the closed gate. Every GPU's agent hears of it: the process waits for all of its memory, until the
// thread is in. GPUs that become known meanwhile are not counted.
static __attribute__((noinline)) void count_in_again(void)
{
	struct thread_waits *w = GP_MINE(waits);
	uint64_t since = gp_now_ns();
	uint32_t behind = begin_wait();
	int gpus = 0;
	count_out();
	while (gpus < GP_GPUS && gp_gpu[gpus].known)
		gpus++;
	for (int i = 0; i < gpus; i++) {
		gp_memory[i].waiting++;
		w->gpu[i]++;
		gp_ring(&gp_gpu[i]);
	}
	behind = pass(behind);
	for (int i = 0; i < gpus; i++) {
		w->gpu[i]--;
		gp_memory[i].waiting--;
		gp_count(&gp_memory[i].waits, 1);
		gp_count(&gp_memory[i].wait_ns, gp_now_ns() - since);
	}
	end_wait(behind);
}

static inline __attribute__((always_inline)) void count_in(void)
{
	(*my_counter())++;
	if (__builtin_expect(closed, 0))
		count_in_again();
}

// A thread that ends within a call, as by pthread_cancel in the driver, is counted out by what the system calls as it ends. One whose
// signal handler ends it, or left by longjmp, while it waited does not wait any more.
void gp_memory_thread_ends(void)
{
	struct thread_waits *w = GP_MINE(waits);
	if (mine.depth > 0)
		count_out();
	mine.depth = 0;
	for (int i = 0; i < GP_GPUS; i++)
		for (; w->gpu[i]; w->gpu[i]--)
			gp_memory[i].waiting--;
	while (w->behind[0] || w->behind[1])
		end_wait(!w->behind[0]);
}

// The thread was never counted in, or has left its last call by longjmp.
static __attribute__((noinline)) void begin_or_leave(void)
{
	if (mine.depth == NEVER)
		gp_thread_is_heard(); // from its first call on, so that launches need not ask whether they are the first
	else
		count_out();
}

// The driver calls profilers back, and those call the driver: such a nested call passes. Its frame is below that of the call
// around it, as stacks grow down. A thread that is counted in and comes with a frame that is not below left that call by
// longjmp: nothing else takes a frame away. Its count is taken back then. Until it comes again it counts as inside, so that
// its process is not evicted: too careful, never too bold.
void gp_memory_enter_slowly(const void *frame)
{
	if (mine.depth > 0 && frame < mine.frame) {
		mine.depth++;
		return;
	}
	if (mine.depth)
		begin_or_leave();
	mine.depth = 0; // a signal handler that comes while this thread waits is not inside
	count_in();
	mine.depth = 1;
	mine.frame = frame;
}

void gp_memory_enter_again(const void *frame)
{
	if (mine.depth > 0)
		mine.depth++;
	else
		gp_memory_enter_slowly(frame);
}

void gp_memory_leave_slowly(void)
{
	if (mine.depth > 0 && --mine.depth == 0) // 0 already: counted in before the gate was used
		count_out();
}

bool gp_memory_inside(void) { return mine.depth > 0; }

uint32_t gp_memory_step_out(void)
{
	if (mine.depth <= 0)
		return 0;
	uint32_t depth = (uint32_t)mine.depth;
	mine.depth = 0;
	count_out();
	return depth;
}

void gp_memory_step_in(uint32_t depth)
{
	if (!depth)
		return;
	count_in();
	mine.depth = (int32_t)depth;
}

void gp_memory_open(void)
{
	closed = OPEN;
	opened++;
	gp_futex_wake(&opened, INT_MAX, false);
}

bool gp_memory_closed(void) { return closed != OPEN; }

// Waits until a counter of the closed gate, or one of waiting, is that low, or the time is over. Returns its last value.
static uint32_t wait_low(_Atomic uint32_t *in, uint32_t most, uint64_t deadline_ns)
{
	for (;;) {
		uint32_t seen = left, count = *in;
		uint64_t now = gp_now_ns();
		if (count <= most || now >= deadline_ns)
			return count;
		gp_futex_wait(&left, seen, deadline_ns - now, false);
	}
}

static bool all_out(uint64_t deadline_ns)
{
	for (int i = 0; i < COUNTERS; i++)
		if (wait_low(&counter[i].in, 0, deadline_ns))
			return false;
	return true;
}

// The mover must not wait for a captured stream, and a thread that captures has to pass the gate to end that. So the gate is not closed
// while a capture is under way. A capture begins while its thread is counted in (gp_capture_beginning): once all threads are out, none can.
static bool wait_captures(uint64_t deadline_ns)
{
	while (gp_captures) {
		if (gp_now_ns() >= deadline_ns)
			return false;
		gp_nap(CAPTURE_NAP_NS);
	}
	return true;
}

bool gp_memory_close(uint64_t deadline_ns)
{
	while (wait_captures(deadline_ns)) {
		uint64_t passing = gp_now_ns() + PASSING_NS;
		uint32_t parity = (opened - 1) % 2;
		// While the gate is open no thread begins to wait for the next opening: threads that are counted there never pass. Some of
		// those that never did may have ended. never loses these, so that it holds no thread that waits next.
		if (waiting[!parity] < never[!parity])
			never[!parity] = waiting[!parity];
		closed = CLOSING;
		never[parity] = wait_low(&waiting[parity], never[parity], passing < deadline_ns ? passing : deadline_ns);
		closed = CLOSED;
		bool out = all_out(deadline_ns);
		if (out && !gp_captures)
			return true;
		gp_memory_open();
		if (!out)
			return false;
	}
	return false;
}
