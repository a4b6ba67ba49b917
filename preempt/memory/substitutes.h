// substitutes.h - the one list of functions in the place of the driver's where memory is swapped: gp_NAME stands for NAME.
//
// The interceptors call them (exports/exports.h, gp_substitute), and they call the driver. So what the interceptors do for a
// call, such as ending a hold before it waits, is done for these too.
// The includer defines SUBSTITUTE(name, parameters), which is undefined at the end. COUNTED rows, which are SUBSTITUTE where the includer says
// nothing else, serve processes too whose memory stays the driver's, and is counted.

#ifndef COUNTED
#define COUNTED(name, parameters) SUBSTITUTE(name, parameters)
#endif

// allocate.c
COUNTED(cuMemAlloc_v2, (CUdeviceptr *, size_t bytes))
COUNTED(cuMemAllocPitch_v2, (CUdeviceptr *, size_t *pitch, size_t width, size_t rows, unsigned element))
COUNTED(cuMemFree_v2, (CUdeviceptr))

// counted.c
COUNTED(cuMemAllocManaged, (CUdeviceptr *, size_t bytes, unsigned flags))
COUNTED(cuArrayCreate_v2, (void **array, const void *description))
COUNTED(cuArray3DCreate_v2, (void **array, const void *description))
COUNTED(cuMipmappedArrayCreate, (void **array, const void *description, unsigned levels))
COUNTED(cuArrayDestroy, (void *array))
COUNTED(cuMipmappedArrayDestroy, (void *array))
COUNTED(cuMemAllocAsync, (CUdeviceptr *, size_t bytes, CUstream))
COUNTED(cuMemAllocAsync_ptsz, (CUdeviceptr *, size_t bytes, CUstream))
COUNTED(cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t bytes, void *pool, CUstream))
COUNTED(cuMemAllocFromPoolAsync_ptsz, (CUdeviceptr *, size_t bytes, void *pool, CUstream))

// free_async.c
COUNTED(cuMemFreeAsync, (CUdeviceptr, CUstream))
COUNTED(cuMemFreeAsync_ptsz, (CUdeviceptr, CUstream))

// handles.c
COUNTED(cuMemCreate,
	(unsigned long long *handle, size_t bytes, const struct gp_allocation_properties *, unsigned long long flags))
COUNTED(cuMemRelease, (unsigned long long handle))
COUNTED(cuMemRetainAllocationHandle, (unsigned long long *handle, void *address))
SUBSTITUTE(cuMemGetAllocationPropertiesFromHandle, (struct gp_allocation_properties *, unsigned long long handle))
SUBSTITUTE(cuMemExportToShareableHandle, (void *shared, unsigned long long handle, int type, unsigned long long flags))
SUBSTITUTE(cuMulticastBindMem, (unsigned long long multicast, size_t offset, unsigned long long handle, size_t from,
				size_t bytes, unsigned long long flags))
SUBSTITUTE(cuMulticastBindMem_v2, (unsigned long long multicast, CUdevice, size_t offset, unsigned long long handle,
				   size_t from, size_t bytes, unsigned long long flags))
SUBSTITUTE(cuLogicalEndpointBindMem, (uint32_t endpoint, CUdevice, uint64_t offset, unsigned long long handle,
				      uint64_t from, uint64_t bytes, unsigned long long flags))
SUBSTITUTE(cuMemMapArrayAsync, (struct gp_array_mapping *, unsigned count, CUstream))
SUBSTITUTE(cuMemMapArrayAsync_ptsz, (struct gp_array_mapping *, unsigned count, CUstream))

// map.c
COUNTED(cuMemMap, (CUdeviceptr, size_t bytes, size_t offset, unsigned long long handle, unsigned long long flags))
COUNTED(cuMemUnmap, (CUdeviceptr, size_t bytes))
SUBSTITUTE(cuMemSetAccess, (CUdeviceptr, size_t bytes, const struct gp_access *, size_t count))
SUBSTITUTE(cuMemAddressFree, (CUdeviceptr, size_t bytes))
SUBSTITUTE(cuMulticastBindAddr,
	   (unsigned long long multicast, size_t offset, CUdeviceptr, size_t bytes, unsigned long long flags))
SUBSTITUTE(cuMulticastBindAddr_v2,
	   (unsigned long long multicast, CUdevice, size_t offset, CUdeviceptr, size_t bytes, unsigned long long flags))
SUBSTITUTE(cuLogicalEndpointBindAddr,
	   (uint32_t endpoint, CUdevice, uint64_t offset, void *, uint64_t bytes, unsigned long long flags))

// ask.c
SUBSTITUTE(cuPointerGetAttribute, (void *value, int attribute, CUdeviceptr))
SUBSTITUTE(cuPointerGetAttributes, (unsigned count, int *attribute, void **value, CUdeviceptr))
SUBSTITUTE(cuPointerSetAttribute, (const void *value, int attribute, CUdeviceptr))
SUBSTITUTE(cuMemGetAddressRange_v2, (CUdeviceptr * start, size_t *bytes, CUdeviceptr))
SUBSTITUTE(cuMemGetAccess, (unsigned long long *flags, const struct gp_location *, CUdeviceptr))
SUBSTITUTE(cuMemGetHandleForAddressRange, (void *handle, CUdeviceptr, size_t bytes, int type, unsigned long long flags))

// pools.c
COUNTED(cuMemPoolCreate, (void **pool, const struct gp_pool_properties *))
COUNTED(cuMemPoolDestroy, (void *pool))

// info.c
COUNTED(cuMemGetInfo_v2, (size_t *free, size_t *total))
COUNTED(cuDeviceTotalMem_v2, (size_t *bytes, CUdevice))

// ticket.c
SUBSTITUTE(cuIpcGetMemHandle, (struct gp_ipc_handle *, CUdeviceptr))
SUBSTITUTE(cuIpcOpenMemHandle, (CUdeviceptr *, struct gp_ipc_handle, unsigned flags))
SUBSTITUTE(cuIpcOpenMemHandle_v2, (CUdeviceptr *, struct gp_ipc_handle, unsigned flags))
SUBSTITUTE(cuIpcCloseMemHandle, (CUdeviceptr))

// peers.c
SUBSTITUTE(cuCtxEnablePeerAccess, (CUcontext peer, unsigned flags))
SUBSTITUTE(cuCtxDisablePeerAccess, (CUcontext peer))

#undef COUNTED
#undef SUBSTITUTE
