// event.c - events that were recorded behind launches that may be cut.
//
// While the domain is stopped, the driver may say that such an event was reached although the launches before it have not
// run. So questions about it are answered here, and it is recorded again when the domain goes on.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"
#include "preempt/code/code.h"
#include "preempt/gpu/gpu.h"
#include "preempt/objects/objects.h"

// The calling thread's question or wait, from gp_blp_begin_wait to gp_blp_end_wait.
GP_OF_THREAD struct asked {
	CUcontext context; // the current one
	uint32_t changes;
	struct gp_domain *domain; // of the entries that are complete if the driver says yes; NULL: none
	uint32_t stream;
	uint64_t upto;
	CUstream handle;
} asked;

// d->lock is held.
static bool pending(struct gp_domain *d, const struct gp_event_record *e)
{
	return d->context && !d->given_up && e->upto > d->stream_of[e->stream].done;
}

// Waits for a record in the log. The event may be recorded anew or destroyed meanwhile. True: the GPU has reached it. False: it cannot be
// cut any more, or the driver refused; the driver is to wait for the event.
static bool wait_record(const struct gp_event_record *e, bool bounded)
{
	struct gp_domain *d = e->domain;
	bool complete = false;

	pthread_mutex_lock(&d->lock);
	if (pending(d, e)) {
		struct blp_stream *s = &d->stream_of[e->stream];
		gp_count(&d->gpu->stops.barriers, 1);
		complete = (bounded ? blp_wait_or_let_run(d, s, e->upto) : blp_wait_complete(d, s, e->upto, 0)) &&
			   d->context && !d->given_up && blp_reached(s, e->upto);
	}
	pthread_mutex_unlock(&d->lock);
	return complete;
}

// The domain and stream of an operation, and whether that stream is host-blocked; takes the domain's lock. NULL: there is none, and no
// lock is held.
static struct gp_domain *enter(struct gp_operation *o, struct blp_stream **stream, bool *host_blocked)
{
	struct gp_domain *d;
	*host_blocked = false;
	for (;; pthread_mutex_unlock(&d->lock)) {
		if (blp_inside || !o->handle || !(d = blp_domain_for(o)))
			return NULL;
		o->cpu |= blp_flush_others(d, o->handle, o->stream);
		pthread_mutex_lock(&d->lock);
		if (!blp_give_way(d) && blp_belongs(o, d))
			break;
	}
	if (d->context == o->handle && !d->given_up && (*stream = blp_find_stream(d, o->stream, true))) {
		*host_blocked = blp_is_host_blocked(d, *stream);
		return d;
	}
	pthread_mutex_unlock(&d->lock);
	return NULL;
}

// When an entry may be appended. The domain's lock is held then, except with AGAIN.
enum turn {
	NOW,
	LATER, // the stop lasts long, or its log runs narrow: the entry is only logged
	AGAIN, // a stop is over, there is room, or the stream has another domain: look at everything anew
	NEVER, // there is no room, or a stop has begun
};

static enum turn wait_turn(const struct gp_operation *o, struct gp_domain *d, struct blp_stream *stream, uint64_t *deadline)
{
	enum turn turn = NOW;
	if (blp_is_stopped(d)) {
		blp_begin_late(o->handle);
		if (!*deadline)
			*deadline = blp_patience();
		if (blp_wait_turn(d, *deadline)) {
			pthread_mutex_unlock(&d->lock);
			return AGAIN;
		}
		if (blp_give_way(d)) { // it waited without the lock
			pthread_mutex_unlock(&d->lock);
			return AGAIN;
		}
		turn = LATER;
	}
	bool had = blp_has_room(d, stream, 0);
	if (!had)
		blp_begin_late(o->handle);
	bool room = had || blp_make_room(d, stream, 0);
	// Room was made, or a stop waited for, without the lock.
	if (had != room || !blp_belongs(o, d) || blp_is_host_blocked(d, stream)) {
		pthread_mutex_unlock(&d->lock);
		return AGAIN;
	}
	return room && (turn == LATER || !blp_is_stopped(d)) ? turn : NEVER;
}

static struct blp_entry *append(struct gp_domain *d, struct blp_stream *s, enum blp_kind kind, enum turn turn)
{
	struct blp_entry *e = blp_append(d, s, kind, turn == NOW, 0, NULL);
	if (!e || blp_leave_own(s))
		return e;
	blp_unappend(d, s);
	blp_event_settled(d);
	return NULL;
}

// Another thread may have recorded the event since it was looked at: anew, and behind a host block. It is remembered before the driver gets
// it.
void blp_awaited(struct gp_operation *o) { o->cpu |= blp_look_event(o->event).host_blocked; }

// The driver has the entry, or refused it.
static void settle(struct gp_operation *o, struct gp_domain *d, struct blp_stream *stream, CUresult result)
{
	(result ? blp_unappend : blp_appended)(d, stream);
	blp_event_settled(d);
	if (!result && o->cpu)
		blp_host_block(d, stream, stream->handle);
}

// After the entry was appended. True: the operation is carried out. False: the driver's call follows, with the lock held.
static bool carried_out(struct gp_operation *o, struct gp_domain *d, struct blp_stream *stream, struct blp_entry *e,
			enum turn turn)
{
	if (turn == NOW)
		blp_send(d, e);
	o->result = CUDA_SUCCESS;
	if (turn == LATER) {
		blp_event_settled(d);
		pthread_mutex_unlock(&d->lock);
		return true;
	}
	if (stream->thread) { // on the stream that stands for the thread's own
		CUresult result = e->kind == BLP_RECORD ? gp_driver.cuEventRecord(o->event, stream->handle) :
							  gp_driver.cuStreamWaitEvent(stream->handle, o->event, 0);
		if (e->kind == BLP_WAIT)
			blp_awaited(o);
		settle(o, d, stream, result);
		pthread_mutex_unlock(&d->lock);
		return !result; // where it refused, it is to tell the program
	}
	o->domain = d;
	o->logging = stream;
	blp_inside = true;
	return false;
}

void blp_logged(struct gp_operation *o)
{
	struct gp_domain *d = o->domain;

	blp_inside = false;
	settle(o, d, o->logging, o->result);
	if (o->result && o->work == GP_RECORD)
		blp_remember_event(o, NULL, 0, 0, false);
	pthread_mutex_unlock(&d->lock);
	o->logging = NULL;
}

// Lets the driver record the event past the log, behind the stream's entries. Gives up the lock.
static void record_past(struct gp_operation *o, struct gp_domain *d, struct blp_stream *stream, bool host_blocked)
{
	blp_begin_pass(o, d, stream);
	bool behind = blp_related_pending(d, stream);
	pthread_mutex_unlock(&d->lock);
	if (behind) {
		blp_come_behind(o);
		pthread_mutex_lock(&d->lock);
		stream->passing--; // this call itself is no host block
		host_blocked |= blp_is_host_blocked(d, stream);
		stream->passing++;
		pthread_mutex_unlock(&d->lock);
	}
	blp_enter_driver(o);
	blp_remember_event(o, NULL, 0, 0, host_blocked || o->cpu);
}

// The context is about to wait for an event that has not come. It may wait for the program, and then so would all that the context gets, on
// streams that come later and on the library's own: a stop would last until the event comes, without a bound.
static void let_wait(CUcontext context)
{
	bool was_wanted = gp_blp_unwant();
	gp_blp_retire(context ? gp_primary_context(context) :
				NULL); // also where another thread is at it, or came here for another reason
	if (was_wanted)
		gp_log_line("the program lets a whole context wait for an event (cuCtxWaitEvent, cuGreenCtxWaitEvent), "
			    "which "
			    "could hold up stops "
			    "for ever: no kernel is made preemptible, or stopped, from here on");
}

// A record of a whole context stands for all of its streams, and a wait comes ahead of the next work of all. So neither comes in the log,
// but behind all entries of it, also those of an event that is waited for.
static void pass_whole(struct gp_operation *o)
{
	CUcontext context = o->whole;
	const struct gp_domain *of = blp_look_event(o->event).domain;
	if (!context && (!gp_driver.cuCtxFromGreenCtx || gp_driver.cuCtxFromGreenCtx(&context, o->whole_green)))
		context = NULL;
	blp_begin_late(o->handle);
	blp_flush_ahead(context);
	if (o->work == GP_AWAIT && context && of && of->context && of->context != context)
		blp_flush_ahead(of->context);
	if (o->work == GP_AWAIT && blp_query(o->event) == CUDA_ERROR_NOT_READY) // the driver has its record now
		let_wait(context);
	o->cpu |= o->work == GP_AWAIT; // it may be for anything
	blp_pass(o);
	if (o->work == GP_RECORD)
		blp_remember_event(o, NULL, 0, 0, true);
}

bool blp_record(struct gp_operation *o)
{
	struct blp_stream *stream;
	struct gp_domain *d;
	uint64_t deadline = 0;
	enum turn turn;
	bool host_blocked;

	if (!blp_domains[0])
		return false;
	if (o->whole || o->whole_green) {
		pass_whole(o);
		return false;
	}
	do {
		if (!(d = enter(o, &stream, &host_blocked))) {
			blp_come_behind(o);
			blp_remember_event(o, NULL, 0, 0, true); // the stream has no domain: it may wait for anything
			return false;
		}
		if (host_blocked || o->cpu || !blp_related_pending(d, stream) || blp_look_event(o->event).shared ||
		    !blp_may_log(stream)) {
			record_past(o, d, stream, host_blocked);
			return false;
		}
		turn = wait_turn(o, d, stream, &deadline);
	} while (turn == AGAIN);
	struct blp_entry *e = NULL;
	if (turn == NEVER || !blp_remember_event(o, d, (uint16_t)(stream - d->stream_of), d->head + 1, false) ||
	    !(e = append(d, stream, BLP_RECORD, turn))) {
		record_past(o, d, stream, host_blocked);
		return false;
	}
	e->event = o->event;
	return carried_out(o, d, stream, e, turn);
}

// Work on a blocking stream comes behind the legacy stream, and work on that behind all blocking ones. So does a wait for a complete
// event. A thread that waits for the stream then waits for them.
static bool joins_others(struct gp_domain *d, const struct blp_stream *s)
{
	for (uint32_t i = 0; i < d->streams; i++)
		if (&d->stream_of[i] != s && blp_may_be_cut(&d->stream_of[i]) &&
		    blp_related(&d->stream_of[i], s->handle, s->blocking))
			return true;
	return false;
}

static bool is_blocking(CUstream stream)
{
	unsigned flags = 0;
	return stream == GP_STREAM_LEGACY || stream == GP_STREAM_PER_THREAD ||
	       gp_driver.cuStreamGetFlags(stream, &flags) || !(flags & CU_STREAM_NON_BLOCKING);
}

// Orders a blocking stream or the legacy one as a wait for a complete event would, by the rules of the latter.
static CUresult order_only(CUstream stream)
{
	CUevent event;
	CUresult result = gp_driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
	if (result)
		return result;
	result = gp_driver.cuEventRecord(event, stream);
	gp_driver.cuEventDestroy(event);
	return result;
}

static void await(struct blp_entry *record)
{
	if (record->order == BLP_PLAIN)
		record->order = BLP_AWAITED;
}

bool blp_await(struct gp_operation *o)
{
	struct blp_stream *stream;
	struct gp_domain *d;
	struct gp_event_record e;
	uint64_t deadline = 0;
	bool joins = false, ahead = false, came_behind = false, host_blocked;

	if (!blp_domains[0])
		return false;
	if (o->whole || o->whole_green) {
		pass_whole(o);
		return false;
	}
	do {
		e = blp_look_event(o->event);
		if (gp_capturing() && (e.captured || !e.known)) {
			blp_come_behind(o); // the stream joins the capture: its log entries could not be launched again
			return false;
		}
		o->cpu |= e.shared || e.host_blocked || gp_graphs_record() ||
			  (!e.known && blp_query(o->event) == CUDA_ERROR_NOT_READY);
		d = enter(o, &stream, &host_blocked);
		joins = d && joins_others(d, stream);
		ahead = d && blp_may_be_cut(stream);
		bool waits = d && d == e.domain && pending(d, &e) && !d->stream_of[e.stream].uncuttable;
		bool past = !e.domain || (d == e.domain && !pending(d, &e)); // it is for nothing that the log has
		if (!d || host_blocked || o->cpu || !(waits || (past && (joins || ahead))) || !blp_may_log(stream))
			break;
		bool foreign = waits ? !blp_related(&d->stream_of[e.stream], stream->handle, stream->blocking) :
				       !joins || blp_query(o->event) == CUDA_ERROR_NOT_READY;
		if (foreign && joins) { // the legacy stream's rules would put others behind the wait, too: relaunch.c
			if (came_behind)
				break;
			came_behind = true;
			pthread_mutex_unlock(&d->lock);
			blp_come_behind(o);
			continue;
		}
		enum turn turn = wait_turn(o, d, stream, &deadline);
		if (turn == LATER && !waits && blp_query(o->event)) // only the driver can put the stream behind the event's work
			break;
		if (turn == NOW || turn == LATER) {
			struct blp_entry *entry = append(d, stream, BLP_WAIT, turn);
			if (!entry)
				break;
			if (waits && !pending(d, &e)) { // forgotten as the log began anew
				blp_unappend(d, stream);
				blp_event_settled(d);
				pthread_mutex_unlock(&d->lock);
				continue;
			}
			entry->order = foreign ? BLP_FOREIGN : BLP_PLAIN;
			entry->of = waits ? e.stream : entry->stream;
			entry->upto = waits ? e.upto : 0;
			if (waits && e.upto > d->tail)
				await(blp_entry_at(d, e.upto - 1));
			return carried_out(o, d, stream, entry, turn);
		}
		if (turn == NEVER)
			break;
	} while (true);
	if (d) {
		if (!d->recorded && !blp_is_closed(d)) // nothing can be cut: from here on the driver answers
			blp_forget_all(d);
		joins |= joins_others(d, stream); // the lock may have been given up since
		ahead |= blp_may_be_cut(stream);
		blp_begin_pass(o, d, stream);
		pthread_mutex_unlock(&d->lock);
	}
	if (e.domain)
		blp_begin_late(o->handle);
	bool reached = e.domain && wait_record(&e, true), orders = d ? stream->blocking : is_blocking(o->stream);
	if (e.domain && !reached) {
		pthread_mutex_lock(&e.domain->lock);
		o->cpu |= pending(e.domain, &e); // a record that was not waited for may be behind a host block
		pthread_mutex_unlock(&e.domain->lock);
	}
	if (reached && !orders) {
		o->result = CUDA_SUCCESS;
		return true;
	}
	// Launches ahead must not be repeated behind the wait: the program may wait for them.
	if (!d || host_blocked || o->cpu || joins || ahead)
		blp_come_behind(o);
	blp_enter_driver(o);
	if (reached) // and the event may stand for another record by now
		o->result = order_only(o->stream);
	return reached;
}

// Waits and questions.

// The domain in which the stream has entries that are not known to be complete; takes its lock. NULL: there is none, and no lock is
// held. One that the stream had before may still know it.
static struct gp_domain *enter_stream(CUstream handle, CUcontext current, struct blp_stream **stream)
{
	for (int i = 0; i < BLP_DOMAINS && blp_domains[i]; i++) {
		struct gp_domain *d = blp_domains[i];
		if (!d->context || d->head == d->tail ||
		    ((handle == GP_STREAM_LEGACY || handle == GP_STREAM_PER_THREAD) && d->context != current))
			continue;
		pthread_mutex_lock(&d->lock);
		if ((*stream = blp_find_stream(d, handle, false)) && blp_pending(*stream))
			return d;
		pthread_mutex_unlock(&d->lock);
	}
	return NULL;
}

bool gp_blp_begin_wait(enum gp_wait kind, void *what, CUcontext current)
{
	struct asked *a = GP_MINE(asked);
	struct blp_stream *stream;
	struct gp_domain *d;

	if (!blp_domains[0])
		return false;
	a->context = current;
	a->domain = NULL;
	a->changes = blp_changes;
	switch (kind) {
	case GP_WAIT_STREAM: blp_expect_stream(what, current); break;
	case GP_WAIT_ALL: gp_blp_expect_all(what == GP_CURRENT ? current : what); break;
	case GP_WAIT_EVENT: {
		struct gp_event_record e = blp_look_event(what);
		return e.domain && wait_record(&e, false);
	}
	case GP_WAIT_CONTEXT:
	case GP_PIN: break;
	case GP_LOAD:
		if (gp_blp_may_load(current, what))
			gp_blp_loading(true);
		break;
	case GP_TAKE:
		if (what != GP_CURRENT)
			gp_blp_flush_all(what);
		else if (current)
			gp_blp_flush_all(current);
		break;
	case GP_TAKE_MEMORY: gp_blp_flush_owner((CUdeviceptr)(uintptr_t)what); break;
	case GP_TAKE_ARRAY: gp_blp_flush_array(current); break;
	case GP_ASK_STREAM:
		if ((d = enter_stream(what, current, &stream))) {
			a->domain = d;
			a->stream = (uint32_t)(stream - d->stream_of);
			a->upto = stream->last;
			a->handle = stream->handle;
			pthread_mutex_unlock(&d->lock);
		}
		break;
	case GP_ASK_EVENT: {
		struct gp_event_record e = blp_look_event(what);
		if ((d = e.domain)) {
			pthread_mutex_lock(&d->lock); // held until the driver has the record too
			a->domain = d;
			a->stream = e.stream;
			a->upto = e.upto;
			a->handle = d->stream_of[e.stream].handle;
			pthread_mutex_unlock(&d->lock);
		}
	}
	}
	return false;
}

// Whether the driver's answer that all is over is true.
static bool is_over(enum gp_wait kind, void *what)
{
	struct asked *a = GP_MINE(asked);
	struct gp_domain *d = a->domain;
	bool over = true;

	if (d) {
		pthread_mutex_lock(&d->lock);
		struct blp_stream *s = &d->stream_of[a->stream];
		if (d->context && s->handle == a->handle && a->upto > s->done && !s->uncuttable) {
			over = blp_changes == a->changes && !blp_is_closed(d);
			// The driver was asked about the thread's own stream, or what was launched again may be on another one.
			if (over && kind == GP_ASK_STREAM &&
			    (s->thread || blp_marker_behind(d, s->first_marker, a->upto) >= 0))
				over = blp_has_ended(d, s, a->upto);
			// If the event was recorded anew since, the driver answered for that record.
			if (over && (kind == GP_ASK_STREAM || blp_is_latest_record(what, d, a->upto)))
				blp_complete_to(d, s, a->upto);
		} else if (s->thread && !s->uncuttable && kind == GP_ASK_STREAM && s->handle == a->handle) {
			over = blp_reached(s, a->upto); // if not, it was forgotten meanwhile
		}
		// A launch that was cut as the driver was asked may run since: let run, or on a stream that was destroyed.
		if (d->context && blp_changes != a->changes && !(s->handle == a->handle && blp_reached(s, a->upto)))
			over = false;
		over = over && !(kind == GP_ASK_STREAM && s->handle == a->handle && blp_runs_beside(d, s));
		pthread_mutex_unlock(&d->lock);
	}
	if (over && kind == GP_ASK_STREAM && what == GP_STREAM_LEGACY && (blp_stopped || blp_changes != a->changes)) {
		// The legacy stream is complete when all blocking streams are, also those with domains of their own.
		for (int i = 0; i < BLP_DOMAINS && blp_domains[i] && over; i++) {
			d = blp_domains[i];
			if (!a->context || d->context != a->context)
				continue;
			pthread_mutex_lock(&d->lock);
			for (uint32_t j = 0; j < d->streams && over; j++) {
				struct blp_stream *s = &d->stream_of[j];
				if (s->blocking && blp_may_be_cut(s)) // as far as the log has heard
					over = !blp_is_closed(d) && blp_has_ended(d, s, s->last) &&
					       blp_reached(s, s->last);
			}
			pthread_mutex_unlock(&d->lock);
		}
	}
	return over;
}

CUresult gp_blp_end_wait(enum gp_wait kind, void *what, CUresult result)
{
	if (kind == GP_TAKE_MEMORY || kind == GP_TAKE_ARRAY || kind == GP_LOAD)
		blp_end_take();
	if (!result && kind == GP_WAIT_STREAM)
		result = blp_wait_stream(what, gp_current_handle());
	if (!result && kind == GP_WAIT_ALL)
		result = blp_wait_all(what == GP_CURRENT ? gp_current_handle() : what);
	if (result)
		return result;
	if (blp_error && kind != GP_WAIT_CONTEXT && kind != GP_PIN)
		return blp_error;
	if ((kind == GP_ASK_STREAM || kind == GP_ASK_EVENT) && !is_over(kind, what))
		return CUDA_ERROR_NOT_READY;
	return result;
}
