// nvtx_orders_test.c - interleaved with hints/nvtx.c hints/source.c preempt/process/thread.c.
//
// Ranges that no thread has ended have all places. One of them ends after all, and two threads start steps, in every order: neither's is
// given up.
#define _GNU_SOURCE
#include "hints/nvtx.h"
#include "hints/source.h"
#include "test/units/interleave/interleave.h"

#include <stdlib.h>

// Stand in for other files.
uint64_t gp_now_ns(void) { return 1; }
void gp_nap(uint64_t ns) {}
void gp_thread_ends(void) {}
static int steps;
int gpreempt_step(void) { return ++steps, 0; }

enum { CORE = 1, START = 5, END = 7, IDS = 16, LEFT = 32 };
static void *functions[IDS];

static int table(int module, void ****out, unsigned *size)
{
	static void **places[IDS];
	for (int i = 1; i < IDS; i++)
		places[i] = &functions[i];
	*out = places;
	*size = IDS;
	return module == CORE;
}

static const void *export_table(uint32_t id)
{
	static const struct {
		size_t size;
		int (*get)(int, void ****, unsigned *);
	} callbacks = {sizeof callbacks, table};
	return &callbacks;
}

int InitializeInjectionNvtx2(const void *(*)(uint32_t));

static uint64_t start(void) { return ((uint64_t (*)(const char *))functions[START])("step"); }
static void end(uint64_t id) { ((void (*)(uint64_t))functions[END])(id); }

static uint64_t left[LEFT], first, second;

static void reset(void)
{
	for (int i = 0; i < LEFT; i++)
		end(left[i]);
	for (int i = 0; i < LEFT; i++)
		left[i] = start();
	steps = 0;
}

static void starts(void) { first = start(); }

static void ends_and_starts(void)
{
	end(left[0]);
	second = start();
}

static void check(void)
{
	steps = 0;
	end(first), end(second);
	CHECK(steps == 2);
}

int main(void)
{
	CHECK(!setenv("GPREEMPT_PRIORITY", "lc", 1));
	gp_nvtx_name_step("step");
	gp_nvtx_named();
	CHECK(InitializeInjectionNvtx2(export_table) == 1);
	struct interleaving one = {"started", reset, {starts, ends_and_starts}, check, .preemptions = 2};
	interleave(&one);
	return 0;
}
