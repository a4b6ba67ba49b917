// pools.c - memory pools, and their part of the device's memory. A pool keeps freed memory until the program synchronizes or trims it. A
// synchronization gives back only the part above the pool's threshold.
#include "sim.h"

#include <stdlib.h>

#define DEVICES 8

struct pool {
	struct pool *next;
	int device;
	bool destroyed;          // it ends with its last allocation
	uint8_t access[DEVICES]; // of the other devices, CUmemAccess_flags
	uint64_t used, reserved, used_high, reserved_high, threshold, most;
	int reuse[3];
};
static struct pool *pools, *initial[DEVICES], *current[DEVICES];

static struct pool *pool_new(int device, uint64_t most)
{
	struct pool *p = calloc(1, sizeof *p);
	if (!p)
		return NULL;
	*p = (struct pool){.next = pools, .device = device, .most = most ? most : UINT64_MAX, .reuse = {1, 1, 1}};
	pools = p;
	handle_add(p, H_POOL);
	return p;
}

static struct pool *pool_default(int device)
{
	if (!initial[device])
		initial[device] = pool_new(device, 0);
	return initial[device];
}

struct pool *pool_current(int device) { return current[device] ? current[device] : pool_default(device); }

bool pool_reached(const struct pool *p, int device) { return device == p->device || p->access[device]; }

static void release(struct pool *p, uint64_t keep)
{
	uint64_t needed = memory_pages(p->used > keep ? p->used : keep);
	if (needed >= p->reserved)
		return;
	memory_discharge(p->device, p->reserved - needed);
	p->reserved = needed;
}

bool pool_take(struct pool *p, uint64_t bytes)
{
	if (bytes > p->most || p->used > p->most - bytes)
		return false;
	uint64_t needed = memory_pages(p->used + bytes);
	if (needed > p->reserved) {
		if (!memory_charge(p->device, needed - p->reserved))
			return false;
		p->reserved = needed;
	}
	p->used += bytes;
	p->used_high = p->used > p->used_high ? p->used : p->used_high;
	p->reserved_high = p->reserved > p->reserved_high ? p->reserved : p->reserved_high;
	return true;
}

static void forget(struct pool *p)
{
	release(p, 0);
	struct pool **at = &pools;
	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	free(p);
}

struct pool *pool_of_graphs(int device, uint64_t bytes)
{
	static struct pool *of_graphs[DEVICES];
	if (!of_graphs[device])
		of_graphs[device] = pool_new(device, 0);
	if (of_graphs[device])
		of_graphs[device]->used += bytes;
	return of_graphs[device];
}

void pool_take_back(struct pool *p, uint64_t bytes)
{
	p->used -= bytes;
	if (p->destroyed && !p->used)
		forget(p);
}

void pools_synchronized(void)
{
	for (struct pool *p = pools; p; p = p->next)
		release(p, p->threshold);
}

static CUresult enter_pool(struct pool *p, const void *argument)
{
	CUresult r = argument ? enter(NULL) : CUDA_ERROR_INVALID_VALUE;
	return r == CUDA_SUCCESS && !handle_is(p, H_POOL) ? leave(CUDA_ERROR_INVALID_VALUE) : r;
}

static CUresult enter_device(CUdevice d, const void *argument)
{
	CUresult r = argument ? enter(NULL) : CUDA_ERROR_INVALID_VALUE;
	return r == CUDA_SUCCESS && (d < 0 || d >= sim_devices()) ? leave(CUDA_ERROR_INVALID_DEVICE) : r;
}

CALL(cuDeviceGetDefaultMemPool, (struct pool * *out, CUdevice d), (out, d))
{
	CUresult r = enter_device(d, out);
	if (r != CUDA_SUCCESS)
		return r;
	*out = pool_default(d);
	return leave(*out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CALL(cuDeviceGetMemPool, (struct pool * *out, CUdevice d), (out, d))
{
	CUresult r = enter_device(d, out);
	if (r != CUDA_SUCCESS)
		return r;
	*out = pool_current(d);
	return leave(*out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CALL(cuDeviceSetMemPool, (CUdevice d, struct pool *p), (d, p))
{
	CUresult r = enter_device(d, p);
	if (r != CUDA_SUCCESS)
		return r;
	if (!handle_is(p, H_POOL) || p->device != d)
		return leave(CUDA_ERROR_INVALID_VALUE);
	current[d] = p;
	return leave(CUDA_SUCCESS);
}

struct properties { // CUmemPoolProps
	int type, handle_types, location, id;
	void *windows;
	size_t most;
	unsigned short usage;
	unsigned char reserved[54];
};
_Static_assert(sizeof(struct properties) == 88, "CUmemPoolProps");

CALL(cuMemPoolCreate, (struct pool * *out, const struct properties *p), (out, p))
{
	enum { ALLOCATION_PINNED = 1, LOCATION_DEVICE = 1 };
	CUresult r = out && p && p->type == ALLOCATION_PINNED ? enter(NULL) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	if (p->location != LOCATION_DEVICE || p->handle_types) // shared ones are not simulated
		return leave(CUDA_ERROR_NOT_SUPPORTED);
	if (p->id < 0 || p->id >= sim_devices())
		return leave(CUDA_ERROR_INVALID_DEVICE);
	*out = pool_new(p->id, p->most);
	return leave(*out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CALL(cuMemPoolDestroy, (struct pool * p), (p))
{
	CUresult r = enter_pool(p, p);
	if (r != CUDA_SUCCESS)
		return r;
	if (p == initial[p->device])
		return leave(CUDA_ERROR_INVALID_VALUE);
	if (current[p->device] == p)
		current[p->device] = NULL;
	handle_remove(p);
	p->destroyed = true;
	if (!p->used)
		forget(p);
	return leave(CUDA_SUCCESS);
}

CALL(cuMemPoolTrimTo, (struct pool * p, size_t keep), (p, keep))
{
	CUresult r = enter_pool(p, p);
	if (r != CUDA_SUCCESS)
		return r;
	release(p, keep);
	return leave(CUDA_SUCCESS);
}

// CUmemPool_attribute
enum { REUSE_LAST = 3, RELEASE_THRESHOLD, RESERVED_CURRENT, RESERVED_HIGH, USED_CURRENT, USED_HIGH };

CALL(cuMemPoolGetAttribute, (struct pool * p, int attribute, void *value), (p, attribute, value))
{
	CUresult r = enter_pool(p, value);
	if (r != CUDA_SUCCESS)
		return r;
	if (attribute >= 1 && attribute <= REUSE_LAST) {
		*(int *)value = p->reuse[attribute - 1];
		return leave(CUDA_SUCCESS);
	}
	switch (attribute) {
	case RELEASE_THRESHOLD: *(uint64_t *)value = p->threshold; break;
	case RESERVED_CURRENT: *(uint64_t *)value = p->reserved; break;
	case RESERVED_HIGH: *(uint64_t *)value = p->reserved_high; break;
	case USED_CURRENT: *(uint64_t *)value = p->used; break;
	case USED_HIGH: *(uint64_t *)value = p->used_high; break;
	default: return leave(CUDA_ERROR_INVALID_VALUE);
	}
	return leave(CUDA_SUCCESS);
}

CALL(cuMemPoolSetAttribute, (struct pool * p, int attribute, const void *value), (p, attribute, value))
{
	CUresult r = enter_pool(p, value);
	if (r != CUDA_SUCCESS)
		return r;
	if (attribute >= 1 && attribute <= REUSE_LAST)
		p->reuse[attribute - 1] = *(const int *)value;
	else if (attribute == RELEASE_THRESHOLD)
		p->threshold = *(const uint64_t *)value;
	else if (attribute == RESERVED_HIGH && !*(const uint64_t *)value)
		p->reserved_high = p->reserved;
	else if (attribute == USED_HIGH && !*(const uint64_t *)value)
		p->used_high = p->used;
	else
		return leave(CUDA_ERROR_INVALID_VALUE);
	return leave(CUDA_SUCCESS);
}

struct location { int type, id; }; // CUmemLocation
struct access {                    // CUmemAccessDesc
	struct location location;
	int flags;
};

static bool is_device(const struct location *l) { return l->type == 1 && l->id >= 0 && l->id < sim_devices(); }

CALL(cuMemPoolSetAccess, (struct pool * p, const struct access *what, size_t count), (p, what, count))
{
	enum { NONE, READWRITE = 3 };
	CUresult r = enter_pool(p, what);
	if (r != CUDA_SUCCESS)
		return r;
	for (size_t i = 0; i < count; i++)
		if (!is_device(&what[i].location))
			return leave(CUDA_ERROR_INVALID_DEVICE);
		else if (what[i].location.id == p->device ? what[i].flags != READWRITE :
							    what[i].flags != NONE && what[i].flags != READWRITE)
			return leave(CUDA_ERROR_INVALID_VALUE);
	for (size_t i = 0; i < count; i++)
		p->access[what[i].location.id] = (uint8_t)what[i].flags;
	return leave(CUDA_SUCCESS);
}

CALL(cuMemPoolGetAccess, (int *out, struct pool *p, const struct location *l), (out, p, l))
{
	CUresult r = l ? enter_pool(p, out) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	if (!is_device(l))
		return leave(CUDA_ERROR_INVALID_DEVICE);
	*out = l->id == p->device ? 3 : p->access[l->id];
	return leave(CUDA_SUCCESS);
}
