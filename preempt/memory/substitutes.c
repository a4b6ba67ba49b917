// substitutes.c - puts the functions of this folder in the place of the driver's, and tells them when contexts come and go.
#define _GNU_SOURCE
#include "preempt/memory/own.h"

void gp_memory_substitute(void (*install)(const char *name, void *function))
{
	gp_ask_start();
#define SUBSTITUTE(name, parameters) install(#name, (void *)gp_##name);
#include "preempt/memory/substitutes.h"
}

void gp_memory_substitute_counted(void (*install)(const char *name, void *function))
{
#define SUBSTITUTE(name, parameters)
#define COUNTED(name, parameters) install(#name, (void *)gp_##name);
#include "preempt/memory/substitutes.h"
}

void gp_memory_substitute_opening(void (*install)(const char *name, void *function))
{
	install("cuIpcOpenMemHandle", (void *)gp_cuIpcOpenMemHandle);
	install("cuIpcOpenMemHandle_v2", (void *)gp_cuIpcOpenMemHandle_v2);
	install("cuIpcCloseMemHandle", (void *)gp_cuIpcCloseMemHandle);
	install("cuMemGetAddressRange_v2", (void *)gp_cuMemGetAddressRange_v2); // programs ask how much a handle gave
}

CUresult gp_memory_prepare(struct gp_context *c) { return gp_memory_on ? gp_sample_make(c) : CUDA_SUCCESS; }

// Another context may have the handle as soon as the driver has destroyed this one. So what belongs to it is marked before.
void gp_memory_context_destroying(CUcontext context)
{
	if (gp_memory_counts)
		gp_native_context_destroying(context), gp_counted_context_destroying(context);
	if (!gp_memory_on)
		return;
	gp_freed_context_destroying(context);
	pthread_mutex_lock(&gp_memory_lock);
	for (struct gp_range *r = gp_range_from(0); r; r = gp_range_from(r->address + r->bytes))
		if (r->kind == GP_RANGE_ALLOCATED && r->context == context)
			r->doomed = true;
	pthread_mutex_unlock(&gp_memory_lock);
}

static struct gp_range *doomed(CUcontext context, CUdeviceptr from)
{
	struct gp_range *r = gp_range_from(from);
	while (r && (!r->doomed || r->context != context))
		r = gp_range_from(r->address + r->bytes);
	return r;
}

void gp_memory_context_destroyed(const struct gp_context *c, CUcontext context, bool is)
{
	if (gp_memory_counts)
		gp_native_context_destroyed(context, is), gp_counted_context_destroyed(context, is);
	if (!gp_memory_on)
		return;
	gp_arena_context_destroyed(context, is);
	if (c && is) {
		gp_sample_context_destroyed(c);
		gp_peers_context_destroyed(c);
	}
	bool away = gp_memory_keep_moves_away(); // without a context nothing that is out could come back
	if (!away)
		gp_memory_enter();
	for (CUdeviceptr from = 0;;) {
		pthread_mutex_lock(&gp_memory_lock);
		struct gp_range *r = doomed(context, from);
		if (r && !is)
			r->doomed = false;
		if (r)
			from = r->address + r->bytes;
		bool more = r, mine = r && is && !r->ending;
		if (mine)
			r->ending = true;
		pthread_mutex_unlock(&gp_memory_lock);
		if (mine)
			gp_range_end(r, true);
		if (!more)
			break;
	}
	gp_freed_look(false); // what waited for work there
	if (away)
		gp_memory_let_moves();
	else
		gp_memory_leave();
}
