// pointers.c - the driver's answers about an address. Memory of cuMemAlloc belongs to a context; memory that cuMemMap put there belongs to
// none, and an address that is only reserved is no memory.
#include "sim.h"

enum { // CUpointer_attribute
	CONTEXT = 1,
	MEMORY_TYPE,
	DEVICE_POINTER,
	HOST_POINTER,
	SYNC_MEMOPS = 6,
	BUFFER_ID,
	IS_MANAGED,
	DEVICE_ORDINAL,
	IS_LEGACY_CUDA_IPC_CAPABLE,
	RANGE_START_ADDR,
	RANGE_SIZE,
	MAPPED,
	ALLOWED_HANDLE_TYPES,
	IS_GPU_DIRECT_RDMA_CAPABLE,
	ACCESS_FLAGS,
	MEMPOOL_HANDLE,
	MAPPING_SIZE,
	MAPPING_BASE_ADDR,
};

struct facts {
	bool known, device, managed, native; // native: of cuMemAlloc or registered, not of cuMemMap
	struct block *block;
	struct mapping *mapping;
	uint64_t start, bytes, id;
	int ordinal;
};

static struct facts facts_of(CUdeviceptr p)
{
	struct block *b = memory_block(p);
	if (b)
		return (struct facts){true,
				      b->kind != MEMORY_HOST && b->kind != MEMORY_REGISTERED,
				      b->kind == MEMORY_MANAGED,
				      b->kind == MEMORY_DEVICE && !b->pool,
				      b,
				      NULL,
				      b->address,
				      b->bytes,
				      b->id,
				      b->device};
	struct mapping *m = virtual_mapping(p);
	if (m)
		return (struct facts){true,  virtual_device(m) >= 0, false, false, NULL, m, m->address, m->bytes,
				      m->id, virtual_device(m)};
	return (struct facts){.ordinal = -2};
}

static CUresult answer(const struct facts *f, CUdeviceptr p, struct CUctx_st *current, int attribute, void *out)
{
	struct CUctx_st *owner = f->block ? f->block->owner : NULL;
	switch (attribute) {
	case CONTEXT:
		*(CUcontext *)out = !f->block ? NULL : owner && handle_is(owner, H_CONTEXT) ? owner : current;
		break;
	case MEMORY_TYPE:
		*(unsigned *)out = f->device ? 2 : f->known;
		break; // CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST
	case DEVICE_POINTER: *(CUdeviceptr *)out = f->known ? p : 0; break;
	case HOST_POINTER: *(void **)out = f->known && (!f->device || f->managed) ? (void *)p : NULL; break;
	case SYNC_MEMOPS: *(bool *)out = f->block && f->block->sync_memops; break;
	case BUFFER_ID: *(unsigned long long *)out = f->id; break;
	case IS_MANAGED: *(bool *)out = f->managed; break;
	case DEVICE_ORDINAL: *(int *)out = f->ordinal; break;
	case IS_LEGACY_CUDA_IPC_CAPABLE: *(bool *)out = f->native; break;
	case RANGE_START_ADDR:
	case MAPPING_BASE_ADDR: *(CUdeviceptr *)out = f->start; break;
	case RANGE_SIZE:
	case MAPPING_SIZE: *(size_t *)out = f->bytes; break;
	case MAPPED: *(bool *)out = f->known; break;
	case ALLOWED_HANDLE_TYPES:
		*(unsigned long long *)out = f->mapping ? virtual_handle_types(f->mapping) : 0;
		break;
	case IS_GPU_DIRECT_RDMA_CAPABLE: *(bool *)out = f->mapping ? virtual_rdma(f->mapping) : f->native; break;
	case ACCESS_FLAGS: // CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE
		*(int *)out = f->mapping ? f->mapping->access[current->device] : f->known ? 3 : 0;
		break;
	case MEMPOOL_HANDLE: *(struct pool **)out = f->block ? f->block->pool : NULL; break;
	default: return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

CALL(cuPointerGetAttribute, (void *out, int attribute, CUdeviceptr p), (out, attribute, p))
{
	struct CUctx_st *c;
	CUresult r = out ? enter(&c) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	struct facts f = facts_of(p);
	return leave(f.known ? answer(&f, p, c, attribute, out) : CUDA_ERROR_INVALID_VALUE);
}

CALL(cuPointerGetAttributes, (unsigned n, int *attribute, void **value, CUdeviceptr p), (n, attribute, value, p))
{
	struct CUctx_st *c;
	CUresult r = attribute && value ? enter(&c) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	struct facts f = facts_of(p);
	for (unsigned i = 0; i < n && r == CUDA_SUCCESS; i++)
		r = answer(&f, p, c, attribute[i], value[i]);
	return leave(r);
}

CALL(cuPointerSetAttribute, (const void *value, int attribute, CUdeviceptr p), (value, attribute, p))
{
	CUresult r = value && attribute == SYNC_MEMOPS ? enter(NULL) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	struct facts f = facts_of(p);
	if (!f.native)
		return leave(f.mapping ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE);
	f.block->sync_memops = *(const int *)value != 0;
	return leave(CUDA_SUCCESS);
}

CALL(cuMemGetAddressRange_v2, (CUdeviceptr * start, size_t *bytes, CUdeviceptr p), (start, bytes, p))
{
	struct CUctx_st *c;
	CUresult r = enter(&c);
	if (r != CUDA_SUCCESS)
		return r;
	struct facts f = facts_of(p);
	if (!f.known)
		return leave(CUDA_ERROR_NOT_FOUND);
	if (start)
		*start = f.start;
	if (bytes)
		*bytes = f.bytes;
	return leave(CUDA_SUCCESS);
}
