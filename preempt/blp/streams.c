// streams.c - the places of streams in a domain.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"

// Whether the log knows all of the stream's queue. Unknown are launches past the log, and work from before the stream had a place.
// Otherwise the stream is host-blocked until that is over: it may wait for the CPU, and its queue may be full. A thread's own stream is
// that of the calling thread.
bool blp_knows_queue(struct gp_domain *d, struct blp_stream *s)
{
	bool seen = s->phase == d->phase;
	if (seen && !blp_is_deep(d, s))
		return true;
	s->phase = d->phase;
	int mode = gp_relax_captures();
	bool busy = (s->handle == GP_STREAM_LEGACY && gp_capturing()) ||
		    gp_driver.cuStreamQuery(s->thread ? GP_STREAM_PER_THREAD : s->handle) == CUDA_ERROR_NOT_READY;
	gp_unrelax_captures(mode);
	if (busy)
		blp_doubt(d, s, seen);
	else
		s->left = s->passed;
	return !busy;
}

// Whether another stream may have the place: calls that are counted there find it by its address.
static bool is_free(const struct blp_stream *s) { return !s->handle && !s->passing; }

struct blp_stream *blp_find_place(struct gp_domain *d, CUstream handle, bool insert)
{
	struct blp_stream *unused = NULL;
	CUcontext context = NULL;
	unsigned flags = 0;

	for (uint32_t i = 0; i < d->streams; i++) {
		if (d->stream_of[i].handle == handle)
			return &d->stream_of[i];
		if (!unused && is_free(&d->stream_of[i]))
			unused = &d->stream_of[i];
	}
	if (insert && !unused && d->streams == BLP_STREAMS) { // orphans whose host block is over give up their places
		blp_still_host_blocked(d);
		for (uint32_t i = 0; i < d->streams && !unused; i++)
			unused = is_free(&d->stream_of[i]) ? &d->stream_of[i] : NULL;
	}
	bool late = d->unplaced.passing || blp_unmet; // that may be on its way to this very stream
	if (!insert || late || (!unused && d->streams == BLP_STREAMS) ||
	    (handle != GP_STREAM_LEGACY && gp_driver.cuStreamGetFlags(handle, &flags)))
		return NULL;
	// A stream of another context belongs to a domain there, though an event may be recorded on it while this one is current.
	if (handle != GP_STREAM_LEGACY && gp_driver.cuStreamGetCtx &&
	    (gp_driver.cuStreamGetCtx(handle, &context) || context != d->context))
		return NULL;
	if (!unused)
		unused = &d->stream_of[d->streams++];
	CUevent host_block = unused->host_block, join = unused->join;
	if (unused->steps.count)
		blp_free_markers(d, unused->steps.first, UINT64_MAX);
	// All entries of the stream that had the place before are complete.
	*unused = (struct blp_stream){.handle = handle,
				      .blocking = !(flags & CU_STREAM_NON_BLOCKING),
				      .last = d->head,
				      .done = d->head,
				      .completion_unknown = d->head, // how those ended is unknown by now
				      .first_marker = -1,
				      .last_marker = -1,
				      .host_block = host_block,
				      .join = join,
				      .phase = d->phase - 1,
				      .steps = {.first = -1},
				      .patience_ns = blp_patience_ns};
	blp_knows_queue(d, unused);
	return unused;
}

bool blp_related_pending(struct gp_domain *d, struct blp_stream *of)
{
	for (uint32_t i = 0; i < d->streams; i++)
		if (blp_may_be_cut(&d->stream_of[i]) && blp_related(&d->stream_of[i], of->handle, of->blocking))
			return true;
	return false;
}
