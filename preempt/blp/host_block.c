// host_block.c - streams that wait for the CPU: while an operation passes the log, and behind it. Uncuttable streams, whose entries no
// stop cuts.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"
#include "preempt/code/code.h"

// Whether the event host block tells when the host block is over.
static bool knows_end(const struct blp_stream *s) { return s->host_block_behind >= s->host_blocks_upto; }

// Lets the stream's work in flight run to its end, since it may wait for the program. No stop cuts the domain before that is over, and
// the caller may go on behind it in the driver's order. The thread that stops a domain closes it, then reads uncuttable; this one raises
// uncuttable, then reads the state: one of the two sees the other. True: the work runs on, or cannot be cut any more. False: the domain
// is being stopped, or the driver refused.
bool blp_let_run(struct gp_domain *d, struct blp_stream *s)
{
	// A marker tells of the end, and not of later work. An operation that host-blocks the stream already is behind its entries.
	bool told = blp_marker_behind(d, s->first_marker, s->last) >= 0 || (s->host_blocked && knows_end(s));
	d->uncuttable++;
	bool lets = !blp_is_stopped(d) && (told || blp_mark_or_forget(d, s));
	if (!lets || !blp_pending(s)) {
		d->uncuttable--;
		return lets;
	}
	s->uncuttable = true;
	d->host_blocked++;
	return true;
}

// Gives the place back once a stream that the program destroyed has nothing left.
static void leave_place(struct blp_stream *s)
{
	if (blp_is_orphan(s) && !s->host_blocked && !s->uncuttable)
		s->handle = NULL;
}

bool blp_still_uncuttable(struct gp_domain *d, struct blp_stream *s)
{
	if (!s->uncuttable)
		return false;
	bool marked = blp_marker_behind(d, s->first_marker, s->last) >= 0;
	if (marked ? blp_runs_on(d, s) : blp_pending(s) && s->host_blocked && !blp_host_block_is_over(d, s))
		return true;
	blp_complete_to(d, s, s->last); // nothing was logged since
	s->uncuttable = false;
	d->uncuttable--;
	d->host_blocked--;
	leave_place(s);
	return false;
}

CUevent blp_uncuttable_end(struct gp_domain *d, const struct blp_stream *s, uint64_t upto)
{
	int m = blp_marker_behind(d, s->first_marker, upto);
	return m >= 0 ? d->marker[m].event : s->host_block;
}

// The host block is over, or ended with an error.
static void end_host_block(struct gp_domain *d, struct blp_stream *s)
{
	s->host_blocked = false;
	s->host_blocks = 0;
	s->queue = BLP_KNOWN;
	if (s->left < s->host_block_behind)
		s->left = s->host_block_behind;
	d->host_blocked--;
	leave_place(s);
}

bool blp_is_stream_host_blocked(struct gp_domain *d, struct blp_stream *s)
{
	bool uncuttable = s->handle && blp_still_uncuttable(d, s);
	if (s->handle && s->host_blocked && !blp_host_block_is_over(d, s))
		return true;
	if (s->handle && s->host_blocked)
		end_host_block(d, s);
	return s->handle && (uncuttable || s->passing);
}

bool blp_is_host_blocked(struct gp_domain *d, struct blp_stream *of)
{
	bool found = of->blocking && d->unplaced.passing; // which of them is blocking is not known
	for (uint32_t i = 0; d->host_blocked && i < d->streams; i++) {
		struct blp_stream *s = &d->stream_of[i];
		if (blp_related(s, of->handle, of->blocking))
			found |= blp_is_stream_host_blocked(d, s);
	}
	return found;
}

void blp_still_host_blocked(struct gp_domain *d)
{
	for (uint32_t i = 0; d->host_blocked && i < d->streams; i++)
		blp_is_stream_host_blocked(d, &d->stream_of[i]);
}

bool blp_host_block_is_over(struct gp_domain *d, struct blp_stream *s)
{
	if (s->host_block_behind && blp_query(s->host_block) == CUDA_ERROR_NOT_READY)
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

static void host_block_upto(struct gp_domain *d, struct blp_stream *s, uint64_t upto)
{
	d->host_blocked += !s->host_blocked;
	s->host_blocked = true;
	if (s->host_blocks_upto < upto)
		s->host_blocks_upto = upto;
}

void blp_doubt(struct gp_domain *d, struct blp_stream *s, bool deep)
{
	host_block_upto(d, s, s->passed + 1);
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
	uint64_t generation = d->generation, since = gp_now_ns(), left = s->left;
	while (d->generation == generation && s->handle == handle && s->host_blocked && s->queue == BLP_DEEP &&
	       blp_is_deep(d, s)) {
		if (s->left > left || blp_host_block_is_over(d, s))
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
	if (!s->host_blocked || !s->queue || s->passed - s->steps.upto < BLP_STEP || s->steps.count == BLP_STEPS ||
	    m < 0 || !d->marker[m].event)
		return -1;
	d->free_marker = d->marker[m].next;
	d->marker[m].next = -1;
	d->marker[m].upto = s->steps.upto = s->passed;
	return m;
}

// The event that is to be recorded behind a call that host-blocks; NULL: none, since it is recorded, or the driver refused. A stream that
// waits for the program may get many such calls, and a record behind each would fill the driver's queue. So from a bound on there is none
// before the queue has got somewhere. A thread's own stream has them all: only that thread could be asked whether it has nothing left.
static CUevent next_record(struct blp_stream *s)
{
	if (!s->host_blocked || knows_end(s) || blp_is_orphan(s))
		return NULL;
	if (s->host_blocks >= BLP_ADDED && blp_query(s->host_block) != CUDA_ERROR_NOT_READY)
		s->host_blocks = 0;
	if ((s->host_blocks >= BLP_ADDED && !s->thread) ||
	    (!s->host_block && gp_driver.cuEventCreate(&s->host_block, CU_EVENT_DISABLE_TIMING))) // made ahead, but for logged work
		return NULL;
	s->host_blocks++;
	return s->host_block;
}

static void recorded(struct blp_stream *s, uint64_t behind)
{
	if (s->host_block_behind < behind)
		s->host_block_behind = behind;
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

void blp_end_host_block(struct gp_domain *d, struct blp_stream *s)
{
	pthread_mutex_lock(&d->lock);
	CUstream handle = s->handle;
	uint64_t upto = s->host_blocks_upto;
	s->host_blocks = 0;
	CUevent event = next_record(s);
	pthread_mutex_unlock(&d->lock);
	if (!event)
		return;
	gp_driver.cuEventRecord(event, handle); // may wait for room in the queue
	pthread_mutex_lock(&d->lock);
	recorded(s, upto);
	pthread_mutex_unlock(&d->lock);
}

bool blp_host_block(struct gp_domain *d, struct blp_stream *s, CUstream behind)
{
	uint64_t upto = ++s->passed;
	host_block_upto(d, s, upto);
	CUevent event = next_record(s);
	if (event && gp_driver.cuEventRecord(event, behind))
		return false;
	if (event)
		recorded(s, upto);
	return true;
}

// Makes the events that blp_passed records, here where no call waits with the driver's lock: there, a call that came since may. Where the
// driver refuses, blp_passed records nothing.
static void make_events(struct gp_domain *d, struct blp_stream *s)
{
	int m = d->free_marker;
	if (s == &d->unplaced)
		return;
	if (!s->host_block)
		gp_driver.cuEventCreate(&s->host_block, CU_EVENT_DISABLE_TIMING);
	if (m >= 0 && !d->marker[m].event)
		gp_driver.cuEventCreate(&d->marker[m].event, CU_EVENT_DISABLE_TIMING);
}

// Another thread may end the context while the operation is under way. Then its domain's counts are gone, and the place may be another domain's.
// d->lock is held.
bool blp_is_counted_there(const struct gp_operation *o, const struct gp_domain *d)
{
	return d->context && d->generation == o->generation;
}

// From here to blp_passed the stream counts as host-blocked: a launch that another thread makes meanwhile comes before the
// operation or behind it as a whole, and cannot be cut and repeated across it. A stream without a place gets none meanwhile.
void blp_begin_pass(struct gp_operation *o, struct gp_domain *d, struct blp_stream *s)
{
	make_events(d, s);
	s->passing++;
	d->host_blocked++;
	o->domain = d;
	o->generation = d->generation;
	o->passing = s;
	if (blp_separated())
		blp_begin_crossing(o, d);
}

_Atomic uint32_t blp_unmet;
struct blp_stream blp_nowhere; // what such operations pass on

// The operation counts itself, then looks for the domain. The thread that makes the domain shows it before a stream gets a place there.
// So the domain is found, or no launch is logged before the driver has the operation.
void gp_blp_meet(struct gp_operation *o)
{
	if (!o->handle || !gp_blp_wanted())
		return;
	blp_unmet++;
	o->context = gp_find_context(o->handle);
	if (blp_domain_for(o))
		blp_unmet--;
	else
		o->passing = &blp_nowhere;
}

// Work behind an operation that may wait for the CPU is not stopped: a stop would wait for that operation, and the CPU may
// wait for the stop to end. An operation that merely comes behind a host block waits for nothing once that is over. If it
// host-blocked, too, no launch would be logged on a stream that always has work.
void blp_passed(struct gp_operation *o)
{
	struct gp_domain *d = o->domain;
	struct blp_stream *s = o->passing;

	o->passing = NULL;
	if (s == &blp_nowhere) {
		blp_unmet--;
		return;
	}
	blp_end_crossing(o, d);
	pthread_mutex_lock(&d->lock);
	if (!blp_is_counted_there(o, d)) {
		pthread_mutex_unlock(&d->lock);
		return;
	}
	CUstream handle = s->handle;
	uint64_t number = ++s->passed;
	if (handle && !o->result && o->cpu)
		host_block_upto(d, s, number);
	CUevent event = handle ? next_record(s) : NULL;
	int step = handle && !event ? next_step(d, s) : -1;
	if (event || step >= 0) {
		// May wait for room in the queue, and other threads may have to go on until there is. Meanwhile the call is still on its way. If
		// two threads are here, the later record counts: it is behind both calls, also where it is known of the earlier one alone.
		pthread_mutex_unlock(&d->lock);
		CUresult result = gp_driver.cuEventRecord(event ? event : d->marker[step].event, o->stream);
		pthread_mutex_lock(&d->lock);
		bool counted = blp_is_counted_there(o, d);
		if (step >= 0 && counted)
			put_step(d, s, step, !result && s->handle == handle);
		else if (!result && counted && s->handle == handle)
			recorded(s, number);
	}
	if (s->passing && blp_is_counted_there(o, d)) {
		s->passing--;
		d->host_blocked--;
	}
	pthread_mutex_unlock(&d->lock);
}
