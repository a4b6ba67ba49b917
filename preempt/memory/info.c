// info.c - how much memory the program is told there is.
//
// Free is what the program may use less what it has. What it may use is fixed at its first question: programs take a share of it, or
// refuse to start, or assert that it does not grow. It does not depend on what others have at that time who swap, since they give it;
// what others have who do not is left out.
#define _GNU_SOURCE
#include "preempt/memory/own.h"

#include <limits.h>
#include <stdatomic.h>

// How long a first question waits until this process's agent knows what others have. It asks the driver, which may be busy with another call
// of the program's.
#define ELSEWHERE_PATIENCE_NS 5000000000ull

static struct {
	_Atomic uint32_t known;  // a futex
	_Atomic uint32_t asking; // threads that wait for it, or ended while they did
	_Atomic uint64_t bytes;
} elsewhere[GP_GPUS];

void gp_memory_elsewhere(int gpu, uint64_t bytes)
{
	elsewhere[gpu].bytes = bytes;
	if (atomic_exchange(&elsewhere[gpu].known, 1) == 0)
		gp_futex_wake(&elsewhere[gpu].known, INT_MAX, false);
}

bool gp_memory_is_asked(int gpu) { return elsewhere[gpu].asking && !elsewhere[gpu].known; }

// What those have of a GPU who never give it. The agent is asked for it: of its own accord it may not measure before the program has called
// the driver, nor soon, nor at all at a higher level.
static uint64_t elsewhere_of(struct gp_gpu *g)
{
	int gpu = (int)(g - gp_gpu);
	if (elsewhere[gpu].known)
		return elsewhere[gpu].bytes;
	uint64_t now = gp_now_ns(), until = now + ELSEWHERE_PATIENCE_NS;
	elsewhere[gpu].asking++;
	gp_ring(g); // where no segment is attached yet, the agent's first look finds that somebody asks
	for (; !elsewhere[gpu].known && now < until; now = gp_now_ns())
		gp_futex_wait(&elsewhere[gpu].known, 0, until - now, false);
	elsewhere[gpu].asking--;
	return elsewhere[gpu].bytes;
}

static uint64_t less(uint64_t from, uint64_t what) { return from > what ? from - what : 0; }

static uint64_t total_of(uint64_t total)
{
	uint64_t limit = gp_memory_settings.limit_bytes;
	return limit && limit < total ? limit : total;
}

static uint64_t allowance(struct gp_gpu *gpu, uint64_t total)
{
	static _Atomic uint64_t fixed[GP_GPUS];
	_Atomic uint64_t *mine = &fixed[gpu - gp_gpu];
	if (*mine)
		return *mine;
	uint64_t none = 0, reserve = gp_settings.level ? gp_memory_settings.reserve_bytes : 0;
	uint64_t contexts = GP_CONTEXTS_BYTES < total / GP_CONTEXTS_PART ? GP_CONTEXTS_BYTES : total / GP_CONTEXTS_PART;
	uint64_t others = elsewhere_of(gpu), device = gp_memory_is_cap(gpu, total) ? gp_memory_total(gpu) : total;
	uint64_t of_cap = less(total, contexts),
		 of_gpu = less(less(device, reserve), others > contexts ? others : contexts);
	uint64_t may = total_of(of_cap < of_gpu ? of_cap : of_gpu);
	atomic_compare_exchange_strong(mine, &none, may ? may : 1);
	return *mine;
}

CUresult gp_cuMemGetInfo_v2(size_t *free, size_t *total)
{
	CUresult result = gp_driver.cuMemGetInfo(free, total);
	struct gp_context *c = result ? NULL : gp_current_context();
	if (!c)
		return result;
	gp_memory_answered(c, result);
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
