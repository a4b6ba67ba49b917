// sharing.c - who else may use memory: peers, other processes by legacy IPC, devices on the bus. There is no multicast.
#define _GNU_SOURCE
#include "sim.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- peers: every device is one of every other

static bool is_device(CUdevice d) { return d >= 0 && d < sim_devices(); }

CALL(cuDeviceCanAccessPeer, (int *out, CUdevice d, CUdevice peer), (out, d, peer))
{
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	if (!is_device(d) || !is_device(peer))
		return CUDA_ERROR_INVALID_DEVICE;
	*out = d != peer;
	return CUDA_SUCCESS;
}

CALL(cuDeviceGetP2PAttribute, (int *out, int attribute, CUdevice d, CUdevice peer), (out, attribute, d, peer))
{
	enum { PERFORMANCE_RANK = 1, ACCESS_SUPPORTED, NATIVE_ATOMIC_SUPPORTED, CUDA_ARRAY_ACCESS_SUPPORTED };
	if (!out || attribute < PERFORMANCE_RANK || attribute > CUDA_ARRAY_ACCESS_SUPPORTED)
		return CUDA_ERROR_INVALID_VALUE;
	if (!is_device(d) || !is_device(peer) || d == peer)
		return CUDA_ERROR_INVALID_DEVICE;
	*out = attribute == ACCESS_SUPPORTED || attribute == NATIVE_ATOMIC_SUPPORTED;
	return CUDA_SUCCESS;
}

static CUresult enter_peer(CUcontext peer, struct CUctx_st **c, uint32_t *bit)
{
	CUresult r = enter(c);
	if (r != CUDA_SUCCESS)
		return r;
	if (!handle_is(peer, H_CONTEXT) || peer == *c)
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	*bit = 1u << peer->device;
	return peer->device == (*c)->device ? leave(CUDA_ERROR_INVALID_DEVICE) : CUDA_SUCCESS;
}

// Opens all memory of cuMemAlloc there, of now and of later; not memory of cuMemCreate or of pools.
CALL(cuCtxEnablePeerAccess, (CUcontext peer, unsigned flags), (peer, flags))
{
	struct CUctx_st *c;
	uint32_t bit;
	CUresult r = flags ? CUDA_ERROR_INVALID_VALUE : enter_peer(peer, &c, &bit);
	if (r != CUDA_SUCCESS)
		return r;
	if (c->peers & bit)
		return leave(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
	c->peers |= bit;
	return leave(CUDA_SUCCESS);
}

CALL(cuCtxDisablePeerAccess, (CUcontext peer), (peer))
{
	struct CUctx_st *c;
	uint32_t bit;
	CUresult r = enter_peer(peer, &c, &bit);
	if (r != CUDA_SUCCESS)
		return r;
	if (!(c->peers & bit))
		return leave(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
	c->peers &= ~bit;
	return leave(CUDA_SUCCESS);
}

// ---- legacy IPC: a process opens the file of the other by the descriptor that it has there, as long as the other lives

#define MARK 0x6970632d61647563ull
typedef struct {
	uint64_t mark, address, bytes, id;
	int pid, file, device, rest[5];
} CUipcMemHandle;
_Static_assert(sizeof(CUipcMemHandle) == 64, "CUipcMemHandle");

CALL(cuIpcGetMemHandle, (CUipcMemHandle * out, CUdeviceptr p), (out, p))
{
	CUresult r = out ? enter(NULL) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	struct block *b = memory_block(p);
	if (!b || b->kind != MEMORY_DEVICE || b->pool)
		return leave(CUDA_ERROR_INVALID_VALUE);
	if (!memory_export(b))
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	uint64_t id = (uint64_t)getpid() << 32 | b->id;
	*out = (CUipcMemHandle){MARK, b->address, b->bytes, id, getpid(), b->file, b->device, {0}};
	return leave(CUDA_SUCCESS);
}

static CUresult open_handle(CUdeviceptr *out, const CUipcMemHandle *h)
{
	char path[64];
	struct stat st;
	struct block *before = memory_imported(h->id);
	if (before) {
		before->opened++;
		*out = before->address;
		return CUDA_SUCCESS;
	}
	struct block b = {.address = h->address,
			  .bytes = h->bytes,
			  .kind = MEMORY_IMPORTED,
			  .device = h->device,
			  .owner_id = h->id,
			  .opened = 1};
	snprintf(path, sizeof path, "/proc/%d/fd/%d", h->pid, h->file);
	int file = open(path, O_RDWR | O_CLOEXEC);
	if (file < 0 || fstat(file, &st) != 0 || (uint64_t)st.st_size < h->bytes) {
		close(file);
		return CUDA_ERROR_INVALID_VALUE;
	}
	*out = memory_import(&b, file);
	close(file);
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CALL(cuIpcOpenMemHandle_v2, (CUdeviceptr * out, CUipcMemHandle h, unsigned flags), (out, h, flags))
{
	enum { LAZY_ENABLE_PEER_ACCESS = 1 };
	struct CUctx_st *c;
	bool sound = out && h.mark == MARK && flags == LAZY_ENABLE_PEER_ACCESS && is_device(h.device);
	CUresult r = sound ? enter_unsafe(&c) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	if (h.pid == getpid())
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	return leave(open_handle(out, &h));
}

CALL(cuIpcCloseMemHandle, (CUdeviceptr p), (p))
{
	struct CUctx_st *c;
	CUresult r = enter_unsafe(&c);
	if (r != CUDA_SUCCESS)
		return r;
	if (!memory_known(p, MEMORY_IMPORTED))
		return leave(CUDA_ERROR_INVALID_VALUE);
	call_wait(c, CALL_FREE);
	struct block *b = memory_block(p);
	if (b && --b->opened == 0)
		memory_remove(p, MEMORY_IMPORTED);
	return leave(c->error);
}

// ---- devices on the bus: a descriptor that stands for memory, through which nothing can be read

CALL(cuMemGetHandleForAddressRange, (void *out, CUdeviceptr p, size_t bytes, int type, unsigned long long flags),
     (out, p, bytes, type, flags))
{
	enum { DMA_BUF_FD = 1, HOST_PAGE = 4096 };
	bool sound = out && bytes && type == DMA_BUF_FD && !flags && p % HOST_PAGE == 0 && bytes % HOST_PAGE == 0;
	CUresult r = sound ? enter(NULL) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	struct block *b = memory_block(p);
	if (b ? b->kind != MEMORY_DEVICE || p + bytes > b->address + b->bytes : !virtual_whole(p, bytes))
		return leave(CUDA_ERROR_INVALID_VALUE);
	int file = memfd_create("simcuda-dmabuf", MFD_CLOEXEC);
	if (file < 0 || ftruncate(file, (off_t)bytes) != 0) {
		close(file);
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	}
	*(int *)out = file;
	return leave(CUDA_SUCCESS);
}

// ---- multicast, which the machine lacks: MULTICAST_SUPPORTED is 0

CALL(cuMulticastCreate, (unsigned long long *out, const void *properties), (out, properties))
{
	return out && properties ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
}

CALL(cuMulticastAddDevice, (unsigned long long handle, CUdevice d), (handle, d))
{
	(void)handle, (void)d;
	return CUDA_ERROR_NOT_SUPPORTED;
}

CALL(cuMulticastBindMem,
     (unsigned long long handle, size_t at, unsigned long long memory, size_t offset, size_t bytes, unsigned long long flags),
     (handle, at, memory, offset, bytes, flags))
{
	(void)handle, (void)at, (void)memory, (void)offset, (void)bytes, (void)flags;
	return CUDA_ERROR_NOT_SUPPORTED;
}

CALL(cuMulticastBindAddr,
     (unsigned long long handle, size_t at, CUdeviceptr memory, size_t bytes, unsigned long long flags),
     (handle, at, memory, bytes, flags))
{
	(void)handle, (void)at, (void)memory, (void)bytes, (void)flags;
	return CUDA_ERROR_NOT_SUPPORTED;
}

CALL(cuMulticastUnbind, (unsigned long long handle, CUdevice d, size_t at, size_t bytes), (handle, d, at, bytes))
{
	(void)handle, (void)d, (void)at, (void)bytes;
	return CUDA_ERROR_NOT_SUPPORTED;
}

CALL(cuMulticastGetGranularity, (size_t *out, const void *properties, int option), (out, properties, option))
{
	(void)option;
	return out && properties ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
}
