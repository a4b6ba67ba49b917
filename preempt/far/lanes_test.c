// lanes_test.c - with preempt/far/lanes.c preempt/process/process.c.
//
// A helper's calls reach functions of each kind as they were made, by several threads at a time on several lanes. A lane that is not open
// leaves its calls to CORE. When the lanes are closed in the midst of calls, threads end after the call that they are in.
#define _GNU_SOURCE
#include "preempt/far/far.h"
#include "test/units/check.h"

#include <string.h>
#include <sys/mman.h>

bool gp_bridge_memory_returns(void), gp_bridge_memory_suspend(bool, uint64_t);
static _Atomic uint32_t returns, resumed;
bool gp_bridge_memory_suspend(bool on, uint64_t timeout_ns) { return resumed += !on; }
bool gp_bridge_memory_returns(void) { return ++returns >= 2; } // not all at first

enum { THREADS = 6, CALLS = 2000 };
static struct gp_page *page;

static int difference(int a, unsigned b, uint64_t c, bool d) { return d ? a - (int)b - (int)c : 0; }
static double kept[4];
static uint64_t numbers(uint64_t a, double x, double y, uint64_t b)
{
	kept[0] = x;
	kept[1] = y;
	return a * 10 + b;
}
static bool is_even(uint64_t n) { return n % 2 == 0; }
static const char *text_of(int which)
{
	static char longer[1000];
	return which == 0 ? NULL : which == 1 ? "short" : (const char *)memset(longer, 'x', sizeof longer - 1);
}
static uint32_t sum(const uint32_t *of, uint32_t n, uint64_t *doubled)
{
	uint32_t total = 0;
	for (uint32_t i = 0; i < n; i++)
		total += of[i];
	*doubled = 2ull * total;
	return total;
}
static _Atomic pthread_t served_by;
static uint64_t note_thread(uint64_t n)
{
	served_by = pthread_self();
	return n;
}

static uint64_t call(uint32_t of, void (*function)(void), uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
	struct gp_lane *l = gp_far_begin(of);
	l->call.argument[0] = a;
	l->call.argument[1] = b;
	l->call.argument[2] = c;
	l->call.argument[3] = d;
	gp_far_carry_out(l, function);
	uint64_t result = l->call.result;
	gp_far_end(l);
	return result;
}

static void kinds(void)
{
	CHECK((int)call(GP_LANE_CORE, (void (*)(void))difference, (uint64_t)-5, 7, 3, 1) == -15);
	CHECK((int)call(GP_LANE_CORE, (void (*)(void))difference, (uint64_t)-5, 7, 3, 0) == 0);
	CHECK((uint8_t)call(GP_LANE_CORE, (void (*)(void))is_even, 4, 0, 0, 0) == 1);
	CHECK((uint8_t)call(GP_LANE_CORE, (void (*)(void))is_even, 5, 0, 0, 0) == 0);

	struct gp_lane *l = gp_far_begin(GP_LANE_CORE);
	l->call.argument[0] = 4;
	l->call.argument[1] = 2;
	l->call.number[0] = 0.25;
	l->call.number[1] = -8;
	gp_far_carry_out(l, (void (*)(void))numbers);
	CHECK(l->call.result == 42 && kept[0] == 0.25 && kept[1] == -8);
	gp_far_end(l);

	for (int which = 0; which < 3; which++) {
		l = gp_far_begin(GP_LANE_CORE);
		l->call.argument[0] = (uint64_t)which;
		l->call.text = 1;
		gp_far_carry_out(l, (void (*)(void))text_of);
		CHECK(l->call.result == (which > 0));
		CHECK(which != 1 || !strcmp((char *)l->data, "short"));
		CHECK(which != 2 || strlen((char *)l->data) == GP_FAR_TEXT - 1);
		gp_far_end(l);
	}

	l = gp_far_begin(GP_LANE_CORE);
	for (uint32_t i = 0; i < 10; i++)
		memcpy(l->data + i * sizeof i, &i, sizeof i);
	l->call.in_data = 1 | 4;
	l->call.argument[0] = 0;
	l->call.argument[1] = 10;
	l->call.argument[2] = 1024;
	gp_far_carry_out(l, (void (*)(void))sum);
	uint64_t doubled;
	memcpy(&doubled, l->data + 1024, sizeof doubled);
	CHECK(l->call.result == 45 && doubled == 90);
	gp_far_end(l);
}

static void *core(void *unused)
{
	gp_lane_serve(page, GP_LANE_CORE);
	return unused;
}

static void *calls(void *number)
{
	uint32_t of = GP_LANE_AGENT + (uint32_t)(uintptr_t)number % 3; // two threads each
	for (uint64_t i = 0; i < CALLS; i++)
		if (call(of, (void (*)(void))note_thread, i, 0, 0, 0) != i)
			return NULL;
	return NULL;
}

int main(void)
{
	pthread_t of_core, thread[THREADS];
	kinds(); // without a page: here

	page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(page != MAP_FAILED && !pthread_create(&of_core, NULL, core, NULL));
	gp_far_use(page);
	kinds();
	call(GP_LANE_MOVER, (void (*)(void))note_thread, 0, 0, 0, 0);
	CHECK(pthread_equal(served_by, of_core)); // it is not open
	CHECK(!gp_lane_open_here(GP_LANES));
	for (uint32_t i = 0; i < 3; i++) {
		CHECK(gp_lane_open_here(GP_LANE_AGENT + i) && !gp_lane_open_here(GP_LANE_AGENT + i));
		gp_far_opened(GP_LANE_AGENT + i);
	}
	CHECK(gp_lane_open_here(GP_LANE_MOVER));
	gp_far_opened(GP_LANE_MOVER);
	call(GP_LANE_MOVER, (void (*)(void))note_thread, 0, 0, 0, 0);
	CHECK(!pthread_equal(served_by, of_core));

	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&thread[i], NULL, calls, (void *)i));
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_join(thread[i], NULL));

	gp_helper_gone = 1;
	gp_lanes_close(page);
	CHECK(!pthread_join(of_core, NULL));
	gp_helper_gone = 0; // another one has come, which moves no memory
	gp_lanes_end(page);
	CHECK(!page->lane[GP_LANE_AGENT].page && !page->lane[GP_LANE_MOVER].page && resumed == 1);
	while (!gp_lanes_have_ended(page) || returns < 2) // memory that is out comes back
		gp_nap(100000);
	return 0;
}
