// captures.c - the captures of streams into graphs that are under way.
//
// A query of a captured stream, or of the legacy stream during a capture, invalidates the capture.
#define _GNU_SOURCE
#include "preempt/process/process.h"

#include <limits.h>

enum {
	CAPTURES = 64,
	// A synchronization that has begun does not mind captures that begin, and may be for work that waits for this thread.
	// It begins at once after the other thread has counted itself.
	KEPT_OFF_NS = 100 * 1000 * 1000,
};

static struct origin {
	CUstream stream; // on which the capture began; NULL: free
	CUcontext context;
	uint32_t ending; // calls under way that destroy the stream or the context, whose handle the driver may give anew
} origin[CAPTURES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // of origin
_Atomic uint32_t gp_captures;

static _Atomic uint32_t kept_off; // threads that synchronize a context or the legacy stream; a futex of those that begin captures

// Either this thread sees the capture, or the one that begins it sees this thread and waits: both first write, then look.
bool gp_captures_keep_off(int *cancel)
{
	*cancel = gp_cancel_off();
	kept_off++;
	if (!gp_capturing())
		return true;
	gp_captures_let_on(*cancel);
	return false;
}

void gp_captures_let_on(int cancel)
{
	if (--kept_off == 0 && gp_capturing())
		gp_futex_wake(&kept_off, INT_MAX, false);
	gp_cancel_on(cancel);
}

static CUcontext context_of(CUstream stream)
{
	CUcontext owner = NULL;
	if (stream == GP_STREAM_LEGACY || stream == GP_STREAM_PER_THREAD || !gp_driver.cuStreamGetCtx ||
	    gp_driver.cuStreamGetCtx(stream, &owner))
		return gp_current_handle();
	return owner;
}

// With the lock. NULL: there is none.
static struct origin *find(CUstream stream)
{
	for (int i = 0; i < CAPTURES; i++)
		if (origin[i].stream == stream && !origin[i].ending)
			return &origin[i];
	return NULL;
}

void gp_capture_begins(CUstream stream)
{
	CUcontext context = context_of(stream);
	pthread_mutex_lock(&lock);
	struct origin *free = find(NULL);
	if (free)
		*free = (struct origin){stream, context, 0};
	pthread_mutex_unlock(&lock);
	gp_captures++; // for ever where there is no place: its end will not be recognised
	uint64_t now, until = gp_now_ns() + KEPT_OFF_NS;
	for (uint32_t threads; (threads = kept_off) && (now = gp_now_ns()) < until;)
		gp_futex_wait(&kept_off, threads, until - now, false);
	for (int i = 0; i < GP_CONTEXTS; i++) {
		if (!gp_context[i].handle)
			continue;
		pthread_mutex_lock(&gp_context[i].query_lock);
		pthread_mutex_unlock(&gp_context[i].query_lock);
	}
}

void gp_capture_ended(CUstream stream)
{
	if (!gp_captures)
		return;
	pthread_mutex_lock(&lock);
	struct origin *o = find(stream);
	if (o) {
		o->stream = NULL;
		gp_captures--;
	}
	pthread_mutex_unlock(&lock);
}

static bool ends_with(const struct origin *o, enum gp_thing thing, const void *handle)
{
	return o->stream && (thing == GP_STREAM ? o->stream == handle : o->context == handle);
}

void gp_captures_end_with(enum gp_thing thing, const void *handle)
{
	if (!gp_captures)
		return;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < CAPTURES; i++)
		origin[i].ending += ends_with(&origin[i], thing, handle);
	pthread_mutex_unlock(&lock);
}

void gp_captures_ended_with(enum gp_thing thing, const void *handle, bool is)
{
	if (!gp_captures)
		return;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < CAPTURES; i++)
		if (origin[i].ending && ends_with(&origin[i], thing, handle)) {
			origin[i].ending--;
			if (is) {
				origin[i] = (struct origin){.stream = NULL};
				gp_captures--;
			}
		}
	pthread_mutex_unlock(&lock);
}

bool gp_may_be_captured(CUstream stream)
{
	int status = CU_STREAM_CAPTURE_STATUS_NONE;
	return !gp_driver.cuStreamIsCapturing || gp_driver.cuStreamIsCapturing(stream, &status) ||
	       status != CU_STREAM_CAPTURE_STATUS_NONE;
}
