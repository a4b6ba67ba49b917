// source.c - explicit hints, and announcements, which work follows after a delay that is learnt.
#define _GNU_SOURCE
#include "hints/source.h"
#include "preempt/process/process.h"

struct gp_estimate gp_estimate[GP_KEYS];
struct gp_announcement gp_announcement[GP_ANNOUNCEMENTS];
_Atomic uint32_t gp_announcements;
_Atomic(gp_hint_fn *) gp_give;
_Atomic uint32_t gp_sources;

// gpreempt.h
__attribute__((visibility("default"))) int gpreempt_hint(int64_t delay_us, double confidence)
{
	gp_hint_fn *give = gp_give;
	if (!give || !(gp_sources & 1u << GP_HINT_EXPLICIT) || delay_us < 0 || !(confidence >= 0 && confidence <= 1))
		return -1;
	enum { MOST_us = 3600 * 1000 * 1000u }; // no overflow; the core takes much less
	uint64_t us = delay_us < (int64_t)MOST_us ? (uint64_t)delay_us : MOST_us;
	give(GP_HINT_EXPLICIT, gp_now_ns() + us * 1000, 0, confidence);
	return 0;
}

// The place of a key: one of eight. The least recently used one makes room.
uint32_t gp_estimate_for(uint64_t key, uint64_t now)
{
	enum { WAYS = 8 };
	uint32_t first = (uint32_t)(key * 0x9E3779B97F4A7C15ull >> 32) % (GP_KEYS - GP_RANGES) / WAYS * WAYS + GP_RANGES;
	uint32_t oldest = first;

	for (uint32_t i = first; i < first + WAYS; i++) {
		if (gp_estimate[i].key == key) {
			gp_estimate[i].used_ns = now;
			return i;
		}
		if (gp_estimate[i].used_ns < gp_estimate[oldest].used_ns)
			oldest = i;
	}
	struct gp_estimate *e = &gp_estimate[oldest];
	e->likely_ppm = 0;
	e->key = key;
	e->used_ns = now;
	return oldest;
}

void gp_announce(enum gp_hint_source source, uint32_t estimate, uint64_t key, uint32_t fd, uint32_t generation,
		 uint32_t likely_ppm, uint64_t now)
{
	struct gp_estimate *e = &gp_estimate[estimate];
	gp_hint_fn *give = gp_give;
	uint32_t known = e->likely_ppm;
	double likely = (known && likely_ppm != UINT32_MAX ? likely_ppm : known) / 1e6;

	if (give && known && likely >= GP_LEAST_CONFIDENCE)
		give(source, now + e->delay_ns, e->valid_ns, likely < 1 ? likely : 1);
	struct gp_announcement *a = &gp_announcement[gp_announcements++ % GP_ANNOUNCEMENTS];
	a->key = key;
	a->estimate = estimate;
	a->fd = fd;
	a->generation = generation;
	a->at_ns = now;
}
