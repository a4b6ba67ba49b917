// arena.h - what the files of the arena share.
#ifndef GPREEMPT_MEMORY_ARENA_H
#define GPREEMPT_MEMORY_ARENA_H

#include "preempt/memory/memory.h"

// piece.c: one piece of GP_CHUNK_BYTES. A context of the GPU is current.
void *gp_piece_make(const struct gp_gpu *);           // near a GPU, not touched or pinned; NULL: there is no memory
bool gp_piece_touch(void *, const _Atomic bool *cut); // makes its pages, contents stay. False: it was cut short, at any page
bool gp_piece_pin(void *);                            // false: the driver refuses
void gp_piece_end(void *, bool pinned);
CUcontext gp_piece_context(void); // the current one, in which gp_piece_pin pins

#endif
