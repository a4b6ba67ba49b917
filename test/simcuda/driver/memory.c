// memory.c - what is allocated. Device memory is host memory; device pointers are host pointers.
#include "sim.h"

#include <stdlib.h>

#define LARGE (2u << 20)

struct block {
	uint64_t address, bytes;
	enum memory_kind kind;
	struct CUctx_st *owner; // whose context was current
};
static struct block *blocks;
static size_t count, room;
static uint64_t device_bytes;

bool memory_add(uint64_t address, uint64_t bytes, enum memory_kind kind) {
	if (count == room) {
		size_t more = room ? 2 * room : 64;
		struct block *b = realloc(blocks, more * sizeof *b);
		if (!b)
			return false;
		blocks = b;
		room = more;
	}
	blocks[count++] = (struct block){address, bytes, kind, context_current()};
	if (kind == MEMORY_DEVICE)
		device_bytes += bytes;
	return true;
}

uint64_t memory_allocate(uint64_t bytes, enum memory_kind kind) {
	void *p;
	if (kind == MEMORY_DEVICE && (bytes > machine.memory_bytes || device_bytes > machine.memory_bytes - bytes))
		return 0;
	// As on a GPU, whose pages of 2 MiB begin a large allocation.
	bool large = kind == MEMORY_DEVICE && bytes >= LARGE;
	if (posix_memalign(&p, large ? LARGE : 512, bytes) != 0)
		return 0;
	if (!memory_add((uint64_t)p, bytes, kind)) {
		free(p);
		return 0;
	}
	return (uint64_t)p;
}

static struct block *covering(uint64_t address) {
	for (size_t i = 0; i < count; i++)
		if (address - blocks[i].address < blocks[i].bytes)
			return &blocks[i];
	return NULL;
}

bool memory_known(uint64_t address, enum memory_kind kind) {
	struct block *b = covering(address);
	return b && b->address == address && b->kind == kind;
}

bool memory_remove(uint64_t address, enum memory_kind kind) {
	for (size_t i = 0; i < count; i++)
		if (blocks[i].address == address && blocks[i].kind == kind) {
			if (kind == MEMORY_DEVICE)
				device_bytes -= blocks[i].bytes;
			if (kind != MEMORY_REGISTERED)
				free((void *)address);
			blocks[i] = blocks[--count];
			return true;
		}
	return false;
}

void memory_owner_ends(const struct CUctx_st *owner) {
	for (size_t i = count; i-- > 0;)
		if (blocks[i].owner == owner && blocks[i].kind != MEMORY_REGISTERED)
			memory_remove(blocks[i].address, blocks[i].kind);
}

bool memory_pinned(uint64_t address) {
	return covering(address) != NULL;
}

bool memory_is_device(uint64_t address) {
	struct block *b = covering(address);
	return b && b->kind == MEMORY_DEVICE;
}

bool memory_range(uint64_t address, uint64_t *start, uint64_t *bytes) {
	struct block *b = covering(address);
	if (b)
		*start = b->address, *bytes = b->bytes;
	return b != NULL;
}

struct CUctx_st *memory_owner(uint64_t address) {
	struct block *b = covering(address);
	return b ? b->owner : NULL;
}

uint64_t memory_in_use(void) {
	return device_bytes;
}

bool address_valid(uint64_t address, uint64_t bytes) {
	struct block *b = covering(address);
	return bytes == 0 || (b && bytes <= b->bytes - (address - b->address));
}
