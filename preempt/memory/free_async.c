// free_async.c - cuMemFreeAsync of memory of cuMemAlloc: it is freed behind the work that is on the stream.
//
// An event says when that is. It is looked at whenever the program allocates or frees, and waited for where memory is short.
#define _GNU_SOURCE
#include "preempt/memory/own.h"

// Ranges whose event is recorded; under gp_memory_lock. Their ending is set, so nobody else frees them.
static struct gp_range *first;
static pthread_cond_t asked = PTHREAD_COND_INITIALIZER; // a range in it is not asked about any more

static void put_in(struct gp_range *r)
{
	r->next_freed = first;
	__atomic_store_n(&first, r, __ATOMIC_RELAXED);
}

static void take_out(const struct gp_range *r)
{
	struct gp_range **at = &first;
	while (*at != r)
		at = &(*at)->next_freed;
	__atomic_store_n(at, r->next_freed, __ATOMIC_RELAXED);
}

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
		put_in(r);
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

static bool is_done(const struct gp_range *r, bool wait)
{
	return !r->freed || !(wait ? gp_driver.cuEventSynchronize(r->freed) : gp_driver.cuEventQuery(r->freed));
}

// Asks about the event of a range, and destroys it if it has happened or if its context goes. Meanwhile gp_memory_lock is not
// held: the range stays in the list, and no other thread uses its event.
static bool ask(struct gp_range *r, bool wait, bool goes)
{
	r->asked_about = true;
	pthread_mutex_unlock(&gp_memory_lock);
	bool done = is_done(r, wait);
	if (done || goes) {
		destroy(r->freed);
		r->freed = NULL;
	}
	pthread_mutex_lock(&gp_memory_lock);
	r->asked_about = false;
	pthread_cond_broadcast(&asked);
	return done;
}

// Takes the ranges whose event has happened out of the list, and returns a list of them.
static struct gp_range *take_done(bool wait)
{
	struct gp_range *done = NULL;
	pthread_mutex_lock(&gp_memory_lock);
	for (struct gp_range *r = first, *next; r; r = next) {
		bool is = !r->asked_about && ask(r, wait, false);
		next = r->next_freed;
		if (!is)
			continue;
		take_out(r);
		r->next_freed = done;
		done = r;
	}
	pthread_mutex_unlock(&gp_memory_lock);
	return done;
}

static bool end_done(bool wait)
{
	bool any = false;
	for (struct gp_range *r = take_done(wait), *next; r; r = next) {
		next = r->next_freed;
		if (!gp_range_end(r, false)) {
			any = true;
			continue;
		}
		pthread_mutex_lock(&gp_memory_lock);
		put_in(r);
		pthread_mutex_unlock(&gp_memory_lock);
	}
	return any;
}

// While a stream is captured nothing is asked, since that could end the capture. The thread that asks is not cancelled: others
// wait for the answer.
bool gp_freed_look(bool wait)
{
	if (!__atomic_load_n(&first, __ATOMIC_RELAXED) || gp_capturing())
		return false;
	int cancel = gp_cancel_off();
	bool any = end_done(wait);
	gp_cancel_on(cancel);
	return any;
}

// The context takes its events with it. So from here on no thread uses one of them, not even one that is asking right now.
void gp_freed_context_destroying(CUcontext context)
{
	int cancel = gp_cancel_off();
	pthread_mutex_lock(&gp_memory_lock);
	for (struct gp_range *r = first; r;) {
		if (!r->freed || r->freed_in != context) {
			r = r->next_freed;
			continue;
		}
		if (r->asked_about)
			pthread_cond_wait(&asked, &gp_memory_lock);
		else
			ask(r, true, true);
		r = first; // others may have gone meanwhile
	}
	pthread_mutex_unlock(&gp_memory_lock);
	gp_cancel_on(cancel);
}
