// facts.h - what the driver says of kernels.
#ifndef GPREEMPT_FACTS_H
#define GPREEMPT_FACTS_H

#include "preempt/process/process.h"

// Facts of a kernel, and of blocks of so many threads with so much dynamic shared memory. Valid until the calling thread asks again.
struct gp_facts {
	const struct gp_gpu *gpu;
	CUfunction function;
	uint32_t generation;
	uint32_t shared, most_shared;     // bytes that its code has, and dynamic ones that it may have
	uint16_t registers, most_threads; // of a thread, of a block; 0: the driver does not say
	uint8_t side[3];                  // of the clusters that it has anyway, in blocks; 1: none
	bool allowed;                     // it takes such blocks; else no more of them is known
	uint32_t of_threads, of_shared;
	uint8_t most_on_sm;         // An upper bound of how many fit on an SM.
	uint8_t on_sm, beside_warp; // How many fit there, and beside one warp with 16 registers a thread. 0: unknown, or none.
};
const struct gp_facts *gp_facts_of(const struct gp_gpu *, CUfunction, uint32_t threads, uint32_t shared); // threads > 0
uint32_t gp_most_on_sm(const struct gp_gpu *); // blocks of any kernel
uint32_t gp_blocks_of(const uint8_t *side);    // of a cluster
uint32_t gp_cluster_of(CUfunction);            // blocks of its clusters, from the driver; 1: none
void gp_facts_forget(void);                    // Called before any handle of a kernel ends.

#endif
