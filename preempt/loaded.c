// loaded.c - kernels and graph instances that were launched before. The first launch of one may load its code,
// for which the driver waits for the whole context.
#define _GNU_SOURCE
#include "blp.h"
#include "core.h"

static _Atomic(void *) loaded[4096];

enum { LOADED = sizeof loaded / sizeof *loaded, PROBES = 16 };

static size_t loaded_at(const void *handle) { return (uintptr_t)handle * 0x9E3779B97F4A7C15ull >> 52; } // 12 bits

bool gp_is_loaded(const void *handle)
{
	for (size_t i = loaded_at(handle), n = 0; n < PROBES; n++, i = (i + 1) % LOADED) {
		void *found = __atomic_load_n((void **)&loaded[i], __ATOMIC_RELAXED);
		if (found == handle)
			return true;
		if (!found)
			return false;
	}
	return true; // so full that it is not worth knowing
}

void gp_remember_loaded(void *handle)
{
	for (size_t i = loaded_at(handle), n = 0; n < PROBES; n++, i = (i + 1) % LOADED) {
		void *empty = NULL;
		if (__atomic_compare_exchange_n((void **)&loaded[i], &empty, handle, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED) ||
		    empty == handle)
			return;
	}
}

void gp_forget_loaded(CUgraphExec exec)
{
	for (size_t i = loaded_at(exec), n = 0; n < PROBES; n++, i = (i + 1) % LOADED)
		if (loaded[i] == (void *)exec)
			loaded[i] = NULL; // may end another's probe early: its next launch counts as a first one
	gp_blp_graph_changed(exec);
	gp_graph_destroying(exec);
}
