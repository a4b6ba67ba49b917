// streams.c - the calls for streams, and for words that streams write or wait for.
#include "sim.h"

#include <stdlib.h>
#include <string.h>

CALL(cuStreamCreateWithPriority, (CUstream * out, unsigned flags, int priority), (out, flags, priority))
{
	struct CUctx_st *c;
	CUresult r = out && !(flags & ~1u) ? enter(&c) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	if (sim_making_waits())
		call_wait(c, CALL_SUBMIT);
	priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
	*out = memory_to_make(c->device) ? stream_new(c, flags, priority) : NULL;
	if (!*out)
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	if (context_top()->of)
		stream_of_green(*out, context_top()->green);
	handle_add(*out, H_STREAM);
	return leave(CUDA_SUCCESS);
}

CALL(cuStreamCreate, (CUstream * out, unsigned flags), (out, flags))
{
	return cuStreamCreateWithPriority(out, flags, 0);
}

CALL(cuStreamDestroy_v2, (CUstream s), (s))
{
	CUresult r = enter(NULL);
	if (r != CUDA_SUCCESS)
		return r;
	if (!handle_is(s, H_STREAM))
		return leave(CUDA_ERROR_INVALID_HANDLE);
	if (s->capture)
		return leave(capture_query(s));
	handle_remove(s);
	s->destroyed = true; // its work goes on; the executor frees it
	tell_executor(s->ctx->bell);
	return leave(CUDA_SUCCESS);
}

DUAL(cuStreamSynchronize, _ptsz, (CUstream s), (s))
{
	struct CUstream_st *st;
	CUresult r = enter_stream(s, &st);
	if (r != CUDA_SUCCESS)
		return r;
	if (st->capture)
		return leave(capture_query(st));
	struct CUctx_st *c = st->ctx;
	if (st->legacy) {
		if (capture_in_context(c, true)) {
			capture_invalidate(c, true);
			return leave(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
		}
		struct work w = {.kind = OP_MARK}; // behind all blocking streams
		op_wait(stream_submit(st, &w, NULL));
	} else {
		op_wait(op_ref(st->last));
	}
	pools_synchronized();
	return leave(c->error);
}

DUAL(cuStreamQuery, _ptsz, (CUstream s), (s))
{
	struct CUstream_st *st;
	CUresult r = enter_stream(s, &st);
	if (r != CUDA_SUCCESS)
		return r;
	if (st->capture)
		return leave(capture_query(st));
	bool busy = st->last && !st->last->done;
	if (st->legacy)
		for (struct CUstream_st *b = st->ctx->streams; b; b = b->next)
			busy |= !(b->flags & 1) && b->last && !b->last->done;
	return pause_answered(leave(busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS));
}

DUAL(cuStreamGetCtx, _ptsz, (CUstream s, CUcontext *out), (s, out))
{
	struct CUstream_st *st;
	CUresult r = out ? enter_stream(s, &st) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	*out = !handle_is(s, H_STREAM) ? context_top() : st->green ? st->green->as_context : st->ctx;
	return leave(CUDA_SUCCESS);
}

DUAL(cuStreamGetPriority, _ptsz, (CUstream s, int *out), (s, out))
{
	struct CUstream_st *st;
	CUresult r = out ? enter_stream(s, &st) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	*out = st->priority;
	return leave(CUDA_SUCCESS);
}

DUAL(cuStreamGetFlags, _ptsz, (CUstream s, unsigned *out), (s, out))
{
	struct CUstream_st *st;
	CUresult r = out ? enter_stream(s, &st) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	*out = st->flags;
	return leave(CUDA_SUCCESS);
}

DUAL(cuStreamGetId, _ptsz, (CUstream s, unsigned long long *out), (s, out))
{
	struct CUstream_st *st;
	CUresult r = out ? enter_stream(s, &st) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	*out = st->id;
	return leave(CUDA_SUCCESS);
}

static CUresult memory_operation(CUstream h, CUdeviceptr at, uint32_t value, unsigned flags, enum op_kind kind)
{
	struct CUstream_st *s;
	const char *refuse = getenv("SIMCUDA_REFUSE_VALUES");
	CUresult r = enter_submission(h, &s);
	if (r != CUDA_SUCCESS)
		return r;
	if (refuse && strcmp(refuse, "1") == 0)
		return leave(CUDA_ERROR_NOT_SUPPORTED);
	if ((at & 3) || !address_known(at, 4))
		return leave(CUDA_ERROR_INVALID_VALUE);
	struct work w = {.kind = kind, .dst = at, .value = value, .flags = flags};
	return leave(put(s, &w, NULL));
}

DUAL(cuStreamWriteValue32_v2, _ptsz, (CUstream s, CUdeviceptr at, uint32_t value, unsigned flags), (s, at, value, flags))
{
	return memory_operation(s, at, value, flags, OP_WRITE_VALUE);
}

DUAL(cuStreamWaitValue32_v2, _ptsz, (CUstream s, CUdeviceptr at, uint32_t value, unsigned flags), (s, at, value, flags))
{
	return memory_operation(s, at, value, flags, OP_WAIT_VALUE);
}
