// hints.h - how sources of hints and the core that carries them out meet.
//
// A hint says that this process will put work on the GPU from start_ns on. hints/ finds out when, and knows
// nothing of how the GPU is kept; preempt/ keeps it, and knows nothing of where hints come from. shim/ hands
// each what it needs of the other.
#ifndef GPREEMPT_HINTS_H
#define GPREEMPT_HINTS_H

#include <stdint.h>

enum gp_hint_source {
	GP_HINT_EXPLICIT,
	GP_HINT_NVTX,
	GP_HINT_COPY, // given by the core itself
	GP_HINT_SOCKET,
	GP_HINT_ARRIVAL,
};

// Gives a hint, from any thread: lock-free, at most one futex system call. The work is expected from start_ns
// (CLOCK_MONOTONIC) to start_ns + valid_ns. Arguments may be any nonsense.
typedef void gp_hint_fn(enum gp_hint_source, uint64_t start_ns, uint64_t valid_ns, double confidence);

// When requests came: written by the core at the first work after idle, read by the one learner of hints/,
// which sets what it has read to zero. bell is a futex, rung some time after.
struct gp_arrivals {
	_Atomic uint32_t bell;
	_Atomic uint32_t count;
	struct gp_arrival {
		_Atomic uint64_t at_ns;    // stored last
		_Atomic uint64_t held_ns;  // since when a hint kept the GPU for it; 0: none did
		_Atomic uint64_t due_ns;   // when the next hint known then was to be carried out; 0: none was known
		_Atomic uint32_t ready;    // the GPU was there already
		_Atomic uint32_t dropped;  // enum gp_hint_dropped: the latest hint that came to nothing since the request before
	} arrival[256];
};

enum gp_hint_dropped {
	GP_DROPPED_NONE,
	GP_DROPPED_DOUBTFUL, // not confident enough, or of no sensible time
	GP_DROPPED_OFF,      // its source was off
	GP_DROPPED_UNPAID,   // or had cost too much
	GP_DROPPED_OVERLAPS, // another hint is for the same time
	GP_DROPPED_NOBODY,   // nothing to preempt, or that may be preempted
	GP_DROPPED_WRONG,    // the wait for the work ended before it came
};

#endif
