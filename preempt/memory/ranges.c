// ranges.c - the table of ranges: an array in the order of addresses.
#define _GNU_SOURCE
#include "preempt/memory/memory.h"

#include <stdlib.h>
#include <string.h>

pthread_mutex_t gp_memory_lock = PTHREAD_MUTEX_INITIALIZER;

static struct {
	struct gp_range **at;
	size_t count, room;
} table;

// The place of the first range that ends behind an address.
static size_t place_of(CUdeviceptr address)
{
	size_t low = 0, high = table.count;
	while (low < high) {
		size_t middle = (low + high) / 2;
		const struct gp_range *r = table.at[middle];
		if (r->address + r->bytes > address)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

struct gp_range *gp_range_at(CUdeviceptr address)
{
	size_t place = place_of(address);
	return place < table.count && table.at[place]->address <= address ? table.at[place] : NULL;
}

struct gp_range *gp_range_from(CUdeviceptr address)
{
	size_t place = place_of(address);
	return place < table.count ? table.at[place] : NULL;
}

static bool make_room(void)
{
	if (table.count < table.room)
		return true;
	size_t room = table.room ? 2 * table.room : 256;
	struct gp_range **at = realloc(table.at, room * sizeof *at);
	if (!at)
		return false;
	table.at = at;
	table.room = room;
	return true;
}

// All chunks but the last have GP_CHUNK_BYTES. A single one is as large as the range.
static void cut(struct gp_range *r)
{
	for (size_t i = 0; i < r->chunks; i++) {
		size_t before = i * GP_CHUNK_BYTES;
		bool last = i == r->chunks - 1;
		r->chunk[i].address = r->address + before;
		r->chunk[i].bytes = last ? r->bytes - before : GP_CHUNK_BYTES;
		r->chunk[i].range = r;
	}
}

struct gp_range *gp_range_new(CUdeviceptr address, size_t asked, size_t bytes, enum gp_range_kind kind, size_t chunks)
{
	static uint64_t last_id = GP_RANGE_IDS;
	size_t place = place_of(address);
	bool wraps = !bytes || address + bytes < address; // programs name what addresses they like
	if (wraps || (place < table.count && table.at[place]->address < address + bytes) || !make_room())
		return NULL;
	struct gp_range *r = calloc(1, sizeof *r + chunks * sizeof *r->chunk);
	if (!r)
		return NULL;
	*r = (struct gp_range){.address = address,
			       .asked = asked,
			       .bytes = bytes,
			       .kind = kind,
			       .id = ++last_id,
			       .chunks = chunks,
			       .chunk = (struct gp_chunk *)(r + 1)};
	cut(r);
	memmove(&table.at[place + 1], &table.at[place], (table.count - place) * sizeof *table.at);
	table.at[place] = r;
	table.count++;
	return r;
}

void gp_range_drop(struct gp_range *r)
{
	size_t place = place_of(r->address);
	table.count--;
	memmove(&table.at[place], &table.at[place + 1], (table.count - place) * sizeof *table.at);
	free(r);
}

struct gp_range *gp_range_next(const struct gp_gpu *gpu, const struct gp_range *after)
{
	for (size_t i = after ? place_of(after->address) + 1 : 0; i < table.count; i++)
		if (table.at[i]->gpu == gpu)
			return table.at[i];
	return NULL;
}
