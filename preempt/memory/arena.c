// arena.c - pinned host memory, in pieces of GP_CHUNK_BYTES that chunks share.
//
// Pinning takes 100 ms a GiB and more, so pieces are kept, made ahead, and given back when they are not needed for long. Memory stays
// pinned until the context ends in which it was pinned.
#define _GNU_SOURCE
#include "preempt/memory/arena.h"

#include <string.h>

enum {
	PIECES = 8192, // 2 TiB
	GRANULES = GP_CHUNK_BYTES / GP_GRANULE,
	WORDS = GRANULES / 64,
};

static const uint64_t REFUSED_NS = 2ull * 1000 * 1000 * 1000; // after a refusal pinning is not tried again for so long

static struct piece {
	char *memory; // NULL: the place is free
	const struct gp_gpu *gpu;
	CUcontext context;    // in which it is pinned; NULL: it is not
	bool busy;            // a thread pins it, or gives it back
	bool leaving;         // the driver is asked to end that context
	uint64_t used[WORDS]; // a bit for each granule
} piece[PIECES];
static size_t pieces; // places ever used
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t pinned, refused_ns;
static _Atomic bool cut;

void gp_arena_cut(bool on) { cut = on; }

static bool is_used(const struct piece *p, size_t granule) { return p->used[granule / 64] >> granule % 64 & 1; }

static void mark(struct piece *p, size_t first, size_t count, bool used)
{
	for (size_t i = first; i < first + count; i++) {
		uint64_t bit = 1ull << i % 64;
		p->used[i / 64] = used ? p->used[i / 64] | bit : p->used[i / 64] & ~bit;
	}
}

static size_t free_granules(const struct piece *p)
{
	size_t used = 0;
	for (size_t i = 0; i < WORDS; i++)
		used += (size_t)__builtin_popcountll(p->used[i]);
	return GRANULES - used;
}

// The first of so many granules in a row that are free; GRANULES: there are none.
static size_t first_fit(const struct piece *p, size_t count)
{
	for (size_t at = 0, run = 0; at < GRANULES; at++) {
		run = is_used(p, at) ? 0 : run + 1;
		if (run == count)
			return at + 1 - count;
	}
	return GRANULES;
}

static bool usable(const struct piece *p) { return p->memory && p->context && !p->busy && !p->leaving; }

// Finds a place in the pieces that there are. Pieces near another GPU are slower, and come last.
static void *place(const struct gp_gpu *g, size_t count)
{
	void *found = NULL;
	pthread_mutex_lock(&lock);
	for (int near = 1; near >= 0 && !found; near--)
		for (size_t i = 0; i < pieces && !found; i++) {
			struct piece *p = &piece[i];
			size_t at = usable(p) && (p->gpu == g) == near ? first_fit(p, count) : GRANULES;
			if (at == GRANULES)
				continue;
			mark(p, at, count, true);
			found = p->memory + at * GP_GRANULE;
		}
	pthread_mutex_unlock(&lock);
	return found;
}

// Takes a place of the table for a piece: one that is no longer pinned, or a free one. NULL: there is none, or the bound is
// reached. The piece is busy.
static struct piece *take_piece(void)
{
	struct piece *p = NULL;
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < pieces && !p; i++)
		if (piece[i].memory && !piece[i].context && !piece[i].busy)
			p = &piece[i];
	for (size_t i = 0; i < PIECES && !p; i++)
		if (!piece[i].memory && !piece[i].busy)
			p = &piece[i];
	if (p && (gp_memory_settings.host_bytes < GP_CHUNK_BYTES || pinned > gp_memory_settings.host_bytes - GP_CHUNK_BYTES))
		p = NULL;
	if (p) {
		p->busy = true;
		pinned += GP_CHUNK_BYTES;
		if (p - piece >= (ptrdiff_t)pieces)
			pieces = (size_t)(p - piece) + 1;
	}
	pthread_mutex_unlock(&lock);
	return p;
}

// Pins one more piece, in the current context. It takes long, so no lock is held. A piece whose pages are not all there, since
// that was cut short, is the first to be pinned next time.
static bool add_piece(const struct gp_gpu *g)
{
	if (cut || (refused_ns && gp_now_ns() - refused_ns < REFUSED_NS))
		return false;
	struct piece *p = take_piece();
	if (!p)
		return false;
	char *memory = p->memory;
	if (!memory && gp_host_left("") >= GP_CHUNK_BYTES)
		memory = gp_piece_make(g);
	bool whole = memory && gp_piece_touch(memory, &cut), made = whole && gp_piece_pin(memory);
	if (whole && !made) {
		refused_ns = gp_now_ns();
		gp_piece_end(memory, false);
		memory = NULL;
	}
	pthread_mutex_lock(&lock);
	p->memory = memory;
	p->gpu = p->memory ? g : NULL;
	p->context = made ? gp_piece_context() : NULL;
	p->busy = false;
	if (!made)
		pinned -= GP_CHUNK_BYTES;
	pthread_mutex_unlock(&lock);
	return made;
}

void *gp_arena_take(struct gp_gpu *g, size_t bytes)
{
	size_t count = (bytes + GP_GRANULE - 1) / GP_GRANULE;
	void *found = NULL;
	if (!count || count > GRANULES)
		return NULL;
	while (!(found = place(g, count)) && add_piece(g))
		;
	return found;
}

void gp_arena_give(void *memory, size_t bytes)
{
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < pieces; i++) {
		struct piece *p = &piece[i];
		if (!p->memory || (char *)memory < p->memory || (char *)memory >= p->memory + GP_CHUNK_BYTES)
			continue;
		mark(p, (size_t)((char *)memory - p->memory) / GP_GRANULE, (bytes + GP_GRANULE - 1) / GP_GRANULE, false);
		break;
	}
	pthread_mutex_unlock(&lock);
}

uint64_t gp_arena_pinned(void) { return pinned; }

static uint64_t free_bytes(void)
{
	uint64_t granules = 0;
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < pieces; i++)
		granules += usable(&piece[i]) ? free_granules(&piece[i]) : 0;
	pthread_mutex_unlock(&lock);
	return granules * GP_GRANULE;
}

bool gp_arena_grow(struct gp_gpu *g, uint64_t bytes)
{
	while (free_bytes() < bytes)
		if (!add_piece(g))
			return false;
	return true;
}

// Picks an unused piece to give back: one that is not pinned, or any if too many are pinned. It is busy from then on. NULL:
// there is none.
static struct piece *unused_piece(uint64_t keep_bytes)
{
	struct piece *p = NULL;
	pthread_mutex_lock(&lock);
	for (size_t i = pieces; i-- && !p;)
		if (piece[i].memory && !piece[i].busy && !piece[i].leaving && free_granules(&piece[i]) == GRANULES &&
		    (pinned > keep_bytes || !piece[i].context))
			p = &piece[i];
	if (p)
		p->busy = true;
	pthread_mutex_unlock(&lock);
	return p;
}

void gp_arena_trim(uint64_t keep_bytes)
{
	struct piece *p;
	while (!cut && (p = unused_piece(keep_bytes))) {
		gp_piece_end(p->memory, p->context != NULL);
		pthread_mutex_lock(&lock);
		pinned -= p->context ? GP_CHUNK_BYTES : 0;
		*p = (struct piece){.memory = NULL};
		pthread_mutex_unlock(&lock);
	}
}

void gp_arena_context_destroying(CUcontext context)
{
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < pieces; i++)
		piece[i].leaving |= piece[i].memory && piece[i].context == context;
	pthread_mutex_unlock(&lock);
}

void gp_arena_context_destroyed(CUcontext context, bool is)
{
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < pieces; i++) {
		if (!piece[i].leaving || piece[i].context != context)
			continue;
		piece[i].leaving = false;
		if (is) {
			piece[i].context = NULL;
			pinned -= GP_CHUNK_BYTES;
		}
	}
	pthread_mutex_unlock(&lock);
}
