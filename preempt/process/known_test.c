// known_test.c - with preempt/process/known.c preempt/objects/objects.c preempt/process/captures.c preempt/process/process.c preempt/driver/driver.c.
//
// The wait for all streams records an event. Another thread makes a stream meanwhile, or destroys one.
#define _GNU_SOURCE
#include "preempt/process/process.h"
#include "preempt/objects/objects.h"
#include "test/units/check.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

static const CUcontext context = (CUcontext)0x100;
static const CUstream first = (CUstream)0x1000, second = (CUstream)0x2000, third = (CUstream)0x3000;
static void (*while_recording)(void); // on the first stream
static _Atomic bool recorded;

struct gp_context *gp_find_context(CUcontext handle) { return handle == context ? &gp_context[0] : NULL; }

static CUresult get_current(CUcontext *current)
{
	*current = context;
	return CUDA_SUCCESS;
}

static CUresult query(CUstream stream) { return stream == GP_STREAM_LEGACY ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY; }

static CUresult create(CUevent *event, unsigned flags)
{
	*event = (CUevent)(uintptr_t)(flags + 1);
	return CUDA_SUCCESS;
}

static CUresult record(CUevent event, CUstream stream)
{
	if (stream == first && while_recording)
		while_recording();
	recorded |= stream == first;
	return event ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

static CUresult wait_or_destroy(CUevent event) { return event ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN; }

static void destroy(CUstream stream)
{
	gp_known_stream_ends(stream);
	gp_object_end(GP_STREAM, stream);
}

static pthread_t thread;
static _Atomic bool begun;

static void *make_second(void *unused)
{
	gp_stream_made(second);
	return unused;
}

// The queue is full until the other thread goes on.
static void wait_for_maker(void)
{
	CHECK(!pthread_create(&thread, NULL, make_second, NULL));
	CHECK(!pthread_join(thread, NULL));
}

static void *destroy_first(void *unused)
{
	begun = true;
	destroy(first);
	CHECK(recorded);
	return unused;
}

static void begin_to_destroy(void)
{
	enum { LOOKS = 1000 };
	CHECK(!pthread_create(&thread, NULL, destroy_first, NULL));
	while (!begun)
		sched_yield();
	for (int i = 0; i < LOOKS; i++) // it would be over
		sched_yield();
}

// Where the driver's calls are places at which a thread ends, one that is cancelled leaves no stream in use.
static void be_cancelled(void) { CHECK(!pthread_cancel(pthread_self())); }

static CUresult wait_or_end(CUevent event)
{
	pthread_testcancel();
	return wait_or_destroy(event);
}

static CUresult record_or_end(CUevent event, CUstream stream)
{
	CUresult result = record(event, stream);
	pthread_testcancel();
	return result;
}

static void *wait_for_all(void *unused)
{
	gp_wait_for_streams(context);
	pthread_testcancel();
	return unused;
}

static void test_cancelled(void)
{
	void *result;
	gp_driver.cuEventRecord = record_or_end;
	gp_driver.cuEventSynchronize = wait_or_end;
	recorded = false;
	while_recording = be_cancelled;
	CHECK(!pthread_create(&thread, NULL, wait_for_all, NULL));
	CHECK(!pthread_join(thread, &result));
	CHECK(result == PTHREAD_CANCELED && recorded);
	CHECK(!gp_object_find(GP_STREAM, first, context)->users);
	while_recording = NULL;
	gp_driver.cuEventRecord = record;
	gp_driver.cuEventSynchronize = wait_or_destroy;
}

static void destroy_second(void) { destroy(second); }

int main(void)
{
	gp_driver.cuCtxGetCurrent = get_current;
	gp_driver.cuStreamQuery = query;
	gp_driver.cuEventCreate = create;
	gp_driver.cuEventRecord = record;
	gp_driver.cuEventSynchronize = gp_driver.cuEventDestroy = wait_or_destroy;
	gp_settings.hold_synchronize = 1;
	gp_context[0].handle = context;

	gp_stream_made(first);
	while_recording = wait_for_maker;
	CHECK(gp_wait_for_streams(context) && recorded && gp_object_find(GP_STREAM, second, context));

	while_recording = destroy_second; // what it had is not waited for
	CHECK(!gp_wait_for_streams(context));
	gp_known_synchronized(context, gp_known_destructions());
	while_recording = NULL;
	CHECK(gp_wait_for_streams(context));

	test_cancelled();

	gp_stream_made(third);
	recorded = false;
	while_recording = begin_to_destroy;
	gp_wait_for_streams(context); // true where the other thread was late
	CHECK(!pthread_join(thread, NULL));
	CHECK(!gp_object_find(GP_STREAM, first, context));
	gp_known_synchronized(context, gp_known_destructions());
	CHECK(gp_wait_for_streams(context));

	gp_stream_made(NULL);
	CHECK(!gp_wait_for_streams(context));
	return 0;
}
