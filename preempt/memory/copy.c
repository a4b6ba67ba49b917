// copy.c - copies of chunks, piece by piece.
#define _GNU_SOURCE
#include "preempt/memory/move.h"

#include <sched.h>
#include <stdlib.h>

// While a higher level has its window open, its own copies would wait behind ours. Such a level may be busy all the time: after
// this pause one small piece goes, which leaves the bus 80 % of the time (a piece takes 0.17 ms).
static const uint64_t PAUSE_NS = 700 * 1000;

static const uint64_t SPIN_NS = 1000 * 1000; // of a wait for a small piece, several times as long as it takes

// wait: for a thread that has pinned the context. The library's own questions do not wait, and go only to contexts that are known to be
// initialised.
static struct gp_context *next_context(const struct gp_gpu *g, const struct gp_context *after, bool wait)
{
	for (ptrdiff_t i = after ? after - gp_context + 1 : 0; i < GP_CONTEXTS; i++) {
		struct gp_context *c = &gp_context[i];
		CUcontext handle = c->handle;
		if (!handle || c->gpu != g ||
		    !(wait ? gp_context_pin(c, handle) : c->initialised && gp_context_try_pin(c, handle)))
			continue;
		if (c->gpu == g && !gp_driver.cuCtxPushCurrent(handle))
			return c;
		gp_context_unpin(c);
	}
	return NULL;
}

struct gp_context *gp_memory_next_context(const struct gp_gpu *g, const struct gp_context *after)
{
	return next_context(g, after, true);
}

struct gp_context *gp_memory_use_context(const struct gp_gpu *g) { return next_context(g, NULL, true); }

struct gp_context *gp_memory_try_context(const struct gp_gpu *g) { return next_context(g, NULL, false); }

void gp_memory_answered(struct gp_context *c, CUresult result)
{
	if (!c || c->initialised || (result && result != CUDA_ERROR_OUT_OF_MEMORY))
		return;
	c->initialised = 1;
	gp_notify(); // the agent may ask now
}

void gp_memory_leave_context(struct gp_context *c)
{
	CUcontext popped;
	gp_driver.cuCtxPopCurrent(&popped);
	gp_context_unpin(c);
}

static _Atomic bool hurried[GP_GPUS]; // what moves there has become urgent meanwhile

void gp_memory_hurry(const struct gp_gpu *g) { hurried[g - gp_gpu] = true; }

static bool is_urgent(const struct gp_copies *copies) { return copies->urgent || hurried[copies->gpu - gp_gpu]; }

// Memory leaves a GPU because that is full: the driver may have none for a stream or an event either. Then the legacy stream serves, which
// each context has from its beginning on. It waits for other streams, which are empty: the gate is closed, and the GPU has done the work of
// before. Without an event the stream itself is asked.
bool gp_copies_open(struct gp_copies *copies)
{
	int least = 0, greatest;
	hurried[copies->gpu - gp_gpu] = false;
	gp_driver.cuCtxGetStreamPriorityRange(&least, &greatest);
	CUresult result = gp_driver.cuStreamCreateWithPriority(&copies->stream, CU_STREAM_NON_BLOCKING, least);
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		copies->stream = GP_STREAM_LEGACY;
	else if (result)
		return false;
	for (int i = 0; i < GP_PIECES_IN_FLIGHT; i++)
		if (gp_driver.cuEventCreate(&copies->event[i], CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC))
			copies->event[i] = NULL;
	return true;
}

void gp_copies_close(struct gp_copies *copies)
{
	for (int i = 0; i < GP_PIECES_IN_FLIGHT; i++) {
		if (copies->event[i])
			gp_driver.cuEventDestroy(copies->event[i]);
		copies->event[i] = NULL;
	}
	if (copies->stream != GP_STREAM_LEGACY)
		gp_driver.cuStreamDestroy(copies->stream);
}

// Asks the stream itself whether all copies have ended, where an event does not tell.
static bool ask_stream(struct gp_copies *copies)
{
	copies->unknown = copies->unknown || gp_driver.cuStreamSynchronize(copies->stream);
	if (!copies->unknown)
		copies->ended = copies->begun;
	return !copies->unknown;
}

// Sleeping until a small piece has ended would take as long again. One that does not end in time, as on a GPU that stands still,
// is no reason to keep a processor from others.
static CUresult wait_event(CUevent event, bool soon)
{
	for (uint64_t until = gp_now_ns() + SPIN_NS; soon && gp_now_ns() < until; sched_yield()) {
		CUresult result = gp_driver.cuEventQuery(event);
		if (result != CUDA_ERROR_NOT_READY)
			return result;
	}
	return gp_driver.cuEventSynchronize(event);
}

bool gp_copies_wait(struct gp_copies *copies, uint64_t upto)
{
	while (copies->ended < upto) {
		if (copies->unknown)
			return false;
		CUevent event = copies->event[copies->ended % GP_PIECES_IN_FLIGHT];
		if (!event || wait_event(event, copies->small))
			return ask_stream(copies);
		copies->ended++;
	}
	return true;
}

// Slots of the latency-critical processes that this one's copies may hurt.
static uint64_t served(const struct gp_gpu *g) { return g->higher | (gp_settings.level < GP_LEVELS - 1 ? g->same : 0); }

// How copies go now.
struct way {
	bool small;      // pieces
	uint64_t others; // pieces in flight beside the next one
};

// The slots whose memory is all there, so that they may copy now. A word that lies costs its own process alone.
static uint64_t running(struct gp_segment *s, uint64_t slots)
{
	uint64_t list = 0;
	for (; slots; slots &= slots - 1) {
		uint32_t slot = (uint32_t)__builtin_ctzll(slots);
		uint64_t state = s->slot[slot].memory.state;
		if (state == GP_MEMORY_RUNNING || state == GP_MEMORY_STUCK)
			list |= 1ull << slot;
	}
	return list;
}

// A latency-critical process that waits for the room has closed its window: only processes at work need all the care. One whose memory is
// out has no copies that could wait behind ours to the host. Each ms that ours take delays its request by as much.
static struct way way_of(const struct gp_copies *copies, bool to_device)
{
	struct gp_segment *s = copies->gpu->segment;
	uint64_t beside = s ? served(copies->gpu) & s->members : 0;
	if (!beside)
		return (struct way){false, GP_PIECES_IN_FLIGHT - 1};
	if (!to_device && !(beside = running(s, beside)))
		return (struct way){false, GP_PIECES_BESIDE_WAITING - 1};
	if (is_urgent(copies) && !gp_windows_open(s, beside))
		return (struct way){false, 1};
	return (struct way){true, 0};
}

// Pauses while a higher level has its window open. False: it will not be known when what is in flight ends.
static bool give_way(struct gp_copies *copies)
{
	struct gp_gpu *g = copies->gpu;
	struct gp_segment *s = g->segment;
	if (is_urgent(copies) || !s || !gp_windows_open(s, g->higher))
		return true;
	if (!gp_copies_wait(copies, copies->begun))
		return false;
	uint64_t until = gp_now_ns() + PAUSE_NS, now;
	while ((now = gp_now_ns()) < until) {
		uint64_t open = gp_windows_open(s, g->higher);
		if (!open)
			break;
		uint32_t slot = (uint32_t)__builtin_ctzll(open);
		gp_wait_gate(g, slot, gp_gate_seen(g, slot), until - now, false);
	}
	return true;
}

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

size_t gp_copies_add(struct gp_copies *copies, const struct gp_chunk *chunk, size_t offset, bool to_device)
{
	size_t in_one_place = least(chunk->bytes - offset, GP_CHUNK_BYTES - offset % GP_CHUNK_BYTES);
	char *host = (char *)chunk->host[offset / GP_CHUNK_BYTES] + offset % GP_CHUNK_BYTES;
	CUdeviceptr device = chunk->address + offset;

	if (copies->unknown || !give_way(copies))
		return 0;
	struct way way = way_of(copies, to_device);
	size_t bytes = least(in_one_place, way.small ? GP_SMALL_PIECE_BYTES : GP_PIECE_BYTES);
	if (copies->begun - copies->ended > way.others && !gp_copies_wait(copies, copies->begun - way.others))
		return 0;
	if (to_device ? gp_driver.cuMemcpyHtoDAsync(device, host, bytes, copies->stream) :
			gp_driver.cuMemcpyDtoHAsync(host, device, bytes, copies->stream))
		return 0;
	CUevent event = copies->event[copies->begun % GP_PIECES_IN_FLIGHT];
	copies->begun++;
	copies->small = way.small;
	if (event && gp_driver.cuEventRecord(event, copies->stream) && !ask_stream(copies))
		return 0;
	return bytes;
}

static size_t places_of(const struct gp_chunk *chunk) { return (chunk->bytes + GP_CHUNK_BYTES - 1) / GP_CHUNK_BYTES; }

static size_t bytes_of(const struct gp_chunk *chunk, size_t place)
{
	size_t left = chunk->bytes - place * GP_CHUNK_BYTES;
	return left < GP_CHUNK_BYTES ? left : GP_CHUNK_BYTES;
}

void gp_chunk_give_host(struct gp_chunk *chunk)
{
	for (size_t i = 0; chunk->host && i < places_of(chunk) && chunk->host[i]; i++)
		gp_arena_give(chunk->host[i], bytes_of(chunk, i));
	free(chunk->host);
	chunk->host = NULL;
}

bool gp_chunk_take_host(struct gp_gpu *g, struct gp_chunk *chunk)
{
	chunk->host = calloc(places_of(chunk), sizeof *chunk->host);
	for (size_t i = 0; chunk->host && i < places_of(chunk); i++)
		if (!(chunk->host[i] = gp_arena_take(g, bytes_of(chunk, i)))) {
			gp_chunk_give_host(chunk);
			return false;
		}
	return chunk->host != NULL;
}
