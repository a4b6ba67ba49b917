// domain.c - domains of block-level preemption, as contexts come and go.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"
#include "preempt/code/code.h"
#include "preempt/objects/objects.h"

#include <stdlib.h>
#include <string.h>

struct gp_domain *_Atomic blp_domains[BLP_DOMAINS];
_Atomic CUresult blp_error, blp_late;
_Atomic uint32_t gp_blp_takes; // beside these: each launch reads them
_Atomic bool blp_retired;
__thread bool blp_inside __attribute__((tls_model("initial-exec")));

_Atomic uint32_t blp_specials;
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER; // of domains

// Memory of a domain that ended with its stream, or for which the driver refused another part. To free it would wait for all of the
// context's work, with the domain's locks, as the program's call does not. So the context's next domain gets it, or it is freed with the
// context.
enum { USERS = 5 + BLP_WIDTHS };
struct blp_memory {
	struct blp_memory *next;
	CUcontext context;
	CUevent behind[USERS]; // the end of each stream's work that may use it
	int count;             // of these; -1: nothing tells when that is over, so it is freed with the context
	CUdeviceptr device;
	struct gpreempt_record *image, *graph_image;
};
static struct blp_memory *kept;
static pthread_mutex_t keeping = PTHREAD_MUTEX_INITIALIZER; // of kept; below gp_domain.control

bool gp_blp_started;
_Atomic bool blp_loads_lazily;

void gp_blp_start(void)
{
	gp_code_loading = gp_blp_loading;
	blp_count_channels();
	if (blp_always_full)
		blp_note_full();
	gp_blp_started = true;
}

bool blp_can_stop(struct gp_domain *d) { return (d->scope || d->gpu->higher) && !blp_retired; }

// Of a stream that does not belong to the domain of its context; else NULL.
static struct gp_domain *special_of(CUcontext context, CUstream stream)
{
	const struct gp_object *o = gp_object_find(GP_STREAM, stream, context);
	return o ? o->stream.domain : NULL;
}

static __attribute__((noinline)) struct gp_domain *domain_beside_specials(struct gp_context *c, CUcontext context,
									  CUstream stream)
{
	struct gp_domain *own = special_of(context, stream);
	return own || !c ? own : c->domain;
}

static struct gp_domain *domain_in(struct gp_context *c, CUcontext context, CUstream stream)
{
	if (blp_specials) // what this takes is off the way of launches elsewhere
		return domain_beside_specials(c, context, stream);
	return c ? c->domain : NULL;
}

struct gp_domain *blp_domain_of(CUcontext context, CUstream stream)
{
	return domain_in(gp_find_context(context), context, stream);
}

struct gp_domain *blp_domain_for(const struct gp_operation *o) { return domain_in(o->context, o->handle, o->stream); }

struct gp_domain *gp_blp_domain(CUstream stream)
{
	CUcontext context = NULL;
	if (gp_driver.cuCtxGetCurrent(&context) || !context)
		return NULL;
	return blp_domain_of(context, stream ? stream : GP_STREAM_LEGACY);
}

static void destroy_events(const struct blp_memory *m)
{
	for (int i = 0; i < m->count; i++)
		gp_driver.cuEventDestroy(m->behind[i]);
}

static void free_memory(CUdeviceptr device, struct gpreempt_record *image, struct gpreempt_record *graph_image)
{
	if (device)
		gp_driver.cuMemFree(device);
	if (image)
		gp_driver.cuMemFreeHost(image);
	if (graph_image)
		gp_driver.cuMemFreeHost(graph_image);
}

// In the context, which is current. An event for each stream: if one waited for another, its channel would.
static void record_behind(struct blp_memory *m, CUstream stream)
{
	if (m->count < 0)
		return;
	if (m->count < USERS && !gp_driver.cuEventCreate(&m->behind[m->count], CU_EVENT_DISABLE_TIMING)) {
		CUevent event = m->behind[m->count++];
		if (!gp_driver.cuEventRecord(event, stream))
			return;
	}
	destroy_events(m);
	m->count = -1;
}

struct blp_memory *blp_keep_begin(struct gp_domain *d, uint64_t generation, CUcontext context, CUstream stream)
{
	struct blp_memory *m = NULL;
	bool pushed;
	pthread_mutex_lock(&d->lock); // the place's next domain has its number before it has these
	if (d->generation == generation)
		m = __atomic_exchange_n((struct blp_memory **)&d->leaves, NULL, __ATOMIC_ACQ_REL);
	pthread_mutex_unlock(&d->lock);
	if (!m)
		return NULL;
	m->count = -1;
	int mode = gp_relax_captures();                               // another thread may capture
	if (!gp_is_captured(stream) && blp_enter(context, &pushed)) { // a record would become part of the capture
		m->count = 0;
		record_behind(m, stream);
		blp_leave(pushed);
	}
	gp_unrelax_captures(mode);
	return m;
}

void blp_keep_memory(struct gp_domain *d, struct blp_memory *m)
{
	if (d->stream)
		record_behind(m, d->stream);
	if (d->zeros)
		record_behind(m, d->zeros);
	for (int i = 0; i < BLP_STREAMS; i++)
		if (d->beside[i].stream)
			record_behind(m, d->beside[i].stream);
	for (int i = 0; i < BLP_WIDTHS; i++)
		if (d->narrow.queue[i].sms)
			record_behind(m, d->narrow.queue[i].stream);
	m->device = d->memory;
	m->image = d->image;
	m->graph_image = d->graph_image;
	d->memory = 0;
	d->image = d->graph_image = NULL;
	pthread_mutex_lock(&keeping);
	m->next = kept;
	kept = m;
	pthread_mutex_unlock(&keeping);
}

static bool is_unused(const struct blp_memory *m)
{
	for (int i = 0; i < m->count; i++)
		if (blp_query(m->behind[i]))
			return false;
	return m->count >= 0;
}

// Takes kept memory of a context: any, or unused: one that no work uses any more. NULL: there is none.
static struct blp_memory *take_kept(CUcontext context, bool unused)
{
	pthread_mutex_lock(&keeping);
	struct blp_memory **at = &kept, *m;
	while ((m = *at) && (m->context != context || (unused && !is_unused(m))))
		at = &m->next;
	if (m)
		*at = m->next;
	pthread_mutex_unlock(&keeping);
	return m;
}

void blp_free_kept(CUcontext context)
{
	struct blp_memory *m = take_kept(context, false), *next;
	bool pushed = false, entered = m && blp_enter(context, &pushed); // else it is gone with the context
	for (; m; m = next) {
		if (entered) {
			destroy_events(m);
			free_memory(m->device, m->image, m->graph_image);
		}
		free(m);
		next = take_kept(context, false);
	}
	blp_leave(pushed);
}

// Memory that a domain of the context has left.
static void reuse(struct gp_domain *d, CUcontext context)
{
	struct blp_memory *m = take_kept(context, true);
	if (!m)
		return;
	destroy_events(m);
	d->memory = m->device;
	d->image = m->image;
	d->graph_image = m->graph_image;
	free(m);
}

void blp_release(struct gp_domain *d)
{
	for (int i = 0; i < BLP_MARKERS; i++)
		if (d->marker[i].event)
			gp_driver.cuEventDestroy(d->marker[i].event);
	for (uint32_t i = 0; i < BLP_STREAMS; i++) {
		if (d->stream_of[i].host_block)
			gp_driver.cuEventDestroy(d->stream_of[i].host_block);
		if (d->stream_of[i].join)
			gp_driver.cuEventDestroy(d->stream_of[i].join);
	}
	for (int i = 0; i < BLP_REGIONS; i++)
		if (d->zeroed[i])
			gp_driver.cuEventDestroy(d->zeroed[i]);
	for (int i = 0; i < BLP_LOG; i++)
		if (d->order[i])
			gp_driver.cuEventDestroy(d->order[i]);
	for (int i = 0; i < BLP_STREAMS; i++) {
		if (d->beside[i].stream)
			gp_driver.cuStreamDestroy(d->beside[i].stream);
		if (d->beside[i].done)
			gp_driver.cuEventDestroy(d->beside[i].done);
		if (d->beside[i].moved)
			gp_driver.cuEventDestroy(d->beside[i].moved);
	}
	blp_release_narrow(d);
	if (d->done)
		gp_driver.cuEventDestroy(d->done);
	if (d->stream)
		gp_driver.cuStreamDestroy(d->stream);
	if (d->zeros)
		gp_driver.cuStreamDestroy(d->zeros);
	free_memory(d->memory, d->image, d->graph_image);
}

// Makes the domain's streams, events and memory, in the context, which is current.
static CUresult equip(struct gp_domain *d, CUcontext context, const char **call)
{
	int least = 0, greatest = 0;

	// Of the highest priority: what is submitted there comes first. Which channels streams use is the driver's affair (docs/limits.md).
	GP_TRY(call, cuCtxGetStreamPriorityRange, &least, &greatest);
	GP_TRY(call, cuStreamCreateWithPriority, &d->stream, CU_STREAM_NON_BLOCKING, greatest);
	GP_TRY(call, cuStreamCreateWithPriority, &d->zeros, CU_STREAM_NON_BLOCKING,
	       least - greatest > 2 ? greatest + 1 : greatest); // behind d->stream
	reuse(d, context);
	if (!d->memory)
		GP_TRY(call, cuMemAlloc, &d->memory, 2 * GPREEMPT_ARENA_BYTES + BLP_SPARES * sizeof *d->image);
	if (!d->image) {
		void *pinned = NULL;
		GP_TRY(call, cuMemHostAlloc, &pinned,
		       (BLP_IMAGE + BLP_STREAMS) * sizeof *d->image + BLP_LOG * sizeof *d->frozen + BLP_ZEROS,
		       CU_MEMHOSTALLOC_PORTABLE);
		d->image = pinned;
	}
	d->arena = (d->memory + GPREEMPT_ARENA_BYTES - 1) & ~(CUdeviceptr)(GPREEMPT_ARENA_BYTES - 1);
	d->spares = d->arena + GPREEMPT_ARENA_BYTES;
	d->staged = d->image + BLP_IMAGE;
	d->frozen = (uint32_t *)(d->staged + BLP_STREAMS);
	d->zero = (char *)(d->frozen + BLP_LOG);
	memset(d->zero, 0, BLP_ZEROS);
	*call = "cuMemcpyAsync";
	CUresult zeroed = blp_zero(d, d->arena, GPREEMPT_ARENA_BYTES + sizeof *d->image);
	if (zeroed)
		return zeroed;
	for (int i = 0; i < BLP_LOG; i++)
		d->frozen[i] = GPREEMPT_FROZEN;
	GP_TRY(call, cuEventCreate, &d->done, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC);
	for (int i = 0; i < BLP_REGIONS; i++)
		GP_TRY(call, cuEventCreate, &d->zeroed[i], CU_EVENT_DISABLE_TIMING);
	GP_TRY(call, cuStreamSynchronize, d->zeros);
	return 0;
}

static struct gp_domain *allocate(void)
{
	struct gp_domain *d = calloc(1, sizeof *d);
	if (!d)
		return NULL;
	d->log = calloc(BLP_LOG, sizeof *d->log);
	d->bytes = malloc(BLP_BYTES);
	if (!d->log || !d->bytes) {
		free(d->log);
		free(d->bytes);
		free(d);
		return NULL;
	}
	pthread_condattr_t monotonic;
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&d->resumed, &monotonic);
	pthread_condattr_destroy(&monotonic);
	pthread_cond_init(&d->driver_left, NULL);
	pthread_mutex_init(&d->control, NULL);
	pthread_mutex_init(&d->lock, NULL);
	return d;
}

// A place, never given back: readers hold no lock while they look at a domain.
static struct gp_domain *place(void)
{
	for (int i = 0; i < BLP_DOMAINS; i++) {
		if (!blp_domains[i])
			return blp_domains[i] = allocate();
		if (!blp_domains[i]->context)
			return blp_domains[i];
	}
	return NULL;
}

// A domain in the context, which is current or can be. making is held.
static CUresult make(struct gp_gpu *g, CUcontext context, enum blp_scope scope, const char **call, struct gp_domain **made)
{
	bool pushed;
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED; // a capture in global mode forbids allocation to other threads too
	*call = "calloc";
	struct gp_domain *d = place();
	struct blp_memory *leaves = d ? calloc(1, sizeof *leaves) : NULL;
	if (!leaves)
		return CUDA_ERROR_OUT_OF_MEMORY;
	leaves->context = context;
	pthread_mutex_lock(&d->control);
	pthread_mutex_lock(&d->lock);
	// Resets the place's fields, but for those that make it a place.
	static uint64_t number; // under making
	blp_loads_lazily = gp_driver_loads_lazily();
	d->gpu = g;
	d->primary_context = gp_primary_context(context);
	d->scope = scope;
	d->before = NULL;
	d->generation = ++number;
	d->reasons = 0;
	d->given_up = 0;
	d->drains = 0;
	memset(d->drain, 0, sizeof d->drain);
	d->error = 0;
	d->head = d->tail = 0;
	d->bytes_head = 0;
	d->oldest_record = d->next_record = BLP_APART;
	d->streams = d->busy = d->host_blocked = d->uncuttable = d->recorded = 0;
	d->passed = false;
	d->driver_waits = 0;
	d->leaves = NULL;
	memset(&d->memory, 0, (char *)&d->log - (char *)&d->memory);
	memset(d->marker, 0, sizeof d->marker);
	memset(d->stream_of, 0, sizeof d->stream_of);
	memset(&d->unplaced, 0, sizeof d->unplaced);
	for (int i = 0; i < BLP_MARKERS; i++)
		d->marker[i].next = i + 1 < BLP_MARKERS ? i + 1 : -1;
	for (int i = 0; i < BLP_STREAMS; i++)
		d->beside[i].left = -1;
	d->free_marker = 0;
	pthread_mutex_unlock(&d->lock);
	*call = "cuCtxPushCurrent";
	CUresult result = blp_enter(context, &pushed) ? 0 : CUDA_ERROR_NOT_FOUND;
	if (!result) {
		gp_driver.cuThreadExchangeStreamCaptureMode(&mode);
		result = equip(d, context, call);
		if (result) {
			blp_keep_memory(d, leaves);
			blp_release(d);
		} else {
			d->leaves = leaves;
			blp_become(d, BLP_RUNNING); // before others find the domain
			d->context = context;
		}
		gp_driver.cuThreadExchangeStreamCaptureMode(&mode);
		blp_leave(pushed);
	} else {
		free(leaves);
	}
	pthread_mutex_unlock(&d->control);
	*made = d;
	return result;
}

CUresult gp_blp_prepare(struct gp_context *c, const char **call)
{
	struct gp_domain *d = NULL;
	CUcontext handle = c->handle, popped;

	if (!handle || c->domain || !gp_blp_wanted() || !gp_context_pin(c, handle))
		return 0;
	if (c->ending) {
		gp_context_unpin(c);
		return 0;
	}
	*call = "cuCtxPushCurrent";
	CUresult result = gp_driver.cuCtxPushCurrent(handle); // 709: not initialised yet
	if (!result) {
		pthread_mutex_lock(&making);
		result = make(c->gpu, handle, BLP_OF_CONTEXT, call, &d);
		pthread_mutex_unlock(&making);
		gp_driver.cuCtxPopCurrent(&popped);
	}
	if (!result)
		c->domain = d;
	gp_context_unpin(c);
	return result;
}

// False: there is no place for the stream's object; or, with a domain, the stream was destroyed since it got one.
static bool set_special(CUcontext context, CUstream stream, struct gp_domain *d)
{
	gp_objects_lock(GP_STREAM);
	struct gp_object *o = d ? gp_object_find(GP_STREAM, stream, context) : gp_object_enter(GP_STREAM, stream, context);
	if (o)
		o->stream.domain = d;
	gp_objects_unlock(GP_STREAM);
	return o;
}

CUresult blp_make_separate(struct gp_context *c, CUcontext context, CUstream stream)
{
	const char *call;
	struct gp_domain *d = NULL;
	CUresult result = 0;
	unsigned flags = 0;

	pthread_mutex_lock(&making);
	if (special_of(context, stream))
		goto out;
	if (!set_special(context, stream, NULL)) {
		result = CUDA_ERROR_NOT_SUPPORTED;
		goto out;
	}
	if (!c->domain) { // work on its way on other streams of the context would not be seen
		result = CUDA_ERROR_INVALID_CONTEXT;
		goto out;
	}
	bool blocking = stream == GP_STREAM_LEGACY || gp_driver.cuStreamGetFlags(stream, &flags) ||
			!(flags & CU_STREAM_NON_BLOCKING);
	if ((result = make(c->gpu, context, blocking ? BLP_OF_BLOCKING_STREAM : BLP_OF_STREAM, &call, &d)))
		goto out;
	d->before = c->domain;
	if (set_special(context, stream, d))
		blp_specials++;
	else // the stream was destroyed meanwhile: the domain ends with the context
		result = CUDA_ERROR_NOT_SUPPORTED;
out:
	pthread_mutex_unlock(&making);
	return result;
}

bool blp_is_special(CUcontext context, CUstream stream) { return special_of(context, stream); }

void blp_forget_specials(CUcontext context)
{
	gp_objects_lock(GP_STREAM);
	for (struct gp_object *o = NULL; (o = gp_objects_next(GP_STREAM, o));)
		if (o->context == context)
			o->stream.domain = NULL;
	gp_objects_unlock(GP_STREAM);
}

// Reads the number while the stream has the domain: a thread that ends its context forgets the stream before the domain ends.
struct gp_domain *blp_forget_special(CUstream stream, CUcontext *context, uint64_t *generation)
{
	struct gp_domain *d = NULL;
	gp_objects_lock(GP_STREAM);
	for (struct gp_object *o = NULL; !d && (o = gp_objects_of(GP_STREAM, stream, o));) {
		if (!(d = o->stream.domain))
			continue;
		o->stream.domain = NULL;
		*context = o->context;
		*generation = d->generation;
	}
	gp_objects_unlock(GP_STREAM);
	return d;
}
