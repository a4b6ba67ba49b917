// await.c - a thread waits until an entry of the log is complete.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"

// Asks the driver whether an entry is complete that a thread waits for. The entry is marked when the wait begins, or when it is launched
// again; an event that the program recorded is its own mark. So no thread waits for work behind the entry, which may wait for the
// program.
static CUresult poll_entry(struct gp_domain *d, struct blp_stream *s, uint64_t upto)
{
	struct blp_entry *e = upto > d->tail ? blp_entry_at(d, upto - 1) : NULL;
	CUresult result = e && e->kind == BLP_RECORD && blp_is_sent(e) ? blp_query_record(d, e->event, upto) :
									 CUDA_ERROR_NOT_FOUND;
	if (!result && (s->uncuttable || !blp_is_closed(d))) // in this order, as in blp_poll
		blp_complete_to(d, s, upto);
	if (result != CUDA_ERROR_NOT_FOUND)
		return result;
	if (blp_marker_behind(d, s->first_marker, upto) < 0) {
		if (blp_driver_waits(d) && (!d->passed || s->thread))
			return blp_poll_queue(d, s);
		if (!blp_mark_or_forget(d, s))
			return CUDA_ERROR_UNKNOWN; // the driver refused: it is to tell the program
	}
	return blp_poll(d, s);
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
	return !s->uncuttable || (!patience_ns && blp_marker_behind(d, s->first_marker, upto) >= 0);
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
		if (blp_is_closed(d) && !s->uncuttable) {
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

bool blp_wait_or_let_run(struct gp_domain *d, struct blp_stream *s, uint64_t upto)
{
	CUstream handle = s->handle;
	for (;;) {
		uint64_t patience = s->patience_ns, since = gp_now_ns();
		if (blp_wait_complete(d, s, upto, patience)) {
			if (s->handle == handle && !s->uncuttable)
				s->patience_ns = patience < blp_patience_ns / 2 ? 2 * patience : blp_patience_ns;
			return true;
		}
		if (gp_now_ns() - since < patience) // the driver refused
			return false;
		s->patience_ns = patience / 8 > BLP_LEAST_PATIENCE_NS ? patience / 8 : BLP_LEAST_PATIENCE_NS;
		if (blp_give_way(d))
			continue;
		if (blp_let_run(d, s))
			return true;
		if (!blp_is_closed(d))
			return false;
	}
}
