// The guard: what a rewritten kernel runs before its own first instruction. It decides, for a whole
// block (for all blocks of a cluster alike), whether the block runs or exits.
//
// The kernels below are never launched. generate takes the instructions of each up to the PMTRIG that
// stands for the guarded kernel, and learns from the different sizes of Before where the address of
// the hidden parameter stands in them.
#include "guard.h"

template <int words> struct Before {
	unsigned long long word[words];
};

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

// One block of so many looks at the stop flag: a stop comes so many blocks later at most. All blocks of
// all SMs would read the same word otherwise.
#define BLOCKS_A_LOOK 16

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

// Counts a block in an open state. Returns the state before.
static __device__ __forceinline__ unsigned int count(gpreempt_record *record, unsigned int number)
{
	unsigned int state;

	asm volatile("atom.relaxed.gpu.global.max.s32 %0, [%1], %2;"
		     : "=r"(state) : "l"(&record->state), "r"(GPREEMPT_OPEN | (number + 1)));
	return state;
}

// Sets bits of the state. Returns the state before.
static __device__ __forceinline__ unsigned int set(gpreempt_record *record, unsigned int bits)
{
	unsigned int state;

	asm volatile("atom.relaxed.gpu.global.or.b32 %0, [%1], %2;"
		     : "=r"(state) : "l"(&record->state), "r"(bits));
	return state;
}

// Whether the block that calls must exit; guard.h says how that is found. One thread of the block asks: a
// load by each costs more than the rest of the guard, and an answer of its own for each thread would
// tear the block apart. The operations up to the first comparison do not wait for each other.
static __device__ __forceinline__ bool must_exit(gpreempt_record *record)
{
	unsigned int number = number_of_block(), done, state, stop = 0;

	asm volatile("ld.global.u32 %0, [%1];" : "=r"(done) : "l"(&record->done));
	if (number % BLOCKS_A_LOOK == 0)
		stop = stop_flag(record);
	state = count(record, number);
	if (number < done)
		return true;
	if ((state & (GPREEMPT_OPEN | GPREEMPT_FROZEN)) == GPREEMPT_OPEN) {
		if (stop)
			set(record, GPREEMPT_FROZEN);
		return false;
	}
	if (!(state & GPREEMPT_FROZEN)) {
		if (stop_flag(record)) {
			state = set(record, GPREEMPT_FROZEN) | GPREEMPT_FROZEN;
		} else {
			set(record, GPREEMPT_OPEN);
			state = count(record, number);
		}
#pragma unroll
		for (int i = 0; i < PADDING; i++)
			asm volatile("pmevent 1;");
	}
	return (state & GPREEMPT_FROZEN) && number >= (state & GPREEMPT_CUT);
}

static __device__ __forceinline__ void guard(gpreempt_record *record)
{
	// No record's address has 0 in its lower half: that would be the first of an arena.
	if ((unsigned int)(unsigned long long)record) {
		bool leave = false;
		if ((threadIdx.x | threadIdx.y | threadIdx.z) == 0)
			leave = must_exit(record);
		if (__syncthreads_or(leave))
			asm volatile("exit;");
	}
	asm volatile("pmevent 0;"); // PMTRIG: here the guarded kernel begins
}

template <int words> __global__ void gpreempt_guard(Before<words>, gpreempt_record *record)
{
	guard(record);
}

// Their parameter offsets differ in every bit that a parameter offset has.
template __global__ void gpreempt_guard<1>(Before<1>, gpreempt_record *);
template __global__ void gpreempt_guard<2>(Before<2>, gpreempt_record *);
template __global__ void gpreempt_guard<3>(Before<3>, gpreempt_record *);
template __global__ void gpreempt_guard<14>(Before<14>, gpreempt_record *);
template __global__ void gpreempt_guard<55>(Before<55>, gpreempt_record *);
template __global__ void gpreempt_guard<318>(Before<318>, gpreempt_record *);
template __global__ void gpreempt_guard<1365>(Before<1365>, gpreempt_record *);
template __global__ void gpreempt_guard<2730>(Before<2730>, gpreempt_record *);
template __global__ void gpreempt_guard<4094>(Before<4094>, gpreempt_record *);
