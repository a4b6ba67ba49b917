// timing.c - learns how long a switch takes and how late the thread wakes, so that hints are carried out in time.
#define _GNU_SOURCE
#include "hints/carry.h"

const uint64_t gp_hint_default_switch_ns = 200 * 1000;  // a context switch on an H200, until measured
const uint64_t gp_hint_longest_switch_ns = 1000 * 1000; // a longer sample says nothing about the switch
const uint64_t gp_hint_longest_margin_ns = 100 * 1000;
// The longer a processor slept, the later it wakes, on a virtual machine sometimes by hundreds of microseconds. So the thread
// wakes once more, this long before the hint is due.
const uint64_t gp_hint_nap_ns = 300 * 1000;
static const uint64_t MARGIN_NS = 30 * 1000; // waking up and launching the hold
static const uint64_t SPIN_NS = 50 * 1000;   // longest spin before a guess is carried out
static const uint64_t LONGEST_EARLY_NS = 150 * 1000, EARLY_STEP_NS = 1000;
static const double SPIN_SHARE = 0.005, SPIN_SAVED_NS = 1e6; // share of a processor, and most that is saved up
enum {
	SAMPLES = 32,
	FEW_SAMPLES = 8,   // until then each hint is one
	SAMPLE_EVERY = 32, // hints, after that
};

static uint64_t samples[SAMPLES], switch_ns;
static uint32_t sample_count;
static uint64_t margin_ns = MARGIN_NS;

uint64_t gp_hint_switch_ns(void) { return switch_ns ? switch_ns : gp_hint_default_switch_ns; }

// A source that guesses names a time that allows for early work. A margin would count that twice.
uint64_t gp_hint_lead_ns(uint32_t source) { return gp_hint_switch_ns() + (gp_hint_announced(source) ? margin_ns : 0); }

// The margin follows the latest wake-ups of this thread.
void gp_hint_learn_margin(uint64_t late_ns)
{
	margin_ns -= (margin_ns - MARGIN_NS) / 64;
	if (late_ns > margin_ns)
		margin_ns = late_ns < gp_hint_longest_margin_ns ? late_ns : gp_hint_longest_margin_ns;
}

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

void gp_hint_spun(uint64_t ns)
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
	gp_hint_spun(now - from);
	return now;
}

// The time from arming to running is that of a switch only while lower levels have work, and short otherwise. So the longer
// samples count: the 90th percentile of those that last at least half as long as the third longest. The two longest may have
// been delayed by something else.
void gp_hint_learn_switch(uint64_t sample)
{
	uint64_t sorted[SAMPLES];
	int n, first = 0;

	if (sample > gp_hint_longest_switch_ns)
		return;
	samples[sample_count++ % SAMPLES] = sample;
	if (sample_count < 3)
		return;
	n = sample_count < SAMPLES ? (int)sample_count : SAMPLES;
	for (int i = 0; i < n; i++) {
		int j = i;
		for (; j > 0 && sorted[j - 1] > samples[i]; j--)
			sorted[j] = sorted[j - 1];
		sorted[j] = samples[i];
	}
	while (sorted[first] < sorted[n - 3] / 2)
		first++;
	switch_ns = sorted[first + (n - 1 - first) * 9 / 10];
	for (int i = 0; i < GP_GPUS && gp_gpu[i].known; i++)
		if (gp_own_slot(&gp_gpu[i]))
			gp_own_slot(&gp_gpu[i])->hint_switch_us = (uint32_t)(switch_ns / 1000);
}

uint64_t gp_hint_early_ns(uint32_t source) { return gp_hint_announced(source) ? 0 : early_ns; }

void gp_hint_earn_spinning(uint64_t passed_ns)
{
	spin_credit_ns += SPIN_SHARE * (double)passed_ns;
	if (spin_credit_ns > SPIN_SAVED_NS)
		spin_credit_ns = SPIN_SAVED_NS;
}

bool gp_hint_sample_due(uint32_t carried_out)
{
	return sample_count < FEW_SAMPLES || (carried_out % SAMPLE_EVERY == 0 && spin_credit_ns > 0); // it spins
}
