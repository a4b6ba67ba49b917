// fit.c - the shape of a launch: whether all its blocks may be on the GPU at once, and the clusters that its kernel has anyway.
//
// If all may be there at once, they may wait for each other in any order, and some kernels rely on it without a cooperative launch: Marlin's
// reduction, whose blocks wait for later ones, Lamport protocols of collectives, hand-written grid barriers. The blocks of a
// larger grid can only wait for blocks with lower numbers, or for the next few.
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
	uint32_t threads, shared, generation;
	uint32_t blocks;  // on an SM; 0: unknown
	uint32_t cluster; // as blp_cluster_of
};

// No GPU has more than 32; drivers before CUDA 11 do not say.
static uint32_t most_on_sm(const struct gp_gpu *g) { return g->blocks_per_sm ? (uint32_t)g->blocks_per_sm : 32; }

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

// An upper bound, whatever the split between shared memory and L1. Granularities are those of CUDA's occupancy calculator for
// sm_80 to sm_120: 256 registers for a warp, in one of the SM's four partitions; 128 bytes of shared memory.
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

uint32_t blp_cluster_of(CUfunction f)
{
	static const int side[] = {CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT,
				   CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH};
	CUfunction function;
	uint32_t blocks = 1;
	if (!gp_driver.cuKernelGetFunction || gp_driver.cuKernelGetFunction(&function, f))
		function = f;
	for (int i = 0; i < 3; i++) {
		int length = 0;
		if (gp_driver.cuFuncGetAttribute(&length, side[i], function))
			return 1; // a driver before CUDA 11.8, which knows no clusters
		blocks *= length > 0 ? (uint32_t)length : 1;
	}
	return blocks;
}

static bool fits(const struct gp_gpu *g, CUfunction f, const uint32_t *grid, const uint32_t *block, uint32_t shared,
		 uint32_t *cluster)
{
	static __thread struct fit cache[64] __attribute__((tls_model("initial-exec")));
	uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];
	uint32_t threads = block[0] * block[1] * block[2], generation = gp_code_generation;

	*cluster = 1;
	if (!threads)
		return false;
	struct fit *c = &cache[((uintptr_t)f >> 4 ^ shared >> 7 ^ threads) & 63];
	if (c->function != f || c->gpu != g || c->threads != threads || c->shared != shared || c->generation != generation) {
		CUfunction function = f, of_kernel;
		int registers = 0, of_code = 0;
		if (gp_driver.cuKernelGetFunction && !gp_driver.cuKernelGetFunction(&of_kernel, f))
			function = of_kernel;
		bool known = !gp_driver.cuFuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function) &&
			     !gp_driver.cuFuncGetAttribute(&of_code, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function);
		*c = (struct fit){g,
				  f,
				  threads,
				  shared,
				  generation,
				  known ? blocks_on_sm(g, threads, (uint32_t)registers, (uint32_t)of_code + shared) : 0,
				  blp_cluster_of(f)};
	}
	*cluster = c->cluster;
	return blocks <= (uint64_t)g->sms * (c->blocks ? c->blocks : most_on_sm(g));
}

bool blp_is_whole(const struct gp_domain *d, CUfunction f, const struct gp_code *code, const uint32_t *grid,
		  const uint32_t *block, uint32_t shared, uint32_t *cluster)
{
	bool at_once = fits(d->gpu, f, grid, block, shared, cluster);
	return code->whole || (at_once && !(code->independent && blp_may_narrow(d)));
}
