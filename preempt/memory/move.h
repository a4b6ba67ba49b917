// move.h - what the files of the mover share. All is called by the one thread that moves.
#ifndef GPREEMPT_MEMORY_MOVE_H
#define GPREEMPT_MEMORY_MOVE_H

#include "preempt/memory/memory.h"

enum {
	// An engine goes on with the stream that has work, and a copy in flight is not cut. So many of these take 10 ms, in which the
	// mover unmaps or maps a chunk: 0.3 ms and, in the worst of a hundred while another thread launches, 8 to 10; while
	// another process unmaps, a chunk takes 1.7 ms to make, the worst of 65 took 9 (H200, driver 580). Beside
	// latency-critical processes it is two.
	GP_PIECE_BYTES = 32 << 20,
	GP_PIECES_IN_FLIGHT = 16,
	// Beside latency-critical processes that all wait for their own memory. While they make chunks, to unmap one takes 1 ms, the
	// worst 5 (as above). The first copy to the host that such a process makes again comes behind as many.
	GP_PIECES_BESIDE_WAITING = 4,
	// Beside latency-critical processes that are at work one of these is in flight: a copy of 256 KiB of another process takes
	// 124 us then instead of 13, and 860 with two in flight, even of 2 MiB; the bus gives 52 GB/s of 55 (H200, driver 580).
	GP_SMALL_PIECE_BYTES = 8 << 20,
};

// drain.c: waits until all contexts have done their work; no new work comes. False: not by the deadline, or that cannot be
// known. result: what the driver says of the contexts.
bool gp_memory_drain(uint64_t deadline_ns, CUresult *result);
bool gp_memory_draining(void); // a drain that missed its deadline is still under way: it may have a context pinned

// copy.c: copies between chunks and the arena, in order, on a stream of ours.
struct gp_copies {
	struct gp_gpu *gpu;
	bool urgent; // no pauses while a higher level has its window open
	CUstream stream;
	CUevent event[GP_PIECES_IN_FLIGHT];
	uint64_t begun, ended; // pieces
	bool small;            // the last piece was: its end comes soon
	bool unknown;          // the driver does not say whether the pieces between the two have ended
};
bool gp_copies_open(struct gp_copies *); // in the current context
void gp_copies_close(struct gp_copies *);
// Puts the copy of a piece of a chunk on the stream, and returns its bytes. Waits for the oldest, where too many are in flight.
// 0: the driver refused, and the piece is not there; or it is not known when that ends.
size_t gp_copies_add(struct gp_copies *, const struct gp_chunk *, size_t offset, bool to_device);
bool gp_copies_wait(struct gp_copies *, uint64_t upto); // false: it will not be known when they end

// Takes places in the arena for a chunk; gp_chunk_give_host gives them back. False: there is no room for all of it.
bool gp_chunk_take_host(struct gp_gpu *, struct gp_chunk *);

// gp_memory_use_context for a context behind another one; NULL: the first.
struct gp_context *gp_memory_next_context(const struct gp_gpu *, const struct gp_context *after);

#endif
