// narrow.c - a stopped stream goes on in a part of the SMs, its width.
//
// The stream has a domain of its own. While that is stopped, its log's entries run in order on one stream of ours: that of a green context,
// whose kernels get that part of the SMs alone. For all others the domain is stopped: launches are only logged, and no other thread finds out
// that an entry is complete. The thread that stops and resumes the domain puts entries on that stream, and takes note of what is over.
//
// Entries there must not overtake work that the driver has. So the first goes there only when no work of the context is on its way: an
// event of the whole context says so. An entry goes there only while the driver has no work left on the program's stream, since barriers may
// still come there. A blocking stream is ordered with streams of other domains, which the driver cannot be asked about: no entry of it goes on.
//
// One stream in the order of the log keeps all orders among entries. A launch whose blocks may wait for each other (fit.c) is alone
// there: if all of its blocks have room at once in the width, they get it. A kernel that waits for one later in the log gets no further
// until the domain is resumed. If that makes a stop late, the domain never goes on narrow again.
//
// These are held back, and with them the entries behind them: cooperative launches; clusters that do not fit into a partition; launches whose
// blocks may wait for each other and have no room at once; waits for events that the log does not have. Graphs are not logged here: only the
// domain of a context, or of the legacy stream, has twins.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"

enum {
	IN_FLIGHT = 32, // launches: a stop waits for each to end
	MARK_EVERY = 8, // entries
};

// Whether the log has nothing that runs, or is to run, beside the streams, or that no stop reaches. d->lock is held.
static bool is_plain(struct gp_domain *d)
{
	bool plain = !d->uncuttable && !d->passing && !blp_unmet && !blp_is_held_up(d);
	for (uint32_t i = 0; i < d->streams; i++)
		plain &= d->beside[i].use == BLP_UNUSED && !blp_is_orphan(&d->stream_of[i]);
	for (uint64_t at = d->tail; at < d->head && plain; at++) {
		const struct blp_entry *e = blp_entry_at(d, at);
		plain &= !blp_is_unguarded(e) || at < d->stream_of[e->stream].done;
	}
	return plain;
}

// Whether all that the driver got of the context before this stop is over.
static bool is_idle(struct gp_domain *d)
{
	if (!d->narrow.marked) {
		pthread_mutex_lock(&d->lock);
		bool plain = is_plain(d);
		pthread_mutex_unlock(&d->lock);
		if (!plain || !blp_record_whole(d->context, d->narrow.idle))
			return false;
		d->narrow.marked = true;
	}
	// The event takes the GPU some microseconds.
	for (uint64_t until = gp_now_ns() + BLP_RECORDED_NS; blp_query(d->narrow.idle);)
		if (gp_now_ns() >= until)
			return false;
	return true;
}

// The stop has drained, or found nothing to cut. Under gp_domain.control.
static void begin(struct gp_domain *d, struct blp_narrow_queue *q)
{
	if (!is_idle(d) || (blp_is_flagged(d) && !blp_unfreeze(d)))
		return;
	pthread_mutex_lock(&d->lock);
	bool plain = is_plain(d) && !d->given_up;
	for (uint32_t i = 0; i < d->streams && plain; i++) {
		struct blp_stream *s = &d->stream_of[i];
		// Markers that are left say when cut launches had ended.
		blp_drop_markers(d, s);
		blp_free_markers(d, d->beside[i].left, UINT64_MAX);
		d->beside[i].left = -1;
		d->narrow.driven[i] = s->done;
	}
	if (plain) {
		blp_become(d, BLP_NARROW);
		d->narrow.on = q;
		d->narrow.since_ns = gp_now_ns();
		pthread_cond_broadcast(&d->resumed);
	}
	pthread_mutex_unlock(&d->lock);
}

// Counts the blocks of launches of a stream that have become complete, from one on.
static void count_beside(struct gp_domain *d, uint32_t stream, uint64_t from)
{
	for (uint64_t at = from > d->tail ? from : d->tail; at < d->stream_of[stream].done; at++) {
		struct blp_entry *e = blp_entry_at(d, at);
		if (e->stream == stream && e->kind == BLP_LAUNCH)
			blp_count_beside(d, e, blp_blocks(e));
	}
}

// Takes note of entries that are over. d->lock is held.
static void complete(struct gp_domain *d)
{
	bool any = false;
	for (uint32_t i = 0; i < d->streams; i++) {
		struct blp_stream *s = &d->stream_of[i];
		uint64_t before = s->done;
		CUresult result = 0;
		while (blp_pending(s) && s->first_marker >= 0 && d->marker[s->first_marker].upto <= d->narrow.driven[i] &&
		       !(result = blp_query(d->marker[s->first_marker].event)))
			blp_complete_to(d, s, d->marker[s->first_marker].upto);
		if (result && result != CUDA_ERROR_NOT_READY)
			blp_give_up(d, "cuEventQuery", result);
		count_beside(d, i, before);
		any |= s->done != before;
	}
	if (any) {
		blp_advance(d);
		pthread_cond_broadcast(&d->resumed);
	}
}

struct pump {
	bool held[BLP_STREAMS]; // entries on the stream, or behind it, are held back
	bool asked[BLP_STREAMS], nothing[BLP_STREAMS];
	bool touched[BLP_STREAMS]; // has entries that are not marked
};

// Whether an entry of a stream comes behind nothing that the driver has elsewhere.
static bool may_follow(struct gp_domain *d, struct pump *p, const struct blp_stream *s)
{
	size_t i = (size_t)(s - d->stream_of);
	if (s->blocking)
		return false;
	if (!p->asked[i])
		p->nothing[i] = !blp_is_orphan(s) && !gp_driver.cuStreamQuery(s->handle);
	p->asked[i] = true;
	return p->nothing[i];
}

// Whether a launch has room on so few SMs: all of it at once where its blocks may wait for each other.
static bool has_room(const struct gp_domain *d, const struct blp_entry *e)
{
	CUfunction function = e->function, of_kernel;
	int fit = 0;

	for (uint32_t i = 0; i < e->attribute_count; i++)
		if (e->attributes[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
			return false;
	if (blp_is_unguarded(e) || e->cluster > BLP_PARTITION || BLP_PARTITION % e->cluster)
		return false;
	if (e->shift != GPREEMPT_WHOLE)
		return true;
	if (e->cluster > 1) // one block has room on each SM in any case
		return blp_blocks(e) <= d->narrow.on->sms;
	if (gp_driver.cuKernelGetFunction && !gp_driver.cuKernelGetFunction(&of_kernel, function))
		function = of_kernel;
	return !gp_driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(&fit, function, (int)gp_threads_of(e->block),
								      e->shared_bytes) &&
	       blp_blocks(e) <= (uint64_t)fit * d->narrow.on->sms;
}

// Counts an entry that is held back, once.
static void hold_back(struct blp_entry *e, _Atomic uint64_t *counter)
{
	if (!e->held && e->kind <= BLP_GRAPH)
		gp_count(counter, 1);
	e->held = true;
}

// A record in the log is ahead on the same stream of ours, or over.
static bool may_wait(struct gp_domain *d, const struct blp_entry *wait)
{
	if (!wait->upto || wait->upto <= d->tail || wait->upto <= d->stream_of[wait->of].done)
		return true;
	const struct blp_entry *record = blp_entry_at(d, wait->upto - 1);
	return blp_is_done(record) || blp_is_sent(record);
}

// Puts an entry on the stream of the width. False: it is held back.
static bool drive(struct gp_domain *d, uint64_t at)
{
	struct blp_entry *e = blp_entry_at(d, at);
	struct gp_stop_counters *count = &d->gpu->stops;
	bool driven = false;

	switch (e->kind) {
	case BLP_LAUNCH:
		if (!e->record || !has_room(d, e)) {
			hold_back(e, &count->held_together);
			break;
		}
		if (!e->ran && e->shift != GPREEMPT_WHOLE) // else its record counts windows
			e->shift = blp_shift(e, d->narrow.on->sms);
		driven = !blp_drive(d, e);
		if (!driven)
			hold_back(e, &count->held_refused);
		e->beside = driven;
		break;
	case BLP_GRAPH: break; // of the legacy stream, which may_follow holds back
	case BLP_RECORD:
		blp_record_again(d, e->event, at + 1, d->narrow.on->stream);
		if (e->order == BLP_ORDERED)
			e->order = BLP_AWAITED;
		blp_send(d, e);
		driven = true;
		break;
	case BLP_WAIT:
		if ((driven = may_wait(d, e)))
			blp_send(d, e);
		break;
	}
	return driven;
}

static bool mark(struct gp_domain *d, struct pump *p)
{
	for (uint32_t i = 0; i < d->streams; i++) {
		if (p->touched[i] && !blp_mark(d, &d->stream_of[i], d->narrow.driven[i])) {
			blp_give_up(d, "cuEventRecord", CUDA_ERROR_UNKNOWN);
			return false;
		}
		p->touched[i] = false;
	}
	return true;
}

// Puts entries that may go on on the stream of the width, as far as it has room. d->lock is held.
static void go_on(struct gp_domain *d)
{
	struct pump p = {.held = {false}};
	uint32_t entries = 0, launches = 0, unmarked = 0;
	// To skip the blocks that are left takes as much longer as there are fewer SMs.
	uint64_t threads = 0, most = (uint64_t)BLP_THREADS_IN_FLIGHT * d->narrow.on->sms / (uint32_t)d->gpu->sms;

	for (uint64_t at = d->tail; at < d->head && entries < BLP_IN_FLIGHT && launches < IN_FLIGHT && threads < most;
	     at++) {
		struct blp_entry *e = blp_entry_at(d, at);
		struct blp_stream *s = &d->stream_of[e->stream];
		if (blp_is_done(e) || at < s->done)
			continue;
		bool has = blp_is_sent(e);
		if (has && at < d->narrow.driven[e->stream]) {
			entries++;
			launches += e->kind == BLP_LAUNCH;
			threads += e->kind == BLP_LAUNCH ? blp_threads(e) : 0;
			continue;
		}
		// An entry that the driver has from before the stop is over, and needs only a mark.
		if (!p.held[e->stream] && !has && !may_follow(d, &p, s)) {
			hold_back(e, &d->gpu->stops.held_behind);
			p.held[e->stream] = true;
		}
		if (p.held[e->stream] || (!has && !drive(d, at))) {
			p.held[e->stream] = true;
			continue;
		}
		if (!has && e->kind == BLP_LAUNCH) {
			launches++;
			threads += blp_threads(e);
			gp_count(&d->gpu->stops.narrowed, 1);
		}
		entries++; // a full queue of the driver would keep the lock
		d->narrow.driven[e->stream] = at + 1;
		p.touched[e->stream] = true;
		if (++unmarked % MARK_EVERY == 0 && !mark(d, &p))
			return;
	}
	mark(d, &p);
}

bool blp_narrow(struct gp_domain *d)
{
	uint32_t width = blp_is_closed(d) && !d->given_up ? blp_width(d) : 0;
	struct blp_narrow_queue *q = blp_widest(d, width);

	if (d->state == BLP_NARROW && d->narrow.on->sms > width)
		blp_widen(d);
	if (!q || !blp_drained(d))
		return false;
	if (d->state != BLP_NARROW)
		begin(d, q);
	if (d->state == BLP_NARROW) {
		pthread_mutex_lock(&d->lock);
		blp_give_way(d);
		complete(d);
		if (!d->given_up)
			go_on(d);
		pthread_mutex_unlock(&d->lock);
	}
	return d->narrow.usable == BLP_USABLE;
}

CUresult gp_blp_set_width(struct gp_domain *d, uint32_t sms)
{
	bool pushed;
	CUresult result = sms ? blp_make_width(d, sms) : 0;
	if (result)
		return result;

	result = CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_lock(&d->control);
	if (d->context && !d->given_up && blp_enter(d->context, &pushed)) {
		result = 0;
		d->narrow.asked = sms;
		if (d->state == BLP_NARROW && d->narrow.on->sms > blp_width(d)) // sooner than the watcher would
			blp_widen(d);
		blp_leave(pushed);
	}
	pthread_mutex_unlock(&d->control);
	if (!result)
		gp_ring_windows(d->gpu);
	return result;
}
