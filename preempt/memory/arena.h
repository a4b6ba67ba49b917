// arena.h - what the files of the arena share.
#ifndef GPREEMPT_MEMORY_ARENA_H
#define GPREEMPT_MEMORY_ARENA_H

#include "preempt/memory/memory.h"

// piece.c: one piece, of a multiple of GP_GRANULE. A context of the GPU is current.
void *gp_piece_make(const struct gp_gpu *, size_t bytes); // near a GPU, not touched or pinned; NULL: there is no memory
bool gp_piece_touch(void *, size_t bytes,
		    const _Atomic bool *cut); // makes its pages, contents stay. False: cut short, at any page
bool gp_piece_pin(void *, size_t bytes);      // false: the driver refuses
void gp_piece_end(void *, size_t bytes, bool pinned);
CUcontext gp_piece_context(void); // the current one, in which gp_piece_pin pins

#endif
