// memory_buffers.h - a part of memory.c: buffers, how they are allocated, and what is in them.
#ifndef TEST_MEMORY_BUFFERS_H
#define TEST_MEMORY_BUFFERS_H

enum { DEVICES = 8, BUFFERS = 4096, JOBS = 64, BLOCKS = 1320, NON_BLOCKING = 1, OUT_OF_MEMORY = 2 };
enum { GRANULE = 2 << 20, PIECE = 1 << 20 };
// A larger buffer has contents in a sample of each piece alone, and kernels change its first bytes, unless TEST_EVERY_BYTE is set.
enum { SAMPLED = 16 << 20, SAMPLE = 8 << 10 };
static bool every_byte;

static struct gpu { handle context, chain, pool; } gpus[DEVICES];
static int device; // of the commands
static const char *image;
static _Atomic uint32_t kernel_us = 100;

struct way;
struct buffer {
	const struct way *way;
	ptr at;
	size_t bytes;
	int device;
	unsigned long long *physical; // handles, one behind the other; NULL: the driver alone knows them
	size_t pieces, piece_bytes;
	bool shareable;
	uint32_t seed, factor, addend; // of word i: (what fill gave it) * factor + addend
};

struct way {
	const char *name;
	int (*allocate)(struct buffer *, size_t bytes);
	int (*release)(struct buffer *);
};

static size_t rounded_up(size_t bytes) { return (bytes + GRANULE - 1) / GRANULE * GRANULE; }

static int allocate_plain(struct buffer *b, size_t bytes)
{
	b->bytes = bytes;
	return cuMemAlloc_v2(&b->at, bytes);
}

static int allocate_pitched(struct buffer *b, size_t bytes)
{
	size_t width = 1000, pitch = 0, rows = (bytes + width - 1) / width;
	int r = cuMemAllocPitch_v2(&b->at, &pitch, width, rows, 4);
	b->bytes = pitch * rows;
	return r;
}

static int allocate_managed(struct buffer *b, size_t bytes)
{
	b->bytes = bytes;
	return cuMemAllocManaged(&b->at, bytes, 1);
}

static int release_plain(struct buffer *b) { return cuMemFree_v2(b->at); }

static int release_opened(struct buffer *b) { return cuIpcCloseMemHandle(b->at); }

static int allocate_async(struct buffer *b, size_t bytes)
{
	b->bytes = bytes;
	return cuMemAllocAsync(&b->at, bytes, NULL);
}

static int allocate_pooled(struct buffer *b, size_t bytes)
{
	struct { // CUmemPoolProps
		int type, handle_types, location, id;
		unsigned char rest[72];
	} properties = {.type = 1, .location = 1, .id = b->device};
	if (!gpus[b->device].pool)
		OK(cuMemPoolCreate(&gpus[b->device].pool, &properties));
	b->bytes = bytes;
	return cuMemAllocFromPoolAsync(&b->at, bytes, gpus[b->device].pool, NULL);
}

static int release_async(struct buffer *b)
{
	int r = cuMemFreeAsync(b->at, NULL);
	return r ? r : cuStreamSynchronize(NULL);
}

static int map_behind(struct buffer *b, unsigned long long h)
{
	struct { int location, id, flags; } access = {1, b->device, 3};
	ptr at = b->at + b->pieces * b->piece_bytes;
	int r = cuMemMap(at, b->piece_bytes, 0, h, 0);
	if (!r && (r = cuMemSetAccess(at, b->piece_bytes, &access, 1)))
		cuMemUnmap(at, b->piece_bytes);
	if (r)
		cuMemRelease(h);
	else
		b->physical[b->pieces++] = h;
	return r;
}

// Maps one more piece behind the others.
static int grow(struct buffer *b)
{
	struct { // CUmemAllocationProp
		int type, handle_types, location, id;
		void *none;
		unsigned char flags[8];
	} properties = {.type = 1, .handle_types = b->shareable, .location = 1, .id = b->device};
	unsigned long long h;
	int r = cuMemCreate(&h, b->piece_bytes, &properties, 0);
	return r ? r : map_behind(b, h);
}

static int shrink(struct buffer *b)
{
	b->pieces--;
	int r = cuMemUnmap(b->at + b->pieces * b->piece_bytes, b->piece_bytes);
	return r ? r : cuMemRelease(b->physical[b->pieces]);
}

// To be called when no operation uses it any more.
static int release_mapped(struct buffer *b)
{
	int r = 0;
	while (!r && b->pieces)
		r = shrink(b);
	free(b->physical);
	return r ? r : cuMemAddressFree(b->at, b->bytes);
}

static int reserve_pieces(struct buffer *b, size_t bytes, size_t pieces)
{
	b->piece_bytes = rounded_up((bytes + pieces - 1) / pieces);
	b->bytes = b->piece_bytes * pieces;
	b->physical = calloc(pieces, sizeof *b->physical);
	return cuMemAddressReserve(&b->at, b->bytes, 0, 0, 0);
}

static int map_pieces(struct buffer *b, size_t bytes, size_t pieces)
{
	int r = reserve_pieces(b, bytes, pieces);
	if (r)
		return r;
	while (!r && b->pieces < pieces)
		r = grow(b);
	if (r)
		release_mapped(b);
	return r;
}

static int allocate_mapped(struct buffer *b, size_t bytes) { return map_pieces(b, bytes, 1); }

static int allocate_shareable(struct buffer *b, size_t bytes)
{
	b->shareable = true;
	return map_pieces(b, bytes, 1);
}

static int allocate_pieces(struct buffer *b, size_t bytes) { return map_pieces(b, bytes, 5); }

// The handles are released at once, as programs do that need them no more.
static int allocate_forgotten(struct buffer *b, size_t bytes)
{
	int r = map_pieces(b, bytes, 3);
	for (size_t i = 0; !r && i < b->pieces; i++)
		r = cuMemRelease(b->physical[i]);
	return r;
}

static int release_forgotten(struct buffer *b)
{
	free(b->physical);
	int r = cuMemUnmap(b->at, b->bytes);
	return r ? r : cuMemAddressFree(b->at, b->bytes);
}

static const struct way ways[] = {
	{"memory", allocate_plain, release_plain},         {"pitch", allocate_pitched, release_plain},
	{"managed", allocate_managed, release_plain},      {"async", allocate_async, release_async},
	{"pool", allocate_pooled, release_async},          {"mapped", allocate_mapped, release_mapped},
	{"pieces", allocate_pieces, release_mapped},       {"forgotten", allocate_forgotten, release_forgotten},
	{"shareable", allocate_shareable, release_mapped},
};
enum { WAYS = sizeof ways / sizeof *ways, MEMORY = 0, MAPPED = 5 };
static const struct way opened = {"opened", NULL, release_opened};

static const struct way *way_named(const char *name)
{
	for (int i = 0; i < WAYS; i++)
		if (!strcmp(ways[i].name, name))
			return &ways[i];
	return NULL;
}

// In the current context, a device's.
static int allocate(struct buffer *b, const struct way *way, int of, size_t bytes)
{
	*b = (struct buffer){.way = way, .device = of, .factor = 1};
	int r = way->allocate(b, bytes);
	if (r)
		b->way = NULL;
	return r;
}

static int release(struct buffer *b)
{
	int r = b->way->release(b);
	if (!r) // another try may do
		b->way = NULL;
	return r;
}

static bool sampled(const struct buffer *b) { return b->bytes > SAMPLED && !every_byte; }

static size_t per_block(const struct buffer *b) { return (sampled(b) ? SAMPLED : b->bytes) / 4 / BLOCKS; }

static void expect(const struct buffer *b, size_t first_word, uint32_t *words, size_t count)
{
	size_t changed = per_block(b) * BLOCKS; // by kernels; those behind are not
	for (size_t k = 0; k < count; k++) {
		size_t i = first_word + k;
		words[k] = (uint32_t)i * 2654435761u + b->seed;
		if (i < changed)
			words[k] = words[k] * b->factor + b->addend;
	}
}

struct part { size_t at, bytes; };

// The part to check of the piece that begins there: all of it, or a sample at an offset of its own.
static struct part part_of(const struct buffer *b, size_t piece)
{
	struct part p = {piece, b->bytes - piece < PIECE ? b->bytes - piece : PIECE};
	if (sampled(b) && p.bytes > SAMPLE) {
		p.at += (uint32_t)(piece / PIECE * 2654435761u) % (p.bytes - SAMPLE) / 4 * 4;
		p.bytes = SAMPLE;
	}
	return p;
}

static void newly_filled(struct buffer *b, uint32_t seed)
{
	b->seed = seed;
	b->factor = 1;
	b->addend = 0;
}

// Each thread has two pieces: they are not given back to the kernel, which would have to zero others.
static uint32_t *scratch(size_t which)
{
	static __thread uint32_t *words;
	if (!words && !(words = malloc(2 * PIECE)))
		_Exit(1);
	return words + which * (PIECE / 4);
}

static int fill(struct buffer *b, uint32_t seed)
{
	uint32_t *words = scratch(0);
	int r = 0;
	newly_filled(b, seed);
	for (size_t piece = 0; !r && piece < b->bytes; piece += PIECE) {
		struct part p = part_of(b, piece);
		expect(b, p.at / 4, words, (p.bytes + 3) / 4);
		r = cuMemcpyHtoD_v2(b->at + p.at, words, p.bytes);
	}
	return r;
}

static long long first_difference(const unsigned char *a, const unsigned char *b, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		if (a[i] != b[i])
			return (long long)i;
	return -1;
}

// Offset of the first wrong byte, or -1.
static long long wrong_at(const struct buffer *b)
{
	uint32_t *wanted = scratch(0), *found = scratch(1);
	for (size_t piece = 0; piece < b->bytes; piece += PIECE) {
		struct part p = part_of(b, piece);
		expect(b, p.at / 4, wanted, (p.bytes + 3) / 4);
		OK(cuMemcpyDtoH_v2(found, b->at + p.at, p.bytes));
		if (memcmp(found, wanted, p.bytes) != 0)
			return (long long)p.at + first_difference((unsigned char *)found, (unsigned char *)wanted, p.bytes);
	}
	return -1;
}

typedef int (*launch_function)(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle,
			       void **, void **);

static int step_by(launch_function launch, handle kernel, struct buffer *b, handle stream, uint32_t add)
{
	int count = (int)per_block(b);
	uint32_t us = kernel_us;
	void *parameters[] = {&b->at, &count, &add, &us};
	int r = launch(kernel, BLOCKS, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL);
	if (!r) {
		b->factor *= 3;
		b->addend = b->addend * 3 + add;
	}
	return r;
}

static int step(struct buffer *b, handle stream, uint32_t add)
{
	return step_by(cuLaunchKernel, gpus[b->device].chain, b, stream, add);
}

#endif
