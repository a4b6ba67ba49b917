// log.c - the log of a domain gets operations, in order, while it has room.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"

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

// Work in flight takes time to drain. And where the driver's queue is full, its next call waits, with the domain's lock held: the queue
// may have work that waits for the program.
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

_Atomic bool gp_blp_was_full;

void blp_note_full(void)
{
	if (gp_blp_was_full)
		return;
	gp_blp_was_full = true;
	gp_notify();
}

// May give up the lock meanwhile. A thread waits for its own stream only: kernels of another stream may wait for a launch that this
// thread is about to make.
bool blp_make_room(struct gp_domain *d, struct blp_stream *s, uint32_t bytes)
{
	CUstream handle = s->handle;
	CUcontext context = d->context;
	for (;;) {
		if (s->handle != handle || d->context != context)
			return false;
		if (blp_has_room(d, s, bytes))
			return true;
		blp_note_full();
		if (blp_is_stopped(d) || d->given_up)
			return false;
		if (blp_give_way(d))
			continue;
		blp_poll(d, s);
		struct blp_stream *oldest = d->tail < d->head ? &d->stream_of[blp_entry_at(d, d->tail)->stream] : s;
		if (oldest != s) {
			if (oldest->first_marker < 0 && blp_may_be_cut(oldest))
				blp_mark_or_forget(d, oldest);
			blp_poll(d, oldest);
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
		if (s->first_marker < 0 || !blp_wait_or_let_run(d, s, d->marker[s->first_marker].upto) || s->uncuttable)
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
		CUresult result = gp_driver.cuEventSynchronize(d->zeroed[region]);
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
	}
	d->next_record = blp_record_after(record);
	return record;
}

// Launches that passed the log since the last call may have filled any queue. The next call there might wait for room, with the lock
// held. So the log forgets its events, which could not be cut, and looks at each stream anew. False: the stream's queue has such
// launches.
static bool begin_phase(struct gp_domain *d, struct blp_stream *s)
{
	if (d->passed) {
		blp_forget_all(d);
		d->phase++;
		d->passed = false;
	}
	return blp_knows_queue(d, s);
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
	e->taken = BLP_NEVER;
	e->order = BLP_PLAIN;
	e->waited = e->held = e->beside = false;
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
	d->recorded -= blp_has_record(e);
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

// Markers are so close that a thread that waits for room goes on while the GPU still has most of what may be in flight.
void blp_appended(struct gp_domain *d, struct blp_stream *s)
{
	if (++s->unmarked < BLP_MARKER_EVERY && s->threads - s->threads_marked < BLP_THREADS_IN_FLIGHT / 4)
		return;
	blp_poll(d, s);
	blp_advance(d);
	blp_mark(d, s, s->last);
}
