// stop.c - stopping a domain, finding the launches that were cut, and launching them again.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"

#include <string.h>

enum { COUNTED_FROM = 64 }; // part of blp_drain_ns: most drains are over by then, and are spared the probes
static const uint64_t LONGEST_NAP_NS = 2 * 1000 * 1000;
static const uint64_t WAKING_NS = 100 * 1000;     // after a nap
static const uint64_t AWAKE_NS = 2 * 1000 * 1000; // a sleeping thread notices the end tens of microseconds late

// d->lock is held. A graph whose records are still being zeroed has not begun. Where a wait for that might lack a channel, it is frozen later.
static bool freeze_graphs(struct gp_domain *d)
{
	bool left = false;
	for (uint64_t at = d->tail; at < d->head; at++) {
		const struct blp_entry *e = blp_entry_at(d, at);
		if (e->kind != BLP_GRAPH || !blp_is_sent(e) || at < d->stream_of[e->stream].done)
			continue;
		CUresult zeroed = blp_query(e->twin->zeroed); // a copy, which waits for no kernel of ours
		if (zeroed == CUDA_ERROR_NOT_READY && blp_may_lack_channels(d)) {
			left = true;
			continue;
		}
		if (zeroed)
			BLP_TRY(cuStreamWaitEvent, d->stream, e->twin->zeroed, 0);
		if (!blp_freeze(d, e->twin->first, e->twin->count))
			return false;
	}
	if (!left)
		blp_become(d, BLP_STOPPING);
	return true;
}

// Finds the event of each stream that tells when its last launch has drained. Work behind that launch, on this stream or another, may
// wait for the program. d->lock is held. A stop waits for no work of streams that come later.
static bool find_drains(struct gp_domain *d)
{
	uint64_t launched[BLP_STREAMS] = {0}, driven[BLP_STREAMS] = {0}; // up to there
	memset(d->drain, 0, sizeof d->drain);
	d->drains = d->streams;
	for (uint64_t at = d->tail; at < d->head; at++) {
		const struct blp_entry *e = blp_entry_at(d, at);
		if (at < d->stream_of[e->stream].done || !blp_is_sent(e))
			continue;
		driven[e->stream] = at + 1;
		if (e->kind > BLP_GRAPH)
			continue;
		if (!launched[e->stream])
			d->drain[e->stream].as = blp_is_unguarded(e) ? BLP_RUNS_ON : BLP_DRAINS;
		launched[e->stream] = at + 1;
	}
	for (uint32_t i = 0; i < d->drains; i++) {
		struct blp_stream *s = &d->stream_of[i];
		if (!launched[i] || !blp_may_be_cut(s))
			continue;
		int m = blp_marker_behind(d, s->first_marker, launched[i]);
		if (m < 0) // this stop came before the entries behind it ran again: the marker still says where it is
			m = blp_marker_behind(d, d->beside[i].left, launched[i]);
		if (m < 0 && blp_mark(d, s, driven[i]))
			m = s->last_marker;
		if (m < 0) {
			blp_give_up(d, "cuEventRecord", CUDA_ERROR_UNKNOWN);
			return false;
		}
		d->drain[i].event = d->marker[m].event;
		d->drain[i].upto = d->marker[m].upto < driven[i] ? d->marker[m].upto : driven[i];
	}
	return true;
}

// From here to gp_blp_resume, d->control is held.

// From here on work is only logged. False: the stop is for a window, and a call is under way for which the driver waits with its lock.
// The stop would wait for that lock, and no thread could ask meanwhile what has ended; the call may wait for such a thread. So it comes
// when such calls are over: either the stop sees the call here, or the caller sees the state (blp_begin_driver_wait). Until that is known
// no thread logs anything.
static bool close_gate(struct gp_domain *d)
{
	bool waits = !(d->reasons & ~(uint32_t)GP_BLP_WINDOW);
	if (waits && d->driver_waits)
		return false;
	blp_become(d, BLP_CLOSING);
	if (waits && d->driver_waits) {
		blp_become(d, BLP_RUNNING);
		pthread_mutex_lock(&d->lock);
		pthread_cond_broadcast(&d->resumed);
		bool over = !d->driver_waits; // the last call left while the domain was closed, and rang no bell
		pthread_mutex_unlock(&d->lock);
		if (over)
			gp_ring_windows(d->gpu);
		return false;
	}
	d->counted_ns = 0;
	blp_become(d, BLP_HELD);
	return true;
}

// Whether launches may be cut. While a stream is uncuttable (let_run), or held up, a stop only holds back new launches. d->lock is held.
static bool may_cut(struct gp_domain *d)
{
	if (d->uncuttable)
		blp_still_host_blocked(d);
	return !d->uncuttable && !blp_is_held_up(d);
}

static void set_flag(struct gp_domain *d)
{
	if (blp_set_flag(d, true))
		blp_become(d, BLP_FREEZING);
}

// Freezes the launches from a record on, and all graphs, and begins to drain. d->lock is held.
static void stop_the_rest(struct gp_domain *d, uint32_t from)
{
	d->narrow.marked = false; // the driver's work since then may not be over
	if (!may_cut(d))
		return;
	if (d->recorded && !blp_is_flagged(d))
		set_flag(d);
	if (!blp_is_flagged(d) || !blp_freeze_launches(d, from, d->next_record) || !freeze_graphs(d))
		return;
	d->flagged_ns = d->counted_ns = gp_now_ns();
	gp_count(&d->gpu->stops.stops, 1);
	find_drains(d);
}

static void stop_blocks(struct gp_domain *d)
{
	CUcontext context = d->context;
	uint32_t first = d->oldest_record, frozen = first; // read before next_record, so that it is not ahead of it
	bool pushed;

	if (!context || d->given_up || !blp_enter(context, &pushed))
		return;
	// Without the lock, since a launch may hold it: an entry is in the log before the driver has its launch.
	if (d->recorded && !d->uncuttable &&
	    !blp_is_held_up(d)) { // a stream became uncuttable before the domain was closed, or not at all
		uint32_t next = d->next_record;
		set_flag(d);
		if (blp_is_flagged(d) && blp_freeze_launches(d, first, next))
			frozen = next;
	}
	pthread_mutex_lock(&d->lock);
	blp_give_way(d);
	if (d->context == context)
		stop_the_rest(d, frozen);
	pthread_mutex_unlock(&d->lock);
	blp_leave(pushed);
}

// Copies the records of graphs that were in flight; to the device only those of graphs that were cut.
static bool copy_graphs(struct gp_domain *d, bool to_device, bool *any)
{
	for (uint64_t at = d->tail; at < d->head; at++) {
		const struct blp_entry *e = blp_entry_at(d, at);
		// Without the lock: another thread may log a graph, whose twin is not known yet.
		if (e->kind != BLP_GRAPH || !(to_device ? e->stage == BLP_CUT : blp_is_stoppable(e)) ||
		    at < d->stream_of[e->stream].done)
			continue;
		const struct blp_twin *t = e->twin;
		if (!blp_copy_records(d, t->first, t->count, t->image, to_device))
			return false;
		*any = true;
	}
	return true;
}

static bool settle(struct gp_domain *d)
{
	BLP_TRY(cuEventRecord, d->done, d->stream);
	BLP_TRY(cuEventSynchronize, d->done);
	return true;
}

// Whether an event's record or a wait comes behind an entry that is driven again; again has the streams of those so far.
static bool comes_again(struct gp_domain *d, const struct blp_entry *e, const bool *again)
{
	const struct blp_stream *s = &d->stream_of[e->stream];
	for (uint32_t i = 0; i < d->streams; i++)
		if (again[i] && (i == e->stream || blp_related(&d->stream_of[i], s->handle, s->blocking)))
			return true;
	if (e->kind != BLP_WAIT || e->upto <= d->tail || e->upto <= d->stream_of[e->of].done)
		return false;
	const struct blp_entry *record = blp_entry_at(d, e->upto - 1);
	return !blp_is_done(record) && !blp_is_sent(record);
}

// Finds out from the records which entries are complete. Others are to be driven again; their records say where they go on.
static void classify(struct gp_domain *d)
{
	bool behind[BLP_STREAMS] = {false}, again[BLP_STREAMS] = {false};
	struct gp_stop_counters *count = &d->gpu->stops;

	for (uint64_t at = d->tail; at < d->head; at++) {
		struct blp_entry *e = blp_entry_at(d, at);
		struct blp_stream *s = &d->stream_of[e->stream];
		if (at < s->done)
			continue;
		bool sent = blp_is_stoppable(e);
		if ((e->stage == BLP_QUEUED || e->stage == BLP_CUT) && e->kind == BLP_LAUNCH && e->record &&
		    at < d->ranged) {
			blp_record_of(d, e)->state = 0; // frozen before the driver had it
		} else if (at >= d->drain[e->stream].upto) {
			// Of launches, blp_let_go has seen to it. A record or a wait that the driver has stays there where it can:
			// recorded again, it would come behind later waits, which may wait for the program.
			if (e->kind >= BLP_RECORD && sent && comes_again(d, e, again))
				blp_turn(d, e, BLP_CUT);
		} else if (blp_is_unguarded(e)) {
			if (e->stage == BLP_UNGUARDED && !blp_is_ahead(d, e->stream))
				blp_turn(d, e, BLP_DONE);
		} else if (sent && e->kind == BLP_GRAPH) {
			blp_turn(d, e, blp_graph_is_complete(e) ? BLP_DONE : BLP_CUT);
			gp_count(&count->cuts, !blp_is_done(e));
		} else if (sent && e->kind == BLP_LAUNCH) {
			struct gpreempt_record *r = blp_record_of(d, e);
			uint64_t blocks = blp_blocks(e), ran = ((uint64_t)r->count << e->shift) * e->cluster;
			if (r->state == GPREEMPT_FROZEN && r->count < blp_windows(blocks, e->cluster, e->shift)) {
				blp_turn(d, e, BLP_CUT);
				r->state = 0;
				if (ran && blp_may_narrow(d)) { // as it goes on, a window is to be no larger than the width
					r->count <<= e->shift;
					e->shift = 0;
				}
				r->done = r->count;
				gp_count(&count->cuts, 1);
				if (e->taken != BLP_AGAIN &&
				    !e->ran) // the first stop that cuts it; of what ran narrow, twice at most
					gp_count(&count->resumed_blocks, blocks - ran);
				blp_count_beside(d, e, ran);
				e->ran = ran;
			} else {
				blp_turn(d, e, BLP_DONE);
				blp_count_beside(d, e, blocks);
			}
		} else if (sent) {
			blp_turn(d, e, comes_again(d, e, again) ? BLP_CUT : BLP_DONE);
		}
		again[e->stream] |= blp_runs_again(d, e);
		behind[e->stream] |= !blp_is_done(e);
		if (!behind[e->stream])
			blp_complete_to(d, s, at + 1);
	}
	blp_advance(d);
}

// How long a stop has waited for running blocks, in time in which these could run. The time between two looks counts if the GPU has
// carried out a probe meanwhile: an event on the library's stream. It counts only up to the time that the thread meant to sleep. So
// blocks do not seem to wait where a thread, the process or its context was kept off the CPU or the GPU.
struct patience {
	uint64_t looked_ns, spent_ns;
	bool probing; // d->done is recorded behind the probe
};

// Counts the time since the look before, of which nap_ns was to be slept. False: the driver refused.
static bool count_patience(struct gp_domain *d, struct patience *p, uint64_t nap_ns)
{
	uint64_t now = gp_now_ns(), passed = now - p->looked_ns, most = nap_ns + WAKING_NS;
	CUresult result = CUDA_SUCCESS;

	if (!p->probing && passed < blp_drain_ns / COUNTED_FROM)
		return true;
	p->looked_ns = now;
	if (p->probing) {
		if ((result = blp_query(d->done)) == CUDA_ERROR_NOT_READY)
			return true;
		p->spent_ns += passed < most ? passed : most;
	}
	if (result || (result = gp_driver.cuEventRecord(d->done, d->stream)))
		blp_give_up(d, "cuEventRecord", result);
	p->probing = true;
	return !result;
}

// Sleeps for longer, the more time has passed; returns nanoseconds.
static uint64_t nap(uint64_t passed_ns)
{
	uint64_t ns = 10000 + passed_ns / 16;
	ns = ns < LONGEST_NAP_NS ? ns : LONGEST_NAP_NS;
	gp_nap(ns);
	return ns;
}

// Waits until a stream has drained, or the patience is over: then it is late. Spins up to awake_ns. False: the driver refused.
static bool wait_drained(struct gp_domain *d, uint32_t stream, uint64_t awake_ns, struct patience *p)
{
	for (;;) {
		bool over = d->drain[stream].as == BLP_RUNS_ON || p->spent_ns >= blp_drain_ns; // before the driver is asked
		CUresult result = blp_query(d->drain[stream].event);
		uint64_t now = gp_now_ns(), napped = 0;
		if (result && over)
			d->drain[stream].as = BLP_IS_LATE;
		if (result && result != CUDA_ERROR_NOT_READY)
			blp_give_up(d, "cuEventQuery", result);
		if (result != CUDA_ERROR_NOT_READY || over)
			return !d->given_up;
		if (now >= awake_ns)
			napped = nap(now - d->flagged_ns);
		if (!count_patience(d, p, napped))
			return false;
	}
}

// Counts a drain that is over. A window's stop waits for its drain from the stop on. The program's stop of a stream waits only when a
// thread asks.
static void count_drain(struct gp_domain *d, uint64_t asked_ns)
{
	struct gp_stop_counters *count = &d->gpu->stops;
	uint64_t took = gp_now_ns() - (d->reasons & GP_BLP_WINDOW ? d->flagged_ns : asked_ns);

	gp_count(&count->drain_ns, took);
	gp_count_time(&d->gpu->drain_times, took);
	if (took > count->drain_max_ns)
		count->drain_max_ns = took;
}

// How far a late stream has drained: entries that end may be ahead of a wait that keeps the rest back.
static uint64_t drained(struct gp_domain *d, const struct blp_stream *s, uint64_t upto)
{
	uint64_t most = s->done;
	for (int m = s->first_marker; m >= 0 && d->marker[m].upto < upto && !blp_query(d->marker[m].event);
	     m = d->marker[m].next)
		most = d->marker[m].upto;
	return most;
}

// The graphs whose records were being zeroed.
static bool freeze_the_rest(struct gp_domain *d)
{
	bool frozen = true;
	for (uint64_t since = gp_now_ns(); d->state == BLP_FREEZING && frozen && !d->given_up;) {
		nap(gp_now_ns() - since);
		pthread_mutex_lock(&d->lock);
		blp_give_way(d);
		frozen = freeze_graphs(d);
		pthread_mutex_unlock(&d->lock);
	}
	return frozen && !d->given_up;
}

// Waits until everything queued has ended, or is late. Launches that have not begun end without running. False: the driver
// refused.
static bool wait_quiet(struct gp_domain *d, uint64_t awake_ns)
{
	uint64_t asked = gp_now_ns();
	struct patience patience = {.looked_ns = asked};

	if ((d->state != BLP_FREEZING && d->state != BLP_STOPPING) || d->given_up || !freeze_the_rest(d))
		return !d->given_up;
	for (uint32_t i = 0; i < d->drains; i++)
		if (d->drain[i].event && !wait_drained(d, i, asked + awake_ns, &patience))
			return false;
	bool late = false;
	pthread_mutex_lock(&d->lock);
	for (uint32_t i = 0; i < d->drains; i++) {
		if (d->drain[i].as != BLP_IS_LATE)
			continue;
		d->drain[i].upto = drained(d, &d->stream_of[i], d->drain[i].upto);
		late = true;
	}
	pthread_mutex_unlock(&d->lock);
	count_drain(d, asked);
	blp_become(d, late ? BLP_LATE : BLP_QUIET);
	return true;
}

// Reads the records of launches that were in flight.
static bool read_records(struct gp_domain *d)
{
	pthread_mutex_lock(&d->lock);
	d->first_record = d->last_record = 0;
	for (uint64_t at = d->tail; at < d->head; at++) {
		const struct blp_entry *e = blp_entry_at(d, at);
		if (e->kind != BLP_LAUNCH || !e->record || blp_is_done(e) || at < d->stream_of[e->stream].done)
			continue;
		if (!d->first_record)
			d->first_record = e->record;
		d->last_record = e->record;
	}
	d->ranged = d->head;
	pthread_mutex_unlock(&d->lock);
	bool any = d->first_record != 0;
	return blp_copy_image(d, false) && copy_graphs(d, false, &any) && (!any || settle(d));
}

// Sees to late streams. False: the driver refused.
static bool let_go(struct gp_domain *d)
{
	if (d->state == BLP_LATE && (!blp_keep_narrow(d) || !blp_let_go(d)))
		return false;
	d->narrow.was = NULL;
	return true;
}

bool blp_drained(struct gp_domain *d)
{
	if (!blp_is_flagged(d) || d->state == BLP_STOPPED || d->given_up)
		return !d->given_up;
	if (!wait_quiet(d, 0) || !read_records(d) || !let_go(d))
		return false;
	pthread_mutex_lock(&d->lock);
	classify(d);
	blp_keep_ahead(d);
	pthread_mutex_unlock(&d->lock);
	blp_become(d, BLP_STOPPED);
	return true;
}

bool blp_unfreeze(struct gp_domain *d)
{
	bool any = false;
	return blp_copy_image(d, true) && copy_graphs(d, true, &any) && blp_set_flag(d, false) && settle(d);
}

void blp_widen(struct gp_domain *d)
{
	blp_leave_narrow(d);
	stop_blocks(d);
	if (!blp_is_flagged(d) && !d->given_up) // nothing was left there
		d->narrow.was = NULL;
}

// Gives up the log's entries. Entries that were never launched, or may have been cut, are lost. The driver has the others, though maybe
// not on the queue that the program asks for: the log keeps them until they are over. d->lock is held.
static void abandon(struct gp_domain *d, bool cut)
{
	bool lost = false;
	for (uint64_t at = d->tail; at < d->head; at++) {
		struct blp_entry *e = blp_entry_at(d, at);
		if (blp_is_done(e))
			continue;
		lost |= at >= d->stream_of[e->stream].done && e->kind <= BLP_GRAPH && (cut || !blp_is_sent(e));
		if (!blp_is_sent(e))
			blp_turn(d, e, BLP_DONE);
	}
	for (uint32_t i = 0; i < d->streams && (lost || !d->error); i++)
		blp_complete_to(d, &d->stream_of[i], d->stream_of[i].last);
	blp_advance(d);
	if (lost && d->error) // without an error the context has ended
		blp_error = d->error;
}

// Ends a stop, unless a window opens meanwhile.
static void finish(struct gp_domain *d)
{
	CUcontext context = d->context;
	bool pushed = false;

	bool gone = d->given_up && !d->error;
	if (context && !gone && !blp_enter(context, &pushed))
		blp_give_up(d, "cuCtxPushCurrent", CUDA_ERROR_INVALID_CONTEXT);
	if (d->state == BLP_NARROW)
		blp_widen(d);
	while (!d->reasons) {
		if (blp_drained(d) && blp_is_flagged(d))
			blp_unfreeze(d);
		pthread_mutex_lock(&d->lock);
		blp_give_way(d);
		bool cut = blp_is_flagged(d) && d->state != BLP_STOPPED;
		if (d->counted_ns)
			gp_count_time(&d->gpu->stop_times, gp_now_ns() - d->counted_ns);
		d->counted_ns = 0;
		if (blp_is_flagged(d))
			blp_become(d, BLP_HELD);
		if (!d->given_up && !blp_relaunch(d) && !d->given_up) {
			d->reasons |= GP_BLP_WINDOW;
			stop_the_rest(d, d->oldest_record);
			pthread_mutex_unlock(&d->lock);
			continue;
		}
		if (d->given_up) {
			blp_set_flag(d, false);
			if (blp_keep_narrow(d)) // work that is left there is ahead of the streams' next work
				for (uint32_t i = 0; i < d->streams; i++)
					if (blp_pending(&d->stream_of[i]))
						blp_come_behind_narrow(d, &d->stream_of[i]);
			abandon(d, cut);
		}
		blp_become(d, d->given_up ? BLP_RETIRED : BLP_RUNNING);
		pthread_cond_broadcast(&d->resumed);
		pthread_mutex_unlock(&d->lock);
		break;
	}
	blp_leave(pushed);
}

void gp_blp_stop(struct gp_domain *d, enum gp_blp_reason reason)
{
	pthread_mutex_lock(&d->control);
	if (d->context && !blp_retired && !d->given_up) {
		d->reasons |= reason;
		if (reason != GP_BLP_WINDOW)
			blp_let_in();
		if (!blp_is_closed(d) && !close_gate(d))
			d->reasons = 0;
		else if (d->state == BLP_NARROW && d->narrow.on->sms > blp_width(d))
			blp_widen(d);
		else if (d->state == BLP_HELD && d->reasons & ~(uint32_t)GP_BLP_HELD)
			stop_blocks(d);
	}
	// Calls put a window's stop off until the program's has come.
	bool again = reason != GP_BLP_WINDOW && !(d->reasons & GP_BLP_WINDOW) && blp_wanted_stopped(d);
	bool narrows = blp_is_closed(d) && blp_width(d), given_up = blp_is_closed(d) && gp_blp_given_up(d);
	pthread_mutex_unlock(&d->control);
	if (again || narrows || given_up) // given up since it was looked at above: the watcher may have looked before the stop
		gp_ring_windows(d->gpu);
}

void gp_blp_drain(struct gp_domain *d)
{
	bool pushed;
	pthread_mutex_lock(&d->control);
	if (d->context && blp_is_closed(d) && !d->given_up && blp_enter(d->context, &pushed)) {
		blp_drained(d);
		blp_leave(pushed);
	}
	pthread_mutex_unlock(&d->control);
}

// Whether the queued work of a domain that is only held has run to its end.
static bool is_idle(struct gp_domain *d)
{
	pthread_mutex_lock(&d->lock);
	blp_give_way(d);
	bool idle = find_drains(d);
	for (uint32_t i = 0; i < d->drains && !d->given_up; i++) {
		CUresult result = d->drain[i].event ? blp_query(d->drain[i].event) : 0;
		if (result && result != CUDA_ERROR_NOT_READY)
			blp_give_up(d, "cuEventQuery", result);
		else if (!result && d->drain[i].event)
			blp_complete_to(d, &d->stream_of[i], d->drain[i].upto);
		idle &= !result;
	}
	blp_advance(d);
	pthread_mutex_unlock(&d->lock);
	return idle || d->given_up;
}

// Whether no block runs, or the rest has taken too long.
static bool is_quiet(struct gp_domain *d)
{
	bool pushed, quiet = true;
	pthread_mutex_lock(&d->control);
	if (d->context && blp_is_closed(d) && !d->given_up && blp_enter(d->context, &pushed)) {
		wait_quiet(d, AWAKE_NS);
		if (d->state == BLP_LATE) // a late stream may wait for launches that were cut
			blp_drained(d);
		if (!blp_is_flagged(d)) // the watcher stops a domain that is on more SMs than it may have
			quiet = d->state == BLP_NARROW ? d->narrow.on->sms <= blp_width(d) : is_idle(d);
		blp_leave(pushed);
	}
	pthread_mutex_unlock(&d->control);
	return quiet;
}

// Queued work may take long. Meanwhile a window must be able to stop the domain, and those behind it.
void gp_blp_quiesce(struct gp_domain *d)
{
	for (uint64_t since = gp_now_ns(); !is_quiet(d);)
		nap(gp_now_ns() - since);
}

void gp_blp_resume(struct gp_domain *d, enum gp_blp_reason reason)
{
	pthread_mutex_lock(&d->control);
	d->reasons &= ~(uint32_t)reason;
	if (d->context && blp_is_closed(d) && !d->reasons)
		finish(d);
	bool again = d->reasons & GP_BLP_WINDOW;
	pthread_mutex_unlock(&d->control);
	if (again && reason != GP_BLP_WINDOW) // the watcher clears that reason
		gp_ring_windows(d->gpu);
}

bool gp_blp_given_up(struct gp_domain *d) { return d->given_up || blp_retired; }

// The end of a stop may wait for calls in its context: those of the contexts that do not matter are left to the watchers. May be called again: a
// thread that comes while another one is at it waits for the same.
void gp_blp_retire(CUcontext whole)
{
	int mode = gp_relax_captures(); // the end of stopped work is waited for, while another thread may capture
	blp_retired = true;
	for (int i = 0; i < BLP_DOMAINS && blp_domains[i]; i++)
		if (!whole || blp_domains[i]->primary_context == whole)
			gp_blp_resume(blp_domains[i], GP_BLP_WINDOW | GP_BLP_ASKED | GP_BLP_HELD);
		else
			gp_ring_windows(blp_domains[i]->gpu);
	gp_unrelax_captures(mode);
}
