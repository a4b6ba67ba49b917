// The record of one launch, which the guard reads and writes, and the words around it. Included by the
// guard (CUDA C++) and by the launch path (C).
#ifndef GPREEMPT_GUARD_H
#define GPREEMPT_GUARD_H

// Records lie in arenas of device memory that are aligned to their size. The first word of an arena
// is the stop flag of all its records: while it is not 0, launches begin no further block. It takes the
// place of the first record; record 0 is never handed out. Once set, the flag must stay set until every
// launch with a record of the arena has ended: else one that was queued behind a stopped one would run
// before the rest of that.
#define GPREEMPT_ARENA_BYTES (2u << 20)

// Set in gpreempt_record.state by the first block that meets a set stop flag.
#define GPREEMPT_FROZEN (1ULL << 63)

// One per launch, in device memory. The address of the record is the guarded kernel's hidden last
// parameter; 0 there lets every block pass.
//
// A launch's blocks are numbered in the order in which the hardware hands them out, x first; those of
// a cluster share the cluster's number. Without a stop the guard raises state to the highest number
// begun + 1. Once the state is frozen that is the cut: blocks below it run, the others exit at once.
//
// Before a launch:    state = done = 0.
// After it:           not frozen: every block ran. Frozen: cut = state & ~GPREEMPT_FROZEN, and the
//                     blocks from the cut on (perhaps none) did not run.
// Before a relaunch:  state = done = cut, with the same grid, cluster and arguments.
struct gpreempt_record {
	unsigned long long state;
	unsigned long long done; // blocks below this number have run in an earlier launch
};

#endif
