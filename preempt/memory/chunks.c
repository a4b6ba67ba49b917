// chunks.c - physical memory for a range, mapped at addresses of its own.
#define _GNU_SOURCE
#include "preempt/memory/own.h"

static void release(struct gp_range *r, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		GP_GIVE_BACK(gp_driver.cuMemRelease(r->chunk[i].handle));
		r->chunk[i].handle = 0;
	}
}

static CUresult make(struct gp_chunk *c)
{
	CUresult result = gp_driver.cuMemCreate(&c->handle, c->bytes, &c->range->properties, 0);
	if (result)
		return result;
	result = gp_driver.cuMemMap(c->address, c->bytes, 0, c->handle, 0);
	if (result)
		GP_GIVE_BACK(gp_driver.cuMemRelease(c->handle));
	return result;
}

void gp_chunks_forget(struct gp_range *r)
{
	CUdeviceptr address = r->address;
	size_t bytes = r->bytes;
	pthread_mutex_lock(&gp_memory_lock);
	gp_range_drop(r); // before the addresses are freed: then they may be another range's
	pthread_mutex_unlock(&gp_memory_lock);
	GP_GIVE_BACK(gp_driver.cuMemAddressFree(address, bytes));
}

void gp_chunks_empty(struct gp_range *r, size_t count, size_t bytes)
{
	if (bytes)
		GP_GIVE_BACK(gp_driver.cuMemUnmap(r->address, bytes));
	release(r, count);
}

// Making chunk after chunk would take all that is free from others, until it turns out not to be enough. So where the driver
// says that it has less, it is asked for all in one piece: it may still find something to give up. So is a driver that has refused this
// call at a cap: what is made up to the cap and given back is not free at once.
CUresult gp_chunks_fit(size_t bytes, const struct gp_allocation_properties *p, const struct gp_retry *retry)
{
	size_t free, total;
	unsigned long long handle;
	if (bytes <= GP_CHUNK_BYTES || gp_driver.cuMemGetInfo(&free, &total) || (free >= bytes && !retry->capped))
		return CUDA_SUCCESS;
	CUresult result = gp_driver.cuMemCreate(&handle, bytes, p, 0);
	if (!result)
		GP_GIVE_BACK(gp_driver.cuMemRelease(handle));
	return result;
}

// Access is given to all chunks in one call, since that call is the expensive one.
static CUresult fill(struct gp_range *r, struct gp_retry *retry)
{
	CUresult result = gp_chunks_fit(r->bytes, &r->properties, retry);
	size_t made = 0, mapped = 0;
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		gp_memory_refused(r->gpu, r->bytes, retry);
	if (result)
		return result;
	for (; made < r->chunks && !result; made++) {
		result = make(&r->chunk[made]);
		mapped += result ? 0 : r->chunk[made].bytes;
	}
	made -= result != CUDA_SUCCESS;
	if (!result)
		result = gp_driver.cuMemSetAccess(r->address, r->bytes, r->access, r->accesses);
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		gp_memory_refused(r->gpu, r->bytes - mapped, retry);
	if (result)
		gp_chunks_empty(r, made, mapped);
	return result;
}

static struct gp_range *reserve(struct gp_context *c, size_t asked, CUresult *result)
{
	size_t bytes = (asked + GP_GRANULE - 1) / GP_GRANULE * GP_GRANULE;
	CUdeviceptr address = 0;
	*result = gp_driver.cuMemAddressReserve(&address, bytes, 0, 0, 0);
	if (*result)
		return NULL;
	pthread_mutex_lock(&gp_memory_lock);
	struct gp_range *r =
		gp_range_new(address, asked, bytes, GP_RANGE_ALLOCATED, (bytes + GP_CHUNK_BYTES - 1) / GP_CHUNK_BYTES);
	if (r) {
		r->gpu = c->gpu;
		r->context = c->handle;
		r->ending = true; // until it is whole
		gp_sample_properties(c->gpu, &r->properties);
		gp_peers_of(c, r);
	}
	pthread_mutex_unlock(&gp_memory_lock);
	if (!r) {
		GP_GIVE_BACK(gp_driver.cuMemAddressFree(address, bytes));
		*result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	return r;
}

// From here on cuCtxEnablePeerAccess reaches the range. False: it was called meanwhile, and the range lacks what it gave.
static bool finish(const struct gp_context *c, struct gp_range *r)
{
	pthread_mutex_lock(&gp_memory_lock);
	uint32_t had = r->accesses;
	gp_peers_of(c, r);
	bool whole = r->accesses <= had;
	r->ending = !whole;
	pthread_mutex_unlock(&gp_memory_lock);
	return whole;
}

CUresult gp_chunks_allocate(struct gp_context *c, size_t asked, CUdeviceptr *address, struct gp_retry *retry)
{
	CUresult result;
	struct gp_range *r = reserve(c, asked, &result);
	if (!r)
		return result;
	result = fill(r, retry);
	*address = r->address;
	while (!result && !finish(c, r)) {
		result = gp_driver.cuMemSetAccess(r->address, r->bytes, r->access, r->accesses);
		if (result)
			gp_chunks_empty(r, r->chunks, r->bytes);
	}
	if (result)
		gp_chunks_forget(r);
	return result;
}

uint64_t gp_chunks_out(const struct gp_range *r)
{
	uint64_t bytes = 0;
	for (size_t i = 0; i < r->chunks; i++)
		bytes += r->chunk[i].state == GP_CHUNK_OUT ? r->chunk[i].bytes : 0;
	return bytes;
}

// Frees a range of which a part is out, so nothing runs and no move begins. Chunks that are out are not mapped, unless the driver refused
// to unmap them.
static void free_parts(struct gp_range *r)
{
	for (size_t i = 0; i < r->chunks; i++) {
		struct gp_chunk *c = &r->chunk[i];
		if (c->handle) { // IN, or OUT where the driver refused to unmap it
			GP_GIVE_BACK(gp_driver.cuMemUnmap(c->address, c->bytes));
			GP_GIVE_BACK(gp_driver.cuMemRelease(c->handle));
		}
		gp_chunk_give_host(c);
	}
}

CUresult gp_chunks_free(struct gp_range *r)
{
	if (gp_chunks_out(r)) {
		free_parts(r);
		gp_chunks_forget(r);
		return CUDA_SUCCESS;
	}
	CUresult result = gp_driver.cuMemUnmap(r->address, r->bytes);
	if (result)
		return result;
	release(r, r->chunks);
	gp_chunks_forget(r);
	return CUDA_SUCCESS;
}
