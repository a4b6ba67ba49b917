// move.c - evictions and restores.
//
// An eviction takes chunks in the order of addresses, no more than are asked for. The gate is closed, nobody is inside, and the
// GPU has nothing of this process to do, before the first chunk leaves; all that can miss the deadline comes before that. From
// then on every chunk has its contents whole in one place, which its state names: a chunk is OUT once its memory is unmapped and
// given back, and until then the device's contents are valid. It is IN again once its copy has ended, and until then the host's
// contents are valid.
//
// The bus must not wait for the driver's other work. So chunks are unmapped, and new ones made, while copies are in flight.
#define _GNU_SOURCE
#include "preempt/memory/move.h"
#include "preempt/memory/own.h"

#include <stdlib.h>

enum {
	RUN = 4,                // chunks that get their access by one call, which is the dear one
	AHEAD = 8,              // chunks that are made before their copies begin
	TELL_BYTES = 64 << 20,  // the bell rings each time that so much has left: a ms of the bus
	PATIENCE_NS = 10000000, // of a restore that may take no more, twice the time between two looks of an agent
	AGAIN_NS = 250000, // until the driver is asked again for memory that it did not have: it scrubs what was released
	REFUSALS = 40, // of the driver in a row end a restore: 10 ms. Counted, so that a thread that gets no processor asks as often
};

static pthread_mutex_t moving = PTHREAD_MUTEX_INITIALIZER;

struct gp_memory_others gp_memory_others;

// Chunks of one GPU that move, in the order of their copies.
struct list {
	size_t count;
	struct gp_chunk **chunk;
	uint64_t *ends; // the number of pieces that are copied when the chunk is
};

static bool list_room(struct list *l, size_t room)
{
	l->chunk = calloc(room + 1, sizeof *l->chunk);
	l->ends = calloc(room + 1, sizeof *l->ends);
	return l->chunk && l->ends;
}

static void list_free(struct list *l)
{
	free(l->chunk);
	free(l->ends);
}

// Whether the range's own GPU may read and write it. Memory that no kernel can reach cannot be copied.
static bool reachable(const struct gp_range *r)
{
	for (uint32_t i = 0; i < r->accesses; i++)
		if (r->access[i].location_type == CU_MEM_LOCATION_TYPE_DEVICE &&
		    r->access[i].location == r->gpu->device && r->access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
			return true;
	return false;
}

static bool evictable(const struct gp_range *r) { return !r->pins && reachable(r); }

// Counts chunks in a state, of ranges that can be evicted. The gate is closed, or gp_memory_lock is held.
static size_t count_chunks(const struct gp_gpu *g, enum gp_chunk_state state, uint64_t *bytes)
{
	size_t count = 0;
	*bytes = 0;
	for (struct gp_range *r = NULL; (r = gp_range_next(g, r));)
		for (size_t i = 0; evictable(r) && i < r->chunks; i++)
			if (r->chunk[i].state == state) {
				count++;
				*bytes += r->chunk[i].bytes;
			}
	return count;
}

static bool all_in(void)
{
	for (int i = 0; i < GP_GPUS && gp_gpu[i].known; i++)
		for (struct gp_range *r = NULL; (r = gp_range_next(&gp_gpu[i], r));)
			for (size_t k = 0; k < r->chunks; k++)
				if (r->chunk[k].state != GP_CHUNK_IN)
					return false;
	return true;
}

static bool lost;      // contents that are out cannot come back, and nothing moves any more. Under the lock of moves
static bool suspended; // the gate stays closed though all is in. Under the lock of moves

static void open_if_all_in(void)
{
	if (lost || (!suspended && all_in()))
		gp_memory_open();
}

static struct gp_memory *memory_of(const struct gp_gpu *g) { return &gp_memory[g - gp_gpu]; }

static void failed(const struct gp_gpu *g, enum gp_move_result *result)
{
	gp_count(&memory_of(g)->failures, 1);
	*result = GP_MOVE_FAILED;
}

// Mapping.

static CUresult map(struct gp_chunk *c) { return gp_driver.cuMemMap(c->address, c->bytes, 0, c->handle, 0); }

static CUresult give_access(const struct gp_range *r, CUdeviceptr address, size_t bytes)
{
	return gp_driver.cuMemSetAccess(address, bytes, r->access, r->accesses);
}

// Gives the memory of a chunk back. False: the driver refused, and the chunk is mapped as before. If the driver refuses to map
// it again, its memory is lost to everybody until the process ends.
static bool unmap(struct gp_chunk *c)
{
	if (gp_driver.cuMemUnmap(c->address, c->bytes))
		return false;
	if (gp_driver.cuMemRelease(c->handle) && !map(c)) {
		if (!give_access(c->range, c->address, c->bytes))
			return false;
		gp_driver.cuMemUnmap(c->address, c->bytes);
	}
	c->handle = 0;
	return true;
}

// Out.

// A chunk whose contents are in the host's memory leaves the device.
static void leave(const struct gp_gpu *g, struct gp_chunk *c, enum gp_move_result *result)
{
	if (!unmap(c)) {
		failed(g, result);
		gp_chunk_give_host(c);
		c->state = GP_CHUNK_IN;
		return;
	}
	c->state = GP_CHUNK_OUT;
	gp_account_move(&memory_of(g)->resident, &memory_of(g)->swapped, c->bytes);
	gp_count(&memory_of(g)->out_bytes, c->bytes);
}

// A chunk whose copy failed stays on the device. If it is not known whether the copy has ended, its place in the arena may
// still be written to, and is never used again.
static void stay(struct gp_chunk *c, bool known)
{
	if (known)
		gp_chunk_give_host(c);
	c->host = NULL;
	c->state = GP_CHUNK_IN;
}

static size_t leave_up_to(struct gp_copies *copies, struct list *l, size_t gone, size_t begun, enum gp_move_result *result)
{
	const struct gp_memory *m = memory_of(copies->gpu);
	uint64_t before = m->out_bytes;
	for (; gone < begun && l->ends[gone] <= copies->ended; gone++)
		leave(copies->gpu, l->chunk[gone], result);
	if (m->out_bytes / TELL_BYTES != before / TELL_BYTES)
		gp_ring(copies->gpu); // others may take the room at once, not only when this process's agent looks
	return gone;
}

static enum gp_move_result copy_out(struct gp_copies *copies, struct list *l)
{
	enum gp_move_result result = GP_MOVED;
	size_t gone = 0, begun = 0;
	bool adding = true;

	for (; adding && begun < l->count; begun++) {
		struct gp_chunk *c = l->chunk[begun];
		c->state = GP_CHUNK_LEAVING;
		for (size_t at = 0, added; adding && at < c->bytes; at += added) {
			adding = (added = gp_copies_add(copies, c, at, false)) > 0;
			gone = leave_up_to(copies, l, gone, begun, &result);
		}
		l->ends[begun] = adding ? copies->begun : UINT64_MAX;
	}
	bool known = gp_copies_wait(copies, copies->begun);
	leave_up_to(copies, l, gone, begun, &result);
	for (size_t i = gone; i < l->count; i++)
		if (l->chunk[i]->state == GP_CHUNK_LEAVING)
			stay(l->chunk[i], known);
		else if (l->chunk[i]->state == GP_CHUNK_IN && l->chunk[i]->host)
			stay(l->chunk[i], true); // its copy never began
	if (!adding || !known)
		failed(copies->gpu, &result);
	return result;
}

// Chooses chunks, and takes places for them in the arena. False: there is no host memory for any, though some could go.
static bool choose(struct gp_gpu *g, struct list *l, uint64_t bytes)
{
	uint64_t chosen = 0;
	for (struct gp_range *r = NULL; chosen < bytes && (r = gp_range_next(g, r));)
		for (size_t i = 0; evictable(r) && i < r->chunks && chosen < bytes; i++) {
			struct gp_chunk *c = &r->chunk[i];
			if (c->state != GP_CHUNK_IN)
				continue;
			if (!gp_chunk_take_host(g, c))
				return l->count > 0;
			l->chunk[l->count++] = c;
			chosen += c->bytes;
		}
	memory_of(g)->cannot_go =
		chosen < bytes ? memory_of(g)->resident - chosen : 0; // the gate is closed: nothing else comes or goes
	return true;
}

// Makes the driver give up what it keeps of memory that the program has freed.
static void trim(const struct gp_gpu *g)
{
	gp_pools_trim(g);
	if (gp_driver.cuDeviceGraphMemTrim)
		gp_driver.cuDeviceGraphMemTrim(g->device);
}

static enum gp_move_result move_out(struct gp_gpu *g, uint64_t bytes, bool urgent)
{
	struct list list = {.count = 0};
	struct gp_copies copies = {.gpu = g, .urgent = urgent};
	uint64_t there, began = gp_now_ns();
	size_t count = count_chunks(g, GP_CHUNK_IN, &there);
	enum gp_move_result result = GP_MOVED;

	if (there <= bytes)
		trim(g);
	if (!count) {
		memory_of(g)->cannot_go = memory_of(g)->resident;
		return GP_MOVED;
	}
	if (!list_room(&list, count) || !choose(g, &list, bytes)) {
		result = GP_MOVE_NO_HOST;
	} else if (!gp_copies_open(&copies)) {
		for (size_t i = 0; i < list.count; i++)
			gp_chunk_give_host(list.chunk[i]);
		failed(g, &result);
	} else {
		result = copy_out(&copies, &list);
		gp_copies_close(&copies);
	}
	list_free(&list);
	gp_count(&memory_of(g)->evictions, 1);
	gp_count(&memory_of(g)->out_ns, gp_now_ns() - began);
	return result;
}

// Closes the gate and waits until nothing of the process runs. If it does not succeed, the gate is open again.
static enum gp_move_result make_quiet(const struct gp_gpu *g, uint64_t deadline_ns)
{
	CUresult drained = CUDA_SUCCESS;

	gp_memory_others.hold_back(true);
	bool closed = gp_memory_close(deadline_ns);
	bool quiet = closed && gp_memory_others.wait_log(deadline_ns) && gp_memory_drain(deadline_ns, &drained);
	gp_memory_others.hold_back(false);
	if (quiet && !drained)
		return GP_MOVED;
	if (closed)
		gp_memory_open();
	if (!quiet)
		return GP_MOVE_BUSY;
	gp_count(&memory_of(g)->failures, 1); // the context has met an error: its contents cannot be copied
	return GP_MOVE_FAILED;
}

// Pins ahead while the program still runs. False: there is no host memory, but something could go.
static bool prepare_host(struct gp_gpu *g, uint64_t bytes)
{
	uint64_t there;
	pthread_mutex_lock(&gp_memory_lock);
	count_chunks(g, GP_CHUNK_IN, &there);
	pthread_mutex_unlock(&gp_memory_lock);
	if (!there)
		return true;
	struct gp_context *c = gp_memory_try_context(g);
	if (!c)
		return true; // a thread of the program may wait with it: what is missing is pinned when that is over
	bool some = gp_arena_grow(g, bytes < there ? bytes : there) || gp_arena_grow(g, GP_GRANULE);
	gp_memory_leave_context(c);
	return some;
}

static enum gp_move_result evict(struct gp_gpu *g, uint64_t bytes, uint64_t drain_ns, bool urgent)
{
	memory_of(g)->cannot_go = 0;
	if (lost)
		return GP_MOVE_FAILED;
	if (gp_memory_draining()) // a drain of an earlier eviction is still under way
		return GP_MOVE_BUSY;
	if (!gp_memory_closed()) {
		if (!prepare_host(g, bytes))
			return GP_MOVE_NO_HOST;
		enum gp_move_result quiet = make_quiet(g, gp_now_ns() + drain_ns);
		if (quiet != GP_MOVED)
			return quiet;
	}
	enum gp_move_result result = GP_MOVED;
	struct gp_context *c = gp_memory_use_context(g);
	if (c) {
		result = move_out(g, bytes, urgent);
		gp_memory_leave_context(c);
	} else { // the process has nothing there that can be copied
		memory_of(g)->cannot_go = memory_of(g)->resident;
	}
	open_if_all_in();
	return result;
}

enum gp_move_result gp_memory_evict(struct gp_gpu *g, uint64_t bytes, uint64_t drain_ns, bool urgent)
{
	pthread_mutex_lock(&moving);
	int mode = gp_relax_captures();
	enum gp_move_result result = evict(g, bytes, drain_ns, urgent);
	gp_unrelax_captures(mode);
	pthread_mutex_unlock(&moving);
	return result;
}

// In.

// The progress of a restore of one GPU: chunks below made are mapped, those below ready can be copied to, those below begun are being
// copied, those below came are IN.
struct coming {
	struct gp_copies copies;
	struct list list;
	size_t made, ready, begun, came;
	// How often the driver had no memory for the next chunk, and when it is asked again. 0, 0: it has.
	unsigned refusals;
	uint64_t again_ns;
	enum gp_move_result result;
};

// How far chunks of a GPU may be made: the agent's word, which grows while others leave, and falls where the room is needed for
// what goes first. In terms of gp_memory.taken_bytes.
static struct {
	_Atomic uint64_t upto;
	_Atomic uint32_t changes; // futex; stored last
} granted[GP_GPUS];

void gp_memory_grant(const struct gp_gpu *g, uint64_t upto)
{
	ptrdiff_t i = g - gp_gpu;
	granted[i].upto = upto;
	granted[i].changes++;
	gp_futex_wake(&granted[i].changes, 1, false);
}

static bool may_make(const struct coming *in)
{
	uint64_t upto = granted[in->copies.gpu - gp_gpu].upto, taken = memory_of(in->copies.gpu)->taken_bytes;
	if (in->made == in->list.count)
		return false;
	const struct gp_chunk *c = in->list.chunk[in->made];
	if (c->handle) // it has its memory where the driver refused to take that back
		return true;
	return taken < upto && c->bytes <= upto - taken && (!in->again_ns || gp_now_ns() >= in->again_ns);
}

// Waits until the next chunk may be made. False: nobody has left for a while, or the driver has had no memory for so long.
static bool wait_for_room(const struct coming *in)
{
	_Atomic uint32_t *changes = &granted[in->copies.gpu - gp_gpu].changes;
	uint64_t now = gp_now_ns(), until = now + PATIENCE_NS;
	if (in->refusals >= REFUSALS)
		return false;
	for (;; now = gp_now_ns()) {
		uint32_t seen = *changes;
		if (may_make(in))
			return true;
		if (now >= until)
			return false;
		uint64_t look = in->again_ns > now && in->again_ns < until ? in->again_ns : until;
		gp_futex_wait(changes, seen, look - now, false);
	}
}

// Takes back what was made for a chunk, whose contents stay in the host's memory.
static void unmake(struct coming *in, struct gp_chunk *c)
{
	if (!unmap(c)) // it keeps its handle, and make finds it
		failed(in->copies.gpu, &in->result);
	memory_of(in->copies.gpu)->taken_bytes -= c->bytes;
	c->state = GP_CHUNK_OUT;
}

static void make(struct coming *in)
{
	struct gp_chunk *c = in->list.chunk[in->made];
	CUresult result = CUDA_SUCCESS;
	if (!c->handle) {
		result = gp_driver.cuMemCreate(&c->handle, c->bytes, &c->range->properties, 0);
		if (result)
			c->handle = 0;
		else if ((result = map(c))) {
			gp_driver.cuMemRelease(c->handle);
			c->handle = 0;
			failed(in->copies.gpu, &in->result);
			return;
		}
	}
	if (result == CUDA_ERROR_OUT_OF_MEMORY) {
		in->refusals++;
		in->again_ns = gp_now_ns() + AGAIN_NS;
	} else if (result) {
		failed(in->copies.gpu, &in->result);
	} else {
		c->state = GP_CHUNK_COMING;
		memory_of(in->copies.gpu)->taken_bytes += c->bytes;
		in->refusals = 0;
		in->again_ns = 0;
		in->made++;
	}
}

static void make_ready(struct coming *in)
{
	struct gp_chunk *first = in->list.chunk[in->ready], *last = in->list.chunk[in->made - 1];
	if (!give_access(first->range, first->address, last->address + last->bytes - first->address)) {
		in->ready = in->made;
		return;
	}
	failed(in->copies.gpu, &in->result);
	while (in->made > in->ready)
		unmake(in, in->list.chunk[--in->made]);
}

// Whether the next chunk and those that are not ready can get their access by one call.
static bool continues(const struct coming *in)
{
	if (in->made == in->ready)
		return true;
	const struct gp_chunk *last = in->list.chunk[in->made - 1], *next = in->list.chunk[in->made];
	return in->made - in->ready < RUN && next->range == last->range && next->address == last->address + last->bytes;
}

// Does one step towards later chunks: makes one, or gives some access. False: there is nothing to do.
static bool prepare(struct coming *in)
{
	bool more = in->result == GP_MOVED && in->made < in->begun + AHEAD && may_make(in);
	if (more && continues(in))
		make(in);
	else if (in->made > in->ready)
		make_ready(in);
	else
		return false;
	return true;
}

static void come_up_to(struct coming *in)
{
	struct gp_memory *memory = memory_of(in->copies.gpu);
	for (; in->came < in->begun && in->list.ends[in->came] <= in->copies.ended; in->came++) {
		struct gp_chunk *c = in->list.chunk[in->came];
		gp_chunk_give_host(c);
		c->state = GP_CHUNK_IN;
		gp_account_move(&memory->swapped, &memory->resident, c->bytes);
		gp_count(&memory->in_bytes, c->bytes);
	}
}

static bool begin_copy(struct coming *in)
{
	const struct gp_chunk *c = in->list.chunk[in->begun];
	for (size_t at = 0, added; at < c->bytes; at += added) {
		if (!(added = gp_copies_add(&in->copies, c, at, true)))
			return false;
		prepare(in);
		come_up_to(in);
	}
	in->list.ends[in->begun++] = in->copies.begun;
	return true;
}

// Nothing is ready. More may be allowed, or scrubbed, while pieces are copied, so they are waited for one by one: the bus is to
// find the next chunk before it has done the last one. False: no more will be ready.
static bool rest(struct coming *in)
{
	if (in->copies.ended == in->copies.begun)
		return wait_for_room(in);
	bool known = gp_copies_wait(&in->copies, in->copies.ended + 1);
	come_up_to(in);
	return known;
}

static void copy_in(struct coming *in)
{
	bool adding = true;
	while (adding && in->begun < in->list.count) {
		while (in->ready <= in->begun && prepare(in))
			;
		if (in->ready > in->begun)
			adding = begin_copy(in);
		else if (in->result != GP_MOVED || !rest(in))
			break;
	}
	bool known = gp_copies_wait(&in->copies, in->copies.begun);
	come_up_to(in);
	if (!adding || !known)
		failed(in->copies.gpu, &in->result);
	// A copy whose end is not known only reads the host's memory.
	while (in->made > in->came)
		unmake(in, in->list.chunk[--in->made]);
}

// Lists chunks of a GPU that are out. False: there is no memory for the list.
static bool list_out(struct gp_gpu *g, struct list *l)
{
	size_t count = 0;
	for (struct gp_range *r = NULL; (r = gp_range_next(g, r));)
		count += r->chunks;
	if (!list_room(l, count))
		return false;
	for (struct gp_range *r = NULL; (r = gp_range_next(g, r));)
		for (size_t i = 0; i < r->chunks; i++)
			if (r->chunk[i].state == GP_CHUNK_OUT)
				l->chunk[l->count++] = &r->chunk[i];
	return true;
}

// Makes a context current in which copies can be made: of several, some may have met an error.
static struct gp_context *open_copies(struct gp_copies *copies)
{
	struct gp_context *c = NULL;
	while ((c = gp_memory_next_context(copies->gpu, c))) {
		if (gp_copies_open(copies))
			return c;
		gp_memory_leave_context(c);
	}
	return NULL;
}

// An error that stays with a context is what the program gets from all of its calls there, as without the library. So where all
// contexts of a GPU have met one, the program goes on to be told, although the contents are lost.
static void give_up_if_lost(const struct gp_gpu *g)
{
	bool any = false, lives = false;
	for (struct gp_context *c = NULL; (c = gp_memory_next_context(g, c));) {
		any = true;
		lives = lives || !gp_driver.cuCtxSynchronize(); // nothing runs
		gp_memory_leave_context(c);
	}
	if (!any || lives)
		return;
	lost = true;
	gp_log_line("the program's contexts met an error while its memory was in host memory: the contents are lost "
		    "with them");
}

// Whether the program has a context there, or one whose end is under way: the caller of that must find out whether it has ended.
static bool has_context(const struct gp_gpu *g)
{
	bool any = false;
	for (int i = 0; i < GP_CONTEXTS; i++)
		any |= gp_context[i].handle && gp_context[i].gpu == g;
	pthread_mutex_lock(&gp_memory_lock); // what is doomed is so before its context has no place any more
	for (struct gp_range *r = NULL; (r = gp_range_next(g, r));)
		any |= r->doomed;
	pthread_mutex_unlock(&gp_memory_lock);
	return any;
}

// Memory that the program mapped itself outlives its contexts. If the last one has ended, the program may wait for that memory, to unmap
// it, and never make another. So the primary context serves meanwhile.
static bool borrow(struct gp_copies *copies)
{
	CUdevice device = copies->gpu->device;
	CUcontext primary, popped;
	if (has_context(copies->gpu) || !gp_driver.cuDevicePrimaryCtxRetain || !gp_driver.cuDevicePrimaryCtxRelease ||
	    gp_driver.cuDevicePrimaryCtxRetain(&primary, device))
		return false;
	if (!gp_driver.cuCtxPushCurrent(primary)) {
		if (gp_copies_open(copies))
			return true;
		gp_driver.cuCtxPopCurrent(&popped);
	}
	gp_driver.cuDevicePrimaryCtxRelease(device);
	return false;
}

static void give_back(const struct gp_gpu *g)
{
	CUcontext popped;
	gp_driver.cuCtxPopCurrent(&popped);
	gp_driver.cuDevicePrimaryCtxRelease(g->device);
}

static enum gp_move_result move_in(struct gp_gpu *g, uint64_t most, bool urgent)
{
	struct coming in = {.copies = {.gpu = g, .urgent = urgent}};
	uint64_t began = gp_now_ns(), taken = memory_of(g)->taken_bytes;

	gp_memory_grant(g, most < UINT64_MAX - taken ? taken + most : UINT64_MAX);
	if (!list_out(g, &in.list)) {
		failed(g, &in.result);
	} else if (in.list.count) {
		struct gp_context *c = open_copies(&in.copies);
		if (c || borrow(&in.copies)) {
			copy_in(&in);
			gp_copies_close(&in.copies);
			if (c)
				gp_memory_leave_context(c);
			else
				give_back(g);
			gp_count(&memory_of(g)->restores, 1);
			gp_count(&memory_of(g)->in_ns, gp_now_ns() - began);
		} else {
			failed(g, &in.result);
			give_up_if_lost(g);
		}
	}
	list_free(&in.list);
	uint64_t left;
	if (in.result == GP_MOVED && count_chunks(g, GP_CHUNK_OUT, &left))
		return GP_MOVE_NO_ROOM;
	return in.result;
}

enum gp_move_result gp_memory_restore(struct gp_gpu *g, uint64_t most, bool urgent)
{
	pthread_mutex_lock(&moving);
	enum gp_move_result result = lost ? GP_MOVE_FAILED : GP_MOVED;
	if (gp_memory_closed() && !lost) {
		int mode = gp_relax_captures();
		result = move_in(g, most, urgent);
		gp_unrelax_captures(mode);
		open_if_all_in();
	}
	pthread_mutex_unlock(&moving);
	return result;
}

bool gp_memory_suspend(bool on, uint64_t deadline_ns)
{
	pthread_mutex_lock(&moving);
	int mode = gp_relax_captures();
	if (on && !suspended)
		suspended = gp_memory_closed() || (!gp_memory_draining() && make_quiet(gp_gpu, deadline_ns) == GP_MOVED);
	else if (!on && suspended) {
		suspended = false;
		open_if_all_in();
	}
	bool done = suspended == on;
	gp_unrelax_captures(mode);
	pthread_mutex_unlock(&moving);
	return done;
}

static int cancel_state; // whether the thread that keeps moves away may be cancelled. Under the lock of moves

// A thread that is cancelled meanwhile ends only after gp_memory_let_moves, which nobody else would call.
bool gp_memory_keep_moves_away(void)
{
	if (!gp_memory_on || !gp_memory_closed() || gp_memory_inside()) // the mover may be waiting for a thread that is inside
		return false;
	int before = gp_cancel_off();
	pthread_mutex_lock(&moving);
	if (gp_memory_closed()) {
		cancel_state = before;
		return true;
	}
	pthread_mutex_unlock(&moving);
	gp_cancel_on(before);
	return false;
}

void gp_memory_let_moves(void)
{
	int before = cancel_state;
	open_if_all_in();
	pthread_mutex_unlock(&moving);
	gp_cancel_on(before);
}
