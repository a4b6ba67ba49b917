// first_launch.c - remembers by context which kernels and instances of graphs were launched. A first launch may load code, for
// which the driver waits for the whole context.
#define _GNU_SOURCE
#include "preempt/process/process.h"
#include "preempt/objects/objects.h"

_Atomic uint64_t gp_loaded[GP_LOADED];

enum { PROBES = 16 };
_Static_assert((int)GP_CONTEXTS <= (int)GP_LOADED_NAMED, "no context has that place");

static uint64_t place_of(const struct gp_context *c) { return (uint64_t)(c - gp_context); }

static bool has(uint64_t entry)
{
	for (size_t i = gp_loaded_at(entry), n = 0; n < PROBES; n++, i = (i + 1) % GP_LOADED) {
		uint64_t found = __atomic_load_n((uint64_t *)&gp_loaded[i], __ATOMIC_RELAXED);
		if (found == entry)
			return true;
		if (!found)
			return false;
	}
	return true; // the table is full here: nothing is known
}

bool gp_is_loaded(const struct gp_context *c, const void *handle) { return has(gp_loaded_entry(place_of(c), handle)); }

// True: it was not there, and is now.
static bool enter(uint64_t entry)
{
	for (size_t i = gp_loaded_at(entry), n = 0; n < PROBES; n++, i = (i + 1) % GP_LOADED) {
		uint64_t found = 0;
		if (__atomic_compare_exchange_n((uint64_t *)&gp_loaded[i], &found, entry, false, __ATOMIC_RELAXED,
						__ATOMIC_RELAXED))
			return true;
		if (found == entry)
			return false;
	}
	return false; // the table is full here
}

void gp_remember_loaded(const struct gp_context *c, const void *handle) { enter(gp_loaded_entry(place_of(c), handle)); }

bool gp_name_is_due(const void *kernel)
{
	uint64_t entry = gp_loaded_entry(GP_LOADED_NAMED, kernel);
	return !has(entry) && enter(entry);
}

static uint64_t bit_of(const struct gp_context *c) { return 1ull << (c - gp_context); }
_Static_assert(GP_CONTEXTS <= 64, "a bit for each context");

// How often a node of a graph got a kernel that had been neither launched nor captured, nor given to a node before.
static _Atomic uint32_t given;

// To end a hold costs a switch of the GPU, and a hold that the launch waits for costs its whole time. So each launch of an instance that has
// no place counts as the first one.
bool gp_graph_is_loaded(const struct gp_context *c, CUgraphExec exec)
{
	const struct gp_object *o = gp_graph_find(exec);
	return o && o->graph.launched & bit_of(c);
}

// Also of an instance that was made unseen.
void gp_remember_loaded_graph(const struct gp_context *c, CUgraphExec exec)
{
	gp_objects_lock(GP_GRAPH_INSTANCE);
	struct gp_object *o = gp_object_enter(GP_GRAPH_INSTANCE, exec, NULL);
	if (o) {
		o->graph.launched |= bit_of(c);
		o->graph.kernels = given;
	}
	gp_objects_unlock(GP_GRAPH_INSTANCE);
}

void gp_graph_kernel(const struct gp_context *c, const void *function)
{
	if (!(c && gp_is_loaded(c, function)) && enter(gp_loaded_entry(GP_LOADED_IN_GRAPHS, function)))
		given++;
}

// Programs change their graphs before each launch, mostly to kernels that were launched, or that graphs had before.
void gp_graph_changes(CUgraphExec exec)
{
	uint32_t now = given;
	struct gp_object *o = now ? gp_graph_find(exec) : NULL;
	if (!o || o->graph.kernels == now)
		return;
	o->graph.kernels = now;
	o->graph.launched = 0;
}

// Called before the driver unloads code: its handles may soon mean other functions. It is not known which handles these are, so
// the next launch of every kernel counts as its first. Code is rarely unloaded.
void gp_forget_loaded(const struct gp_context *c)
{
	for (size_t i = 0; i < GP_LOADED; i++)
		if (!c || gp_loaded[i] >> GP_LOADED_SHIFT == place_of(c) ||
		    gp_loaded[i] >> GP_LOADED_SHIFT >= GP_LOADED_NAMED)
			gp_loaded[i] = 0;
	gp_objects_lock(GP_GRAPH_INSTANCE);
	for (struct gp_object *o = NULL; (o = gp_objects_next(GP_GRAPH_INSTANCE, o));)
		o->graph.launched &= c ? ~bit_of(c) : 0;
	gp_objects_unlock(GP_GRAPH_INSTANCE);
}
