// streams.c - keeps track of which work of a context has finished.
#define _GNU_SOURCE
#include "preempt/process/process.h"

static const uint64_t MISSING_NS = 10000000000; // longer than a launch takes, or the load of its code

struct gp_stream *gp_find_stream(struct gp_context *c, CUstream handle, bool insert)
{
	struct gp_stream *unused;

again:
	unused = NULL;
	for (int i = 0; i < GP_STREAMS; i++) {
		struct gp_stream *s = &c->stream[i];
		CUstream h = __atomic_load_n((CUstream *)&s->handle, __ATOMIC_ACQUIRE);
		if (h == handle)
			return s;
		if (!unused && (!h || h == GP_STREAM_GONE))
			unused = s;
		if (!h)
			break;
	}
	if (!insert || !unused)
		return NULL;
	// Two threads that begin with the same stream at once may get an entry each, which is harmless.
	CUstream h = unused->handle == GP_STREAM_GONE ? GP_STREAM_GONE : NULL;
	if (__atomic_compare_exchange_n((CUstream *)&unused->handle, &h, handle, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) ||
	    h == handle)
		return unused;
	goto again; // another thread took it
}

bool gp_all_complete(struct gp_context *c)
{
	if (c->others.completed < c->others.submitted)
		return false;
	for (int i = 0; i < GP_STREAMS; i++) {
		struct gp_stream *s = &c->stream[i];
		if (!s->handle)
			break;
		if (s->completed < s->submitted)
			return false;
	}
	return true;
}

bool gp_idle(struct gp_context *c, uint64_t word, uint64_t now)
{
	// First: where no work is, threads read it. A thread that is late does not turn it back.
	for (uint64_t was = c->idle_since_ns; was < now && c->window == word;)
		if (__atomic_compare_exchange_n((uint64_t *)&c->idle_since_ns, &was, now, false, __ATOMIC_SEQ_CST,
						__ATOMIC_SEQ_CST))
			break;
	return gp_window_change(&c->window, word, GP_FINISHED);
}

void gp_completed(struct gp_context *c, struct gp_stream *s, uint64_t sequence)
{
	uint64_t word = c->window;
	if (s->completed < sequence)
		s->completed = sequence;
	if (word & GP_WINDOW_WORKS && gp_all_complete(c))
		gp_idle(c, word, gp_now_ns());
}

void gp_event_recorded(struct gp_context *c, struct gp_stream *stream, CUevent event, uint64_t sequence)
{
	for (int i = 0; i < GP_STREAMS && c->stream[i].handle; i++) // the event stands for its latest record only
		if (c->stream[i].event == event)
			c->stream[i].event = NULL;
	stream->event_at = sequence;
	stream->event = event;
}

// An event is about to be destroyed: the next one may have its address.
void gp_event_forget(CUevent event)
{
	for (uint32_t k = 0; k < gp_context_places; k++)
		for (int i = 0; i < GP_STREAMS && gp_context[k].stream[i].handle; i++)
			if (gp_context[k].stream[i].event == event)
				gp_context[k].stream[i].event = NULL;
}

void gp_stream_forget(CUstream handle)
{
	// A stream may be destroyed with unfinished work. No thread can ask about that any more: it counts as complete.
	for (int i = 0; i < GP_CONTEXTS; i++) {
		struct gp_context *c = &gp_context[i];
		if (!c->handle && !c->leaving)
			continue;
		pthread_mutex_lock(&c->query_lock);
		struct gp_stream *s = gp_find_stream(c, handle, false);
		if (s) {
			s->completed = s->submitted;
			s->event = NULL;
			s->handle = GP_STREAM_GONE;
		}
		pthread_mutex_unlock(&c->query_lock);
	}
}

// A call that was given up as missing (below) may return after all: it counts already.
void gp_settled(struct gp_stream *s)
{
	uint64_t settled = s->settled;
	while (settled < s->submitted && !__atomic_compare_exchange_n((uint64_t *)&s->settled, &settled, settled + 1,
								      false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		;
}

// Whether threads that submit are still in their calls. One that ended there, or left by longjmp, never comes back: after a while that counts
// as settled.
static bool missing(struct gp_context *c)
{
	uint64_t activity = gp_activity(c), now = gp_now_ns();
	bool any = false;
	for (int i = 0; i < GP_STREAMS && c->stream[i].handle; i++)
		any = any || c->stream[i].completed < c->stream[i].submitted;
	any = any || c->others.completed < c->others.submitted;
	if (!any || c->missing.activity != activity)
		c->missing.since_ns = 0;
	if (!any)
		return false;
	if (!c->missing.since_ns) {
		c->missing.since_ns = now;
		c->missing.activity = activity;
	}
	if (now - c->missing.since_ns < MISSING_NS)
		return true;
	for (int i = 0; i < GP_STREAMS && c->stream[i].handle; i++)
		c->stream[i].settled = c->stream[i].submitted;
	c->others.settled = c->others.submitted;
	return true; // until the driver was asked again
}

// Asks the driver about a stream. asked may be another stream, which is complete only when this one is.
static bool query(struct gp_stream *s, CUstream asked)
{
	uint64_t settled = s->settled; // before the driver is asked
	if (s->completed >= s->submitted)
		return true;
	if (gp_driver.cuStreamQuery(asked) != CUDA_SUCCESS)
		return false;
	s->completed = settled;
	return true;
}

// Asks the driver about streams that the application has not waited for, up to the first with unfinished work: each question takes the lock
// of the context that launches take. The main stream of most programs is the first: it comes last, so that the others are known to be
// done when the program waits for it. query_lock is held: no stream is destroyed meanwhile, nor the context.
bool gp_query(struct gp_context *c)
{
	bool complete = true;
	CUcontext popped;

	if (gp_capturing()) {
		complete = gp_all_complete(c);
	} else if (!gp_driver.cuCtxPushCurrent(c->handle)) {
		int last = 0;
		while (last < GP_STREAMS && c->stream[last].handle)
			last++;
		complete = query(&c->others, GP_STREAM_LEGACY);
		for (int i = last - 1; complete && i >= 0; i--) {
			struct gp_stream *s = &c->stream[i];
			// Another thread cannot name a per-thread default stream.
			complete = query(s, s->handle == GP_STREAM_PER_THREAD ? GP_STREAM_LEGACY : s->handle);
		}
		gp_driver.cuCtxPopCurrent(&popped);
		complete = complete && !missing(c);
	}
	return complete;
}
