// timing_test.c - with hints/timing.c preempt/gpu/switch.c preempt/process/process.c.
//
// A caller leaves the hold to the watcher where that is usually there in time.
#define _GNU_SOURCE
#include "hints/carry.h"
#include "test/units/check.h"

_Atomic uint32_t gp_hint_bell;

enum { US = 1000, SWITCH = 200 * US, LEAST = 30 * US, MOST = 300 * US };

static uint64_t allowed(void) { return gp_hint_watched_lead_ns() - SWITCH; }

static void late(int times, uint64_t ns)
{
	for (int i = 0; i < times; i++)
		gp_hint_learn_watcher(ns);
}

int main(void)
{
	CHECK(gp_taking_longest_ns() == SWITCH); // no process has learnt another one
	CHECK(allowed() == LEAST);
	late(100, 10 * US);
	CHECK(allowed() == LEAST); // no less than waking takes

	// Late in three of four: as long as the three take, not the fourth.
	for (int i = 0; i < 400; i++) {
		late(3, 80 * US);
		late(1, 250 * US);
	}
	CHECK(allowed() >= 79 * US && allowed() <= 84 * US);

	// Late once in a while: as before.
	for (int i = 0; i < 400; i++) {
		late(9, 20 * US);
		late(1, 900 * US);
	}
	CHECK(allowed() <= LEAST + 3 * US);

	// Always late, and by more than any hint is ahead: callers do it, and try again after a while.
	late(1000, 900 * US);
	uint64_t most = allowed();
	CHECK(most >= MOST && most < MOST + 3 * US);
	gp_hint_try_watcher();
	CHECK(allowed() < most && allowed() > most - US);
	for (int i = 0; i < 100 * 1000; i++)
		gp_hint_try_watcher();
	CHECK(allowed() == LEAST);
	return 0;
}
