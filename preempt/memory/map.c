// map.c - where the program maps its memory, and who may access it.
//
// Memory that is mapped as a whole, at one place, is a range that can go. Any other mapping is a range too, but a pinned one.
#define _GNU_SOURCE
#include "preempt/memory/own.h"

static bool overlaps(const struct gp_range *r, CUdeviceptr address, size_t bytes)
{
	return r && r->address < address + bytes && address < r->address + r->bytes;
}

// Whether the program names whole mappings of its own, as far as this file knows.
static bool whole(CUdeviceptr address, size_t bytes)
{
	for (struct gp_range *r = gp_range_from(address); overlaps(r, address, bytes);
	     r = gp_range_from(r->address + r->bytes))
		if (r->kind != GP_RANGE_MAPPED || r->address < address || r->address + r->bytes > address + bytes)
			return false;
	return true;
}

static bool checked_whole(CUdeviceptr address, size_t bytes)
{
	pthread_mutex_lock(&gp_memory_lock);
	bool is = whole(address, bytes);
	pthread_mutex_unlock(&gp_memory_lock);
	return is;
}

// For memory that is mapped twice or in part: moves the handles to where all its mappings find them.
static void share(struct gp_physical *p)
{
	gp_physical_pin(p, GP_PIN_SHARED);
	for (size_t i = 0; p->range && i < p->chunks; i++)
		p->chunk[i] = p->range->chunk[i].handle;
	p->range = NULL;
}

// Puts a new mapping into the table. Under gp_memory_lock.
static struct gp_range *add(struct gp_physical *p, CUdeviceptr address, size_t bytes)
{
	bool alone = !p->mappings && bytes == p->bytes;
	struct gp_range *r = gp_range_new(address, bytes, bytes, GP_RANGE_MAPPED, alone ? p->chunks : 1);
	if (!r)
		return NULL;
	r->gpu = p->gpu;
	r->physical = p;
	r->properties = p->properties;
	if (!alone)
		share(p);
	r->pins = p->pins | GP_PIN_CLOSED;
	p->mappings++;
	for (size_t i = 0; alone && i < p->chunks; i++)
		r->chunk[i].handle = p->chunk[i];
	p->range = alone ? r : NULL;
	gp_physical_settle(p);
	return r;
}

// Takes a mapping out of the table. Under gp_memory_lock. Returns memory that nobody has any more.
static struct gp_physical *take(struct gp_range *r)
{
	struct gp_physical *p = r->physical;
	for (size_t i = 0; p->range == r && i < p->chunks; i++)
		p->chunk[i] = r->chunk[i].handle;
	if (p->range == r)
		p->range = NULL;
	p->mappings--;
	gp_range_drop(r);
	return gp_physical_settle(p) ? p : NULL;
}

// The caller is counted in, so handles do not change.
static CUresult map_chunks(const struct gp_physical *p, CUdeviceptr address, size_t bytes)
{
	size_t mapped = 0;
	for (size_t i = 0; mapped < bytes; i++) {
		size_t rest = bytes - mapped, chunk = gp_physical_chunk_bytes(p, i), part = chunk < rest ? chunk : rest;
		CUresult result = gp_driver.cuMemMap(address + mapped, part, 0, gp_physical_handle(p, i), 0);
		if (result) {
			if (mapped)
				GP_GIVE_BACK(gp_driver.cuMemUnmap(address, mapped));
			return result;
		}
		mapped += part;
	}
	return CUDA_SUCCESS;
}

static CUresult map(CUdeviceptr address, size_t bytes, size_t offset, unsigned long long handle, unsigned long long flags)
{
	pthread_mutex_lock(&gp_memory_lock);
	struct gp_physical *p = gp_physical_of(handle);
	bool sound = p && bytes && bytes <= p->bytes && !(bytes % GP_GRANULE) && !offset && !flags;
	struct gp_range *r = sound ? add(p, address, bytes) : NULL;
	pthread_mutex_unlock(&gp_memory_lock);
	if (!gp_physical_is_number(handle)) {
		CUresult result = gp_driver.cuMemMap(address, bytes, offset, handle, flags);
		if (!result)
			gp_counted_mapped(address, handle);
		return result;
	}
	if (!r) // that is how the driver refuses each of these, and an address where something is mapped
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = map_chunks(p, address, bytes);
	if (!result)
		return CUDA_SUCCESS;
	pthread_mutex_lock(&gp_memory_lock);
	struct gp_physical *ends = take(r); // another thread may have released the handle meanwhile
	pthread_mutex_unlock(&gp_memory_lock);
	if (ends)
		gp_physical_end(ends);
	return result;
}

CUresult gp_cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, unsigned long long handle, unsigned long long flags)
{
	gp_memory_enter();
	CUresult result = map(address, bytes, offset, handle, flags);
	gp_memory_leave();
	return result;
}

static CUresult unmap(CUdeviceptr address, size_t bytes)
{
	if (!checked_whole(address, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = gp_driver.cuMemUnmap(address, bytes);
	if (!result)
		gp_counted_unmapped(address, bytes);
	for (bool more = !result; more;) {
		struct gp_physical *ends = NULL;
		pthread_mutex_lock(&gp_memory_lock);
		struct gp_range *r = gp_range_from(address);
		more = overlaps(r, address, bytes);
		if (more)
			ends = take(r);
		pthread_mutex_unlock(&gp_memory_lock);
		if (ends)
			gp_physical_end(ends);
	}
	return result;
}

CUresult gp_cuMemUnmap(CUdeviceptr address, size_t bytes)
{
	gp_memory_enter();
	CUresult result = unmap(address, bytes);
	gp_memory_leave();
	return result;
}

static void record(struct gp_range *r, const struct gp_access *a)
{
	for (uint32_t i = 0; i < r->accesses; i++)
		if (r->access[i].location_type == a->location_type && r->access[i].location == a->location) {
			r->access[i].flags = a->flags;
			return;
		}
	if (r->accesses < GP_GPUS)
		r->access[r->accesses++] = *a;
	else
		gp_range_pin(r, GP_PIN_SHARED); // a restore could not repeat so many
}

static bool open_to_own(const struct gp_range *r)
{
	for (uint32_t i = 0; i < r->accesses; i++)
		if (r->access[i].location_type == CU_MEM_LOCATION_TYPE_DEVICE && r->access[i].location == r->gpu->device)
			return r->access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	return false;
}

static CUresult set_access(CUdeviceptr address, size_t bytes, const struct gp_access *access, size_t count)
{
	CUresult result = checked_whole(address, bytes) ? gp_driver.cuMemSetAccess(address, bytes, access, count) :
							  CUDA_ERROR_INVALID_VALUE;
	if (result)
		return result;
	pthread_mutex_lock(&gp_memory_lock);
	for (struct gp_range *r = gp_range_from(address); overlaps(r, address, bytes);
	     r = gp_range_from(r->address + r->bytes)) {
		for (size_t i = 0; i < count; i++)
			record(r, &access[i]);
		r->pins = open_to_own(r) ? r->pins & ~GP_PIN_CLOSED : r->pins | GP_PIN_CLOSED;
		gp_physical_settle(r->physical);
	}
	pthread_mutex_unlock(&gp_memory_lock);
	return CUDA_SUCCESS;
}

CUresult gp_cuMemSetAccess(CUdeviceptr address, size_t bytes, const struct gp_access *access, size_t count)
{
	gp_memory_enter();
	CUresult result = set_access(address, bytes, access, count);
	gp_memory_leave();
	return result;
}

CUresult gp_cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
	gp_memory_enter(); // what is out is the program's, though it is not mapped
	CUresult result = gp_driver.cuMemAddressFree(address, bytes);
	gp_memory_leave();
	return result;
}

// The address that the driver gets: 0, for it to refuse, if memory of cuMemAlloc is among it, which cannot be bound.
static CUdeviceptr pin_all(CUdeviceptr address, size_t bytes)
{
	bool may = true;
	pthread_mutex_lock(&gp_memory_lock);
	for (struct gp_range *r = gp_range_from(address); overlaps(r, address, bytes);
	     r = gp_range_from(r->address + r->bytes))
		may &= r->kind == GP_RANGE_MAPPED;
	for (struct gp_range *r = gp_range_from(address); may && overlaps(r, address, bytes);
	     r = gp_range_from(r->address + r->bytes))
		gp_range_pin(r, GP_PIN_MULTICAST);
	pthread_mutex_unlock(&gp_memory_lock);
	return may ? address : 0;
}

CUresult gp_cuMulticastBindAddr(unsigned long long multicast, size_t offset, CUdeviceptr address, size_t bytes,
				unsigned long long flags)
{
	gp_memory_enter();
	CUresult result = gp_driver.cuMulticastBindAddr(multicast, offset, pin_all(address, bytes), bytes, flags);
	gp_memory_leave();
	return result;
}

CUresult gp_cuMulticastBindAddr_v2(unsigned long long multicast, CUdevice device, size_t offset, CUdeviceptr address,
				   size_t bytes, unsigned long long flags)
{
	gp_memory_enter();
	CUresult result =
		gp_driver.cuMulticastBindAddr_v2(multicast, device, offset, pin_all(address, bytes), bytes, flags);
	gp_memory_leave();
	return result;
}

// Unlike a multicast object, an endpoint may have memory of a pool bound (cuMemAllocAsync), which is in no range.
CUresult gp_cuLogicalEndpointBindAddr(uint32_t endpoint, CUdevice device, uint64_t offset, void *address,
				      uint64_t bytes, unsigned long long flags)
{
	gp_memory_enter();
	CUresult result = pin_all((CUdeviceptr)address, bytes) ?
				  gp_driver.cuLogicalEndpointBindAddr(endpoint, device, offset, address, bytes, flags) :
				  CUDA_ERROR_INVALID_VALUE;
	gp_memory_leave();
	return result;
}
