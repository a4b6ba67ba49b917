// swap.c - what memory that comes and goes needs of other houses, and its start.
#define _GNU_SOURCE
#include "preempt/preempt.h"
#include "preempt/blp/blp.h"
#include "preempt/gpu/gpu.h"
#include "preempt/memory/memory.h"

// Places that no context has now count too: who raised the number lowers it, whatever happened in between.
static void hold_back(bool on)
{
	for (int i = 0; i < GP_CONTEXTS; i++)
		gp_context[i].context_waits += on ? 1 : UINT32_MAX;
	for (int i = 0; on && i < GP_CONTEXTS; i++)
		if (gp_context[i].handle)
			gp_hold_end(&gp_context[i]);
}

static void give_way(struct gp_gpu *g, bool on)
{
	hold_back(on);
	gp_gpu_give_way(g, on);
}

typedef void install_fn(const char *name, void *function);

void gp_memory_count(void *substitute)
{
	gp_memory_others =
		(struct gp_memory_others){.hold_back = hold_back, .wait_log = gp_blp_wait_empty, .give_way = give_way};
	gp_memory_counts = 1;
	gp_memory_substitute_counted((install_fn *)substitute);
	if (!gp_driver_lacks_for_swap())
		gp_memory_substitute_opening((install_fn *)substitute);
}

const char *gp_swap_start(void *armed, void *substitute)
{
	enum { SWAPPING = 4 }; // another bit of gp_armed than the agents' and that of rewritten code
	const char *missing = gp_driver_lacks_for_swap();
	if (missing)
		return missing;
	gp_memory_count(substitute);
	gp_memory_make_drain();
	gp_memory_on = 1;
	gp_memory_substitute((install_fn *)substitute);
	__atomic_fetch_or((uint32_t *)armed, SWAPPING, __ATOMIC_SEQ_CST); // each launch counts itself in
	return NULL;
}

void gp_memory_used(const void *frame)
{
	if (gp_memory_on)
		gp_memory_enter_slowly(frame);
}

void gp_memory_done(void) { gp_memory_leave(); }

bool gp_refused_memory(struct gp_retry *retry, CUdevice device)
{
	if (gp_unloads_await())
		return true;
	if (!gp_memory_counts)
		return false;
	struct gp_context *c = device == GP_CURRENT_DEVICE ? gp_current_context() : NULL;
	return gp_memory_wait_again(retry, c ? c->gpu : device == GP_CURRENT_DEVICE ? NULL : gp_gpu_of_device(device));
}
