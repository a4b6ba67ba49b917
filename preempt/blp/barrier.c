// barrier.c - barriers wait for the launches ahead of them, and streams that wait for the CPU are tainted.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"
#include "preempt/code/code.h"

#include <time.h>

// Taints a stream until its entries are over, and not what came behind them on other streams. What taints it already is behind them.
static bool taint_by_marker(struct gp_domain *d, struct blp_stream *s)
{
	if (s->tainted)
		return true;
	if (!blp_mark(d, s, s->last))
		return false;
	struct blp_marker *m = &d->marker[s->last_marker];
	CUevent taint = s->taint;
	s->taint = m->event;
	m->event = taint; // recorded anew before anybody asks for it
	blp_drop_markers(d, s);
	s->tainted = true;
	d->tainted++;
	return true;
}

// Lets what the stream has in flight run to its end, since it may wait for the program: the domain is not cut before that is
// over, and the caller may go on behind it in the driver's order. Who stops a domain first makes the epoch odd, then reads
// firm: one of the two sees the other. False: the domain is being stopped.
static bool let_run(struct gp_domain *d, struct blp_stream *s)
{
	d->firm++;
	if (d->epoch % 2 || !taint_by_marker(d, s)) {
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

// What is waited for: in the domains of a context and a GPU (NULL: of all), what comes before new work of a stream, what who waits
// for that stream waits for, or all.
struct scope {
	CUcontext context;
	const struct gp_gpu *gpu;
	CUstream stream;
	bool all, waits;
	bool bounded; // by a patience, for a call that only has to come behind, or takes who knows what
	const struct gp_domain *but;
};

static bool concerns(const struct scope *f, const struct gp_domain *d)
{
	return d->context && (!f->context || d->context == f->context) && (!f->gpu || d->gpu == f->gpu) &&
	       d->head != d->tail && d != f->but;
}

// The program may wait for a blocking stream while the legacy stream waits for the program: only what is on the stream behind that
// is its business. The legacy stream itself is complete when all blocking streams are.
static bool is_in(const struct scope *f, const struct blp_stream *s, CUstream stream, bool blocking)
{
	return f->all || (f->waits && stream != GP_STREAM_LEGACY ? s->handle == stream : blp_related(s, stream, blocking));
}

// Whether a marker tells when a stream's entries are over. One that stands for a thread's own is marked here.
static bool is_marked(struct gp_domain *d, struct blp_stream *s)
{
	bool pushed;
	if (s->thread && blp_enter(d->context, &pushed)) {
		blp_has_ended(d, s, s->last);
		blp_leave(pushed);
	}
	return !blp_pending(s) || blp_marker_behind(d, s->first_marker, s->last) >= 0;
}

// Waits for what runs beside a stream that is firm, or on one that stands for a thread's own. The queue that the driver waits for may
// not be behind that: relaunch.c, thread.c.
static void wait_beside(struct gp_domain *d, struct blp_stream *s)
{
	CUstream handle = s->handle;
	CUcontext context = d->context;
	CUevent done = s->thread ? s->taint : d->beside[s - d->stream_of].done;
	struct timespec nap = {0, 20 * 1000};
	while (done && s->firm && s->handle == handle && d->context == context && blp_query(done) == CUDA_ERROR_NOT_READY) {
		pthread_mutex_unlock(&d->lock);
		nanosleep(&nap, NULL);
		pthread_mutex_lock(&d->lock);
	}
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
		// ahead of them that is not logged goes on. Those that the driver does not tell of are kept until they are over.
		for (uint32_t n = 0; n < d->streams; n++) {
			struct blp_stream *s = &d->stream_of[n];
			bool cut = d->recorded || d->epoch % 2; // anew, where the lock was given up
			if (blp_may_be_cut(s) && is_in(f, s, stream, blocking)) {
				if (!cut && !((f->waits || s->thread) && is_marked(d, s))) {
					blp_forget(d, s);
					continue;
				}
				if (!cut && !f->waits)
					continue;
				gp_count(&d->gpu->stops.barriers, 1);
				if (!(f->bounded ? blp_wait_or_let_run(d, s, s->last) : blp_wait_complete(d, s, s->last, 0)))
					break;
			}
			if (f->waits && s->handle == stream)
				wait_beside(d, s);
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

static void flush_stream(CUstream stream, CUcontext current, bool waits)
{
	if (blp_inside || !blp_domains[0])
		return;
	struct scope f = {.context = context_of(stream, current), .stream = stream, .waits = waits, .bounded = !waits};
	if (f.context)
		flush(&f);
}

void gp_blp_flush(CUstream stream, CUcontext current) { flush_stream(stream, current, true); }

void gp_blp_come_behind(CUstream stream) { flush_stream(stream, gp_current_handle(), false); }

void blp_come_behind(const struct gp_operation *o) { flush_stream(o->stream, o->handle, false); }

// Where it is not known what a call takes, the wait is bounded: kernels of other GPUs may wait for the calling thread, as below. What
// was waited for in vain runs to its end, and the driver orders the call.
void gp_blp_flush_all(CUcontext context)
{
	if (!blp_inside)
		flush(&(struct scope){.context = context, .all = true, .bounded = !context});
}

// Does not wait for other GPUs: their kernels may wait for launches that the calling thread makes later, as those of a
// collective operation do. Waits for all contexts of the GPU: green ones use the memory of the primary one.
void gp_blp_flush_owner(CUdeviceptr address)
{
	const struct gp_gpu *owner = blp_inside ? NULL : gp_gpu_of_memory(address);
	if (!blp_inside)
		flush(&(struct scope){.gpu = owner, .all = true, .bounded = !owner});
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

static bool still_tainted(struct gp_domain *, struct blp_stream *);

// Whether the domain that the stream had before has nothing of it any more, neither in its log nor on the way to the driver.
// Waits for the log. Who still comes there with the stream finds that it left: it counts itself, or takes the lock, then asks.
static bool has_left(struct gp_domain *d, CUcontext context, CUstream stream)
{
	struct gp_domain *before = d->before;
	if (!before)
		return true;
	flush(&(struct scope){.context = context, .stream = stream, .bounded = true, .but = d});
	pthread_mutex_lock(&before->lock);
	struct blp_stream *s = before->context == context ? blp_find_stream(before, stream, false) : NULL;
	bool left = !before->passing && !before->unplaced.passing &&
		    !(s && (blp_may_be_cut(s) || still_tainted(before, s)));
	pthread_mutex_unlock(&before->lock);
	if (left)
		d->before = NULL;
	return left;
}

// Streams of the legacy stream's own domain are on no side: the lock and the log of that domain order them.
static enum blp_side side_of(const struct gp_domain *d, CUcontext context, CUstream stream)
{
	unsigned flags = 0;
	if (!blp_separated())
		return BLP_NO_SIDE;
	if (stream == GP_STREAM_LEGACY)
		return BLP_LEGACY_SIDE;
	if (d->separate)
		return d->blocking ? BLP_BLOCKING_SIDE : BLP_NO_SIDE;
	if (!blp_is_special(context, GP_STREAM_LEGACY))
		return BLP_NO_SIDE;
	if (stream != GP_STREAM_PER_THREAD && !gp_driver.cuStreamGetFlags(stream, &flags) && flags & CU_STREAM_NON_BLOCKING)
		return BLP_NO_SIDE;
	return BLP_BLOCKING_SIDE;
}

void blp_begin_crossing(struct gp_operation *o, struct gp_domain *d)
{
	o->crossing = side_of(d, o->handle, o->stream);
	if (o->crossing)
		d->crossing[o->crossing]++;
}

void blp_end_crossing(struct gp_operation *o, struct gp_domain *d)
{
	if (o->crossing)
		d->crossing[o->crossing]--;
	o->crossing = BLP_NO_SIDE;
}

bool blp_is_counted(const struct gp_operation *o, const struct gp_domain *d)
{
	return blp_domain_for(o) == d && o->crossing == side_of(d, o->handle, o->stream);
}

bool blp_is_crossed(const struct gp_operation *o, const struct gp_domain *d)
{
	if (!blp_is_counted(o, d))
		return true;
	for (int i = 0; o->crossing && i < BLP_DOMAINS && blp_domains[i]; i++) {
		struct gp_domain *other = blp_domains[i];
		if (other != d && other->context == o->handle &&
		    other->crossing[BLP_LEGACY_SIDE + BLP_BLOCKING_SIDE - o->crossing])
			return true;
	}
	return false;
}

// A stream with a domain of its own stops and resumes at other times than the rest of its context.
bool blp_flush_others(struct gp_domain *d, CUcontext context, CUstream stream)
{
	if (!blp_separated())
		return false;
	bool tainted = !has_left(d, context, stream), flushed = false;
	if (!side_of(d, context, stream))
		return tainted;
	for (int i = 0; i < BLP_DOMAINS && blp_domains[i]; i++) {
		struct gp_domain *other = blp_domains[i];
		if (other == d || other->context != context || (other->head == other->tail && !other->tainted))
			continue;
		if (!flushed)
			flush(&(struct scope){.context = context, .stream = stream, .bounded = true, .but = d});
		flushed = true;
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
	bool found = of->blocking && d->unplaced.passing; // which of them is blocking is not known
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
// operation or behind it as a whole, and cannot be cut and repeated across it. A stream without a place gets none meanwhile.
void blp_begin_pass(struct gp_operation *o, struct gp_domain *d, struct blp_stream *s)
{
	s->passing++;
	d->tainted++;
	o->domain = d;
	o->passing = s;
	if (blp_separated())
		blp_begin_crossing(o, d);
}

_Atomic uint32_t blp_unmet;
static struct blp_stream nowhere; // what such operations pass on

// The operation counts itself, then looks for the domain. Who makes that shows it before a stream gets a place there. So the domain
// is found, or no launch is logged before the driver has the operation.
void gp_blp_meet(struct gp_operation *o)
{
	if (!o->handle || !gp_blp_wanted())
		return;
	blp_unmet++;
	o->context = gp_find_context(o->handle);
	if (blp_domain_for(o))
		blp_unmet--;
	else
		o->passing = &nowhere;
}

void blp_pass(struct gp_operation *o)
{
	if (blp_inside || !blp_domains[0] || (o->passing && o->passing != &nowhere))
		return;
	struct gp_domain *d;
	for (; (d = o->handle && !o->passing ? blp_domain_for(o) : NULL); pthread_mutex_unlock(&d->lock)) {
		pthread_mutex_lock(&d->lock);
		if (blp_belongs(o, d))
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
	if (!s || !s->thread)
		return;
	pthread_mutex_lock(&d->lock);
	blp_enter_own(s);
	pthread_mutex_unlock(&d->lock);
}

// Work behind an operation that may wait for the CPU is not stopped: a stop would wait for that operation, and the CPU may
// wait for the stop to end. What merely comes behind a taint waits for nothing once that is over: if it tainted, too, no launch
// would be logged on a stream that always has work.
void blp_passed(struct gp_operation *o)
{
	struct gp_domain *d = o->domain;
	struct blp_stream *s = o->passing;

	o->passing = NULL;
	if (s == &nowhere) {
		blp_unmet--;
		return;
	}
	blp_end_crossing(o, d);
	pthread_mutex_lock(&d->lock);
	if (s->passing) { // else the domain has ended
		s->passing--;
		d->tainted--;
		if (s->handle && !o->result && o->cpu)
			blp_taint(d, s, o->stream);
	}
	pthread_mutex_unlock(&d->lock);
}

// Whether a stream is tainted that the driver does not order before the operation anyway.
static bool another_tainted(const struct gp_operation *o)
{
	bool any = false;
	for (int i = 0; i < BLP_DOMAINS && blp_domains[i] && !any; i++) {
		struct gp_domain *d = blp_domains[i];
		pthread_mutex_lock(&d->lock);
		struct blp_stream *own = d->context == o->handle ? blp_find_stream(d, o->stream, false) : NULL;
		if (d->context)
			blp_still_tainted(d);
		any = d->context && d->unplaced.passing;
		for (uint32_t n = 0; d->context && d->tainted && n < d->streams && !any; n++) {
			struct blp_stream *s = &d->stream_of[n];
			any = s->handle && (s->tainted || s->passing) &&
			      !(own && blp_related(s, own->handle, own->blocking));
		}
		pthread_mutex_unlock(&d->lock);
	}
	return any;
}

void blp_barrier(struct gp_operation *o)
{
	// The driver orders launches of one instance on all streams: one ahead may be behind a taint.
	o->cpu |= o->work == GP_GRAPH && !blp_inside && another_tainted(o);
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
