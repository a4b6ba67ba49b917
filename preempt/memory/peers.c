// peers.c - contexts that may use each other's memory, and waiting for all of them.
//
// cuCtxEnablePeerAccess gives access to all memory of the other context. Memory that is mapped does not get it from the driver,
// but here.
#define _GNU_SOURCE
#include "preempt/memory/own.h"

#include <string.h>

// Whether context i of gp_context may use the memory of context j. Under gp_memory_lock.
static bool may_use[GP_CONTEXTS][GP_CONTEXTS];

static size_t place_of(const struct gp_context *c) { return (size_t)(c - gp_context); }

static void add(struct gp_range *r, const struct gp_gpu *gpu)
{
	for (uint32_t i = 0; i < r->accesses; i++)
		if (r->access[i].location == gpu->device)
			return;
	if (r->accesses < GP_GPUS)
		r->access[r->accesses++] =
			(struct gp_access){CU_MEM_LOCATION_TYPE_DEVICE, gpu->device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
}

static void remove_gpu(struct gp_range *r, const struct gp_gpu *gpu)
{
	for (uint32_t i = 0; i < r->accesses; i++)
		if (r->access[i].location == gpu->device) {
			r->access[i] = r->access[--r->accesses];
			return;
		}
}

void gp_peers_of(const struct gp_context *c, struct gp_range *r)
{
	r->accesses = 0;
	add(r, c->gpu);
	for (int i = 0; i < GP_CONTEXTS; i++)
		if (may_use[i][place_of(c)] && gp_context[i].handle)
			add(r, gp_context[i].gpu);
}

// Whether a GPU has access to memory of a context, by any of its contexts.
static bool reaches(const struct gp_gpu *gpu, const struct gp_context *owner)
{
	for (int i = 0; i < GP_CONTEXTS; i++)
		if (may_use[i][place_of(owner)] && gp_context[i].handle && gp_context[i].gpu == gpu)
			return true;
	return false;
}

// The first range of a context from an address on; NULL: there is none.
static struct gp_range *range_of(CUcontext context, CUdeviceptr from)
{
	struct gp_range *r = gp_range_from(from);
	while (r && (r->kind != GP_RANGE_ALLOCATED || r->context != context || r->ending))
		r = gp_range_from(r->address + r->bytes);
	return r;
}

static bool is_there(CUdeviceptr address, uint64_t id)
{
	pthread_mutex_lock(&gp_memory_lock);
	struct gp_range *r = gp_range_at(address);
	bool is = r && r->id == id && !r->ending;
	pthread_mutex_unlock(&gp_memory_lock);
	return is;
}

// Gives a GPU access to all memory of a context, or takes it. The caller is counted in.
static CUresult set_access(CUcontext owner, const struct gp_gpu *gpu, int flags)
{
	struct gp_access access = {CU_MEM_LOCATION_TYPE_DEVICE, gpu->device, flags};
	CUdeviceptr from = 0;
	for (;;) {
		pthread_mutex_lock(&gp_memory_lock);
		struct gp_range *r = range_of(owner, from);
		CUdeviceptr address = r ? r->address : 0;
		size_t bytes = r ? r->bytes : 0;
		uint64_t id = r ? r->id : 0;
		if (r && flags)
			add(r, gpu);
		else if (r)
			remove_gpu(r, gpu);
		pthread_mutex_unlock(&gp_memory_lock);
		if (!r)
			return CUDA_SUCCESS;
		CUresult result = gp_driver.cuMemSetAccess(address, bytes, &access, 1);
		if (result && flags && is_there(address, id)) // another thread may have freed it
			return result;
		from = address + bytes;
	}
}

static CUresult enable(CUcontext peer, unsigned flags)
{
	CUresult result = gp_driver.cuCtxEnablePeerAccess(peer, flags);
	struct gp_context *user = gp_current_context(), *owner = gp_find_context(peer);
	if (result || !user || !owner)
		return result;
	pthread_mutex_lock(&gp_memory_lock);
	bool had = user->gpu == owner->gpu || reaches(user->gpu, owner);
	may_use[place_of(user)][place_of(owner)] =
		true; // before the ranges: allocations that other threads make from here on have it
	pthread_mutex_unlock(&gp_memory_lock);
	if (!had && (result = set_access(peer, user->gpu, CU_MEM_ACCESS_FLAGS_PROT_READWRITE))) {
		pthread_mutex_lock(&gp_memory_lock);
		may_use[place_of(user)][place_of(owner)] = false;
		pthread_mutex_unlock(&gp_memory_lock);
		set_access(peer, user->gpu, 0);
		gp_driver.cuCtxDisablePeerAccess(peer);
	}
	return result;
}

CUresult gp_cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
	gp_memory_enter();
	CUresult result = enable(peer, flags);
	gp_memory_leave();
	return result;
}

static CUresult disable(CUcontext peer)
{
	CUresult result = gp_driver.cuCtxDisablePeerAccess(peer);
	struct gp_context *user = gp_current_context(), *owner = gp_find_context(peer);
	if (result || !user || !owner)
		return result;
	pthread_mutex_lock(&gp_memory_lock);
	may_use[place_of(user)][place_of(owner)] = false;
	bool has = user->gpu == owner->gpu || reaches(user->gpu, owner);
	pthread_mutex_unlock(&gp_memory_lock);
	return has ? CUDA_SUCCESS : set_access(peer, user->gpu, 0);
}

CUresult gp_cuCtxDisablePeerAccess(CUcontext peer)
{
	gp_memory_enter();
	CUresult result = disable(peer);
	gp_memory_leave();
	return result;
}

void gp_peers_context_destroyed(const struct gp_context *c)
{
	pthread_mutex_lock(&gp_memory_lock);
	memset(may_use[place_of(c)], 0, sizeof may_use[0]);
	for (int i = 0; i < GP_CONTEXTS; i++)
		may_use[i][place_of(c)] = false;
	pthread_mutex_unlock(&gp_memory_lock);
}

// The driver's cuMemFree waits for the context even during a capture, where a synchronization would end the capture. So a
// little memory is allocated and freed there. As without us, the thread's capture mode decides whether that is allowed.
static CUresult wait_in_capture(void)
{
	CUdeviceptr little;
	CUresult result = gp_driver.cuMemAlloc(&little, 1);
	return result ? result : gp_driver.cuMemFree(little);
}

static CUresult wait_for(CUcontext context, CUcontext current)
{
	int cancel;
	CUcontext popped;
	CUresult result = context == current ? CUDA_SUCCESS : gp_driver.cuCtxPushCurrent(context);
	if (result)
		return result;
	if (gp_captures_keep_off(&cancel)) {
		result = gp_driver.cuCtxSynchronize();
		gp_captures_let_on(cancel);
	} else {
		result = wait_in_capture();
	}
	if (context != current)
		gp_driver.cuCtxPopCurrent(&popped);
	return result;
}

static bool uses(const struct gp_context *user, const struct gp_context *owner)
{
	pthread_mutex_lock(&gp_memory_lock);
	bool is = owner && may_use[place_of(user)][place_of(owner)];
	pthread_mutex_unlock(&gp_memory_lock);
	return is;
}

// The range's own context is not destroyed while the program frees there; others might be.
CUresult gp_peers_synchronize(const struct gp_range *r, CUcontext current)
{
	struct gp_context *owner = gp_find_context(r->context);
	int cancel = gp_cancel_off(); // contexts are pinned meanwhile
	CUresult result = wait_for(r->context, current);
	for (uint32_t i = 0; i < gp_context_places && !result; i++) {
		struct gp_context *user = &gp_context[i];
		CUcontext handle = user->handle;
		if (!handle || !uses(user, owner) || !gp_context_pin(user, handle))
			continue;
		result = wait_for(handle, current);
		gp_context_unpin(user);
	}
	gp_cancel_on(cancel);
	return result;
}
