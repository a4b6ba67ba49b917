// allocations.c - what programs allocate, register and free: of a device, of the host, and of pools.
#include "sim.h"

#include <string.h>

static CUresult allocate(uint64_t *out, size_t bytes, enum memory_kind kind)
{
	struct CUctx_st *c;
	CUresult r = out && bytes ? enter_unsafe(&c) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	uint64_t p = memory_allocate(bytes, kind, NULL);
	if (p)
		*out = p;
	return leave(p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

static CUresult deallocate(uint64_t p, enum memory_kind kind, CUresult unknown)
{
	struct CUctx_st *c;
	CUresult r = enter_unsafe(&c);
	if (r != CUDA_SUCCESS)
		return r;
	if (!p && kind == MEMORY_DEVICE)
		return leave(CUDA_SUCCESS);
	if (!memory_known(p, kind))
		return leave(unknown);
	struct CUctx_st *owner = memory_block(p)->owner;
	call_wait(owner && handle_is(owner, H_CONTEXT) ? owner : c, kind == MEMORY_DEVICE ? CALL_FREE :
								    kind == MEMORY_HOST   ? CALL_FREE_HOST :
											    CALL_UNREGISTER);
	memory_remove(p, kind);
	return leave(c->error);
}

CALL(cuMemAlloc_v2, (CUdeviceptr * out, size_t bytes), (out, bytes))
{
	uint64_t p;
	CUresult r = allocate(out ? &p : NULL, bytes, MEMORY_DEVICE);
	if (r == CUDA_SUCCESS)
		*out = p;
	return r;
}

CALL(cuMemAllocPitch_v2, (CUdeviceptr * out, size_t *pitch, size_t width, size_t rows, unsigned element),
     (out, pitch, width, rows, element))
{
	enum { PITCH = 512 };
	if (!pitch || !width || width > sim_memory_bytes() || !rows || rows > sim_memory_bytes() / width ||
	    (element != 4 && element != 8 && element != 16))
		return CUDA_ERROR_INVALID_VALUE;
	size_t row = (width + PITCH - 1) / PITCH * PITCH;
	uint64_t p;
	CUresult r = allocate(out ? &p : NULL, row * rows, MEMORY_DEVICE);
	if (r == CUDA_SUCCESS) {
		*out = p;
		*pitch = row;
	}
	return r;
}

// On a GPU it moves by itself; here no device is charged for it.
CALL(cuMemAllocManaged, (CUdeviceptr * out, size_t bytes, unsigned flags), (out, bytes, flags))
{
	uint64_t p;
	CUresult r = allocate(out && (flags == 1 || flags == 2) ? &p : NULL, bytes, MEMORY_MANAGED); // CU_MEM_ATTACH_GLOBAL, HOST
	if (r == CUDA_SUCCESS)
		*out = p;
	return r;
}

CALL(cuMemFree_v2, (CUdeviceptr p), (p)) { return deallocate(p, MEMORY_DEVICE, CUDA_ERROR_INVALID_VALUE); }

CALL(cuMemHostAlloc, (void **out, size_t bytes, unsigned flags), (out, bytes, flags))
{
	(void)flags;
	uint64_t p;
	CUresult r = allocate(out ? &p : NULL, bytes, MEMORY_HOST);
	if (r != CUDA_SUCCESS)
		return r;
	*out = memset((void *)p, 0xa5, bytes); // a program must not count on zeros
	sim_pin(bytes);
	return CUDA_SUCCESS;
}

CALL(cuMemAllocHost_v2, (void **out, size_t bytes), (out, bytes)) { return cuMemHostAlloc(out, bytes, 0); }

CALL(cuMemFreeHost, (void *p), (p)) { return deallocate((uint64_t)p, MEMORY_HOST, CUDA_ERROR_INVALID_VALUE); }

CALL(cuMemGetInfo_v2, (size_t *free_bytes, size_t *total), (free_bytes, total))
{
	struct CUctx_st *c;
	CUresult r = free_bytes && total ? enter(&c) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	memory_info(c->device, free_bytes, total);
	return leave(CUDA_SUCCESS);
}

CALL(cuMemHostRegister_v2, (void *p, size_t bytes, unsigned flags), (p, bytes, flags))
{
	(void)flags;
	struct CUctx_st *c;
	CUresult r = p && bytes ? enter_unsafe(&c) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	if (memory_pinned((uint64_t)p))
		return leave(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	r = leave(memory_add((uint64_t)p, bytes, MEMORY_REGISTERED) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
	if (r == CUDA_SUCCESS)
		sim_pin(bytes);
	return r;
}

CALL(cuMemHostUnregister, (void *p), (p))
{
	return deallocate((uint64_t)p, MEMORY_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

CALL(cuMemHostGetDevicePointer_v2, (CUdeviceptr * out, void *p, unsigned flags), (out, p, flags))
{
	(void)flags;
	struct CUctx_st *c;
	CUresult r = out ? enter(&c) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	if (!memory_pinned((uint64_t)p))
		return leave(CUDA_ERROR_INVALID_VALUE);
	*out = (CUdeviceptr)p;
	return leave(CUDA_SUCCESS);
}

// ---- in the order of a stream

static CUresult allocate_from(CUdeviceptr *out, size_t bytes, struct pool *p, struct CUstream_st *s)
{
	if (s->capture) {
		struct graph_memory m;
		CUresult r = graph_memory_of(&m, s->ctx->device, bytes);
		*out = r == CUDA_SUCCESS ? m.at : 0;
		return r == CUDA_SUCCESS ? capture_memory(s, m) : r;
	}
	if (!p || !pool_take(p, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUdeviceptr address = memory_allocate(bytes, MEMORY_DEVICE, p);
	if (!address) {
		pool_take_back(p, bytes);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = address;
	return CUDA_SUCCESS;
}

DUAL(cuMemAllocAsync, _ptsz, (CUdeviceptr * out, size_t bytes, CUstream s), (out, bytes, s))
{
	struct CUstream_st *st;
	CUresult r = out && bytes ? enter_stream(s, &st) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	return leave(allocate_from(out, bytes, pool_current(st->ctx->device), st));
}

DUAL(cuMemAllocFromPoolAsync, _ptsz, (CUdeviceptr * out, size_t bytes, struct pool *p, CUstream s), (out, bytes, p, s))
{
	struct CUstream_st *st;
	CUresult r = out && bytes ? enter_stream(s, &st) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	return leave(handle_is(p, H_POOL) ? allocate_from(out, bytes, p, st) : CUDA_ERROR_INVALID_VALUE);
}

DUAL(cuMemFreeAsync, _ptsz, (CUdeviceptr p, CUstream s), (p, s))
{
	struct CUstream_st *st;
	CUresult r = enter_submission(s, &st);
	if (r != CUDA_SUCCESS)
		return r;
	if (!memory_known(p, MEMORY_DEVICE))
		return leave(CUDA_ERROR_INVALID_VALUE);
	if (st->capture)
		return leave(capture_memory(st, (struct graph_memory){.is = GRAPH_FREES, .at = p}));
	struct work w = {.kind = OP_FREE, .dst = p};
	return leave(put(st, &w, NULL));
}
