// facts.c - what the driver says of kernels. Launches ask for it. A thread keeps the answers: a step of a training goes round hundreds of
// launches, and the driver would be asked seven questions for each.
#define _GNU_SOURCE
#include "preempt/process/facts.h"

enum { FACTS_BITS = 8, FACTS = 1 << FACTS_BITS, PROBES = 4 };
GP_OF_THREAD struct gp_facts facts[FACTS];
static _Atomic uint32_t known_since; // changes as handles become unknown

void gp_facts_forget(void) { known_since++; }

static CUfunction function_of(CUfunction f)
{
	CUfunction function;
	return gp_driver.cuKernelGetFunction && !gp_driver.cuKernelGetFunction(&function, f) ? function : f;
}

// Returns the driver's answer; where it has none, another value.
static uint32_t attribute_of(CUfunction function, int attribute, uint32_t otherwise)
{
	int value = 0;
	return !gp_driver.cuFuncGetAttribute(&value, attribute, function) && value > 0 ? (uint32_t)value : otherwise;
}

static void sides_of(CUfunction function, uint8_t *side)
{
	static const int attribute[] = {CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT,
					CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH};
	for (int i = 0; i < 3; i++) // a driver before CUDA 11.8 knows no clusters
		side[i] = (uint8_t)attribute_of(function, attribute[i], 1);
}

uint32_t gp_blocks_of(const uint8_t *side) { return (uint32_t)side[0] * side[1] * side[2]; }

uint32_t gp_cluster_of(CUfunction f)
{
	uint8_t side[3];
	sides_of(function_of(f), side);
	return gp_blocks_of(side);
}

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

// Granularities are those of CUDA's occupancy calculator for sm_80 to sm_120: 256 registers for a warp, in one of the SM's four partitions; 128
// bytes of shared memory, of which each block reserves some.
enum { WARP = 32, REGISTERS = 256, PARTITIONS = 4, SHARED = 128 };

static uint32_t round_up(uint32_t n, uint32_t to) { return (n + to - 1) / to * to; }

// No GPU has more than 32; drivers before CUDA 11 do not say.
uint32_t gp_most_on_sm(const struct gp_gpu *g) { return g->blocks_per_sm ? (uint32_t)g->blocks_per_sm : 32; }

// An upper bound for any split between shared memory and L1.
static uint32_t most_on_sm(const struct gp_gpu *g, uint32_t warps, uint32_t of_warp, uint32_t memory)
{
	uint32_t fit = least(gp_most_on_sm(g), (uint32_t)g->threads_per_sm / (warps * WARP));
	fit = least(fit, (uint32_t)g->registers_per_sm / PARTITIONS / of_warp * PARTITIONS / warps);
	return least(fit, memory ? (uint32_t)g->shared_per_sm / memory : fit);
}

// A warp beside them has no shared memory but what each block reserves. It may spoil an allocation of a warp in each partition.
static uint32_t on_sm(const struct gp_gpu *g, uint32_t warps, uint32_t of_warp, uint32_t memory, bool beside)
{
	enum { OF_THREAD = 16 };
	int blocks = g->blocks_per_sm - beside, threads = g->threads_per_sm - beside * WARP;
	int file = g->registers_per_sm - beside * PARTITIONS * OF_THREAD * WARP;
	int all = g->shared_per_sm - (beside ? g->shared_reserved : 0);
	if (blocks <= 0 || threads <= 0 || file <= 0 || all < 0)
		return 0;
	uint32_t fit = least((uint32_t)blocks, (uint32_t)threads / (warps * WARP));
	fit = least(fit, (uint32_t)file / (of_warp * round_up(warps, PARTITIONS)));
	return least(fit, memory ? (uint32_t)all / memory : fit);
}

static void fit_in(struct gp_facts *c, uint32_t threads, uint32_t shared)
{
	const struct gp_gpu *g = c->gpu;
	c->of_threads = threads;
	c->of_shared = shared;
	c->allowed = threads <= c->most_threads && shared <= c->most_shared;
	c->most_on_sm = (uint8_t)gp_most_on_sm(g);
	c->on_sm = c->beside_warp = 0;
	if (!c->allowed || !c->registers)
		return;
	uint32_t warps = (threads + WARP - 1) / WARP, of_warp = round_up(c->registers * WARP, REGISTERS);
	uint32_t memory = round_up(c->shared + shared + (uint32_t)g->shared_reserved, SHARED);
	uint32_t most = most_on_sm(g, warps, of_warp, memory);
	c->most_on_sm = most ? (uint8_t)most : c->most_on_sm;
	c->on_sm = (uint8_t)on_sm(g, warps, of_warp, memory, false);
	c->beside_warp = (uint8_t)on_sm(g, warps, of_warp, memory, true);
}

static struct gp_facts *place_of(const struct gp_gpu *g, CUfunction f, uint32_t generation)
{
	struct gp_facts *cache = *GP_MINE(facts), *unused = NULL;
	size_t first = (uintptr_t)f * 0x9E3779B97F4A7C15ull >> (64 - FACTS_BITS);
	for (size_t i = 0; i < PROBES; i++) {
		struct gp_facts *c = &cache[(first + i) % FACTS];
		bool valid = c->most_threads && c->generation == generation;
		if (valid && c->function == f && c->gpu == g)
			return c;
		if (!valid && !unused)
			unused = c;
	}
	struct gp_facts *c = unused ? unused : &cache[first];
	c->most_threads = 0;
	return c;
}

// A program may allow a kernel more shared memory later, and never less (exports/intercept_code.c). So the driver is asked anew where a launch
// has more.
const struct gp_facts *gp_facts_of(const struct gp_gpu *g, CUfunction f, uint32_t threads, uint32_t shared)
{
	uint32_t generation = known_since;
	struct gp_facts *c = place_of(g, f, generation);
	if (c->most_threads && threads == c->of_threads && shared == c->of_shared && c->allowed)
		return c;
	if (!c->most_threads || threads > c->most_threads || shared > c->most_shared) {
		CUfunction function = function_of(f);
		*c = (struct gp_facts){
			.gpu = g,
			.function = f,
			.generation = generation,
			.shared = attribute_of(function, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, 0),
			.most_shared = attribute_of(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 0),
			.registers = (uint16_t)attribute_of(function, CU_FUNC_ATTRIBUTE_NUM_REGS, 0),
			.most_threads = (uint16_t)attribute_of(function, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 0)};
		sides_of(function, c->side);
	}
	fit_in(c, threads, shared);
	return c;
}
