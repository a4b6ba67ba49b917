// The guard: what a rewritten kernel runs before its own first instruction. It decides, for a whole
// block (for all blocks of a cluster alike), whether the block runs or exits.
//
// The kernels below are never launched. generate takes the instructions of each up to the PMTRIG that
// stands for the guarded kernel. From the different sizes of Before it learns where the address of the
// hidden parameter stands in them.
#include "guard.h"

template <int words> struct Before { unsigned long long word[words]; };

// The number of the block's cluster or, before sm_90, of the block. %clusterid goes through single
// precision, so that beyond 2^24 blocks in x, neighbours may share a number. That is harmless (they
// run or exit together) except to the blocks of one cluster, which might then get different ones:
// launches with explicit clusters must stay below 2^22 blocks in each dimension to be guarded.
static __device__ __forceinline__ unsigned int number_of_block()
{
	unsigned int x, y, z, columns, rows;
#if __CUDA_ARCH__ >= 900
	asm("mov.u32 %0, %%clusterid.x;" : "=r"(x));
	asm("mov.u32 %0, %%clusterid.y;" : "=r"(y));
	asm("mov.u32 %0, %%clusterid.z;" : "=r"(z));
	asm("mov.u32 %0, %%nclusterid.x;" : "=r"(columns));
	asm("mov.u32 %0, %%nclusterid.y;" : "=r"(rows));
#else
	x = blockIdx.x;
	y = blockIdx.y;
	z = blockIdx.z;
	columns = gridDim.x;
	rows = gridDim.y;
#endif
	return x + columns * (y + rows * z);
}

// Of blocks that count themselves one in so many looks at the stop flag, without waiting for it: all blocks of all SMs
// would read the same word otherwise. A launch's first blocks all look: most of them find a record that is not open, and
// would have to look then. Asked at once, the flag costs them no round trip.
#define BLOCKS_A_LOOK 16
#define FIRST_BLOCKS 1024

// Instructions that do nothing, to bring the guard's length to a multiple of what it must be: generate sets
// their number. They stand where only a launch's first blocks come by.
#ifndef PADDING
#define PADDING 0
#endif

static __device__ __forceinline__ unsigned int stop_flag(gpreempt_record *record)
{
	unsigned int stop;
	unsigned long long arena = (unsigned long long)record & ~(GPREEMPT_ARENA_BYTES - 1ULL);

	// Not from L1, which would not see it change.
	asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(stop) : "l"(arena));
	return stop;
}

// The word of count and state.
struct Word { unsigned int count, state; };

static __device__ __forceinline__ Word word(unsigned long long bits)
{
	return {(unsigned int)bits, (unsigned int)(bits >> 32)};
}

// Counts a block in an open state. Returns the word before.
static __device__ __forceinline__ Word count(gpreempt_record *record, unsigned int number)
{
	unsigned long long before, counted = (unsigned long long)GPREEMPT_OPEN << 32 | (number + 1);

	asm volatile("atom.relaxed.gpu.global.max.s64 %0, [%1], %2;" : "=l"(before) : "l"(record), "l"(counted));
	return word(before);
}

// Counts a block, and opens a record that is not open yet. Returns the word before.
static __device__ __forceinline__ Word open_and_count(gpreempt_record *record, unsigned int number)
{
	unsigned long long before, counted = (unsigned long long)GPREEMPT_OPEN << 32 | (number + 1);

	asm volatile("atom.relaxed.gpu.global.max.u64 %0, [%1], %2;" : "=l"(before) : "l"(record), "l"(counted));
	return word(before);
}

// Returns the word before, but for its state.
static __device__ __forceinline__ Word freeze(gpreempt_record *record)
{
	unsigned long long before;

	asm volatile("atom.relaxed.gpu.global.or.b64 %0, [%1], %2;"
		     : "=l"(before)
		     : "l"(record), "l"((unsigned long long)GPREEMPT_FROZEN << 32));
	return {(unsigned int)before, GPREEMPT_FROZEN};
}

// Whether the block that calls must exit; guard.h says how that is found. One thread of the block asks: a
// load by each costs more than the rest of the guard. An answer of its own for each thread would also
// tear the block apart. The operations up to the first comparison do not wait for each other.
static __device__ __forceinline__ bool must_exit(unsigned long long hidden)
{
	unsigned int shift = (unsigned int)hidden & GPREEMPT_SHIFT, number = number_of_block() >> shift, done;
	gpreempt_record *record = (gpreempt_record *)(hidden - shift);
	unsigned int stop = 0;
	Word now = {0, 0};

	asm volatile("ld.global.ca.u32 %0, [%1];" : "=r"(done) : "l"(&record->done));
	if (shift)
		asm volatile("ld.global.ca.v2.u32 {%0, %1}, [%2];" : "=r"(now.count), "=r"(now.state) : "l"(record));
	bool looks = number % BLOCKS_A_LOOK == 0 || number < FIRST_BLOCKS;
	if (now.state != GPREEMPT_FROZEN && now.count <= number) {
		if (looks)
			stop = stop_flag(record);
		now = count(record, number);
	}
	if (number < done)
		return true;
	if (now.state == GPREEMPT_OPEN) {
		if (stop)
			freeze(record);
		return false;
	}
	if (now.state != GPREEMPT_FROZEN) {
		if (!looks)
			stop = stop_flag(record);
		now = stop ? freeze(record) : open_and_count(record, number);
#pragma unroll
		for (int i = 0; i < PADDING; i++)
			asm volatile("pmevent 1;");
	}
	return now.state == GPREEMPT_FROZEN && number >= now.count;
}

static __device__ __forceinline__ void guard(unsigned long long hidden)
{
	// No record's address has 0 in its lower half: that would be the first of an arena.
	if ((unsigned int)hidden) {
		bool leave = false;
		if ((threadIdx.x | threadIdx.y | threadIdx.z) == 0)
			leave = must_exit(hidden);
		if (__syncthreads_or(leave))
			asm volatile("exit;");
	}
	asm volatile("pmevent 0;"); // PMTRIG: here the guarded kernel begins
}

template <int words> __global__ void gpreempt_guard(Before<words>, unsigned long long hidden) { guard(hidden); }

// Their parameter offsets differ in every bit that a parameter offset has.
template __global__ void gpreempt_guard<1>(Before<1>, unsigned long long);
template __global__ void gpreempt_guard<2>(Before<2>, unsigned long long);
template __global__ void gpreempt_guard<3>(Before<3>, unsigned long long);
template __global__ void gpreempt_guard<14>(Before<14>, unsigned long long);
template __global__ void gpreempt_guard<55>(Before<55>, unsigned long long);
template __global__ void gpreempt_guard<318>(Before<318>, unsigned long long);
template __global__ void gpreempt_guard<1365>(Before<1365>, unsigned long long);
template __global__ void gpreempt_guard<2730>(Before<2730>, unsigned long long);
template __global__ void gpreempt_guard<4094>(Before<4094>, unsigned long long);
