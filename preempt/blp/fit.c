// fit.c - the shape of a launch: how many of its blocks may be on the GPU at once, and if all; the clusters that its kernel has
// anyway; and how many blocks share a number.
//
// If all may be there at once, they may wait for each other in any order. Some kernels rely on it without a cooperative launch: Marlin's
// reduction, whose blocks wait for later ones; Lamport protocols of collectives; hand-written grid barriers. The blocks of a larger grid
// can only wait for blocks with lower numbers, or for the next few.
//
// Most kernels rely on nothing of the kind, and their code shows it (patch.Kernel.Independent). On all SMs that makes little difference: such a
// launch has all its blocks there at once, and none to stop. In a width it takes several waves, and could not begin at all if it
// were to be there at once. So launches of these kernels are parted where the domain may go on narrow.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"
#include "preempt/code/code.h"
#include "preempt/process/facts.h"

// The limits of every GPU since sm_30, for each dimension, and whole clusters.
static bool within(const uint32_t *grid, const uint32_t *block, const uint8_t *side)
{
	static const uint32_t most_blocks[] = {INT32_MAX, UINT16_MAX, UINT16_MAX}, most_threads[] = {1024, 1024, 64};
	bool is = true;
	for (int i = 0; i < 3; i++)
		is &= grid[i] && grid[i] <= most_blocks[i] && block[i] <= most_threads[i] && grid[i] % side[i] == 0;
	return is;
}

struct blp_shape blp_shape_of(const struct gp_domain *d, CUfunction f, const struct gp_code *code, const uint32_t *grid,
			      const uint32_t *block, uint32_t shared)
{
	const struct gp_gpu *g = d->gpu;
	uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];
	uint32_t threads = gp_threads_of(block);

	if (!threads) // the driver is to refuse the launch
		return (struct blp_shape){code->whole, 1, gp_most_on_sm(g), false};
	const struct gp_facts *c = gp_facts_of(g, f, threads, shared);
	bool at_once = blocks <= (uint64_t)g->sms * c->most_on_sm;
	return (struct blp_shape){code->whole || (at_once && !(code->independent && blp_may_narrow(d))),
				  gp_blocks_of(c->side), c->most_on_sm, c->allowed && within(grid, block, c->side)};
}

uint32_t blp_windows(uint64_t blocks, uint32_t cluster, uint8_t shift)
{
	return (uint32_t)((blocks / cluster - 1) >> shift) + 1;
}

// A window that has begun ends, so a stop waits for it: where a window is no larger than what runs at a time, for the blocks that
// run and for one wave more at most. Only large grids have windows: of 2048 blocks at most, and 32 windows at least. On an H200 a
// copy of 2^18 blocks took 27 % longer without windows and 2 % longer with windows of 2048 (test/gpu/patch_check.c).
//
// Of a window's blocks on one SM the first counts it, and the second finds that L1 has lost the word by that (guard.h). So windows
// that give an SM two blocks or fewer are of no use. These would be those of kernels with few blocks on an SM, which seldom begin one.
uint8_t blp_shift(const struct blp_entry *e, uint32_t sms)
{
	enum { LEAST = 14, FEWEST = 5, LARGEST = 11 }; // log2: of blocks, of windows, of the blocks of a window
	enum { USELESS = 2 };                          // blocks of a window on an SM
	uint64_t blocks = blp_blocks(e);
	int grid = blocks ? 63 - __builtin_clzll(blocks) : 0;
	int size = grid - FEWEST > LARGEST ? LARGEST : grid - FEWEST;

	if (grid < LEAST)
		return 0;
	while (size && 1ull << size > (uint64_t)e->on_sm * sms)
		size--;
	if (1ull << size <= (uint64_t)USELESS * sms)
		return 0;
	for (uint32_t together = 1; together < e->cluster && size; together *= 2) // a cluster counts once
		size--;
	return (uint8_t)size;
}
