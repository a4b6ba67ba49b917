// captures.c - the captures of streams into graphs that are under way.
//
// A query of a captured stream, or of the legacy stream during a capture, invalidates the capture.
#define _GNU_SOURCE
#include "preempt/process/process.h"

enum { CAPTURES = 64 };

static _Atomic(CUstream) origin[CAPTURES]; // the streams on which they began; NULL: free
_Atomic uint32_t gp_captures;

void gp_capture_begins(CUstream stream)
{
	for (int i = 0; i < CAPTURES; i++) {
		CUstream empty = NULL;
		if (__atomic_compare_exchange_n((CUstream *)&origin[i], &empty, stream, false, __ATOMIC_ACQ_REL,
						__ATOMIC_RELAXED))
			break;
	}
	gp_captures++; // for good where there is no place: its end will not be recognised
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
