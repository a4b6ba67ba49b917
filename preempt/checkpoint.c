// checkpoint.c - the process is locked, checkpointed, restored and unlocked, by itself or by another one.
#define _GNU_SOURCE
#include "preempt/preempt.h"
#include "preempt/gpu/gpu.h"

#include <unistd.h>

static const uint64_t SOON_NS = 50 * 1000 * 1000, LATE_NS = 800 * 1000 * 1000; // between two questions

void gp_checkpoint_begins(enum gp_checkpoint step)
{
	if (step != GP_CHECKPOINT_LOCK)
		return;
	gp_membership_lock_begins();
	gp_membership_changed();
}

// No lock is taken here that another thread may have while it waits for the driver, which lets no call begin.
void gp_checkpoint_ended(enum gp_checkpoint step, CUresult result)
{
	static const enum gp_membership_event seen[] = {[GP_CHECKPOINT_SAVE] = GP_SEEN_CHECKPOINTED,
							[GP_CHECKPOINT_RESTORE] = GP_SEEN_LOCKED,
							[GP_CHECKPOINT_UNLOCK] = GP_SEEN_RUNNING};
	bool done = result == CUDA_SUCCESS;
	if (step == GP_CHECKPOINT_LOCK)
		gp_membership_lock_ends(done);
	else if (done)
		gp_membership_answer(gp_membership_question(), seen[step]);
	gp_membership_changed();
	if (!done || step != GP_CHECKPOINT_UNLOCK) // another process may end it; or it is in another state than the program thinks
		gp_membership_doubt(false);
}

// The driver lets no operation begin while the process is locked. An operation that began when it seemed to be, and was taken, tells that
// it runs, also where the driver does not say so. It ran at some time since the question: a later lock, or a later answer, counts more.
// One that began before has no question, and proves nothing. The driver is asked once more, since another lock may have come meanwhile.
void gp_checkpoint_refuted(uint64_t question)
{
	enum gp_membership was = gp_membership;
	gp_membership_answer(question, GP_SEEN_RUNNING);
	if (gp_membership == was)
		return;
	gp_membership_changed();
	gp_membership_doubt(false);
}

// Asks the driver. False: the process does not run, or the driver does not say.
static bool ask(void)
{
	static const enum gp_membership_event event[] = {GP_SEEN_RUNNING, GP_SEEN_LOCKED, GP_SEEN_CHECKPOINTED,
							 GP_SEEN_FAILED}; // CUprocessState
	const unsigned states = sizeof event / sizeof *event;
	uint64_t number = gp_membership_question();
	int state;
	if (gp_exiting() || gp_driver.cuCheckpointProcessGetState(getpid(), &state))
		return false;
	// Newer drivers have two more, of a locked process: its memory goes to the host, or comes back.
	gp_membership_answer(number, (unsigned)state < states ? event[state] : GP_SEEN_LOCKED);
	return state == 0;
}

bool gp_checkpoint_can_watch(void) { return gp_driver.cuCheckpointProcessGetState; }

// The driver may answer late: this thread alone waits for that. Where channels were lost it may be that a checkpoint has just begun: the driver
// is asked a few times more. If the process runs after all, it was away for a moment, and what was learnt of its channels is learnt anew.
// One that failed does not come back: it is asked about only where there is a doubt again.
void gp_checkpoint_watch(void)
{
	enum { QUESTIONS = 5 };
	uint64_t wait = 0;
	uint32_t seen = 0, heard = 0, losses = 0, left = 0;
	for (;; gp_futex_wait(&gp_doubts, seen, wait, false)) {
		uint32_t was = gp_membership;
		seen = gp_doubts;
		if (seen != heard) {
			left = gp_losses != losses ? QUESTIONS : 1;
			wait = 0;
		}
		heard = seen;
		if (!left && (was == GP_JOINED || was == GP_UNUSABLE)) {
			wait = 0;
			continue;
		}
		left -= left > 0;
		bool back = ask() && was == GP_JOINED && !left && losses != gp_losses;
		if (back) {
			losses = gp_losses;
			gp_rejoined++;
		}
		uint32_t is = gp_membership;
		if (is != was || back)
			gp_membership_changed();
		if (is != was && is == GP_UNUSABLE)
			// CUDA's documentation says of the state: an uncorrectable error.
			gp_log_line("the driver could not checkpoint or restore this process, for good: it can only "
				    "end, and others go on without it");
		wait = is != was || !wait ? SOON_NS : wait < LATE_NS ? 2 * wait : LATE_NS;
	}
}
