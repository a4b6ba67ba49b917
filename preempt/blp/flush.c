// flush.c - waits for entries of the log: a barrier waits for those that it comes behind, a thread of the program for a stream, or for
// all.
//
// A thread of the program waits for what was there when its call began. Work that another thread launches meanwhile may wait for this
// one. So the driver is asked first: it knows what it has. But it takes launches that are cut meanwhile for complete, and does not have
// what was only logged. Such entries are noted before, each with a marker behind it, and waited for afterwards.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"

// The entries that a flush waits for, in the domains of a context and a GPU (NULL: of all). These are all; those before new work of a
// stream; or those that a thread waits for that waits for the stream (waits). All of a primary context includes its green contexts.
struct scope {
	CUcontext context;
	const struct gp_gpu *gpu;
	CUstream stream;
	bool all, waits;
	bool bounded; // A patience bounds the wait: for a call that only has to come behind, or that takes unknown things.
	CUcontext elsewhere; // All contexts but this one, and those that are waited for with it.
	const struct gp_domain *but;
	CUcontext late; // of the operation that waits; NULL: it is another call
};

static bool concerns(const struct scope *f, const struct gp_domain *d)
{
	return d->context && (!f->context || d->context == f->context || (f->all && d->primary_context == f->context)) &&
	       d->primary_context != f->elsewhere && (!f->gpu || d->gpu == f->gpu) && d->head != d->tail && d != f->but;
}

// The program may wait for a blocking stream while the legacy stream waits for the program: it waits only for the stream's own work
// behind that. The legacy stream itself is complete when all blocking streams are.
static bool is_in(const struct scope *f, const struct blp_stream *s, CUstream stream, bool blocking)
{
	return f->all || (f->waits && stream != GP_STREAM_LEGACY ? s->handle == stream : blp_related(s, stream, blocking));
}

// Whether a marker tells when a stream's entries are over. One that stands for a thread's own is marked here.
static bool is_marked(struct gp_domain *d, struct blp_stream *s)
{
	bool pushed;
	if (s->thread && blp_enter(d->context, &pushed)) {
		blp_has_ended(d, s, s->last);
		blp_leave(pushed);
	}
	return !blp_pending(s) || blp_marker_behind(d, s->first_marker, s->last) >= 0 ||
	       (s->thread && blp_driver_waits(d)); // a later question tells
}

bool blp_runs_beside(struct gp_domain *d, struct blp_stream *s)
{
	CUevent done = d->beside[s - d->stream_of].done;
	return d->context && (s->uncuttable || d->given_up) &&
	       ((done && blp_query(done) == CUDA_ERROR_NOT_READY) ||
		(s->thread && (blp_still_uncuttable(d, s) || (s->host_blocked && !blp_host_block_is_over(d, s)))));
}

static void wait_beside(struct gp_domain *d, struct blp_stream *s)
{
	CUstream handle = s->handle;
	CUcontext context = d->context;
	while (s->handle == handle && d->context == context && blp_runs_beside(d, s)) {
		pthread_mutex_unlock(&d->lock);
		gp_nap(20 * 1000);
		pthread_mutex_lock(&d->lock);
	}
}

// Calls a function for each domain that something in it may be waited for, with the domain's lock. stream: as the domain knows it.
static void visit(const struct scope *f,
		  void (*act)(const struct scope *, struct gp_domain *, CUstream stream, bool blocking))
{
	bool blocking = true, known = f->all || f->stream == GP_STREAM_LEGACY || f->stream == GP_STREAM_PER_THREAD;
	unsigned flags;

	for (int i = 0; i < BLP_DOMAINS && blp_domains[i]; i++) {
		struct gp_domain *d = blp_domains[i];
		CUstream stream = f->stream;
		if (!concerns(f, d))
			continue;
		if (!known) {
			known = true;
			blocking = !gp_driver.cuStreamGetFlags(f->stream, &flags) && !(flags & CU_STREAM_NON_BLOCKING);
		}
		pthread_mutex_lock(&d->lock);
		if (f->stream == GP_STREAM_PER_THREAD) {
			struct blp_stream *own = blp_find_stream(d, f->stream, false);
			stream = own ? own->handle : f->stream;
		}
		act(f, d, stream, blocking);
		blp_advance(d);
		pthread_mutex_unlock(&d->lock);
	}
}

// Whether a stop can cut something, or has. Otherwise there is nothing to wait for. The event records that are left are forgotten then:
// a stop must not wait for them behind new work that may wait for the CPU. The GPU may not have reached them, since work ahead of
// them that is not logged goes on. The log keeps those that the driver does not tell of until they are over.
static bool has_cuts(const struct gp_domain *d) { return d->recorded || blp_is_closed(d); }

static void flush_domain(const struct scope *f, struct gp_domain *d, CUstream stream, bool blocking)
{
	for (uint32_t n = 0; n < d->streams; n++) {
		struct blp_stream *s = &d->stream_of[n];
		if (!blp_may_be_cut(s) || !is_in(f, s, stream, blocking))
			continue;
		if (!has_cuts(d)) { // anew, where the lock was given up
			if (!(s->thread && is_marked(d, s)))
				blp_forget(d, s);
			continue;
		}
		gp_count(&d->gpu->stops.barriers, 1);
		if (f->late)
			blp_begin_late(f->late);
		if (!(f->bounded ? blp_wait_or_let_run(d, s, s->last) : blp_wait_complete(d, s, s->last, 0)))
			break;
	}
}

static void flush(const struct scope *f) { visit(f, flush_domain); }

// The calling thread waits for these entries beside what the driver tells of: those that domains had when its call began. Notes stay when
// the call is over, also one that the driver refused or the program left by longjmp. The notes of a later call take their place, and the
// entries of old notes are over.
enum { NOTES = 16 };
GP_OF_THREAD struct noted {
	uint32_t call;
	bool more; // domains than there is room for
	// The driver is to be asked once more: it has entries that cannot be cut any more, or were forgotten, but maybe since it was asked.
	bool again;
	struct note {
		struct gp_domain *domain;
		uint64_t generation, head; // number of the domain, and the end of its log
		uint32_t forgotten;        // how often it had forgotten entries
		uint32_t call;
	} of[NOTES];
} noted;

static struct note *note_of(const struct gp_domain *d)
{
	struct noted *notes = GP_MINE(noted);
	for (int i = 0; i < NOTES; i++)
		if (notes->of[i].domain == d && notes->of[i].generation == d->generation)
			return &notes->of[i];
	return NULL;
}

static struct note *free_note(void)
{
	struct noted *notes = GP_MINE(noted);
	for (int i = 0; i < NOTES; i++) {
		const struct gp_domain *d = notes->of[i].domain;
		if (!d || !d->context || d->generation != notes->of[i].generation)
			return &notes->of[i];
	}
	return NULL;
}

static void note_domain(const struct scope *f, struct gp_domain *d, CUstream stream, bool blocking)
{
	struct noted *notes = GP_MINE(noted);
	bool waits = false;
	for (uint32_t i = 0; i < d->streams; i++) {
		struct blp_stream *s = &d->stream_of[i];
		if (!blp_may_be_cut(s) || !is_in(f, s, stream, blocking))
			continue;
		if (!has_cuts(d) && !is_marked(d, s))
			blp_forget(d, s);
		else if (!blp_expect(d, s, s->last))
			waits = true;
	}
	struct note *n = note_of(d);
	if (waits && (n || (n = free_note())))
		*n = (struct note){d, d->generation, d->head, d->forgotten, notes->call};
	notes->more |= waits && !n;
}

static void note(const struct scope *f)
{
	struct noted *notes = GP_MINE(noted);
	notes->call++;
	notes->more = false;
	if (!blp_inside && f->context)
		visit(f, note_domain);
}

static void wait_domain(const struct scope *f, struct gp_domain *d, CUstream stream, bool blocking)
{
	struct noted *notes = GP_MINE(noted);
	const struct note *n = note_of(d);
	uint64_t upto[BLP_STREAMS] = {0}, generation = d->generation;
	for (uint64_t at = d->tail; n && at < d->head && at < n->head; at++) {
		const struct blp_stream *s = &d->stream_of[blp_entry_at(d, at)->stream];
		if (!blp_is_done(blp_entry_at(d, at)) && at >= s->done && is_in(f, s, stream, blocking))
			upto[s - d->stream_of] = at + 1;
	}
	for (uint32_t i = 0; i < d->streams && d->context && d->generation == generation; i++) {
		if (!upto[i])
			continue;
		gp_count(&d->gpu->stops.barriers, 1);
		notes->again |=
			!blp_wait_complete(d, &d->stream_of[i], upto[i], 0) || !blp_reached(&d->stream_of[i], upto[i]);
	}
	struct blp_stream *own =
		f->all || !d->context || d->generation != generation ? NULL : blp_find_stream(d, stream, false);
	if (own)
		wait_beside(d, own);
}

// False: the driver is to be asked once more.
static bool wait_for_notes(const struct scope *f)
{
	struct noted *notes = GP_MINE(noted);
	notes->again = notes->more;
	if (notes->more)
		flush(f);
	if (f->context)
		visit(f, wait_domain);
	for (int i = 0; i < NOTES; i++) {
		const struct note *n = &notes->of[i];
		if (n->domain && n->call == notes->call && n->generation == n->domain->generation)
			notes->again |= n->forgotten != n->domain->forgotten;
	}
	return !notes->again;
}

// The context that a stream is flushed in; NULL: none needs to be.
static CUcontext context_of(CUstream stream, CUcontext current)
{
	CUcontext context = NULL;
	// A default stream is the current context's. For other streams, any context may be current.
	if (stream != GP_STREAM_LEGACY && stream != GP_STREAM_PER_THREAD)
		for (int i = 0; i < BLP_DOMAINS && blp_domains[i]; i++) {
			struct gp_domain *d = blp_domains[i];
			if (!d->context || d->head == d->tail)
				continue;
			pthread_mutex_lock(&d->lock);
			if (blp_find_stream(d, stream, false))
				context = d->context;
			pthread_mutex_unlock(&d->lock);
			if (context)
				return context;
		}
	return current;
}

static void come_behind(CUstream stream, CUcontext current, bool late)
{
	if (blp_inside || !blp_domains[0])
		return;
	struct scope f = {
		.context = context_of(stream, current), .stream = stream, .bounded = true, .late = late ? current : NULL};
	if (f.context)
		flush(&f);
}

void gp_blp_come_behind(CUstream stream) { come_behind(stream, gp_current_handle(), false); }

void blp_come_behind(const struct gp_operation *o) { come_behind(o->stream, o->handle, true); }

static struct scope of_stream(CUstream stream, CUcontext current)
{
	return (struct scope){.context = context_of(stream, current), .stream = stream, .waits = true};
}

void blp_expect_stream(CUstream stream, CUcontext current)
{
	struct scope f = of_stream(stream, current);
	note(&f);
}

CUresult blp_wait_stream(CUstream stream, CUcontext current)
{
	struct scope f = of_stream(stream, current);
	return wait_for_notes(&f) ? CUDA_SUCCESS : gp_driver.cuStreamSynchronize(stream);
}

void gp_blp_expect_all(CUcontext context) { note(&(struct scope){.context = context, .all = true}); }

bool gp_blp_has_log(CUcontext context)
{
	bool any = false;
	for (int i = 0; i < BLP_DOMAINS && blp_domains[i] && !any; i++)
		any = concerns(&(struct scope){.context = context, .all = true}, blp_domains[i]);
	return any;
}

bool gp_blp_wait_expected(CUcontext context)
{
	return wait_for_notes(&(struct scope){.context = context, .all = true});
}

CUresult blp_wait_all(CUcontext context)
{
	bool pushed;
	if (gp_blp_wait_expected(context) || !blp_enter(context, &pushed))
		return CUDA_SUCCESS;
	CUresult result = gp_driver.cuCtxSynchronize();
	blp_leave(pushed);
	return result;
}

// Where it is not known what a call takes, the wait is bounded: kernels of other GPUs may wait for the calling thread, as below. Entries
// that outlast the patience run to their end, and the driver orders the call.
void blp_flush_ahead(CUcontext context) { flush(&(struct scope){.context = context, .all = true, .bounded = true}); }

void gp_blp_flush_all(CUcontext context)
{
	if (!blp_inside)
		flush(&(struct scope){.context = context, .all = true, .bounded = !context});
}

// The context for which the driver waits before it frees memory; NULL: it waits for none, as with memory of cuMemCreate or of a pool.
static CUcontext awaited_for(CUdeviceptr address)
{
	CUcontext context = NULL;
	void *pool = NULL, *value[] = {&context, &pool};
	int attribute[] = {CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE};

	if (!gp_driver.cuPointerGetAttributes || gp_driver.cuPointerGetAttributes(2, attribute, value, address) || pool)
		return NULL;
	return context;
}

// The driver waits for a context. For other contexts that the call may use, the thread waits within a patience. It does so before it
// keeps work off, since their kernels may wait for that work.
static void flush_for(const struct gp_gpu *gpu, CUcontext awaited)
{
	if (blp_inside)
		return;
	awaited = awaited ? gp_primary_context(awaited) : NULL;
	flush(&(struct scope){.gpu = gpu, .all = true, .bounded = true, .elsewhere = awaited});
	blp_begin_take(awaited);
	if (!awaited)
		return;
	flush(&(struct scope){.context = awaited, .all = true});
	blp_come_behind_late();
	blp_begin_driver_wait(awaited);
}

// Does not wait for other GPUs: their kernels may wait for launches that the calling thread makes later, as those of a
// collective operation do. Waits for all contexts of the GPU: green ones use the memory of the primary one. Where the driver does not
// wait, kernels may wait for the calling thread, too.
void gp_blp_flush_owner(CUdeviceptr address) { flush_for(gp_gpu_of_memory(address), awaited_for(address)); }

// The driver does not tell the context of an array: mostly it is the current one.
void gp_blp_flush_array(CUcontext current) { flush_for(NULL, current); }

// Whether a stop can cut nothing of a domain, and has cut nothing. Asks the driver. d->lock is held, the context is current.
static bool is_empty(struct gp_domain *d)
{
	bool empty = true;
	for (uint32_t i = 0; i < d->streams; i++) {
		struct blp_stream *s = &d->stream_of[i];
		if (blp_may_be_cut(s) && (blp_is_closed(d) || !blp_has_ended(d, s, s->last)))
			empty = false;
	}
	blp_advance(d);
	return empty;
}

bool gp_blp_wait_empty(uint64_t deadline_ns)
{
	for (int i = 0; i < BLP_DOMAINS && blp_domains[i]; i++)
		for (struct gp_domain *d = blp_domains[i];; gp_nap(100 * 1000)) {
			bool pushed;
			pthread_mutex_lock(&d->lock);
			bool empty = !d->context;
			if (!empty && blp_enter(d->context, &pushed)) {
				empty = is_empty(d);
				blp_leave(pushed);
			}
			pthread_mutex_unlock(&d->lock);
			if (empty)
				break;
			if (gp_now_ns() >= deadline_ns)
				return false;
		}
	return true;
}

void blp_flush_but(const struct gp_domain *but, CUcontext context, CUstream stream)
{
	flush(&(struct scope){.context = context, .stream = stream, .bounded = true, .but = but, .late = context});
}
