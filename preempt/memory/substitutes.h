// substitutes.h - the one list of functions in the place of the driver's where memory is swapped: gp_NAME stands for NAME.
//
// The interceptors call them (exports/exports.h, gp_substitute), and they call the driver. So what the interceptors do for a
// call, such as ending a hold before it waits, is done for these too.
// The includer defines SUBSTITUTE(name, parameters), which is undefined at the end.

// allocate.c
SUBSTITUTE(cuMemAlloc_v2, (CUdeviceptr *, size_t bytes))
SUBSTITUTE(cuMemAllocPitch_v2, (CUdeviceptr *, size_t *pitch, size_t width, size_t rows, unsigned element))
SUBSTITUTE(cuMemFree_v2, (CUdeviceptr))

// free_async.c
SUBSTITUTE(cuMemFreeAsync, (CUdeviceptr, CUstream))
SUBSTITUTE(cuMemFreeAsync_ptsz, (CUdeviceptr, CUstream))

// handles.c
SUBSTITUTE(cuMemCreate,
	   (unsigned long long *handle, size_t bytes, const struct gp_allocation_properties *, unsigned long long flags))
SUBSTITUTE(cuMemRelease, (unsigned long long handle))
SUBSTITUTE(cuMemRetainAllocationHandle, (unsigned long long *handle, void *address))
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
SUBSTITUTE(cuMemMap, (CUdeviceptr, size_t bytes, size_t offset, unsigned long long handle, unsigned long long flags))
SUBSTITUTE(cuMemUnmap, (CUdeviceptr, size_t bytes))
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
SUBSTITUTE(cuMemPoolCreate, (void **pool, const struct gp_pool_properties *))
SUBSTITUTE(cuMemPoolDestroy, (void *pool))

// info.c
SUBSTITUTE(cuMemGetInfo_v2, (size_t *free, size_t *total))
SUBSTITUTE(cuDeviceTotalMem_v2, (size_t *bytes, CUdevice))

// ticket.c
SUBSTITUTE(cuIpcGetMemHandle, (struct gp_ipc_handle *, CUdeviceptr))
SUBSTITUTE(cuIpcOpenMemHandle, (CUdeviceptr *, struct gp_ipc_handle, unsigned flags))
SUBSTITUTE(cuIpcOpenMemHandle_v2, (CUdeviceptr *, struct gp_ipc_handle, unsigned flags))
SUBSTITUTE(cuIpcCloseMemHandle, (CUdeviceptr))

// peers.c
SUBSTITUTE(cuCtxEnablePeerAccess, (CUcontext peer, unsigned flags))
SUBSTITUTE(cuCtxDisablePeerAccess, (CUcontext peer))

#undef SUBSTITUTE
