// blp_barrier.c - what can neither be stopped nor repeated waits until what is ahead of it is complete.
#define _GNU_SOURCE
#include "blp_domain.h"

enum { // cuda.h
	CU_STREAM_NON_BLOCKING = 1,
	CU_STREAM_CAPTURE_MODE_RELAXED = 2,
	CU_EVENT_DISABLE_TIMING = 2,
};

bool blp_wait_complete(struct gp_domain *d, struct blp_stream *s, uint64_t upto, CUevent event, bool own)
{
	CUstream handle = s->handle;
	CUcontext context = d->context;
	bool counted = false, pushed;

	while (s->handle == handle && s->done < upto && !d->given_up && d->context == context) {
		uint32_t epoch = d->epoch; // once: a stop begins without the lock
		if (epoch % 2) {
			blp_wait_resumed(d, 0);
			continue;
		}
		if (!counted && !own) {
			counted = true;
			gp_count(&d->gpu->stops.barriers, 1);
		}
		pthread_mutex_unlock(&d->lock);
		CUresult result = BLP_NOT_READY;
		if (blp_enter(context, &pushed)) {
			result = event ? blp_driver.cuEventSynchronize(event) : blp_driver.cuStreamSynchronize(handle);
			blp_leave(pushed);
		}
		pthread_mutex_lock(&d->lock);
		if (result)
			return false;
		if (event && !own && !blp_is_record(event, d, upto))
			return true;
		if (d->epoch == epoch && s->handle == handle)
			blp_complete_to(d, s, upto);
	}
	return true;
}

// Of a context and a GPU, NULL: of all. Without a record nothing is cut: who only wants to be behind it need not wait.
static void flush(CUcontext context, const struct gp_gpu *gpu, CUstream handle, bool all, uint32_t except,
		  const struct gp_domain *but)
{
	// A thread that captures elsewhere may not wait for a stream in the modes that forbid what is unsafe.
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	bool blocking = true, known = handle == GP_STREAM_LEGACY || handle == GP_STREAM_PER_THREAD, relaxed = false;
	unsigned flags;

	for (int i = 0; i < BLP_DOMAINS && blp_domains[i]; i++) {
		struct gp_domain *d = blp_domains[i];
		if (!d->context || (context && d->context != context) || (gpu && d->gpu != gpu) || d->head == d->tail || d->reasons & except || d == but)
			continue;
		if (!known && !all) {
			known = true;
			blocking = !blp_driver.cuStreamGetFlags(handle, &flags) && !(flags & CU_STREAM_NON_BLOCKING);
		}
		pthread_mutex_lock(&d->lock);
		bool cut = d->recorded || d->epoch % 2; // or may be, or is not launched yet
		for (uint32_t s = 0; (cut || except) && s < d->streams; s++) {
			if (!blp_pending(&d->stream_of[s]) || !(all || blp_related(&d->stream_of[s], handle, blocking)))
				continue;
			if (!relaxed && gp_capturing()) {
				gp_driver.cuThreadExchangeStreamCaptureMode(&mode);
				relaxed = true;
			}
			if (!blp_wait_complete(d, &d->stream_of[s], d->stream_of[s].last, NULL, false))
				break;
		}
		blp_advance(d);
		pthread_mutex_unlock(&d->lock);
	}
	if (relaxed)
		gp_driver.cuThreadExchangeStreamCaptureMode(&mode);
}

void gp_blp_flush(CUstream stream)
{
	CUcontext context = NULL;
	if (blp_inside || !blp_domains[0])
		return;
	// Default streams are those of the current context; of others, any context may ask.
	if ((stream == GP_STREAM_LEGACY || stream == GP_STREAM_PER_THREAD) &&
	    (gp_driver.cuCtxGetCurrent(&context) || !context))
		return;
	if (!context) {
		for (int i = 0; i < BLP_DOMAINS && blp_domains[i] && !context; i++) {
			struct gp_domain *d = blp_domains[i];
			if (!d->context || d->head == d->tail)
				continue;
			pthread_mutex_lock(&d->lock);
			if (blp_find_stream(d, stream, false))
				context = d->context;
			pthread_mutex_unlock(&d->lock);
		}
		if (!context && (gp_driver.cuCtxGetCurrent(&context) || !context))
			return;
	}
	flush(context, NULL, stream, false, 0, NULL);
}

void gp_blp_flush_all(CUcontext context)
{
	if (!blp_inside)
		flush(context, NULL, NULL, true, 0, NULL);
}

// What other GPUs run is not waited for: it may wait, as the kernels of a collective operation do, for what the calling
// thread launches later. All contexts of the GPU: green ones use the memory of the primary one.
void gp_blp_flush_owner(CUdeviceptr address)
{
	enum { CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9 }; // cuda.h
	int attribute = CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ordinal = -1;
	void *value = &ordinal;
	struct gp_context *current = gp_current_context();
	struct gp_gpu *gpu = current ? current->gpu : NULL; // where nobody knows: such as addresses that are only reserved

	if (blp_inside)
		return;
	if (!gp_driver.cuPointerGetAttributes || gp_driver.cuPointerGetAttributes(1, &attribute, &value, address))
		gpu = NULL;
	else
		for (int i = 0; i < GP_GPUS && gp_gpu[i].known; i++)
			if (gp_gpu[i].device == ordinal)
				gpu = &gp_gpu[i];
	flush(NULL, gpu, NULL, true, 0, NULL);
}

// Of streams that the rules of the legacy stream order with this one, those of other domains, which stop and go on at
// other times.
void blp_flush_others(struct gp_domain *d, CUcontext context, CUstream stream)
{
	for (int i = 0; i < BLP_DOMAINS && blp_domains[i]; i++) {
		unsigned flags;
		if (blp_domains[i] == d || blp_domains[i]->context != context || blp_domains[i]->head == blp_domains[i]->tail)
			continue;
		// Without its lock, which is held while it goes on, for most streams.
		if (stream == GP_STREAM_LEGACY || (!blp_driver.cuStreamGetFlags(stream, &flags) && !(flags & CU_STREAM_NON_BLOCKING)))
			flush(context, NULL, stream, false, 0, d);
		return;
	}
}

static void before_barrier(struct gp_submission *s)
{
	gp_blp_flush(s->stream);
	struct gp_domain *d = s->work == GP_GRAPH ? gp_blp_domain(s->stream) : NULL;
	if (d)
		gp_count(&d->gpu->stops.uncovered, 1);
}

bool blp_is_tainted(struct gp_domain *d, struct blp_stream *of)
{
	bool found = false;
	for (uint32_t i = 0; d->tainted && i < d->streams; i++) {
		struct blp_stream *s = &d->stream_of[i];
		if (!s->handle || !s->tainted || !blp_related(s, of->handle, of->blocking))
			continue;
		if (blp_driver.cuEventQuery(s->taint) == BLP_NOT_READY) {
			found = true;
			continue;
		}
		s->tainted = false;
		d->tainted--;
	}
	return found;
}

void blp_taint(struct gp_domain *d, struct blp_stream *s)
{
	if ((!s->taint && blp_driver.cuEventCreate(&s->taint, CU_EVENT_DISABLE_TIMING)) ||
	    blp_driver.cuEventRecord(s->taint, s->handle))
		return;
	d->tainted += !s->tainted;
	s->tainted = true;
}

// After an operation that may wait for the CPU. What follows it on the stream can't be stopped, since stopping
// waits for what is ahead, and the CPU may be waiting for the stop to end.
void gp_blp_waits_for_cpu(struct gp_submission *submission)
{
	CUcontext context = NULL;
	if (gp_driver.cuCtxGetCurrent(&context) || !context)
		return;
	struct gp_domain *d = blp_domain_of(context, submission->stream);
	if (!d)
		return;
	pthread_mutex_lock(&d->lock);
	struct blp_stream *s = d->context == context ? blp_find_stream(d, submission->stream, true) : NULL;
	if (s)
		blp_taint(d, s);
	pthread_mutex_unlock(&d->lock);
}

// So that while anything is captured the watcher has nothing to stop. A stream that the program stopped itself is
// not what it captures.
void gp_blp_capture_beginning(void)
{
	if (!blp_inside)
		flush(NULL, NULL, NULL, true, GP_BLP_ASKED | GP_BLP_HELD, NULL);
}

void gp_blp_hooks(struct gp_hooks *hooks)
{
	if (!blp_driver.cuMemAlloc)
		return;
	hooks->launch = gp_blp_launch;
	hooks->launch_graph = gp_blp_launch_graph;
	hooks->graph_changed = gp_blp_graph_changed;
	hooks->before_barrier = before_barrier;
	hooks->before_record = gp_blp_before_record;
	hooks->after_record = gp_blp_after_record;
	hooks->before_stream_wait = gp_blp_before_stream_wait;
	hooks->after_stream_wait = gp_blp_after_stream_wait;
	hooks->answer = gp_blp_answer;
	hooks->event_destroying = gp_blp_event_destroying;
	hooks->event_shared = gp_blp_event_shared;
	hooks->complete = gp_blp_complete;
}
