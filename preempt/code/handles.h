// handles.h - a table from handles of kernels to their struct gp_code. Launches read it without a lock.
//
// It is a cache. gp_code_forget empties it as a whole whenever a module, library or context comes or ends. So a reused handle never finds
// its former kernel. The generation is odd meanwhile.
#ifndef GPREEMPT_HANDLES_H
#define GPREEMPT_HANDLES_H

#include "preempt/code/code.h"

#include <stdatomic.h>

enum { GP_HANDLES = 1 << 16, GP_HANDLE_PROBES = 64 };

struct gp_handle {
	_Atomic(CUfunction) function;
	_Atomic(const struct gp_code *) code;
	_Atomic uint64_t loaded; // the contexts in which its code is known to be loaded: one bit for each
};
extern struct gp_handle gp_handle[GP_HANDLES] __attribute__((visibility("hidden"))); // no detour on the launch path

static inline size_t gp_handle_slot(const void *function)
{
	return (uintptr_t)function * 0x9E3779B97F4A7C15ull >> 48;
} // 16 bits

// The place in the table; what stands there is valid where the generation was even before and is the same after. NULL: there is none.
static inline struct gp_handle *gp_handle_place(CUfunction function)
{
	for (size_t i = gp_handle_slot(function), n = 0; n < GP_HANDLE_PROBES; n++, i = (i + 1) % GP_HANDLES) {
		CUfunction handle = atomic_load_explicit(&gp_handle[i].function, memory_order_acquire);
		if (handle == function)
			return &gp_handle[i];
		if (!handle)
			return NULL;
	}
	return NULL;
}

static inline const struct gp_code *gp_handle_find(CUfunction function)
{
	struct gp_handle *h = gp_handle_place(function);
	return h ? atomic_load_explicit(&h->code, memory_order_relaxed) : NULL;
}

// The table's entry for a handle, and its generation.
const struct gp_code *gp_handle_look(CUfunction, uint32_t *generation);
// Enters a handle's kernel, unless all were forgotten since that generation.
void gp_handle_enter(CUfunction, const struct gp_code *, uint32_t generation);
// Adds contexts to those in which a handle's code is loaded, where it stands in the table; unless all were forgotten since.
void gp_handle_add_loaded(CUfunction, uint64_t contexts, uint32_t generation);

#endif
