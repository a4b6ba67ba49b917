// switch.c - what a switch away from a lower level takes on each GPU, as this process learns it.
//
// The watcher sees it: from the launch of a hold's links until the first of them runs (hold.c). It looks from time to time, so it knows a
// time at which the link did not run yet, and one at which it did.
#define _GNU_SOURCE
#include "preempt/gpu/gpu.h"

enum {
	SAMPLES = 32,
	FEW = 8,           // until then what others tell counts, or the default
	SAMPLE_EVERY = 32, // switches, once there are SAMPLES: a GPU's cost does not change, and looks often take processor time
};

static const uint64_t DEFAULT_NS =
	200 * 1000; // until anything is known. An H200 takes 190 us, and 206 to 240 were learnt there, by spinning, with the launch
// A shorter time is no switch: the lower level's kernels had just ended. A longer one is another process's timeslice.
static const uint64_t LEAST_NS = 20 * 1000, MOST_NS = 2000 * 1000;
static const uint64_t BRACKET_NS = 50 * 1000; // most between the two looks, or half of what is measured

// The watcher alone writes samples, the agent told_ns; anybody reads learnt_ns and told_ns.
static struct {
	uint64_t samples[SAMPLES];
	uint32_t count;
	_Atomic uint64_t learnt_ns, told_ns; // 0: nothing
} switches[GP_GPUS];

static bool plausible(uint64_t ns) { return ns >= LEAST_NS && ns <= MOST_NS; }

bool gp_switch_sampled(struct gp_gpu *g)
{
	struct gp_slot *slot = gp_own_slot(g);
	return slot && (switches[g - gp_gpu].count < SAMPLES || slot->switches % SAMPLE_EVERY == 0);
}

// The lower level may have had no work for a part of the time, and something else may have been in the way: of the samples that are not much
// shorter than the middle one three in four are at most as long as the answer.
static uint64_t estimate(const uint64_t *samples, uint32_t n)
{
	uint64_t sorted[SAMPLES];
	uint32_t first = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t j = i;
		for (; j > 0 && sorted[j - 1] > samples[i]; j--)
			sorted[j] = sorted[j - 1];
		sorted[j] = samples[i];
	}
	while (sorted[first] < sorted[n / 2] / 2)
		first++;
	return sorted[first + (n - 1 - first) * 3 / 4];
}

void gp_switch_seen(struct gp_gpu *g, uint64_t not_after_ns, uint64_t after_ns)
{
	uint64_t apart = after_ns - not_after_ns, took = not_after_ns + apart / 2;
	uint64_t most = took / 2 > BRACKET_NS ? took / 2 : BRACKET_NS;

	if (after_ns < not_after_ns || apart > most || !plausible(took))
		return;
	uint32_t i = (uint32_t)(g - gp_gpu), n = ++switches[i].count;
	switches[i].samples[(n - 1) % SAMPLES] = took;
	if (n >= FEW)
		switches[i].learnt_ns = estimate(switches[i].samples, n < SAMPLES ? n : SAMPLES);
}

void gp_switch_told(struct gp_gpu *g, uint64_t ns) { switches[g - gp_gpu].told_ns = plausible(ns) ? ns : 0; }

uint64_t gp_switch_learnt(struct gp_gpu *g) { return switches[g - gp_gpu].learnt_ns; }

uint64_t gp_switch_ns(struct gp_gpu *g)
{
	uint64_t ns = gp_switch_learnt(g);
	if (!ns)
		ns = switches[g - gp_gpu].told_ns;
	return ns ? ns : DEFAULT_NS;
}

// Under an MPS server nothing is switched: lower levels stop. Blocks of 10 us are gone 52 us after the window opens in 99 of 100 stops on an
// H100, blocks of 100 us after 117.
static const uint64_t STOP_NS = 100 * 1000;

uint64_t gp_taking_longest_ns(void)
{
	uint64_t longest = 0;
	for (int i = 0; i < GP_GPUS && gp_gpu[i].known; i++) {
		uint64_t ns = gp_gpu[i].mps ? STOP_NS : gp_switch_ns(&gp_gpu[i]);
		if (gp_gpu[i].lower_peers && ns > longest)
			longest = ns;
	}
	return longest ? longest : DEFAULT_NS;
}
