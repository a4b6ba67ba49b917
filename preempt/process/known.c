// known.c - the streams that the program has made, and a wait for all of a context that is none for the context.
//
// The driver's wait for a context waits for everything in it, also for the library's work. A wait for each stream of the program does
// not: by events, which outlive a stream that another thread destroys meanwhile. The legacy stream stands for each thread's default
// stream: an event there comes behind all work on those. Only where hold.while_synchronizing is set.
#define _GNU_SOURCE
#include "preempt/process/process.h"
#include "preempt/objects/objects.h"

enum { MOST_EVENTS = 64 };

static uint64_t destructions; // of streams that had work. With the streams' lock, as is gp_context.orphaned
static _Atomic bool unknown;  // there are, or were, streams that are not known

void gp_stream_made(CUstream stream)
{
	CUcontext context = stream ? gp_current_handle() : NULL;
	if (!context || !gp_object_begin(GP_STREAM, stream, context))
		unknown = true;
}

void gp_known_stream_ends(CUstream stream)
{
	if (!gp_settings.hold_synchronize)
		return;
	gp_objects_lock(GP_STREAM);
	for (struct gp_object *o = NULL; (o = gp_objects_of(GP_STREAM, stream, o));) {
		struct gp_context *c = gp_find_context(o->context);
		if (c && (gp_capturing() || gp_driver.cuStreamQuery(stream) != CUDA_SUCCESS))
			c->orphaned = ++destructions;
	}
	gp_objects_unlock(GP_STREAM);
}

uint64_t gp_known_destructions(void)
{
	gp_objects_lock(GP_STREAM);
	uint64_t count = destructions;
	gp_objects_unlock(GP_STREAM);
	return count;
}

void gp_known_synchronized(CUcontext context, uint64_t since)
{
	struct gp_context *c = gp_find_context(context);
	gp_objects_lock(GP_STREAM);
	if (c && c->orphaned <= since)
		c->orphaned = 0;
	gp_objects_unlock(GP_STREAM);
}

// Records an event behind what a stream holds, if that is unfinished.
static bool mark(CUstream stream, CUevent *events, int *count)
{
	CUresult result = gp_driver.cuStreamQuery(stream);
	if (result != CUDA_ERROR_NOT_READY)
		return result == CUDA_SUCCESS; // if not, the driver is to tell the program
	if (*count == MOST_EVENTS || gp_driver.cuEventCreate(&events[*count], CU_EVENT_DISABLE_TIMING))
		return false;
	return !gp_driver.cuEventRecord(events[(*count)++], stream);
}

// A record waits for room in the stream's queue, and the thread that is to make it may be about to make a stream. So the driver is called
// without the lock, while the stream is in use and not destroyed. No capture is under way: it would end. Nor is the thread cancelled.
static bool mark_all(CUcontext context, CUevent *events, int *count)
{
	const struct gp_context *c = gp_find_context(context);
	bool marked = c && mark(GP_STREAM_LEGACY, events, count);
	gp_objects_lock(GP_STREAM);
	for (struct gp_object *o = NULL; marked && (o = gp_objects_next(GP_STREAM, o));) {
		if (o->context != context)
			continue;
		gp_object_use(GP_STREAM, o);
		marked = mark(o->handle, events, count);
		gp_object_leave(GP_STREAM, o);
	}
	marked = marked && !c->orphaned && !unknown; // also of a stream that was destroyed since this began
	gp_objects_unlock(GP_STREAM);
	return marked;
}

bool gp_wait_for_streams(CUcontext context)
{
	CUevent events[MOST_EVENTS];
	int count = 0, cancel, before = gp_cancel_off(); // its events would stay
	bool reached = false;
	if (context && !unknown && gp_driver.cuEventCreate && gp_driver.cuEventRecord && gp_driver.cuEventSynchronize &&
	    gp_captures_keep_off(&cancel)) {
		reached = mark_all(context, events, &count);
		gp_captures_let_on(cancel);
	}
	for (int i = 0; i < count; i++) {
		reached = reached && !gp_driver.cuEventSynchronize(events[i]);
		gp_driver.cuEventDestroy(events[i]);
	}
	gp_cancel_on(before);
	return reached;
}
