// objects_test.c - with preempt/objects/objects.c.
//
// Handles come again, alone and in several contexts; a table is filled, and what has ended leaves its place. While objects come and go
// around others, these are found without a lock. Ends well or says what is wrong.
#define _GNU_SOURCE
#include "preempt/objects/objects.h"
#include "test/units/check.h"

#include <pthread.h>
#include <stdatomic.h>

static void *handle(uintptr_t n) { return (void *)(n << 4); }
static CUcontext context(uintptr_t n) { return (CUcontext)(n << 12); }

static struct gp_object *enter(enum gp_thing thing, void *h, CUcontext c)
{
	gp_objects_lock(thing);
	struct gp_object *o = gp_object_enter(thing, h, c);
	gp_objects_unlock(thing);
	return o;
}

static uint32_t count(enum gp_thing thing)
{
	uint32_t n = 0;
	gp_objects_lock(thing);
	for (struct gp_object *o = NULL; (o = gp_objects_next(thing, o)); n++)
		CHECK(o->handle && gp_object_find(thing, o->handle, o->context) == o);
	gp_objects_unlock(thing);
	return n;
}

// Against a list of what is there, of handles so few that each comes again and again.
static void test_reuse(void)
{
	enum { HANDLES = 3000, CONTEXTS = 2, STEPS = 300000 };
	static bool there[HANDLES][CONTEXTS];
	uint32_t objects = 0;
	for (int i = 0; i < STEPS; i++) {
		uint64_t h = 1 + random_number() % (HANDLES - 1), c = random_number() % CONTEXTS;
		if (random_number() % 3) {
			struct gp_object *o = enter(GP_STREAM, handle(h), context(c + 1));
			if (!o) // too many around it
				continue;
			CHECK(o->graph.launched == there[h][c]); // of a new one nothing is known
			o->graph.launched = 1;
			objects += !there[h][c];
			there[h][c] = true;
		} else {
			gp_object_end(GP_STREAM, handle(h));
			for (c = 0; c < CONTEXTS; c++) {
				objects -= there[h][c];
				there[h][c] = false;
			}
		}
		for (c = 0; c < CONTEXTS; c++)
			CHECK(!gp_object_find(GP_STREAM, handle(h), context(c + 1)) == !there[h][c]);
	}
	CHECK(objects > 1000 && count(GP_STREAM) == objects && !count(GP_EVENT) && !count(GP_GRAPH_INSTANCE));
	gp_objects_set_apart(context(1));
	gp_objects_destroyed(context(1), true);
	for (uintptr_t h = 1; h < HANDLES; h++) {
		CHECK(!gp_object_find(GP_STREAM, handle(h), context(1)));
		CHECK(!gp_object_find(GP_STREAM, handle(h), context(2)) == !there[h][1]);
	}
	gp_objects_set_apart(context(2));
	gp_objects_destroyed(context(2), true);
	CHECK(!count(GP_STREAM) && !enter(GP_STREAM, NULL, NULL) && !gp_object_find(GP_STREAM, NULL, NULL));
	gp_object_end(GP_STREAM, NULL);
}

static void set_apart(enum gp_thing thing, void *h, CUcontext c)
{
	if (h)
		gp_object_set_apart(thing, h);
	else
		gp_objects_set_apart(c);
}

static void destroyed(enum gp_thing thing, void *h, CUcontext c, bool is)
{
	if (h)
		gp_object_destroyed(thing, h, is);
	else
		gp_objects_destroyed(c, is);
}

// An object that the driver does not destroy keeps its facts. In between its handle may be that of another one.
static void test_apart(enum gp_thing thing, void *h, CUcontext c)
{
	void *handle_of = handle(1);
	CUcontext in = thing == GP_STREAM ? context(1) : NULL;
	for (int is = 0; is <= 1; is++)
		for (int anew = 0; anew <= 1; anew++) {
			struct gp_object *o = enter(thing, handle_of, in), *other = NULL;
			CHECK(o && enter(thing, handle(2), in));
			if (thing == GP_EVENT) {
				o->event.context = context(1);
				o->event.shared = true;
			} else {
				o->graph.launched = 1;
				if (thing == GP_GRAPH_INSTANCE)
					o->graph.context = context(1);
			}
			set_apart(thing, h, c);
			CHECK(!gp_object_find(thing, handle_of, in));
			if (anew)
				CHECK((other = enter(thing, handle_of, in)) && other != o && !other->graph.launched);
			destroyed(thing, h, c, is);
			struct gp_object *found = gp_object_find(thing, handle_of, in);
			CHECK(found == (anew ? other : is ? NULL : o));
			if (!anew && !is)
				CHECK(thing == GP_EVENT ? o->event.shared : o->graph.launched);
			gp_object_end(thing, handle_of);
			CHECK(count(thing) == 1); // of no context that ends, or another handle
			gp_object_end(thing, handle(2));
			CHECK(!count(thing));
		}
	enter(thing, handle_of, in); // and of two threads
	gp_object_set_apart(thing, handle_of);
	gp_object_set_apart(thing, handle_of);
	gp_object_destroyed(thing, handle_of, false);
	CHECK(!gp_object_find(thing, handle_of, in));
	gp_object_destroyed(thing, handle_of, true);
	CHECK(!count(thing));
}

static void test_all_apart(void)
{
	for (enum gp_thing thing = GP_STREAM; thing <= GP_EVENT; thing++) {
		test_apart(thing, handle(1), NULL);
		if (thing != GP_STREAM) // whose context both have
			test_apart(thing, NULL, context(1));
	}
	gp_objects_set_apart(NULL);
	gp_objects_destroyed(NULL, true);
}

// As many objects find room again, in places that others had.
static void test_room(void)
{
	enum { MANY = 1 << 14 };
	uint32_t first = 0;
	for (uintptr_t round = 0; round < 4; round++) {
		for (uintptr_t h = 1; h <= MANY; h++)
			gp_object_begin(GP_GRAPH_INSTANCE, handle(round * MANY + h), NULL);
		uint32_t there = count(GP_GRAPH_INSTANCE);
		CHECK(there > (1 << 13) / 10 * 9 && (!round || there > first / 100 * 98));
		first = round ? first : there;
		for (uintptr_t h = 1; h <= MANY; h++)
			gp_object_end(GP_GRAPH_INSTANCE, handle(round * MANY + h));
		CHECK(!count(GP_GRAPH_INSTANCE));
	}
}

// Where nothing is any more, searches end again.
static void test_ends(void)
{
	enum { SOME = 8000 };
	static const struct gp_object *place[SOME];
	for (uintptr_t i = 0; i < SOME; i++) {
		place[i] = enter(GP_EVENT, handle(i + 1), NULL);
		CHECK(place[i]);
	}
	for (uintptr_t i = 0; i < SOME; i++)
		gp_object_end(GP_EVENT, handle((i * 3 + 1) % SOME + 1)); // each, in another order
	for (uintptr_t i = 0; i < SOME; i++)
		CHECK(!place[i]->handle);
}

// The value that marks a place of an object that has ended is no handle.
static void test_mark(void)
{
	void *mark = (void *)~0ul;
	CHECK(enter(GP_EVENT, handle(1), NULL) && enter(GP_EVENT, handle(2), NULL));
	gp_object_end(GP_EVENT, handle(1));
	gp_object_end(GP_EVENT, mark);
	CHECK(!enter(GP_EVENT, mark, NULL) && !gp_object_find(GP_EVENT, mark, NULL));
	CHECK(count(GP_EVENT) == 1);
	gp_object_end(GP_EVENT, handle(2));
	CHECK(!count(GP_EVENT));
}

enum { STAY = 64 };
static _Atomic bool over;
static void *stay[STAY];

static void *look(void *unused)
{
	for (uintptr_t i = 0; !over; i++)
		CHECK(gp_object_find(GP_EVENT, stay[i % STAY], NULL));
	return unused;
}

// Objects that are close to those that stay, so that these are found behind them.
static void test_looks(void)
{
	enum { ROUNDS = 1000, AROUND = 256, STEP = 1 << 14 };
	static pthread_t thread[2];
	for (uintptr_t n = 0; n < AROUND; n++) // ahead of them
		gp_object_begin(GP_EVENT, handle(STEP + n * STEP), NULL);
	for (uintptr_t i = 0; i < STAY; i++)
		gp_object_begin(GP_EVENT, stay[i] = handle(5 + i * 3 * STEP), NULL);
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_create(&thread[i], NULL, look, NULL));
	for (int i = 0; i < ROUNDS; i++) {
		uintptr_t n = random_number() % AROUND;
		gp_object_end(GP_EVENT, handle(STEP + n * STEP));
		if (random_number() % 2)
			gp_object_begin(GP_EVENT, handle(STEP + n * STEP), NULL);
	}
	over = true;
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_join(thread[i], NULL));
}

int main(void)
{
	test_reuse();
	test_all_apart();
	test_room();
	test_ends();
	test_mark();
	test_looks();
	return 0;
}
