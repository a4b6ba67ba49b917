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

// gpreempt_record.state; 0: no block has begun.
#define GPREEMPT_OPEN 0x80000000u   // blocks may begin and count themselves
#define GPREEMPT_FROZEN 0x80000001u // stopped: count is the cut
#define GPREEMPT_MOST (1u << 30)    // launches with so many blocks, or more, get no record

// The low bits of the hidden parameter, which is the record's address otherwise: how many low bits of a block's
// number do not count. 2^shift neighbours, a window, run or exit together.
#define GPREEMPT_SHIFT 31u
#define GPREEMPT_WHOLE 31u // one window: a launch whose blocks wait for each other in any order

// One per launch, in device memory. The address of the record and the shift are the guarded kernel's hidden
// last parameter; 0 there lets every block pass.
//
// A launch's blocks are numbered in the order in which the hardware hands them out, x first; those of
// a cluster share the cluster's number. From here on a number is that of a window.
//
// Before a launch:    state = 0, count = done = 0.
// After it:           not FROZEN: every block ran, or had run before. FROZEN: the windows from
//                     count on (perhaps none) did not run.
// Before a relaunch:  state = 0, count = done = what count was, with the same grid, cluster, shift and
//                     arguments; count = done = GPREEMPT_MOST if no block is to run.
// done has a cache line of its own: an atomic operation takes the line from L1, and done must stay there. Both in
// one line, all blocks of all SMs meet at it twice. That cost an H200 2 ns a block, and a copy half its bandwidth.
// Both must be written before the launch in the order of its stream: they may come from an L1 cache, which
// keeps nothing from before the launch.
//
// count and state are one word of 64 bits. A block asks with one atomic operation: the signed maximum of that
// and {number + 1, OPEN}. It counts the block if the state is OPEN and nothing else, for both other states
// are greater. The answer, the word before, decides:
//   OPEN    The block has been counted and runs. Every few blocks one also looks at the stop flag; if that is
//           set, the block sets FROZEN, and itself is below the cut.
//   FROZEN  The block runs if its number is below count: later blocks may run, too, and may wait for it.
//   0       Nothing has begun. The stop flag decides. If it is set, the block sets FROZEN, so that the cut is where the
//           launch began. Else it sets OPEN and counts itself by one more operation, the unsigned maximum of the same
//           two: of the three states FROZEN alone is greater than OPEN then. Of two blocks that disagree FROZEN decides.
// Blocks below done exit whatever the answer, which changes nothing, as an open record counts at least done.
//
// So a launch that was queued behind a stopped one begins no block: none of its blocks can see the flag
// cleared, and without that no state becomes open. Launches that have begun hardly look at the flag: once it
// is set, the thread that stops them writes GPREEMPT_FROZEN to their state, after which no more blocks are counted.
//
// One word takes a block of the whole GPU every half nanosecond. Where blocks of a large grid are done faster, windows
// help: a block that finds itself counted or frozen out in what its SM's L1 cache holds of the word needs no
// more. That may be old, but a counted window stays counted, and a frozen record does not change.
struct gpreempt_record {
	unsigned int count; // windows that have begun
	unsigned int state;
	unsigned int unused[30];
	unsigned int done; // windows below this number have run in an earlier launch
	unsigned int unused_too[31];
};

#endif
