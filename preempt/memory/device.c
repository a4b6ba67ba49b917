// device.c - what the driver says of a GPU's memory, and what of it this process has beside its accounts.
#define _GNU_SOURCE
#include "preempt/memory/memory.h"

#include <stdatomic.h>

// Two totals that differ by less than this part of the GPU are one.
enum { LEAST_CAP_PART = 64 };

uint64_t gp_memory_limit(uint64_t total)
{
	uint64_t bytes = gp_memory_settings.limit_bytes;
	uint64_t part = total == UINT64_MAX ? 0 : (uint64_t)(gp_memory_settings.limit_part * (double)total);
	return part && (!bytes || part < bytes) ? part : bytes;
}

uint64_t gp_memory_total(const struct gp_gpu *gpu)
{
	static _Atomic uint64_t known[GP_GPUS];
	_Atomic uint64_t *total = &known[gpu - gp_gpu];
	size_t bytes;
	if (!*total)
		*total = !gp_driver.cuDeviceTotalMem || gp_driver.cuDeviceTotalMem(&bytes, gpu->device) ? UINT64_MAX :
													  bytes;
	return *total;
}

bool gp_memory_is_cap(const struct gp_gpu *g, uint64_t total)
{
	uint64_t device = gp_memory_total(g);
	bool is = device != UINT64_MAX && total < device - device / LEAST_CAP_PART;
	if (is)
		gp_memory[g - gp_gpu].cap = total;
	return is;
}

bool gp_memory_ask_free(const struct gp_gpu *g, size_t *free, size_t *total)
{
	struct gp_context *current = gp_current_context(), *c = NULL;
	if (!(current && current->gpu == g) && !(c = gp_memory_try_context(g)))
		return false;
	bool known = !gp_driver.cuMemGetInfo(free, total);
	if (c)
		gp_memory_leave_context(c);
	return known;
}

// Graphs keep so much for their memory nodes, as the driver says.
uint64_t gp_graphs_reserved(const struct gp_gpu *gpu)
{
	uint64_t bytes = 0;
	if (!gp_driver.cuDeviceGetGraphMemAttribute ||
	    gp_driver.cuDeviceGetGraphMemAttribute(gpu->device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes))
		return 0;
	return bytes;
}

static uint64_t of_driver(const struct gp_gpu *gpu) { return gp_pools_reserved(gpu) + gp_graphs_reserved(gpu); }

static uint64_t in_accounts(const struct gp_gpu *gpu)
{
	const struct gp_memory *m = &gp_memory[gpu - gp_gpu];
	return m->resident + m->pinned;
}

// An equal part of all that processes have beside what they publish. Programs without gpreempt make it too large. False: not known.
static bool part_of_unaccounted(const struct gp_gpu *g, uint64_t beside, uint64_t *bytes)
{
	size_t free, total;
	struct gp_segment *s = g->segment;
	uint64_t taken = in_accounts(g), parts = 1;
	if (!gp_memory_ask_free(g, &free, &total) || free > total)
		return false;
	bool own = gp_memory_is_cap(g, total) || !s; // what the driver says is this process's alone
	for (uint64_t members = own ? 0 : s->members & ~(1ull << g->slot); members; members &= members - 1) {
		const struct gp_slot *slot = &s->slot[__builtin_ctzll(members)];
		uint64_t resident = slot->memory.resident, pinned = slot->memory.pinned;
		parts++;
		if (__builtin_add_overflow(taken, resident, &taken) || __builtin_add_overflow(taken, pinned, &taken))
			return false;
	}
	uint64_t used = total - free;
	*bytes = used > taken && used - taken > beside ? (used - taken - beside) / parts : 0;
	return true;
}

enum {
	MEASURES = 3,
	GROWTH_PART = 64, // of the limit: programs load code between their first allocations
};

struct measures {
	_Atomic uint64_t next_ns, had, bytes[MEASURES]; // had: by its accounts, as the process was measured last
	_Atomic uint32_t count;
	_Atomic bool told; // the driver has said what the process has
};

// Whether the calling thread is to measure now. had: what the process has by its accounts. While a process grows up to its limit, growth gives
// at most GROWTH_PART turns.
static bool takes_turn(struct measures *m, const struct gp_gpu *g, uint64_t had)
{
	static const uint64_t EVERY_NS = 100 * 1000 * 1000;
	uint64_t now = gp_now_ns(), next = m->next_ns, before = m->had;
	if (now >= next && atomic_compare_exchange_strong(&m->next_ns, &next, now + EVERY_NS)) {
		m->had = had;
		return true;
	}
	bool grew = had > before && had - before > gp_memory_limit(gp_memory_total(g)) / GROWTH_PART;
	return grew && atomic_compare_exchange_strong(&m->had, &before, had);
}

static uint64_t largest_of(const struct measures *m)
{
	uint64_t largest = 0;
	for (int i = 0; i < MEASURES; i++) {
		uint64_t bytes = m->bytes[i];
		largest = bytes > largest ? bytes : largest;
	}
	return largest;
}

static void keep(struct measures *m, uint64_t bytes)
{
	uint32_t count = m->count;
	m->bytes[count % MEASURES] = bytes;
	m->count = count + 1;
}

// The driver's account of the process, less its own accounts. False: not known now. Less than these: a thread lacks memory that it was granted.
// Memory that is out may be on its way back, and is not in the accounts yet. sure: no account changed meanwhile.
static bool of_process(const struct gp_gpu *g, uint64_t *bytes, bool *sure)
{
	const struct gp_memory *m = &gp_memory[g - gp_gpu];
	uint64_t changes = m->changes, had = in_accounts(g) + of_driver(g), has = gp_rm_memory(g);
	if (!has || has > gp_memory_total(g))
		return false;
	uint64_t had_behind = in_accounts(g) + of_driver(g), most = had > had_behind ? had : had_behind;
	*sure = m->changes == changes && had_behind == had;
	*bytes = has - most;
	return has >= most && !m->swapped;
}

// The memory of contexts, with code and local memory. It changes as the program goes on, so the library measures again and again. Where the
// driver does not say what the process has, others count: one may be starting. The largest of the last measures holds: a thread that was granted
// memory, and does not have all of it yet, makes a measure too small. A measure is gp_contexts_most at most: a sandbox may be one process for
// the driver, and a stream may free memory later. Larger heaps and local memory do not count beyond that.
// Writers of measures: threads whose turn it is; of two at once one measure is lost. A thread that leaves the driver by longjmp keeps none from
// measuring. Readers: threads that allocate. Pairing: a writer stores a measure before it counts it. Without that a thread finds none.
static uint64_t of_contexts(const struct gp_gpu *g, uint64_t beside)
{
	static struct measures of[GP_GPUS];
	struct measures *m = &of[g - gp_gpu];
	bool turn = takes_turn(m, g, in_accounts(g) + beside), sure;
	uint64_t bytes, most = gp_contexts_most(gp_memory_total(g));

	if (!turn && m->count)
		return largest_of(m);
	if (turn && of_process(g, &bytes, &sure)) {
		bytes = bytes < most ? bytes : most;
		for (int i = m->told ? 1 : MEASURES; i && (!m->told || sure || bytes <= largest_of(m)); i--)
			keep(m, bytes); // the first takes the place of all that were estimated
		m->told = true;
		return largest_of(m);
	}
	uint64_t managed = m->count ? gp_memory_managed(g) : 0; // It counts in full, wherever its pages are.
	if (m->told || !part_of_unaccounted(g, beside + managed, &bytes))
		return largest_of(m);
	bytes = bytes < most ? bytes : most;
	if (turn && g->segment && (!managed || bytes > largest_of(m))) // without a segment the others are not known
		keep(m, bytes);
	return m->count ? largest_of(m) : bytes;
}

uint64_t gp_memory_managed(const struct gp_gpu *gpu) { return gp_memory[gpu - gp_gpu].managed; }

uint64_t gp_memory_unlisted(const struct gp_gpu *gpu) { return of_driver(gpu) + gp_memory_managed(gpu); }

uint64_t gp_memory_beside(const struct gp_gpu *gpu)
{
	uint64_t beside = of_driver(gpu);
	return beside + of_contexts(gpu, beside);
}
