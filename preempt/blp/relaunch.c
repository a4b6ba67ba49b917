// relaunch.c - launches the entries again that a stop cut, in the order of the log.
//
// Each entry goes back to its own stream, so that streams run beside each other: their kernels may wait for each other. A wait behind a
// cut launch may hold up the driver's queue of a stream, though: for a kernel that runs, and that the program may only let go once it has
// seen the cut launch end. So the launch must not come behind the wait. It goes to a stream of ours, in the place that it had: behind the
// marker that was recorded on the stream before the wait (blp_mark_ahead). Then the stream comes behind the one of ours.
//
// By the rules of the legacy stream, work there holds a blocking stream's queue up just the same, behind kernels of the other
// blocking streams. So launches that were cut ahead of it go beside the stream, too, and the legacy stream comes behind the one of ours:
// the program may wait for the stream while the legacy stream waits for the program.
//
// blp_await logs a wait that may be held up, on a stream that these rules concern, only while the other such streams hold nothing. So
// launches that run again on those come behind that wait in the program, too.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"

enum {
	LOOK_EVERY = 8, // relaunches between two looks whether a window has opened again
	CALLS = 4,      // for a record or a wait that is launched again, and a marker, at most
};

// Under gp_domain.control, with the lock or without: another thread may get its stream a place meanwhile. A place that is not seen yet
// has no calls added: only the holder of control adds, for a stream that it has found by then.
bool blp_is_held_up(struct gp_domain *d)
{
	bool held = false;
	for (uint32_t i = 0; i < d->streams; i++) {
		__typeof__(d->beside[0]) *b = &d->beside[i];
		if (b->added >= BLP_ADDED && blp_query(b->moved) != CUDA_ERROR_NOT_READY)
			b->added = 0;
		held |= b->added >= BLP_ADDED;
	}
	return held;
}

// Counts calls that are about to add to the queue of a stream.
static bool add(struct gp_domain *d, const struct blp_stream *s, uint32_t calls)
{
	__typeof__(d->beside[0]) *b = &d->beside[s - d->stream_of];
	if (!b->moved)
		BLP_TRY(cuEventCreate, &b->moved, CU_EVENT_DISABLE_TIMING);
	if (!b->added)
		BLP_TRY(cuEventRecord, b->moved, s->handle);
	b->added += calls;
	return true;
}

static bool mark(struct gp_domain *d, struct blp_stream *s, uint64_t upto)
{
	if (!blp_mark(d, s, upto) && !d->given_up)
		blp_give_up(d, "cuEventRecord", CUDA_ERROR_UNKNOWN);
	return !d->given_up;
}

// Records an event of ours in place of the record at a place of the log, behind the present work of its stream.
static bool record_order(struct gp_domain *d, uint64_t at)
{
	CUevent *order = &d->order[at % BLP_LOG];
	if (!*order)
		BLP_TRY(cuEventCreate, order, CU_EVENT_DISABLE_TIMING);
	BLP_TRY(cuEventRecord, *order, blp_queue_of(d, &d->stream_of[blp_entry_at(d, at)->stream]));
	return true;
}

// Puts a wait on its stream again, behind the record that it is for. An event of ours stands for a record that was launched
// again. For another the stream's own queue has the wait, unless that was only logged. Then the driver has the program's event, or
// that was recorded anew since: the wait comes behind all that the record's stream has now.
static bool come_behind(struct gp_domain *d, const struct blp_entry *wait)
{
	struct blp_stream *s = &d->stream_of[wait->stream], *of = &d->stream_of[wait->of];
	uint64_t at = wait->upto - 1;
	CUevent *order = &d->order[at % BLP_LOG];
	const struct blp_entry *record = blp_entry_at(d, at);

	if (s == of || at < d->tail || at < of->done || blp_is_done(record))
		return true;
	if (record->order != BLP_ORDERED) {
		if (wait->taken != BLP_NEVER || blp_wait_again(d, record->event, wait->upto, blp_queue_of(d, s)))
			return true;
		if (!of->uncuttable && !record_order(d, at))
			return false;
	}
	BLP_TRY(cuStreamWaitEvent, blp_queue_of(d, s), of->uncuttable ? blp_uncuttable_end(d, of, at + 1) : *order, 0);
	return true;
}

struct relaunch {
	uint64_t driven[BLP_STREAMS]; // Up to where the driver has the entries of each stream.
	uint64_t first[BLP_STREAMS];  // Sequence + 1 of the first entry that runs again; 0: none.
	uint64_t until[BLP_STREAMS]; // Entries below that run again go beside the stream's own queue, if that is held up.
	uint64_t legacy[BLP_STREAMS]; // Sequence of an entry on the legacy stream that the driver has, and new work comes behind.
};

// Whether the driver gets the entry anew, or the part of it beside its stream.
bool blp_runs_again(const struct gp_domain *d, const struct blp_entry *e)
{
	return !blp_is_done(e) && (!blp_is_sent(e) || (e->stage == BLP_UNGUARDED && blp_is_ahead(d, e->stream)));
}

// Takes markers that say nothing of what is launched again. They still say where the stream was. Markers of a relaunch that a stop ended
// are behind the ones before it, and stand for them.
static void leave_markers(struct gp_domain *d, struct blp_stream *s, uint64_t first)
{
	int *left = &d->beside[s - d->stream_of].left, m = blp_marker_behind(d, s->first_marker, first), last = m;
	*left = blp_free_markers(d, *left, s->done);
	if (m < 0)
		return;
	while (d->marker[last].next >= 0)
		last = d->marker[last].next;
	d->marker[last].next = blp_free_markers(d, *left, d->marker[last].upto);
	*left = m;
	s->last_marker = -1;
	if (s->first_marker == m)
		s->first_marker = -1;
	for (int at = s->first_marker; at >= 0; at = d->marker[at].next) {
		s->last_marker = at;
		if (d->marker[at].next == m)
			d->marker[at].next = -1;
	}
}

// Finds the streams for the entries that run again.
static bool look_ahead(struct gp_domain *d, struct relaunch *r)
{
	for (uint64_t at = d->tail; at < d->head; at++) {
		const struct blp_entry *e = blp_entry_at(d, at);
		const struct blp_stream *s = &d->stream_of[e->stream];
		if (blp_is_done(e) || at < s->done)
			continue;
		if (!r->first[e->stream] && blp_runs_again(d, e))
			r->first[e->stream] = at + 1;
		if (e->taken != BLP_NEVER && e->kind == BLP_WAIT && e->order == BLP_FOREIGN)
			r->until[e->stream] = at;
		for (uint32_t i = 0; e->taken != BLP_NEVER && s->handle == GP_STREAM_LEGACY && i < d->streams; i++)
			if (d->stream_of[i].blocking && &d->stream_of[i] != s)
				r->until[i] = r->legacy[i] = at;
	}
	for (uint32_t i = 0; i < d->streams; i++) {
		struct blp_stream *s = &d->stream_of[i];
		s->unmarked = 0;
		if (!r->first[i])
			continue;
		leave_markers(d, s, r->first[i]);
		if (r->until[i] < r->first[i] || d->beside[i].left < 0 ||
		    (!r->legacy[i] && !gp_driver.cuStreamQuery(s->handle)))
			continue;
		if (!blp_make_beside(d, i))
			return false;
		d->beside[i].use = blp_is_ahead(d, i) ? BLP_LEADS_AHEAD : BLP_LEADS;
		d->beside[i].behind = NULL;
		if (s->last_marker >= 0) // behind work that may still run
			BLP_TRY(cuStreamWaitEvent, d->beside[i].stream, d->marker[s->last_marker].event, 0);
	}
	return true;
}

// Puts a stream behind the one of ours beside it. From here on entries go to the stream itself. Work on the legacy stream may come behind
// all work beside the stream. Then the legacy stream is put behind it instead, and new work of the stream comes behind that. So a thread
// that waits for the stream does not wait for the legacy stream.
static bool rejoin(struct gp_domain *d, const struct relaunch *r, uint32_t i)
{
	struct blp_stream *s = &d->stream_of[i];
	bool ahead = blp_is_ahead(d, i), marks = d->beside[i].use == BLP_LEADS_AHEAD && r->driven[i];
	if (marks && !mark(d, s, r->driven[i]))
		return false;
	d->beside[i].use = BLP_UNUSED;
	if (!ahead)
		return true;
	if (marks && r->driven[i] <= r->legacy[i]) // that is an entry of the legacy stream
		s = &d->stream_of[blp_entry_at(d, r->legacy[i])->stream];
	BLP_TRY(cuEventRecord, d->beside[i].done, d->beside[i].stream);
	if (!add(d, s, 1))
		return false;
	BLP_TRY(cuStreamWaitEvent, s->handle, d->beside[i].done, 0);
	return true;
}

// Sees to it that the driver puts the entry at a place of the log behind the entries ahead of it, and no others.
static bool find_place(struct gp_domain *d, const struct relaunch *r, uint64_t at)
{
	uint32_t own = blp_entry_at(d, at)->stream;
	const struct blp_stream *s = &d->stream_of[own];
	__typeof__(d->beside[0]) *b = &d->beside[own];
	int m = blp_leads(d, own) && at < r->until[own] ? blp_marker_behind(d, b->left, at + 1) : -1;

	for (uint32_t i = 0; i < d->streams; i++)
		if (d->beside[i].use != BLP_UNUSED &&
		    (i == own ? m < 0 : blp_related(&d->stream_of[i], s->handle, s->blocking)) && !rejoin(d, r, i))
			return false;
	if (m >= 0 && b->behind != d->marker[m].event)
		BLP_TRY(cuStreamWaitEvent, b->stream, d->marker[m].event, 0);
	if (m >= 0)
		b->behind = d->marker[m].event;
	if (m >= 0)
		b->use = BLP_LEADS_AHEAD;
	return true;
}

static bool launch_again(struct gp_domain *d, struct relaunch *r, uint64_t at)
{
	struct blp_entry *e = blp_entry_at(d, at);
	struct blp_stream *s = &d->stream_of[e->stream];

	// A launch runs again behind undrained work once: beside.c.
	if (e->taken == BLP_AGAIN && e->kind >= BLP_RECORD && !blp_leads(d, e->stream) && !add(d, s, CALLS))
		return false;
	CUresult result = e->kind == BLP_LAUNCH ? blp_drive(d, e) : e->kind == BLP_GRAPH ? blp_drive_graph(d, e) : 0;
	if (result && e->kind == BLP_LAUNCH && e->taken == BLP_NEVER) { // a mistake of the program, which was not told yet
		blp_late = result;
		blp_turn(d, e, BLP_DONE);
		return true;
	}
	if (result) {
		blp_give_up(d, e->kind == BLP_LAUNCH ? "cuLaunchKernel" : "cuGraphLaunch", result);
		return false;
	}
	// On the legacy stream a record or a wait orders the blocking streams, also if the event is gone.
	if (e->kind >= BLP_RECORD && s->handle == GP_STREAM_LEGACY && !record_order(d, at))
		return false;
	if (e->kind == BLP_WAIT && !come_behind(d, e))
		return false;
	if (e->kind == BLP_RECORD) {
		if (e->order != BLP_PLAIN && !record_order(d, at))
			return false;
		if (e->order == BLP_AWAITED)
			e->order = BLP_ORDERED;
		blp_record_again(d, e->event, at + 1, blp_queue_of(d, s));
	}
	if (e->kind >= BLP_RECORD)
		blp_send(d, e);
	return true;
}

// The streams come behind those of ours, and markers say when their entries are complete. Where the log was not looked at so far,
// all stays as the stop left it.
static bool settle_streams(struct gp_domain *d, const struct relaunch *r)
{
	for (uint32_t i = 0; i < d->streams; i++) {
		if (r->driven[i] && d->beside[i].use != BLP_UNUSED && !rejoin(d, r, i))
			return false;
		if (blp_leads(d, i))
			d->beside[i].use = blp_is_ahead(d, i) ? BLP_AHEAD : BLP_UNUSED;
	}
	for (uint32_t i = 0; i < d->streams; i++)
		if (blp_may_be_cut(&d->stream_of[i]) && r->driven[i] && !mark(d, &d->stream_of[i], r->driven[i]))
			return false;
	return true;
}

// Where launches passed the log ahead of the stop, any queue may be full, and a marker would wait for room. Then the log has events only,
// which the driver has, and forgets them. It took entries during the stop behind such launches, and looked for room (blp_append).
static void forget_past(struct gp_domain *d)
{
	bool driven = true;
	for (uint64_t at = d->tail; at < d->head; at++) {
		const struct blp_entry *e = blp_entry_at(d, at);
		driven &= blp_is_sent(e) || blp_is_done(e) || at < d->stream_of[e->stream].done;
	}
	if (driven && !d->recorded && (d->passed || d->passing))
		blp_forget_all(d);
}

static bool relaunch(struct gp_domain *d, struct relaunch *r)
{
	int count = 0;
	forget_past(d);
	if (!look_ahead(d, r))
		return false;
	for (uint64_t at = d->tail; at < d->head; at++) {
		struct blp_entry *e = blp_entry_at(d, at);
		struct blp_stream *s = &d->stream_of[e->stream];
		if (blp_is_done(e) || at < s->done || s->uncuttable) // its marker would come behind the stream's later work
			continue;
		bool sent = blp_is_sent(e);
		if (!sent && count++ % LOOK_EVERY == 0 && blp_wanted_stopped(d)) {
			settle_streams(d, r);
			return false;
		}
		if (!sent && !blp_mark_ahead(d, s, e->kind, r->driven)) {
			blp_give_up(d, "cuEventRecord", CUDA_ERROR_UNKNOWN);
			return false;
		}
		if ((blp_runs_again(d, e) || blp_leads(d, e->stream)) && !find_place(d, r, at))
			return false;
		if (!sent && !launch_again(d, r, at))
			return false;
		r->driven[e->stream] = at + 1;
		if ((++s->unmarked >= BLP_MARKER_EVERY || e->waited) && !mark(d, s, at + 1))
			return false;
	}
	if (!settle_streams(d, r))
		return false;
	for (uint32_t i = 0; i < d->streams; i++) {
		blp_free_markers(d, d->beside[i].left, UINT64_MAX);
		d->beside[i].left = -1;
	}
	return true;
}

bool blp_relaunch(struct gp_domain *d)
{
	struct relaunch r = {.driven = {0}};
	bool whole = relaunch(d, &r);
	for (uint32_t i = 0; i < d->streams && d->given_up; i++) { // as rejoin
		if (blp_is_ahead(d, i) && !gp_driver.cuEventRecord(d->beside[i].done, d->beside[i].stream))
			gp_driver.cuStreamWaitEvent(r.legacy[i] && r.driven[i] <= r.legacy[i] ? GP_STREAM_LEGACY :
												d->stream_of[i].handle,
						    d->beside[i].done, 0);
		d->beside[i].use = BLP_UNUSED;
	}
	return whole;
}
