// source.h - shared by the C files of hints/.
#ifndef GPREEMPT_SOURCE_H
#define GPREEMPT_SOURCE_H

#include <stdbool.h>
#include "hints/hints.h"

enum {
	GP_KEYS = 256,  // different ports, paths and NVTX names
	GP_RANGES = 16, // names of NVTX ranges
	GP_FDS = 4096,  // descriptors that are looked at
	GP_ANNOUNCEMENTS = 256,
};

// The work that follows a kind of announcement (a port, a range). The learner writes it.
struct gp_estimate {
	_Atomic uint64_t key;
	_Atomic uint64_t used_ns;
	_Atomic uint64_t delay_ns, valid_ns; // the work comes between delay_ns and delay_ns + valid_ns later
	_Atomic uint32_t likely_ppm;         // how often work comes at all; 0: not known, or too rarely
};

// An announcement, for the learner.
struct gp_announcement {
	_Atomic uint64_t at_ns; // stored last; the learner sets it to 0
	_Atomic uint64_t key;
	_Atomic uint32_t estimate, fd, generation;
};

extern struct gp_estimate gp_estimate[GP_KEYS];
extern struct gp_announcement gp_announcement[GP_ANNOUNCEMENTS];
extern _Atomic uint32_t gp_announcements; // ever
extern _Atomic(gp_hint_fn *) gp_give;
extern _Atomic uint32_t gp_sources; // bit set of the sources that are listened to

uint32_t gp_estimate_for(uint64_t key, uint64_t now);
// likely_ppm of a connection, or UINT32_MAX where only its key is known.
void gp_announce(enum gp_hint_source, uint32_t estimate, uint64_t key, uint32_t fd, uint32_t generation,
		 uint32_t likely_ppm, uint64_t now);

#endif
