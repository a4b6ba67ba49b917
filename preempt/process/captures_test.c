// captures_test.c - with preempt/process/captures.c preempt/process/process.c preempt/driver/driver.c
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

int main(void)
{
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
