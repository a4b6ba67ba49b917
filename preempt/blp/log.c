// log.c - the log of a domain: what was launched and is not known to be complete.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"

#include <sched.h>
#include <time.h>

// Streams.

// Whether the stream's queue has nothing that nobody has seen: launches past the log, and what was there before the stream had a place.
// Otherwise the stream is tainted until that is over: it may wait for the CPU, and its queue may be full. A thread's own stream is that
// of the calling thread.
static bool knows_queue(struct gp_domain *d, struct blp_stream *s)
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

struct blp_stream *blp_find_stream(struct gp_domain *d, CUstream handle, bool insert)
{
	struct blp_stream *unused = NULL;
	CUcontext context = NULL;
	unsigned flags = 0;

	if (handle == GP_STREAM_PER_THREAD)
		return blp_thread_stream(d, insert);
	for (uint32_t i = 0; i < d->streams; i++) {
		if (d->stream_of[i].handle == handle)
			return &d->stream_of[i];
		if (!unused && is_free(&d->stream_of[i]))
			unused = &d->stream_of[i];
	}
	if (insert && !unused && d->streams == BLP_STREAMS) { // orphans whose taint is over give up their places
		blp_still_tainted(d);
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
	CUevent taint = unused->taint, join = unused->join;
	if (unused->steps.count)
		blp_free_markers(d, unused->steps.first, UINT64_MAX);
	// All entries of the stream that had the place before are complete.
	*unused = (struct blp_stream){.handle = handle,
				      .blocking = !(flags & CU_STREAM_NON_BLOCKING),
				      .last = d->head,
				      .done = d->head,
				      .loose = d->head, // what that was, nobody knows any more
				      .first_marker = -1,
				      .last_marker = -1,
				      .taint = taint,
				      .join = join,
				      .phase = d->phase - 1,
				      .steps = {.first = -1},
				      .patience_ns = BLP_PATIENCE_NS};
	knows_queue(d, unused);
	return unused;
}

bool blp_related_pending(struct gp_domain *d, struct blp_stream *of)
{
	for (uint32_t i = 0; i < d->streams; i++)
		if (blp_may_be_cut(&d->stream_of[i]) && blp_related(&d->stream_of[i], of->handle, of->blocking))
			return true;
	return false;
}

// Completion.

enum { LEFT = -2 }; // in place of what follows a marker: in no list, and still used

static void free_marker(struct gp_domain *d, int m)
{
	if (d->marker[m].users) {
		d->marker[m].next = LEFT;
		return;
	}
	d->marker[m].next = d->free_marker;
	d->free_marker = m;
}

CUevent blp_use_marker(struct gp_domain *d, int m)
{
	d->marker[m].users++;
	return d->marker[m].event;
}

void blp_leave_marker(struct gp_domain *d, int m)
{
	if (!--d->marker[m].users && d->marker[m].next == LEFT)
		free_marker(d, m);
}

int blp_free_markers(struct gp_domain *d, int first, uint64_t upto)
{
	while (first >= 0 && d->marker[first].upto <= upto) {
		int m = first;
		first = d->marker[m].next;
		free_marker(d, m);
	}
	return first;
}

void blp_drop_markers(struct gp_domain *d, struct blp_stream *s)
{
	blp_free_markers(d, s->first_marker, UINT64_MAX);
	s->first_marker = s->last_marker = -1;
	s->unmarked = 0;
}

int blp_marker_behind(struct gp_domain *d, int first, uint64_t upto)
{
	while (first >= 0 && d->marker[first].upto < upto)
		first = d->marker[first].next;
	return first;
}

void blp_complete_to(struct gp_domain *d, struct blp_stream *s, uint64_t upto)
{
	s->first_marker = blp_free_markers(d, s->first_marker, upto);
	if (s->first_marker < 0)
		s->last_marker = -1;
	if (upto <= s->done)
		return;
	if (upto > d->tail) {
		s->finished = blp_entry_at(d, upto - 1)->ordinal;
		s->threads_finished = blp_entry_at(d, upto - 1)->threads;
	}
	if (s->last > s->done && s->last <= upto)
		d->busy--;
	s->done = upto;
	if (s->done >= s->last) {
		s->finished = s->entries;
		s->threads_finished = s->threads;
		s->left = s->left > s->ahead_of_last ? s->left : s->ahead_of_last;
		blp_drop_markers(d, s);
	}
}

void blp_forget(struct gp_domain *d, struct blp_stream *s)
{
	if (blp_pending(s)) {
		s->loose = s->last;
		s->ahead_of_last = 0;
		d->forgotten++;
	}
	blp_complete_to(d, s, s->last);
}

void blp_forget_all(struct gp_domain *d)
{
	for (uint32_t i = 0; i < d->streams; i++)
		if (blp_may_be_cut(&d->stream_of[i]) && !d->stream_of[i].thread)
			blp_forget(d, &d->stream_of[i]);
}

static bool has_record(const struct blp_entry *e)
{
	return e->kind == BLP_GRAPH || (e->kind == BLP_LAUNCH && e->record);
}

static uint32_t following(uint32_t record)
{
	record = (record + 1) % BLP_RECORDS;
	return record % BLP_REGION ? record : record + BLP_APART;
}

void blp_advance(struct gp_domain *d)
{
	while (d->tail < d->head) {
		const struct blp_entry *e = blp_entry_at(d, d->tail);
		if (!blp_is_done(e) && d->tail >= d->stream_of[e->stream].done)
			break;
		d->recorded -= has_record(e);
		if (e->kind == BLP_LAUNCH && e->record)
			d->oldest_record = following(e->record);
		d->tail++;
	}
	if (d->tail == d->head)
		d->oldest_record = d->next_record;
}

bool blp_mark(struct gp_domain *d, struct blp_stream *s, uint64_t upto)
{
	int m = d->free_marker;
	if (s->last_marker >= 0 && d->marker[s->last_marker].upto >= upto)
		return true;
	if (m < 0 || blp_is_orphan(s) ||
	    (!d->marker[m].event && gp_driver.cuEventCreate(&d->marker[m].event, CU_EVENT_DISABLE_TIMING)) ||
	    gp_driver.cuEventRecord(d->marker[m].event, blp_queue_of(d, s)))
		return false;
	d->free_marker = d->marker[m].next;
	d->marker[m].upto = upto;
	d->marker[m].next = -1;
	if (s->last_marker >= 0)
		d->marker[s->last_marker].next = m;
	else
		s->first_marker = m;
	s->last_marker = m;
	s->unmarked = 0;
	return true;
}

// Launches past the log fill queues without the lock. As in blp_append, either none does from the count on, or one is seen.
bool blp_mark_or_forget(struct gp_domain *d, struct blp_stream *s)
{
	bool marked = true, none = !d->recorded++;
	if (!s->thread && ((none && d->passing) || d->passed))
		blp_forget(d, s);
	else
		marked = blp_mark(d, s, s->last);
	d->recorded--;
	return marked;
}

bool blp_keep_mark(struct gp_domain *d, struct blp_stream *s)
{
	const struct blp_entry *e = s->last > d->tail && blp_may_be_cut(s) ? blp_entry_at(d, s->last - 1) : NULL;
	return !e || e->kind != BLP_RECORD || !e->waited || !blp_is_sent(e) || blp_mark(d, s, s->last);
}

bool blp_mark_ahead(struct gp_domain *d, const struct blp_stream *of, enum blp_kind kind, const uint64_t *driven)
{
	bool marked = true;
	for (uint32_t i = 0; (of->blocking || kind == BLP_WAIT) && i < d->streams; i++) {
		struct blp_stream *s = &d->stream_of[i];
		uint64_t upto = driven ? driven[i] : s->last;
		if (blp_may_be_cut(s) && upto > s->done &&
		    (s == of ? kind == BLP_WAIT : blp_related(s, of->handle, of->blocking)))
			marked &= blp_mark(d, s, upto);
	}
	return marked;
}

// Asks the driver how far the stream is. While the domain is stopped, the end of a launch does not mean that it ran. A stop
// may begin at any time, without the lock, so the state is read after the question.
static CUresult poll_markers(struct gp_domain *d, struct blp_stream *s)
{
	int mode = gp_relax_captures();
	CUresult result = CUDA_ERROR_NOT_READY;
	while (s->first_marker >= 0 && !(result = gp_driver.cuEventQuery(d->marker[s->first_marker].event)) &&
	       (s->firm || !blp_is_closed(d)))
		blp_complete_to(d, s, d->marker[s->first_marker].upto);
	gp_unrelax_captures(mode);
	return result;
}

bool blp_runs_on(struct gp_domain *d, struct blp_stream *s)
{
	return poll_markers(d, s) == CUDA_ERROR_NOT_READY && blp_pending(s);
}

// Asks the driver about the queue, where a marker would have to wait for the driver's lock: nothing comes there meanwhile but what waits
// for it, too. All entries before the latest marker are ahead of it.
static CUresult poll_queue(struct gp_domain *d, struct blp_stream *s)
{
	if (blp_is_orphan(s) || (s->handle == GP_STREAM_LEGACY && gp_capturing()))
		return CUDA_ERROR_NOT_READY;
	int mode = gp_relax_captures();
	CUresult result = gp_driver.cuStreamQuery(blp_queue_of(d, s));
	gp_unrelax_captures(mode);
	if (!result && (s->firm || !blp_is_closed(d))) // in this order, as in poll_markers
		blp_complete_to(d, s, s->last);
	return result;
}

bool blp_has_ended(struct gp_domain *d, struct blp_stream *s, uint64_t upto)
{
	// During a stop the driver does not have all of it: a marker would say nothing.
	if (!blp_is_closed(d) && blp_marker_behind(d, s->first_marker, upto) < 0) {
		if (blp_driver_waits(d))
			poll_queue(d, s);
		else
			blp_mark_or_forget(d, s);
	}
	poll_markers(d, s);
	return s->done >= upto;
}

void blp_pause(uint64_t since_ns)
{
	enum { AWAKE_NS = 200000, ASLEEP_NS = 20000 };
	if (gp_now_ns() - since_ns < AWAKE_NS)
		sched_yield();
	else
		gp_nap(ASLEEP_NS);
}

// Asks the driver whether an entry is complete that somebody waits for. It is marked when the wait begins, or when it is launched
// again, and an event that the program recorded is its own mark. So nobody waits for what comes behind it: that may wait for the
// program.
static CUresult poll_entry(struct gp_domain *d, struct blp_stream *s, uint64_t upto)
{
	struct blp_entry *e = upto > d->tail ? blp_entry_at(d, upto - 1) : NULL;
	CUresult result = e && e->kind == BLP_RECORD && blp_is_sent(e) ? blp_query_record(d, e->event, upto) :
									 CUDA_ERROR_NOT_FOUND;
	if (!result && (s->firm || !blp_is_closed(d))) // in this order, as in poll_markers
		blp_complete_to(d, s, upto);
	if (result != CUDA_ERROR_NOT_FOUND)
		return result;
	if (blp_marker_behind(d, s->first_marker, upto) < 0) {
		if (blp_driver_waits(d) && (!d->passed || s->thread))
			return poll_queue(d, s);
		if (!blp_mark_or_forget(d, s))
			return CUDA_ERROR_UNKNOWN; // the driver refused: it is to tell the program
	}
	return poll_markers(d, s);
}

bool blp_expect(struct gp_domain *d, struct blp_stream *s, uint64_t upto)
{
	bool pushed;
	if (upto > d->tail)
		blp_entry_at(d, upto - 1)->waited = true;
	if (!blp_is_stopped(d) && blp_enter(d->context, &pushed)) { // else it is marked when it is launched again
		poll_entry(d, s, upto);
		blp_leave(pushed);
	}
	return s->done >= upto;
}

// Waits for markers of ours: the program may put new work on its streams at any time, or destroy them.
static bool waits_on(struct gp_domain *d, const struct blp_stream *s, uint64_t upto, uint64_t patience_ns)
{
	return !s->firm || (!patience_ns && blp_marker_behind(d, s->first_marker, upto) >= 0);
}

bool blp_wait_complete(struct gp_domain *d, struct blp_stream *s, uint64_t upto, uint64_t patience_ns)
{
	CUstream handle = s->handle;
	CUcontext context = d->context;
	uint64_t since = gp_now_ns();
	bool pushed = false, over = true;

	if (s->done >= upto || !waits_on(d, s, upto, patience_ns) || !context)
		return true;
	if (!blp_enter(context, &pushed))
		return false;
	if (upto > d->tail) // also where a stop is to be over first
		blp_entry_at(d, upto - 1)->waited = true;
	while ((s->handle == handle || blp_is_orphan(s)) && s->done < upto && waits_on(d, s, upto, patience_ns) &&
	       d->context == context) {
		if (upto > s->last) // the driver refused what was there
			upto = s->last;
		if (blp_is_closed(d) && !s->firm) {
			uint64_t stopped = gp_now_ns();
			blp_wait_step(d, 0);
			since += (gp_now_ns() - stopped) / 8 *
				 7; // a stop counts an eighth: stops may follow each other for ever
			continue;
		}
		CUresult result = poll_entry(d, s, upto);
		if (s->done >= upto)
			break;
		if (result && result != CUDA_ERROR_NOT_READY) // nothing tells when it is complete, so nothing may be cut
			blp_give_up(d, "cuEventRecord", result);
		if ((result && result != CUDA_ERROR_NOT_READY) || (patience_ns && gp_now_ns() - since > patience_ns)) {
			over = false;
			break;
		}
		pthread_mutex_unlock(&d->lock);
		blp_pause(since);
		pthread_mutex_lock(&d->lock);
	}
	blp_leave(pushed);
	return over;
}

uint64_t blp_patience(void)
{
	// A window lasts max_hold at most, and then kernels drain. A thread that waits longer may be what a kernel waits for.
	return gp_now_ns() + 2 * gp_settings.max_hold_ns + 200000000;
}

void blp_wait_step(struct gp_domain *d, uint64_t deadline_ns)
{
	struct timespec t = gp_kernel_time(deadline_ns);
	if (!blp_is_closed(d) || !d->context)
		return;
	gp_wait_changed(&d->resumed, &d->lock, deadline_ns ? &t : NULL);
}

bool blp_wait_turn(struct gp_domain *d, uint64_t deadline_ns)
{
	while (blp_is_closed(d) && d->state != BLP_NARROW && d->context && gp_now_ns() < deadline_ns)
		blp_wait_step(d, deadline_ns);
	return !blp_is_stopped(d) || !d->context;
}

bool blp_wait_resumed(struct gp_domain *d, uint64_t deadline_ns)
{
	while (blp_is_closed(d) && d->context) {
		if (deadline_ns && gp_now_ns() >= deadline_ns)
			return false;
		blp_wait_step(d, deadline_ns);
	}
	return true;
}

// The ring of bytes.

static uint64_t bytes_tail(struct gp_domain *d)
{
	return d->tail < d->head ? blp_entry_at(d, d->tail)->bytes_begin : d->bytes_head;
}

static uint64_t bytes_at(struct gp_domain *d, uint32_t bytes)
{
	uint64_t at = d->bytes_head, in_ring = at % BLP_BYTES;
	return in_ring + bytes > BLP_BYTES ? at + BLP_BYTES - in_ring : at;
}

uint64_t blp_threads(const struct blp_entry *e)
{
	uint32_t threads = gp_threads_of(e->block);
	return blp_blocks(e) * (threads < BLP_LEAST_THREADS ? BLP_LEAST_THREADS : threads);
}

// Work in flight takes time to drain. And where the driver's queue is full, its next call waits, with the domain's lock held: what
// waits for the program may be in the queue.
static bool bounded(const struct blp_stream *s, uint64_t entries)
{
	return entries < BLP_IN_FLIGHT && (entries < 2 || s->threads - s->threads_finished < BLP_THREADS_IN_FLIGHT);
}

bool blp_has_room(struct gp_domain *d, struct blp_stream *s, uint32_t bytes)
{
	uint64_t entries = s->entries - s->finished;
	uint32_t records = (d->next_record + BLP_RECORDS - d->oldest_record) % BLP_RECORDS;
	return d->head - d->tail < BLP_LOG && records < BLP_LOG && bounded(s, entries) &&
	       bytes_at(d, bytes) + bytes - bytes_tail(d) <= BLP_BYTES;
}

// May give up the lock meanwhile. A thread waits for its own stream only: kernels of another stream may wait for what this
// thread is about to launch.
bool blp_make_room(struct gp_domain *d, struct blp_stream *s, uint32_t bytes)
{
	CUstream handle = s->handle;
	CUcontext context = d->context;
	for (;;) {
		if (s->handle != handle || d->context != context)
			return false;
		if (blp_has_room(d, s, bytes))
			return true;
		if (blp_is_stopped(d) || d->given_up)
			return false;
		if (blp_give_way(d))
			continue;
		poll_markers(d, s);
		struct blp_stream *oldest = d->tail < d->head ? &d->stream_of[blp_entry_at(d, d->tail)->stream] : s;
		if (oldest != s) {
			if (oldest->first_marker < 0 && blp_may_be_cut(oldest))
				blp_mark_or_forget(d, oldest);
			poll_markers(d, oldest);
		}
		blp_advance(d);
		if (blp_has_room(d, s, bytes))
			return true;
		if (!blp_pending(s))
			return false;
		if (s->first_marker < 0)
			blp_mark_or_forget(d, s);
		if (!blp_pending(s))
			continue;
		if (s->first_marker < 0 || !blp_wait_or_let_run(d, s, d->marker[s->first_marker].upto) || s->firm)
			return false;
	}
}

// A record is zero when it is handed out: its region was zeroed when the region before it was begun, and no launch with a
// record of it was in flight.
static uint32_t take_record(struct gp_domain *d)
{
	uint32_t record = d->next_record;
	if (record % BLP_REGION == BLP_APART) {
		uint32_t region = record / BLP_REGION, retired = (region + BLP_REGIONS - 2) % BLP_REGIONS;
		uint64_t skip = retired == 0; // the flag
		CUdeviceptr at = d->arena + (retired * (uint64_t)BLP_REGION + skip) * sizeof(struct gpreempt_record);
		const char *call = "cuEventSynchronize";
		int mode = gp_relax_captures(); // another thread may capture
		CUresult result = d->zeroing[region] ? gp_driver.cuEventSynchronize(d->zeroed[region]) : 0;
		gp_unrelax_captures(mode);
		if (!result && blp_lingers(d)) {
			call = "cuEventQuery";
			result = CUDA_ERROR_NOT_READY;
		}
		if (!result) {
			call = "cuMemcpyAsync";
			result = blp_zero(d, at, (BLP_REGION - skip) * sizeof(struct gpreempt_record));
		}
		if (!result) {
			call = "cuEventRecord";
			result = gp_driver.cuEventRecord(d->zeroed[retired], d->zeros);
		}
		if (result) { // a launch would find the counts of another, and skip blocks
			blp_give_up(d, call, result);
			return 0;
		}
		d->zeroing[retired] = true;
	}
	d->next_record = following(record);
	return record;
}

// Launches that passed the log since the last call may have filled any queue, and the next call there might wait for room, with the lock
// held. So what the log has of events is forgotten, as it could not be cut, and each stream is looked at anew. False: the stream's queue
// has such launches.
static bool begin_phase(struct gp_domain *d, struct blp_stream *s)
{
	if (d->passed) {
		blp_forget_all(d);
		d->phase++;
		d->passed = false;
	}
	return knows_queue(d, s);
}

struct blp_entry *blp_append(struct gp_domain *d, struct blp_stream *s, enum blp_kind kind, bool now, uint32_t bytes,
			     char **room)
{
	struct blp_entry *e = blp_entry_at(d, d->head);
	uint64_t at = bytes_at(d, bytes);
	// The first record is counted, then passing is read; a launch that passes the log is counted, then recorded is read. So
	// none that the driver does not have yet could come into the middle of one that is cut. It is not waited for: its call of
	// the driver may last as long as a queue is full. From here on no queue gets launches past the log.
	if ((!d->recorded++ && d->passing) || !begin_phase(d, s) ||
	    (now && (!blp_keep_mark(d, s) || !blp_mark_ahead(d, s, kind, NULL)))) {
		d->recorded--;
		return NULL;
	}
	e->kind = kind;
	e->stage = BLP_QUEUED;
	e->accepted = e->again = e->counted = e->waited = e->held = e->awaited = e->ordered = e->foreign = e->beside =
		false;
	e->ran = 0;
	e->spare = 0;
	e->stream = (uint16_t)(s - d->stream_of);
	e->ordinal = ++s->entries;
	s->ahead_of_last = s->passed;
	e->threads = s->threads;
	e->bytes_begin = d->bytes_head;
	if (bytes) {
		*room = d->bytes + at % BLP_BYTES;
		d->bytes_head = at + bytes;
	}
	if (kind == BLP_LAUNCH && !(e->record = take_record(d)))
		d->recorded--; // given up
	if (s->last <= s->done)
		d->busy++;
	s->last = ++d->head;
	return e;
}

// Takes the last entry back, which is that stream's.
void blp_unappend(struct gp_domain *d, struct blp_stream *s)
{
	struct blp_entry *e = blp_entry_at(d, --d->head);
	d->bytes_head = e->bytes_begin;
	d->recorded -= has_record(e);
	if (e->kind == BLP_LAUNCH) // its record may have been frozen by now, and is not used again
		s->threads -= blp_threads(e);
	s->entries--;
	s->last = s->done; // where nothing else is pending
	for (uint64_t at = d->head; at > d->tail && at > s->done; at--)
		if (&d->stream_of[blp_entry_at(d, at - 1)->stream] == s) {
			s->last = at;
			break;
		}
	if (s->last <= s->done)
		d->busy--;
}

void blp_appended(struct gp_domain *d, struct blp_stream *s)
{
	const struct blp_entry *e = blp_entry_at(d, d->head - 1);
	bool large = e->kind == BLP_LAUNCH && blp_threads(e) >= BLP_THREADS_IN_FLIGHT / 4;
	if (++s->unmarked < BLP_MARKER_EVERY && !large)
		return;
	poll_markers(d, s);
	blp_advance(d);
	blp_mark(d, s, s->last);
}
