// ends.c - domains end with their contexts and streams, and a stream gets one of its own.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"

#include <stdlib.h>

// Waits for what the stream has in its present domain.
CUresult gp_blp_separate(CUstream stream)
{
	CUcontext context = NULL;
	CUresult result;

	if (gp_driver.cuCtxGetCurrent(&context) || !context)
		return CUDA_ERROR_INVALID_CONTEXT;
	struct gp_context *c = gp_find_context(context);
	if (!c || !stream || stream == GP_STREAM_PER_THREAD)
		return CUDA_ERROR_INVALID_VALUE;
	int mode = gp_relax_captures();
	blp_expect_stream(stream, context);
	result = gp_driver.cuStreamSynchronize(stream);
	if (!result)
		result = blp_wait_stream(stream, context);
	gp_unrelax_captures(mode);
	return result ? result : blp_make_separate(c, context, stream);
}

// Whether nothing of the log is to be waited for, as gp_blp_flush_all waits. Under d->lock.
static bool is_flushed(const struct gp_domain *d)
{
	if (d->given_up || (!d->recorded && !blp_is_closed(d)))
		return true;
	for (uint32_t i = 0; i < d->streams; i++)
		if (blp_may_be_cut(&d->stream_of[i]))
			return false;
	return true;
}

// whole: the domain ends with its context, if its log is flushed; false: it is not. Else it ends with a stream, and keep takes its memory.
// A thread may destroy the context while another one destroys the stream, and a domain that ended may be made anew. So the second thread,
// under control, finds another context or another number, and leaves the domain alone. Meanwhile d->ends tells it of the first: a thread
// that ends the context waits until the first uses nothing of it any more. A thread that instantiates a graph has the twins' lock, and
// waits for the context, for which a stop may have to end: that lock comes before control.
static bool end(struct gp_domain *d, uint64_t generation, CUcontext context, bool whole, struct blp_memory *keep)
{
	bool pushed;

	blp_lock_twins();
	pthread_mutex_lock(&d->control);
	pthread_mutex_lock(&d->lock);
	bool is = d->context == context && d->generation == generation,
	     ends = is && (!whole || blp_inside || is_flushed(d));
	if (!ends) {
		pthread_mutex_unlock(&d->lock);
		pthread_mutex_unlock(&d->control);
		blp_unlock_twins();
		free(keep); // its events go with the context
		return !is;
	}
	d->ends = context; // before it has none
	d->context = NULL;
	d->reasons = 0;
	blp_become(d, BLP_ABSENT);
	d->head = d->tail = 0;
	d->streams = 0;
	d->driver_waits = 0;
	pthread_cond_broadcast(&d->resumed);
	pthread_cond_broadcast(&d->driver_left);
	pthread_mutex_unlock(&d->lock);
	blp_forget_events(d);
	blp_forget_twins(d);
	blp_unlock_twins();
	int mode = gp_relax_captures(); // another thread may capture
	if (blp_enter(context, &pushed)) {
		if (keep)
			blp_keep_memory(d, keep);
		blp_release(d);
		blp_leave(pushed);
	}
	free(__atomic_exchange_n((struct blp_memory **)&d->leaves, NULL, __ATOMIC_ACQ_REL));
	gp_unrelax_captures(mode);
	d->ends = NULL;
	pthread_mutex_unlock(&d->control);
	return true;
}

void gp_blp_context_destroying(CUcontext context)
{
	struct gp_context *c = gp_find_context(context);

	if (!c || !gp_context_pin(c, context))
		return;
	c->ending = 1;
	gp_context_unpin(c);
	// A thread that has found a domain before this may append to its log behind any flush, until the domain has ended: where the driver
	// keeps the context, that is to run. From here on work comes behind the log.
	c->domain = NULL;
	blp_forget_specials(context);
	for (int i = 0; i < BLP_DOMAINS && blp_domains[i]; i++) {
		struct gp_domain *d = blp_domains[i];
		uint64_t generation = d->generation;
		if (d->context == context)
			blp_drop_twins(d); // waits, without a lock. Domains of streams that end alone have none
		while (d->context == context || d->ends == context) { // in this order
			gp_blp_flush_all(context);
			if (end(d, generation, context, true, NULL))
				break;
		}
	}
	int mode = gp_relax_captures();
	blp_free_kept(context);
	gp_unrelax_captures(mode);
}

void gp_blp_stream_destroying(CUstream stream)
{
	if (!stream || stream == GP_STREAM_LEGACY || stream == GP_STREAM_PER_THREAD)
		return;
	gp_blp_come_behind(stream);
	blp_graphs_leave(stream);
	for (int i = 0; i < BLP_DOMAINS && blp_domains[i]; i++) {
		struct gp_domain *d = blp_domains[i];
		if (!d->context)
			continue;
		pthread_mutex_lock(&d->lock);
		struct blp_stream *s = blp_find_stream(d, stream, false);
		pthread_mutex_unlock(&d->lock);
		if (!s)
			continue;
		blp_end_host_block(d, s);
		pthread_mutex_lock(&d->lock);
		if (s->handle == stream) {
			if (!s->uncuttable) {
				blp_drop_markers(d, s);
				blp_forget(d, s);
			}
			s->handle = s->host_blocked || s->uncuttable ? (CUstream)s : NULL; // what it holds goes on
		}
		pthread_mutex_unlock(&d->lock);
	}
	struct gp_domain *own;
	CUcontext context;
	uint64_t generation;
	while ((own = blp_forget_special(stream, &context, &generation)))
		end(own, generation, context, false, blp_keep_begin(own, generation, context, stream));
}
