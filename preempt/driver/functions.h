// functions.h - the one list of the driver's functions that are called. It is expanded into struct gp_driver (driver.h) and into their
// lookup (driver.c). These are the driver's own, never the intercepted ones.
//
// A row is KIND(field, symbol, parameters); the symbol is that of the newest ABI. KIND says what is without the function:
//   NEEDED      nothing: no preemption in this process
//   BLP_NEEDED  no kernel is rewritten or stopped
//   SWAP_NEEDED no memory is swapped; what both need is BLP_NEEDED
//   WANTED      what the caller does where it is NULL
// The includer defines the four; all are undefined at the end.

NEEDED(cuCtxGetCurrent, cuCtxGetCurrent, (CUcontext *))
NEEDED(cuCtxPushCurrent, cuCtxPushCurrent_v2, (CUcontext))
NEEDED(cuCtxPopCurrent, cuCtxPopCurrent_v2, (CUcontext *))
NEEDED(cuCtxGetDevice, cuCtxGetDevice, (CUdevice *))
NEEDED(cuDeviceGetUuid, cuDeviceGetUuid, (void *, CUdevice))
WANTED(cuDeviceGetUuid_v2, cuDeviceGetUuid_v2, (void *, CUdevice)) // CUDA 11.4
NEEDED(cuDeviceGetAttribute, cuDeviceGetAttribute, (int *, int, CUdevice))
NEEDED(cuModuleLoadData, cuModuleLoadData, (CUmodule *, const void *))
NEEDED(cuModuleGetFunction, cuModuleGetFunction, (CUfunction *, CUmodule, const char *))
NEEDED(cuFuncGetAttribute, cuFuncGetAttribute, (int *, int, CUfunction))
NEEDED(cuFuncSetAttribute, cuFuncSetAttribute, (CUfunction, int, int))
NEEDED(cuStreamCreateWithPriority, cuStreamCreateWithPriority, (CUstream *, unsigned, int))
NEEDED(cuStreamQuery, cuStreamQuery, (CUstream))
NEEDED(cuMemHostAlloc, cuMemHostAlloc, (void **, size_t, unsigned))
NEEDED(cuLaunchKernel, cuLaunchKernel,
       (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **))
NEEDED(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, (int *))

BLP_NEEDED(cuMemAlloc, cuMemAlloc_v2, (CUdeviceptr *, size_t))
BLP_NEEDED(cuMemFree, cuMemFree_v2, (CUdeviceptr))
BLP_NEEDED(cuMemFreeHost, cuMemFreeHost, (void *))
BLP_NEEDED(cuMemsetD8Async, cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))
BLP_NEEDED(cuMemsetD16Async, cuMemsetD16Async, (CUdeviceptr, unsigned short, size_t, CUstream))
BLP_NEEDED(cuMemsetD32Async, cuMemsetD32Async, (CUdeviceptr, unsigned, size_t, CUstream))
BLP_NEEDED(cuMemcpyAsync, cuMemcpyAsync, (CUdeviceptr, CUdeviceptr, size_t, CUstream))
BLP_NEEDED(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream))
BLP_NEEDED(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream))
BLP_NEEDED(cuMemcpy2DAsync, cuMemcpy2DAsync_v2, (const void *, CUstream))
BLP_NEEDED(cuEventCreate, cuEventCreate, (CUevent *, unsigned))
BLP_NEEDED(cuEventDestroy, cuEventDestroy_v2, (CUevent))
BLP_NEEDED(cuEventRecord, cuEventRecord, (CUevent, CUstream))
BLP_NEEDED(cuEventQuery, cuEventQuery, (CUevent))
BLP_NEEDED(cuEventSynchronize, cuEventSynchronize, (CUevent))
BLP_NEEDED(cuStreamSynchronize, cuStreamSynchronize, (CUstream))
BLP_NEEDED(cuCtxSynchronize, cuCtxSynchronize, (void))
BLP_NEEDED(cuStreamWaitEvent, cuStreamWaitEvent, (CUstream, CUevent, unsigned))
BLP_NEEDED(cuStreamGetFlags, cuStreamGetFlags, (CUstream, unsigned *))
BLP_NEEDED(cuStreamDestroy, cuStreamDestroy_v2, (CUstream))
BLP_NEEDED(cuCtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange, (int *least, int *greatest))
BLP_NEEDED(cuFuncGetModule, cuFuncGetModule, (CUmodule *, CUfunction))    // CUDA 11
BLP_NEEDED(cuFuncGetName, cuFuncGetName, (const char **, CUfunction))     // CUDA 12.3
BLP_NEEDED(cuKernelGetName, cuKernelGetName, (const char **, CUfunction)) // CUDA 12.3

SWAP_NEEDED(cuMemAddressReserve, cuMemAddressReserve,
	    (CUdeviceptr *, size_t bytes, size_t alignment, CUdeviceptr, unsigned long long flags))
SWAP_NEEDED(cuMemAddressFree, cuMemAddressFree, (CUdeviceptr, size_t bytes))
SWAP_NEEDED(cuMemCreate, cuMemCreate,
	    (unsigned long long *handle, size_t bytes, const struct gp_allocation_properties *, unsigned long long flags))
SWAP_NEEDED(cuMemRelease, cuMemRelease, (unsigned long long handle))
SWAP_NEEDED(cuMemMap, cuMemMap,
	    (CUdeviceptr, size_t bytes, size_t offset, unsigned long long handle, unsigned long long flags))
SWAP_NEEDED(cuMemUnmap, cuMemUnmap, (CUdeviceptr, size_t bytes))
SWAP_NEEDED(cuMemSetAccess, cuMemSetAccess, (CUdeviceptr, size_t bytes, const void *access, size_t count))
SWAP_NEEDED(cuMemGetInfo, cuMemGetInfo_v2, (size_t *free, size_t *total))
SWAP_NEEDED(cuMemAllocPitch, cuMemAllocPitch_v2,
	    (CUdeviceptr *, size_t *pitch, size_t width, size_t rows, unsigned element))
SWAP_NEEDED(cuMemGetAddressRange, cuMemGetAddressRange_v2, (CUdeviceptr *, size_t *bytes, CUdeviceptr))
SWAP_NEEDED(cuPointerGetAttribute, cuPointerGetAttribute, (void *, int, CUdeviceptr))
SWAP_NEEDED(cuPointerSetAttribute, cuPointerSetAttribute, (const void *, int, CUdeviceptr))
SWAP_NEEDED(cuDeviceTotalMem, cuDeviceTotalMem_v2, (size_t *, CUdevice))
SWAP_NEEDED(cuMemHostRegister, cuMemHostRegister_v2, (void *, size_t bytes, unsigned flags))
SWAP_NEEDED(cuMemHostUnregister, cuMemHostUnregister, (void *))

WANTED(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, (void **pool, CUdevice)) // CUDA 11.2
WANTED(cuMemFreeAsync, cuMemFreeAsync, (CUdeviceptr, CUstream))                       // CUDA 11.2
WANTED(cuMemAllocManaged, cuMemAllocManaged, (CUdeviceptr *, size_t bytes, unsigned flags))
WANTED(cuArrayCreate, cuArrayCreate_v2, (void **array, const void *description))
WANTED(cuArray3DCreate, cuArray3DCreate_v2, (void **array, const void *description))
WANTED(cuMipmappedArrayCreate, cuMipmappedArrayCreate, (void **array, const void *description, unsigned levels))
WANTED(cuArrayDestroy, cuArrayDestroy, (void *array))
WANTED(cuMipmappedArrayDestroy, cuMipmappedArrayDestroy, (void *array))
WANTED(cuMemAllocAsync, cuMemAllocAsync, (CUdeviceptr *, size_t bytes, CUstream))           // CUDA 11.2
WANTED(cuMemAllocAsync_ptsz, cuMemAllocAsync_ptsz, (CUdeviceptr *, size_t bytes, CUstream)) // CUDA 11.2
WANTED(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t bytes, void *pool, CUstream)) // CUDA 11.2
WANTED(cuMemAllocFromPoolAsync_ptsz, cuMemAllocFromPoolAsync_ptsz,
       (CUdeviceptr *, size_t bytes, void *pool, CUstream))                                                // CUDA 11.2
WANTED(cuDeviceGetGraphMemAttribute, cuDeviceGetGraphMemAttribute, (CUdevice, int attribute, void *value)) // CUDA 11.4
WANTED(cuMemPoolCreate, cuMemPoolCreate, (void **pool, const struct gp_pool_properties *))                 // CUDA 11.2
WANTED(cuMemPoolDestroy, cuMemPoolDestroy, (void *pool))                                                   // CUDA 11.2
WANTED(cuMemPoolGetAttribute, cuMemPoolGetAttribute, (void *pool, int attribute, void *value))             // CUDA 11.2
WANTED(cuMemPoolTrimTo, cuMemPoolTrimTo, (void *pool, size_t keep))                                        // CUDA 11.2
WANTED(cuDeviceGraphMemTrim, cuDeviceGraphMemTrim, (CUdevice))                                             // CUDA 11.4
WANTED(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, (unsigned long long *handle, void *))     // CUDA 11
WANTED(cuMemGetAllocationPropertiesFromHandle, cuMemGetAllocationPropertiesFromHandle,
       (struct gp_allocation_properties *, unsigned long long handle))
WANTED(cuMemGetAccess, cuMemGetAccess, (unsigned long long *flags, const struct gp_location *, CUdeviceptr))
WANTED(cuMemExportToShareableHandle, cuMemExportToShareableHandle,
       (void *, unsigned long long handle, int type, unsigned long long flags))
WANTED(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, (unsigned long long *handle, void *, int type))
WANTED(cuMemGetHandleForAddressRange, cuMemGetHandleForAddressRange,
       (void *, CUdeviceptr, size_t bytes, int type, unsigned long long flags)) // CUDA 11.7
WANTED(cuMemMapArrayAsync, cuMemMapArrayAsync, (struct gp_array_mapping *, unsigned, CUstream))
WANTED(cuMemMapArrayAsync_ptsz, cuMemMapArrayAsync_ptsz, (struct gp_array_mapping *, unsigned, CUstream))
WANTED(cuLogicalEndpointBindMem, cuLogicalEndpointBindMem,
       (uint32_t endpoint, CUdevice, uint64_t offset, unsigned long long handle, uint64_t from, uint64_t bytes,
	unsigned long long flags)) // CUDA 13.3
WANTED(cuLogicalEndpointBindAddr, cuLogicalEndpointBindAddr,
       (uint32_t endpoint, CUdevice, uint64_t offset, void *, uint64_t bytes, unsigned long long flags))
WANTED(cuMulticastBindMem, cuMulticastBindMem,
       (unsigned long long multicast, size_t offset, unsigned long long handle, size_t from, size_t bytes,
	unsigned long long flags)) // CUDA 12.1
WANTED(cuMulticastBindMem_v2, cuMulticastBindMem_v2,
       (unsigned long long multicast, CUdevice, size_t offset, unsigned long long handle, size_t from, size_t bytes,
	unsigned long long flags)) // CUDA 13.1
WANTED(cuMulticastBindAddr, cuMulticastBindAddr,
       (unsigned long long multicast, size_t offset, CUdeviceptr, size_t bytes, unsigned long long flags))
WANTED(cuMulticastBindAddr_v2, cuMulticastBindAddr_v2,
       (unsigned long long multicast, CUdevice, size_t offset, CUdeviceptr, size_t bytes, unsigned long long flags))
WANTED(cuIpcGetMemHandle, cuIpcGetMemHandle, (struct gp_ipc_handle *, CUdeviceptr))
WANTED(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2, (CUdeviceptr *, struct gp_ipc_handle, unsigned flags))
WANTED(cuIpcCloseMemHandle, cuIpcCloseMemHandle, (CUdeviceptr))
WANTED(cuCtxEnablePeerAccess, cuCtxEnablePeerAccess, (CUcontext, unsigned flags))
WANTED(cuCtxDisablePeerAccess, cuCtxDisablePeerAccess, (CUcontext))
WANTED(cuCtxGetFlags, cuCtxGetFlags, (unsigned *))
WANTED(cuCtxGetExecAffinity, cuCtxGetExecAffinity, (struct gp_affinity *, int type)) // CUDA 11.4
WANTED(cuCtxSetFlags, cuCtxSetFlags, (unsigned))                                     // CUDA 12.1
WANTED(cuKernelGetFunction, cuKernelGetFunction, (CUfunction *, CUfunction))         // CUDA 12
WANTED(cuFuncLoad, cuFuncLoad, (CUfunction))                                         // CUDA 12.4
WANTED(cuFuncIsLoaded, cuFuncIsLoaded, (int *state, CUfunction))                     // CUDA 12.4
WANTED(cuModuleGetLoadingMode, cuModuleGetLoadingMode, (int *))                      // CUDA 11.7, as lazy loading
WANTED(cuFuncGetParamInfo, cuFuncGetParamInfo, (CUfunction, size_t, size_t *, size_t *))
WANTED(cuKernelGetLibrary, cuKernelGetLibrary, (CUlibrary *, CUfunction))
WANTED(cuKernelGetParamInfo, cuKernelGetParamInfo, (CUfunction, size_t, size_t *, size_t *))
WANTED(cuStreamGetPriority, cuStreamGetPriority, (CUstream, int *))
WANTED(cuStreamGetCtx, cuStreamGetCtx, (CUstream, CUcontext *))
WANTED(cuStreamIsCapturing, cuStreamIsCapturing, (CUstream, int *))
WANTED(cuStreamWriteValue32, cuStreamWriteValue32_v2, (CUstream, CUdeviceptr, uint32_t value, unsigned flags)) // CUDA 11.7
WANTED(cuStreamSetAttribute, cuStreamSetAttribute, (CUstream, int, const void *)) // CUDA 11
WANTED(cuPointerGetAttributes, cuPointerGetAttributes, (unsigned, int *, void **, CUdeviceptr))
WANTED(cuGraphGetNodes, cuGraphGetNodes, (CUgraph, CUgraphNode *, size_t *))
WANTED(cuGraphGetEdges, cuGraphGetEdges, (CUgraph, CUgraphNode *from, CUgraphNode *to, size_t *))
WANTED(cuGraphNodeGetType, cuGraphNodeGetType, (CUgraphNode, int *))
WANTED(cuGraphChildGraphNodeGetGraph, cuGraphChildGraphNodeGetGraph, (CUgraphNode, CUgraph *))
WANTED(cuGraphMemAllocNodeGetParams, cuGraphMemAllocNodeGetParams, (CUgraphNode, struct gp_memory_node *)) // CUDA 11.4
WANTED(cuGraphMemFreeNodeGetParams, cuGraphMemFreeNodeGetParams, (CUgraphNode, CUdeviceptr *))             // CUDA 11.4
WANTED(cuGraphKernelNodeGetAttribute, cuGraphKernelNodeGetAttribute, (CUgraphNode, int, void *))           // CUDA 11
WANTED(cuGraphKernelNodeGetParams, cuGraphKernelNodeGetParams_v2, (CUgraphNode, void *))                   // CUDA 12
WANTED(cuGraphLaunch, cuGraphLaunch, (CUgraphExec, CUstream))
WANTED(cuGraphInstantiate, cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long))
WANTED(cuGraphExecDestroy, cuGraphExecDestroy, (CUgraphExec))
WANTED(cuGraphExecGetFlags, cuGraphExecGetFlags, (CUgraphExec, unsigned long long *))
WANTED(cuGraphExecKernelNodeSetParams, cuGraphExecKernelNodeSetParams_v2, (CUgraphExec, CUgraphNode, const void *))
WANTED(cuLaunchKernelEx, cuLaunchKernelEx, (const void *, CUfunction, void **, void **))
WANTED(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel,
       (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **))
WANTED(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, (CUdevice, unsigned *flags, int *active))
WANTED(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))
WANTED(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (CUdevice))
WANTED(cuOccupancyMaxActiveBlocksPerMultiprocessor, cuOccupancyMaxActiveBlocksPerMultiprocessor,
       (int *blocks, CUfunction, int threads, size_t shared_bytes))
WANTED(cuDeviceGetDevResource, cuDeviceGetDevResource, (CUdevice, struct gp_resource *, int type)) // CUDA 12.4, as the next ones
WANTED(cuDevSmResourceSplitByCount, cuDevSmResourceSplitByCount,
       (struct gp_resource *, unsigned *groups, const struct gp_resource *, struct gp_resource *left, unsigned flags,
	unsigned sms))
WANTED(cuDevResourceGenerateDesc, cuDevResourceGenerateDesc, (void **description, struct gp_resource *, unsigned count))
WANTED(cuGreenCtxCreate, cuGreenCtxCreate, (CUgreenCtx *, void *description, CUdevice, unsigned flags))
WANTED(cuGreenCtxDestroy, cuGreenCtxDestroy, (CUgreenCtx))
WANTED(cuCtxFromGreenCtx, cuCtxFromGreenCtx, (CUcontext *, CUgreenCtx))
WANTED(cuGreenCtxStreamCreate, cuGreenCtxStreamCreate, (CUstream *, CUgreenCtx, unsigned flags, int priority)) // CUDA 12.5
WANTED(cuStreamGetGreenCtx, cuStreamGetGreenCtx, (CUstream, CUgreenCtx *))
WANTED(cuCtxRecordEvent, cuCtxRecordEvent, (CUcontext, CUevent)) // CUDA 12.5
WANTED(cuDeviceGetCount, cuDeviceGetCount, (int *))
WANTED(cuCheckpointProcessGetState, cuCheckpointProcessGetState, (int pid, int *state)) // CUDA 12.8
WANTED(cuDriverGetVersion, cuDriverGetVersion, (int *))
WANTED(cuLibraryLoadData, cuLibraryLoadData,
       (CUlibrary *, const void *, const int *, void *const *, unsigned, const int *, void *const *, unsigned))
WANTED(cuLibraryGetModule, cuLibraryGetModule, (CUmodule *, CUlibrary))
WANTED(cuLibraryUnload, cuLibraryUnload, (CUlibrary))
WANTED(cuModuleUnload, cuModuleUnload, (CUmodule))
WANTED(cuParamSetv, cuParamSetv, (CUfunction, int, void *, unsigned))
WANTED(cuParamSetSize, cuParamSetSize, (CUfunction, unsigned))
WANTED(cuLinkCreate, cuLinkCreate_v2, (unsigned, const int *, void *const *, CUlinkState *))
WANTED(cuLinkAddData, cuLinkAddData_v2,
       (CUlinkState, int, const void *, size_t, const char *, unsigned, const int *, void *const *))
WANTED(cuLinkComplete, cuLinkComplete, (CUlinkState, void **, size_t *))
WANTED(cuLinkDestroy, cuLinkDestroy, (CUlinkState))

#undef NEEDED
#undef BLP_NEEDED
#undef SWAP_NEEDED
#undef WANTED
