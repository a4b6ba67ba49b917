// captures_test.c - with preempt/process/captures.c preempt/process/process.c preempt/driver/driver.c.
//
// Captures begin and end; the driver is asked about a stream only while there are any, and never about the legacy stream.
#define _GNU_SOURCE
#include "preempt/process/process.h"
#include "test/units/check.h"

#include <stdio.h>
#include <stdlib.h>

static const CUstream first = (CUstream)0x1000, second = (CUstream)0x2000, other = (CUstream)0x3000;
static CUstream captured;
static int asked;

static CUresult is_capturing(CUstream stream, int *status)
{
	asked++;
	CHECK(stream != GP_STREAM_LEGACY);
	*status = stream == captured; // CU_STREAM_CAPTURE_STATUS_ACTIVE
	return stream == other ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

static CUcontext owner = (CUcontext)0x10;
static CUresult owner_of(CUstream stream, CUcontext *context)
{
	CHECK(stream != GP_STREAM_LEGACY && stream != GP_STREAM_PER_THREAD);
	*context = owner;
	return CUDA_SUCCESS;
}

static CUresult get_current(CUcontext *context)
{
	*context = (CUcontext)0x20;
	return CUDA_SUCCESS;
}

// The end of a stream, or of its context, ends its capture. The driver gives the handle to another one as soon as it has destroyed it.
static void ends(enum gp_thing thing, void *handle, CUstream stream)
{
	gp_capture_begins(stream);
	gp_captures_end_with(thing, handle);
	CHECK(gp_capturing()); // until the driver has answered
	gp_captures_ended_with(thing, handle, false);
	CHECK(gp_capturing());
	gp_captures_end_with(thing, handle);
	gp_captures_end_with(GP_STREAM, stream);
	gp_captures_ended_with(GP_STREAM, stream, false); // another thread's call, which is refused
	gp_capture_begins(stream);                        // the next one's, by another thread
	gp_captures_ended_with(thing, handle, true);
	CHECK(gp_capturing());
	gp_capture_ended(stream);
	CHECK(!gp_capturing());
}

int main(void)
{
	gp_driver.cuStreamGetCtx = owner_of;
	gp_driver.cuCtxGetCurrent = get_current;
	ends(GP_STREAM, first, first);
	ends(GP_CONTEXT, owner, first);
	ends(GP_CONTEXT, (CUcontext)0x20, GP_STREAM_PER_THREAD);
	gp_capture_begins(first);
	gp_captures_end_with(GP_STREAM, second);
	gp_captures_end_with(GP_CONTEXT, (CUcontext)0x20); // neither is its own
	gp_captures_ended_with(GP_STREAM, second, true);
	gp_captures_ended_with(GP_CONTEXT, (CUcontext)0x20, true);
	CHECK(gp_capturing());
	gp_capture_ended(first);
	gp_driver.cuStreamIsCapturing = is_capturing;
	CHECK(!gp_capturing() && !gp_is_captured(first) && !asked);
	gp_capture_ended(first); // a stream was destroyed
	CHECK(!gp_capturing());

	captured = first;
	gp_capture_begins(first);
	CHECK(gp_capturing() && gp_is_captured(first) && !gp_is_captured(second) && asked == 2);
	CHECK(!gp_is_captured(GP_STREAM_LEGACY) && asked == 2);
	CHECK(gp_is_captured(other)); // the driver does not know
	gp_capture_ended(second);
	CHECK(gp_capturing());
	gp_capture_begins(first); // the driver refuses the second one
	gp_capture_ended(first);
	CHECK(gp_capturing());
	gp_capture_begins(GP_STREAM_PER_THREAD); // two threads, each on its own
	gp_capture_begins(GP_STREAM_PER_THREAD);
	gp_capture_ended(first);
	gp_capture_ended(GP_STREAM_PER_THREAD);
	CHECK(gp_capturing());
	gp_capture_ended(GP_STREAM_PER_THREAD);
	CHECK(!gp_capturing());

	gp_driver.cuStreamIsCapturing = NULL; // an old driver
	gp_capture_begins(first);
	CHECK(gp_is_captured(second) && !gp_is_captured(GP_STREAM_LEGACY));
	gp_capture_ended(first);
	CHECK(!gp_is_captured(second));
	return 0;
}
