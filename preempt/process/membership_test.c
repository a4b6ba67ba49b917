// membership_test.c - with preempt/process/membership.c preempt/process/process.c.
//
// The state of the process after each event, in each state; and which answers count.
#define _GNU_SOURCE
#include "preempt/process/process.h"
#include "test/units/check.h"

void gp_thread_ends(void) {}

static void transitions(void)
{
	enum { J = GP_JOINED, G = GP_LEAVING, L = GP_LOCKED, C = GP_CHECKPOINTED, F = GP_UNUSABLE, STATES, EVENTS = 6 };
	// Begins to lock, is refused that; is seen running, locked, checkpointed, failed.
	static const enum gp_membership next[STATES][EVENTS] = {
		[J] = {G, J, J, L, C, F}, [G] = {G, J, G, L, C, F}, [L] = {L, L, J, L, C, F},
		[C] = {C, C, J, L, C, F}, [F] = {F, F, J, L, C, F},
	};
	for (int state = 0; state < STATES; state++)
		for (int event = 0; event < EVENTS; event++)
			CHECK(gp_membership_next(state, event) == next[state][event]);
}

// The answer to a question that was asked before another one, whose answer is known, says nothing.
static void late_answers(void)
{
	uint64_t early = gp_membership_question(), late = gp_membership_question();
	gp_membership_answer(late, GP_SEEN_LOCKED);
	CHECK(gp_membership == GP_LOCKED && !gp_takes_part());
	gp_membership_answer(early, GP_SEEN_RUNNING);
	CHECK(gp_membership == GP_LOCKED);
	early = gp_membership_question();
	uint32_t rejoined = gp_rejoined;
	gp_membership_answer(gp_membership_question(), GP_SEEN_RUNNING); // the program has unlocked itself meanwhile
	gp_membership_answer(early, GP_SEEN_LOCKED);
	CHECK(gp_membership == GP_JOINED && gp_rejoined == rejoined + 1);
	early = gp_membership_question();
	gp_membership_lock_begins();
	gp_membership_lock_ends(true);
	gp_membership_answer(early, GP_SEEN_RUNNING);
	CHECK(gp_membership == GP_LOCKED);
	gp_membership_answer(gp_membership_question(), GP_SEEN_RUNNING);
}

// Two threads lock at once: the process leaves until both are done, whatever the driver answers meanwhile.
static void two_lock(void)
{
	gp_membership_lock_begins();
	CHECK(gp_membership == GP_LEAVING && gp_takes_part());
	gp_membership_lock_begins();
	gp_membership_answer(gp_membership_question(), GP_SEEN_RUNNING);
	CHECK(gp_membership == GP_LEAVING);
	gp_membership_lock_ends(false);
	CHECK(gp_membership == GP_LEAVING);
	gp_membership_lock_ends(false);
	CHECK(gp_membership == GP_JOINED);
	gp_membership_lock_begins();
	gp_membership_lock_begins();
	gp_membership_lock_ends(true);
	gp_membership_lock_ends(false); // it is locked already
	CHECK(gp_membership == GP_LOCKED);
	gp_membership_answer(gp_membership_question(), GP_SEEN_CHECKPOINTED);
	CHECK(gp_membership == GP_CHECKPOINTED);
	// Another process has restored it. It is seen to run while a thread is about to lock it again.
	uint32_t rejoined = gp_rejoined;
	gp_membership_lock_begins();
	gp_membership_answer(gp_membership_question(), GP_SEEN_RUNNING);
	CHECK(gp_membership == GP_LEAVING && gp_rejoined == rejoined);
	gp_membership_lock_ends(false);
	CHECK(gp_membership == GP_JOINED && gp_rejoined == rejoined + 1);
	uint64_t before = gp_membership_question(); // an operation that began before the lock
	gp_membership_lock_begins();
	gp_membership_lock_ends(true);
	gp_membership_answer(before, GP_SEEN_RUNNING);
	CHECK(gp_membership == GP_LOCKED);
	gp_membership_answer(gp_membership_question(), GP_SEEN_RUNNING);
}

// Windows of higher levels keep it from the GPU only while it takes part in all.
static void heeds(void)
{
	struct gp_gpu *g = &gp_gpu[0];
	CHECK(gp_heeds_windows(g));
	g->forced = 1;
	CHECK(!gp_heeds_windows(g));
	g->forced = 0;
	gp_membership_lock_begins();
	CHECK(!gp_heeds_windows(g));
	gp_membership_lock_ends(false);
	CHECK(gp_heeds_windows(g));
}

int main(void)
{
	transitions();
	late_answers();
	two_lock();
	heeds();
	return 0;
}
