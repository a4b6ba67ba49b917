// contexts_test.c - with preempt/process/contexts.c preempt/process/streams.c preempt/process/process.c preempt/driver/driver.c.
//
// Contexts whose end the program asks for end or go on. Another one may have the handle or the place. Ends well or says what is wrong.
#define _GNU_SOURCE
#include "preempt/process/process.h"
#include "test/units/check.h"

static const CUcontext first = (CUcontext)0x100, second = (CUcontext)0x200;
static const CUstream stream = (CUstream)0x1000;

_Atomic uint32_t gp_captures;
bool gp_under_mps(CUdevice device) { return device != 0; }
void gp_stream_made(CUstream s) { CHECK(!s); }

static CUresult push(CUcontext c) { return c ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT; }
static CUresult pop(CUcontext *c) { return *c = NULL, CUDA_SUCCESS; }
static CUresult device_of(CUdevice *device) { return *device = 0, CUDA_SUCCESS; }
static CUresult attribute(int *value, int which, CUdevice device) { return *value = which + device, CUDA_SUCCESS; }
static CUresult uuid_of(void *uuid, CUdevice device)
{
	*(char *)uuid = (char)(device + 1);
	return CUDA_SUCCESS;
}

static struct gp_stream *submit(struct gp_context *c)
{
	struct gp_stream *s = gp_find_stream(c, stream, true);
	CHECK(s);
	s->submitted++;
	c->window = gp_window_after(c->window, GP_SUBMITTED);
	return s;
}

static void leave(struct gp_context *c)
{
	CUcontext handle = c->handle;
	gp_context_leaves(c);
	CHECK(!gp_find_context(handle) && gp_find_leaving(handle) == c);
}

// A wait that began in the context that had the place says nothing of the work of the next one.
static void test_old_wait(void)
{
	enum { OPERATIONS = 5 };
	struct gp_context *c = gp_context_current(first);
	struct gp_stream *waited = NULL;
	CHECK(c == gp_context);
	for (int i = 0; i < OPERATIONS; i++)
		gp_settled(waited = submit(c));
	uint64_t sequence = waited->settled;
	leave(c);
	CHECK(!gp_context_left(c, true) && !gp_find_leaving(first));
	CHECK(gp_context_current(second) == c && gp_all_complete(c) && !c->stream[0].handle);
	for (int i = 0; i < OPERATIONS; i++)
		CHECK(submit(c) == waited);
	gp_completed(c, waited, sequence);
	CHECK(!gp_all_complete(c) && waited->submitted - waited->completed == OPERATIONS);
	leave(c);
	CHECK(!gp_context_left(c, true));
}

// A context that the driver keeps has its place again, and no other context had that meanwhile.
static void test_kept(void)
{
	struct gp_context *c = gp_context_current(first);
	c->prepared = 1;
	submit(c);
	leave(c);
	struct gp_context *other = gp_context_current(second);
	CHECK(other && other != c && !other->prepared && gp_all_complete(other));
	CHECK(gp_context_left(c, false) && gp_find_context(first) == c && gp_context_current(first) == c);
	CHECK(c->prepared && !gp_all_complete(c) && !gp_find_leaving(first));

	leave(c);
	gp_stream_forget(stream); // also where it may go on
	CHECK(gp_all_complete(c));
	struct gp_context *again = gp_context_current(first); // another thread uses it: it has one place
	CHECK(again && again != c && !again->prepared);
	CHECK(!gp_context_left(c, false) && gp_find_context(first) == again);
	leave(again);
	leave(other);
	CHECK(!gp_context_left(again, true) && !gp_context_left(other, true));
	CHECK(!gp_find_context(first) && !gp_find_context(second) && !gp_find_leaving(NULL));
}

int main(void)
{
	gp_driver.cuCtxPushCurrent = push;
	gp_driver.cuCtxPopCurrent = pop;
	gp_driver.cuCtxGetDevice = device_of;
	gp_driver.cuDeviceGetAttribute = attribute;
	gp_driver.cuDeviceGetUuid = uuid_of;
	test_old_wait();
	test_kept();
	return 0;
}
