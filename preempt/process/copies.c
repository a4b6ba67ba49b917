// copies.c - copies whose calls may wait for them: whether the copy is over once the call has returned.
//
// Some of these calls wait, some do not (cuda.h, "API synchronization behavior"): one within the device returns at once, and one from pageable
// memory once the driver has staged that (seen with up to 64 KiB). The copy reaches the device a little later then. For a process whose
// work others keep off the GPU that is much later, at its next turn. Another process that hears of the contents would read what was there
// before. So the thread waits for the copy, and meanwhile this process wants its turn.
#define _GNU_SOURCE
#include "preempt/process/process.h"

static const void *source(int type, const void *host, CUdeviceptr unified)
{
	return type == CU_MEMORYTYPE_HOST    ? host :
	       type == CU_MEMORYTYPE_UNIFIED ? (const void *)(uintptr_t)unified :
					       NULL;
}

// Whether the call says that one side is the host's memory. from: what it copies, where that may be the host's; else NULL.
static bool is_with_host(const struct gp_operation *o, const void **from)
{
	const struct gp_copy_2d *plane = o->memory.copy_2d;
	const struct gp_copy_3d *space = o->memory.copy_3d;
	if (plane) {
		*from = source(plane->from.memory_type, plane->from.host, plane->from.device);
		return plane->from.memory_type == CU_MEMORYTYPE_HOST || plane->to.memory_type == CU_MEMORYTYPE_HOST;
	}
	if (space) {
		*from = source(space->from.memory_type, space->from.host, space->from.device);
		return space->from.memory_type == CU_MEMORYTYPE_HOST || space->to.memory_type == CU_MEMORYTYPE_HOST;
	}
	if (o->memory.height) { // cuMemcpy
		*from = source(CU_MEMORYTYPE_UNIFIED, NULL, o->memory.width ? o->memory.from : 0);
		return false;
	}
	*from = o->memory.host;
	return true;
}

unsigned gp_memory_type(CUdeviceptr address)
{
	int attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
	unsigned type = GP_MEMORY_PAGEABLE;
	void *value = &type;
	if (!gp_driver.cuPointerGetAttributes || gp_driver.cuPointerGetAttributes(1, &attribute, &value, address))
		return GP_MEMORY_UNKNOWN;
	return type;
}

static bool is_pageable(const void *host)
{
	return host && gp_memory_type((CUdeviceptr)(uintptr_t)host) == GP_MEMORY_PAGEABLE;
}

// By turns, or while a higher level has the GPU. Under an MPS server all run at once.
static bool is_kept_off(const struct gp_gpu *g) { return (g->turn_peers | g->higher) && !g->mps; }

// False: a stream is captured.
static bool wait(struct gp_operation *o)
{
	int cancel;
	if (!gp_captures_keep_off(&cancel))
		return false;
	o->result = gp_driver.cuStreamSynchronize(o->stream);
	gp_captures_let_on(cancel);
	return true;
}

void gp_copy_returned(struct gp_operation *o)
{
	const void *from;
	bool waited = is_with_host(o, &from);
	if (is_kept_off(o->context->gpu) && gp_driver.cuStreamSynchronize && is_pageable(from))
		waited = wait(o);
	o->blocking = waited; // else a query finds it complete
}
