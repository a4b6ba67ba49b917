// streams_test.c - with preempt/process/streams.c preempt/process/process.c.
//
// The driver's answer about a stream does not count for calls that it has not taken yet.
#include "preempt/process/process.h"
#include "test/units/check.h"

static CUresult answer, asked;
static CUstream busy; // has unfinished work, with any answer
static CUresult query(CUstream stream)
{
	CHECK(stream == GP_STREAM_LEGACY || busy);
	asked++;
	return busy && stream == busy ? CUDA_ERROR_NOT_READY : answer;
}
static CUresult push(CUcontext c) { return c ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT; }
static CUresult pop(CUcontext *c)
{
	*c = NULL;
	return CUDA_SUCCESS;
}
_Atomic uint32_t gp_captures;
struct gp_driver gp_driver = {.cuStreamQuery = query, .cuCtxPushCurrent = push, .cuCtxPopCurrent = pop};

static struct gp_context c = {.handle = (CUcontext)1};

static struct gp_stream *submit(void)
{
	struct gp_stream *s = gp_find_stream(&c, GP_STREAM_LEGACY, true);
	CHECK(s == c.stream);
	s->submitted++;
	c.window = gp_window_after(c.window, GP_SUBMITTED);
	return s;
}

int main(void)
{
	struct gp_stream *s = submit();
	CHECK(!gp_query(&c) && !gp_all_complete(&c)); // the driver has nothing to do yet
	CUevent event = (CUevent)2;
	uint64_t second = s->settled + 1;
	submit();
	gp_settled(s);
	gp_event_recorded(&c, s, event, second); // by the second thread, whose call returned first
	CHECK(s->event == event && s->event_at == 1);
	gp_completed(&c, s, s->event_at);
	CHECK(s->completed == 1 && !gp_all_complete(&c) && !gp_is_idle(&c));
	CHECK(!gp_query(&c) && asked == 2);
	gp_settled(s);
	answer = CUDA_ERROR_NOT_READY;
	CHECK(!gp_query(&c) && s->completed == 1);
	answer = CUDA_SUCCESS;
	CHECK(gp_query(&c) && s->completed == 2 && gp_all_complete(&c));
	CHECK(gp_query(&c) && asked == 4); // nothing is to be asked

	// Calls that do not return are waited for as long as others begin, and then for a while.
	submit();
	CHECK(!gp_query(&c) && c.missing.since_ns);
	c.missing.since_ns = 1; // long ago
	submit();
	gp_settled(s);
	CHECK(!gp_query(&c) && c.missing.since_ns > 1);
	CHECK(!gp_query(&c) && !gp_query(&c) && s->settled == 3);
	c.missing.since_ns = 1;
	CHECK(!gp_query(&c) && s->settled == 4);
	CHECK(gp_query(&c) && !c.missing.since_ns && gp_all_complete(&c));
	gp_settled(s); // such a call returns after all: it was counted
	CHECK(s->settled == s->submitted);
	submit();
	CHECK(!gp_query(&c) && !gp_all_complete(&c));
	gp_settled(s);
	CHECK(gp_query(&c) && gp_all_complete(&c));

	// So are those of streams that find no place.
	for (uintptr_t i = 1; i < GP_STREAMS; i++)
		CHECK(gp_find_stream(&c, (CUstream)(i << 8), true) == &c.stream[i]);
	CHECK(!gp_find_stream(&c, (CUstream)(GP_STREAMS << 8), true));
	c.others.submitted++;
	c.window = gp_window_after(c.window, GP_SUBMITTED);
	CHECK(!gp_all_complete(&c) && !gp_query(&c));
	c.missing.since_ns = 1;
	CHECK(!gp_query(&c) && gp_query(&c)); // it was given up
	gp_settled(&c.others);
	c.others.submitted++;
	c.window = gp_window_after(c.window, GP_SUBMITTED);
	gp_event_recorded(&c, s, event, s->settled);
	gp_event_recorded(&c, &c.others, event, c.others.settled + 1);
	CHECK(!s->event); // to wait for it says nothing of the stream any more
	gp_settled(&c.others);
	answer = CUDA_ERROR_NOT_READY;
	CHECK(!gp_query(&c) && !gp_all_complete(&c));
	answer = CUDA_SUCCESS;
	CHECK(gp_query(&c) && gp_all_complete(&c));

	// Behind a stream with unfinished work the driver is asked about no other. The first stream comes last: to wait for it then says
	// that all is done.
	struct gp_stream *side = &c.stream[1];
	submit();
	gp_settled(s);
	side->submitted++;
	gp_settled(side);
	busy = side->handle;
	asked = 0;
	CHECK(!gp_query(&c) && asked == 1);
	busy = GP_STREAM_LEGACY;
	CHECK(!gp_query(&c) && asked == 3 && side->completed == side->submitted);
	gp_completed(&c, s, s->settled);
	CHECK(gp_all_complete(&c) && gp_is_idle(&c));
	busy = NULL;
	CHECK(gp_query(&c) && asked == 3);

	// The next event at the address of one that was destroyed says nothing of the stream.
	gp_context_places = 2;
	struct gp_stream *other = gp_find_stream(&gp_context[1], GP_STREAM_LEGACY, true);
	gp_event_recorded(&gp_context[1], other, event, 1);
	gp_event_forget((CUevent)3);
	CHECK(other->event == event);
	gp_event_forget(event);
	CHECK(!other->event);
	return 0;
}
