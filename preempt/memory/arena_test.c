// arena_test.c - with preempt/memory/arena.c.
//
// Places of all sizes are taken and given back at random, in pieces that nobody pins.
#define _GNU_SOURCE
#include "preempt/memory/arena.h"
#include "test/units/check.h"

#include <string.h>
#include <sys/mman.h>

enum { TAKEN = 200, STEPS = 20000, PIECES = 12, MiB = 1 << 20 };

struct gp_memory_settings gp_memory_settings = {.host_bytes = PIECES * GP_CHUNK_BYTES};
static struct gp_gpu gpus[2];
static uint64_t now_ns = 1, left = UINT64_MAX;
static int made, pinned;
static bool refuses;
static CUcontext current = (CUcontext)0x10;

uint64_t gp_now_ns(void) { return now_ns; }
uint64_t gp_host_left(const char *prefix) { return left; }
CUcontext gp_piece_context(void) { return current; }

void *gp_piece_make(const struct gp_gpu *g)
{
	made++;
	void *memory = mmap(NULL, GP_CHUNK_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(memory != MAP_FAILED);
	return memory;
}

static bool cuts;

bool gp_piece_touch(void *memory, const _Atomic bool *cut)
{
	if (cuts)
		gp_arena_cut(true);
	return !*cut;
}

bool gp_piece_pin(void *memory)
{
	pinned += !refuses;
	return !refuses;
}

void gp_piece_end(void *memory, bool was_pinned)
{
	made--;
	pinned -= was_pinned;
	munmap(memory, GP_CHUNK_BYTES);
}

static struct {
	char *memory;
	size_t bytes;
} taken[TAKEN];

static void check_apart(const char *memory, size_t bytes)
{
	for (int i = 0; i < TAKEN; i++)
		CHECK(!taken[i].memory || memory + bytes <= taken[i].memory || taken[i].memory + taken[i].bytes <= memory);
}

static void test_random(void)
{
	uint64_t sum = 0, refused = 0;
	for (int step = 0; step < STEPS; step++) {
		size_t i = random_number() % TAKEN;
		if (taken[i].memory) {
			gp_arena_give(taken[i].memory, taken[i].bytes);
			sum -= taken[i].bytes;
			taken[i].memory = NULL;
			continue;
		}
		size_t bytes = (1 + random_number() % (random_number() % 8 ? 16 : 128)) * GP_GRANULE;
		char *memory = gp_arena_take(&gpus[random_number() % 2], bytes);
		CHECK((uint64_t)made * GP_CHUNK_BYTES == gp_arena_pinned() && made <= PIECES && made == pinned);
		if (!memory) { // only where the bound is reached
			CHECK(made == PIECES);
			refused++;
			continue;
		}
		check_apart(memory, bytes);
		taken[i].memory = memory;
		taken[i].bytes = bytes;
		sum += bytes;
		CHECK(sum <= gp_arena_pinned());
	}
	CHECK(refused && refused < STEPS / 4);
	for (int i = 0; i < TAKEN; i++)
		if (taken[i].memory)
			gp_arena_give(taken[i].memory, taken[i].bytes);
	CHECK(made == PIECES);
	gp_arena_trim(3 * GP_CHUNK_BYTES);
	CHECK(made == 3);
	gp_arena_trim(0);
	CHECK(!made && !pinned && !gp_arena_pinned());
}

static void test_grow(void)
{
	CHECK(gp_arena_grow(&gpus[0], 3 * GP_CHUNK_BYTES) && made == 3);
	CHECK(gp_arena_grow(&gpus[0], 3 * GP_CHUNK_BYTES) && made == 3);
	void *memory = gp_arena_take(&gpus[0], 1);
	CHECK(memory && gp_arena_grow(&gpus[0], 3 * GP_CHUNK_BYTES) && made == 4);
	CHECK(!gp_arena_grow(&gpus[0], PIECES * GP_CHUNK_BYTES) && made == PIECES); // 2 MiB are missing
	gp_arena_trim(0);
	CHECK(made == 1); // in use
	gp_arena_give(memory, 1);
	gp_arena_trim(0);
	CHECK(!made);
	CHECK(!gp_arena_take(&gpus[0], 0) && !gp_arena_take(&gpus[0], GP_CHUNK_BYTES + 1));
}

static void test_bounds(void)
{
	left = GP_CHUNK_BYTES - 1;
	CHECK(!gp_arena_take(&gpus[0], MiB) && !made);
	left = GP_CHUNK_BYTES;
	gp_memory_settings.host_bytes = GP_CHUNK_BYTES - 1;
	CHECK(!gp_arena_take(&gpus[0], MiB) && !made);
	gp_memory_settings.host_bytes = PIECES * GP_CHUNK_BYTES;
	refuses = true;
	CHECK(!gp_arena_take(&gpus[0], MiB) && !made && !gp_arena_pinned());
	refuses = false;
	CHECK(!gp_arena_take(&gpus[0], MiB)); // not at once
	now_ns += 60000000000;
	void *memory = gp_arena_take(&gpus[0], MiB);
	CHECK(memory);
	gp_arena_give(memory, MiB);
}

// Memory is no longer pinned when the context in which it was pinned has ended. It is pinned again when it is needed.
static void test_contexts(void)
{
	CHECK(made == 1 && pinned == 1);
	gp_arena_context_destroying((CUcontext)0x20);
	gp_arena_context_destroyed((CUcontext)0x20, true);
	CHECK(gp_arena_pinned() == GP_CHUNK_BYTES);
	for (int is = 0; is <= 1; is++) {
		gp_arena_context_destroying(current);
		gp_arena_trim(0);
		CHECK(gp_arena_pinned() == GP_CHUNK_BYTES && made == 1); // nobody knows yet
		gp_arena_context_destroyed(current, is);
		CHECK(made == 1 && gp_arena_pinned() == (is ? 0 : GP_CHUNK_BYTES));
	}
	current = (CUcontext)0x20;
	void *memory = gp_arena_take(&gpus[1], MiB);
	CHECK(memory && made == 1 && pinned == 2 && gp_arena_pinned() == GP_CHUNK_BYTES);
	gp_arena_give(memory, MiB);
	gp_arena_context_destroying(current);
	gp_arena_context_destroyed(current, true);
	gp_arena_trim(0);
	CHECK(!made && pinned == 2);
}

// Pinning that is cut short leaves a piece that is not pinned, and that is the next one to be. No piece is given back while that is on.
static void test_cut(void)
{
	int before = pinned;
	cuts = true;
	CHECK(!gp_arena_grow(&gpus[0], 2 * GP_CHUNK_BYTES) && made == 1 && pinned == before && !gp_arena_pinned());
	CHECK(!gp_arena_grow(&gpus[0], 2 * GP_CHUNK_BYTES) && made == 1);
	gp_arena_trim(0);
	CHECK(made == 1);
	cuts = false;
	gp_arena_cut(false);
	CHECK(gp_arena_grow(&gpus[0], 2 * GP_CHUNK_BYTES) && made == 2 && pinned == before + 2);
	CHECK(gp_arena_pinned() == 2 * GP_CHUNK_BYTES);
	gp_arena_trim(0);
	CHECK(!made && pinned == before);
}

int main(void)
{
	test_random();
	test_grow();
	test_bounds();
	test_contexts();
	test_cut();
	return 0;
}
