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

struct fit { // what the driver says of a kernel
	const struct gp_gpu *gpu;
	CUfunction function;
	uint32_t generation;
	uint32_t shared, most_shared;     // bytes that its code has, and dynamic ones that it may have
	uint16_t registers, most_threads; // of a block; 0: the driver does not say
	uint8_t side[3];                  // of its clusters
};

// No GPU has more than 32; drivers before CUDA 11 do not say.
static uint32_t most_on_sm(const struct gp_gpu *g) { return g->blocks_per_sm ? (uint32_t)g->blocks_per_sm : 32; }

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

// An upper bound for any split between shared memory and L1. Granularities are those of CUDA's occupancy calculator for sm_80 to sm_120:
// 256 registers for a warp, in one of the SM's four partitions; 128 bytes of shared memory.
static uint32_t blocks_on_sm(const struct gp_gpu *g, uint32_t threads, uint32_t registers, uint32_t shared)
{
	uint32_t warps = (threads + 31) / 32, fit = least(most_on_sm(g), (uint32_t)g->threads_per_sm / (warps * 32));
	uint32_t of_warp = (registers * 32 + 255) / 256 * 256;
	uint32_t memory = (shared + (uint32_t)g->shared_reserved + 127) / 128 * 128;
	if (of_warp)
		fit = least(fit, (uint32_t)g->registers_per_sm / 4 / of_warp * 4 / warps);
	if (memory)
		fit = least(fit, (uint32_t)g->shared_per_sm / memory);
	return fit;
}

static CUfunction function_of(CUfunction f)
{
	CUfunction function;
	return gp_driver.cuKernelGetFunction && !gp_driver.cuKernelGetFunction(&function, f) ? function : f;
}

// What the driver says; where it does not, another value.
static uint32_t attribute_of(CUfunction function, int attribute, uint32_t otherwise)
{
	int value = 0;
	return !gp_driver.cuFuncGetAttribute(&value, attribute, function) && value > 0 ? (uint32_t)value : otherwise;
}

// The clusters that a kernel has anyway, in blocks; 1: none.
static void sides_of(CUfunction function, uint8_t *side)
{
	static const int attribute[] = {CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT,
					CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH};
	for (int i = 0; i < 3; i++) // a driver before CUDA 11.8 knows no clusters
		side[i] = (uint8_t)attribute_of(function, attribute[i], 1);
}

static uint32_t product(const uint8_t *side) { return (uint32_t)side[0] * side[1] * side[2]; }

uint32_t blp_cluster_of(CUfunction f)
{
	uint8_t side[3];
	sides_of(function_of(f), side);
	return product(side);
}

// A step of ResNet-50's training has some 200 kernels.
enum { FITS_BITS = 8, FITS = 1 << FITS_BITS, PROBES = 4 };
GP_OF_THREAD struct fit fits[FITS];

static bool allows(const struct fit *c, uint32_t threads, uint32_t shared)
{
	return threads <= c->most_threads && shared <= c->most_shared;
}

// The driver's facts about a kernel; from the thread's cache if there. A program may allow a kernel more shared memory later, and never less
// (exports/intercept_code.c). So the driver is asked anew where a launch has more.
static const struct fit *ask(const struct gp_gpu *g, CUfunction f, uint32_t threads, uint32_t shared)
{
	struct fit *cache = *GP_MINE(fits), *c = NULL;
	uint32_t generation = gp_code_generation;
	size_t first = (uintptr_t)f * 0x9E3779B97F4A7C15ull >> (64 - FITS_BITS);
	for (size_t i = 0; i < PROBES; i++) {
		struct fit *at = &cache[(first + i) % FITS];
		bool valid = at->function && at->generation == generation;
		if (valid && at->function == f && at->gpu == g) {
			if (allows(at, threads, shared))
				return at;
			c = at;
			break;
		}
		if (!valid && !c)
			c = at;
	}
	if (!c)
		c = &cache[first];
	CUfunction function = function_of(f);
	*c = (struct fit){.gpu = g,
			  .function = f,
			  .generation = generation,
			  .shared = attribute_of(function, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, 0),
			  .most_shared = attribute_of(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 0),
			  .registers = (uint16_t)attribute_of(function, CU_FUNC_ATTRIBUTE_NUM_REGS, 0),
			  .most_threads = (uint16_t)attribute_of(function, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 0)};
	sides_of(function, c->side);
	return c;
}

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
		return (struct blp_shape){code->whole, 1, most_on_sm(g), false};
	const struct fit *c = ask(g, f, threads, shared);
	uint32_t fit = c->registers ? blocks_on_sm(g, threads, c->registers, c->shared + shared) : 0;
	uint32_t on_sm = fit ? fit : most_on_sm(g);
	bool at_once = blocks <= (uint64_t)g->sms * on_sm;
	return (struct blp_shape){code->whole || (at_once && !(code->independent && blp_may_narrow(d))),
				  product(c->side), on_sm, allows(c, threads, shared) && within(grid, block, c->side)};
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
