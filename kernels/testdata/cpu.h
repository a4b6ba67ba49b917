// cpu.h - what fill.cu needs to be run on a CPU, thread after thread: none of its kernels' threads meet.
#ifndef GPREEMPT_CPU_H
#define GPREEMPT_CPU_H

#include <stdbool.h>
#include <stdint.h>

#define KERNEL static void
#define DEVICE static inline
#define UNROLLED

typedef struct { unsigned int x, y, z, w; } uint4;
static __thread struct { unsigned int x; } blockIdx, threadIdx;

static inline unsigned int __funnelshift_r(unsigned int low, unsigned int high, unsigned int shift)
{
	return (unsigned int)(((uint64_t)high << 32 | low) >> (shift & 31));
}

#endif
