// interop.c - what every driver has for OpenGL: CUDA runtimes ask for it, whether or not the program uses it. Nothing of it
// is simulated.
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
