// info.c - how much memory the program is told there is.
//
// Free is what the program may use less what it has. What it may use is fixed at its first question, and does not depend on
// what others have at that time: programs take a share of it, or refuse to start, or assert that it does not grow.
#define _GNU_SOURCE
#include "preempt/memory/own.h"

#include <stdatomic.h>

// What contexts take of a GPU: that of this process, and of others beside it.
#define CONTEXTS_BYTES (1ull << 30)

static uint64_t less(uint64_t from, uint64_t what) { return from > what ? from - what : 0; }

static uint64_t total_of(uint64_t total)
{
	uint64_t limit = gp_memory_settings.limit_bytes;
	return limit && limit < total ? limit : total;
}

static uint64_t allowance(const struct gp_gpu *gpu, uint64_t total)
{
	static _Atomic uint64_t fixed[GP_GPUS];
	_Atomic uint64_t *mine = &fixed[gpu - gp_gpu];
	uint64_t none = 0, reserve = gp_settings.level ? gp_memory_settings.reserve_bytes : 0;
	uint64_t contexts = CONTEXTS_BYTES < total / 16 ? CONTEXTS_BYTES : total / 16;
	uint64_t may = total_of(less(less(total, reserve), contexts));
	if (!*mine)
		atomic_compare_exchange_strong(mine, &none, may);
	return *mine;
}

CUresult gp_cuMemGetInfo_v2(size_t *free, size_t *total)
{
	CUresult result = gp_driver.cuMemGetInfo(free, total);
	struct gp_context *c = result ? NULL : gp_current_context();
	if (!c)
		return result;
	*free = less(allowance(c->gpu, *total), gp_account_own(c->gpu) + gp_pools_reserved(c->gpu));
	*total = total_of(*total);
	return CUDA_SUCCESS;
}

CUresult gp_cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	CUresult result = gp_driver.cuDeviceTotalMem(bytes, device);
	if (!result)
		*bytes = total_of(*bytes);
	return result;
}
