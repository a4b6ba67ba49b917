// fill.c - the kernels of kernels/fill.cu, block after block and thread after thread.
#include "../../../kernels/testdata/cpu.h"
#include "../../../kernels/fill.cu"
#include "fill.h"

#define EACH_THREAD(number, call) \
	do { \
		blockIdx.x = (unsigned)(number); \
		for (threadIdx.x = 0; threadIdx.x < FILL_THREADS; threadIdx.x++) \
			call; \
	} while (0)

void fill_block(const uint64_t *a, uint64_t number)
{
	EACH_THREAD(number, gpreempt_fill(a[0], a[1], a[2], a[3], a[4], (unsigned)a[5]));
}

void copy_block(const uint64_t *a, uint64_t number)
{
	EACH_THREAD(number, gpreempt_copy(a[0], a[1], a[2], a[3], a[4], a[5], a[6]));
}

void fill_narrow_block(const uint64_t *a, uint64_t number)
{
	EACH_THREAD(number, gpreempt_fill_narrow(a[0], a[1], a[2], (unsigned)a[3], (unsigned)a[4], (unsigned)a[5]));
}

void copy_narrow_block(const uint64_t *a, uint64_t number)
{
	EACH_THREAD(number, gpreempt_copy_narrow(a[0], a[1], a[2], (unsigned)a[3], (unsigned)a[4], a[5], a[6]));
}
