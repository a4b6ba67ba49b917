// barrier.c - barriers wait for the launches ahead of them, and streams that wait for the CPU are tainted.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"

#include <time.h>

// Lets what the stream has in flight run to its end, since it may wait for the program: the domain is not cut before that is
// over, and the caller may go on behind it in the driver's order. Who stops a domain first makes the epoch odd, then reads
// firm: one of the two sees the other. False: the domain is being stopped.
static bool let_run(struct gp_domain *d, struct blp_stream *s)
{
	d->firm++;
	if (d->epoch % 2 || !blp_taint(d, s, s->handle)) {
		d->firm--;
		return false;
	}
	s->firm = true;
	return true;
}

bool blp_wait_or_let_run(struct gp_domain *d, struct blp_stream *s, uint64_t upto)
{
	CUstream handle = s->handle;
	for (;;) {
		uint64_t patience = s->patience_ns, since = gp_now_ns();
		if (blp_wait_complete(d, s, upto, patience)) {
			if (s->handle == handle && !s->firm)
				s->patience_ns = patience < BLP_PATIENCE_NS / 2 ? 2 * patience : BLP_PATIENCE_NS;
			return true;
		}
		if (gp_now_ns() - since < patience) // the driver refused
			return false;
		s->patience_ns = patience / 8 > BLP_LEAST_PATIENCE_NS ? patience / 8 : BLP_LEAST_PATIENCE_NS;
		if (let_run(d, s))
			return true;
		if (!(d->epoch % 2))
			return false;
	}
}

// What is waited for: in the domains of a context and a GPU (NULL: of all), what comes before new work of a stream, or all.
struct scope {
	CUcontext context;
	const struct gp_gpu *gpu;
	CUstream stream;
	bool all;
	bool bounded; // by a patience, for a call that only has to come behind
	const struct gp_domain *but;
};

static bool concerns(const struct scope *f, const struct gp_domain *d)
{
	return d->context && (!f->context || d->context == f->context) && (!f->gpu || d->gpu == f->gpu) &&
	       d->head != d->tail && d != f->but;
}

static void flush(const struct scope *f)
{
	CUstream stream = f->stream;
	bool blocking = true, known = f->all || f->stream == GP_STREAM_LEGACY || f->stream == GP_STREAM_PER_THREAD;
	unsigned flags;

	for (int i = 0; i < BLP_DOMAINS && blp_domains[i]; i++) {
		struct gp_domain *d = blp_domains[i];
		if (!concerns(f, d))
			continue;
		if (!known) {
			known = true;
			blocking = !gp_driver.cuStreamGetFlags(f->stream, &flags) && !(flags & CU_STREAM_NON_BLOCKING);
		}
		pthread_mutex_lock(&d->lock);
		if (f->stream == GP_STREAM_PER_THREAD) {
			struct blp_stream *own = blp_find_stream(d, f->stream, false);
			stream = own ? own->handle : f->stream;
		}
		// Without records nothing can be cut, and there is nothing to wait for. The event records that are left are forgotten: a
		// stop must not wait for them behind new work that may wait for the CPU. The GPU may not have reached them, since work
		// ahead of them that is not logged goes on.
		bool cut = d->recorded || d->epoch % 2;
		for (uint32_t n = 0; n < d->streams; n++) {
			struct blp_stream *s = &d->stream_of[n];
			if (!blp_may_be_cut(s) || !(f->all || blp_related(s, stream, blocking)))
				continue;
			if (!cut) {
				blp_forget(d, s);
				continue;
			}
			gp_count(&d->gpu->stops.barriers, 1);
			if (!(f->bounded ? blp_wait_or_let_run(d, s, s->last) : blp_wait_complete(d, s, s->last, 0)))
				break;
		}
		blp_advance(d);
		pthread_mutex_unlock(&d->lock);
	}
}

// The context that a stream is flushed in; NULL: none needs to be.
static CUcontext context_of(CUstream stream, CUcontext current)
{
	CUcontext context = NULL;
	// A default stream is the current context's. For other streams, any context may be current.
	if (stream != GP_STREAM_LEGACY && stream != GP_STREAM_PER_THREAD)
		for (int i = 0; i < BLP_DOMAINS && blp_domains[i]; i++) {
			struct gp_domain *d = blp_domains[i];
			if (!d->context || d->head == d->tail)
				continue;
			pthread_mutex_lock(&d->lock);
			if (blp_find_stream(d, stream, false))
				context = d->context;
			pthread_mutex_unlock(&d->lock);
			if (context)
				return context;
		}
	return current;
}

static void flush_stream(CUstream stream, CUcontext current, bool bounded)
{
	if (blp_inside || !blp_domains[0])
		return;
	struct scope f = {.context = context_of(stream, current), .stream = stream, .bounded = bounded};
	if (f.context)
		flush(&f);
}

void gp_blp_flush(CUstream stream, CUcontext current) { flush_stream(stream, current, false); }

void gp_blp_come_behind(CUstream stream) { flush_stream(stream, gp_current_handle(), true); }

void blp_come_behind(const struct gp_operation *o) { flush_stream(o->stream, o->handle, true); }

void gp_blp_flush_all(CUcontext context)
{
	if (!blp_inside)
		flush(&(struct scope){.context = context, .all = true});
}

// Does not wait for other GPUs: their kernels may wait for launches that the calling thread makes later, as those of a
// collective operation do. Waits for all contexts of the GPU: green ones use the memory of the primary one.
void gp_blp_flush_owner(CUdeviceptr address)
{
	if (!blp_inside)
		flush(&(struct scope){.gpu = gp_gpu_of_memory(address), .all = true});
}

// Whether a stop can cut nothing of a domain, and has cut nothing. Asks the driver. d->lock is held, the context is current.
static bool is_empty(struct gp_domain *d)
{
	bool empty = true;
	for (uint32_t i = 0; i < d->streams; i++) {
		struct blp_stream *s = &d->stream_of[i];
		if (blp_may_be_cut(s) && (d->epoch % 2 || !blp_has_ended(d, s, s->last)))
			empty = false;
	}
	blp_advance(d);
	return empty;
}

bool gp_blp_wait_empty(uint64_t deadline_ns)
{
	struct timespec nap = {0, 100 * 1000};
	for (int i = 0; i < BLP_DOMAINS && blp_domains[i]; i++)
		for (struct gp_domain *d = blp_domains[i];; nanosleep(&nap, NULL)) {
			bool pushed;
			pthread_mutex_lock(&d->lock);
			bool empty = !d->context;
			if (!empty && blp_enter(d->context, &pushed)) {
				empty = is_empty(d);
				blp_leave(pushed);
			}
			pthread_mutex_unlock(&d->lock);
			if (empty)
				break;
			if (gp_now_ns() >= deadline_ns)
				return false;
		}
	return true;
}

// A stream with a domain of its own stops and resumes at other times than the rest of its context.
bool blp_flush_others(struct gp_domain *d, CUcontext context, CUstream stream)
{
	bool tainted = false, related = false, known = false;

	for (int i = 0; i < BLP_DOMAINS && blp_domains[i]; i++) {
		struct gp_domain *other = blp_domains[i];
		unsigned flags;
		if (other == d || other->context != context || (other->head == other->tail && !other->tainted))
			continue;
		if (!known) { // without its lock, which is held while it goes on, for most streams
			known = true;
			related = stream == GP_STREAM_LEGACY || stream == GP_STREAM_PER_THREAD ||
				  (!gp_driver.cuStreamGetFlags(stream, &flags) && !(flags & CU_STREAM_NON_BLOCKING));
			if (related)
				flush(&(struct scope){.context = context, .stream = stream, .bounded = true, .but = d});
		}
		if (!related)
			return false;
		pthread_mutex_lock(&other->lock);
		struct blp_stream like = {.handle = stream, .blocking = true};
		tainted |= other->context == context && blp_is_tainted(other, &like);
		pthread_mutex_unlock(&other->lock);
	}
	return tainted;
}

// The taint is over, or ended with an error.
static void untaint(struct gp_domain *d, struct blp_stream *s)
{
	s->tainted = false;
	d->tainted--;
	if (s->firm) { // nothing was logged since
		s->firm = false;
		d->firm--;
		blp_complete_to(d, s, s->last);
	}
	if (blp_is_orphan(s))
		s->handle = NULL;
}

static bool still_tainted(struct gp_domain *d, struct blp_stream *s)
{
	if (s->handle && s->tainted && blp_query(s->taint) == CUDA_ERROR_NOT_READY)
		return true;
	if (s->handle && s->tainted)
		untaint(d, s);
	return s->handle && s->passing;
}

bool blp_is_tainted(struct gp_domain *d, struct blp_stream *of)
{
	bool found = false;
	for (uint32_t i = 0; d->tainted && i < d->streams; i++) {
		struct blp_stream *s = &d->stream_of[i];
		if (blp_related(s, of->handle, of->blocking))
			found |= still_tainted(d, s);
	}
	return found;
}

void blp_still_tainted(struct gp_domain *d)
{
	for (uint32_t i = 0; d->tainted && i < d->streams; i++)
		still_tainted(d, &d->stream_of[i]);
}

bool blp_taint(struct gp_domain *d, struct blp_stream *s, CUstream behind)
{
	if (blp_is_orphan(s) || (!s->taint && gp_driver.cuEventCreate(&s->taint, CU_EVENT_DISABLE_TIMING)) ||
	    gp_driver.cuEventRecord(s->taint, behind))
		return false;
	d->tainted += !s->tainted;
	s->tainted = true;
	return true;
}

// From here to blp_passed the stream counts as tainted: a launch that another thread makes meanwhile comes before the
// operation or behind it as a whole, and cannot be cut and repeated across it.
void blp_begin_pass(struct gp_operation *o, struct gp_domain *d, struct blp_stream *s)
{
	s->passing++;
	d->tainted++;
	o->domain = d;
	o->passing = s;
}

void blp_pass(struct gp_operation *o)
{
	if (blp_inside || !blp_domains[0] || o->passing)
		return;
	struct gp_domain *d = o->handle ? blp_domain_for(o) : NULL;
	if (d) {
		pthread_mutex_lock(&d->lock);
		struct blp_stream *s = d->context == o->handle && !d->given_up ? blp_find_stream(d, o->stream, true) : NULL;
		if (s)
			blp_begin_pass(o, d, s);
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
	if (!s || !s->thread)
		return;
	pthread_mutex_lock(&d->lock);
	blp_enter_own(s);
	pthread_mutex_unlock(&d->lock);
}

// Work behind an operation that may wait for the CPU is not stopped: a stop would wait for that operation, and the CPU may
// wait for the stop to end.
void blp_passed(struct gp_operation *o)
{
	struct gp_domain *d = o->domain;
	struct blp_stream *s = o->passing;

	o->passing = NULL;
	pthread_mutex_lock(&d->lock);
	if (s->passing) { // else the domain has ended
		s->passing--;
		d->tainted--;
		if (s->handle && !o->result && (o->cpu || blp_is_tainted(d, s)))
			blp_taint(d, s, o->stream);
	}
	pthread_mutex_unlock(&d->lock);
}

static bool any_tainted(void)
{
	bool any = false;
	for (int i = 0; i < BLP_DOMAINS && blp_domains[i] && !any; i++) {
		struct gp_domain *d = blp_domains[i];
		pthread_mutex_lock(&d->lock);
		if (d->context)
			blp_still_tainted(d);
		any = d->context && d->tainted;
		pthread_mutex_unlock(&d->lock);
	}
	return any;
}

void blp_barrier(struct gp_operation *o)
{
	// The driver orders launches of one instance on all streams: one ahead may be behind a taint.
	o->cpu |= o->work == GP_GRAPH && !blp_inside && any_tainted();
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
		pthread_mutex_lock(&d->lock); // who did not see that a capture begins has finished
		struct blp_stream *s = d->context ? blp_find_stream(d, GP_STREAM_LEGACY, false) : NULL;
		if (s && blp_may_be_cut(s))
			blp_wait_or_let_run(d, s, s->last);
		pthread_mutex_unlock(&d->lock);
	}
}
