// symbols.c - lookup of the driver's functions: the symbol that a name stands for, from a version on.
#include "sim.h"

#include <string.h>

typedef void function(void);

// NAME(name, version, symbol): one symbol, whatever the default stream is.
// PAIR(name, version, symbol, per-thread symbol): two.
#define SYMBOLS(NAME, PAIR) \
	NAME(cuArray3DCreate, 3020, cuArray3DCreate_v2) \
	NAME(cuArray3DGetDescriptor, 3020, cuArray3DGetDescriptor_v2) \
	NAME(cuArrayCreate, 3020, cuArrayCreate_v2) \
	NAME(cuArrayDestroy, 2000, cuArrayDestroy) \
	NAME(cuArrayGetDescriptor, 3020, cuArrayGetDescriptor_v2) \
	NAME(cuCheckpointProcessCheckpoint, 12080, cuCheckpointProcessCheckpoint) \
	NAME(cuCheckpointProcessGetRestoreThreadId, 13000, cuCheckpointProcessGetRestoreThreadId) \
	NAME(cuCheckpointProcessGetState, 12080, cuCheckpointProcessGetState) \
	NAME(cuCheckpointProcessLock, 12080, cuCheckpointProcessLock) \
	NAME(cuCheckpointProcessRestore, 12080, cuCheckpointProcessRestore) \
	NAME(cuCheckpointProcessUnlock, 12080, cuCheckpointProcessUnlock) \
	NAME(cuCtxAttach, 2000, cuCtxAttach) \
	NAME(cuCtxDetach, 2000, cuCtxDetach) \
	NAME(cuCtxCreate, 3020, cuCtxCreate_v2) \
	NAME(cuCtxCreate, 12050, cuCtxCreate_v4) \
	NAME(cuCtxDestroy, 4000, cuCtxDestroy_v2) \
	NAME(cuCtxFromGreenCtx, 12040, cuCtxFromGreenCtx) \
	NAME(cuCtxGetDevResource, 12040, cuCtxGetDevResource) \
	NAME(cuCtxDisablePeerAccess, 4000, cuCtxDisablePeerAccess) \
	NAME(cuCtxEnablePeerAccess, 4000, cuCtxEnablePeerAccess) \
	NAME(cuCtxGetApiVersion, 3020, cuCtxGetApiVersion) \
	NAME(cuCtxGetCurrent, 4000, cuCtxGetCurrent) \
	NAME(cuCtxGetDevice, 2000, cuCtxGetDevice) \
	NAME(cuCtxGetFlags, 7000, cuCtxGetFlags) \
	NAME(cuCtxGetId, 12000, cuCtxGetId) \
	NAME(cuCtxGetStreamPriorityRange, 5050, cuCtxGetStreamPriorityRange) \
	NAME(cuCtxPopCurrent, 4000, cuCtxPopCurrent_v2) \
	NAME(cuCtxPushCurrent, 4000, cuCtxPushCurrent_v2) \
	NAME(cuCtxSetCurrent, 4000, cuCtxSetCurrent) \
	NAME(cuCtxSetFlags, 12010, cuCtxSetFlags) \
	NAME(cuCtxSynchronize, 2000, cuCtxSynchronize) \
	NAME(cuDevResourceGenerateDesc, 12040, cuDevResourceGenerateDesc) \
	NAME(cuDevSmResourceSplitByCount, 12040, cuDevSmResourceSplitByCount) \
	NAME(cuDeviceGetDevResource, 12040, cuDeviceGetDevResource) \
	NAME(cuDeviceCanAccessPeer, 4000, cuDeviceCanAccessPeer) \
	NAME(cuDeviceGetP2PAttribute, 8000, cuDeviceGetP2PAttribute) \
	NAME(cuDeviceGraphMemTrim, 11040, cuDeviceGraphMemTrim) \
	NAME(cuDeviceGetGraphMemAttribute, 11040, cuDeviceGetGraphMemAttribute) \
	NAME(cuDeviceComputeCapability, 2000, cuDeviceComputeCapability) \
	NAME(cuDeviceGet, 2000, cuDeviceGet) \
	NAME(cuDeviceGetAttribute, 2000, cuDeviceGetAttribute) \
	NAME(cuDeviceGetCount, 2000, cuDeviceGetCount) \
	NAME(cuDeviceGetDefaultMemPool, 11020, cuDeviceGetDefaultMemPool) \
	NAME(cuDeviceGetMemPool, 11020, cuDeviceGetMemPool) \
	NAME(cuDeviceSetMemPool, 11020, cuDeviceSetMemPool) \
	NAME(cuDeviceGetName, 2000, cuDeviceGetName) \
	NAME(cuDeviceGetPCIBusId, 4010, cuDeviceGetPCIBusId) \
	NAME(cuDeviceGetUuid, 9020, cuDeviceGetUuid) \
	NAME(cuDeviceGetUuid, 11040, cuDeviceGetUuid_v2) \
	NAME(cuDevicePrimaryCtxGetState, 7000, cuDevicePrimaryCtxGetState) \
	NAME(cuDevicePrimaryCtxRelease, 11000, cuDevicePrimaryCtxRelease_v2) \
	NAME(cuDevicePrimaryCtxReset, 11000, cuDevicePrimaryCtxReset_v2) \
	NAME(cuDevicePrimaryCtxRetain, 7000, cuDevicePrimaryCtxRetain) \
	NAME(cuDevicePrimaryCtxSetFlags, 11000, cuDevicePrimaryCtxSetFlags_v2) \
	NAME(cuDeviceTotalMem, 3020, cuDeviceTotalMem_v2) \
	NAME(cuDriverGetVersion, 2020, cuDriverGetVersion) \
	NAME(cuEGLStreamConsumerAcquireFrame, 7000, cuEGLStreamConsumerAcquireFrame) \
	NAME(cuEventCreate, 2000, cuEventCreate) \
	NAME(cuEventDestroy, 4000, cuEventDestroy_v2) \
	NAME(cuEventElapsedTime, 2000, cuEventElapsedTime) \
	NAME(cuEventElapsedTime, 12080, cuEventElapsedTime_v2) \
	NAME(cuEventQuery, 2000, cuEventQuery) \
	PAIR(cuEventRecord, 2000, cuEventRecord, cuEventRecord_ptsz) \
	PAIR(cuEventRecordWithFlags, 11010, cuEventRecordWithFlags, cuEventRecordWithFlags_ptsz) \
	NAME(cuEventSynchronize, 2000, cuEventSynchronize) \
	NAME(cuFuncGetAttribute, 2020, cuFuncGetAttribute) \
	NAME(cuFuncGetModule, 11000, cuFuncGetModule) \
	NAME(cuFuncGetName, 12030, cuFuncGetName) \
	NAME(cuFuncGetParamInfo, 12040, cuFuncGetParamInfo) \
	NAME(cuFuncIsLoaded, 12040, cuFuncIsLoaded) \
	NAME(cuFuncLoad, 12040, cuFuncLoad) \
	NAME(cuFuncSetAttribute, 9000, cuFuncSetAttribute) \
	PAIR(cuGLMapBufferObject, 3020, cuGLMapBufferObject_v2, cuGLMapBufferObject_v2_ptds) \
	PAIR(cuGLMapBufferObjectAsync, 3020, cuGLMapBufferObjectAsync_v2, cuGLMapBufferObjectAsync_v2_ptsz) \
	NAME(cuGLUnmapBufferObject, 2000, cuGLUnmapBufferObject) \
	NAME(cuGLUnmapBufferObjectAsync, 2030, cuGLUnmapBufferObjectAsync) \
	NAME(cuGetErrorName, 6000, cuGetErrorName) \
	NAME(cuGetErrorString, 6000, cuGetErrorString) \
	NAME(cuGetExportTable, 3000, cuGetExportTable) \
	NAME(cuGraphAddEmptyNode, 10000, cuGraphAddEmptyNode) \
	NAME(cuGraphAddKernelNode, 10000, cuGraphAddKernelNode) \
	NAME(cuGraphAddKernelNode, 12000, cuGraphAddKernelNode_v2) \
	NAME(cuGraphAddMemAllocNode, 11040, cuGraphAddMemAllocNode) \
	NAME(cuGraphAddMemFreeNode, 11040, cuGraphAddMemFreeNode) \
	NAME(cuGraphAddNode, 12020, cuGraphAddNode) \
	NAME(cuGraphAddNode, 12030, cuGraphAddNode_v2) \
	NAME(cuGraphChildGraphNodeGetGraph, 10000, cuGraphChildGraphNodeGetGraph) \
	NAME(cuGraphCreate, 10000, cuGraphCreate) \
	NAME(cuGraphDestroy, 10000, cuGraphDestroy) \
	NAME(cuGraphExecDestroy, 10000, cuGraphExecDestroy) \
	NAME(cuGraphExecKernelNodeSetParams, 10010, cuGraphExecKernelNodeSetParams) \
	NAME(cuGraphExecKernelNodeSetParams, 12000, cuGraphExecKernelNodeSetParams_v2) \
	NAME(cuGraphExecNodeSetParams, 12020, cuGraphExecNodeSetParams) \
	NAME(cuGraphExecUpdate, 10020, cuGraphExecUpdate) \
	NAME(cuGraphExecUpdate, 12000, cuGraphExecUpdate_v2) \
	NAME(cuGraphGetNodes, 10000, cuGraphGetNodes) \
	NAME(cuGraphGetEdges, 10000, cuGraphGetEdges) \
	NAME(cuGraphInstantiate, 11000, cuGraphInstantiate_v2) \
	NAME(cuGraphInstantiate, 12000, cuGraphInstantiateWithFlags) \
	NAME(cuGraphInstantiateWithFlags, 11040, cuGraphInstantiateWithFlags) \
	PAIR(cuGraphInstantiateWithParams, 12000, cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz) \
	NAME(cuGraphKernelNodeGetAttribute, 11000, cuGraphKernelNodeGetAttribute) \
	NAME(cuGraphKernelNodeGetParams, 10000, cuGraphKernelNodeGetParams) \
	NAME(cuGraphKernelNodeGetParams, 12000, cuGraphKernelNodeGetParams_v2) \
	NAME(cuGraphKernelNodeSetParams, 10000, cuGraphKernelNodeSetParams) \
	NAME(cuGraphKernelNodeSetParams, 12000, cuGraphKernelNodeSetParams_v2) \
	PAIR(cuGraphLaunch, 10000, cuGraphLaunch, cuGraphLaunch_ptsz) \
	NAME(cuGraphMemAllocNodeGetParams, 11040, cuGraphMemAllocNodeGetParams) \
	NAME(cuGraphMemFreeNodeGetParams, 11040, cuGraphMemFreeNodeGetParams) \
	NAME(cuGraphNodeGetType, 10000, cuGraphNodeGetType) \
	NAME(cuGraphNodeSetParams, 12020, cuGraphNodeSetParams) \
	PAIR(cuGraphUpload, 10010, cuGraphUpload, cuGraphUpload_ptsz) \
	NAME(cuCtxRecordEvent, 12050, cuCtxRecordEvent) \
	NAME(cuCtxWaitEvent, 12050, cuCtxWaitEvent) \
	NAME(cuGreenCtxCreate, 12040, cuGreenCtxCreate) \
	NAME(cuGreenCtxDestroy, 12040, cuGreenCtxDestroy) \
	NAME(cuGreenCtxGetDevResource, 12040, cuGreenCtxGetDevResource) \
	NAME(cuGreenCtxRecordEvent, 12040, cuGreenCtxRecordEvent) \
	NAME(cuGreenCtxStreamCreate, 12050, cuGreenCtxStreamCreate) \
	NAME(cuGreenCtxWaitEvent, 12040, cuGreenCtxWaitEvent) \
	NAME(cuIpcCloseMemHandle, 4010, cuIpcCloseMemHandle) \
	NAME(cuIpcGetMemHandle, 4010, cuIpcGetMemHandle) \
	NAME(cuIpcOpenMemHandle, 11000, cuIpcOpenMemHandle_v2) \
	NAME(cuInit, 2000, cuInit) \
	NAME(cuKernelGetAttribute, 12000, cuKernelGetAttribute) \
	NAME(cuKernelGetFunction, 12000, cuKernelGetFunction) \
	NAME(cuKernelGetLibrary, 12050, cuKernelGetLibrary) \
	NAME(cuKernelGetName, 12030, cuKernelGetName) \
	NAME(cuKernelGetParamInfo, 12040, cuKernelGetParamInfo) \
	NAME(cuKernelSetAttribute, 12000, cuKernelSetAttribute) \
	PAIR(cuLaunchCooperativeKernel, 9000, cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz) \
	PAIR(cuLaunchHostFunc, 10000, cuLaunchHostFunc, cuLaunchHostFunc_ptsz) \
	PAIR(cuLaunchKernel, 4000, cuLaunchKernel, cuLaunchKernel_ptsz) \
	PAIR(cuLaunchKernelEx, 11060, cuLaunchKernelEx, cuLaunchKernelEx_ptsz) \
	NAME(cuLibraryEnumerateKernels, 12040, cuLibraryEnumerateKernels) \
	NAME(cuLibraryGetGlobal, 12000, cuLibraryGetGlobal) \
	NAME(cuLibraryGetKernel, 12000, cuLibraryGetKernel) \
	NAME(cuLibraryGetKernelCount, 12040, cuLibraryGetKernelCount) \
	NAME(cuLibraryGetModule, 12000, cuLibraryGetModule) \
	NAME(cuLibraryLoadData, 12000, cuLibraryLoadData) \
	NAME(cuLibraryLoadFromFile, 12000, cuLibraryLoadFromFile) \
	NAME(cuLibraryUnload, 12000, cuLibraryUnload) \
	NAME(cuLinkAddData, 6050, cuLinkAddData_v2) \
	NAME(cuLinkAddFile, 6050, cuLinkAddFile_v2) \
	NAME(cuLinkComplete, 5050, cuLinkComplete) \
	NAME(cuLinkCreate, 6050, cuLinkCreate_v2) \
	NAME(cuLinkDestroy, 5050, cuLinkDestroy) \
	NAME(cuMemAlloc, 3020, cuMemAlloc_v2) \
	PAIR(cuMemAllocAsync, 11020, cuMemAllocAsync, cuMemAllocAsync_ptsz) \
	PAIR(cuMemAllocFromPoolAsync, 11020, cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz) \
	NAME(cuMemAddressFree, 10020, cuMemAddressFree) \
	NAME(cuMemAddressReserve, 10020, cuMemAddressReserve) \
	NAME(cuMemAllocManaged, 6000, cuMemAllocManaged) \
	NAME(cuMemAllocPitch, 3020, cuMemAllocPitch_v2) \
	NAME(cuMemCreate, 10020, cuMemCreate) \
	NAME(cuMemExportToShareableHandle, 10020, cuMemExportToShareableHandle) \
	NAME(cuMemGetAccess, 10020, cuMemGetAccess) \
	NAME(cuMemGetAddressRange, 3020, cuMemGetAddressRange_v2) \
	NAME(cuMemGetHandleForAddressRange, 11070, cuMemGetHandleForAddressRange) \
	NAME(cuMemGetAllocationGranularity, 10020, cuMemGetAllocationGranularity) \
	NAME(cuMemGetAllocationPropertiesFromHandle, 10020, cuMemGetAllocationPropertiesFromHandle) \
	NAME(cuMemImportFromShareableHandle, 10020, cuMemImportFromShareableHandle) \
	NAME(cuMemMap, 10020, cuMemMap) \
	NAME(cuMemPoolCreate, 11020, cuMemPoolCreate) \
	NAME(cuMemPoolDestroy, 11020, cuMemPoolDestroy) \
	NAME(cuMemPoolGetAccess, 11020, cuMemPoolGetAccess) \
	NAME(cuMemPoolSetAccess, 11020, cuMemPoolSetAccess) \
	NAME(cuMemPoolGetAttribute, 11020, cuMemPoolGetAttribute) \
	NAME(cuMemPoolSetAttribute, 11020, cuMemPoolSetAttribute) \
	NAME(cuMemPoolTrimTo, 11020, cuMemPoolTrimTo) \
	NAME(cuMemRelease, 10020, cuMemRelease) \
	NAME(cuMemRetainAllocationHandle, 11000, cuMemRetainAllocationHandle) \
	NAME(cuMemSetAccess, 10020, cuMemSetAccess) \
	NAME(cuMemUnmap, 10020, cuMemUnmap) \
	NAME(cuMemAllocHost, 3020, cuMemAllocHost_v2) \
	NAME(cuMemFree, 3020, cuMemFree_v2) \
	PAIR(cuMemFreeAsync, 11020, cuMemFreeAsync, cuMemFreeAsync_ptsz) \
	NAME(cuMemFreeHost, 2000, cuMemFreeHost) \
	NAME(cuMemGetInfo, 3020, cuMemGetInfo_v2) \
	NAME(cuMemHostAlloc, 2020, cuMemHostAlloc) \
	NAME(cuMemHostGetDevicePointer, 3020, cuMemHostGetDevicePointer_v2) \
	NAME(cuMemHostRegister, 6050, cuMemHostRegister_v2) \
	NAME(cuMemHostUnregister, 4000, cuMemHostUnregister) \
	PAIR(cuMemcpy, 4000, cuMemcpy, cuMemcpy_ptds) \
	PAIR(cuMemcpyAsync, 4000, cuMemcpyAsync, cuMemcpyAsync_ptsz) \
	PAIR(cuMemcpyDtoD, 3020, cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds) \
	PAIR(cuMemcpyDtoDAsync, 3020, cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz) \
	PAIR(cuMemcpyDtoH, 3020, cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds) \
	PAIR(cuMemcpyDtoHAsync, 3020, cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz) \
	PAIR(cuMemcpyHtoD, 3020, cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds) \
	PAIR(cuMemcpyHtoDAsync, 3020, cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz) \
	PAIR(cuMemsetD32, 3020, cuMemsetD32_v2, cuMemsetD32_v2_ptds) \
	PAIR(cuMemsetD32Async, 3020, cuMemsetD32Async, cuMemsetD32Async_ptsz) \
	PAIR(cuMemsetD8, 3020, cuMemsetD8_v2, cuMemsetD8_v2_ptds) \
	PAIR(cuMemsetD8Async, 3020, cuMemsetD8Async, cuMemsetD8Async_ptsz) \
	PAIR(cuMemsetD16, 3020, cuMemsetD16_v2, cuMemsetD16_v2_ptds) \
	PAIR(cuMemsetD2D8, 3020, cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds) \
	PAIR(cuMemsetD2D16, 3020, cuMemsetD2D16_v2, cuMemsetD2D16_v2_ptds) \
	PAIR(cuMemsetD2D32, 3020, cuMemsetD2D32_v2, cuMemsetD2D32_v2_ptds) \
	PAIR(cuMemcpy2D, 3020, cuMemcpy2D_v2, cuMemcpy2D_v2_ptds) \
	PAIR(cuMemcpy2DUnaligned, 3020, cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds) \
	PAIR(cuMemsetD16Async, 3020, cuMemsetD16Async, cuMemsetD16Async_ptsz) \
	PAIR(cuMemsetD2D8Async, 3020, cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz) \
	PAIR(cuMemsetD2D16Async, 3020, cuMemsetD2D16Async, cuMemsetD2D16Async_ptsz) \
	PAIR(cuMemsetD2D32Async, 3020, cuMemsetD2D32Async, cuMemsetD2D32Async_ptsz) \
	PAIR(cuMemcpy2DAsync, 3020, cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz) \
	NAME(cuMulticastAddDevice, 12010, cuMulticastAddDevice) \
	NAME(cuMulticastBindAddr, 12010, cuMulticastBindAddr) \
	NAME(cuMulticastBindMem, 12010, cuMulticastBindMem) \
	NAME(cuMulticastCreate, 12010, cuMulticastCreate) \
	NAME(cuMulticastGetGranularity, 12010, cuMulticastGetGranularity) \
	NAME(cuMulticastUnbind, 12010, cuMulticastUnbind) \
	NAME(cuPointerGetAttribute, 4000, cuPointerGetAttribute) \
	NAME(cuPointerGetAttributes, 7000, cuPointerGetAttributes) \
	NAME(cuPointerSetAttribute, 6000, cuPointerSetAttribute) \
	NAME(cuModuleEnumerateFunctions, 12040, cuModuleEnumerateFunctions) \
	NAME(cuModuleGetFunction, 2000, cuModuleGetFunction) \
	NAME(cuModuleGetFunctionCount, 12040, cuModuleGetFunctionCount) \
	NAME(cuModuleGetGlobal, 3020, cuModuleGetGlobal_v2) \
	NAME(cuModuleGetLoadingMode, 11070, cuModuleGetLoadingMode) \
	NAME(cuModuleLoad, 2000, cuModuleLoad) \
	NAME(cuModuleLoadData, 2000, cuModuleLoadData) \
	NAME(cuModuleLoadDataEx, 2010, cuModuleLoadDataEx) \
	NAME(cuModuleLoadFatBinary, 2000, cuModuleLoadFatBinary) \
	NAME(cuModuleUnload, 2000, cuModuleUnload) \
	NAME(cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050, cuOccupancyMaxActiveBlocksPerMultiprocessor) \
	NAME(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, 7000, \
	     cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags) \
	PAIR(cuStreamBeginCapture, 10010, cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz) \
	NAME(cuStreamGetGreenCtx, 12040, cuStreamGetGreenCtx) \
	NAME(cuStreamCreate, 2000, cuStreamCreate) \
	NAME(cuStreamCreateWithPriority, 5050, cuStreamCreateWithPriority) \
	NAME(cuStreamDestroy, 4000, cuStreamDestroy_v2) \
	PAIR(cuStreamEndCapture, 10000, cuStreamEndCapture, cuStreamEndCapture_ptsz) \
	PAIR(cuStreamGetCaptureInfo, 11030, cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2_ptsz) \
	PAIR(cuStreamGetCaptureInfo, 12030, cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo_v3_ptsz) \
	PAIR(cuStreamGetCtx, 9020, cuStreamGetCtx, cuStreamGetCtx_ptsz) \
	PAIR(cuStreamGetFlags, 5050, cuStreamGetFlags, cuStreamGetFlags_ptsz) \
	PAIR(cuStreamGetId, 12000, cuStreamGetId, cuStreamGetId_ptsz) \
	PAIR(cuStreamGetPriority, 5050, cuStreamGetPriority, cuStreamGetPriority_ptsz) \
	PAIR(cuStreamIsCapturing, 10000, cuStreamIsCapturing, cuStreamIsCapturing_ptsz) \
	PAIR(cuStreamSetAttribute, 11000, cuStreamSetAttribute, cuStreamSetAttribute_ptsz) \
	PAIR(cuStreamQuery, 2000, cuStreamQuery, cuStreamQuery_ptsz) \
	PAIR(cuStreamSynchronize, 2000, cuStreamSynchronize, cuStreamSynchronize_ptsz) \
	PAIR(cuStreamWaitEvent, 3020, cuStreamWaitEvent, cuStreamWaitEvent_ptsz) \
	PAIR(cuStreamWaitValue32, 11070, cuStreamWaitValue32_v2, cuStreamWaitValue32_v2_ptsz) \
	PAIR(cuStreamWriteValue32, 11070, cuStreamWriteValue32_v2, cuStreamWriteValue32_v2_ptsz) \
	NAME(cuTensorMapEncodeTiled, 12000, cuTensorMapEncodeTiled) \
	NAME(cuThreadExchangeStreamCaptureMode, 10010, cuThreadExchangeStreamCaptureMode) \
	PAIR(cuMemcpyHereafterAsync, 13000, cuMemcpyHereafterAsync, cuMemcpyHereafterAsync_ptsz) \
	PAIR(cuLaunchHostFunc, 13010, cuLaunchHostFunc_v2, cuLaunchHostFunc_v2_ptsz) \
	PAIR(cuStreamBeginCaptureToCig, 13010, cuStreamBeginCaptureToCig, cuStreamBeginCaptureToCig_ptsz) \
	PAIR(cuStreamEndCaptureToCig, 13010, cuStreamEndCaptureToCig, cuStreamEndCaptureToCig_ptsz) \
	PAIR(cuMemcpyWithAttributesAsync, 13020, cuMemcpyWithAttributesAsync, cuMemcpyWithAttributesAsync_ptsz) \
	PAIR(cuMemcpy3DWithAttributesAsync, 13020, cuMemcpy3DWithAttributesAsync, cuMemcpy3DWithAttributesAsync_ptsz) \
	PAIR(cuStreamBeginRecaptureToGraph, 13030, cuStreamBeginRecaptureToGraph, cuStreamBeginRecaptureToGraph_ptsz) \
	NAME(cuLogicalEndpointBindAddr, 13030, cuLogicalEndpointBindAddr) \
	NAME(cuLogicalEndpointBindMem, 13030, cuLogicalEndpointBindMem) \
	PAIR(cuFabricCpyBatchAsync, 13050, cuFabricCpyBatchAsync, cuFabricCpyBatchAsync_ptsz)

#define DECLARE1(name, version, symbol) extern function symbol;
#define DECLARE2(name, version, symbol, per_thread) extern function symbol, per_thread;
SYMBOLS(DECLARE1, DECLARE2)

API CUresult cuGetProcAddress(const char *name, void **out, int version, uint64_t flags);
API CUresult cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status);

static const struct symbol {
	const char *name;
	int version;
	function *legacy, *per_thread;
} symbols[] = {
#define ROW1(name, version, symbol) {#name, version, symbol, symbol},
#define ROW2(name, version, symbol, per_thread) {#name, version, symbol, per_thread},
	SYMBOLS(ROW1, ROW2){"cuGetProcAddress", 11030, (function *)cuGetProcAddress, (function *)cuGetProcAddress},
	{"cuGetProcAddress", 12000, (function *)cuGetProcAddress_v2, (function *)cuGetProcAddress_v2},
};

static CUresult lookup(const char *name, void **out, int version, uint64_t flags, int *status)
{
	if (!name || !out || (flags & ~3ull))
		return CUDA_ERROR_INVALID_VALUE;
	const struct symbol *best = NULL;
	int found = 1; // CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
	for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
		if (strcmp(symbols[i].name, name) == 0 && symbols[i].version <= sim_driver_version()) {
			if (symbols[i].version <= version && (!best || symbols[i].version > best->version))
				best = &symbols[i];
			found = best ? 0 : 2; // CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
		}
	*out = best ? (void *)(flags & 2 ? best->per_thread : best->legacy) : NULL;
	if (status)
		*status = found;
	return best || status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CALL(cuGetProcAddress, (const char *name, void **out, int version, uint64_t flags), (name, out, version, flags))
{
	return lookup(name, out, version, flags, NULL);
}

CALL(cuGetProcAddress_v2, (const char *name, void **out, int version, uint64_t flags, int *status),
     (name, out, version, flags, status))
{
	return lookup(name, out, version, flags, status);
}
