// free_async.c - cuMemFreeAsync of memory of cuMemAlloc: it is freed behind the work that is on the stream.
//
// An event says when that is. It is looked at whenever the program allocates or frees, and waited for where memory is short.
#define _GNU_SOURCE
#include "preempt/memory/own.h"

// Ranges whose event is recorded; under gp_memory_lock. Their ending is set, so nobody else frees them.
static struct gp_range *first;

static void destroy(CUevent event)
{
	if (event)
		gp_driver.cuEventDestroy(event);
}

static CUresult mark(CUstream stream, CUevent *event)
{
	CUresult result = gp_driver.cuEventCreate(event, CU_EVENT_DISABLE_TIMING);
	if (result)
		return result;
	result = gp_driver.cuEventRecord(*event, stream);
	if (result)
		destroy(*event);
	return result;
}

static CUresult free_behind(CUdeviceptr address, CUstream stream)
{
	struct gp_range *r;
	CUevent event;
	if (gp_is_captured(stream) || !gp_range_claim(address, &r))
		return gp_native_free_async(address, stream);
	CUresult result = mark(stream, &event);
	pthread_mutex_lock(&gp_memory_lock);
	r->ending = !result;
	if (!result) {
		r->freed = event;
		r->freed_in = gp_current_handle();
		r->next_freed = first;
		first = r;
	}
	pthread_mutex_unlock(&gp_memory_lock);
	return result;
}

static CUresult free_async(CUdeviceptr address, CUstream stream)
{
	gp_memory_enter();
	CUresult result = free_behind(address, stream);
	gp_freed_look(false);
	gp_memory_leave();
	return result;
}

CUresult gp_cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
	return free_async(address, stream ? stream : GP_STREAM_LEGACY);
}

CUresult gp_cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
	return free_async(address, stream ? stream : GP_STREAM_PER_THREAD);
}

static struct gp_range *take_all(void)
{
	pthread_mutex_lock(&gp_memory_lock);
	struct gp_range *all = first;
	first = NULL;
	pthread_mutex_unlock(&gp_memory_lock);
	return all;
}

static void put_back(struct gp_range *r)
{
	pthread_mutex_lock(&gp_memory_lock);
	r->next_freed = first;
	first = r;
	pthread_mutex_unlock(&gp_memory_lock);
}

static bool is_done(const struct gp_range *r, bool wait)
{
	return !r->freed || !(wait ? gp_driver.cuEventSynchronize(r->freed) : gp_driver.cuEventQuery(r->freed));
}

// Where streams are captured nothing is asked: that could end a capture.
bool gp_freed_look(bool wait)
{
	bool any = false;
	if (!__atomic_load_n(&first, __ATOMIC_RELAXED) || gp_capturing())
		return false;
	for (struct gp_range *r = take_all(), *next; r; r = next) {
		next = r->next_freed;
		CUevent event = r->freed;
		if (is_done(r, wait) && !gp_range_end(r, false)) {
			destroy(event);
			any = true;
		} else {
			put_back(r);
		}
	}
	return any;
}

// The context takes its events with it.
void gp_freed_context_destroying(CUcontext context)
{
	for (struct gp_range *r = take_all(), *next; r; r = next) {
		next = r->next_freed;
		if (r->freed && r->freed_in == context && is_done(r, true)) {
			destroy(r->freed);
			r->freed = NULL;
		}
		put_back(r);
	}
}
