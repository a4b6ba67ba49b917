// barrier.c - barriers wait for the launches ahead of them, and streams that wait for the CPU are tainted.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"
#include "preempt/code/code.h"

// Whether the event taint tells when the taint is over.
static bool knows_end(const struct blp_stream *s) { return s->taint_behind >= s->taints_upto; }

// Lets what the stream has in flight run to its end, since it may wait for the program: the domain is not cut before that is
// over, and the caller may go on behind it in the driver's order. The thread that stops a domain closes it, then
// reads firm: one of the two sees the other. True: so it is, or nothing of it can be cut any more. False: the domain is being stopped, or the
// driver refused.
static bool let_run(struct gp_domain *d, struct blp_stream *s)
{
	// A marker tells of the end, and not of what comes behind. What taints the stream already is behind its entries.
	bool told = blp_marker_behind(d, s->first_marker, s->last) >= 0 || (s->tainted && knows_end(s));
	d->firm++;
	bool lets = !blp_is_stopped(d) && (told || blp_mark_or_forget(d, s));
	if (!lets || !blp_pending(s)) {
		d->firm--;
		return lets;
	}
	s->firm = true;
	d->tainted++;
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
		if (blp_give_way(d))
			continue;
		if (let_run(d, s))
			return true;
		if (!blp_is_closed(d))
			return false;
	}
}

static bool still_tainted(struct gp_domain *, struct blp_stream *);

// Whether the domain that the stream had before has nothing of it any more, neither in its log nor on the way to the driver.
// Waits for the log. Who still comes there with the stream finds that it left: it counts itself, or takes the lock, then asks.
static bool has_left(struct gp_domain *d, CUcontext context, CUstream stream)
{
	struct gp_domain *before = d->before;
	if (!before)
		return true;
	blp_flush_but(d, context, stream);
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
			blp_flush_but(d, context, stream);
		flushed = true;
		pthread_mutex_lock(&other->lock);
		struct blp_stream like = {.handle = stream, .blocking = true};
		tainted |= other->context == context && blp_is_tainted(other, &like);
		pthread_mutex_unlock(&other->lock);
	}
	return tainted;
}

// Nothing is left of a stream that the program destroyed.
static void leave_place(struct blp_stream *s)
{
	if (blp_is_orphan(s) && !s->tainted && !s->firm)
		s->handle = NULL;
}

bool blp_still_firm(struct gp_domain *d, struct blp_stream *s)
{
	if (!s->firm)
		return false;
	bool marked = blp_marker_behind(d, s->first_marker, s->last) >= 0;
	if (marked ? blp_runs_on(d, s) : blp_pending(s) && s->tainted && !blp_taint_is_over(d, s))
		return true;
	blp_complete_to(d, s, s->last); // nothing was logged since
	s->firm = false;
	d->firm--;
	d->tainted--;
	leave_place(s);
	return false;
}

CUevent blp_firm_end(struct gp_domain *d, const struct blp_stream *s, uint64_t upto)
{
	int m = blp_marker_behind(d, s->first_marker, upto);
	return m >= 0 ? d->marker[m].event : s->taint;
}

// The taint is over, or ended with an error.
static void untaint(struct gp_domain *d, struct blp_stream *s)
{
	s->tainted = false;
	s->taints = 0;
	s->queue = BLP_KNOWN;
	if (s->left < s->taint_behind)
		s->left = s->taint_behind;
	d->tainted--;
	leave_place(s);
}

static bool still_tainted(struct gp_domain *d, struct blp_stream *s)
{
	bool firm = s->handle && blp_still_firm(d, s);
	if (s->handle && s->tainted && !blp_taint_is_over(d, s))
		return true;
	if (s->handle && s->tainted)
		untaint(d, s);
	return s->handle && (firm || s->passing);
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

bool blp_taint_is_over(struct gp_domain *d, struct blp_stream *s)
{
	if (s->taint_behind && blp_query(s->taint) == CUDA_ERROR_NOT_READY)
		return false;
	if (knows_end(s) || blp_is_orphan(s))
		return true;
	// A thread's own stream is another one on each thread. The question would end a capture. The legacy stream is the current context's.
	bool pushed;
	if (s->thread || gp_capturing() || !blp_enter(d->context, &pushed))
		return false;
	CUresult result = gp_driver.cuStreamQuery(s->handle);
	blp_leave(pushed);
	return result != CUDA_ERROR_NOT_READY;
}

static void taint_upto(struct gp_domain *d, struct blp_stream *s, uint64_t upto)
{
	d->tainted += !s->tainted;
	s->tainted = true;
	if (s->taints_upto < upto)
		s->taints_upto = upto;
}

void blp_doubt(struct gp_domain *d, struct blp_stream *s, bool deep)
{
	taint_upto(d, s, s->passed + 1);
	s->queue = deep ? BLP_DEEP : BLP_DOUBTED;
}

bool blp_is_deep(struct gp_domain *d, struct blp_stream *s)
{
	while (s->steps.first >= 0 && blp_query(d->marker[s->steps.first].event) != CUDA_ERROR_NOT_READY) {
		uint64_t upto = d->marker[s->steps.first].upto;
		s->left = s->left > upto ? s->left : upto;
		s->steps.first = blp_free_markers(d, s->steps.first, upto);
		s->steps.count--;
	}
	return s->passed - s->left > BLP_PAST;
}

// A stream that gets calls all the time may always have many. Each step restarts the patience: a queue that moves does not wait for the
// calling thread.
bool blp_wait_shallow(struct gp_domain *d, struct blp_stream *s)
{
	CUstream handle = s->handle;
	uint64_t made = d->made, since = gp_now_ns(), left = s->left;
	while (d->made == made && s->handle == handle && s->tainted && s->queue == BLP_DEEP && blp_is_deep(d, s)) {
		if (s->left > left || blp_taint_is_over(d, s))
			return true;
		if (gp_now_ns() - since > s->patience_ns) {
			s->queue = BLP_DOUBTED;
			s->patience_ns =
				s->patience_ns / 8 > BLP_LEAST_PATIENCE_NS ? s->patience_ns / 8 : BLP_LEAST_PATIENCE_NS;
			return false;
		}
		pthread_mutex_unlock(&d->lock);
		blp_pause(since);
		pthread_mutex_lock(&d->lock);
	}
	return false;
}

// A marker that is to be recorded behind calls past the log; -1: none.
static int next_step(struct gp_domain *d, struct blp_stream *s)
{
	int m = d->free_marker;
	if (!s->tainted || !s->queue || s->passed - s->steps.upto < BLP_STEP || s->steps.count == BLP_STEPS || m < 0 ||
	    !d->marker[m].event)
		return -1;
	d->free_marker = d->marker[m].next;
	d->marker[m].next = -1;
	d->marker[m].upto = s->steps.upto = s->passed;
	return m;
}

// The event that is to be recorded behind what taints; NULL: none, since it is, or the driver refused. A program may put many calls that
// taint on a stream that waits for it, and a record behind each would fill the driver's queue. So from a bound on there is none before
// the queue has got somewhere. A thread's own stream has them all: only that thread could be asked whether it has nothing left.
static CUevent next_record(struct blp_stream *s)
{
	if (!s->tainted || knows_end(s) || blp_is_orphan(s))
		return NULL;
	if (s->taints >= BLP_ADDED && blp_query(s->taint) != CUDA_ERROR_NOT_READY)
		s->taints = 0;
	if ((s->taints >= BLP_ADDED && !s->thread) ||
	    (!s->taint && gp_driver.cuEventCreate(&s->taint, CU_EVENT_DISABLE_TIMING))) // made ahead, but for logged work
		return NULL;
	s->taints++;
	return s->taint;
}

static void recorded(struct blp_stream *s, uint64_t behind)
{
	if (s->taint_behind < behind)
		s->taint_behind = behind;
}

// The marker was recorded; or it was not, or says nothing that a later one, of another thread, does not say.
static void put_step(struct gp_domain *d, struct blp_stream *s, int m, bool told)
{
	told = told && (s->steps.first < 0 || d->marker[s->steps.last].upto < d->marker[m].upto);
	if (!told) {
		blp_free_markers(d, m, UINT64_MAX);
		return;
	}
	if (s->steps.first < 0)
		s->steps.first = m;
	else
		d->marker[s->steps.last].next = m;
	s->steps.last = m;
	s->steps.count++;
}

void blp_end_taint(struct gp_domain *d, struct blp_stream *s)
{
	pthread_mutex_lock(&d->lock);
	CUstream handle = s->handle;
	uint64_t upto = s->taints_upto;
	s->taints = 0;
	CUevent event = next_record(s);
	pthread_mutex_unlock(&d->lock);
	if (!event)
		return;
	gp_driver.cuEventRecord(event, handle); // may wait for room in the queue
	pthread_mutex_lock(&d->lock);
	recorded(s, upto);
	pthread_mutex_unlock(&d->lock);
}

bool blp_taint(struct gp_domain *d, struct blp_stream *s, CUstream behind)
{
	uint64_t upto = ++s->passed;
	taint_upto(d, s, upto);
	CUevent event = next_record(s);
	if (event && gp_driver.cuEventRecord(event, behind))
		return false;
	if (event)
		recorded(s, upto);
	return true;
}

// From here to blp_passed the stream counts as tainted: a launch that another thread makes meanwhile comes before the
// operation or behind it as a whole, and cannot be cut and repeated across it. A stream without a place gets none meanwhile.
// What blp_passed records. It is made here, where no call waits with the driver's lock: there, one that came since may. Where the driver
// refuses, nothing is recorded.
static void make_events(struct gp_domain *d, struct blp_stream *s)
{
	int m = d->free_marker;
	if (s == &d->unplaced)
		return;
	if (!s->taint)
		gp_driver.cuEventCreate(&s->taint, CU_EVENT_DISABLE_TIMING);
	if (m >= 0 && !d->marker[m].event)
		gp_driver.cuEventCreate(&d->marker[m].event, CU_EVENT_DISABLE_TIMING);
}

// Another thread may end the context while the operation is under way. What its domain counted is gone then, and the place may be another's.
// d->lock is held.
static bool is_counted_there(const struct gp_operation *o, const struct gp_domain *d)
{
	return d->context && d->made == o->made;
}

void blp_begin_pass(struct gp_operation *o, struct gp_domain *d, struct blp_stream *s)
{
	make_events(d, s);
	s->passing++;
	d->tainted++;
	d->narrow.blind |= s == &d->unplaced;
	o->domain = d;
	o->made = d->made;
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
	if (is_counted_there(o, d))
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
	if (!is_counted_there(o, d)) {
		pthread_mutex_unlock(&d->lock);
		return;
	}
	CUstream handle = s->handle;
	uint64_t number = ++s->passed;
	if (handle && !o->result && o->cpu)
		taint_upto(d, s, number);
	CUevent event = handle ? next_record(s) : NULL;
	int step = handle && !event ? next_step(d, s) : -1;
	if (event || step >= 0) {
		// May wait for room in the queue, and other threads may have to go on until there is. Meanwhile the call is still on its way. If
		// two threads are here, the later record counts: it is behind both calls, also where it is known of the earlier one alone.
		pthread_mutex_unlock(&d->lock);
		CUresult result = gp_driver.cuEventRecord(event ? event : d->marker[step].event, o->stream);
		pthread_mutex_lock(&d->lock);
		bool counted = is_counted_there(o, d);
		if (step >= 0 && counted)
			put_step(d, s, step, !result && s->handle == handle);
		else if (!result && counted && s->handle == handle)
			recorded(s, number);
	}
	if (s->passing && is_counted_there(o, d)) {
		s->passing--;
		d->tainted--;
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
			any = s->handle && (s->tainted || s->firm || s->passing) &&
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
