// api.c - what a program may ask for its own streams: ../api/gpreempt.h.
//
// An enabled stream has a domain of its own. To restore it takes as long as to launch again what was cut. A caller that does
// not want to wait leaves that to a thread, which is made with the first enabled stream.
#define _GNU_SOURCE
#include "preempt/preempt.h"
#include "preempt/blp/blp.h"
#include "preempt/code/code.h"
#include "preempt/gpu/gpu.h"
#define GPREEMPT_WEAK // here they are defined
#include "api/gpreempt.h"

#include <semaphore.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))

enum {
	STREAMS = 64,
};

static struct enabled {
	pthread_mutex_t lock;     // held to change what follows; zeros are an initialised mutex
	_Atomic(CUstream) stream; // NULL: free
	_Atomic(CUcontext) context;
	struct gp_domain *domain;
	_Atomic int level;
	_Atomic bool stopped;
	_Atomic bool going_on;                              // the thread is to restore it
	_Atomic uint64_t preemptions, stopped_ns, since_ns; // since_ns: 0 while it is not stopped
} enabled[STREAMS];
static pthread_mutex_t table = PTHREAD_MUTEX_INITIALIZER; // held to take or free a place
static _Atomic bool ending;                               // the process ends: nothing is stopped any more
static sem_t work;
static pid_t process; // that has the thread

static CUcontext current(void)
{
	CUcontext context = NULL;
	return gp_driver.cuCtxGetCurrent && !gp_driver.cuCtxGetCurrent(&context) ? context : NULL;
}

static CUstream named(struct CUstream_st *stream) { return stream ? stream : GP_STREAM_LEGACY; }

// Only the legacy stream has the same handle in every context.
static struct enabled *find(CUcontext context, CUstream stream)
{
	for (int i = 0; i < STREAMS; i++)
		if (enabled[i].stream == stream && enabled[i].context == context)
			return &enabled[i];
	return NULL;
}

// Locks the entry of a stream. NULL: there is none; result says why.
static struct enabled *take(struct CUstream_st *stream, int *result)
{
	CUcontext context = current();
	struct enabled *e;

	*result = !gp_driver.cuCtxGetCurrent ? GPREEMPT_ERROR_OFF :
		  !context                   ? GPREEMPT_ERROR_INVALID :
					       GPREEMPT_ERROR_NOT_ENABLED;
	if (!context || !(e = find(context, named(stream))))
		return NULL;
	pthread_mutex_lock(&e->lock);
	if (e->stream == named(stream) && e->context == context)
		return e;
	pthread_mutex_unlock(&e->lock);
	return NULL;
}

// Restores a stream. Under e->lock, as is stop.
static void let_go(struct enabled *e)
{
	e->going_on = false;
	if (!e->stopped)
		return;
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED; // a capture of the program must not be broken
	gp_driver.cuThreadExchangeStreamCaptureMode(&mode);
	gp_blp_resume(e->domain, GP_BLP_ASKED | GP_BLP_HELD);
	gp_driver.cuThreadExchangeStreamCaptureMode(&mode);
	e->stopped_ns += gp_now_ns() - e->since_ns;
	e->since_ns = 0;
	e->stopped = false;
}

static void stop(struct enabled *e)
{
	if (e->going_on) // launches since the last restore do not wait for another one
		let_go(e);
	if (e->stopped || ending)
		return;
	e->since_ns = gp_now_ns();
	e->preemptions++;
	e->stopped = true;
	gp_blp_stop(e->domain, e->level == GPREEMPT_LEVEL_QUEUE ? GP_BLP_HELD : GP_BLP_ASKED);
}

static void *resume_streams(void *unused)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED; // a capture of the program must not be broken
	gp_driver.cuThreadExchangeStreamCaptureMode(&mode);
	for (;;) {
		while (sem_wait(&work))
			;
		for (int i = 0; i < STREAMS; i++) {
			struct enabled *e = &enabled[i];
			if (!e->going_on)
				continue;
			pthread_mutex_lock(&e->lock);
			if (e->going_on && e->stream)
				let_go(e);
			pthread_mutex_unlock(&e->lock);
		}
	}
	return unused;
}

// At exit, unloading a module or a context waits for its streams: they go on first. Not in a forked child, which has none, and where a
// lock may be held for ever.
static void end(void)
{
	if (getpid() != process)
		return;
	ending = true;
	for (int i = 0; i < STREAMS; i++) {
		struct enabled *e = &enabled[i];
		if (!e->stopped)
			continue;
		pthread_mutex_lock(&e->lock);
		if (e->stream)
			let_go(e);
		pthread_mutex_unlock(&e->lock);
	}
}

// Called once.
static bool start_thread(void)
{
	static bool started;
	pthread_t thread;

	if (started)
		return true;
	process = getpid();
	if (sem_init(&work, 0, 0) || atexit(end)) // run before what was registered earlier
		return false;
	started = gp_thread_start(&thread, resume_streams, NULL) && !pthread_detach(thread);
	return started;
}

static bool capturing(CUstream stream)
{
	int status = CU_STREAM_CAPTURE_STATUS_NONE;
	// A query of the legacy stream would invalidate a capture on another stream.
	if (stream == GP_STREAM_LEGACY)
		return gp_capturing();
	return gp_driver.cuStreamIsCapturing && !gp_driver.cuStreamIsCapturing(stream, &status) && status;
}

// Asks the driver, by a call that changes nothing.
static bool is_stream(CUstream stream)
{
	int priority;
	return stream == GP_STREAM_LEGACY ||
	       (gp_driver.cuStreamGetPriority && !gp_driver.cuStreamGetPriority(stream, &priority));
}

PUBLIC int gpreempt_stream_enable(struct CUstream_st *given, enum gpreempt_level level)
{
	CUstream stream = named(given);
	int result;

	if (!gp_driver.cuCtxGetCurrent || !gp_blp_wanted())
		return GPREEMPT_ERROR_OFF;
	if ((level != GPREEMPT_LEVEL_QUEUE && level != GPREEMPT_LEVEL_BLOCK) || !current() || stream == GP_STREAM_PER_THREAD)
		return GPREEMPT_ERROR_INVALID;
	struct enabled *e = take(given, &result);
	if (e) {
		result = e->stopped && e->level != (int)level ? GPREEMPT_ERROR_INVALID : GPREEMPT_SUCCESS;
		if (!result)
			e->level = level;
		pthread_mutex_unlock(&e->lock);
		return result;
	}
	if (capturing(stream))
		return GPREEMPT_ERROR_CAPTURING;
	if (!is_stream(stream))
		return GPREEMPT_ERROR_INVALID;
	pthread_mutex_lock(&table);
	int place = 0;
	while (place < STREAMS && enabled[place].stream)
		place++;
	if (find(current(), stream)) { // by another thread
		result = GPREEMPT_SUCCESS;
	} else if (place == STREAMS || !start_thread()) {
		result = GPREEMPT_ERROR_LIMIT;
	} else {
		e = &enabled[place];
		CUresult refused = gp_blp_separate(stream);
		// CUDA_ERROR_NOT_SUPPORTED: there are too many.
		result = !refused ? GPREEMPT_SUCCESS :
			 refused == CUDA_ERROR_OUT_OF_MEMORY || refused == CUDA_ERROR_NOT_SUPPORTED ?
				    GPREEMPT_ERROR_LIMIT :
				    GPREEMPT_ERROR_DRIVER;
		struct gp_domain *domain = refused ? NULL : gp_blp_domain(stream);
		if (!refused && !domain)
			result = GPREEMPT_ERROR_DRIVER;
		if (!result) {
			pthread_mutex_lock(&e->lock);
			e->domain = domain;
			e->level = level;
			e->stopped = e->going_on = false;
			e->preemptions = e->stopped_ns = e->since_ns = 0;
			e->context = current();
			e->stream = stream;
			pthread_mutex_unlock(&e->lock);
		}
	}
	pthread_mutex_unlock(&table);
	return result;
}

PUBLIC int gpreempt_stream_disable(struct CUstream_st *stream)
{
	int result;
	struct enabled *e = take(stream, &result);
	if (!e)
		return result;
	let_go(e);
	e->stream = NULL;
	pthread_mutex_unlock(&e->lock);
	return GPREEMPT_SUCCESS;
}

PUBLIC int gpreempt_stream_preempt(struct CUstream_st *stream, int wait)
{
	int result;
	struct enabled *e = take(stream, &result);
	if (!e)
		return result;
	struct gp_domain *domain = e->domain;
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED; // a capture of the program must not be broken
	gp_driver.cuThreadExchangeStreamCaptureMode(&mode);
	stop(e);
	pthread_mutex_unlock(&e->lock);
	if (wait)
		gp_blp_quiesce(domain);
	gp_driver.cuThreadExchangeStreamCaptureMode(&mode);
	return gp_blp_given_up(domain) ? GPREEMPT_ERROR_DRIVER : GPREEMPT_SUCCESS;
}

PUBLIC int gpreempt_stream_restore(struct CUstream_st *stream, int wait)
{
	int result;
	struct enabled *e = take(stream, &result);
	if (!e)
		return result;
	result = gp_blp_given_up(e->domain) ? GPREEMPT_ERROR_DRIVER : GPREEMPT_SUCCESS;
	if (wait)
		let_go(e);
	else if (e->stopped)
		e->going_on = true;
	bool left = e->going_on;
	pthread_mutex_unlock(&e->lock);
	if (left)
		sem_post(&work);
	return result;
}

PUBLIC int gpreempt_stream_set_priority(struct CUstream_st *stream, int priority)
{
	union gp_stream_attribute value = {.priority = priority};
	int least = 0, greatest = 0;

	if (!gp_driver.cuCtxGetCurrent)
		return GPREEMPT_ERROR_OFF;
	if (!gp_driver.cuStreamSetAttribute || !gp_driver.cuCtxGetStreamPriorityRange)
		return GPREEMPT_ERROR_UNSUPPORTED;
	if (!current() || named(stream) == GP_STREAM_PER_THREAD ||
	    gp_driver.cuCtxGetStreamPriorityRange(&least, &greatest) || priority > least || priority < greatest)
		return GPREEMPT_ERROR_INVALID;
	switch (gp_driver.cuStreamSetAttribute(stream, CU_STREAM_ATTRIBUTE_PRIORITY, &value)) {
	case CUDA_SUCCESS:
		gp_stream_has_priority(stream); // the program hears of this one
		return GPREEMPT_SUCCESS;
	case CUDA_ERROR_INVALID_HANDLE: return GPREEMPT_ERROR_INVALID;
	case CUDA_ERROR_NOT_SUPPORTED:
	case CUDA_ERROR_INVALID_VALUE: return GPREEMPT_ERROR_UNSUPPORTED;
	}
	return GPREEMPT_ERROR_DRIVER;
}

PUBLIC int gpreempt_stream_set_width(struct CUstream_st *stream, int sms)
{
	enum { PARTITION = 8 }; // SMs, of GPUs of compute capability 9.0 and above
	static const uint64_t BUSY_NS = 2ull * 1000 * 1000 * 1000;
	int result, total = 0;
	CUdevice device;
	struct enabled *e;

	if (!gp_driver.cuCtxGetCurrent)
		return GPREEMPT_ERROR_OFF;
	if (sms < 0 || !current() || gp_driver.cuCtxGetDevice(&device) ||
	    gp_driver.cuDeviceGetAttribute(&total, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) || sms > total)
		return GPREEMPT_ERROR_INVALID;
	if (sms == total)
		sms--;
	CUresult refused = CUDA_ERROR_NOT_READY;
	for (uint64_t until = gp_now_ns() + BUSY_NS; refused == CUDA_ERROR_NOT_READY && gp_now_ns() < until;) {
		if (!(e = take(stream, &result)))
			return result;
		int mode = CU_STREAM_CAPTURE_MODE_RELAXED; // a capture of the program must not be broken
		gp_driver.cuThreadExchangeStreamCaptureMode(&mode);
		refused = gp_blp_set_width(e->domain, (uint32_t)(sms / PARTITION * PARTITION));
		gp_driver.cuThreadExchangeStreamCaptureMode(&mode);
		pthread_mutex_unlock(&e->lock); // what the context does may wait for a restore, which needs it
		if (refused == CUDA_ERROR_NOT_READY)
			gp_nap(100 * 1000);
	}
	return !refused                            ? GPREEMPT_SUCCESS :
	       refused == CUDA_ERROR_NOT_SUPPORTED ? GPREEMPT_ERROR_UNSUPPORTED :
	       refused == CUDA_ERROR_OUT_OF_MEMORY ? GPREEMPT_ERROR_LIMIT :
	       refused == CUDA_ERROR_NOT_READY     ? GPREEMPT_ERROR_BUSY :
						     GPREEMPT_ERROR_DRIVER;
}

PUBLIC int gpreempt_stream_query(struct CUstream_st *stream, struct gpreempt_stream_state *out)
{
	CUcontext context = current();
	struct gpreempt_stream_state state = {.size = sizeof state};

	if (!gp_driver.cuCtxGetCurrent)
		return GPREEMPT_ERROR_OFF;
	if (!out || out->size < offsetof(struct gpreempt_stream_state, level) || !context)
		return GPREEMPT_ERROR_INVALID;
	struct enabled *e = find(context, named(stream)); // without its lock, which is held while a stream is restored
	if (e) {
		uint64_t since = e->since_ns;
		state.level = e->level;
		state.preempted = e->stopped && !e->going_on;
		state.preemptions = e->preemptions;
		state.preempted_ns = e->stopped_ns + (since ? gp_now_ns() - since : 0);
	}
	size_t size = out->size; // the program may have been built with another version of the header
	if (size < sizeof state)
		state.size = size;
	memcpy(out, &state, state.size);
	return GPREEMPT_SUCCESS;
}

// A stream, or all streams of a context, end. Stopped ones go on first: the driver would wait for them.
static void forget(CUcontext context, CUstream stream)
{
	for (int i = 0; i < STREAMS; i++) {
		struct enabled *e = &enabled[i];
		if (!e->stream || (stream ? e->stream != stream : e->context != context))
			continue;
		pthread_mutex_lock(&e->lock);
		if (e->stream && (stream ? e->stream == stream : e->context == context)) {
			let_go(e);
			e->stream = NULL;
		}
		pthread_mutex_unlock(&e->lock);
	}
}

void gp_streams_forget(CUstream stream)
{
	if (stream && stream != GP_STREAM_LEGACY && stream != GP_STREAM_PER_THREAD)
		forget(NULL, stream);
}

void gp_streams_forget_context(CUcontext context) { forget(context, NULL); }
