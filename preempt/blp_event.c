// blp_event.c - events that were recorded behind launches that may have been cut.
//
// While its domain is stopped such an event may have been reached although what is before it has not run, so
// questions about it are answered here; and it is recorded again as the domain goes on.
#define _GNU_SOURCE
#include "blp_domain.h"

enum { EVENTS = 1 << 14, PROBES = 64 };

struct event {
	CUevent handle;   // NULL: never used, the search ends here
	bool shared;      // other processes see it
	bool tainted;     // what it was recorded behind may wait for the CPU
	uint16_t stream;
	struct gp_domain *domain; // NULL: not recorded in the log
	uint64_t upto;    // sequence + 1 of its entry
};

static struct event events[EVENTS];
static pthread_mutex_t events_lock = PTHREAD_MUTEX_INITIALIZER;
#define GONE ((CUevent)~0ul)

// What a thread asks or waits for, between before_wait and answer.
static __thread struct {
	uint32_t changes;
	struct gp_domain *domain; // of what the driver's success completes; NULL: nothing
	uint32_t stream;
	uint64_t upto;
	CUstream handle;
} asked __attribute__((tls_model("initial-exec")));

// Held between before_ and after_.
static __thread struct {
	struct gp_domain *domain;
	struct blp_stream *stream;
	bool taints;
} held __attribute__((tls_model("initial-exec")));

static struct event *find(CUevent handle, bool insert)
{
	size_t at = (uintptr_t)handle * 0x9E3779B97F4A7C15ull >> 50; // 14 bits
	struct event *unused = NULL;
	for (int n = 0; n < PROBES; n++, at = (at + 1) % EVENTS) {
		struct event *e = &events[at];
		if (e->handle == handle)
			return e;
		bool empty = !e->handle;
		if (!unused && (empty || e->handle == GONE))
			unused = e;
		if (empty)
			break;
	}
	if (!insert || !unused)
		return NULL;
	*unused = (struct event){.handle = handle};
	return unused;
}

static struct event look(CUevent handle)
{
	pthread_mutex_lock(&events_lock);
	struct event *e = find(handle, false);
	struct event copy = e ? *e : (struct event){0};
	pthread_mutex_unlock(&events_lock);
	return copy;
}

bool blp_is_record(CUevent handle, struct gp_domain *d, uint64_t upto)
{
	struct event e = look(handle);
	return e.domain == d && e.upto == upto;
}

// The event's latest record, if that says anything. False: no place for it.
static bool remember(CUevent handle, struct gp_domain *d, uint16_t stream, uint64_t upto, bool tainted)
{
	pthread_mutex_lock(&events_lock);
	struct event *e = find(handle, d || tainted);
	if (e) {
		e->domain = d;
		e->stream = stream;
		e->upto = upto;
		e->tainted = tainted;
		if (!d && !tainted && !e->shared)
			e->handle = GONE;
	}
	pthread_mutex_unlock(&events_lock);
	return e;
}

void blp_forget_events(struct gp_domain *d)
{
	pthread_mutex_lock(&events_lock);
	for (int i = 0; i < EVENTS; i++)
		if (events[i].domain == d)
			events[i].domain = NULL;
	pthread_mutex_unlock(&events_lock);
}

void blp_record_again(struct gp_domain *d, CUevent handle, uint64_t upto, CUstream stream)
{
	pthread_mutex_lock(&events_lock); // so that it is not destroyed meanwhile
	struct event *e = find(handle, false);
	if (e && e->domain == d && e->upto == upto) // not recorded elsewhere since
		blp_driver.cuEventRecord(handle, stream);
	pthread_mutex_unlock(&events_lock);
}

void gp_blp_event_destroying(CUevent handle)
{
	pthread_mutex_lock(&events_lock);
	struct event *e = find(handle, false);
	if (e)
		*e = (struct event){.handle = GONE};
	pthread_mutex_unlock(&events_lock);
}

void gp_blp_event_shared(CUevent handle)
{
	pthread_mutex_lock(&events_lock);
	struct event *e = handle ? find(handle, true) : NULL;
	if (e)
		e->shared = true;
	pthread_mutex_unlock(&events_lock);
}

// d->lock is held.
static bool pending(struct gp_domain *d, const struct event *e)
{
	return d->context && !d->given_up && e->upto > d->stream_of[e->stream].done;
}

// Returns when the latest record of an event, as of now, is complete, or the driver refused.
static void flush_event(CUevent handle)
{
	struct event e = look(handle);
	if (!e.domain)
		return;
	pthread_mutex_lock(&e.domain->lock);
	if (pending(e.domain, &e))
		blp_wait_complete(e.domain, &e.domain->stream_of[e.stream], e.upto, handle, false);
	pthread_mutex_unlock(&e.domain->lock);
}

// The domain and stream of a submission, with the domain's lock held. NULL: none, and no lock.
static struct gp_domain *enter(const struct gp_submission *s, struct blp_stream **stream)
{
	CUcontext context = NULL;
	if (blp_inside || gp_driver.cuCtxGetCurrent(&context) || !context)
		return NULL;
	struct gp_domain *d = blp_domain_of(context, s->stream);
	if (!d)
		return NULL;
	blp_flush_others(d, context, s->stream);
	pthread_mutex_lock(&d->lock);
	if (d->context == context && !d->given_up && !gp_capturing() && (*stream = blp_find_stream(d, s->stream, true)))
		return d;
	pthread_mutex_unlock(&d->lock);
	return NULL;
}

// When an entry may be made. The domain's lock is held, but with AGAIN.
enum turn {
	NOW,
	LATER, // after a long stop: it is only logged
	AGAIN, // after a stop: everything may have changed
	NEVER, // no room, or a stop
};

static enum turn wait_turn(struct gp_domain *d, struct blp_stream *stream, uint64_t *deadline)
{
	enum turn turn = NOW;
	if (d->epoch % 2) {
		if (!*deadline)
			*deadline = blp_patience();
		if (blp_wait_resumed(d, *deadline)) {
			pthread_mutex_unlock(&d->lock);
			return AGAIN;
		}
		turn = LATER;
	}
	return blp_make_room(d, stream, 0) && (turn == LATER || !(d->epoch % 2)) ? turn : NEVER;
}

// Once the entry is made. True: that is all. False: the driver's call follows, with the lock held.
static bool carried_out(struct gp_domain *d, struct blp_stream *stream, struct blp_entry *e, enum turn turn)
{
	e->driven = turn == NOW;
	if (turn == LATER) {
		pthread_mutex_unlock(&d->lock);
		return true;
	}
	held.domain = d;
	held.stream = stream;
	blp_inside = true;
	return false;
}

// After the driver's call; false: no entry was made. The lock is still held.
static bool appended(CUresult result)
{
	if (!held.domain)
		return false;
	blp_inside = false;
	(result ? blp_unappend : blp_appended)(held.domain, held.stream);
	return true;
}

static void let_go(void)
{
	pthread_mutex_unlock(&held.domain->lock);
	held.domain = NULL;
}

bool gp_blp_before_record(struct gp_submission *s, CUevent handle)
{
	struct blp_stream *stream;
	struct gp_domain *d;
	uint64_t deadline = 0;
	enum turn turn;

	held.domain = NULL;
	if (!blp_domains[0])
		return false;
	do {
		if (!(d = enter(s, &stream))) {
			gp_blp_flush(s->stream);
			remember(handle, NULL, 0, 0, false);
			return false;
		}
		if (!blp_related_pending(d, stream)) {
			remember(handle, NULL, 0, 0, blp_is_tainted(d, stream));
			pthread_mutex_unlock(&d->lock);
			return false;
		}
		turn = look(handle).shared ? NEVER : wait_turn(d, stream, &deadline);
	} while (turn == AGAIN);
	if (turn == NEVER ||
	    !remember(handle, d, (uint16_t)(stream - d->stream_of), d->head + 1, blp_is_tainted(d, stream))) {
		remember(handle, NULL, 0, 0, false);
		pthread_mutex_unlock(&d->lock);
		gp_blp_flush(s->stream);
		return false;
	}
	struct blp_entry *e = blp_append(d, stream, BLP_RECORD, 0, NULL);
	e->event = handle;
	return carried_out(d, stream, e, turn);
}

void gp_blp_after_record(struct gp_submission *s, CUevent handle, CUresult result)
{
	(void)s;
	if (!appended(result))
		return;
	if (result)
		remember(handle, NULL, 0, 0, false);
	let_go();
}

bool gp_blp_before_stream_wait(struct gp_submission *s, CUevent handle)
{
	struct blp_stream *stream;
	struct gp_domain *d;
	uint64_t deadline = 0;
	enum turn turn;

	held.domain = NULL;
	held.taints = false;
	if (gp_capturing()) // it may join a capture; nothing is pending
		return false;
	do {
		struct event e = look(handle);
		held.taints = e.shared || e.tainted;
		if (!e.domain)
			return false;
		if (!(d = enter(s, &stream)) || d != e.domain) {
			if (d)
				pthread_mutex_unlock(&d->lock);
			flush_event(handle);
			return false;
		}
		if (!pending(d, &e)) {
			pthread_mutex_unlock(&d->lock);
			return false;
		}
		turn = wait_turn(d, stream, &deadline);
	} while (turn == AGAIN);
	if (turn == NEVER) {
		pthread_mutex_unlock(&d->lock);
		flush_event(handle);
		return false;
	}
	return carried_out(d, stream, blp_append(d, stream, BLP_WAIT, 0, NULL), turn);
}

void gp_blp_after_stream_wait(struct gp_submission *s, CUevent handle, CUresult result)
{
	bool taints = !result && held.taints;
	(void)handle;
	if (appended(result)) {
		if (taints)
			blp_taint(held.domain, held.stream);
		let_go();
	} else if (taints) {
		gp_blp_waits_for_cpu(s);
	}
}

// Waits and questions.

// With the lock of the domain in which the stream has entries; NULL: none.
static struct gp_domain *enter_stream(CUstream handle, struct blp_stream **stream)
{
	CUcontext context = NULL;
	if (handle == GP_STREAM_PER_THREAD || gp_driver.cuCtxGetCurrent(&context))
		return NULL;
	for (int i = 0; i < BLP_DOMAINS && blp_domains[i]; i++) {
		struct gp_domain *d = blp_domains[i];
		if (!d->context || d->head == d->tail || (handle == GP_STREAM_LEGACY && d->context != context))
			continue;
		pthread_mutex_lock(&d->lock);
		if ((*stream = blp_find_stream(d, handle, false)))
			return d;
		pthread_mutex_unlock(&d->lock);
	}
	return NULL;
}

void gp_blp_before_wait(enum gp_wait kind, void *what)
{
	struct blp_stream *stream;
	struct gp_domain *d;
	CUcontext context = NULL;

	if (!blp_domains[0])
		return;
	asked.domain = NULL;
	asked.changes = blp_changes;
	switch (kind) {
	case GP_WAIT_STREAM:
		gp_blp_flush(what);
		break;
	case GP_WAIT_EVENT:
		flush_event(what);
		break;
	case GP_WAIT_CONTEXT:
		break;
	case GP_TAKE:
		if (what != GP_CURRENT)
			gp_blp_flush_all(what);
		else if (!gp_driver.cuCtxGetCurrent(&context) && context)
			gp_blp_flush_all(context);
		break;
	case GP_TAKE_MEMORY:
		gp_blp_flush_owner((CUdeviceptr)(uintptr_t)what);
		break;
	case GP_ASK_STREAM:
		if ((d = enter_stream(what, &stream))) {
			asked.domain = d;
			asked.stream = (uint32_t)(stream - d->stream_of);
			asked.upto = stream->last;
			asked.handle = stream->handle;
			pthread_mutex_unlock(&d->lock);
		}
		break;
	case GP_ASK_EVENT: {
		struct event e = look(what);
		if ((d = e.domain)) {
			pthread_mutex_lock(&d->lock); // held until the driver has the record too
			asked.domain = d;
			asked.stream = e.stream;
			asked.upto = e.upto;
			asked.handle = d->stream_of[e.stream].handle;
			pthread_mutex_unlock(&d->lock);
		}
	}
	}
}

// The driver says that it is over: is it?
static bool is_over(enum gp_wait kind, void *what)
{
	struct gp_domain *d = asked.domain;
	bool over = true;

	if (d) {
		pthread_mutex_lock(&d->lock);
		struct blp_stream *s = &d->stream_of[asked.stream];
		if (d->context && !d->given_up && s->handle == asked.handle && asked.upto > s->done) {
			over = blp_changes == asked.changes && !(d->epoch % 2);
			// The driver was asked about another record of the event where that is not the latest any more.
			if (over && (kind == GP_ASK_STREAM || blp_is_record(what, d, asked.upto)))
				blp_complete_to(d, s, asked.upto);
		}
		if (over && kind == GP_ASK_STREAM && (d->epoch % 2 || blp_changes != asked.changes))
			over = !blp_related_pending(d, s);
		pthread_mutex_unlock(&d->lock);
	} else if (kind == GP_ASK_STREAM && what == GP_STREAM_LEGACY && (blp_stopped || blp_changes != asked.changes)) {
		// The legacy stream is over when the blocking ones are.
		CUcontext context = NULL;
		gp_driver.cuCtxGetCurrent(&context);
		for (int i = 0; i < BLP_DOMAINS && blp_domains[i] && over; i++) {
			d = blp_domains[i];
			if (!context || d->context != context)
				continue;
			pthread_mutex_lock(&d->lock);
			for (uint32_t j = 0; j < d->streams; j++)
				over &= !(blp_pending(&d->stream_of[j]) && d->stream_of[j].blocking);
			pthread_mutex_unlock(&d->lock);
		}
	}
	return over;
}

CUresult gp_blp_answer(enum gp_wait kind, void *what, CUresult result)
{
	if (result)
		return result;
	if (blp_error && kind != GP_WAIT_CONTEXT)
		return blp_error;
	if ((kind == GP_ASK_STREAM || kind == GP_ASK_EVENT) && !is_over(kind, what))
		return BLP_NOT_READY;
	return result;
}
