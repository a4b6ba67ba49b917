// capture.c - stream capture: work goes to a stream, or into what the stream captures.
#include "sim.h"

#include <stdlib.h>

static struct capture *captures;
static uint64_t next_capture = 1;
static __thread int thread_mode; // CU_STREAM_CAPTURE_MODE_GLOBAL 0, THREAD_LOCAL 1, RELAXED 2

bool capture_in_context(struct CUctx_st *c, bool blocking_only)
{
	for (struct CUstream_st *s = c->streams; s; s = s->next)
		if (s->capture && !(blocking_only && (s->flags & 1)))
			return true;
	return false;
}

void capture_invalidate(struct CUctx_st *c, bool blocking_only)
{
	for (struct CUstream_st *s = c->streams; s; s = s->next)
		if (s->capture && !(blocking_only && (s->flags & 1)))
			s->capture->invalid = true;
}

CUresult capture_query(struct CUstream_st *s)
{
	s->capture->invalid = true;
	return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult capture_unsafe(struct CUctx_st *ctx)
{
	(void)ctx; // captures of every context count
	CUresult r = CUDA_SUCCESS;
	for (struct capture *c = captures; c; c = c->next) {
		bool mine = pthread_equal(c->thread, pthread_self());
		bool forbids = (c->mode == 0 && thread_mode == 0) || (c->mode != 2 && thread_mode != 2 && mine);
		if (forbids) {
			c->invalid = true;
			r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	}
	return r;
}

CUresult enter_unsafe(struct CUctx_st **c)
{
	CUresult r = enter(c);
	if (r == CUDA_SUCCESS && (r = capture_unsafe(*c)) != CUDA_SUCCESS)
		leave(r);
	return r;
}

CUresult capture_node(struct CUstream_st *s, const struct work *w)
{
	if (s->capture->invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	graph_append(s->capture->graph, w);
	s->capture_sequence++;
	return CUDA_SUCCESS;
}

CUresult capture_memory(struct CUstream_st *s, struct graph_memory m)
{
	CUresult r = capture_node(s, &(struct work){.kind = OP_MARK});
	if (r == CUDA_SUCCESS)
		s->capture->graph->last->memory = m;
	return r;
}

CUresult put(struct CUstream_st *s, const struct work *w, struct op **out)
{
	if (s->capture)
		return capture_node(s, w);
	if (s->legacy && capture_in_context(s->ctx, true)) {
		capture_invalidate(s->ctx, true);
		return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	}
	struct op *o = stream_submit(s, w, NULL);
	if (out)
		*out = o;
	else
		op_unref(o);
	return CUDA_SUCCESS;
}

CUresult capture_record(struct CUevent_st *e, struct CUstream_st *s)
{
	if (s->capture->invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	op_unref(e->op);
	e->op = NULL;
	e->capture = s->capture;
	e->capture_stream = s;
	e->capture_id = s->capture->id;
	e->capture_sequence = s->capture_sequence;
	return CUDA_SUCCESS;
}

CUresult capture_wait(struct CUstream_st *s, struct CUevent_st *e)
{
	bool live = false;
	for (struct capture *c = captures; c; c = c->next)
		live |= c == e->capture && c->id == e->capture_id;
	if (e->capture && !live)
		return CUDA_SUCCESS; // that capture is over
	if (!e->capture) {           // a capturing stream must not wait for work outside
		s->capture->invalid = true;
		return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
	}
	if (e->capture->invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (s->capture && s->capture != e->capture) {
		s->capture->invalid = e->capture->invalid = true;
		return CUDA_ERROR_STREAM_CAPTURE_MERGE;
	}
	if (!s->capture) {
		if (s->legacy) {
			e->capture->invalid = true;
			return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
		}
		s->capture = e->capture;
		s->capture_sequence = 1;
		s->capture_joined = 0;
	}
	if (e->capture_stream != s && e->capture_stream->capture == e->capture)
		e->capture_stream->capture_joined = e->capture_sequence;
	return CUDA_SUCCESS;
}

static CUresult begin(CUstream s, int mode, CUgraph into)
{
	struct CUstream_st *st;
	CUresult r = mode >= 0 && mode <= 2 ? enter_stream(s, &st) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	if (into && !handle_is(into, H_GRAPH))
		return leave(CUDA_ERROR_INVALID_VALUE);
	if (st->legacy)
		return leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	if (st->capture)
		return leave(capture_query(st));
	struct capture *c = calloc(1, sizeof *c);
	if (!c)
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	*c = (struct capture){.graph = graph_new(),
			      .origin = st,
			      .ctx = st->ctx,
			      .next = captures,
			      .id = next_capture++,
			      .mode = mode,
			      .thread = pthread_self(),
			      .into = into};
	captures = c;
	st->capture = c;
	st->capture_sequence = 1;
	return leave(CUDA_SUCCESS);
}

DUAL(cuStreamBeginCapture_v2, _ptsz, (CUstream s, int mode), (s, mode)) { return begin(s, mode, NULL); }

// A function of CUDA 13.3. The callback, which a driver asks about nodes whose parameters changed, is not called.
DUAL(cuStreamBeginRecaptureToGraph, _ptsz, (CUstream s, int mode, CUgraph graph, void *callback, void *user),
     (s, mode, graph, callback, user))
{
	(void)user;
	return !graph ? CUDA_ERROR_INVALID_VALUE : callback ? CUDA_ERROR_NOT_SUPPORTED : begin(s, mode, graph);
}

DUAL(cuStreamEndCapture, _ptsz, (CUstream s, CUgraph *out), (s, out))
{
	struct CUstream_st *st;
	CUresult r = out ? enter_stream(s, &st) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	*out = NULL;
	struct capture *c = st->capture;
	if (!c)
		return leave(CUDA_ERROR_INVALID_VALUE);
	if (c->origin != st)
		return leave(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
	if (c->mode != 2 && !pthread_equal(c->thread, pthread_self()))
		return leave(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
	if (c->invalid)
		r = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	for (struct CUstream_st *j = c->ctx->streams; j; j = j->next)
		if (j->capture == c) {
			if (j != st && j->capture_joined != j->capture_sequence && r == CUDA_SUCCESS)
				r = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
			j->capture = NULL;
		}
	for (struct capture **at = &captures; *at; at = &(*at)->next)
		if (*at == c) {
			*at = c->next;
			break;
		}
	if (r == CUDA_SUCCESS && c->into && !(handle_is(c->into, H_GRAPH) && graph_replace(c->into, c->graph)))
		r = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (r == CUDA_SUCCESS)
		*out = c->into ? c->into : c->graph;
	if (r != CUDA_SUCCESS || c->into)
		graph_free(c->graph);
	free(c);
	return leave(r);
}

static int status(const struct CUstream_st *s)
{ // CUstreamCaptureStatus
	return !s->capture ? 0 : s->capture->invalid ? 2 : 1;
}

DUAL(cuStreamIsCapturing, _ptsz, (CUstream s, int *out), (s, out))
{
	struct CUstream_st *st;
	CUresult r = out ? enter_stream(s, &st) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	if (st->legacy && capture_in_context(st->ctx, true))
		return leave(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	*out = status(st);
	return leave(CUDA_SUCCESS);
}

static CUresult capture_info(CUstream h, int *out, uint64_t *id, CUgraph *graph, const CUgraphNode **on, size_t *n)
{
	struct CUstream_st *s;
	CUresult r = out ? enter_stream(h, &s) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	if (s->legacy && capture_in_context(s->ctx, true))
		return leave(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	*out = status(s);
	if (*out == 1) {
		if (id)
			*id = s->capture->id;
		if (graph)
			*graph = s->capture->graph;
		if (on)
			*on = &s->capture->graph->last;
		if (n)
			*n = s->capture->graph->last != NULL;
	}
	return leave(CUDA_SUCCESS);
}

DUAL(cuStreamGetCaptureInfo_v2, _ptsz,
     (CUstream s, int *out, uint64_t *id, CUgraph *graph, const CUgraphNode **on, size_t *n), (s, out, id, graph, on, n))
{
	return capture_info(s, out, id, graph, on, n);
}

DUAL(cuStreamGetCaptureInfo_v3, _ptsz,
     (CUstream s, int *out, uint64_t *id, CUgraph *graph, const CUgraphNode **on, const void **edges, size_t *n),
     (s, out, id, graph, on, edges, n))
{
	if (edges)
		*edges = NULL;
	return capture_info(s, out, id, graph, on, n);
}

CALL(cuThreadExchangeStreamCaptureMode, (int *mode), (mode))
{
	CUresult r = enter(NULL);
	if (r != CUDA_SUCCESS)
		return r;
	if (!mode || *mode < 0 || *mode > 2)
		return leave(CUDA_ERROR_INVALID_VALUE);
	int before = thread_mode;
	thread_mode = *mode;
	*mode = before;
	return leave(CUDA_SUCCESS);
}
