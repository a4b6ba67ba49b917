// handles.c - memory that the program makes by cuMemCreate.
//
// The program holds a number of ours. The driver's handles behind it change with each restore. Memory that may be exported is one handle of
// the driver; other memory is made in chunks, of which a part can go. Kinds of memory that are not swapped (host memory, fabric handles,
// tile pools) pass through: the program gets the driver's handle.
#define _GNU_SOURCE
#include "preempt/memory/own.h"

#include <stdlib.h>
#include <string.h>

// A number is a tag, how often its place was used, and the place. The driver's handles have no such tag: they are small numbers
// or addresses of user space.
#define TAG 0x67ull
enum { TAG_SHIFT = 56, USES_SHIFT = 24, PLACES = 1 << USES_SHIFT };

static struct {
	struct entry {
		struct gp_physical *physical;
		uint32_t uses;
	} *at;
	size_t count, room, free; // free: no place below it is
} table;

static unsigned long long number_of(size_t place)
{
	return TAG << TAG_SHIFT | (unsigned long long)table.at[place].uses << USES_SHIFT | place;
}

bool gp_physical_is_number(unsigned long long handle) { return handle >> TAG_SHIFT == TAG; }

struct gp_physical *gp_physical_of(unsigned long long number)
{
	size_t place = number & (PLACES - 1);
	struct gp_physical *p = gp_physical_is_number(number) && place < table.count ? table.at[place].physical : NULL;
	return p && p->number == number && p->references ? p : NULL;
}

static bool insert(struct gp_physical *p)
{
	while (table.free < table.count && table.at[table.free].physical)
		table.free++;
	if (table.free == table.room) {
		size_t room = table.room ? 2 * table.room : 64;
		struct entry *at = room <= PLACES ? realloc(table.at, room * sizeof *at) : NULL;
		if (!at)
			return false;
		memset(at + table.room, 0, (room - table.room) * sizeof *at);
		table.at = at;
		table.room = room;
	}
	if (table.free == table.count)
		table.count++;
	table.at[table.free].physical = p;
	table.at[table.free].uses++;
	p->number = number_of(table.free);
	return true;
}

static void drop(struct gp_physical *p)
{
	size_t place = p->number & (PLACES - 1);
	table.at[place].physical = NULL;
	if (place < table.free)
		table.free = place;
}

size_t gp_physical_chunk_bytes(const struct gp_physical *p, size_t chunk)
{
	return chunk == p->chunks - 1 ? p->bytes - chunk * GP_CHUNK_BYTES : GP_CHUNK_BYTES;
}

unsigned long long gp_physical_handle(const struct gp_physical *p, size_t chunk)
{
	return p->range ? p->range->chunk[chunk].handle : p->chunk[chunk];
}

bool gp_physical_settle(struct gp_physical *p)
{
	struct gp_memory *m = gp_memory_of(p->gpu);
	_Atomic uint64_t *account = p->range && !p->range->pins ? &m->resident : &m->pinned;
	gp_account_move(p->account, account, p->bytes);
	p->account = account;
	if (p->references || p->mappings)
		return false;
	drop(p);
	return true;
}

void gp_physical_pin(struct gp_physical *p, enum gp_pin pin)
{
	gp_pin_say(pin);
	p->pins |= pin;
	if (p->range)
		p->range->pins |= pin;
	gp_physical_settle(p);
}

void gp_range_pin(struct gp_range *r, enum gp_pin pin)
{
	if (r->physical)
		gp_physical_pin(r->physical, pin);
	else
		gp_account_pin(r, pin);
}

static void release_chunks(struct gp_physical *p, size_t count)
{
	for (size_t i = 0; i < count; i++)
		GP_GIVE_BACK(gp_driver.cuMemRelease(p->chunk[i]));
}

void gp_physical_end(struct gp_physical *p)
{
	release_chunks(p, p->chunks);
	gp_account_give(p->account, p->bytes);
	free(p);
}

static struct gp_gpu *gpu_of(const struct gp_allocation_properties *q)
{
	struct gp_allocation_properties unused;
	for (int i = 0; q->location_type == CU_MEM_LOCATION_TYPE_DEVICE && i < GP_GPUS && gp_gpu[i].known; i++)
		if (gp_gpu[i].device == q->location)
			return gp_sample_properties(&gp_gpu[i], &unused) ? &gp_gpu[i] : NULL;
	return NULL;
}

// The GPU on which the memory is to be, if it is memory that may go; NULL: the driver gets the call unchanged.
static struct gp_gpu *swappable(const unsigned long long *out, size_t bytes, const struct gp_allocation_properties *q,
				unsigned long long flags)
{
	if (!out || !q || !bytes || bytes % GP_GRANULE || flags || q->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
	    (q->handle_types & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) || q->win32 || q->flags.usage)
		return NULL;
	return gpu_of(q);
}

static struct gp_physical *physical_new(struct gp_gpu *gpu, size_t bytes, const struct gp_allocation_properties *q)
{
	size_t chunks = q->handle_types ? 1 : (bytes + GP_CHUNK_BYTES - 1) / GP_CHUNK_BYTES;
	struct gp_physical *p = calloc(1, sizeof *p + chunks * sizeof *p->chunk);
	if (!p)
		return NULL;
	p->bytes = bytes;
	p->properties = *q;
	p->gpu = gpu;
	p->references = 1;
	p->account = &gp_memory_of(gpu)->pinned;
	p->chunks = chunks;
	return p;
}

static CUresult make(struct gp_physical *p, struct gp_retry *retry)
{
	CUresult fits = p->chunks > 1 ? gp_chunks_fit(p->bytes, &p->properties, retry) : CUDA_SUCCESS;
	if (fits == CUDA_ERROR_OUT_OF_MEMORY)
		gp_memory_refused(p->gpu, p->bytes, retry);
	if (fits)
		return fits;
	for (size_t i = 0; i < p->chunks; i++) {
		CUresult result = gp_driver.cuMemCreate(&p->chunk[i], gp_physical_chunk_bytes(p, i), &p->properties, 0);
		if (!result)
			continue;
		if (result == CUDA_ERROR_OUT_OF_MEMORY)
			gp_memory_refused(p->gpu, p->bytes - i * GP_CHUNK_BYTES, retry);
		release_chunks(p, i);
		return result;
	}
	pthread_mutex_lock(&gp_memory_lock);
	bool in = insert(p);
	pthread_mutex_unlock(&gp_memory_lock);
	if (!in)
		release_chunks(p, p->chunks);
	return in ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult create(unsigned long long *out, size_t bytes, const struct gp_allocation_properties *q,
		       struct gp_gpu *gpu, struct gp_retry *retry)
{
	struct gp_physical *p = physical_new(gpu, bytes, q);
	if (!p)
		return CUDA_ERROR_OUT_OF_MEMORY;
	bool fits = gp_account_take(gpu, p->account, bytes, retry);
	CUresult result = fits ? make(p, retry) : CUDA_ERROR_OUT_OF_MEMORY;
	if (!result) {
		*out = p->number;
		return result;
	}
	if (fits)
		gp_account_untake(p->account, bytes, retry);
	free(p);
	return result;
}

CUresult gp_cuMemCreate(unsigned long long *out, size_t bytes, const struct gp_allocation_properties *q,
			unsigned long long flags)
{
	struct gp_gpu *gpu = swappable(out, bytes, q, flags), *lacking;
	struct gp_retry retry = {.bytes = bytes};
	CUresult result;
	bool freed;
	do {
		retry.at_cap = false;
		gp_memory_enter();
		lacking = gpu;
		result = gpu ? create(out, bytes, q, gpu, &retry) :
			       gp_counted_create(out, bytes, q, flags, &retry, &lacking);
		freed = result == CUDA_ERROR_OUT_OF_MEMORY && gp_freed_look(true);
		gp_memory_leave();
		if (!freed && result == CUDA_ERROR_OUT_OF_MEMORY && q && q->location_type != CU_MEM_LOCATION_TYPE_DEVICE)
			gp_memory_no_room_helps(); // it is the host's
	} while (freed ||
		 (result == CUDA_ERROR_OUT_OF_MEMORY && lacking && gp_memory_wait_for_room(lacking, bytes, &retry)));
	gp_memory_call_over(&retry);
	return result;
}

CUresult gp_cuMemRelease(unsigned long long handle)
{
	CUresult result = CUDA_SUCCESS;
	gp_memory_enter();
	pthread_mutex_lock(&gp_memory_lock);
	struct gp_physical *p = gp_physical_of(handle);
	bool ends = false;
	if (p) {
		p->references--;
		ends = gp_physical_settle(p);
	}
	pthread_mutex_unlock(&gp_memory_lock);
	if (ends)
		gp_physical_end(p);
	else if (!p)
		result = gp_physical_is_number(handle) ? CUDA_ERROR_INVALID_VALUE : gp_counted_release(handle);
	gp_memory_leave();
	return result;
}

CUresult gp_cuMemRetainAllocationHandle(unsigned long long *handle, void *address)
{
	pthread_mutex_lock(&gp_memory_lock);
	struct gp_range *r = gp_range_at((CUdeviceptr)(uintptr_t)address);
	CUdeviceptr sample = r ? gp_sample_of(r) : 0;
	bool retained = r && r->physical && handle;
	if (retained) {
		r->physical->references++;
		*handle = r->physical->number;
	}
	pthread_mutex_unlock(&gp_memory_lock);
	if (retained)
		return CUDA_SUCCESS;
	if (r && (!sample || !handle)) // memory of cuMemAlloc has no handle
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = gp_driver.cuMemRetainAllocationHandle(handle, r ? (void *)(uintptr_t)sample : address);
	if (!result && !r)
		gp_counted_retained((uintptr_t)address, *handle);
	return result;
}

CUresult gp_cuMemGetAllocationPropertiesFromHandle(struct gp_allocation_properties *q, unsigned long long handle)
{
	pthread_mutex_lock(&gp_memory_lock);
	struct gp_physical *p = gp_physical_of(handle);
	if (p && q)
		*q = p->properties;
	pthread_mutex_unlock(&gp_memory_lock);
	if (gp_physical_is_number(handle))
		return p && q ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	return gp_driver.cuMemGetAllocationPropertiesFromHandle(q, handle);
}

// The driver's handle for a number. The memory is pinned, so the handle stays. For memory in several chunks it is the handle of
// the first, for the driver to refuse; for a number that stands for nothing (any more) it is 0. Handles of the driver are
// returned as they are.
static unsigned long long pinned(unsigned long long handle, enum gp_pin pin)
{
	pthread_mutex_lock(&gp_memory_lock);
	struct gp_physical *p = gp_physical_of(handle);
	if (p)
		gp_physical_pin(p, pin);
	if (gp_physical_is_number(handle))
		handle = p ? gp_physical_handle(p, 0) : 0;
	pthread_mutex_unlock(&gp_memory_lock);
	return handle;
}

CUresult gp_cuMemExportToShareableHandle(void *shared, unsigned long long handle, int type, unsigned long long flags)
{
	gp_memory_enter();
	CUresult result = gp_driver.cuMemExportToShareableHandle(shared, pinned(handle, GP_PIN_EXPORTED), type, flags);
	gp_memory_leave();
	return result;
}

CUresult gp_cuLogicalEndpointBindMem(uint32_t endpoint, CUdevice device, uint64_t offset, unsigned long long handle,
				     uint64_t from, uint64_t bytes, unsigned long long flags)
{
	gp_memory_enter();
	CUresult result = gp_driver.cuLogicalEndpointBindMem(endpoint, device, offset, pinned(handle, GP_PIN_MULTICAST),
							     from, bytes, flags);
	gp_memory_leave();
	return result;
}

CUresult gp_cuMulticastBindMem(unsigned long long multicast, size_t offset, unsigned long long handle, size_t from,
			       size_t bytes, unsigned long long flags)
{
	gp_memory_enter();
	CUresult result =
		gp_driver.cuMulticastBindMem(multicast, offset, pinned(handle, GP_PIN_MULTICAST), from, bytes, flags);
	gp_memory_leave();
	return result;
}

CUresult gp_cuMulticastBindMem_v2(unsigned long long multicast, CUdevice device, size_t offset,
				  unsigned long long handle, size_t from, size_t bytes, unsigned long long flags)
{
	gp_memory_enter();
	CUresult result = gp_driver.cuMulticastBindMem_v2(multicast, device, offset, pinned(handle, GP_PIN_MULTICAST),
							  from, bytes, flags);
	gp_memory_leave();
	return result;
}

static CUresult map_arrays(CUresult (*map)(struct gp_array_mapping *, unsigned, CUstream),
			   struct gp_array_mapping *list, unsigned count, CUstream stream)
{
	struct gp_array_mapping *copy = list && count ? malloc(count * sizeof *copy) : NULL;
	if (!copy)
		return map(list, count, stream);
	memcpy(copy, list, count * sizeof *copy);
	gp_memory_enter();
	for (unsigned i = 0; i < count; i++)
		copy[i].handle = pinned(copy[i].handle, GP_PIN_SHARED);
	CUresult result = map(copy, count, stream);
	gp_memory_leave();
	free(copy);
	return result;
}

CUresult gp_cuMemMapArrayAsync(struct gp_array_mapping *list, unsigned count, CUstream stream)
{
	return map_arrays(gp_driver.cuMemMapArrayAsync, list, count, stream);
}

CUresult gp_cuMemMapArrayAsync_ptsz(struct gp_array_mapping *list, unsigned count, CUstream stream)
{
	return map_arrays(gp_driver.cuMemMapArrayAsync_ptsz, list, count, stream);
}
