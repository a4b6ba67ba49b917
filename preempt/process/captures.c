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

static _Atomic(CUstream) origin[CAPTURES]; // the streams on which they began; NULL: free
_Atomic uint32_t gp_captures;

static _Atomic uint32_t kept_off; // threads that synchronize a context or the legacy stream; a futex of those that begin captures

// Either this thread sees the capture, or the one that begins it sees this thread and waits: both first write, then look.
bool gp_captures_keep_off(void)
{
	kept_off++;
	if (!gp_capturing())
		return true;
	gp_captures_let_on();
	return false;
}

void gp_captures_let_on(void)
{
	if (--kept_off == 0 && gp_capturing())
		gp_futex_wake(&kept_off, INT_MAX, false);
}

void gp_capture_begins(CUstream stream)
{
	for (int i = 0; i < CAPTURES; i++) {
		CUstream empty = NULL;
		if (__atomic_compare_exchange_n((CUstream *)&origin[i], &empty, stream, false, __ATOMIC_ACQ_REL,
						__ATOMIC_RELAXED))
			break;
	}
	gp_captures++; // for good where there is no place: its end will not be recognised
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
	for (int i = 0; gp_captures && i < CAPTURES; i++) {
		CUstream began = stream;
		if (__atomic_compare_exchange_n((CUstream *)&origin[i], &began, NULL, false, __ATOMIC_ACQ_REL,
						__ATOMIC_RELAXED)) {
			gp_captures--;
			return;
		}
	}
}

bool gp_may_be_captured(CUstream stream)
{
	int status = CU_STREAM_CAPTURE_STATUS_NONE;
	return !gp_driver.cuStreamIsCapturing || gp_driver.cuStreamIsCapturing(stream, &status) ||
	       status != CU_STREAM_CAPTURE_STATUS_NONE;
}
