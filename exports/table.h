// table.h - the one list of intercepted functions.
//
// The exported functions (intercept.c) and the slots of the driver's own functions (real.c) are expanded from it. So are the answers to
// lookups (lookup.c) and the linker's version script (map.sh). Signatures are those of cuda.h 13.5, with old ABI versions; pointers to
// structures are void * and enumerations int, so that no CUDA toolkit is needed to build. The list has all functions with which drivers
// up to GP_NEWEST_DRIVER (preempt/driver/hooks.h) put work on streams or capture it; see test/exports/testdata/versions.txt.
//
// A row is KIND(name, parameters, arguments, ...). KIND_PTSZ and KIND_PTDS stand for two functions; the second one has the
// suffix of the per-thread default stream. The items behind the arguments depend on the kind:
//   SUBMIT         puts work on a stream: fields of struct gp_operation.
//   EVENT_DESTROY, EVENT_SHARED  event.
//   CHANGE         graph instance; may wait for the context.
//   NODE           which parameters of a node nodeParams points to, the instance that is changed or NULL.
//   USE            nothing: names device memory, but puts no work on a stream.
//   WAIT           enum gp_wait, stream, event, context, address or function.
//   INSTANTIATE    where the graph instance is stored, graph.
//   DESTROY        enum gp_thing, handle; may wait for the context.
//   CAPTURE_BEGIN, CAPTURE_END  stream.
//   STREAM_CREATE  where the stream is stored, flags, the priority asked for.
//   CONTEXT        the context that is usable after success, the device on which it takes memory.
//   PASS           nothing: goes to the driver, or to the function that stands for it (gp_substitute).
//   OWN            nothing: written by hand.
//   CHECKPOINT     the process that it is about, enum gp_checkpoint.
// CALLED(name, parameters) is called by the layer itself, and not intercepted.
// STREAM(handle) replaces a NULL handle by the function's default stream. ADDRESS makes an address the object of GP_TAKE_MEMORY.
//
// The includer defines ROW(kind, name, default_stream, parameters, arguments, ...) and CALLED. Both are undefined at the end.

#define SUBMIT(name, params, ...) ROW(SUBMIT, name, GP_STREAM_LEGACY, params, __VA_ARGS__)
#define SUBMIT_PTSZ(name, params, ...) \
	SUBMIT(name, params, __VA_ARGS__) \
	ROW(SUBMIT, name##_ptsz, GP_STREAM_PER_THREAD, params, __VA_ARGS__)
#define SUBMIT_PTDS(name, params, ...) \
	SUBMIT(name, params, __VA_ARGS__) \
	ROW(SUBMIT, name##_ptds, GP_STREAM_PER_THREAD, params, __VA_ARGS__)
#define CHANGE(name, params, ...) ROW(CHANGE, name, GP_STREAM_LEGACY, params, __VA_ARGS__)
#define NODE(name, params, ...) ROW(NODE, name, GP_STREAM_LEGACY, params, __VA_ARGS__)
#define USE(name, params, args) ROW(USE, name, GP_STREAM_LEGACY, params, args, )
#define EVENT_DESTROY(name, params, ...) ROW(EVENT_DESTROY, name, GP_STREAM_LEGACY, params, __VA_ARGS__)
#define EVENT_SHARED(name, params, ...) ROW(EVENT_SHARED, name, GP_STREAM_LEGACY, params, __VA_ARGS__)
#define WAIT(name, params, ...) ROW(WAIT, name, GP_STREAM_LEGACY, params, __VA_ARGS__)
#define WAIT_PTSZ(name, params, ...) \
	WAIT(name, params, __VA_ARGS__) \
	ROW(WAIT, name##_ptsz, GP_STREAM_PER_THREAD, params, __VA_ARGS__)
#define INSTANTIATE(name, params, ...) ROW(INSTANTIATE, name, GP_STREAM_LEGACY, params, __VA_ARGS__)
#define INSTANTIATE_PTSZ(name, params, ...) \
	INSTANTIATE(name, params, __VA_ARGS__) \
	ROW(INSTANTIATE, name##_ptsz, GP_STREAM_PER_THREAD, params, __VA_ARGS__)
#define CAPTURE_BEGIN_PTSZ(name, params, ...) \
	ROW(CAPTURE_BEGIN, name, GP_STREAM_LEGACY, params, __VA_ARGS__) \
	ROW(CAPTURE_BEGIN, name##_ptsz, GP_STREAM_PER_THREAD, params, __VA_ARGS__)
#define CAPTURE_END_PTSZ(name, params, ...) \
	ROW(CAPTURE_END, name, GP_STREAM_LEGACY, params, __VA_ARGS__) \
	ROW(CAPTURE_END, name##_ptsz, GP_STREAM_PER_THREAD, params, __VA_ARGS__)
#define DESTROY(name, params, ...) ROW(DESTROY, name, GP_STREAM_LEGACY, params, __VA_ARGS__)
#define CONTEXT(name, params, ...) ROW(CONTEXT, name, GP_STREAM_LEGACY, params, __VA_ARGS__)
#define STREAM_CREATE(name, params, ...) ROW(STREAM_CREATE, name, GP_STREAM_LEGACY, params, __VA_ARGS__)
#define CHECKPOINT(name, params, ...) ROW(CHECKPOINT, name, GP_STREAM_LEGACY, params, __VA_ARGS__)
#define PASS(name, params, args) ROW(PASS, name, GP_STREAM_LEGACY, params, args, )
#define OWN(name, params, args) ROW(OWN, name, GP_STREAM_LEGACY, params, args, )
#define OWN_PTSZ(name, params, args) \
	OWN(name, params, args) \
	ROW(OWN, name##_ptsz, GP_STREAM_PER_THREAD, params, args, )

// Start-up and lookup, in intercept.c and lookup.c.
OWN(cuInit, (unsigned int Flags), (Flags))
OWN(cuGetProcAddress, (const char *symbol, void **pfn, int cudaVersion, uint64_t flags), (symbol, pfn, cudaVersion, flags))
OWN(cuGetProcAddress_v2, (const char *symbol, void **pfn, int cudaVersion, uint64_t flags, void *symbolStatus),
    (symbol, pfn, cudaVersion, flags, symbolStatus))

// Kernels and graphs. cuLaunchKernelEx and the multi-device launch are in intercept.c. The oldest launches are opaque work:
// they take their parameters and block shape beforehand (cuParamSetv, cuFuncSetBlockShape).
SUBMIT_PTSZ(cuLaunchKernel,
	    (CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ, unsigned int blockDimX,
	     unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
	     void **kernelParams, void **extra),
	    (f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes, hStream, kernelParams, extra),
	    GP_LAUNCH_ON(STREAM(hStream)),
	    .launch = {.function = f,
		       .grid = {gridDimX, gridDimY, gridDimZ},
		       .block = {blockDimX, blockDimY, blockDimZ},
		       .shared_bytes = sharedMemBytes,
		       .cooperative = false,
		       .attribute_count = 0,
		       .attributes = NULL,
		       .parameters = kernelParams,
		       .extra = extra,
		       .unused = 0})
SUBMIT_PTSZ(cuLaunchCooperativeKernel,
	    (CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ, unsigned int blockDimX,
	     unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
	     void **kernelParams),
	    (f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes, hStream, kernelParams),
	    GP_LAUNCH_ON(STREAM(hStream)),
	    .launch = {.function = f,
		       .grid = {gridDimX, gridDimY, gridDimZ},
		       .block = {blockDimX, blockDimY, blockDimZ},
		       .shared_bytes = sharedMemBytes,
		       .cooperative = true,
		       .attribute_count = 0,
		       .attributes = NULL,
		       .parameters = kernelParams,
		       .extra = NULL,
		       .unused = 0})
OWN_PTSZ(cuLaunchKernelEx, (const void *config, CUfunction f, void **kernelParams, void **extra),
	 (config, f, kernelParams, extra))
OWN(cuLaunchCooperativeKernelMultiDevice, (void *launchParamsList, unsigned int numDevices, unsigned int flags),
    (launchParamsList, numDevices, flags))
SUBMIT(cuLaunch, (CUfunction f), (f), .work = GP_OTHER, .launch = {.function = f}, .stream = STREAM(NULL))
SUBMIT(cuLaunchGrid, (CUfunction f, int grid_width, int grid_height), (f, grid_width, grid_height), .work = GP_OTHER,
       .launch = {.function = f}, .stream = STREAM(NULL))
SUBMIT(cuLaunchGridAsync, (CUfunction f, int grid_width, int grid_height, CUstream hStream),
       (f, grid_width, grid_height, hStream), .work = GP_OTHER, .launch = {.function = f}, .stream = STREAM(hStream))
SUBMIT_PTSZ(cuGraphLaunch, (CUgraphExec hGraphExec, CUstream hStream), (hGraphExec, hStream), .work = GP_GRAPH,
	    .graph = hGraphExec, .stream = STREAM(hStream))

// Copies. Without a stream they run on the default stream. Copies between host and device may wait until they are done; those within
// device memory do not (preempt/process/copies.c).
SUBMIT(cuMemcpyHtoD, (unsigned int dstDevice, const void *srcHost, unsigned int ByteCount),
       (dstDevice, srcHost, ByteCount), .work = GP_COPY, .blocking = true, .stream = STREAM(NULL),
       .memory = {.host = ByteCount ? srcHost : NULL})
SUBMIT(cuMemcpyDtoH, (void *dstHost, unsigned int srcDevice, unsigned int ByteCount), (dstHost, srcDevice, ByteCount),
       .work = GP_COPY, .blocking = true, .stream = STREAM(NULL))
SUBMIT(cuMemcpyDtoD, (unsigned int dstDevice, unsigned int srcDevice, unsigned int ByteCount),
       (dstDevice, srcDevice, ByteCount), .work = GP_COPY, .stream = STREAM(NULL))
SUBMIT(cuMemcpyDtoA, (void *dstArray, unsigned int dstOffset, unsigned int srcDevice, unsigned int ByteCount),
       (dstArray, dstOffset, srcDevice, ByteCount), .work = GP_COPY, .stream = STREAM(NULL))
SUBMIT(cuMemcpyAtoD, (unsigned int dstDevice, void *srcArray, unsigned int srcOffset, unsigned int ByteCount),
       (dstDevice, srcArray, srcOffset, ByteCount), .work = GP_COPY, .stream = STREAM(NULL))
SUBMIT(cuMemcpyHtoA, (void *dstArray, unsigned int dstOffset, const void *srcHost, unsigned int ByteCount),
       (dstArray, dstOffset, srcHost, ByteCount), .work = GP_COPY, .blocking = true, .stream = STREAM(NULL),
       .memory = {.host = ByteCount ? srcHost : NULL})
SUBMIT(cuMemcpyAtoH, (void *dstHost, void *srcArray, unsigned int srcOffset, unsigned int ByteCount),
       (dstHost, srcArray, srcOffset, ByteCount), .work = GP_COPY, .blocking = true, .stream = STREAM(NULL))
SUBMIT(cuMemcpyAtoA,
       (void *dstArray, unsigned int dstOffset, void *srcArray, unsigned int srcOffset, unsigned int ByteCount),
       (dstArray, dstOffset, srcArray, srcOffset, ByteCount), .work = GP_COPY, .stream = STREAM(NULL))
SUBMIT(cuMemcpyHtoAAsync,
       (void *dstArray, unsigned int dstOffset, const void *srcHost, unsigned int ByteCount, CUstream hStream),
       (dstArray, dstOffset, srcHost, ByteCount, hStream), .work = GP_COPY, .stream = STREAM(hStream))
SUBMIT(cuMemcpyAtoHAsync,
       (void *dstHost, void *srcArray, unsigned int srcOffset, unsigned int ByteCount, CUstream hStream),
       (dstHost, srcArray, srcOffset, ByteCount, hStream), .work = GP_COPY, .stream = STREAM(hStream))
SUBMIT(cuMemcpy2D, (const void *pCopy), (pCopy), .work = GP_COPY, .blocking = true, .stream = STREAM(NULL))
SUBMIT(cuMemcpy2DUnaligned, (const void *pCopy), (pCopy), .work = GP_COPY, .blocking = true, .stream = STREAM(NULL))
SUBMIT(cuMemcpy3D, (const void *pCopy), (pCopy), .work = GP_COPY, .blocking = true, .stream = STREAM(NULL))
SUBMIT(cuMemcpyHtoDAsync, (unsigned int dstDevice, const void *srcHost, unsigned int ByteCount, CUstream hStream),
       (dstDevice, srcHost, ByteCount, hStream), .work = GP_COPY, .stream = STREAM(hStream))
SUBMIT(cuMemcpyDtoHAsync, (void *dstHost, unsigned int srcDevice, unsigned int ByteCount, CUstream hStream),
       (dstHost, srcDevice, ByteCount, hStream), .work = GP_COPY, .stream = STREAM(hStream))
SUBMIT(cuMemcpyDtoDAsync, (unsigned int dstDevice, unsigned int srcDevice, unsigned int ByteCount, CUstream hStream),
       (dstDevice, srcDevice, ByteCount, hStream), .work = GP_COPY, .stream = STREAM(hStream))
SUBMIT(cuMemcpy2DAsync, (const void *pCopy, CUstream hStream), (pCopy, hStream), .work = GP_COPY, .stream = STREAM(hStream))
SUBMIT(cuMemcpy3DAsync, (const void *pCopy, CUstream hStream), (pCopy, hStream), .work = GP_COPY, .stream = STREAM(hStream))
SUBMIT_PTDS(cuMemcpyHtoD_v2, (CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount),
	    (dstDevice, srcHost, ByteCount), .work = GP_COPY, .blocking = true, .stream = STREAM(NULL),
	    .memory = {.host = ByteCount ? srcHost : NULL})
SUBMIT_PTDS(cuMemcpyDtoH_v2, (void *dstHost, CUdeviceptr srcDevice, size_t ByteCount), (dstHost, srcDevice, ByteCount),
	    .work = GP_COPY, .blocking = true, .stream = STREAM(NULL), .memory = {.to_host = ByteCount})
SUBMIT_PTDS(cuMemcpyDtoD_v2, (CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount),
	    (dstDevice, srcDevice, ByteCount), .work = GP_COPY, .stream = STREAM(NULL),
	    .memory = {.to = dstDevice, .from = srcDevice, .width = ByteCount, .height = 1, .element_bytes = 1})
SUBMIT_PTDS(cuMemcpyDtoA_v2, (void *dstArray, size_t dstOffset, CUdeviceptr srcDevice, size_t ByteCount),
	    (dstArray, dstOffset, srcDevice, ByteCount), .work = GP_COPY, .stream = STREAM(NULL))
SUBMIT_PTDS(cuMemcpyAtoD_v2, (CUdeviceptr dstDevice, void *srcArray, size_t srcOffset, size_t ByteCount),
	    (dstDevice, srcArray, srcOffset, ByteCount), .work = GP_COPY, .stream = STREAM(NULL))
SUBMIT_PTDS(cuMemcpyHtoA_v2, (void *dstArray, size_t dstOffset, const void *srcHost, size_t ByteCount),
	    (dstArray, dstOffset, srcHost, ByteCount), .work = GP_COPY, .blocking = true, .stream = STREAM(NULL),
	    .memory = {.host = ByteCount ? srcHost : NULL})
SUBMIT_PTDS(cuMemcpyAtoH_v2, (void *dstHost, void *srcArray, size_t srcOffset, size_t ByteCount),
	    (dstHost, srcArray, srcOffset, ByteCount), .work = GP_COPY, .blocking = true, .stream = STREAM(NULL))
SUBMIT_PTDS(cuMemcpyAtoA_v2, (void *dstArray, size_t dstOffset, void *srcArray, size_t srcOffset, size_t ByteCount),
	    (dstArray, dstOffset, srcArray, srcOffset, ByteCount), .work = GP_COPY, .stream = STREAM(NULL))
SUBMIT_PTSZ(cuMemcpyHtoAAsync_v2,
	    (void *dstArray, size_t dstOffset, const void *srcHost, size_t ByteCount, CUstream hStream),
	    (dstArray, dstOffset, srcHost, ByteCount, hStream), .work = GP_COPY, .stream = STREAM(hStream))
SUBMIT_PTSZ(cuMemcpyAtoHAsync_v2, (void *dstHost, void *srcArray, size_t srcOffset, size_t ByteCount, CUstream hStream),
	    (dstHost, srcArray, srcOffset, ByteCount, hStream), .work = GP_COPY, .stream = STREAM(hStream))
SUBMIT_PTDS(cuMemcpy2D_v2, (const void *pCopy), (pCopy), .work = GP_COPY, .blocking = true, .stream = STREAM(NULL),
	    .memory = {.copy_2d = pCopy})
SUBMIT_PTDS(cuMemcpy2DUnaligned_v2, (const void *pCopy), (pCopy), .work = GP_COPY, .blocking = true,
	    .stream = STREAM(NULL), .memory = {.copy_2d = pCopy})
SUBMIT_PTDS(cuMemcpy3D_v2, (const void *pCopy), (pCopy), .work = GP_COPY, .blocking = true, .stream = STREAM(NULL),
	    .memory = {.copy_3d = pCopy})
SUBMIT_PTSZ(cuMemcpyHtoDAsync_v2, (CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount, CUstream hStream),
	    (dstDevice, srcHost, ByteCount, hStream), .work = GP_COPY, .stream = STREAM(hStream))
SUBMIT_PTSZ(cuMemcpyDtoHAsync_v2, (void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream),
	    (dstHost, srcDevice, ByteCount, hStream), .work = GP_COPY, .stream = STREAM(hStream),
	    .memory = {.to_host = ByteCount})
SUBMIT_PTSZ(cuMemcpyDtoDAsync_v2, (CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream),
	    (dstDevice, srcDevice, ByteCount, hStream), .work = GP_COPY, .stream = STREAM(hStream),
	    .memory = {.to = dstDevice, .from = srcDevice, .width = ByteCount, .height = 1, .element_bytes = 1})
SUBMIT_PTSZ(cuMemcpy2DAsync_v2, (const void *pCopy, CUstream hStream), (pCopy, hStream), .work = GP_COPY,
	    .stream = STREAM(hStream), .memory = {.copy_2d = pCopy})
SUBMIT_PTSZ(cuMemcpy3DAsync_v2, (const void *pCopy, CUstream hStream), (pCopy, hStream), .work = GP_COPY,
	    .stream = STREAM(hStream))
SUBMIT_PTDS(cuMemcpy, (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount), (dst, src, ByteCount), .work = GP_COPY,
	    .blocking = true, .stream = STREAM(NULL),
	    .memory = {.to = dst, .from = src, .width = ByteCount, .height = 1, .element_bytes = 1})
SUBMIT_PTSZ(cuMemcpyAsync, (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream),
	    (dst, src, ByteCount, hStream), .work = GP_COPY, .stream = STREAM(hStream),
	    .memory = {.to = dst, .from = src, .width = ByteCount, .height = 1, .element_bytes = 1})
SUBMIT_PTDS(cuMemcpyPeer,
	    (CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext, size_t ByteCount),
	    (dstDevice, dstContext, srcDevice, srcContext, ByteCount), .work = GP_COPY, .stream = STREAM(NULL))
SUBMIT_PTSZ(cuMemcpyPeerAsync,
	    (CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext, size_t ByteCount,
	     CUstream hStream),
	    (dstDevice, dstContext, srcDevice, srcContext, ByteCount, hStream), .work = GP_COPY, .stream = STREAM(hStream))
SUBMIT_PTDS(cuMemcpy3DPeer, (const void *pCopy), (pCopy), .work = GP_COPY, .blocking = true, .stream = STREAM(NULL),
	    .memory = {.copy_3d = pCopy})
SUBMIT_PTSZ(cuMemcpy3DPeerAsync, (const void *pCopy, CUstream hStream), (pCopy, hStream), .work = GP_COPY,
	    .stream = STREAM(hStream))
SUBMIT_PTSZ(cuMemcpyBatchAsync,
	    (CUdeviceptr * dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, void *attrs, size_t *attrsIdxs,
	     size_t numAttrs, size_t *failIdx, CUstream hStream),
	    (dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, failIdx, hStream), .work = GP_COPY,
	    .stream = STREAM(hStream))
SUBMIT_PTSZ(cuMemcpy3DBatchAsync,
	    (size_t numOps, void *opList, size_t *failIdx, unsigned long long flags, CUstream hStream),
	    (numOps, opList, failIdx, flags, hStream), .work = GP_COPY, .stream = STREAM(hStream))
SUBMIT_PTSZ(cuMemcpyBatchAsync_v2,
	    (CUdeviceptr * dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, void *attrs, size_t *attrsIdxs,
	     size_t numAttrs, CUstream hStream),
	    (dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, hStream), .work = GP_COPY, .stream = STREAM(hStream))
SUBMIT_PTSZ(cuMemcpy3DBatchAsync_v2, (size_t numOps, void *opList, unsigned long long flags, CUstream hStream),
	    (numOps, opList, flags, hStream), .work = GP_COPY, .stream = STREAM(hStream))

SUBMIT_PTSZ(cuMemcpyWithAttributesAsync, (CUdeviceptr dst, CUdeviceptr src, size_t size, void *attr, CUstream hStream),
	    (dst, src, size, attr, hStream), .work = GP_COPY, .stream = STREAM(hStream))
SUBMIT_PTSZ(cuMemcpy3DWithAttributesAsync, (void *op, unsigned long long flags, CUstream hStream), (op, flags, hStream),
	    .work = GP_COPY, .stream = STREAM(hStream))
SUBMIT_PTSZ(cuFabricCpyBatchAsync, (size_t numOps, void *opList, unsigned long long flags, CUstream hStream),
	    (numOps, opList, flags, hStream), .work = GP_COPY, .cpu = true, .stream = STREAM(hStream))

// Memsets. None waits for the device.
SUBMIT(cuMemsetD8, (unsigned int dstDevice, unsigned char uc, unsigned int N), (dstDevice, uc, N), .work = GP_MEMSET,
       .stream = STREAM(NULL))
SUBMIT(cuMemsetD16, (unsigned int dstDevice, unsigned short us, unsigned int N), (dstDevice, us, N), .work = GP_MEMSET,
       .stream = STREAM(NULL))
SUBMIT(cuMemsetD32, (unsigned int dstDevice, unsigned int ui, unsigned int N), (dstDevice, ui, N), .work = GP_MEMSET,
       .stream = STREAM(NULL))
SUBMIT(cuMemsetD2D8,
       (unsigned int dstDevice, unsigned int dstPitch, unsigned char uc, unsigned int Width, unsigned int Height),
       (dstDevice, dstPitch, uc, Width, Height), .work = GP_MEMSET, .stream = STREAM(NULL))
SUBMIT(cuMemsetD2D16,
       (unsigned int dstDevice, unsigned int dstPitch, unsigned short us, unsigned int Width, unsigned int Height),
       (dstDevice, dstPitch, us, Width, Height), .work = GP_MEMSET, .stream = STREAM(NULL))
SUBMIT(cuMemsetD2D32,
       (unsigned int dstDevice, unsigned int dstPitch, unsigned int ui, unsigned int Width, unsigned int Height),
       (dstDevice, dstPitch, ui, Width, Height), .work = GP_MEMSET, .stream = STREAM(NULL))
SUBMIT_PTDS(cuMemsetD8_v2, (CUdeviceptr dstDevice, unsigned char uc, size_t N), (dstDevice, uc, N), .work = GP_MEMSET,
	    .stream = STREAM(NULL), .memory = {.to = dstDevice, .width = N, .height = 1, .value = uc, .element_bytes = 1})
SUBMIT_PTDS(cuMemsetD16_v2, (CUdeviceptr dstDevice, unsigned short us, size_t N), (dstDevice, us, N), .work = GP_MEMSET,
	    .stream = STREAM(NULL), .memory = {.to = dstDevice, .width = N, .height = 1, .value = us, .element_bytes = 2})
SUBMIT_PTDS(cuMemsetD32_v2, (CUdeviceptr dstDevice, unsigned int ui, size_t N), (dstDevice, ui, N), .work = GP_MEMSET,
	    .stream = STREAM(NULL), .memory = {.to = dstDevice, .width = N, .height = 1, .value = ui, .element_bytes = 4})
SUBMIT_PTDS(cuMemsetD2D8_v2, (CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width, size_t Height),
	    (dstDevice, dstPitch, uc, Width, Height), .work = GP_MEMSET, .stream = STREAM(NULL),
	    .memory = {.to = dstDevice, .to_pitch = dstPitch, .width = Width, .height = Height, .value = uc, .element_bytes = 1})
SUBMIT_PTDS(cuMemsetD2D16_v2, (CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width, size_t Height),
	    (dstDevice, dstPitch, us, Width, Height), .work = GP_MEMSET, .stream = STREAM(NULL),
	    .memory = {.to = dstDevice, .to_pitch = dstPitch, .width = Width, .height = Height, .value = us, .element_bytes = 2})
SUBMIT_PTDS(cuMemsetD2D32_v2, (CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width, size_t Height),
	    (dstDevice, dstPitch, ui, Width, Height), .work = GP_MEMSET, .stream = STREAM(NULL),
	    .memory = {.to = dstDevice, .to_pitch = dstPitch, .width = Width, .height = Height, .value = ui, .element_bytes = 4})
SUBMIT_PTSZ(cuMemsetD8Async, (CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream),
	    (dstDevice, uc, N, hStream), .work = GP_MEMSET, .stream = STREAM(hStream),
	    .memory = {.to = dstDevice, .width = N, .height = 1, .value = uc, .element_bytes = 1})
SUBMIT_PTSZ(cuMemsetD16Async, (CUdeviceptr dstDevice, unsigned short us, size_t N, CUstream hStream),
	    (dstDevice, us, N, hStream), .work = GP_MEMSET, .stream = STREAM(hStream),
	    .memory = {.to = dstDevice, .width = N, .height = 1, .value = us, .element_bytes = 2})
SUBMIT_PTSZ(cuMemsetD32Async, (CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream hStream),
	    (dstDevice, ui, N, hStream), .work = GP_MEMSET, .stream = STREAM(hStream),
	    .memory = {.to = dstDevice, .width = N, .height = 1, .value = ui, .element_bytes = 4})
SUBMIT_PTSZ(cuMemsetD2D8Async,
	    (CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width, size_t Height, CUstream hStream),
	    (dstDevice, dstPitch, uc, Width, Height, hStream), .work = GP_MEMSET, .stream = STREAM(hStream),
	    .memory = {.to = dstDevice, .to_pitch = dstPitch, .width = Width, .height = Height, .value = uc, .element_bytes = 1})
SUBMIT_PTSZ(cuMemsetD2D16Async,
	    (CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width, size_t Height, CUstream hStream),
	    (dstDevice, dstPitch, us, Width, Height, hStream), .work = GP_MEMSET, .stream = STREAM(hStream),
	    .memory = {.to = dstDevice, .to_pitch = dstPitch, .width = Width, .height = Height, .value = us, .element_bytes = 2})
SUBMIT_PTSZ(cuMemsetD2D32Async,
	    (CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width, size_t Height, CUstream hStream),
	    (dstDevice, dstPitch, ui, Width, Height, hStream), .work = GP_MEMSET, .stream = STREAM(hStream),
	    .memory = {.to = dstDevice, .to_pitch = dstPitch, .width = Width, .height = Height, .value = ui, .element_bytes = 4})

// Everything else that a stream carries in order.
SUBMIT_PTSZ(cuStreamWaitEvent, (CUstream hStream, CUevent hEvent, unsigned int Flags), (hStream, hEvent, Flags),
	    .work = GP_AWAIT, .event = hEvent, .stream = STREAM(hStream))
SUBMIT_PTSZ(cuStreamAddCallback, (CUstream hStream, void *callback, void *userData, unsigned int flags),
	    (hStream, callback, userData, flags), .work = GP_OTHER, .cpu = true, .stream = STREAM(hStream))
SUBMIT_PTSZ(cuStreamAttachMemAsync, (CUstream hStream, CUdeviceptr dptr, size_t length, unsigned int flags),
	    (hStream, dptr, length, flags), .work = GP_OTHER, .stream = STREAM(hStream))
SUBMIT_PTSZ(cuLaunchHostFunc, (CUstream hStream, void *fn, void *userData), (hStream, fn, userData), .work = GP_OTHER,
	    .cpu = true, .stream = STREAM(hStream))
SUBMIT_PTSZ(cuLaunchHostFunc_v2, (CUstream hStream, void *fn, void *userData, unsigned int syncMode),
	    (hStream, fn, userData, syncMode), .work = GP_OTHER, .cpu = true, .stream = STREAM(hStream))
SUBMIT_PTSZ(cuGraphicsMapResources, (unsigned int count, void **resources, CUstream hStream),
	    (count, resources, hStream), .work = GP_OTHER, .cpu = true, .stream = STREAM(hStream))
SUBMIT_PTSZ(cuGraphicsUnmapResources, (unsigned int count, void **resources, CUstream hStream),
	    (count, resources, hStream), .work = GP_OTHER, .stream = STREAM(hStream))
// Frames of EGL streams: the program names the stream by its address, and NULL there is the default stream.
SUBMIT(cuEGLStreamConsumerAcquireFrame, (void **conn, void **pCudaResource, CUstream *pStream, unsigned int timeout),
       (conn, pCudaResource, pStream, timeout), .work = GP_FRAME, .cpu = true, .stream = STREAM(pStream ? *pStream : NULL))
SUBMIT(cuEGLStreamConsumerReleaseFrame, (void **conn, void *pCudaResource, CUstream *pStream),
       (conn, pCudaResource, pStream), .work = GP_OTHER, .stream = STREAM(pStream ? *pStream : NULL))
SUBMIT(cuEGLStreamProducerPresentFrame, (void **conn, CUeglFrame eglframe, CUstream *pStream),
       (conn, eglframe, pStream), .work = GP_OTHER, .stream = STREAM(pStream ? *pStream : NULL))
SUBMIT(cuEGLStreamProducerReturnFrame, (void **conn, void *eglframe, CUstream *pStream), (conn, eglframe, pStream),
       .work = GP_FRAME, .cpu = true, .stream = STREAM(pStream ? *pStream : NULL))
SUBMIT(cuGLMapBufferObject, (unsigned int *dptr, unsigned int *size, unsigned int buffer), (dptr, size, buffer),
       .work = GP_OTHER, .cpu = true, .stream = STREAM(NULL))
SUBMIT_PTDS(cuGLMapBufferObject_v2, (CUdeviceptr * dptr, size_t *size, unsigned int buffer), (dptr, size, buffer),
	    .work = GP_OTHER, .cpu = true, .stream = STREAM(NULL))
SUBMIT(cuGLUnmapBufferObject, (unsigned int buffer), (buffer), .work = GP_OTHER, .stream = STREAM(NULL))
SUBMIT(cuGLMapBufferObjectAsync, (unsigned int *dptr, unsigned int *size, unsigned int buffer, CUstream hStream),
       (dptr, size, buffer, hStream), .work = GP_OTHER, .cpu = true, .stream = STREAM(hStream))
SUBMIT_PTSZ(cuGLMapBufferObjectAsync_v2, (CUdeviceptr * dptr, size_t *size, unsigned int buffer, CUstream hStream),
	    (dptr, size, buffer, hStream), .work = GP_OTHER, .cpu = true, .stream = STREAM(hStream))
SUBMIT(cuGLUnmapBufferObjectAsync, (unsigned int buffer, CUstream hStream), (buffer, hStream), .work = GP_OTHER,
       .stream = STREAM(hStream))
SUBMIT_PTSZ(cuStreamWriteValue32, (CUstream stream, CUdeviceptr addr, uint32_t value, unsigned int flags),
	    (stream, addr, value, flags), .work = GP_OTHER, .stream = STREAM(stream))
SUBMIT_PTSZ(cuStreamWaitValue32, (CUstream stream, CUdeviceptr addr, uint32_t value, unsigned int flags),
	    (stream, addr, value, flags), .work = GP_OTHER, .cpu = true, .stream = STREAM(stream))
SUBMIT_PTSZ(cuStreamWriteValue64, (CUstream stream, CUdeviceptr addr, uint64_t value, unsigned int flags),
	    (stream, addr, value, flags), .work = GP_OTHER, .stream = STREAM(stream))
SUBMIT_PTSZ(cuStreamWaitValue64, (CUstream stream, CUdeviceptr addr, uint64_t value, unsigned int flags),
	    (stream, addr, value, flags), .work = GP_OTHER, .cpu = true, .stream = STREAM(stream))
SUBMIT_PTSZ(cuStreamBatchMemOp, (CUstream stream, unsigned int count, void *paramArray, unsigned int flags),
	    (stream, count, paramArray, flags), .work = GP_OTHER, .cpu = true, .stream = STREAM(stream))
SUBMIT_PTSZ(cuStreamWriteValue32_v2, (CUstream stream, CUdeviceptr addr, uint32_t value, unsigned int flags),
	    (stream, addr, value, flags), .work = GP_OTHER, .stream = STREAM(stream))
SUBMIT_PTSZ(cuStreamWaitValue32_v2, (CUstream stream, CUdeviceptr addr, uint32_t value, unsigned int flags),
	    (stream, addr, value, flags), .work = GP_OTHER, .cpu = true, .stream = STREAM(stream))
SUBMIT_PTSZ(cuStreamWriteValue64_v2, (CUstream stream, CUdeviceptr addr, uint64_t value, unsigned int flags),
	    (stream, addr, value, flags), .work = GP_OTHER, .stream = STREAM(stream))
SUBMIT_PTSZ(cuStreamWaitValue64_v2, (CUstream stream, CUdeviceptr addr, uint64_t value, unsigned int flags),
	    (stream, addr, value, flags), .work = GP_OTHER, .cpu = true, .stream = STREAM(stream))
SUBMIT_PTSZ(cuStreamBatchMemOp_v2, (CUstream stream, unsigned int count, void *paramArray, unsigned int flags),
	    (stream, count, paramArray, flags), .work = GP_OTHER, .cpu = true, .stream = STREAM(stream))
SUBMIT_PTSZ(cuMemPrefetchAsync, (CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream),
	    (devPtr, count, dstDevice, hStream), .work = GP_OTHER, .stream = STREAM(hStream))
SUBMIT_PTSZ(cuMemPrefetchAsync_v2,
	    (CUdeviceptr devPtr, size_t count, CUmemLocation location, unsigned int flags, CUstream hStream),
	    (devPtr, count, location, flags, hStream), .work = GP_OTHER, .stream = STREAM(hStream))
SUBMIT_PTSZ(cuMemPrefetchBatchAsync,
	    (CUdeviceptr * dptrs, size_t *sizes, size_t count, void *prefetchLocs, size_t *prefetchLocIdxs,
	     size_t numPrefetchLocs, unsigned long long flags, CUstream hStream),
	    (dptrs, sizes, count, prefetchLocs, prefetchLocIdxs, numPrefetchLocs, flags, hStream), .work = GP_OTHER,
	    .stream = STREAM(hStream))
SUBMIT_PTSZ(cuMemDiscardBatchAsync,
	    (CUdeviceptr * dptrs, size_t *sizes, size_t count, unsigned long long flags, CUstream hStream),
	    (dptrs, sizes, count, flags, hStream), .work = GP_OTHER, .stream = STREAM(hStream))
SUBMIT_PTSZ(cuMemDiscardAndPrefetchBatchAsync,
	    (CUdeviceptr * dptrs, size_t *sizes, size_t count, void *prefetchLocs, size_t *prefetchLocIdxs,
	     size_t numPrefetchLocs, unsigned long long flags, CUstream hStream),
	    (dptrs, sizes, count, prefetchLocs, prefetchLocIdxs, numPrefetchLocs, flags, hStream), .work = GP_OTHER,
	    .stream = STREAM(hStream))
SUBMIT_PTSZ(cuSignalExternalSemaphoresAsync,
	    (void **extSemArray, const void *paramsArray, unsigned int numExtSems, CUstream stream),
	    (extSemArray, paramsArray, numExtSems, stream), .work = GP_OTHER, .stream = STREAM(stream))
SUBMIT_PTSZ(cuWaitExternalSemaphoresAsync,
	    (void **extSemArray, const void *paramsArray, unsigned int numExtSems, CUstream stream),
	    (extSemArray, paramsArray, numExtSems, stream), .work = GP_OTHER, .cpu = true, .stream = STREAM(stream))
SUBMIT_PTSZ(cuMemMapArrayAsync, (void *mapInfoList, unsigned int count, CUstream hStream),
	    (mapInfoList, count, hStream), .work = GP_OTHER, .stream = STREAM(hStream))
SUBMIT_PTSZ(cuMemFreeAsync, (CUdeviceptr dptr, CUstream hStream), (dptr, hStream), .work = GP_OTHER,
	    .stream = STREAM(hStream))
SUBMIT_PTSZ(cuMemAllocAsync, (CUdeviceptr * dptr, size_t bytesize, CUstream hStream), (dptr, bytesize, hStream),
	    .work = GP_OTHER, .allocates = bytesize, .stream = STREAM(hStream))
SUBMIT_PTSZ(cuMemAllocFromPoolAsync, (CUdeviceptr * dptr, size_t bytesize, void *pool, CUstream hStream),
	    (dptr, bytesize, pool, hStream), .work = GP_OTHER, .allocates = bytesize, .stream = STREAM(hStream))
SUBMIT_PTSZ(cuMemBatchDecompressAsync,
	    (void *paramsArray, size_t count, unsigned int flags, size_t *errorIndex, CUstream stream),
	    (paramsArray, count, flags, errorIndex, stream), .work = GP_OTHER, .stream = STREAM(stream))
SUBMIT(cuCtxWaitEvent, (CUcontext hCtx, CUevent hEvent), (hCtx, hEvent), .work = GP_AWAIT, .event = hEvent,
       .stream = STREAM(NULL), .whole = hCtx)
SUBMIT(cuGreenCtxWaitEvent, (void *hCtx, CUevent hEvent), (hCtx, hEvent), .work = GP_AWAIT, .event = hEvent,
       .stream = STREAM(NULL), .whole_green = hCtx)

// Events. A record of a whole context, or a wait, counts as one on the legacy stream.
SUBMIT_PTSZ(cuEventRecord, (CUevent hEvent, CUstream hStream), (hEvent, hStream), .work = GP_RECORD, .event = hEvent,
	    .stream = STREAM(hStream))
SUBMIT_PTSZ(cuEventRecordWithFlags, (CUevent hEvent, CUstream hStream, unsigned int flags), (hEvent, hStream, flags),
	    .work = GP_RECORD, .event = hEvent, .stream = STREAM(hStream))
SUBMIT(cuCtxRecordEvent, (CUcontext hCtx, CUevent hEvent), (hCtx, hEvent), .work = GP_RECORD, .event = hEvent,
       .stream = STREAM(NULL), .whole = hCtx)
SUBMIT(cuGreenCtxRecordEvent, (void *hCtx, CUevent hEvent), (hCtx, hEvent), .work = GP_RECORD, .event = hEvent,
       .stream = STREAM(NULL), .whole_green = hCtx)

// The CPU waits for a stream, for an event.
WAIT_PTSZ(cuStreamSynchronize, (CUstream hStream), (hStream), GP_WAIT_STREAM, STREAM(hStream))
WAIT(cuEventSynchronize, (CUevent hEvent), (hEvent), GP_WAIT_EVENT, hEvent)
WAIT_PTSZ(cuStreamQuery, (CUstream hStream), (hStream), GP_ASK_STREAM, STREAM(hStream))
WAIT(cuEventQuery, (CUevent hEvent), (hEvent), GP_ASK_EVENT, hEvent)
WAIT(cuEventElapsedTime, (float *pMilliseconds, CUevent hStart, CUevent hEnd), (pMilliseconds, hStart, hEnd),
     GP_ASK_EVENT, hEnd)
WAIT(cuEventElapsedTime_v2, (float *pMilliseconds, CUevent hStart, CUevent hEnd), (pMilliseconds, hStart, hEnd),
     GP_ASK_EVENT, hEnd)
EVENT_DESTROY(cuEventDestroy_v2, (CUevent hEvent), (hEvent), hEvent)
EVENT_DESTROY(cuEventDestroy, (CUevent hEvent), (hEvent), hEvent)
EVENT_SHARED(cuIpcGetEventHandle, (CUipcEventHandle * pHandle, CUevent event), (pHandle, event), event)
EVENT_SHARED(cuIpcOpenEventHandle, (CUevent * phEvent, CUipcEventHandle handle), (phEvent, handle), phEvent ? *phEvent : NULL)

// The CPU waits, or may wait, for the whole context.
WAIT(cuCtxSynchronize, (void), (), GP_WAIT_ALL, GP_CURRENT)
WAIT(cuCtxSynchronize_v2, (CUcontext ctx), (ctx), GP_WAIT_ALL, ctx)
WAIT(cuCtxSetLimit, (int limit, size_t value), (limit, value), GP_WAIT_CONTEXT, NULL)
WAIT(cuCtxResetPersistingL2Cache, (void), (), GP_WAIT_CONTEXT, NULL)
WAIT(cuModuleGetGlobal_v2, (CUdeviceptr * dptr, size_t *bytes, CUmodule hmod, const char *name),
     (dptr, bytes, hmod, name), GP_WAIT_CONTEXT, NULL)
WAIT(cuMemAlloc_v2, (CUdeviceptr * dptr, size_t bytesize), (dptr, bytesize), GP_WAIT_CONTEXT, NULL)
WAIT(cuMemAllocPitch_v2,
     (CUdeviceptr * dptr, size_t *pPitch, size_t WidthInBytes, size_t Height, unsigned int ElementSizeBytes),
     (dptr, pPitch, WidthInBytes, Height, ElementSizeBytes), GP_WAIT_CONTEXT, NULL)
WAIT(cuMemFree_v2, (CUdeviceptr dptr), (dptr), GP_TAKE_MEMORY, ADDRESS(dptr))
WAIT(cuMemAllocHost_v2, (void **pp, size_t bytesize), (pp, bytesize), GP_PIN, NULL)
WAIT(cuMemFreeHost, (void *p), (p), GP_TAKE_MEMORY, ADDRESS(p))
WAIT(cuMemHostAlloc, (void **pp, size_t bytesize, unsigned int Flags), (pp, bytesize, Flags), GP_PIN, NULL)
WAIT(cuMemAllocManaged, (CUdeviceptr * dptr, size_t bytesize, unsigned int flags), (dptr, bytesize, flags),
     GP_WAIT_CONTEXT, NULL)
WAIT(cuIpcOpenMemHandle_v2, (CUdeviceptr * pdptr, CUipcMemHandle handle, unsigned int Flags), (pdptr, handle, Flags),
     GP_WAIT_CONTEXT, NULL)
WAIT(cuIpcCloseMemHandle, (CUdeviceptr dptr), (dptr), GP_TAKE_MEMORY, ADDRESS(dptr))
WAIT(cuMemHostRegister_v2, (void *p, size_t bytesize, unsigned int Flags), (p, bytesize, Flags), GP_PIN, NULL)
WAIT(cuMemHostUnregister, (void *p), (p), GP_TAKE_MEMORY, ADDRESS(p))
WAIT(cuArrayCreate_v2, (void **pHandle, const void *pAllocateArray), (pHandle, pAllocateArray), GP_WAIT_CONTEXT, NULL)
WAIT(cuArrayDestroy, (void *hArray), (hArray), GP_TAKE_ARRAY, NULL)
WAIT(cuArray3DCreate_v2, (void **pHandle, const void *pAllocateArray), (pHandle, pAllocateArray), GP_WAIT_CONTEXT, NULL)
WAIT(cuMipmappedArrayCreate, (void **pHandle, const void *pMipmappedArrayDesc, unsigned int numMipmapLevels),
     (pHandle, pMipmappedArrayDesc, numMipmapLevels), GP_WAIT_CONTEXT, NULL)
WAIT(cuMipmappedArrayDestroy, (void *hMipmappedArray), (hMipmappedArray), GP_TAKE_ARRAY, NULL)
WAIT(cuMemAddressFree, (CUdeviceptr ptr, size_t size), (ptr, size), GP_TAKE_MEMORY, ADDRESS(ptr))
WAIT(cuMemCreate, (unsigned long long *handle, size_t size, const void *prop, unsigned long long flags),
     (handle, size, prop, flags), GP_WAIT_CONTEXT, NULL)
WAIT(cuMemRelease, (unsigned long long handle), (handle), GP_WAIT_CONTEXT, NULL)
WAIT(cuMemMap, (CUdeviceptr ptr, size_t size, size_t offset, unsigned long long handle, unsigned long long flags),
     (ptr, size, offset, handle, flags), GP_WAIT_CONTEXT, NULL)
WAIT(cuMemUnmap, (CUdeviceptr ptr, size_t size), (ptr, size), GP_TAKE_MEMORY, ADDRESS(ptr))
WAIT(cuMemSetAccess, (CUdeviceptr ptr, size_t size, const void *desc, size_t count), (ptr, size, desc, count),
     GP_TAKE_MEMORY, ADDRESS(ptr))
WAIT(cuMemPoolTrimTo, (void *pool, size_t minBytesToKeep), (pool, minBytesToKeep), GP_WAIT_CONTEXT, NULL)
WAIT(cuMemPoolCreate, (void **pool, const void *poolProps), (pool, poolProps), GP_WAIT_CONTEXT, NULL)
WAIT(cuMemPoolDestroy, (void *pool), (pool), GP_TAKE, NULL)
WAIT(cuDestroyExternalMemory, (void *extMem), (extMem), GP_TAKE, NULL)
WAIT(cuDestroyExternalSemaphore, (void *extSem), (extSem), GP_TAKE, NULL)
WAIT(cuDeviceGraphMemTrim, (CUdevice device), (device), GP_WAIT_CONTEXT, NULL)
CHANGE(cuGraphExecUpdate_v2, (CUgraphExec hGraphExec, CUgraph hGraph, void *resultInfo),
       (hGraphExec, hGraph, resultInfo), hGraphExec)
WAIT(cuCtxEnablePeerAccess, (CUcontext peerContext, unsigned int Flags), (peerContext, Flags), GP_WAIT_CONTEXT, NULL)
WAIT(cuCtxDisablePeerAccess, (CUcontext peerContext), (peerContext), GP_TAKE, GP_CURRENT)
WAIT(cuGraphicsUnregisterResource, (void *resource), (resource), GP_TAKE, NULL)
WAIT(cuGreenCtxCreate, (void **phCtx, void *desc, CUdevice dev, unsigned int flags), (phCtx, desc, dev, flags),
     GP_WAIT_CONTEXT, NULL)
WAIT(cuMemHostRegister, (void *p, size_t bytesize, unsigned int Flags), (p, bytesize, Flags), GP_PIN, NULL)
WAIT(cuModuleGetGlobal, (unsigned int *dptr, unsigned int *bytes, CUmodule hmod, const char *name),
     (dptr, bytes, hmod, name), GP_WAIT_CONTEXT, NULL)
WAIT(cuMemAlloc, (unsigned int *dptr, unsigned int bytesize), (dptr, bytesize), GP_WAIT_CONTEXT, NULL)
WAIT(cuMemAllocPitch,
     (unsigned int *dptr, unsigned int *pPitch, unsigned int WidthInBytes, unsigned int Height,
      unsigned int ElementSizeBytes),
     (dptr, pPitch, WidthInBytes, Height, ElementSizeBytes), GP_WAIT_CONTEXT, NULL)
WAIT(cuMemFree, (unsigned int dptr), (dptr), GP_TAKE_MEMORY, ADDRESS(dptr))
WAIT(cuMemAllocHost, (void **pp, unsigned int bytesize), (pp, bytesize), GP_PIN, NULL)
WAIT(cuArrayCreate, (void **pHandle, const void *pAllocateArray), (pHandle, pAllocateArray), GP_WAIT_CONTEXT, NULL)
WAIT(cuArray3DCreate, (void **pHandle, const void *pAllocateArray), (pHandle, pAllocateArray), GP_WAIT_CONTEXT, NULL)
CHANGE(cuGraphExecUpdate, (CUgraphExec hGraphExec, CUgraph hGraph, void **hErrorNode_out, void *updateResult_out),
       (hGraphExec, hGraph, hErrorNode_out, updateResult_out), hGraphExec)
WAIT_PTSZ(cuGraphUpload, (CUgraphExec hGraph, CUstream hStream), (hGraph, hStream), GP_WAIT_CONTEXT, NULL)
WAIT(cuIpcOpenMemHandle, (CUdeviceptr * pdptr, CUipcMemHandle handle, unsigned int Flags), (pdptr, handle, Flags),
     GP_WAIT_CONTEXT, NULL)
WAIT(cuProfilerStart, (void), (), GP_WAIT_CONTEXT, NULL)
WAIT(cuProfilerStop, (void), (), GP_WAIT_CONTEXT, NULL)

// These load the code of a function if it is not loaded yet.
WAIT(cuFuncLoad, (CUfunction function), (function), GP_LOAD, function)
WAIT(cuKernelSetCacheConfig, (CUfunction kernel, int config, CUdevice dev), (kernel, config, dev), GP_LOAD, kernel)
WAIT(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *numBlocks, CUfunction func, int blockSize, size_t dynamicSMemSize),
     (numBlocks, func, blockSize, dynamicSMemSize), GP_LOAD, func)
WAIT(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
     (int *numBlocks, CUfunction func, int blockSize, size_t dynamicSMemSize, unsigned int flags),
     (numBlocks, func, blockSize, dynamicSMemSize, flags), GP_LOAD, func)
WAIT(cuOccupancyMaxPotentialBlockSize,
     (int *minGridSize, int *blockSize, CUfunction func, void *blockSizeToSMemSize, size_t dynamicSMemSize,
      int blockSizeLimit),
     (minGridSize, blockSize, func, blockSizeToSMemSize, dynamicSMemSize, blockSizeLimit), GP_LOAD, func)
WAIT(cuOccupancyMaxPotentialBlockSizeWithFlags,
     (int *minGridSize, int *blockSize, CUfunction func, void *blockSizeToSMemSize, size_t dynamicSMemSize,
      int blockSizeLimit, unsigned int flags),
     (minGridSize, blockSize, func, blockSizeToSMemSize, dynamicSMemSize, blockSizeLimit, flags), GP_LOAD, func)
WAIT(cuOccupancyAvailableDynamicSMemPerBlock, (size_t *dynamicSmemSize, CUfunction func, int numBlocks, int blockSize),
     (dynamicSmemSize, func, numBlocks, blockSize), GP_LOAD, func)
WAIT(cuOccupancyMaxPotentialClusterSize, (int *clusterSize, CUfunction func, const void *config),
     (clusterSize, func, config), GP_LOAD, func)
WAIT(cuOccupancyMaxActiveClusters, (int *numClusters, CUfunction func, const void *config), (numClusters, func, config),
     GP_LOAD, func)

// Code, in intercept_code.c. All but the last seven may wait for the whole context.
OWN(cuModuleLoad, (CUmodule * module, const char *fname), (module, fname))
OWN(cuModuleLoadData, (CUmodule * module, const void *image), (module, image))
OWN(cuModuleLoadDataEx,
    (CUmodule * module, const void *image, unsigned int numOptions, void *options, void **optionValues),
    (module, image, numOptions, options, optionValues))
OWN(cuModuleLoadFatBinary, (CUmodule * module, const void *fatCubin), (module, fatCubin))
OWN(cuModuleUnload, (CUmodule hmod), (hmod))
OWN(cuModuleGetFunction, (CUfunction * hfunc, CUmodule hmod, const char *name), (hfunc, hmod, name))
OWN(cuLibraryLoadData,
    (CUlibrary * library, const void *code, void *jitOptions, void **jitOptionsValues, unsigned int numJitOptions,
     void *libraryOptions, void **libraryOptionValues, unsigned int numLibraryOptions),
    (library, code, jitOptions, jitOptionsValues, numJitOptions, libraryOptions, libraryOptionValues, numLibraryOptions))
OWN(cuLibraryLoadFromFile,
    (CUlibrary * library, const char *fileName, void *jitOptions, void **jitOptionsValues, unsigned int numJitOptions,
     void *libraryOptions, void **libraryOptionValues, unsigned int numLibraryOptions),
    (library, fileName, jitOptions, jitOptionsValues, numJitOptions, libraryOptions, libraryOptionValues, numLibraryOptions))
OWN(cuLibraryUnload, (CUlibrary library), (library))
OWN(cuLibraryGetKernel, (CUfunction * pKernel, CUlibrary library, const char *name), (pKernel, library, name))
OWN(cuLibraryGetKernelCount, (unsigned int *count, CUlibrary lib), (count, lib))
OWN(cuLibraryEnumerateKernels, (CUfunction * kernels, unsigned int numKernels, CUlibrary lib), (kernels, numKernels, lib))
OWN(cuLibraryGetModule, (CUmodule * pMod, CUlibrary library), (pMod, library))
OWN(cuLibraryGetGlobal, (CUdeviceptr * dptr, size_t *bytes, CUlibrary library, const char *name),
    (dptr, bytes, library, name))
OWN(cuLibraryGetManaged, (CUdeviceptr * dptr, size_t *bytes, CUlibrary library, const char *name),
    (dptr, bytes, library, name))
OWN(cuLibraryGetUnifiedFunction, (void **fptr, CUlibrary library, const char *symbol), (fptr, library, symbol))
OWN(cuKernelGetFunction, (CUfunction * pFunc, CUfunction kernel), (pFunc, kernel))
OWN(cuKernelGetLibrary, (CUlibrary * pLib, CUfunction kernel), (pLib, kernel))
OWN(cuKernelGetParamInfo, (CUfunction kernel, size_t paramIndex, size_t *paramOffset, size_t *paramSize),
    (kernel, paramIndex, paramOffset, paramSize))
OWN(cuKernelGetParamCount, (CUfunction kernel, size_t *paramCount), (kernel, paramCount))
OWN(cuFuncGetParamInfo, (CUfunction func, size_t paramIndex, size_t *paramOffset, size_t *paramSize),
    (func, paramIndex, paramOffset, paramSize))
OWN(cuFuncGetParamCount, (CUfunction func, size_t *paramCount), (func, paramCount))
OWN(cuFuncSetAttribute, (CUfunction hfunc, int attrib, int value), (hfunc, attrib, value))
OWN(cuKernelSetAttribute, (int attrib, int val, CUfunction kernel, CUdevice dev), (attrib, val, kernel, dev))

// Kernel nodes of graphs.
NODE(cuGraphAddKernelNode,
     (void **phGraphNode, CUgraph hGraph, const void *dependencies, size_t numDependencies, const void *nodeParams),
     (phGraphNode, hGraph, dependencies, numDependencies, nodeParams), complete_v1, NULL)
NODE(cuGraphAddKernelNode_v2,
     (void **phGraphNode, CUgraph hGraph, const void *dependencies, size_t numDependencies, const void *nodeParams),
     (phGraphNode, hGraph, dependencies, numDependencies, nodeParams), complete_v2, NULL)
NODE(cuGraphKernelNodeSetParams, (void *hNode, const void *nodeParams), (hNode, nodeParams), complete_v1, NULL)
NODE(cuGraphKernelNodeSetParams_v2, (void *hNode, const void *nodeParams), (hNode, nodeParams), complete_v2, NULL)
NODE(cuGraphExecKernelNodeSetParams, (CUgraphExec hGraphExec, void *hNode, const void *nodeParams),
     (hGraphExec, hNode, nodeParams), complete_v1, hGraphExec)
NODE(cuGraphExecKernelNodeSetParams_v2, (CUgraphExec hGraphExec, void *hNode, const void *nodeParams),
     (hGraphExec, hNode, nodeParams), complete_v2, hGraphExec)
NODE(cuGraphAddNode,
     (void **phGraphNode, CUgraph hGraph, const void *dependencies, size_t numDependencies, void *nodeParams),
     (phGraphNode, hGraph, dependencies, numDependencies, nodeParams), complete_any, NULL)
NODE(cuGraphAddNode_v2,
     (void **phGraphNode, CUgraph hGraph, const void *dependencies, const void *dependencyData, size_t numDependencies,
      void *nodeParams),
     (phGraphNode, hGraph, dependencies, dependencyData, numDependencies, nodeParams), complete_any, NULL)
NODE(cuGraphAddNode_v3,
     (void **phGraphNode, CUgraph hGraph, const void *dependencies, const void *dependencyData, size_t numDependencies,
      void *nodeParams),
     (phGraphNode, hGraph, dependencies, dependencyData, numDependencies, nodeParams), complete_any, NULL)
NODE(cuGraphNodeSetParams_v2, (void *hNode, void *nodeParams), (hNode, nodeParams), complete_any, NULL)
NODE(cuGraphNodeSetParams, (void *hNode, void *nodeParams), (hNode, nodeParams), complete_any, NULL)
NODE(cuGraphExecNodeSetParams, (CUgraphExec hGraphExec, void *hNode, void *nodeParams), (hGraphExec, hNode, nodeParams),
     complete_any, hGraphExec)
CHANGE(cuGraphNodeSetEnabled, (CUgraphExec hGraphExec, void *hNode, unsigned int isEnabled),
       (hGraphExec, hNode, isEnabled), hGraphExec)

// Copies and memsets of graphs, and textures: the driver may look what is at an address.
USE(cuGraphAddMemcpyNode,
    (void **phGraphNode, CUgraph hGraph, const void *dependencies, size_t numDependencies, const void *copyParams,
     CUcontext ctx),
    (phGraphNode, hGraph, dependencies, numDependencies, copyParams, ctx))
USE(cuGraphMemcpyNodeSetParams, (void *hNode, const void *nodeParams), (hNode, nodeParams))
USE(cuGraphExecMemcpyNodeSetParams, (CUgraphExec hGraphExec, void *hNode, const void *copyParams, CUcontext ctx),
    (hGraphExec, hNode, copyParams, ctx))
USE(cuGraphAddMemsetNode,
    (void **phGraphNode, CUgraph hGraph, const void *dependencies, size_t numDependencies, const void *memsetParams,
     CUcontext ctx),
    (phGraphNode, hGraph, dependencies, numDependencies, memsetParams, ctx))
USE(cuGraphMemsetNodeSetParams, (void *hNode, const void *nodeParams), (hNode, nodeParams))
USE(cuGraphExecMemsetNodeSetParams, (CUgraphExec hGraphExec, void *hNode, const void *memsetParams, CUcontext ctx),
    (hGraphExec, hNode, memsetParams, ctx))
USE(cuGraphAddBatchMemOpNode,
    (void **phGraphNode, CUgraph hGraph, const void *dependencies, size_t numDependencies, const void *nodeParams),
    (phGraphNode, hGraph, dependencies, numDependencies, nodeParams))
USE(cuGraphBatchMemOpNodeSetParams, (void *hNode, const void *nodeParams), (hNode, nodeParams))
USE(cuGraphExecBatchMemOpNodeSetParams, (CUgraphExec hGraphExec, void *hNode, const void *nodeParams),
    (hGraphExec, hNode, nodeParams))
USE(cuTexObjectCreate,
    (unsigned long long *pTexObject, const void *pResDesc, const void *pTexDesc, const void *pResViewDesc),
    (pTexObject, pResDesc, pTexDesc, pResViewDesc))
USE(cuTexRefSetAddress_v2, (size_t *ByteOffset, void *hTexRef, CUdeviceptr dptr, size_t bytes),
    (ByteOffset, hTexRef, dptr, bytes))
USE(cuTexRefSetAddress, (unsigned int *ByteOffset, void *hTexRef, unsigned int dptr, unsigned int bytes),
    (ByteOffset, hTexRef, dptr, bytes))
USE(cuTexRefSetAddress2D_v3, (void *hTexRef, const void *desc, CUdeviceptr dptr, size_t Pitch),
    (hTexRef, desc, dptr, Pitch))
USE(cuTexRefSetAddress2D_v2, (void *hTexRef, const void *desc, CUdeviceptr dptr, size_t Pitch),
    (hTexRef, desc, dptr, Pitch))
USE(cuTexRefSetAddress2D, (void *hTexRef, const void *desc, unsigned int dptr, unsigned int Pitch),
    (hTexRef, desc, dptr, Pitch))

// Graph instances.
INSTANTIATE(cuGraphInstantiateWithFlags, (CUgraphExec * phGraphExec, CUgraph hGraph, unsigned long long flags),
	    (phGraphExec, hGraph, flags), phGraphExec, hGraph, (void)0)
INSTANTIATE_PTSZ(cuGraphInstantiateWithParams, (CUgraphExec * phGraphExec, CUgraph hGraph, void *instantiateParams),
		 (phGraphExec, hGraph, instantiateParams), phGraphExec, hGraph, refuse_instantiation(instantiateParams))
INSTANTIATE(cuGraphInstantiate,
	    (CUgraphExec * phGraphExec, CUgraph hGraph, void **phErrorNode, char *logBuffer, size_t bufferSize),
	    (phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize), phGraphExec, hGraph,
	    say_nothing(phErrorNode, logBuffer, bufferSize))
INSTANTIATE(cuGraphInstantiate_v2,
	    (CUgraphExec * phGraphExec, CUgraph hGraph, void **phErrorNode, char *logBuffer, size_t bufferSize),
	    (phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize), phGraphExec, hGraph,
	    say_nothing(phErrorNode, logBuffer, bufferSize))
DESTROY(cuGraphExecDestroy, (CUgraphExec hGraphExec), (hGraphExec), GP_GRAPH_INSTANCE, hGraphExec)

// Captures.
CAPTURE_BEGIN_PTSZ(cuStreamBeginCapture, (CUstream hStream), (hStream), STREAM(hStream))
CAPTURE_BEGIN_PTSZ(cuStreamBeginCapture_v2, (CUstream hStream, int mode), (hStream, mode), STREAM(hStream))
CAPTURE_BEGIN_PTSZ(cuStreamBeginCaptureToGraph,
		   (CUstream hStream, CUgraph hGraph, void **dependencies, const void *dependencyData,
		    size_t numDependencies, int mode),
		   (hStream, hGraph, dependencies, dependencyData, numDependencies, mode), STREAM(hStream))
CAPTURE_BEGIN_PTSZ(cuStreamBeginRecaptureToGraph,
		   (CUstream hStream, int mode, CUgraph hGraph, void *callbackFunc, void *userData),
		   (hStream, mode, hGraph, callbackFunc, userData), STREAM(hStream))
CAPTURE_BEGIN_PTSZ(cuStreamBeginCaptureToCig, (CUstream hStream, void *streamCigCaptureParams),
		   (hStream, streamCigCaptureParams), STREAM(hStream))
CAPTURE_END_PTSZ(cuStreamEndCaptureToCig, (CUstream hStream), (hStream), STREAM(hStream))
CAPTURE_END_PTSZ(cuStreamEndCapture, (CUstream hStream, CUgraph *phGraph), (hStream, phGraph), STREAM(hStream))

// Contexts and streams. Primary contexts and cuStreamDestroy are in intercept.c.
CONTEXT(cuCtxCreate_v4, (CUcontext * pctx, void *ctxCreateParams, unsigned int flags, CUdevice dev),
	(pctx, ctxCreateParams, flags, dev), pctx ? *pctx : NULL, dev)
CONTEXT(cuCtxAttach, (CUcontext * pctx, unsigned int flags), (pctx, flags), pctx ? *pctx : NULL, GP_CURRENT_DEVICE)
CONTEXT(cuCtxCreate, (CUcontext * pctx, unsigned int flags, CUdevice dev), (pctx, flags, dev), pctx ? *pctx : NULL, dev)
CONTEXT(cuCtxCreate_v2, (CUcontext * pctx, unsigned int flags, CUdevice dev), (pctx, flags, dev), pctx ? *pctx : NULL, dev)
CONTEXT(cuCtxCreate_v3, (CUcontext * pctx, void *paramsArray, int numParams, unsigned int flags, CUdevice dev),
	(pctx, paramsArray, numParams, flags, dev), pctx ? *pctx : NULL, dev)
CONTEXT(cuCtxFromGreenCtx, (CUcontext * pContext, void *hCtx), (pContext, hCtx), pContext ? *pContext : NULL,
	GP_CURRENT_DEVICE)
CONTEXT(cuCtxPushCurrent_v2, (CUcontext ctx), (ctx), ctx, device_of(ctx))
CONTEXT(cuCtxSetCurrent, (CUcontext ctx), (ctx), ctx, device_of(ctx))
CONTEXT(cuCtxPushCurrent, (CUcontext ctx), (ctx), ctx, device_of(ctx))
OWN(cuDevicePrimaryCtxRetain, (CUcontext * pctx, CUdevice dev), (pctx, dev))
OWN(cuDevicePrimaryCtxRelease_v2, (CUdevice dev), (dev))
OWN(cuDevicePrimaryCtxReset_v2, (CUdevice dev), (dev))
OWN(cuDevicePrimaryCtxRelease, (CUdevice dev), (dev))
OWN(cuDevicePrimaryCtxReset, (CUdevice dev), (dev))
DESTROY(cuCtxDestroy_v2, (CUcontext ctx), (ctx), GP_CONTEXT, ctx)
DESTROY(cuCtxDetach, (CUcontext ctx), (ctx), GP_CONTEXT, ctx)
DESTROY(cuCtxDestroy, (CUcontext ctx), (ctx), GP_CONTEXT, ctx)
STREAM_CREATE(cuStreamCreate, (CUstream * phStream, unsigned int Flags), (phStream, Flags), phStream, Flags, 0)
STREAM_CREATE(cuStreamCreateWithPriority, (CUstream * phStream, unsigned int flags, int priority),
	      (phStream, flags, priority), phStream, flags, priority)
OWN(cuGreenCtxDestroy, (void *hCtx), (hCtx))
OWN(cuGreenCtxStreamCreate, (CUstream * phStream, void *greenCtx, unsigned int flags, int priority),
    (phStream, greenCtx, flags, priority))
OWN_PTSZ(cuStreamGetPriority, (CUstream hStream, int *priority), (hStream, priority))
DESTROY(cuStreamDestroy_v2, (CUstream hStream), (hStream), GP_STREAM, hStream)
DESTROY(cuStreamDestroy, (CUstream hStream), (hStream), GP_STREAM, hStream)

// Questions about memory, and its export to processes and multicast objects.
PASS(cuMemGetInfo_v2, (size_t *free, size_t *total), (free, total))
PASS(cuDeviceTotalMem_v2, (size_t *bytes, CUdevice dev), (bytes, dev))
PASS(cuMemGetAddressRange_v2, (CUdeviceptr * pbase, size_t *psize, CUdeviceptr dptr), (pbase, psize, dptr))
PASS(cuPointerGetAttribute, (void *data, int attribute, CUdeviceptr ptr), (data, attribute, ptr))
PASS(cuPointerGetAttributes, (unsigned int numAttributes, int *attributes, void **data, CUdeviceptr ptr),
     (numAttributes, attributes, data, ptr))
PASS(cuPointerSetAttribute, (const void *value, int attribute, CUdeviceptr ptr), (value, attribute, ptr))
PASS(cuIpcGetMemHandle, (CUipcMemHandle * pHandle, CUdeviceptr dptr), (pHandle, dptr))
PASS(cuMemGetHandleForAddressRange,
     (void *handle, CUdeviceptr dptr, size_t size, int handleType, unsigned long long flags),
     (handle, dptr, size, handleType, flags))
PASS(cuMemGetAccess, (unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr), (flags, location, ptr))
PASS(cuMemRetainAllocationHandle, (unsigned long long *handle, void *addr), (handle, addr))
PASS(cuMemGetAllocationPropertiesFromHandle, (void *prop, unsigned long long handle), (prop, handle))
PASS(cuMemExportToShareableHandle,
     (void *shareableHandle, unsigned long long handle, int handleType, unsigned long long flags),
     (shareableHandle, handle, handleType, flags))
PASS(cuMulticastBindMem,
     (unsigned long long mcHandle, size_t mcOffset, unsigned long long memHandle, size_t memOffset, size_t size,
      unsigned long long flags),
     (mcHandle, mcOffset, memHandle, memOffset, size, flags))
PASS(cuMulticastBindMem_v2,
     (unsigned long long mcHandle, CUdevice dev, size_t mcOffset, unsigned long long memHandle, size_t memOffset,
      size_t size, unsigned long long flags),
     (mcHandle, dev, mcOffset, memHandle, memOffset, size, flags))
PASS(cuMulticastBindAddr,
     (unsigned long long mcHandle, size_t mcOffset, CUdeviceptr memptr, size_t size, unsigned long long flags),
     (mcHandle, mcOffset, memptr, size, flags))
PASS(cuMulticastBindAddr_v2,
     (unsigned long long mcHandle, CUdevice dev, size_t mcOffset, CUdeviceptr memptr, size_t size, unsigned long long flags),
     (mcHandle, dev, mcOffset, memptr, size, flags))
PASS(cuLogicalEndpointBindMem,
     (uint32_t leId, CUdevice dev, uint64_t offset, unsigned long long memHandle, uint64_t memOffset, uint64_t size,
      unsigned long long flags),
     (leId, dev, offset, memHandle, memOffset, size, flags))
PASS(cuLogicalEndpointBindAddr,
     (uint32_t leId, CUdevice dev, uint64_t offset, void *ptr, uint64_t size, unsigned long long flags),
     (leId, dev, offset, ptr, size, flags))

// The process may be another one: that is its own business.
CHECKPOINT(cuCheckpointProcessLock, (int pid, void *args), (pid, args), pid, GP_CHECKPOINT_LOCK)
CHECKPOINT(cuCheckpointProcessCheckpoint, (int pid, void *args), (pid, args), pid, GP_CHECKPOINT_SAVE)
CHECKPOINT(cuCheckpointProcessRestore, (int pid, void *args), (pid, args), pid, GP_CHECKPOINT_RESTORE)
CHECKPOINT(cuCheckpointProcessUnlock, (int pid, void *args), (pid, args), pid, GP_CHECKPOINT_UNLOCK)

// Called, not intercepted.
CALLED(cuFuncGetAttribute, (int *pi, int attrib, CUfunction hfunc))
CALLED(cuKernelGetAttribute, (int *pi, int attrib, CUfunction kernel, CUdevice dev))
CALLED(cuCtxGetCurrent, (CUcontext * pctx))
CALLED(cuDevicePrimaryCtxGetState, (CUdevice dev, unsigned int *flags, int *active))
CALLED(cuStreamIsCapturing, (CUstream hStream, void *captureStatus))

#undef SUBMIT
#undef SUBMIT_PTSZ
#undef SUBMIT_PTDS
#undef CHANGE
#undef NODE
#undef USE
#undef EVENT_DESTROY
#undef EVENT_SHARED
#undef WAIT
#undef WAIT_PTSZ
#undef INSTANTIATE
#undef INSTANTIATE_PTSZ
#undef CAPTURE_BEGIN_PTSZ
#undef CAPTURE_END_PTSZ
#undef DESTROY
#undef CONTEXT
#undef STREAM_CREATE
#undef CHECKPOINT
#undef PASS
#undef OWN
#undef OWN_PTSZ
#undef ROW
#undef CALLED
