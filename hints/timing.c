// timing.c - learns how late the thread wakes, so that hints are carried out in time.
#define _GNU_SOURCE
#include "hints/carry.h"

const uint64_t gp_hint_longest_margin_ns = 100 * 1000;
// The longer a processor slept, the later it wakes, on a virtual machine sometimes by hundreds of microseconds. So the thread
// wakes once more, this long before the hint is due.
const uint64_t gp_hint_nap_ns = 300 * 1000;
static const uint64_t MARGIN_NS = 30 * 1000; // waking up and launching the hold
static const uint64_t SPIN_NS = 50 * 1000;   // longest spin before a guess is carried out
static const uint64_t LONGEST_EARLY_NS = 150 * 1000, EARLY_STEP_NS = 1000;
static const double SPIN_SHARE = 0.005, SPIN_SAVED_NS = 1e6; // share of a processor, and most that is saved up
static uint64_t margin_ns = MARGIN_NS;

// A source that guesses names a time that allows for early work. A margin would count that twice.
uint64_t gp_hint_lead_ns(uint32_t source)
{
	return gp_taking_longest_ns() + (gp_hint_announced(source) ? margin_ns : 0);
}

// The margin follows the latest wake-ups of this thread.
void gp_hint_learn_margin(uint64_t late_ns)
{
	margin_ns -= (margin_ns - MARGIN_NS) / 64;
	if (late_ns > margin_ns)
		margin_ns = late_ns < gp_hint_longest_margin_ns ? late_ns : gp_hint_longest_margin_ns;
}

// The watcher, woken by a caller, is usually there so soon: three times in four. Where that is too late for callers, they arm holds
// themselves, and try the watcher again some time later.
static const uint64_t LONGEST_WATCHER_NS = 300 * 1000, WATCHER_STEP_NS = 1000;
static uint64_t watcher_ns = MARGIN_NS;

uint64_t gp_hint_watched_lead_ns(void) { return gp_taking_longest_ns() + watcher_ns; }

static void sooner(uint64_t ns) { watcher_ns -= watcher_ns - MARGIN_NS < ns ? watcher_ns - MARGIN_NS : ns; }

void gp_hint_learn_watcher(uint64_t late_ns)
{
	if (late_ns <= watcher_ns)
		sooner(WATCHER_STEP_NS);
	else if (watcher_ns < LONGEST_WATCHER_NS)
		watcher_ns += 3 * WATCHER_STEP_NS;
}

void gp_hint_try_watcher(void) { sooner(WATCHER_STEP_NS / 16); }

// A guess is carried out exactly in time. The thread plans to wake early by its usual delay, learnt as that of three in four
// wakes, and spins for the rest.
static uint64_t early_ns = 50 * 1000;
static double spin_credit_ns;

void gp_hint_learn_wake(uint64_t late_ns)
{
	bool later = late_ns > early_ns && spin_credit_ns > 0;
	if (later && early_ns < LONGEST_EARLY_NS)
		early_ns += 3 * EARLY_STEP_NS;
	else if (!later)
		early_ns -= early_ns < EARLY_STEP_NS ? early_ns : EARLY_STEP_NS;
}

static void spun(uint64_t ns)
{
	spin_credit_ns -= (double)ns;
	for (int i = 0; i < GP_GPUS && gp_gpu[i].known; i++)
		if (gp_own_slot(&gp_gpu[i]))
			gp_count(&gp_own_slot(&gp_gpu[i])->hint_spun_ns, ns);
}

// Spins until due_ns, until its time is used up, or until another hint comes. Returns the time.
uint64_t gp_hint_spin(uint64_t due, uint32_t seen)
{
	uint64_t from = gp_now_ns(), now = from, most = spin_credit_ns > 0 ? SPIN_NS : 0;

	while (now < due && now - from < most && gp_hint_bell == seen)
		now = gp_now_ns();
	spun(now - from);
	return now;
}

uint64_t gp_hint_early_ns(uint32_t source) { return gp_hint_announced(source) ? 0 : early_ns; }

void gp_hint_earn_spinning(uint64_t passed_ns)
{
	spin_credit_ns += SPIN_SHARE * (double)passed_ns;
	if (spin_credit_ns > SPIN_SAVED_NS)
		spin_credit_ns = SPIN_SAVED_NS;
}
