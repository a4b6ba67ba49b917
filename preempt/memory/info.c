// info.c - answers the program how much memory there is.
//
// Free is what the program may use less what it has. The first question fixes that: programs take a share of it, refuse to start, or assert
// that it does not grow while they look how much they need. It does not depend on memory that others have then and may give; memory that
// others never give is left out. An answer holds until nobody has asked for ANSWER_NS.
#define _GNU_SOURCE
#include "preempt/memory/own.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>

// How long a first question waits until this process's agent knows what others have. It asks the driver, which may be busy with another call
// of the program's.
#define ELSEWHERE_PATIENCE_NS 5000000000ull
// A program that plans by an answer may load a model between two questions, from a slow disk, and compare them.
#define ANSWER_NS 3600000000000ull
// vLLM wants 0.9 of the GPU by default. An engine that can never have so much hears of it before it plans.
#define WANTED_PART 10

static struct {
	_Atomic uint32_t known;  // a futex
	_Atomic uint32_t asking; // threads that wait for it, or ended while they did
	_Atomic uint32_t vain;   // one has waited for nothing: the next ones do not wait
	_Atomic uint64_t bytes;
} elsewhere[GP_GPUS];

void gp_memory_elsewhere(int gpu, uint64_t bytes)
{
	elsewhere[gpu].bytes = bytes;
	if (atomic_exchange(&elsewhere[gpu].known, 1) == 0)
		gp_futex_wake(&elsewhere[gpu].known, INT_MAX, false);
}

bool gp_memory_is_asked(int gpu) { return elsewhere[gpu].asking && !elsewhere[gpu].known; }

// The bytes of a GPU that others have and never give. The thread asks the agent for them: of its own accord the agent may not measure
// before the program has called the driver, nor soon, nor at all at a higher level. False: it does not answer.
static bool elsewhere_of(struct gp_gpu *g, uint64_t *bytes)
{
	int gpu = (int)(g - gp_gpu);
	uint64_t now = gp_now_ns(), until = now + ELSEWHERE_PATIENCE_NS;
	elsewhere[gpu].asking++;
	gp_ring(g); // where no segment is attached yet, the agent's first look finds that somebody asks
	for (; !elsewhere[gpu].known && !elsewhere[gpu].vain && now < until; now = gp_now_ns())
		gp_futex_wait(&elsewhere[gpu].known, 0, until - now, false);
	elsewhere[gpu].asking--;
	bool known = elsewhere[gpu].known;
	elsewhere[gpu].vain = !known;
	*bytes = elsewhere[gpu].bytes;
	return known;
}

static uint64_t less(uint64_t from, uint64_t what) { return from > what ? from - what : 0; }

static void say_kept(uint64_t may, uint64_t total)
{
	char text[200];
	snprintf(text, sizeof text,
		 "this process can have %.1f of the GPU's %.1f GiB: programs that give nothing keep the rest "
		 "(latency-critical "
		 "ones, and those without gpreempt)",
		 (double)may / (1 << 30), (double)total / (1 << 30));
	gp_log_line(text);
}

static uint64_t allowance_now(struct gp_gpu *gpu, uint64_t total, uint64_t others)
{
	bool lowest = gp_settings.level == GP_LEVELS - 1;
	uint64_t reserve = gp_settings.level ? gp_memory_settings.reserve_bytes : 0;
	uint64_t contexts = gp_contexts_most(total);
	uint64_t device = gp_memory_is_cap(gpu, total) ? gp_memory_total(gpu) : total;
	uint64_t of_cap = less(total, contexts),
		 of_gpu = less(less(device, reserve), others > contexts ? others : contexts);
	if (lowest && of_gpu < device - device / WANTED_PART)
		say_kept(of_gpu, device);
	uint64_t may = of_cap < of_gpu ? of_cap : of_gpu;
	return may ? may : 1;
}

// available: what the driver has free now and what the process has. It is all that is known while nobody says what others have.
static uint64_t allowance(struct gp_gpu *gpu, uint64_t total, uint64_t available)
{
	static struct { _Atomic uint64_t bytes, asked_ns; } answers[GP_GPUS];
	typeof(*answers) *a = &answers[gpu - gp_gpu];
	uint64_t now = gp_now_ns(), before = atomic_exchange(&a->asked_ns, now), was = a->bytes;
	if (was && now - before < ANSWER_NS)
		return was;
	if (was) // what others have is of another time
		elsewhere[gpu - gp_gpu].known = 0;
	uint64_t others = 0;
	bool known = elsewhere_of(gpu, &others);
	uint64_t fresh = allowance_now(gpu, total, others);
	if (!known) // another question may have an answer
		return fresh < available ? fresh : available;
	return atomic_compare_exchange_strong(&a->bytes, &was, fresh) ? fresh : was; // of two threads one has been faster
}

CUresult gp_cuMemGetInfo_v2(size_t *free, size_t *total)
{
	CUresult result = gp_driver.cuMemGetInfo(free, total);
	struct gp_context *c = result ? NULL : gp_current_context();
	if (!c)
		return result;
	gp_memory_answered(c, result);
	uint64_t own = gp_account_own(c->gpu), had = own + gp_memory_unlisted(c->gpu);
	uint64_t may = gp_memory_settings.asks ? less(allowance(c->gpu, *total, *free + had), had) : *free;
	uint64_t limit = gp_memory_limit(gp_memory_total(c->gpu)),
		 left = limit ? less(limit, own + gp_memory_beside(c->gpu) + gp_memory_managed(c->gpu)) : UINT64_MAX;
	*total = limit && limit < *total ? limit : *total;
	*free = left < may ? left : may;
	*free = *free < *total ? *free : *total;
	return CUDA_SUCCESS;
}

CUresult gp_cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	CUresult result = gp_driver.cuDeviceTotalMem(bytes, device);
	uint64_t limit = result ? 0 : gp_memory_limit(*bytes);
	if (limit && limit < *bytes)
		*bytes = limit;
	return result;
}
