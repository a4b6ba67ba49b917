// events.c - events.
#include "sim.h"

#include <stdlib.h>

CALL(cuEventCreate, (CUevent * out, unsigned flags), (out, flags))
{
	struct CUctx_st *c;
	CUresult r = out ? enter(&c) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	if (sim_making_waits())
		call_wait(c, CALL_SUBMIT);
	*out = memory_to_make(c->device) ? calloc(1, sizeof **out) : NULL;
	if (!*out)
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	(*out)->flags = flags;
	handle_add(*out, H_EVENT);
	return leave(CUDA_SUCCESS);
}

CALL(cuEventDestroy_v2, (CUevent e), (e))
{
	CUresult r = enter(NULL);
	if (r != CUDA_SUCCESS)
		return r;
	if (!handle_is(e, H_EVENT))
		return leave(CUDA_ERROR_INVALID_HANDLE);
	handle_remove(e);
	op_unref(e->op);
	free(e);
	return leave(CUDA_SUCCESS);
}

static CUresult record(CUevent e, CUstream h)
{
	struct CUstream_st *s;
	pause_record();
	CUresult r = enter_submission(h, &s);
	if (r != CUDA_SUCCESS)
		return r;
	if (!handle_is(e, H_EVENT))
		return leave(CUDA_ERROR_INVALID_HANDLE);
	if (s->capture)
		return leave(capture_record(e, s));
	struct op *o = NULL;
	struct work w = {.kind = OP_MARK};
	r = put(s, &w, &o);
	if (r == CUDA_SUCCESS) {
		op_unref(e->op);
		e->op = o;
		e->capture = NULL;
	}
	return leave(r);
}

DUAL(cuEventRecord, _ptsz, (CUevent e, CUstream s), (e, s)) { return record(e, s); }

DUAL(cuEventRecordWithFlags, _ptsz, (CUevent e, CUstream s, unsigned flags), (e, s, flags))
{
	return flags & ~1u ? CUDA_ERROR_INVALID_VALUE : record(e, s);
}

CALL(cuCtxRecordEvent, (CUcontext c, CUevent e), (c, e))
{
	CUresult r = enter_handle(c, H_CONTEXT, c);
	if (r != CUDA_SUCCESS)
		return r;
	if (!handle_is(e, H_EVENT) || c->of)
		return leave(CUDA_ERROR_INVALID_HANDLE);
	if (capture_in_context(c, false)) {
		capture_invalidate(c, false); // cuda.h: "the call will invalidate all the conflicting captures"
		return leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	}
	op_unref(e->op);
	e->op = context_mark(c);
	e->capture = NULL;
	return leave(CUDA_SUCCESS);
}

CALL(cuCtxWaitEvent, (CUcontext c, CUevent e), (c, e))
{
	pause_launch();
	CUresult r = enter_handle(c, H_CONTEXT, c);
	if (r != CUDA_SUCCESS)
		return r;
	if (!handle_is(e, H_EVENT) || c->of)
		return leave(CUDA_ERROR_INVALID_HANDLE);
	if (e->capture || capture_in_context(c, false))
		return leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	if (e->op && !e->op->done)
		context_await(c, e->op);
	return leave(CUDA_SUCCESS);
}

DUAL(cuStreamWaitEvent, _ptsz, (CUstream s, CUevent e, unsigned flags), (s, e, flags))
{
	(void)flags;
	struct CUstream_st *st;
	pause_launch();
	CUresult r = enter_submission(s, &st);
	if (r != CUDA_SUCCESS)
		return r;
	if (!handle_is(e, H_EVENT))
		return leave(CUDA_ERROR_INVALID_HANDLE);
	if (e->capture || st->capture)
		return leave(capture_wait(st, e));
	if (e->op) {
		struct work w = {.kind = OP_MARK};
		op_unref(stream_submit(st, &w, e->op));
	}
	return leave(CUDA_SUCCESS);
}

static CUresult enter_event(CUevent e, struct CUctx_st **c)
{
	CUresult r = enter(NULL);
	if (r != CUDA_SUCCESS)
		return r;
	if (!handle_is(e, H_EVENT))
		return leave(CUDA_ERROR_INVALID_HANDLE);
	*c = context_current();
	if (e->capture)
		return leave(CUDA_ERROR_CAPTURED_EVENT);
	if (*c && (r = capture_unsafe(*c)) != CUDA_SUCCESS)
		return leave(r);
	return CUDA_SUCCESS;
}

CALL(cuEventSynchronize, (CUevent e), (e))
{
	struct CUctx_st *c;
	CUresult r = enter_event(e, &c);
	if (r != CUDA_SUCCESS)
		return r;
	op_wait(op_ref(e->op));
	pools_synchronized();
	return leave(c ? c->error : CUDA_SUCCESS);
}

CALL(cuEventQuery, (CUevent e), (e))
{
	struct CUctx_st *c;
	CUresult r = enter_event(e, &c);
	if (r != CUDA_SUCCESS)
		return r;
	r = leave(e->op && !e->op->done ? CUDA_ERROR_NOT_READY : c ? c->error : CUDA_SUCCESS);
	if (r == CUDA_ERROR_NOT_READY)
		pause_answer();
	return pause_answered(r);
}

CALL(cuEventElapsedTime_v2, (float *out, CUevent from, CUevent to), (out, from, to))
{
	CUresult r = out ? enter(NULL) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	if (!handle_is(from, H_EVENT) || !handle_is(to, H_EVENT) || !from->op || !to->op || ((from->flags | to->flags) & 2))
		return leave(CUDA_ERROR_INVALID_HANDLE);
	if (!from->op->done || !to->op->done)
		return leave(CUDA_ERROR_NOT_READY);
	*out = (float)((double)(int64_t)(to->op->done_ns - from->op->done_ns) / 1e6);
	return leave(CUDA_SUCCESS);
}

CALL(cuEventElapsedTime, (float *out, CUevent from, CUevent to), (out, from, to))
{
	return cuEventElapsedTime_v2(out, from, to);
}
