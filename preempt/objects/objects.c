// objects.c - see objects.h.
//
// Open addressing. A search looks at places from that of the handle on, up to one that was never used. An object keeps its place, and no
// place ahead of it becomes one that was never used: so a search without the lock finds each object that is there all the while.
#define _GNU_SOURCE
#include "preempt/objects/objects.h"
#include "preempt/driver/cancel.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

enum { STREAM_BITS = 12, GRAPH_BITS = 13, EVENT_BITS = 14, PROBES = 64 };
#define GONE ((void *)~0ul)     // an object had the place
#define APART ((CUcontext)~1ul) // the object is set apart: it is in no context that anybody looks in

static struct gp_object streams[1 << STREAM_BITS], graphs[1 << GRAPH_BITS], events[1 << EVENT_BITS];
static struct table {
	struct gp_object *const place;
	const int bits;
	_Atomic uint32_t there; // objects
	pthread_mutex_t lock;   // of all changes
	pthread_cond_t left;    // the last user of an object has left it
} tables[] = {
	[GP_STREAM] = {streams, STREAM_BITS, 0, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER},
	[GP_GRAPH_INSTANCE] = {graphs, GRAPH_BITS, 0, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER},
	[GP_EVENT] = {events, EVENT_BITS, 0, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER},
};

static size_t home_of(const struct table *t, const void *handle)
{
	return (uintptr_t)handle * 0x9E3779B97F4A7C15ull >> (64 - t->bits);
}

static size_t mask_of(const struct table *t) { return ((size_t)1 << t->bits) - 1; }

static void *handle_at(const struct table *t, size_t at)
{
	return atomic_load_explicit(&t->place[at & mask_of(t)].handle, memory_order_acquire);
}

struct gp_object *gp_object_find(enum gp_thing thing, const void *handle, CUcontext context)
{
	const struct table *t = &tables[thing];
	void *found;
	if (handle == GONE)
		return NULL;
	for (size_t at = home_of(t, handle), n = 0; n < PROBES && (found = handle_at(t, at)); n++, at++) {
		struct gp_object *o = &t->place[at & mask_of(t)];
		if (found == handle && atomic_load_explicit(&o->context, memory_order_acquire) == context &&
		    handle_at(t, at) == handle) // again: the context may be that of the next object in the place
			return o;
	}
	return NULL;
}

void gp_objects_lock(enum gp_thing thing) { pthread_mutex_lock(&tables[thing].lock); }
void gp_objects_unlock(enum gp_thing thing) { pthread_mutex_unlock(&tables[thing].lock); }

struct gp_object *gp_object_enter(enum gp_thing thing, void *handle, CUcontext context)
{
	struct table *t = &tables[thing];
	struct gp_object *o = gp_object_find(thing, handle, context);
	void *there;
	if (o || !handle || handle == GONE)
		return o;
	size_t at = home_of(t, handle), end = at + PROBES;
	while ((there = handle_at(t, at)) && there != GONE)
		if (++at == end)
			return NULL;
	o = &t->place[at & mask_of(t)];
	memset(&o->context, 0, sizeof *o - offsetof(struct gp_object, context));
	atomic_store_explicit(&o->context, context, memory_order_relaxed);
	atomic_store_explicit(&o->handle, handle, memory_order_release);
	t->there++;
	return o;
}

struct gp_object *gp_objects_next(enum gp_thing thing, const struct gp_object *before)
{
	const struct table *t = &tables[thing];
	struct gp_object *o = before ? (struct gp_object *)before + 1 : t->place, *end = t->place + mask_of(t) + 1;
	while (t->there && o < end && (!o->handle || o->handle == GONE))
		o++;
	return t->there && o < end ? o : NULL;
}

struct gp_object *gp_objects_of(enum gp_thing thing, const void *handle, const struct gp_object *before)
{
	const struct table *t = &tables[thing];
	if (!handle || handle == GONE)
		return NULL;
	size_t home = home_of(t, handle), n = before ? ((size_t)(before - t->place) - home + 1) & mask_of(t) : 0;
	void *found = NULL;
	while (n < PROBES && (found = handle_at(t, home + n)) && found != handle)
		n++;
	return n < PROBES && found ? &t->place[(home + n) & mask_of(t)] : NULL;
}

void gp_object_use(enum gp_thing thing, struct gp_object *o)
{
	o->users++;
	gp_objects_unlock(thing);
}

void gp_object_leave(enum gp_thing thing, struct gp_object *o)
{
	gp_objects_lock(thing);
	if (!--o->users)
		pthread_cond_broadcast(&tables[thing].left);
}

// With the lock, which it gives up meanwhile. False: no thread used the object.
static bool wait_unused(struct table *t, const struct gp_object *o)
{
	if (!o->users)
		return false;
	gp_wait_changed(&t->left, &t->lock, NULL);
	return true;
}

// With the lock. Where no search goes on behind the place, it counts as never used, and so do those ahead of it that objects had.
static void end(struct table *t, size_t at)
{
	atomic_store_explicit(&t->place[at & mask_of(t)].handle, GONE, memory_order_release);
	t->there--;
	if (handle_at(t, at + 1))
		return;
	for (; handle_at(t, at) == GONE; at--)
		atomic_store_explicit(&t->place[at & mask_of(t)].handle, NULL, memory_order_release);
}

void gp_object_end(enum gp_thing thing, const void *handle)
{
	struct table *t = &tables[thing];
	if (!t->there) // what the calling thread knows of was counted before
		return;
	pthread_mutex_lock(&t->lock);
	for (struct gp_object *o = NULL; (o = gp_objects_of(thing, handle, o));)
		if (wait_unused(t, o))
			o = NULL; // all may be others
		else
			end(t, (size_t)(o - t->place));
	pthread_mutex_unlock(&t->lock);
}

// One of that handle may have ended unseen.
bool gp_object_begin(enum gp_thing thing, void *handle, CUcontext context)
{
	gp_object_end(thing, handle);
	gp_objects_lock(thing);
	bool has_place = gp_object_enter(thing, handle, context);
	gp_objects_unlock(thing);
	return has_place;
}

// The objects that a call is about: one by its handle, or all of a context.
struct scope {
	enum gp_thing thing;
	const void *handle; // NULL: all of the context
	CUcontext context;
};

static CUcontext context_of(enum gp_thing thing, const struct gp_object *o)
{
	switch (thing) {
	case GP_STREAM: return o->apart ? o->of : o->context;
	case GP_EVENT: return o->event.context;
	default: return o->graph.context;
	}
}

// With the lock.
static struct gp_object *next_in(const struct scope *s, const struct gp_object *before)
{
	struct gp_object *o = (struct gp_object *)before;
	if (s->handle)
		return gp_objects_of(s->thing, s->handle, o);
	while ((o = gp_objects_next(s->thing, o)) && context_of(s->thing, o) != s->context)
		;
	return o;
}

static void set_apart(struct scope s)
{
	struct table *t = &tables[s.thing];
	if (!t->there || !(s.handle || s.context)) // what the calling thread knows of was counted before
		return;
	pthread_mutex_lock(&t->lock);
	for (struct gp_object *o = NULL; (o = next_in(&s, o));)
		if (wait_unused(t, o))
			o = NULL; // all may be others
	for (struct gp_object *o = NULL; (o = next_in(&s, o));) {
		if (!o->apart++)
			o->of = o->context;
		atomic_store_explicit(&o->context, APART, memory_order_release);
	}
	pthread_mutex_unlock(&t->lock);
}

// One that the program used while the driver refused to destroy it is known anew.
static void destroyed(struct scope s, bool is)
{
	struct table *t = &tables[s.thing];
	if (!t->there || !(s.handle || s.context))
		return;
	pthread_mutex_lock(&t->lock);
	for (struct gp_object *o = NULL; (o = next_in(&s, o));) {
		if (!o->apart || (--o->apart && !is))
			continue;
		if (is || gp_object_find(s.thing, o->handle, o->of))
			end(t, (size_t)(o - t->place));
		else
			atomic_store_explicit(&o->context, o->of, memory_order_release);
	}
	pthread_mutex_unlock(&t->lock);
}

void gp_object_set_apart(enum gp_thing thing, const void *handle) { set_apart((struct scope){thing, handle, NULL}); }

void gp_object_destroyed(enum gp_thing thing, const void *handle, bool is)
{
	destroyed((struct scope){thing, handle, NULL}, is);
}

static const enum gp_thing of_contexts[] = {GP_STREAM, GP_EVENT, GP_GRAPH_INSTANCE};
enum { OF_CONTEXTS = sizeof of_contexts / sizeof *of_contexts };

void gp_objects_set_apart(CUcontext context)
{
	for (int i = 0; i < OF_CONTEXTS; i++)
		set_apart((struct scope){of_contexts[i], NULL, context});
}

void gp_objects_destroyed(CUcontext context, bool is)
{
	for (int i = 0; i < OF_CONTEXTS; i++)
		destroyed((struct scope){of_contexts[i], NULL, context}, is);
}
