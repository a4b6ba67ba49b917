// ranks.c - finds out by its kernels whether the process is a rank of an engine on several GPUs.
#define _GNU_SOURCE
#include "preempt/gpu/objective.h"

#include <string.h>

// Kernels of which all ranks of an engine wait for each other: NCCL's, and those of engines of their own. A slot of another rank is then
// part of this one's step, and cannot be told from what the step takes alone. Names may be mangled.
static bool waits_for_ranks(const char *kernel)
{
	static const char *const together[] = {"ncclDevKernel", "ncclKernel", "allreduce",
					       "all_reduce",    "AllReduce",  "cross_device_reduce"};
	for (size_t i = 0; i < sizeof together / sizeof *together; i++)
		if (strstr(kernel, together[i]))
			return true;
	return false;
}

_Atomic uint32_t gp_is_rank;

void gp_rank_kernel(CUfunction kernel)
{
	if (!gp_name_is_due(kernel))
		return;
	const char *name = gp_driver_kernel_name(kernel);
	if (name && waits_for_ranks(name))
		gp_is_rank = 1;
}
