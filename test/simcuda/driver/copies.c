// copies.c - copies and memsets, as a program submits them.
#include "sim.h"

#include <stdlib.h>
#include <string.h>

enum direction { TO_DEVICE, TO_HOST, ON_DEVICE, ANY };

// Copies to the device of so many bytes or rows are put on a copy engine: an H100's driver does that, and it does not with 4 KiB or one row.
// Sizes in between were not tried.
enum { BULK_BYTES = 32 << 10, BULK_ROWS = 64 };
// A call that waits for its copy of at most so many bytes from pageable memory waits for what is ahead of it. It returns once the bytes are
// staged (cuda.h, "API synchronization behavior"). On an H100 the copy is there a moment later. The exception is a TSG that is off the
// runlist: with 64 KiB the copy is not there then, with 1 MB it is. Here the call does not wait then.
enum { STAGED_BYTES = 64 << 10 };

static bool is_off(const struct CUctx_st *c)
{
	struct engine e;
	engine_update(c->device, NULL, NULL, &e);
	return e.tsg[c->tsg].off;
}

static CUresult copy_row(uint64_t dst, uint64_t src, size_t bytes, size_t rows, CUstream h, enum direction d, bool wait)
{
	struct CUstream_st *s;
	CUresult r = enter_submission(h, &s);
	if (r != CUDA_SUCCESS)
		return r;
	if (d == ANY)
		d = memory_is_device(dst) ? (memory_is_device(src) ? ON_DEVICE : TO_DEVICE) : TO_HOST;
	if (d == ON_DEVICE) // no call waits for that
		wait = false;
	bool to = d != TO_HOST, from = d != TO_DEVICE;
	if (!dst || !src || (to && !address_known(dst, bytes)) ||
	    (from && memory_pinned(src) && !address_known(src, bytes)) || (d == ON_DEVICE && !address_known(src, bytes)))
		return leave(bytes ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
	if (wait && ((r = capture_unsafe(s->ctx)) != CUDA_SUCCESS || s->capture))
		return leave(r != CUDA_SUCCESS ? r : capture_query(s));
	struct work w = {.kind = OP_COPY,
			 .dst = dst,
			 .src = src,
			 .bytes = bytes,
			 .host = d != ON_DEVICE,
			 .from_device = d == TO_HOST,
			 .inlined = d == TO_DEVICE && bytes < BULK_BYTES && rows < BULK_ROWS,
			 .known_dst = address_known(dst, bytes),
			 .known_src = address_known(src, bytes)};
	struct CUctx_st *c = s->ctx;
	bool pageable = !s->capture && d == TO_DEVICE && !memory_pinned(src);
	if (wait && pageable && bytes <= STAGED_BYTES && is_off(c)) {
		struct work mark = {.kind = OP_MARK};
		op_wait(stream_submit(s, &mark, NULL));
		if (c->error != CUDA_SUCCESS)
			return leave(c->error);
		wait = false;
		w.inlined = true;
	}
	if (!wait && pageable) {
		w.staged = malloc(bytes ? bytes : 1);
		if (!w.staged)
			return leave(CUDA_ERROR_OUT_OF_MEMORY);
		memcpy(w.staged, (void *)src, bytes);
	}
	if (!s->capture && d == TO_HOST && !memory_pinned(dst))
		wait = true;
	struct op *o = NULL;
	r = put(s, &w, wait ? &o : NULL);
	if (r != CUDA_SUCCESS)
		free(w.staged);
	if (r == CUDA_SUCCESS && wait) {
		op_wait(o);
		r = c->error;
	}
	return leave(r);
}

static CUresult copy(uint64_t dst, uint64_t src, size_t bytes, CUstream h, enum direction d, bool wait)
{
	return copy_row(dst, src, bytes, 1, h, d, wait);
}

#define COPY(name, destination, source, how) \
	CALL(name##_v2, (destination d, source f, size_t n), (d, f, n)) \
	{ \
		return copy((uint64_t)d, (uint64_t)f, n, STREAM_LEGACY, how, true); \
	} \
	CALL(name##_v2_ptds, (destination d, source f, size_t n), (d, f, n)) \
	{ \
		return copy((uint64_t)d, (uint64_t)f, n, STREAM_PER_THREAD, how, true); \
	} \
	DUAL(name##Async_v2, _ptsz, (destination d, source f, size_t n, CUstream s), (d, f, n, s)) \
	{ \
		return copy((uint64_t)d, (uint64_t)f, n, s, how, false); \
	}

COPY(cuMemcpyHtoD, CUdeviceptr, const void *, TO_DEVICE)
COPY(cuMemcpyDtoH, void *, CUdeviceptr, TO_HOST)

// A copy within the device does not make the host wait.
CALL(cuMemcpyDtoD_v2, (CUdeviceptr d, CUdeviceptr f, size_t n), (d, f, n))
{
	return copy(d, f, n, STREAM_LEGACY, ON_DEVICE, false);
}

CALL(cuMemcpyDtoD_v2_ptds, (CUdeviceptr d, CUdeviceptr f, size_t n), (d, f, n))
{
	return copy(d, f, n, STREAM_PER_THREAD, ON_DEVICE, false);
}

DUAL(cuMemcpyDtoDAsync_v2, _ptsz, (CUdeviceptr d, CUdeviceptr f, size_t n, CUstream s), (d, f, n, s))
{
	return copy(d, f, n, s, ON_DEVICE, false);
}

CALL(cuMemcpy, (CUdeviceptr d, CUdeviceptr f, size_t n), (d, f, n)) { return copy(d, f, n, STREAM_LEGACY, ANY, true); }

CALL(cuMemcpy_ptds, (CUdeviceptr d, CUdeviceptr f, size_t n), (d, f, n))
{
	return copy(d, f, n, STREAM_PER_THREAD, ANY, true);
}

DUAL(cuMemcpyAsync, _ptsz, (CUdeviceptr d, CUdeviceptr f, size_t n, CUstream s), (d, f, n, s))
{
	return copy(d, f, n, s, ANY, false);
}

struct side_2d { // of CUDA_MEMCPY2D
	size_t x, y;
	int type;
	void *host;
	CUdeviceptr device;
	void *array;
	size_t pitch;
};

static CUdeviceptr side_address(const struct side_2d *s)
{
	enum { CU_MEMORYTYPE_HOST = 1, CU_MEMORYTYPE_ARRAY = 3 };
	CUdeviceptr base = s->type == CU_MEMORYTYPE_ARRAY ? 0 :
			   s->type == CU_MEMORYTYPE_HOST  ? (CUdeviceptr)s->host :
							    s->device;
	return base ? base + s->y * s->pitch + s->x : 0;
}

static CUresult copy_rows(const void *p, CUstream s, bool wait)
{
	const struct {
		struct side_2d from, to;
		size_t width, rows;
	} *c = p;
	if (!c || !side_address(&c->from) || !side_address(&c->to) || c->from.pitch < c->from.x + c->width ||
	    c->to.pitch < c->to.x + c->width)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = CUDA_SUCCESS;
	for (size_t i = 0; i < c->rows && r == CUDA_SUCCESS; i++)
		r = copy_row(side_address(&c->to) + i * c->to.pitch, side_address(&c->from) + i * c->from.pitch,
			     c->width, c->rows, s, ANY, wait);
	return r;
}

DUAL(cuMemcpy2DAsync_v2, _ptsz, (const void *p, CUstream s), (p, s)) { return copy_rows(p, s, false); }

CALL(cuMemcpy2D_v2, (const void *p), (p)) { return copy_rows(p, STREAM_LEGACY, true); }

CALL(cuMemcpy2D_v2_ptds, (const void *p), (p)) { return copy_rows(p, STREAM_PER_THREAD, true); }

CALL(cuMemcpy2DUnaligned_v2, (const void *p), (p)) { return copy_rows(p, STREAM_LEGACY, true); }

CALL(cuMemcpy2DUnaligned_v2_ptds, (const void *p), (p)) { return copy_rows(p, STREAM_PER_THREAD, true); }

// ---- memsets

static CUresult set(CUdeviceptr d, uint32_t value, int width, size_t n, CUstream h)
{
	struct CUstream_st *s;
	CUresult r = enter_submission(h, &s);
	if (r != CUDA_SUCCESS)
		return r;
	if (n > sim_memory_bytes() || !address_known(d, n * (size_t)width))
		return leave(CUDA_ERROR_INVALID_VALUE);
	struct work w = {.kind = OP_MEMSET, .dst = d, .bytes = n * (size_t)width, .value = value, .width = width};
	return leave(put(s, &w, NULL));
}

CALL(cuMemsetD8_v2, (CUdeviceptr d, unsigned char v, size_t n), (d, v, n)) { return set(d, v, 1, n, STREAM_LEGACY); }

CALL(cuMemsetD8_v2_ptds, (CUdeviceptr d, unsigned char v, size_t n), (d, v, n))
{
	return set(d, v, 1, n, STREAM_PER_THREAD);
}

CALL(cuMemsetD32_v2, (CUdeviceptr d, unsigned v, size_t n), (d, v, n)) { return set(d, v, 4, n, STREAM_LEGACY); }

CALL(cuMemsetD32_v2_ptds, (CUdeviceptr d, unsigned v, size_t n), (d, v, n))
{
	return set(d, v, 4, n, STREAM_PER_THREAD);
}

CALL(cuMemsetD16_v2, (CUdeviceptr d, unsigned short v, size_t n), (d, v, n)) { return set(d, v, 2, n, STREAM_LEGACY); }

CALL(cuMemsetD16_v2_ptds, (CUdeviceptr d, unsigned short v, size_t n), (d, v, n))
{
	return set(d, v, 2, n, STREAM_PER_THREAD);
}

DUAL(cuMemsetD8Async, _ptsz, (CUdeviceptr d, unsigned char v, size_t n, CUstream s), (d, v, n, s))
{
	return set(d, v, 1, n, s);
}

DUAL(cuMemsetD32Async, _ptsz, (CUdeviceptr d, unsigned v, size_t n, CUstream s), (d, v, n, s))
{
	return set(d, v, 4, n, s);
}

DUAL(cuMemsetD16Async, _ptsz, (CUdeviceptr d, unsigned short v, size_t n, CUstream s), (d, v, n, s))
{
	return set(d, v, 2, n, s);
}

// Sets row after row.
static CUresult set_rows(CUdeviceptr d, size_t pitch, uint32_t value, int width, size_t n, size_t rows, CUstream s)
{
	CUresult r = rows > 1 && pitch < n * (size_t)width ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	for (size_t i = 0; i < rows && r == CUDA_SUCCESS; i++)
		r = set(d + i * pitch, value, width, n, s);
	return r;
}

DUAL(cuMemsetD2D8Async, _ptsz, (CUdeviceptr d, size_t pitch, unsigned char v, size_t n, size_t rows, CUstream s),
     (d, pitch, v, n, rows, s))
{
	return set_rows(d, pitch, v, 1, n, rows, s);
}

DUAL(cuMemsetD2D16Async, _ptsz, (CUdeviceptr d, size_t pitch, unsigned short v, size_t n, size_t rows, CUstream s),
     (d, pitch, v, n, rows, s))
{
	return set_rows(d, pitch, v, 2, n, rows, s);
}

DUAL(cuMemsetD2D32Async, _ptsz, (CUdeviceptr d, size_t pitch, unsigned v, size_t n, size_t rows, CUstream s),
     (d, pitch, v, n, rows, s))
{
	return set_rows(d, pitch, v, 4, n, rows, s);
}

#define SET_ROWS(name, type, width) \
	CALL(name, (CUdeviceptr d, size_t pitch, type v, size_t n, size_t rows), (d, pitch, v, n, rows)) \
	{ \
		return set_rows(d, pitch, v, width, n, rows, STREAM_LEGACY); \
	} \
	CALL(name##_ptds, (CUdeviceptr d, size_t pitch, type v, size_t n, size_t rows), (d, pitch, v, n, rows)) \
	{ \
		return set_rows(d, pitch, v, width, n, rows, STREAM_PER_THREAD); \
	}

SET_ROWS(cuMemsetD2D8_v2, unsigned char, 1)
SET_ROWS(cuMemsetD2D16_v2, unsigned short, 2)
SET_ROWS(cuMemsetD2D32_v2, unsigned, 4)
