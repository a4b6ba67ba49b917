// barrier.c - barriers wait for the launches ahead of them, and streams that wait for the CPU are host-blocked.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"
#include "preempt/code/code.h"

// Whether the domain that the stream had before has nothing of it any more, neither in its log nor on the way to the driver.
// Waits for the log. A thread that still comes there with the stream finds that it left: the thread counts itself, or takes the lock,
// then asks.
static bool has_left(struct gp_domain *d, CUcontext context, CUstream stream)
{
	struct gp_domain *before = d->before;
	if (!before)
		return true;
	blp_flush_but(d, context, stream);
	pthread_mutex_lock(&before->lock);
	struct blp_stream *s = before->context == context ? blp_find_stream(before, stream, false) : NULL;
	bool left = !before->passing && !before->unplaced.passing &&
		    !(s && (blp_may_be_cut(s) || blp_is_stream_host_blocked(before, s)));
	pthread_mutex_unlock(&before->lock);
	if (left)
		d->before = NULL;
	return left;
}

// A stream with a domain of its own stops and resumes at other times than the rest of its context.
bool blp_flush_others(struct gp_domain *d, CUcontext context, CUstream stream)
{
	if (!blp_separated())
		return false;
	bool host_blocked = !has_left(d, context, stream), flushed = false;
	if (!blp_side_of(d, context, stream))
		return host_blocked;
	for (int i = 0; i < BLP_DOMAINS && blp_domains[i]; i++) {
		struct gp_domain *other = blp_domains[i];
		if (other == d || other->context != context || (other->head == other->tail && !other->host_blocked))
			continue;
		if (!flushed)
			blp_flush_but(d, context, stream);
		flushed = true;
		pthread_mutex_lock(&other->lock);
		struct blp_stream like = {.handle = stream, .blocking = true};
		host_blocked |= other->context == context && blp_is_host_blocked(other, &like);
		pthread_mutex_unlock(&other->lock);
	}
	return host_blocked;
}

void blp_pass(struct gp_operation *o)
{
	if (blp_inside || !blp_domains[0] || (o->passing && o->passing != &blp_nowhere))
		return;
	struct gp_domain *d;
	for (; (d = o->handle && !o->passing ? blp_domain_for(o) : NULL); pthread_mutex_unlock(&d->lock)) {
		pthread_mutex_lock(&d->lock);
		if (!blp_give_way(d) && blp_belongs(o, d))
			break;
	}
	if (d) {
		if (d->context == o->handle) { // also where it is given up: other domains may not be
			struct blp_stream *s = d->given_up ? NULL : blp_find_stream(d, o->stream, true);
			blp_begin_pass(o, d, s ? s : &d->unplaced);
		}
		pthread_mutex_unlock(&d->lock);
		o->cpu |= blp_flush_others(d, o->handle, o->stream);
	}
	blp_come_behind(o);
	blp_enter_driver(o);
}

void blp_enter_driver(struct gp_operation *o)
{
	struct gp_domain *d = o->domain;
	struct blp_stream *s = o->passing;
	blp_enter_late();
	if (!s || !s->thread)
		return;
	pthread_mutex_lock(&d->lock);
	blp_give_way(d);
	if (blp_is_counted_there(o, d))
		blp_enter_own(s);
	pthread_mutex_unlock(&d->lock);
}

// Whether a stream is host-blocked that the driver does not order before the operation anyway.
static bool another_host_blocked(const struct gp_operation *o)
{
	bool any = false;
	for (int i = 0; i < BLP_DOMAINS && blp_domains[i] && !any; i++) {
		struct gp_domain *d = blp_domains[i];
		pthread_mutex_lock(&d->lock);
		struct blp_stream *own = d->context == o->handle ? blp_find_stream(d, o->stream, false) : NULL;
		if (d->context)
			blp_still_host_blocked(d);
		any = d->context && d->unplaced.passing;
		for (uint32_t n = 0; d->context && d->host_blocked && n < d->streams && !any; n++) {
			struct blp_stream *s = &d->stream_of[n];
			any = s->handle && (s->host_blocked || s->uncuttable || s->passing) &&
			      !(own && blp_related(s, own->handle, own->blocking));
		}
		pthread_mutex_unlock(&d->lock);
	}
	return any;
}

void blp_wait_as_at_gate(const struct gp_operation *o, struct gp_domain *d)
{
	pthread_mutex_lock(&d->lock);
	if (blp_is_closed(d))
		blp_begin_late(o->handle);
	blp_wait_resumed(d, blp_patience());
	pthread_mutex_unlock(&d->lock);
}

void blp_barrier(struct gp_operation *o)
{
	// The driver orders launches of one instance on all streams: one ahead may be behind a host block.
	o->cpu |= o->work == GP_GRAPH && !blp_inside && another_host_blocked(o);
	blp_pass(o);
	struct gp_domain *d = o->work == GP_GRAPH ? blp_domain_for(o) : NULL;
	if (d)
		gp_count(&d->gpu->stops.uncovered, 1);
}

void gp_blp_capture_beginning(CUstream stream)
{
	CUcontext context = NULL;
	if (blp_inside || !blp_domains[0])
		return;
	gp_blp_come_behind(stream);
	if (gp_driver.cuCtxGetCurrent(&context))
		return;
	for (int i = 0; i < BLP_DOMAINS && blp_domains[i]; i++) {
		struct gp_domain *d = blp_domains[i];
		pthread_mutex_lock(&d->lock); // a thread that did not see that a capture begins has finished
		struct blp_stream *s = d->context ? blp_find_stream(d, GP_STREAM_LEGACY, false) : NULL;
		if (s && blp_may_be_cut(s))
			blp_wait_or_let_run(d, s, s->last);
		pthread_mutex_unlock(&d->lock);
	}
}
