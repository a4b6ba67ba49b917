// interop.c - functions that every driver has and programs ask for, whether or not they use them: for OpenGL, and descriptions of tensors
// for the bulk copies of Hopper. Only the wait for a frame of the one EGL stream is simulated.
#define _GNU_SOURCE
#include "sim.h"

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	unsigned waiting, there;
} frames = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0};

CALL(cuEGLStreamConsumerAcquireFrame, (void **connection, void **resource, CUstream *s, unsigned timeout_us),
     (connection, resource, s, timeout_us))
{
	enum { INFINITE = 0xFFFFFFFFu };
	struct CUstream_st *stream;
	CUstream on = s && *s ? *s : STREAM_LEGACY;
	if (!connection || !resource || timeout_us != INFINITE)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = enter_submission(on, &stream);
	if (r != CUDA_SUCCESS)
		return r;
	leave(CUDA_SUCCESS);
	pthread_mutex_lock(&frames.lock);
	frames.waiting++;
	pthread_cond_broadcast(&frames.changed);
	while (!frames.there)
		pthread_cond_wait(&frames.changed, &frames.lock);
	frames.waiting--;
	frames.there--;
	pthread_mutex_unlock(&frames.lock);
	*resource = &frames;
	return CUDA_SUCCESS;
}

// For tests: returns once so many threads wait for a frame.
API void simcuda_await_consumers(unsigned count)
{
	pthread_mutex_lock(&frames.lock);
	while (frames.waiting < count)
		pthread_cond_wait(&frames.changed, &frames.lock);
	pthread_mutex_unlock(&frames.lock);
}

// For tests: another program gives a frame.
API void simcuda_give_frame(void)
{
	pthread_mutex_lock(&frames.lock);
	frames.there++;
	pthread_cond_broadcast(&frames.changed);
	pthread_mutex_unlock(&frames.lock);
}

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
