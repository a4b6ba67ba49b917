// A program that uses device memory in each way there is, and knows what every byte of it must be. It obeys the lines of its
// input and answers each with one line; at the end of its input it exits 0. Buffers are numbers, in the order of allocation.
//
//	alloc HOW BYTES      buffer N result R       HOW: a row of ways
//	free N               result R
//	fill N SEED          result R                each word gets a value of its own, by copies from the host
//	step N ROUNDS        result R                each round is a kernel: every word becomes three times itself and some
//	check N              wrong W                 offset of the first wrong byte, -1 = none; read by copies to the host
//	check all            wrong W of M            W of M buffers are wrong
//	attributes N OFFSET  what the driver says about an address, an answer and a result for each question
//	info                 free F total T          cuMemGetInfo
//	start KIND BYTES     started K               a thread that works on buffers of its own all the time; KIND: a row of kinds
//	status               wrong W error E least L total T    of these threads; L: rounds of the one with the fewest
//	stop                 the same, after their end
//	device N, us N       later commands are for that GPU; later kernels take so long (us)
//	long N               launched R              a kernel on buffer N that nobody waits for
//	blocked N            launched R              the same, behind a wait for a word in device memory
//	unblock              result R                which this command writes
//	capture N, captured  result R                a capture of a kernel on buffer N begins, ends and is replayed
//	wait                 result R                cuCtxSynchronize
//
// An argument names the image of the kernels; the simulated driver needs none.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FUNCTIONS(F) \
	F(cuInit, (unsigned)) \
	F(cuDeviceGetCount, (int *)) \
	F(cuDeviceGetDefaultMemPool, (handle *, int)) \
	F(cuDevicePrimaryCtxRetain, (handle *, int)) \
	F(cuCtxSetCurrent, (handle)) \
	F(cuCtxSynchronize, (void)) \
	F(cuCtxCreate_v2, (handle *, unsigned, int)) \
	F(cuCtxDestroy_v2, (handle)) \
	F(cuStreamCreate, (handle *, unsigned)) \
	F(cuStreamDestroy_v2, (handle)) \
	F(cuStreamSynchronize, (handle)) \
	F(cuStreamSynchronize_ptsz, (handle)) \
	F(cuStreamWaitEvent, (handle, handle, unsigned)) \
	F(cuEventCreate, (handle *, unsigned)) \
	F(cuEventDestroy_v2, (handle)) \
	F(cuEventRecord, (handle, handle)) \
	F(cuEventSynchronize, (handle)) \
	F(cuMemAlloc_v2, (ptr *, size_t)) \
	F(cuMemAllocPitch_v2, (ptr *, size_t *, size_t, size_t, unsigned)) \
	F(cuMemAllocManaged, (ptr *, size_t, unsigned)) \
	F(cuMemFree_v2, (ptr)) \
	F(cuMemAllocAsync, (ptr *, size_t, handle)) \
	F(cuMemAllocFromPoolAsync, (ptr *, size_t, handle, handle)) \
	F(cuMemFreeAsync, (ptr, handle)) \
	F(cuMemPoolCreate, (handle *, const void *)) \
	F(cuMemPoolDestroy, (handle)) \
	F(cuMemAddressReserve, (ptr *, size_t, size_t, ptr, unsigned long long)) \
	F(cuMemAddressFree, (ptr, size_t)) \
	F(cuMemCreate, (unsigned long long *, size_t, const void *, unsigned long long)) \
	F(cuMemRelease, (unsigned long long)) \
	F(cuMemMap, (ptr, size_t, size_t, unsigned long long, unsigned long long)) \
	F(cuMemUnmap, (ptr, size_t)) \
	F(cuMemSetAccess, (ptr, size_t, const void *, size_t)) \
	F(cuMemRetainAllocationHandle, (unsigned long long *, void *)) \
	F(cuMemGetAddressRange_v2, (ptr *, size_t *, ptr)) \
	F(cuPointerGetAttribute, (void *, int, ptr)) \
	F(cuMemGetInfo_v2, (size_t *, size_t *)) \
	F(cuMemHostAlloc, (void **, size_t, unsigned)) \
	F(cuMemFreeHost, (void *)) \
	F(cuMemcpyDtoH_v2, (void *, ptr, size_t)) \
	F(cuMemcpyHtoD_v2, (ptr, const void *, size_t)) \
	F(cuMemcpyDtoHAsync_v2, (void *, ptr, size_t, handle)) \
	F(cuMemcpyHtoDAsync_v2, (ptr, const void *, size_t, handle)) \
	F(cuMemcpyDtoDAsync_v2, (ptr, ptr, size_t, handle)) \
	F(cuMemsetD32Async, (ptr, unsigned, size_t, handle)) \
	F(cuStreamWaitValue32_v2, (handle, ptr, uint32_t, unsigned)) \
	F(cuStreamWriteValue32_v2, (handle, ptr, uint32_t, unsigned)) \
	F(cuModuleLoadData, (handle *, const void *)) \
	F(cuModuleGetFunction, (handle *, handle, const char *)) \
	F(cuLaunchKernel, \
	  (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **)) \
	F(cuLaunchKernel_ptsz, \
	  (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **)) \
	F(cuStreamBeginCapture_v2, (handle, int)) \
	F(cuStreamEndCapture, (handle, handle *)) \
	F(cuGraphInstantiateWithFlags, (handle *, handle, unsigned long long)) \
	F(cuGraphLaunch, (handle, handle)) \
	F(cuGraphExecDestroy, (handle)) \
	F(cuGraphDestroy, (handle))

#include "driver.h"

enum { DEVICES = 8, BUFFERS = 4096, JOBS = 64, BLOCKS = 1320, NON_BLOCKING = 1, OUT_OF_MEMORY = 2 };
enum { GRANULE = 2 << 20, PIECE = 1 << 20 };

static struct gpu { handle context, chain, pool; } gpus[DEVICES];
static int device; // of the commands
static const char *image;
static _Atomic uint32_t kernel_us = 100;

// ---- buffers, and what is in them

struct way;
struct buffer {
	const struct way *way;
	ptr at;
	size_t bytes;
	int device;
	unsigned long long *physical; // handles, one behind the other; NULL: the driver alone knows them
	size_t pieces, piece_bytes;
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

// Maps one more piece behind the others.
static int grow(struct buffer *b)
{
	struct { // CUmemAllocationProp
		int type, handle_types, location, id;
		void *none;
		unsigned char flags[8];
	} properties = {.type = 1, .location = 1, .id = b->device};
	struct { int location, id, flags; } access = {1, b->device, 3};
	ptr at = b->at + b->pieces * b->piece_bytes;
	unsigned long long h;
	int r = cuMemCreate(&h, b->piece_bytes, &properties, 0);
	if (r)
		return r;
	OK(cuMemMap(at, b->piece_bytes, 0, h, 0));
	OK(cuMemSetAccess(at, b->piece_bytes, &access, 1));
	b->physical[b->pieces++] = h;
	return 0;
}

static int shrink(struct buffer *b)
{
	b->pieces--;
	int r = cuMemUnmap(b->at + b->pieces * b->piece_bytes, b->piece_bytes);
	return r ? r : cuMemRelease(b->physical[b->pieces]);
}

// What uses it has ended.
static int release_mapped(struct buffer *b)
{
	int r = 0;
	while (!r && b->pieces)
		r = shrink(b);
	free(b->physical);
	return r ? r : cuMemAddressFree(b->at, b->bytes);
}

static int map_pieces(struct buffer *b, size_t bytes, size_t pieces)
{
	b->piece_bytes = rounded_up((bytes + pieces - 1) / pieces);
	b->bytes = b->piece_bytes * pieces;
	b->physical = calloc(pieces, sizeof *b->physical);
	OK(cuMemAddressReserve(&b->at, b->bytes, 0, 0, 0));
	while (b->pieces < pieces) {
		int r = grow(b);
		if (r) {
			release_mapped(b);
			return r;
		}
	}
	return 0;
}

static int allocate_mapped(struct buffer *b, size_t bytes) { return map_pieces(b, bytes, 1); }

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
	{"memory", allocate_plain, release_plain},    {"pitch", allocate_pitched, release_plain},
	{"managed", allocate_managed, release_plain}, {"async", allocate_async, release_async},
	{"pool", allocate_pooled, release_async},     {"mapped", allocate_mapped, release_mapped},
	{"pieces", allocate_pieces, release_mapped},  {"forgotten", allocate_forgotten, release_forgotten},
};
enum { WAYS = sizeof ways / sizeof *ways, MEMORY = 0, MAPPED = 5 };

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
	b->way = NULL;
	return r;
}

static size_t per_block(const struct buffer *b) { return b->bytes / 4 / BLOCKS; }

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

static size_t piece_at(const struct buffer *b, size_t at) { return b->bytes - at < PIECE ? b->bytes - at : PIECE; }

static void newly_filled(struct buffer *b, uint32_t seed)
{
	b->seed = seed;
	b->factor = 1;
	b->addend = 0;
}

static int fill(struct buffer *b, uint32_t seed)
{
	uint32_t *words = malloc(PIECE);
	int r = 0;
	newly_filled(b, seed);
	for (size_t at = 0; !r && at < b->bytes; at += PIECE) {
		expect(b, at / 4, words, PIECE / 4);
		r = cuMemcpyHtoD_v2(b->at + at, words, piece_at(b, at));
	}
	free(words);
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
	uint32_t *wanted = malloc(PIECE), *found = malloc(PIECE);
	long long wrong = -1;
	for (size_t at = 0; wrong < 0 && at < b->bytes; at += PIECE) {
		expect(b, at / 4, wanted, PIECE / 4);
		OK(cuMemcpyDtoH_v2(found, b->at + at, piece_at(b, at)));
		if (memcmp(found, wanted, piece_at(b, at)) != 0)
			wrong = (long long)at +
				first_difference((unsigned char *)found, (unsigned char *)wanted, piece_at(b, at));
	}
	free(wanted);
	free(found);
	return wrong;
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

// ---- threads that work all the time

struct job {
	const struct kind *kind;
	size_t bytes;
	int device;
	uint32_t random;
	handle stream;
	pthread_t thread;
	_Atomic uint64_t rounds;
	_Atomic uint32_t wrong;
	_Atomic int error; // of an allocation; the thread has ended
};
struct kind {
	const char *name;
	void (*run)(struct job *);
};
static struct job jobs[JOBS];
static int job_count;
static _Atomic bool ending;

static uint32_t random_of(struct job *j)
{ // xorshift
	j->random ^= j->random << 13;
	j->random ^= j->random >> 17;
	j->random ^= j->random << 5;
	return j->random;
}

static bool goes_on(struct job *j)
{
	j->rounds++;
	return !ending;
}

static void look(struct job *j, const struct buffer *b)
{
	long long at = wrong_at(b);
	if (at < 0)
		return;
	j->wrong++;
	fprintf(stderr, "%s: round %llu: %s buffer of %zu bytes at %#llx is wrong at %lld\n", j->kind->name,
		(unsigned long long)j->rounds, b->way->name, b->bytes, b->at, at);
}

static bool take(struct job *j, struct buffer *b, int way, size_t bytes)
{
	j->error = allocate(b, &ways[way], j->device, bytes);
	if (j->error)
		return false;
	OK(fill(b, random_of(j)));
	return true;
}

static void launch_and_wait(struct job *j, bool whole_context)
{
	struct buffer b;
	handle event;
	if (!take(j, &b, MEMORY, j->bytes))
		return;
	OK(cuEventCreate(&event, 2));
	do {
		for (int i = 0; i < 4; i++)
			OK(step(&b, j->stream, random_of(j)));
		switch (j->rounds % 4) {
		case 0: OK(cuStreamSynchronize(j->stream)); break;
		case 1:
			OK(cuEventRecord(event, j->stream));
			OK(cuEventSynchronize(event));
			break;
		case 2: OK(whole_context ? cuCtxSynchronize() : cuStreamSynchronize(j->stream)); break;
		case 3: continue; // further ahead
		}
		look(j, &b);
	} while (goes_on(j));
	OK(cuStreamSynchronize(j->stream));
	look(j, &b);
	OK(release(&b));
}

static void chains(struct job *j) { launch_and_wait(j, false); }

// Not beside captures: a wait for the context invalidates them.
static void whole_waits(struct job *j) { launch_and_wait(j, true); }

// A graph that is made once, and replayed for ever.
static void graphs(struct job *j)
{
	struct buffer b;
	handle graph, executable;
	if (!take(j, &b, MEMORY, j->bytes))
		return;
	struct buffer before = b;
	OK(cuStreamBeginCapture_v2(j->stream, 1));
	for (uint32_t i = 1; i <= 3; i++)
		OK(step(&b, j->stream, i));
	OK(cuStreamEndCapture(j->stream, &graph));
	OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	b = before;
	do {
		for (int i = 0; i < 5; i++) {
			OK(cuGraphLaunch(executable, j->stream));
			for (uint32_t k = 1; k <= 3; k++) {
				b.factor *= 3;
				b.addend = b.addend * 3 + k;
			}
		}
		OK(cuStreamSynchronize(j->stream));
		look(j, &b);
	} while (goes_on(j));
	OK(cuGraphExecDestroy(executable));
	OK(cuGraphDestroy(graph));
	OK(release(&b));
}

// Captures in each mode, one after the other.
static void captures(struct job *j)
{
	struct buffer b;
	handle graph, executable;
	if (!take(j, &b, MEMORY, j->bytes))
		return;
	do {
		OK(step(&b, j->stream, 7));
		OK(cuStreamBeginCapture_v2(j->stream, j->rounds % 2 ? 1 : 2)); // a global one forbids what others do
		OK(step(&b, j->stream, random_of(j)));
		usleep(random_of(j) % 500);
		OK(step(&b, j->stream, random_of(j)));
		OK(cuStreamEndCapture(j->stream, &graph));
		OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
		OK(cuGraphLaunch(executable, j->stream));
		OK(cuStreamSynchronize(j->stream));
		OK(cuGraphExecDestroy(executable));
		OK(cuGraphDestroy(graph));
		look(j, &b);
	} while (goes_on(j));
	OK(release(&b));
}

// Copies both ways from and to pinned memory, and on the device.
static void copies(struct job *j)
{
	struct buffer from, to;
	uint32_t *host;
	if (!take(j, &from, MEMORY, j->bytes / 2 / 4 * 4) || !take(j, &to, MEMORY, j->bytes / 2 / 4 * 4))
		return;
	OK(cuMemHostAlloc((void **)&host, from.bytes, 0));
	do {
		newly_filled(&from, random_of(j));
		expect(&from, 0, host, from.bytes / 4);
		OK(cuMemcpyHtoDAsync_v2(from.at, host, from.bytes, j->stream));
		OK(step(&from, j->stream, random_of(j)));
		OK(cuMemcpyDtoDAsync_v2(to.at, from.at, from.bytes, j->stream));
		to.seed = from.seed, to.factor = from.factor, to.addend = from.addend;
		OK(step(&to, j->stream, random_of(j)));
		OK(cuMemcpyDtoHAsync_v2(host, to.at, to.bytes, j->stream));
		OK(cuStreamSynchronize(j->stream));
		uint32_t *wanted = malloc(to.bytes);
		expect(&to, 0, wanted, to.bytes / 4);
		if (memcmp(host, wanted, to.bytes) != 0) {
			j->wrong++;
			fprintf(stderr, "copies: round %llu: what was copied is wrong\n", (unsigned long long)j->rounds);
		}
		free(wanted);
		look(j, &from);
	} while (goes_on(j));
	OK(cuMemFreeHost(host));
	OK(release(&from));
	OK(release(&to));
}

// A buffer that is handed from stream to stream by events.
static void streams(struct job *j)
{
	struct buffer b;
	handle beside, event[2];
	if (!take(j, &b, MEMORY, j->bytes))
		return;
	OK(cuStreamCreate(&beside, NON_BLOCKING));
	for (int i = 0; i < 2; i++)
		OK(cuEventCreate(&event[i], 2));
	do {
		for (int i = 0; i < 8; i++) {
			OK(step(&b, i % 2 ? beside : j->stream, random_of(j)));
			OK(cuEventRecord(event[i % 2], i % 2 ? beside : j->stream));
			OK(cuStreamWaitEvent(i % 2 ? j->stream : beside, event[i % 2], 0));
		}
		OK(cuStreamSynchronize(j->stream));
		look(j, &b);
	} while (goes_on(j));
	OK(cuStreamDestroy_v2(beside));
	OK(release(&b));
}

static void per_thread(struct job *j)
{
	struct buffer b;
	if (!take(j, &b, MEMORY, j->bytes))
		return;
	do {
		for (int i = 0; i < 4; i++)
			OK(step_by(cuLaunchKernel_ptsz, gpus[j->device].chain, &b, NULL, random_of(j)));
		OK(cuStreamSynchronize_ptsz(NULL));
		look(j, &b);
	} while (goes_on(j));
	OK(release(&b));
}

// A context of its own, another one now and then.
static void contexts(struct job *j)
{
	do {
		handle context, module, kernel, stream;
		struct buffer b;
		OK(cuCtxCreate_v2(&context, 0, j->device));
		OK(cuModuleLoadData(&module, image));
		OK(cuModuleGetFunction(&kernel, module, "sim_chain"));
		OK(cuStreamCreate(&stream, NON_BLOCKING));
		if (!take(j, &b, MEMORY, j->bytes))
			return;
		for (int i = 0; i < 20; i++) {
			OK(step_by(cuLaunchKernel, kernel, &b, stream, random_of(j)));
			if (i % 5 == 4) {
				OK(cuStreamSynchronize(stream));
				look(j, &b);
			}
		}
		OK(step_by(cuLaunchKernel, kernel, &b, stream, random_of(j))); // in flight
		OK(cuCtxDestroy_v2(context));
	} while (goes_on(j));
}

// A reservation in which memory is mapped piece by piece as it is needed, and unmapped from the end, as PyTorch's expandable
// segments do. The rest of it must not be touched.
static void growing(struct job *j)
{
	enum { PIECES = 8 };
	struct buffer b = {.way = &ways[MAPPED], .device = j->device, .factor = 1};
	b.piece_bytes = rounded_up(j->bytes / PIECES);
	b.physical = calloc(PIECES, sizeof *b.physical);
	OK(cuMemAddressReserve(&b.at, b.piece_bytes * PIECES, 0, 0, 0));
	do {
		if (b.pieces < PIECES && (!b.pieces || random_of(j) % 2))
			j->error = grow(&b);
		else
			OK(shrink(&b));
		if (j->error)
			return;
		b.bytes = b.pieces * b.piece_bytes;
		OK(fill(&b, random_of(j)));
		for (int i = 0; b.bytes && i < 3; i++)
			OK(step(&b, j->stream, random_of(j)));
		OK(cuStreamSynchronize(j->stream));
		look(j, &b);
	} while (goes_on(j));
	b.bytes = b.piece_bytes * PIECES;
	OK(release_mapped(&b));
}

// Buffers of all ways and sizes come and go; what stays keeps what is in it.
static void churn(struct job *j)
{
	enum { SLOTS = 12 };
	struct buffer slot[SLOTS] = {0};
	do {
		struct buffer *b = &slot[random_of(j) % SLOTS];
		if (!b->way) {
			size_t bytes = 1 + random_of(j) % (j->bytes / SLOTS);
			int way = (int)(random_of(j) % WAYS), r;
			if (random_of(j) % 4 == 0)
				bytes = 1 + bytes % 5000;
			r = allocate(b, &ways[way], j->device, bytes);
			if (r == OUT_OF_MEMORY)
				continue;
			OK(r);
			OK(fill(b, random_of(j)));
		} else if (random_of(j) % 3 == 0) {
			OK(cuStreamSynchronize(j->stream));
			look(j, b);
			OK(step(b, j->stream, random_of(j)));
			if (b->way->release != release_plain) // which waits itself
				OK(cuStreamSynchronize(j->stream));
			OK(release(b));
		} else {
			OK(step(b, j->stream, random_of(j)));
			if (random_of(j) % 2) {
				OK(cuStreamSynchronize(j->stream));
				look(j, b);
			}
		}
	} while (goes_on(j));
	OK(cuStreamSynchronize(j->stream));
	for (int i = 0; i < SLOTS; i++)
		if (slot[i].way) {
			look(j, &slot[i]);
			OK(release(&slot[i]));
		}
}

static const struct kind kinds[] = {
	{"chains", chains},         {"whole_waits", whole_waits}, {"graphs", graphs},
	{"captures", captures},     {"copies", copies},           {"streams", streams},
	{"per_thread", per_thread}, {"contexts", contexts},       {"growing", growing},
	{"churn", churn},
};

static void *run_job(void *argument)
{
	struct job *j = argument;
	OK(cuCtxSetCurrent(gpus[j->device].context));
	OK(cuStreamCreate(&j->stream, NON_BLOCKING));
	j->kind->run(j);
	return NULL;
}

static void start(const char *name, size_t bytes)
{
	struct job *j = &jobs[job_count];
	*j = (struct job){.bytes = bytes, .device = device, .random = 2463534242u + (uint32_t)job_count * 7919};
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (!strcmp(kinds[i].name, name))
			j->kind = &kinds[i];
	if (!j->kind || job_count == JOBS || pthread_create(&j->thread, NULL, run_job, j)) {
		printf("cannot start %s\n", name);
		return;
	}
	printf("started %d\n", job_count++);
}

static void status(void)
{
	uint64_t least = UINT64_MAX, total = 0;
	uint32_t wrong = 0;
	int error = 0;
	for (int i = 0; i < job_count; i++) {
		least = jobs[i].rounds < least ? jobs[i].rounds : least;
		total += jobs[i].rounds;
		wrong += jobs[i].wrong;
		error = jobs[i].error ? jobs[i].error : error;
	}
	printf("wrong %u error %d least %llu total %llu\n", wrong, error, (unsigned long long)(job_count ? least : 0),
	       (unsigned long long)total);
}

static void stop(void)
{
	ending = true;
	for (int i = 0; i < job_count; i++)
		pthread_join(jobs[i].thread, NULL);
	status();
	ending = false;
	job_count = 0;
}

// ---- commands

static struct buffer buffers[BUFFERS];
static int buffer_count;
static handle stream, beside;
static ptr flag;
static uint32_t unblocked;

static void check_all(void)
{
	int wrong = 0, all = 0;
	for (int i = 0; i < buffer_count; i++)
		if (buffers[i].way) {
			OK(cuCtxSetCurrent(gpus[buffers[i].device].context));
			all++;
			wrong += wrong_at(&buffers[i]) >= 0;
		}
	OK(cuCtxSetCurrent(gpus[device].context));
	printf("wrong %d of %d\n", wrong, all);
}

// Answers are told as offsets and kinds, so that they can be compared between processes.
static void attributes(const struct buffer *b, size_t offset)
{
	enum { CONTEXT = 1, DEVICE_POINTER = 3, BUFFER_ID = 7, RANGE_START = 11, POOL = 17, BASE = 19, LAST = 19 };
	unsigned long long value, h;
	ptr start = 0;
	size_t bytes = 0;
	for (int i = 1; i <= LAST; i++) {
		value = 0;
		int r = cuPointerGetAttribute(&value, i, b->at + offset);
		if (i == CONTEXT)
			value = value == (uintptr_t)gpus[b->device].context;
		else if (i == DEVICE_POINTER || i == RANGE_START || i == BASE)
			value -= value ? b->at : 0;
		else if (i == BUFFER_ID || i == POOL)
			value = value != 0;
		printf("%d:%llu:%d ", i, value, r);
	}
	int r = cuMemGetAddressRange_v2(&start, &bytes, b->at + offset);
	printf("range:%llu+%zu:%d ", start - b->at, bytes, r);
	r = cuMemRetainAllocationHandle(&h, (void *)(b->at + offset));
	if (!r)
		OK(cuMemRelease(h));
	printf("retain:%d\n", r);
}

static void info(void)
{
	size_t free, total;
	OK(cuMemGetInfo_v2(&free, &total));
	printf("free %zu total %zu\n", free, total);
}

static void allocate_buffer(const char *how, size_t bytes)
{
	const struct way *way = way_named(how);
	struct buffer b;
	if (!way || buffer_count == BUFFERS) {
		printf("no way %s\n", how);
		return;
	}
	int r = allocate(&b, way, device, bytes);
	buffers[buffer_count] = b;
	printf("buffer %d result %d\n", buffer_count++, r);
}

static int step_often(struct buffer *b, unsigned rounds)
{
	int r = 0;
	for (unsigned i = 0; !r && i < rounds; i++)
		r = step(b, stream, i);
	return r ? r : cuStreamSynchronize(stream);
}

// A kernel behind a wait that only a call of the program ends.
static int block(struct buffer *b)
{
	if (!flag) {
		OK(cuMemAlloc_v2(&flag, 4));
		OK(cuMemsetD32Async(flag, 0, 1, beside));
		OK(cuStreamSynchronize(beside));
	}
	int r = cuStreamWaitValue32_v2(stream, flag, unblocked + 1, 0);
	return r ? r : step(b, stream, 3);
}

static int replay_captured(void)
{
	handle graph, executable;
	int r = cuStreamEndCapture(stream, &graph);
	r = r ? r : cuGraphInstantiateWithFlags(&executable, graph, 0);
	r = r ? r : cuGraphLaunch(executable, stream);
	r = r ? r : cuStreamSynchronize(stream);
	r = r ? r : cuGraphExecDestroy(executable);
	return r ? r : cuGraphDestroy(graph);
}

static void use_device(int wanted)
{
	struct gpu *g = &gpus[wanted];
	handle module;
	device = wanted;
	if (!g->context) {
		OK(cuDevicePrimaryCtxRetain(&g->context, wanted));
		OK(cuCtxSetCurrent(g->context));
		OK(cuModuleLoadData(&module, image));
		OK(cuModuleGetFunction(&g->chain, module, "sim_chain"));
	}
	OK(cuCtxSetCurrent(g->context));
	OK(cuStreamCreate(&stream, NON_BLOCKING));
	OK(cuStreamCreate(&beside, NON_BLOCKING));
}

static struct buffer *buffer_of(unsigned n)
{
	if (n < (unsigned)buffer_count && buffers[n].way)
		return &buffers[n];
	fprintf(stderr, "no buffer %u\n", n);
	_Exit(1);
}

static void obey(const char *line)
{
	char word[32];
	unsigned n, m;
	size_t bytes;
	if (sscanf(line, "alloc %31s %zu", word, &bytes) == 2) {
		allocate_buffer(word, bytes);
	} else if (sscanf(line, "free %u", &n) == 1) {
		int r = cuStreamSynchronize(stream);
		printf("result %d\n", r ? r : release(buffer_of(n)));
	} else if (sscanf(line, "fill %u %u", &n, &m) == 2) {
		printf("result %d\n", fill(buffer_of(n), m));
	} else if (sscanf(line, "step %u %u", &n, &m) == 2) {
		printf("result %d\n", step_often(buffer_of(n), m));
	} else if (sscanf(line, "check %u", &n) == 1) {
		printf("wrong %lld\n", wrong_at(buffer_of(n)));
	} else if (!strcmp(line, "check all\n")) {
		check_all();
	} else if (sscanf(line, "attributes %u %zu", &n, &bytes) == 2) {
		attributes(buffer_of(n), bytes);
	} else if (!strcmp(line, "info\n")) {
		info();
	} else if (sscanf(line, "start %31s %zu", word, &bytes) == 2) {
		start(word, bytes);
	} else if (!strcmp(line, "status\n")) {
		status();
	} else if (!strcmp(line, "stop\n")) {
		stop();
	} else if (sscanf(line, "device %u", &n) == 1 && n < DEVICES) {
		use_device((int)n);
		printf("device %u\n", n);
	} else if (sscanf(line, "us %u", &n) == 1) {
		kernel_us = n;
		printf("us %u\n", n);
	} else if (sscanf(line, "long %u", &n) == 1) {
		printf("launched %d\n", step(buffer_of(n), stream, 5));
	} else if (sscanf(line, "blocked %u", &n) == 1) {
		printf("launched %d\n", block(buffer_of(n)));
	} else if (!strcmp(line, "unblock\n")) {
		printf("result %d\n", cuStreamWriteValue32_v2(beside, flag, ++unblocked, 0));
	} else if (sscanf(line, "capture %u", &n) == 1) {
		OK(cuStreamBeginCapture_v2(stream, 0));
		printf("result %d\n", step(buffer_of(n), stream, 9));
	} else if (!strcmp(line, "captured\n")) {
		printf("result %d\n", replay_captured());
	} else if (!strcmp(line, "wait\n")) {
		printf("result %d\n", cuCtxSynchronize());
	} else {
		printf("unknown command\n");
	}
}

static void read_image(const char *path)
{
	FILE *file = fopen(path, "rb");
	char *text = calloc(1, 1 << 20);
	if (!file || !text || !fread(text, 1, 1 << 20, file)) {
		fprintf(stderr, "cannot read %s\n", path);
		_Exit(1);
	}
	fclose(file);
	image = text;
}

int main(int count, char **argument)
{
	char line[128];
	setvbuf(stdout, NULL, _IOLBF, 0);
	image = "simulated image";
	if (count > 1)
		read_image(argument[1]);
	find_driver();
	OK(cuInit(0));
	use_device(0);
	while (fgets(line, sizeof line, stdin))
		obey(line);
	return 0;
}
