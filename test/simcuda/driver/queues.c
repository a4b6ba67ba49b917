// queues.c - streams, which are queues of operations, and the channels that they share. executor.c takes operations out.
#include "sim.h"

#include <stdlib.h>

// ---- operations

struct op *op_ref(struct op *o)
{
	if (o)
		o->refs++;
	return o;
}

void op_unref(struct op *o)
{
	if (!o || --o->refs > 0)
		return;
	for (int i = 0; i < o->deps; i++)
		op_unref(o->dep[i]);
	free(o->dep);
	free(o->work.staged);
	free(o->place);
	free(o);
}

static void add_dependency(struct op *o, struct op *on)
{
	if (!on || on->done)
		return;
	struct op **d = realloc(o->dep, (size_t)(o->deps + 1) * sizeof *d);
	if (!d)
		abort();
	o->dep = d;
	o->dep[o->deps++] = op_ref(on);
}

// ---- channels: the streams of a context share them

// The channel for a stream that has nothing in one: an empty one, or else the next. Its priority does not matter: so it is on an H100.
static int pick_channel(struct CUctx_st *c)
{
	int connections = sim_connections();
	for (int i = 0; i < connections; i++) {
		int at = (c->next_channel + i) % connections;
		if (!c->channel[at].head) {
			c->next_channel = at;
			break;
		}
	}
	int picked = c->next_channel % connections;
	c->next_channel = picked + 1;
	return picked;
}

// Operations that go through a channel of the compute engine. Copies have engines of their own, but for small ones to the device; host
// functions and records need none.
static bool through_channel(const struct op *o)
{
	switch (o->work.kind) {
	case OP_KERNEL: return !o->with_previous;
	case OP_MARK: return o->deps > 0 && !o->work.aside; // it waits for an event
	case OP_MEMSET:
	case OP_WAIT_VALUE:
	case OP_WRITE_VALUE: return true;
	case OP_COPY: return o->work.inlined;
	default: return false;
	}
}

static void enter_channel(struct CUstream_st *s, struct op *o)
{
	if (!s->in_channel++)
		s->channel = pick_channel(s->ctx);
	struct channel *h = channel_of(s);
	if (h->tail)
		h->tail->channel_next = o;
	else
		h->head = o;
	h->tail = o;
	o->queued = true;
}

// ---- submissions

enum { MEMSET_WITHOUT_KERNEL = 1 << 10 }; // bytes; on an H100 a larger one is a kernel that waits for room like others
static _Atomic int most_urgent;

static void note_urgency(int priority)
{
	for (int most = most_urgent; priority < most && !atomic_compare_exchange_weak(&most_urgent, &most, priority);)
		;
}

// For tests: the highest priority, numerically the lowest, that a kernel of this process has had.
API int simcuda_most_urgent_kernel(void) { return most_urgent; }

static _Atomic uint32_t without_room; // threads that wait in a call for room in a queue

// For tests: how many there are.
API uint32_t simcuda_without_room(void) { return without_room; }

static void await_room(struct CUstream_st *s)
{
	if (s->length < sim_queue())
		return;
	without_room++;
	s->awaited++;
	while (s->length >= sim_queue() && !sim_dead)
		wait_done();
	s->awaited--;
	without_room--;
}

static struct op *submit(struct CUstream_st *s, const struct work *w, struct op *after, bool with_previous)
{
	await_room(s);
	struct op *o = calloc(1, sizeof *o);
	if (!o)
		abort();
	s->length++;
	o->refs = 3; // queue, s->last, caller
	o->work = *w;
	o->with_previous = with_previous;
	o->number = s->ctx->next_number++;
	o->priority = w->prioritized ? w->priority : s->priority;
	if (w->kind == OP_KERNEL || (w->kind == OP_MEMSET && w->bytes > MEMSET_WITHOUT_KERNEL))
		note_urgency(o->priority);
	add_dependency(o, after);
	struct CUctx_st *c = s->ctx;
	if (c->gate)
		add_dependency(o, c->gate->last);
	if (s->legacy) {
		for (struct CUstream_st *b = c->streams; b; b = b->next)
			if (b != s && !(b->flags & 1))
				add_dependency(o, b->last);
	} else if (!(s->flags & 1)) {
		add_dependency(o, c->legacy->last);
	}
	o->chained = s->head != NULL;
	o->rung_ns = now_ns();
	o->blocked = o->deps || w->kind == OP_WAIT_VALUE ||
		     (s->tail && (s->tail->blocked || (s->tail->work.kind != OP_KERNEL && s->tail->work.kind != OP_MARK)));
	if (s->tail)
		s->tail->next = o;
	else
		s->head = o;
	s->tail = o;
	op_unref(s->last);
	s->last = o;
	if (through_channel(o))
		enter_channel(s, o);
	tell_executor(c->bell);
	return o;
}

struct op *stream_submit(struct CUstream_st *s, const struct work *w, struct op *after)
{
	return submit(s, w, after, false);
}

void stream_submit_many(struct CUstream_st *s, const struct work *w, int n)
{
	for (int i = 0; i < n; i++)
		op_unref(submit(s, &w[i], NULL, i && w[i].kind == OP_KERNEL && w[i - 1].kind == OP_KERNEL));
}

struct op *context_mark(struct CUctx_st *c)
{
	struct work w = {.kind = OP_MARK, .aside = true};
	if (!c->recorder && !(c->recorder = stream_new(c, 1, 0)))
		abort();
	struct op *o = submit(c->recorder, &w, NULL, false);
	for (struct CUstream_st *s = c->streams; s; s = s->next)
		if (s != c->recorder)
			add_dependency(o, s->last);
	o->blocked |= o->deps > 0;
	return o;
}

void context_await(struct CUctx_st *c, struct op *o)
{
	struct work w = {.kind = OP_MARK, .aside = true};
	if (!c->gate && !(c->gate = stream_new(c, 1, 0)))
		abort();
	op_unref(submit(c->gate, &w, o, false));
}

void op_wait(struct op *o)
{
	while (o && !o->done && !sim_dead) {
		o->awaited = true;
		wait_done();
	}
	op_unref(o);
}

void context_wait(struct CUctx_st *c)
{
	int n = 0;
	for (struct CUstream_st *s = c->streams; s; s = s->next)
		n++;
	struct op **last = calloc((size_t)n + 1, sizeof *last);
	if (!last)
		abort();
	n = 0;
	for (struct CUstream_st *s = c->streams; s; s = s->next)
		last[n++] = op_ref(s->last);
	for (int i = 0; i < n; i++)
		op_wait(last[i]);
	free(last);
}

// ---- streams

static uint64_t next_id = 1;

struct CUstream_st *stream_new(struct CUctx_st *c, unsigned flags, int priority)
{
	struct CUstream_st *s = calloc(1, sizeof *s);
	if (!s)
		return NULL;
	s->ctx = c;
	s->flags = flags;
	s->priority = priority;
	s->id = next_id++;
	s->next = c->streams;
	c->streams = s;
	return s;
}

struct per_thread {
	struct CUctx_st *ctx;
	uint64_t ctx_id;
	struct CUstream_st *stream;
};
static __thread struct per_thread per_thread[8];

static struct CUstream_st *thread_stream(struct CUctx_st *c)
{
	struct per_thread *slot = &per_thread[c->id % 8];
	if (slot->ctx != c || slot->ctx_id != c->id) {
		struct CUstream_st *s = stream_new(c, 0, 0);
		*slot = (struct per_thread){c, c->id, s};
	}
	return slot->stream;
}

CUresult stream_resolve(struct CUctx_st *c, CUstream h, struct CUstream_st **out)
{
	if (h == NULL || h == STREAM_LEGACY)
		*out = c->legacy;
	else if (h == STREAM_PER_THREAD)
		*out = thread_stream(c);
	else if (!handle_is(h, H_STREAM))
		return CUDA_ERROR_INVALID_HANDLE;
	else
		*out = h;
	if (*out && (*out)->detached)
		return CUDA_ERROR_STREAM_DETACHED;
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult enter_stream(CUstream h, struct CUstream_st **s)
{
	struct CUctx_st *c;
	CUresult r = enter(&c);
	if (r != CUDA_SUCCESS)
		return r;
	r = stream_resolve(c, h, s);
	return r == CUDA_SUCCESS ? r : leave(r);
}
