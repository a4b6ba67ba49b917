// memory.c - what is allocated. Device memory is host memory; device pointers are host pointers. What a device has is
// shared by the processes (engine.c). Host memory that nobody touches is not used.
#define _GNU_SOURCE
#include "sim.h"

#include <stdlib.h>
#include <sys/mman.h>

#define LARGE (2ull << 20) // as on a GPU, whose pages of 2 MiB begin a large allocation; smaller ones share pages
#define DEVICES 8

__thread int memory_accessor = -1;

static struct block *blocks;
static size_t count, room;
static uint64_t small[DEVICES]; // bytes of the small allocations

uint64_t memory_next_id(void)
{
	static uint64_t last;
	return ++last;
}

// ---- what the device has

static uint64_t in_pages(uint64_t bytes) { return (bytes + LARGE - 1) / LARGE * LARGE; }

bool memory_charge(int device, uint64_t bytes)
{
	if (bytes > sim_memory_bytes())
		return false;
	uint64_t before = bytes < LARGE ? in_pages(small[device]) : 0;
	uint64_t after = in_pages(bytes < LARGE ? small[device] + bytes : bytes);
	if (after != before && !engine_take_memory(device, after - before, sim_memory_bytes()))
		return false;
	if (bytes < LARGE)
		small[device] += bytes;
	return true;
}

void memory_discharge(int device, uint64_t bytes)
{
	uint64_t before = in_pages(bytes < LARGE ? small[device] : bytes), after = 0;
	if (bytes < LARGE) {
		small[device] -= bytes;
		after = in_pages(small[device]);
	}
	if (before != after)
		engine_give_memory(device, before - after);
}

// ---- allocations

static bool add(struct block b)
{
	if (count == room) {
		size_t more = room ? 2 * room : 64;
		struct block *larger = realloc(blocks, more * sizeof *larger);
		if (!larger)
			return false;
		blocks = larger;
		room = more;
	}
	b.owner = context_current();
	b.device = b.owner ? b.owner->device : 0;
	b.id = memory_next_id();
	blocks[count++] = b;
	return true;
}

bool memory_add(uint64_t address, uint64_t bytes, enum memory_kind kind)
{
	return add((struct block){.address = address, .bytes = bytes, .kind = kind});
}

static bool in_mappings(enum memory_kind kind, uint64_t bytes)
{
	return (kind == MEMORY_DEVICE || kind == MEMORY_MANAGED) && bytes >= LARGE;
}

static void *back(enum memory_kind kind, uint64_t bytes)
{
	void *p;
	if (!in_mappings(kind, bytes))
		return posix_memalign(&p, 512, bytes) == 0 ? p : NULL;
	uint64_t length = in_pages(bytes);
	p = mmap(NULL, length + LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	uint64_t from = in_pages((uint64_t)p), end = (uint64_t)p + length + LARGE;
	if (from > (uint64_t)p)
		munmap(p, from - (uint64_t)p);
	if (end > from + length)
		munmap((void *)(from + length), end - from - length);
	return (void *)from;
}

static void unback(const struct block *b)
{
	if (b->kind == MEMORY_REGISTERED)
		return;
	if (in_mappings(b->kind, b->bytes))
		munmap((void *)b->address, in_pages(b->bytes));
	else
		free((void *)b->address);
}

uint64_t memory_allocate(uint64_t bytes, enum memory_kind kind, struct pool *pool)
{
	struct CUctx_st *c = context_current();
	int device = c ? c->device : 0;
	bool charged = kind == MEMORY_DEVICE && !pool; // a pool's own is charged for
	if (charged && !memory_charge(device, bytes))
		return 0;
	struct block b = {.bytes = bytes, .kind = kind, .pool = pool};
	b.address = (uint64_t)back(kind, bytes);
	if (b.address && add(b))
		return b.address;
	if (b.address)
		unback(&b);
	if (charged)
		memory_discharge(device, bytes);
	return 0;
}

struct block *memory_block(uint64_t address)
{
	for (size_t i = 0; i < count; i++)
		if (address - blocks[i].address < blocks[i].bytes)
			return &blocks[i];
	return NULL;
}

static bool has_kind(const struct block *b, enum memory_kind kind)
{ // cuMemFree takes managed memory too
	return b->kind == kind || (kind == MEMORY_DEVICE && b->kind == MEMORY_MANAGED);
}

bool memory_known(uint64_t address, enum memory_kind kind)
{
	struct block *b = memory_block(address);
	return b && b->address == address && has_kind(b, kind);
}

bool memory_remove(uint64_t address, enum memory_kind kind)
{
	for (size_t i = 0; i < count; i++) {
		struct block *b = &blocks[i];
		if (b->address != address || !has_kind(b, kind))
			continue;
		if (b->pool)
			pool_take_back(b->pool, b->bytes);
		else if (b->kind == MEMORY_DEVICE)
			memory_discharge(b->device, b->bytes);
		unback(b);
		*b = blocks[--count];
		return true;
	}
	return false;
}

void memory_owner_ends(const struct CUctx_st *owner)
{
	for (size_t i = count; i-- > 0;)
		if (blocks[i].owner == owner && blocks[i].kind != MEMORY_REGISTERED)
			memory_remove(blocks[i].address, blocks[i].kind);
}

bool memory_pinned(uint64_t address) { return memory_block(address) || virtual_reserved(address, 1); }

bool memory_is_device(uint64_t address)
{
	struct block *b = memory_block(address);
	if (b)
		return b->kind == MEMORY_DEVICE || b->kind == MEMORY_MANAGED;
	struct mapping *m = virtual_mapping(address);
	return m ? virtual_device(m) >= 0 : virtual_reserved(address, 1);
}

static bool in_block(uint64_t address, uint64_t bytes)
{
	struct block *b = memory_block(address);
	return b && bytes <= b->bytes - (address - b->address);
}

bool address_known(uint64_t address, uint64_t bytes)
{
	return bytes == 0 || in_block(address, bytes) || virtual_reserved(address, bytes);
}

bool address_valid(uint64_t address, uint64_t bytes)
{
	return bytes == 0 || in_block(address, bytes) || virtual_accessible(address, bytes, memory_accessor);
}
