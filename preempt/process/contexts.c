// contexts.c - the contexts and GPUs of this process, as they come and go.
#define _GNU_SOURCE
#include "preempt/process/process.h"

#include <stddef.h>
#include <string.h>

struct gp_context *gp_find_context(CUcontext handle)
{
	for (int i = 0; i < GP_CONTEXTS; i++) {
		CUcontext h = __atomic_load_n((CUcontext *)&gp_context[i].handle, __ATOMIC_ACQUIRE);
		if (h == handle)
			return handle ? &gp_context[i] : NULL;
	}
	return NULL;
}

CUcontext gp_primary_context(CUcontext handle)
{
	const struct gp_context *c = gp_find_context(handle);
	return c ? c->primary_context : handle;
}

struct gp_context *gp_current_context(void) { return gp_find_context(gp_current_handle()); }

static pthread_mutex_t places = PTHREAD_MUTEX_INITIALIZER; // held by a thread that takes a place, or gives it back

struct gp_context *gp_find_leaving(CUcontext handle)
{
	for (int i = 0; handle && i < GP_CONTEXTS; i++)
		if (gp_context[i].leaving == handle)
			return &gp_context[i];
	return NULL;
}

void gp_context_leaves(struct gp_context *c)
{
	c->leaving = c->handle; // first: the place is not free in between
	c->handle = NULL;
}

bool gp_context_left(struct gp_context *c, bool is)
{
	pthread_mutex_lock(&places);
	pthread_mutex_lock(&c->query_lock);
	bool back = !is && !gp_find_context(c->leaving); // else a thread has used it meanwhile, and it has another place
	if (back)
		c->handle = c->leaving;
	c->leaving = NULL;
	pthread_mutex_unlock(&c->query_lock);
	pthread_mutex_unlock(&places);
	return back;
}

static void clear(struct gp_context *c)
{
	memset((char *)c + offsetof(struct gp_context, yielded), 0,
	       offsetof(struct gp_context, stream) - offsetof(struct gp_context, yielded));
	for (int i = 0; i <= GP_STREAMS; i++) {
		struct gp_stream *s = i < GP_STREAMS ? &c->stream[i] : &c->others;
		s->handle = NULL;
		s->event = NULL;
		s->settled = s->completed = s->submitted;
		s->result = s->result_at = 0;
	}
}

static _Atomic bool several; // there were several contexts at one time

// Copies, events and waits for them may be put on a stream of any context, whichever is current (CUDA's programming guide,
// "Stream and Event Behavior").
bool gp_enter_owner(CUstream stream, CUcontext *current)
{
	CUcontext owner = NULL;
	if (!several || stream == GP_STREAM_LEGACY || stream == GP_STREAM_PER_THREAD || !gp_driver.cuStreamGetCtx ||
	    gp_driver.cuStreamGetCtx(stream, &owner) || owner == *current || gp_driver.cuCtxPushCurrent(owner))
		return false;
	*current = owner;
	return true;
}

void gp_leave_owner(void)
{
	CUcontext popped;
	gp_driver.cuCtxPopCurrent(&popped);
}

// The one place where the driver tells a device's UUIDs. cuDeviceGetUuid has the GPU's UUID for a slice too; drivers that lack the newer
// question (before CUDA 11.4) know no slices by UUIDs.
static bool identify(CUdevice device, uint8_t whole[16], uint8_t uuid[16])
{
	if (gp_driver.cuDeviceGetUuid(whole, device))
		return false;
	if (!gp_driver.cuDeviceGetUuid_v2 || gp_driver.cuDeviceGetUuid_v2(uuid, device))
		memcpy(uuid, whole, 16);
	return true;
}

struct gp_gpu *gp_gpu_of_device(CUdevice device)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	uint8_t uuid[16], whole[16];
	struct gp_gpu *found = NULL;
	bool added = false;

	if (!identify(device, whole, uuid))
		return NULL;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < GP_GPUS && !found; i++) {
		struct gp_gpu *g = &gp_gpu[i];
		if (g->known) {
			if (!memcmp(g->uuid, uuid, sizeof uuid))
				found = g;
			continue;
		}
		memcpy(g->uuid, uuid, sizeof uuid);
		memcpy(g->whole, whole, sizeof whole);
		g->device = device;
		g->lock = (pthread_mutex_t)PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP;
		gp_driver.cuDeviceGetAttribute(&g->sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
		gp_driver.cuDeviceGetAttribute(&g->threads_per_sm, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
					       device);
		gp_driver.cuDeviceGetAttribute(&g->registers_per_sm,
					       CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, device);
		gp_driver.cuDeviceGetAttribute(&g->shared_per_sm,
					       CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, device);
		gp_driver.cuDeviceGetAttribute(&g->shared_reserved,
					       CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, device);
		gp_driver.cuDeviceGetAttribute(&g->blocks_per_sm, CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR,
					       device);
		g->mps = gp_under_mps(device);
		g->known = 1;
		found = g;
		added = true;
	}
	pthread_mutex_unlock(&lock);
	if (added)
		gp_notify();
	return found;
}

// The GPU of the memory at an address; NULL: it may be any. The current GPU where the driver does not know, such as for
// addresses that are only reserved.
const struct gp_gpu *gp_gpu_of_memory(CUdeviceptr address)
{
	int attribute = CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ordinal = -1;
	void *value = &ordinal;
	struct gp_context *current = gp_current_context();

	if (!gp_driver.cuPointerGetAttributes || gp_driver.cuPointerGetAttributes(1, &attribute, &value, address))
		return NULL;
	for (int i = 0; i < GP_GPUS && gp_gpu[i].known; i++)
		if (gp_gpu[i].device == ordinal)
			return &gp_gpu[i];
	return current ? current->gpu : NULL;
}

// Of the context that is current. It is asked for by its default stream.
static CUcontext whole_of(CUcontext handle, CUdevice device)
{
	CUgreenCtx green = NULL;
	CUcontext primary = NULL;
	unsigned flags;
	int active = 0;
	if (!gp_driver.cuStreamGetGreenCtx || gp_driver.cuStreamGetGreenCtx(GP_STREAM_LEGACY, &green) || !green ||
	    !gp_driver.cuDevicePrimaryCtxGetState || !gp_driver.cuDevicePrimaryCtxRetain ||
	    !gp_driver.cuDevicePrimaryCtxRelease || gp_driver.cuDevicePrimaryCtxGetState(device, &flags, &active) ||
	    !active || gp_driver.cuDevicePrimaryCtxRetain(&primary, device))
		return handle;
	gp_driver.cuDevicePrimaryCtxRelease(device);
	return primary;
}

struct gp_context *gp_context_current(CUcontext handle)
{
	CUdevice device;
	CUcontext popped;
	struct gp_context *known = handle ? gp_find_context(handle) : NULL;

	if (!handle || known)
		return known;
	if (gp_driver.cuCtxPushCurrent(handle))
		return NULL;
	CUresult result = gp_driver.cuCtxGetDevice(&device);
	CUcontext whole = result ? NULL : whole_of(handle, device);
	gp_driver.cuCtxPopCurrent(&popped);
	if (result)
		return NULL;
	struct gp_gpu *g = gp_gpu_of_device(device);
	if (!g)
		return NULL;
	if (whole != handle) // a wait for the primary context includes a green one's default stream, which no call makes
		gp_stream_made(NULL);
	bool added = false;
	pthread_mutex_lock(&places);
	for (int i = 0; i < GP_CONTEXTS && !(known = gp_find_context(handle)); i++) {
		struct gp_context *c = &gp_context[i];
		if (c->handle || c->leaving)
			continue;
		pthread_mutex_lock(&c->query_lock); // zeros in static storage are an initialised mutex
		clear(c);
		c->gpu = g;
		c->primary_context = whole;
		several |= i > 0;
		if (gp_context_places <= (uint32_t)i)
			gp_context_places = (uint32_t)i + 1; // before its handle can be seen
		c->handle = handle;
		pthread_mutex_unlock(&c->query_lock);
		added = true;
	}
	if (added)
		known = gp_find_context(handle);
	pthread_mutex_unlock(&places);
	if (added)
		gp_notify();
	return known;
}

static bool keep(struct gp_context *c, CUcontext handle)
{
	if (c->handle == handle)
		return true;
	pthread_mutex_unlock(&c->life_lock);
	return false;
}

bool gp_context_pin(struct gp_context *c, CUcontext handle)
{
	pthread_mutex_lock(&c->life_lock);
	return keep(c, handle);
}

bool gp_context_try_pin(struct gp_context *c, CUcontext handle)
{
	return !pthread_mutex_trylock(&c->life_lock) && keep(c, handle);
}

void gp_context_unpin(struct gp_context *c) { pthread_mutex_unlock(&c->life_lock); }
