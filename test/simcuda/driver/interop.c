// interop.c - what every driver has and programs ask for, whether or not they use it: for OpenGL, and descriptions of tensors
// for the bulk copies of Hopper. Nothing of it is simulated.
#include "sim.h"

DUAL(cuGLMapBufferObjectAsync_v2, _ptsz, (CUdeviceptr * p, size_t *n, unsigned buffer, CUstream s), (p, n, buffer, s))
{
	(void)p, (void)n, (void)buffer, (void)s;
	return CUDA_ERROR_NOT_SUPPORTED;
}

CALL(cuGLMapBufferObject_v2, (CUdeviceptr * p, size_t *n, unsigned buffer), (p, n, buffer))
{
	return cuGLMapBufferObjectAsync_v2_common(p, n, buffer, STREAM_LEGACY);
}

CALL(cuGLMapBufferObject_v2_ptds, (CUdeviceptr * p, size_t *n, unsigned buffer), (p, n, buffer))
{
	return cuGLMapBufferObjectAsync_v2_common(p, n, buffer, STREAM_LEGACY);
}

CALL(cuGLUnmapBufferObject, (unsigned buffer), (buffer))
{
	(void)buffer;
	return CUDA_ERROR_NOT_SUPPORTED;
}

CALL(cuGLUnmapBufferObjectAsync, (unsigned buffer, CUstream s), (buffer, s))
{
	(void)buffer, (void)s;
	return CUDA_ERROR_NOT_SUPPORTED;
}

CALL(cuTensorMapEncodeTiled,
     (void *map, int type, unsigned rank, void *address, const uint64_t *sizes, const uint64_t *strides,
      const unsigned *box, const unsigned *steps, int interleave, int swizzle, int promotion, int fill),
     (map, type, rank, address, sizes, strides, box, steps, interleave, swizzle, promotion, fill))
{
	(void)map, (void)type, (void)rank, (void)address, (void)sizes, (void)strides, (void)box, (void)steps,
		(void)interleave, (void)swizzle, (void)promotion, (void)fill;
	return CUDA_ERROR_NOT_SUPPORTED;
}
