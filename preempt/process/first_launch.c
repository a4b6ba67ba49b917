// first_launch.c - remembers by context which kernels and instances of graphs were launched. A first launch may load code, for
// which the driver waits for the whole context.
#define _GNU_SOURCE
#include "preempt/process/process.h"
#include "preempt/objects/objects.h"

// A handle, and in the top byte its context's place: addresses of user space have 47 or 48 bits (x86-64, arm64).
static _Atomic uint64_t loaded[4096];

enum { LOADED = sizeof loaded / sizeof *loaded, PROBES = 16, PLACE_SHIFT = 56 };

// In the place of a context. IN_GRAPHS: nodes of graphs got the kernel. NAMED: its name was looked at.
enum { NAMED = 0xFE, IN_GRAPHS };
_Static_assert((int)GP_CONTEXTS <= (int)NAMED, "no context has that place");

static uint64_t entry_of(uint64_t place, const void *handle)
{
	return (uint64_t)(uintptr_t)handle ^ place << PLACE_SHIFT;
}

static uint64_t place_of(const struct gp_context *c) { return (uint64_t)(c - gp_context); }

static size_t loaded_at(uint64_t entry) { return entry * 0x9E3779B97F4A7C15ull >> 52; } // 12 bits

static bool has(uint64_t entry)
{
	for (size_t i = loaded_at(entry), n = 0; n < PROBES; n++, i = (i + 1) % LOADED) {
		uint64_t found = __atomic_load_n((uint64_t *)&loaded[i], __ATOMIC_RELAXED);
		if (found == entry)
			return true;
		if (!found)
			return false;
	}
	return true; // the table is full here: nothing is known
}

bool gp_is_loaded(const struct gp_context *c, const void *handle) { return has(entry_of(place_of(c), handle)); }

// True: it was not there, and is now.
static bool enter(uint64_t entry)
{
	for (size_t i = loaded_at(entry), n = 0; n < PROBES; n++, i = (i + 1) % LOADED) {
		uint64_t found = 0;
		if (__atomic_compare_exchange_n((uint64_t *)&loaded[i], &found, entry, false, __ATOMIC_RELAXED,
						__ATOMIC_RELAXED))
			return true;
		if (found == entry)
			return false;
	}
	return false; // the table is full here
}

void gp_remember_loaded(const struct gp_context *c, const void *handle) { enter(entry_of(place_of(c), handle)); }

bool gp_name_is_due(const void *kernel)
{
	uint64_t entry = entry_of(NAMED, kernel);
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
	if (!(c && gp_is_loaded(c, function)) && enter(entry_of(IN_GRAPHS, function)))
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
	for (size_t i = 0; i < LOADED; i++)
		if (!c || loaded[i] >> PLACE_SHIFT == place_of(c) || loaded[i] >> PLACE_SHIFT >= NAMED)
			loaded[i] = 0;
	gp_objects_lock(GP_GRAPH_INSTANCE);
	for (struct gp_object *o = NULL; (o = gp_objects_next(GP_GRAPH_INSTANCE, o));)
		o->graph.launched &= c ? ~bit_of(c) : 0;
	gp_objects_unlock(GP_GRAPH_INSTANCE);
}
