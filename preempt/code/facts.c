// facts.c - what the driver says of kernels. Launches ask for it, and each question to the driver takes 0.1 us: a thread keeps the answers.
#define _GNU_SOURCE
#include "preempt/code/code.h"
#include "preempt/process/process.h"

// A step of ResNet-50's training has some 200 kernels.
enum { FACTS_BITS = 8, FACTS = 1 << FACTS_BITS, PROBES = 4 };
GP_OF_THREAD struct gp_facts facts[FACTS];

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

bool gp_facts_allow(const struct gp_facts *c, uint32_t threads, uint32_t shared)
{
	return threads <= c->most_threads && shared <= c->most_shared;
}

// A program may allow a kernel more shared memory later, and never less (exports/intercept_code.c). So the driver is asked anew where a launch
// has more.
const struct gp_facts *gp_facts_of(const struct gp_gpu *g, CUfunction f, uint32_t threads, uint32_t shared)
{
	struct gp_facts *cache = *GP_MINE(facts), *c = NULL;
	uint32_t generation = gp_code_generation;
	size_t first = (uintptr_t)f * 0x9E3779B97F4A7C15ull >> (64 - FACTS_BITS);
	for (size_t i = 0; i < PROBES; i++) {
		struct gp_facts *at = &cache[(first + i) % FACTS];
		bool valid = at->most_threads && at->generation == generation;
		if (valid && at->function == f && at->gpu == g) {
			if (gp_facts_allow(at, threads, shared))
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
	*c = (struct gp_facts){.gpu = g,
			       .function = f,
			       .generation = generation,
			       .shared = attribute_of(function, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, 0),
			       .most_shared = attribute_of(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 0),
			       .registers = (uint16_t)attribute_of(function, CU_FUNC_ATTRIBUTE_NUM_REGS, 0),
			       .most_threads =
				       (uint16_t)attribute_of(function, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 0)};
	sides_of(function, c->side);
	return c;
}
