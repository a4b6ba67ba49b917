// The record of one launch, which the guard reads and writes, and the words around it. Included by the
// guard (CUDA C++) and by the launch path (C).
#ifndef GPREEMPT_GUARD_H
#define GPREEMPT_GUARD_H

// Records lie in arenas of device memory that are aligned to their size. The first word of an arena
// is the stop flag of all its records: while it is not 0, launches begin no further block. It takes the
// place of the first record; record 0 is never handed out. Once set, the flag must stay set until every
// launch with a record of the arena has ended: else one that was queued behind a stopped one would run
// before the rest of that.
#define GPREEMPT_ARENA_BYTES (16u << 20)

// gpreempt_record.state: two bits, and below them a number of blocks.
#define GPREEMPT_OPEN (1u << 31)   // blocks may begin and count themselves
#define GPREEMPT_FROZEN (1u << 30) // a stop was seen: the number is the cut
#define GPREEMPT_CUT (GPREEMPT_FROZEN - 1)

// One per launch, in device memory. The address of the record is the guarded kernel's hidden last
// parameter; 0 there lets every block pass.
//
// A launch's blocks are numbered in the order in which the hardware hands them out, x first; those of
// a cluster share the cluster's number. Launches with GPREEMPT_CUT or more of them get no record.
//
// Before a launch:    state = done = 0.
// After it:           not FROZEN: every block ran, or had run before. FROZEN: the blocks from
//                     cut = state & GPREEMPT_CUT on (perhaps none) did not run.
// Before a relaunch:  state = done = cut, with the same grid, cluster and arguments; state = done =
//                     GPREEMPT_CUT if no block is to run.
// Each word has a cache line of its own: an atomic operation takes the line from L1, and done must stay there. Both in
// one line, all blocks of all SMs meet at it twice, which cost an H200 2 ns a block, and a copy half its bandwidth.
// Both words must be written before the launch in the order of its stream: done may come from an L1
// cache, which keeps nothing from before the launch.
//
// A block asks with one atomic operation: the signed maximum of the state and OPEN | number + 1. That
// counts the block if the state is open and not frozen, and nothing else, for all other states are
// greater. The answer, the state before, decides:
//   OPEN, not FROZEN  The block has been counted and runs. Every few blocks one also looks at the stop
//                     flag, without waiting for it before the atomic operation; if it is set, the
//                     block sets FROZEN, and itself is below the cut.
//   FROZEN            The block runs if its number is below the cut: later blocks may run, too, and
//                     may wait for it.
//   neither           Nothing has begun. The block looks at the stop flag first, then sets either
//                     FROZEN, so that the cut is where the launch began, or OPEN and counts itself. Of
//                     two that disagree the first decides: FROZEN keeps the cut, whatever comes later.
// Blocks below done exit before any of that; their atomic operation changes nothing, as an open state
// counts at least done.
//
// So a launch that was queued behind a stopped one begins no block: none of its blocks can see the flag
// cleared, and without that no state becomes open. And a block costs one trip to memory while the launch
// is open, and after it was frozen.
struct gpreempt_record {
	unsigned int state;
	unsigned int unused[31];
	unsigned int done; // blocks below this number have run in an earlier launch
	unsigned int unused_too[31];
};

#endif
