// complete.c - finds the complete entries of the log: it asks the driver by markers.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"

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
		s->completion_unknown = s->last;
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

void blp_advance(struct gp_domain *d)
{
	while (d->tail < d->head) {
		const struct blp_entry *e = blp_entry_at(d, d->tail);
		if (!blp_is_done(e) && d->tail >= d->stream_of[e->stream].done)
			break;
		d->recorded -= blp_has_record(e);
		if (e->kind == BLP_LAUNCH && e->record)
			d->oldest_record = blp_record_after(e->record);
		d->tail++;
	}
	if (d->tail == d->head)
		d->oldest_record = d->next_record;
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
CUresult blp_poll(struct gp_domain *d, struct blp_stream *s)
{
	int mode = gp_relax_captures();
	CUresult result = CUDA_ERROR_NOT_READY;
	while (s->first_marker >= 0 && !(result = gp_driver.cuEventQuery(d->marker[s->first_marker].event)) &&
	       (s->uncuttable || !blp_is_closed(d)))
		blp_complete_to(d, s, d->marker[s->first_marker].upto);
	gp_unrelax_captures(mode);
	return result;
}

bool blp_runs_on(struct gp_domain *d, struct blp_stream *s)
{
	return blp_poll(d, s) == CUDA_ERROR_NOT_READY && blp_pending(s);
}

// Asks the driver about the queue, where a marker would have to wait for the driver's lock: only work that waits for it, too, comes there
// meanwhile. All entries before the latest marker are ahead of it.
CUresult blp_poll_queue(struct gp_domain *d, struct blp_stream *s)
{
	if (blp_is_orphan(s) || (s->handle == GP_STREAM_LEGACY && gp_capturing()))
		return CUDA_ERROR_NOT_READY;
	int mode = gp_relax_captures();
	CUresult result = gp_driver.cuStreamQuery(blp_queue_of(d, s));
	gp_unrelax_captures(mode);
	if (!result && (s->uncuttable || !blp_is_closed(d))) // in this order, as in blp_poll
		blp_complete_to(d, s, s->last);
	return result;
}

bool blp_has_ended(struct gp_domain *d, struct blp_stream *s, uint64_t upto)
{
	// During a stop the driver does not have all of it: a marker would say nothing.
	if (!blp_is_closed(d) && blp_marker_behind(d, s->first_marker, upto) < 0) {
		if (blp_driver_waits(d))
			blp_poll_queue(d, s);
		else
			blp_mark_or_forget(d, s);
	}
	blp_poll(d, s);
	return s->done >= upto;
}
