// ask.c - what the program may ask of an address.
//
// The driver is asked about a sample (sample.c), and what differs is put in from the range. So memory of cuMemAlloc looks as
// without us, in whatever version of the driver, and nothing here depends on whether the memory is in: no question waits at
// the gate.
#define _GNU_SOURCE
#include "preempt/memory/own.h"

#include <string.h>

// The facts about an address, read under gp_memory_lock.
struct facts {
	CUdeviceptr sample; // 0: there is none
	bool native;        // memory of cuMemAlloc
	CUdeviceptr at, start;
	size_t asked, bytes;
	uint64_t id;
	struct gp_gpu *gpu;
	CUcontext context;
	struct gp_allocation_properties properties;
	bool sync_memops;
	uint32_t accesses;
	struct gp_access access[GP_GPUS];
};

enum known { NOT_OURS, OURS, BEHIND }; // BEHIND: in the last page of an allocation, but behind its end

static enum known look(CUdeviceptr at, struct facts *f)
{
	enum known known = NOT_OURS;
	pthread_mutex_lock(&gp_memory_lock);
	const struct gp_range *r = gp_range_at(at);
	if (r) {
		known = at - r->address < r->asked ? OURS : BEHIND;
		*f = (struct facts){.sample = gp_sample_of(r),
				    .native = r->kind == GP_RANGE_ALLOCATED,
				    .at = at,
				    .start = r->address,
				    .asked = r->asked,
				    .bytes = r->bytes,
				    .id = r->id,
				    .gpu = r->gpu,
				    .context = r->context,
				    .properties = r->properties,
				    .sync_memops = r->sync_memops,
				    .accesses = r->accesses};
		memcpy(f->access, r->access, sizeof f->access);
	}
	pthread_mutex_unlock(&gp_memory_lock);
	return known;
}

static int access_of(const struct facts *f, int type, int id)
{
	for (uint32_t i = 0; i < f->accesses; i++)
		if (f->access[i].location_type == type &&
		    (f->access[i].location == id || type != CU_MEM_LOCATION_TYPE_DEVICE))
			return f->access[i].flags;
	return 0;
}

static void set(void *value, uint64_t what) { memcpy(value, &what, sizeof what); }

// Sets a truth value where is says so. The driver has written false, in a size that only it knows.
static void set_true(void *value, bool is) { *(unsigned char *)value |= is; }

static void correct(const struct facts *f, int attribute, void *value)
{
	CUdevice device = -1;
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: set(value, f->at); return;
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: set_true(value, f->sync_memops); return;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: set(value, f->id); return;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: set(value, f->start); return;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE: set(value, f->asked); return;
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: // some drivers say what was asked for
		set(value, *(size_t *)value == GP_SAMPLE_BYTES ? f->asked : f->bytes);
		return;
	}
	if (f->native)
		return;
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		memcpy(value, &f->properties.handle_types, sizeof f->properties.handle_types);
		return;
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
		*(unsigned char *)value &= f->properties.flags.rdma;
		return;
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		gp_driver.cuCtxGetDevice(&device);
		*(int *)value = access_of(f, CU_MEM_LOCATION_TYPE_DEVICE, device);
		return;
	}
}

// Whether the memory itself is asked about, which must be in for that: where there is no sample, and for tokens by which
// devices on the bus find the pages.
static bool asks_itself(const struct facts *f, int attribute)
{
	return !f->sample || attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS;
}

static void pin(CUdeviceptr at, enum gp_pin why)
{
	pthread_mutex_lock(&gp_memory_lock);
	struct gp_range *r = gp_range_at(at);
	if (r)
		gp_range_pin(r, why);
	pthread_mutex_unlock(&gp_memory_lock);
}

CUresult gp_cuPointerGetAttribute(void *value, int attribute, CUdeviceptr at)
{
	struct facts f;
	CUresult result;
	enum known known = look(at, &f);
	if (known == NOT_OURS)
		return gp_driver.cuPointerGetAttribute(value, attribute, at);
	if (known == BEHIND)
		return CUDA_ERROR_INVALID_VALUE;
	if (asks_itself(&f, attribute)) {
		gp_memory_enter();
		if (attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS)
			pin(at, GP_PIN_REGISTERED);
		result = gp_driver.cuPointerGetAttribute(value, attribute, at);
		gp_memory_leave();
	} else {
		result = gp_driver.cuPointerGetAttribute(value, attribute, f.sample);
	}
	if (!result)
		correct(&f, attribute, value);
	return result;
}

static CUresult (*get_attributes)(unsigned, int *, void **, CUdeviceptr); // the driver's

static CUresult get_one(const struct facts *f, int *attribute, void **value, CUdeviceptr at)
{
	CUresult result;
	if (asks_itself(f, *attribute)) {
		gp_memory_enter();
		if (*attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS)
			pin(at, GP_PIN_REGISTERED);
		result = get_attributes(1, attribute, value, at);
		gp_memory_leave();
	} else {
		result = get_attributes(1, attribute, value, f->sample);
	}
	if (!result && *value)
		correct(f, *attribute, *value);
	return result;
}

// The driver reads no attribute behind one that it refuses, and answers before that stay.
CUresult gp_cuPointerGetAttributes(unsigned count, int *attribute, void **value, CUdeviceptr at)
{
	struct facts f;
	CUresult result = CUDA_SUCCESS;
	enum known known = look(at, &f);
	if (known == BEHIND) // behind the end of an allocation nothing is known, as at address 0
		at = 0;
	if (known != OURS || !count || !attribute || !value)
		return get_attributes(count, attribute, value, at);
	for (unsigned i = 0; i < count && !result; i++)
		result = get_one(&f, &attribute[i], &value[i], at);
	return result;
}

// The library's own questions get the same answers.
void gp_ask_start(void)
{
	get_attributes = gp_driver.cuPointerGetAttributes;
	if (get_attributes)
		gp_driver.cuPointerGetAttributes = gp_cuPointerGetAttributes;
}

// The driver has this property for its own allocations only. Its context has one that does the same for all memory.
static CUresult synchronize_copies(const struct facts *f)
{
	CUcontext popped;
	unsigned flags = 0;
	CUresult result = gp_driver.cuCtxPushCurrent(f->context);
	if (result)
		return result;
	if (gp_driver.cuCtxGetFlags && gp_driver.cuCtxSetFlags && !gp_driver.cuCtxGetFlags(&flags) &&
	    !(flags & CU_CTX_SYNC_MEMOPS))
		result = gp_driver.cuCtxSetFlags(flags | CU_CTX_SYNC_MEMOPS);
	gp_driver.cuCtxPopCurrent(&popped);
	return result;
}

static CUresult set_attribute(const struct facts *f, const void *value, int attribute)
{
	CUresult result = gp_driver.cuPointerSetAttribute(value, attribute, f->sample);
	bool on = !result && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && *(const unsigned char *)value;
	if (on)
		result = synchronize_copies(f);
	if (result || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
		return result;
	if (on) { // it is the first step of showing memory to a device
		unsigned char off[sizeof(unsigned)] = {0};
		gp_driver.cuPointerSetAttribute(off, attribute, f->sample);
		pin(f->at, GP_PIN_REGISTERED);
	}
	pthread_mutex_lock(&gp_memory_lock);
	struct gp_range *r = gp_range_at(f->at);
	if (r)
		r->sync_memops = on;
	pthread_mutex_unlock(&gp_memory_lock);
	return CUDA_SUCCESS;
}

CUresult gp_cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr at)
{
	struct facts f;
	enum known known = look(at, &f);
	if (known == NOT_OURS)
		return gp_driver.cuPointerSetAttribute(value, attribute, at);
	if (known == BEHIND)
		return CUDA_ERROR_INVALID_VALUE;
	gp_memory_enter(); // a pin comes while the memory is in
	CUresult result = !f.sample ? gp_driver.cuPointerSetAttribute(value, attribute, at) :
			  f.native  ? set_attribute(&f, value, attribute) :
				      gp_driver.cuPointerSetAttribute(value, attribute, f.sample);
	gp_memory_leave();
	return result;
}

CUresult gp_cuMemGetAddressRange_v2(CUdeviceptr *start, size_t *bytes, CUdeviceptr at)
{
	struct facts f;
	enum known known = look(at, &f);
	CUresult result = gp_driver.cuMemGetAddressRange(start, bytes,
							 known == NOT_OURS ? at :
							 known == OURS     ? f.sample :
									     0);
	if (known != OURS || (result && f.sample))
		return result;
	if (start)
		*start = f.start;
	if (bytes)
		*bytes = f.asked;
	return CUDA_SUCCESS;
}

CUresult gp_cuMemGetAccess(unsigned long long *flags, const struct gp_location *location, CUdeviceptr at)
{
	struct facts f;
	if (look(at, &f) == NOT_OURS)
		return gp_driver.cuMemGetAccess(flags, location, at);
	CUresult result = f.sample ? gp_driver.cuMemGetAccess(flags, location, f.sample) : CUDA_ERROR_INVALID_VALUE;
	if (!result)
		*flags = (unsigned long long)access_of(&f, location->type, location->id);
	return result;
}

CUresult gp_cuMemGetHandleForAddressRange(void *handle, CUdeviceptr at, size_t bytes, int type, unsigned long long flags)
{
	gp_memory_enter();
	pthread_mutex_lock(&gp_memory_lock);
	for (struct gp_range *r = gp_range_from(at); r && r->address < at + bytes; r = gp_range_from(r->address + r->bytes))
		gp_range_pin(r, GP_PIN_REGISTERED);
	pthread_mutex_unlock(&gp_memory_lock);
	CUresult result = gp_driver.cuMemGetHandleForAddressRange(handle, at, bytes, type, flags);
	gp_memory_leave();
	return result;
}
