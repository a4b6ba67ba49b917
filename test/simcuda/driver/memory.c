// memory.c - what is allocated. Device memory is host memory, and device pointers are host pointers. The host gives pages only
// where something is written.
#define _GNU_SOURCE
#include "sim.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096ull
#define BESIDE 512 // offset of a small allocation in its first page: on a GPU it shares that page with others

__thread const struct CUctx_st *memory_user;

static struct block *blocks;
static size_t count, room;

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
	if (b.kind != MEMORY_IMPORTED)
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

// Where the pages of device memory begin. Another process can be given pages.
static uint64_t page_of(const struct block *b) { return b->address / PAGE * PAGE; }

static uint64_t length_of(const struct block *b)
{
	uint64_t bytes = b->address % PAGE + b->bytes;
	return b->bytes >= LARGE ? memory_pages(b->bytes) : (bytes + PAGE - 1) / PAGE * PAGE;
}

static void *back(enum memory_kind kind, uint64_t bytes)
{
	void *p;
	if (kind == MEMORY_DEVICE && bytes < LARGE) {
		p = mmap(NULL, BESIDE + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		return p == MAP_FAILED ? NULL : (char *)p + BESIDE;
	}
	if (!in_mappings(kind, bytes))
		return posix_memalign(&p, 512, bytes) == 0 ? p : NULL;
	uint64_t length = memory_pages(bytes);
	p = mmap(NULL, length + LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	uint64_t from = memory_pages((uint64_t)p), end = (uint64_t)p + length + LARGE;
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
	if (b->exported)
		close(b->file);
	if (b->kind == MEMORY_DEVICE || b->kind == MEMORY_IMPORTED || in_mappings(b->kind, b->bytes))
		munmap((void *)page_of(b), length_of(b));
	else
		free((void *)b->address);
}

uint64_t memory_allocate(uint64_t bytes, enum memory_kind kind, struct pool *pool)
{
	struct CUctx_st *c = context_current();
	int device = c ? c->device : 0;
	bool charged = kind == MEMORY_DEVICE && !pool; // a pool has been charged for what comes from it
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
			memory_freed(b->device, b->bytes);
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

// ---- memory of other processes

bool memory_export(struct block *b)
{
	if (b->exported)
		return true;
	void *page = (void *)page_of(b);
	uint64_t length = length_of(b);
	int file = memfd_create("simcuda-exported", MFD_CLOEXEC);
	void *copy = MAP_FAILED;
	if (file >= 0 && ftruncate(file, (off_t)length) == 0)
		copy = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (copy == MAP_FAILED) {
		close(file);
		return false;
	}
	virtual_change_begin();
	memcpy((char *)copy + b->address % PAGE, (void *)b->address, b->bytes);
	mmap(page, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
	virtual_change_end();
	munmap(copy, length);
	b->exported = true;
	b->file = file;
	return true;
}

uint64_t memory_import(const struct block *b, int file)
{
	struct block own = *b;
	void *page = mmap(NULL, length_of(b), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	own.address = (uint64_t)page + b->address % PAGE;
	if (page == MAP_FAILED || add(own))
		return page == MAP_FAILED ? 0 : own.address;
	munmap(page, length_of(b));
	return 0;
}

struct block *memory_imported(uint64_t owner_id)
{
	for (size_t i = 0; i < count; i++)
		if (blocks[i].kind == MEMORY_IMPORTED && blocks[i].owner_id == owner_id)
			return &blocks[i];
	return NULL;
}

// ---- what an address is

bool memory_is_device(uint64_t address)
{
	struct block *b = memory_block(address);
	if (b)
		return b->kind == MEMORY_DEVICE || b->kind == MEMORY_MANAGED || b->kind == MEMORY_IMPORTED;
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

// Whether memory_user may use an allocation: of its own device, of a peer, or of a pool that its device may use.
static bool reached(const struct block *b)
{
	if (!memory_user || b->kind != MEMORY_DEVICE || b->device == memory_user->device)
		return true;
	return b->pool ? pool_reached(b->pool, memory_user->device) : memory_user->peers & 1u << b->device;
}

static bool mapped_for_user(uint64_t address, uint64_t bytes)
{
	return virtual_accessible(address, bytes, memory_user ? memory_user->device : -1);
}

bool address_valid(uint64_t address, uint64_t bytes)
{
	if (bytes == 0)
		return true;
	return in_block(address, bytes) ? reached(memory_block(address)) : mapped_for_user(address, bytes);
}

bool address_copied(uint64_t address, uint64_t bytes)
{
	return bytes == 0 || in_block(address, bytes) || mapped_for_user(address, bytes);
}
