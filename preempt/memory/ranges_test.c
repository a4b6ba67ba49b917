// ranges_test.c - with preempt/memory/ranges.c.
//
// Random ranges come and go; the table must say of each address what a plain list says.
#define _GNU_SOURCE
#include "preempt/memory/memory.h"
#include "test/units/check.h"

enum { SLOTS = 4096, STEPS = 200000 }; // a range may lie in some slots of GP_GRANULE, beginning with its own

struct gp_gpu gp_gpu[GP_GPUS];
static struct gp_range *begins[SLOTS], *covers[SLOTS];
static uint64_t base = 0x7f0000000000;

static CUdeviceptr address_of(size_t slot) { return base + slot * GP_GRANULE; }

static void add(size_t slot)
{
	size_t slots = 1 + random_number() % 8, bytes;
	bool taken = false;
	slots = slots < SLOTS - slot ? slots : SLOTS - slot;
	bytes = slots * GP_GRANULE;
	for (size_t i = slot; i < slot + slots; i++)
		taken |= covers[i] != NULL;
	struct gp_range *r = gp_range_new(address_of(slot), bytes - 5, bytes, GP_RANGE_ALLOCATED, 1);
	CHECK(!r == taken);
	if (!r)
		return;
	r->gpu = &gp_gpu[random_number() % 2];
	begins[slot] = r;
	for (size_t i = slot; i < slot + slots; i++)
		covers[i] = r;
}

static void drop(size_t slot)
{
	struct gp_range *r = covers[slot];
	if (!r)
		return;
	for (size_t i = 0; i < SLOTS; i++) {
		if (covers[i] == r)
			covers[i] = NULL;
		if (begins[i] == r)
			begins[i] = NULL;
	}
	gp_range_drop(r);
}

static void compare_one(void)
{
	size_t slot = random_number() % SLOTS;
	CHECK(gp_range_at(address_of(slot)) == covers[slot]);
	CHECK(gp_range_at(address_of(slot) + GP_GRANULE - 1) == covers[slot]);
}

static void compare_order(void)
{
	for (int gpu = 0; gpu < 3; gpu++) {
		struct gp_range *r = NULL;
		for (size_t slot = 0; slot < SLOTS; slot++) {
			if (!begins[slot] || begins[slot]->gpu != &gp_gpu[gpu])
				continue;
			r = gp_range_next(&gp_gpu[gpu], r);
			CHECK(r == begins[slot]);
		}
		CHECK(!gp_range_next(&gp_gpu[gpu], r) || (!r && gpu == 2));
	}
	CHECK(!gp_range_at(base - 1) && !gp_range_at(address_of(SLOTS)) && !gp_range_at(0) && !gp_range_at(~0ull));
}

static void test_random(void)
{
	for (int step = 0; step < STEPS; step++) {
		size_t slot = random_number() % SLOTS;
		if (random_number() % 3)
			add(slot);
		else
			drop(slot);
		compare_one();
		if (step % 1000 == 0)
			compare_order();
	}
	for (size_t slot = 0; slot < SLOTS; slot++)
		drop(slot);
	compare_order();
}

// Chunks lie side by side and cover the range.
static void test_chunks(void)
{
	size_t bytes = 2 * GP_CHUNK_BYTES + 3 * GP_GRANULE;
	struct gp_range *r = gp_range_new(base, bytes, bytes, GP_RANGE_ALLOCATED, 3);
	CHECK(r && r->chunks == 3 && r->chunk[0].bytes == GP_CHUNK_BYTES && r->chunk[2].bytes == 3 * GP_GRANULE);
	CUdeviceptr end = base;
	for (size_t i = 0; i < r->chunks; i++) {
		CHECK(r->chunk[i].address == end && r->chunk[i].range == r && r->chunk[i].state == GP_CHUNK_IN);
		end += r->chunk[i].bytes;
	}
	CHECK(end == base + bytes);
	uint64_t id = r->id;
	gp_range_drop(r);
	r = gp_range_new(base, bytes, bytes, GP_RANGE_MAPPED, 1);
	CHECK(r && r->id != id && r->chunk[0].bytes == bytes);
	gp_range_drop(r);
}

// Programs map at addresses of their own: none may have an end that is not behind it.
static void test_last_addresses(void)
{
	struct gp_range *r = gp_range_new(base, GP_GRANULE, GP_GRANULE, GP_RANGE_MAPPED, 1);
	CHECK(r && !gp_range_new(UINT64_MAX, GP_GRANULE, GP_GRANULE, GP_RANGE_MAPPED, 1));
	CHECK(!gp_range_new(UINT64_MAX - GP_GRANULE + 1, GP_GRANULE, GP_GRANULE, GP_RANGE_MAPPED, 1));
	CHECK(!gp_range_new(base + GP_GRANULE, UINT64_MAX, UINT64_MAX, GP_RANGE_MAPPED, 1));
	CHECK(!gp_range_new(base + GP_GRANULE, 0, 0, GP_RANGE_MAPPED, 1));
	CHECK(gp_range_at(base) == r && gp_range_from(base + GP_GRANULE) == NULL);
	gp_range_drop(r);
}

int main(void)
{
	test_random();
	test_chunks();
	test_last_addresses();
	return 0;
}
