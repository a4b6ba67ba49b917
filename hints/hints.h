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
	_Atomic uint64_t at_ns[256];
};

#endif
