// sample.c - a little memory of each kind that never moves.
//
// The driver's answers about memory depend on its version and on the GPU, and there is none for memory that is out. So the driver is asked
// about a sample of the same kind. ask.c replaces what differs between two allocations by facts about the range. Memory of cuMemAlloc
// belongs to a context, and so does its sample; what is mapped belongs to a GPU.
#define _GNU_SOURCE
#include "preempt/memory/own.h"

static struct {
	CUcontext context;
	CUdeviceptr address;
} native[GP_CONTEXTS];

static struct {
	bool tried, usable;
	struct gp_allocation_properties properties; // of ranges on that GPU
	CUdeviceptr mapped;
} on_gpu[GP_GPUS];

static bool has(const struct gp_gpu *gpu, int attribute)
{
	int value = 0;
	return !gp_driver.cuDeviceGetAttribute(&value, attribute, gpu->device) && value;
}

// The memory can leave the process as a descriptor, for tickets, and other devices can read it, as they can memory of
// cuMemAlloc.
static struct gp_allocation_properties wanted(const struct gp_gpu *gpu)
{
	return (struct gp_allocation_properties){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.handle_types = has(gpu, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) ?
					CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR :
					0,
		.location_type = CU_MEM_LOCATION_TYPE_DEVICE,
		.location = gpu->device,
		.flags.rdma = has(gpu, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED),
	};
}

// The driver may refuse what its attributes promise. Then less is asked of it.
static CUresult create(unsigned long long *handle, struct gp_allocation_properties *p)
{
	for (;;) {
		CUresult result = gp_driver.cuMemCreate(handle, GP_GRANULE, p, 0);
		if (!result || result == CUDA_ERROR_OUT_OF_MEMORY || (!p->flags.rdma && !p->handle_types))
			return result;
		if (p->flags.rdma)
			p->flags.rdma = 0;
		else
			p->handle_types = 0;
	}
}

static CUresult map(const struct gp_allocation_properties *p, unsigned long long handle, CUdeviceptr *at)
{
	struct gp_access access = {p->location_type, p->location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUresult result = gp_driver.cuMemAddressReserve(at, GP_GRANULE, 0, 0, 0);
	if (result)
		return result;
	result = gp_driver.cuMemMap(*at, GP_GRANULE, 0, handle, 0);
	if (!result) {
		result = gp_driver.cuMemSetAccess(*at, GP_GRANULE, &access, 1);
		if (!result)
			return CUDA_SUCCESS;
		GP_GIVE_BACK(gp_driver.cuMemUnmap(*at, GP_GRANULE));
	}
	GP_GIVE_BACK(gp_driver.cuMemAddressFree(*at, GP_GRANULE));
	*at = 0;
	return result;
}

// A full GPU may have all that is needed, but has no room for a sample.
static void try_gpu(const struct gp_gpu *gpu)
{
	int i = (int)(gpu - gp_gpu);
	unsigned long long handle;
	if (on_gpu[i].tried)
		return;
	struct gp_allocation_properties p = wanted(gpu);
	CUdeviceptr at = 0;
	CUresult result = CUDA_ERROR_NOT_SUPPORTED;
	if (has(gpu, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) && !(result = create(&handle, &p))) {
		result = map(&p, handle, &at);
		GP_GIVE_BACK(gp_driver.cuMemRelease(handle)); // the mapping keeps it
	}
	pthread_mutex_lock(&gp_memory_lock);
	on_gpu[i].tried = true;
	on_gpu[i].usable = !result || result == CUDA_ERROR_OUT_OF_MEMORY;
	on_gpu[i].properties = p;
	on_gpu[i].mapped = at;
	pthread_mutex_unlock(&gp_memory_lock);
	if (!on_gpu[i].usable)
		gp_log_line(
			"memory of this process is not swapped: the driver or the GPU lacks virtual memory management");
}

static void remember(const struct gp_context *c, CUdeviceptr address)
{
	size_t i = (size_t)(c - gp_context);
	pthread_mutex_lock(&gp_memory_lock);
	native[i].context = c->handle;
	native[i].address = address;
	pthread_mutex_unlock(&gp_memory_lock);
}

CUresult gp_sample_make(struct gp_context *c)
{
	CUcontext popped;
	CUdeviceptr address = 0;
	CUresult result = gp_driver.cuCtxPushCurrent(c->handle);
	if (result)
		return result;
	int mode = gp_relax_captures();
	result = gp_driver.cuMemAlloc(&address, GP_SAMPLE_BYTES);
	if (!result)
		remember(c, address);
	if (result != CUDA_ERROR_CONTEXT_IS_DESTROYED)
		try_gpu(c->gpu);
	gp_unrelax_captures(mode);
	gp_driver.cuCtxPopCurrent(&popped);
	return result;
}

bool gp_sample_properties(const struct gp_gpu *gpu, struct gp_allocation_properties *p)
{
	*p = on_gpu[gpu - gp_gpu].properties;
	return on_gpu[gpu - gp_gpu].usable;
}

bool gp_memory_unmanaged(const struct gp_gpu *gpu)
{
	pthread_mutex_lock(&gp_memory_lock);
	bool lacks = on_gpu[gpu - gp_gpu].tried && !on_gpu[gpu - gp_gpu].usable;
	pthread_mutex_unlock(&gp_memory_lock);
	return lacks;
}

CUdeviceptr gp_sample_of(const struct gp_range *r)
{
	if (r->kind == GP_RANGE_MAPPED)
		return on_gpu[r->gpu - gp_gpu].mapped;
	for (int i = 0; i < GP_CONTEXTS; i++)
		if (native[i].context == r->context)
			return native[i].address;
	return 0;
}

void gp_sample_context_destroyed(const struct gp_context *c)
{
	pthread_mutex_lock(&gp_memory_lock);
	native[c - gp_context].context = NULL;
	pthread_mutex_unlock(&gp_memory_lock);
}
