// copies_test.c - with preempt/process/copies.c preempt/process/captures.c preempt/process/process.c preempt/driver/driver.c.
//
// Copies return: which are waited for, and which are taken to be done.
#define _GNU_SOURCE
#include "preempt/process/process.h"
#include "test/units/check.h"

static char pageable[8], pinned[8], device[8];
static int waits;
static CUresult answer;

static CUresult attributes(unsigned count, int *attribute, void **value, CUdeviceptr at)
{
	CHECK(count == 1 && *attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
	const void *is = (const void *)at;
	*(unsigned *)*value = is == device ? CU_MEMORYTYPE_DEVICE : is == pinned ? CU_MEMORYTYPE_HOST : 0;
	return CUDA_SUCCESS;
}

static CUresult synchronize(CUstream stream)
{
	int state;
	CHECK(stream == GP_STREAM_LEGACY);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	CHECK(state == PTHREAD_CANCEL_DISABLE);
	waits++;
	return answer;
}

static struct gp_context context = {.gpu = &gp_gpu[0]};
static CUdeviceptr at(const void *memory) { return (CUdeviceptr)memory; }

static struct gp_operation operation(void)
{
	return (struct gp_operation){.work = GP_COPY, .blocking = true, .stream = GP_STREAM_LEGACY, .context = &context};
}

static struct gp_operation to_device(const void *host)
{
	struct gp_operation o = operation();
	o.memory.host = host;
	return o;
}

static struct gp_operation unified(const void *from, size_t bytes)
{
	struct gp_operation o = operation();
	o.memory.from = at(from);
	o.memory.width = bytes;
	o.memory.height = o.memory.element_bytes = 1;
	return o;
}

static struct gp_operation plane(const struct gp_copy_2d *copy)
{
	struct gp_operation o = operation();
	o.memory.copy_2d = copy;
	return o;
}

static struct gp_operation space(const struct gp_copy_3d *copy)
{
	struct gp_operation o = operation();
	o.memory.copy_3d = copy;
	return o;
}

// Whether the copy was waited for, and is taken to be done.
static void returns(struct gp_operation o, bool waited, bool done)
{
	waits = 0;
	gp_copy_returned(&o);
	CHECK(waits == waited);
	CHECK(o.blocking == done);
	CHECK(o.result == (waited ? answer : CUDA_SUCCESS));
}

// kept_off: others keep this process's work off the GPU.
static void forms(bool kept_off)
{
	const int host = CU_MEMORYTYPE_HOST, there = CU_MEMORYTYPE_DEVICE, anywhere = CU_MEMORYTYPE_UNIFIED;
	returns(to_device(pageable), kept_off, true);
	returns(to_device(pinned), false, true);
	returns(operation(), false, true); // cuMemcpyDtoH
	returns(unified(pageable, 8), kept_off, kept_off);
	returns(unified(pageable, 0), false, false);
	returns(unified(device, 8), false, false);
	returns(unified(pinned, 8), false, false);
	returns(plane(&(struct gp_copy_2d){.from = {.memory_type = host, .host = pageable}, .to = {.memory_type = there}}),
		kept_off, true);
	returns(plane(&(struct gp_copy_2d){.from = {.memory_type = host, .host = pinned}, .to = {.memory_type = there}}),
		false, true);
	returns(plane(&(struct gp_copy_2d){.from = {.memory_type = anywhere, .device = at(pageable)}}), kept_off, kept_off);
	returns(plane(&(struct gp_copy_2d){.from = {.memory_type = there, .device = at(device)},
					   .to = {.memory_type = host}}),
		false, true);
	returns(plane(&(struct gp_copy_2d){.from = {.memory_type = there, .device = at(device)},
					   .to = {.memory_type = there}}),
		false, false);
	returns(space(&(struct gp_copy_3d){.from = {.memory_type = host, .host = pageable}, .to = {.memory_type = there}}),
		kept_off, true);
	returns(space(&(struct gp_copy_3d){.from = {.memory_type = anywhere, .device = at(pageable)}}), kept_off, kept_off);
	returns(space(&(struct gp_copy_3d){.from = {.memory_type = there, .device = at(device)},
					   .to = {.memory_type = host}}),
		false, true);
	returns(space(&(struct gp_copy_3d){.from = {.memory_type = there, .device = at(device)},
					   .to = {.memory_type = there}}),
		false, false);
}

static CUresult get_current(CUcontext *context) { return *context = NULL, CUDA_SUCCESS; }

int main(void)
{
	gp_driver.cuCtxGetCurrent = get_current;
	struct gp_gpu *g = &gp_gpu[0];
	gp_driver.cuPointerGetAttributes = attributes;
	gp_driver.cuStreamSynchronize = synchronize;
	forms(false); // alone
	g->turn_peers = 1;
	forms(true);
	g->turn_peers = 0;
	g->higher = 4;
	forms(true);
	g->mps = 1;
	forms(false);
	g->mps = 0;

	answer = CUDA_ERROR_UNKNOWN;
	returns(to_device(pageable), true, true);
	answer = CUDA_SUCCESS;

	gp_capture_begins((CUstream)0x1000);
	returns(to_device(pageable), false, false);
	returns(to_device(pinned), false, true);
	gp_capture_ended((CUstream)0x1000);
	returns(to_device(pageable), true, true);
	int state;
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
	CHECK(state == PTHREAD_CANCEL_ENABLE);

	gp_driver.cuStreamSynchronize = NULL; // an old driver
	forms(false);
	return 0;
}
