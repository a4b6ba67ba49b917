// counted.c - memory that the driver makes for the program by other calls than cuMemAlloc, and keeps where it is: handles that do not swap,
// arrays, managed memory, pools. It is counted, and bounded by memory.limit.
//
// Handles and arrays are in the accounts, as pinned. The rest is of interest for the limit alone (gp_memory_beside): managed memory may
// lie in host memory, and what pools, graphs and contexts have is asked of the driver, or measured.
#define _GNU_SOURCE
#include "preempt/memory/own.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

// Counted once, however many names it has: those of a handle, and each address where that is mapped.
struct counted {
	_Atomic uint64_t *account;
	uint64_t bytes;
	uint32_t names;
	CUcontext context; // with which it ends; NULL: with none
	bool leaving;      // the driver is asked to end that
};

// Names, ordered. No address has the bit of a handle or an array.
enum { ARRAY_BIT = 62, HANDLE_BIT = 63 };
#define ARRAY(array) (1ull << ARRAY_BIT | (uintptr_t)(array))
#define HANDLE(handle) (1ull << HANDLE_BIT | (handle))

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	struct name {
		unsigned long long name;
		uint32_t references; // of the program, to a handle
		struct counted *of;
	} *at;
	size_t count, room;
} table;

// Under the lock, as the next three. The place of a name, or of the next greater one.
static size_t place_of(unsigned long long name)
{
	size_t low = 0, high = table.count;
	while (low < high) {
		size_t middle = (low + high) / 2;
		if (table.at[middle].name < name)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static struct name *find(unsigned long long name)
{
	size_t place = place_of(name);
	return place < table.count && table.at[place].name == name ? &table.at[place] : NULL;
}

static bool add(unsigned long long name, struct counted *of)
{
	size_t place = place_of(name);
	if (table.count == table.room) {
		size_t room = table.room ? 2 * table.room : 64;
		struct name *at = realloc(table.at, room * sizeof *at);
		if (!at)
			return false;
		table.at = at;
		table.room = room;
	}
	memmove(&table.at[place + 1], &table.at[place], (table.count++ - place) * sizeof *table.at);
	table.at[place] = (struct name){name, 1, of};
	of->names++;
	return true;
}

// Returns what has no name any more, for the caller to end.
static struct counted *take(size_t place)
{
	struct counted *of = table.at[place].of;
	memmove(&table.at[place], &table.at[place + 1], (--table.count - place) * sizeof *table.at);
	return --of->names ? NULL : of;
}

static void end(struct counted *of)
{
	if (!of)
		return;
	gp_account_give(of->account, of->bytes);
	free(of);
}

// The account has its bytes. Without memory for a name they are not counted: better than for ever.
static void made(unsigned long long name, struct counted is)
{
	struct counted *of = malloc(sizeof *of);
	pthread_mutex_lock(&lock);
	if (of)
		*of = is;
	bool kept = of && add(name, of);
	pthread_mutex_unlock(&lock);
	if (kept)
		return;
	free(of);
	gp_account_give(is.account, is.bytes);
}

// Memory that a context owns is taken out of the table before the driver frees it, since then its name may be another's. If the driver
// refuses to free it, it is put back.
static struct counted *leaves(unsigned long long name)
{
	struct counted *of = NULL;
	pthread_mutex_lock(&lock);
	struct name *n = find(name);
	if (n && n->of->context)
		of = take(place_of(name));
	pthread_mutex_unlock(&lock);
	return of;
}

static void left(unsigned long long name, struct counted *of, CUresult result)
{
	if (of && result) {
		struct counted was = *of;
		was.names = 0;
		free(of);
		made(name, was);
		return;
	}
	end(of);
}

// Handles.

static struct gp_gpu *gpu_of(const struct gp_allocation_properties *q)
{
	return q && q->type == CU_MEM_ALLOCATION_TYPE_PINNED ? gp_gpu_at(q->location_type, q->location) : NULL;
}

CUresult gp_counted_create(unsigned long long *out, size_t bytes, const struct gp_allocation_properties *q,
			   unsigned long long flags, struct gp_retry *retry, struct gp_gpu **lacking)
{
	// The driver refuses a wrong size or flag before it reads q, which may be anything then.
	struct gp_gpu *gpu = out && bytes && !(bytes % GP_GRANULE) && !flags ? gpu_of(q) : NULL;
	if (!gpu)
		return gp_driver.cuMemCreate(out, bytes, q, flags);
	_Atomic uint64_t *account = &gp_memory_of(gpu)->pinned;
	*lacking = gpu;
	if (!gp_account_take(gpu, account, bytes, retry))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = gp_driver.cuMemCreate(out, bytes, q, flags);
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		gp_memory_refused(gpu, bytes, retry);
	if (result)
		gp_account_untake(account, bytes, retry);
	else
		made(HANDLE(*out), (struct counted){.account = account, .bytes = bytes});
	return result;
}

CUresult gp_counted_release(unsigned long long handle)
{
	pthread_mutex_lock(&lock);
	struct name *n = find(HANDLE(handle));
	bool last = n && !--n->references;
	struct counted *of = last ? take(place_of(HANDLE(handle))) : NULL; // NULL: it is mapped still
	pthread_mutex_unlock(&lock);
	CUresult result = gp_driver.cuMemRelease(handle);
	end(of);
	return result;
}

void gp_counted_retained(CUdeviceptr address, unsigned long long handle)
{
	pthread_mutex_lock(&lock);
	struct name *n = find(HANDLE(handle));
	size_t behind = place_of(address + 1);
	struct name *mapping = behind ? &table.at[behind - 1] : NULL;
	if (n)
		n->references++;
	else if (mapping && address - mapping->name < mapping->of->bytes) // the program had released it, while it was mapped
		add(HANDLE(handle), mapping->of);
	pthread_mutex_unlock(&lock);
}

void gp_counted_mapped(CUdeviceptr address, unsigned long long handle)
{
	pthread_mutex_lock(&lock);
	struct name *n = find(HANDLE(handle));
	if (n)
		add(address, n->of);
	pthread_mutex_unlock(&lock);
}

void gp_counted_unmapped(CUdeviceptr address, size_t bytes)
{
	for (bool more = true; more;) {
		struct counted *of = NULL;
		pthread_mutex_lock(&lock);
		size_t place = place_of(address);
		more = place < table.count && table.at[place].name < address + bytes;
		if (more)
			of = take(place);
		pthread_mutex_unlock(&lock);
		end(of);
	}
}

// Managed memory.

CUresult gp_cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned flags)
{
	struct gp_context *c = gp_current_context();
	if (!c || !out)
		return gp_driver.cuMemAllocManaged(out, bytes, flags);
	_Atomic uint64_t *account = &gp_memory_of(c->gpu)->managed;
	if (!gp_account_within(c->gpu, account, bytes)) {
		gp_memory_no_room_helps();
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	CUresult result = gp_driver.cuMemAllocManaged(out, bytes, flags);
	if (result)
		gp_account_give(account, bytes);
	else
		made(*out, (struct counted){.account = account, .bytes = bytes, .context = c->handle});
	return result;
}

CUresult gp_counted_free(CUdeviceptr address)
{
	struct counted *of = leaves(address);
	CUresult result = gp_driver.cuMemFree(address);
	left(address, of, result);
	return result;
}

// Arrays.

struct description { // CUDA_ARRAY3D_DESCRIPTOR
	size_t width, height, depth;
	int format;
	unsigned channels, flags;
};
struct flat_description { // CUDA_ARRAY_DESCRIPTOR
	size_t width, height;
	int format;
	unsigned channels;
};

// CUarray_format of CUDA 13.0's cuda.h: bits of a texel, or of each of its channels. Block-compressed texels come in squares of side by side.
static const struct format {
	int first, last;
	unsigned bits;
	bool each_channel;
	unsigned side;
} formats[] = {
	{0x01, 0x01, 8, true, 1},   // UNSIGNED_INT8.
	{0x02, 0x02, 16, true, 1},  // UNSIGNED_INT16.
	{0x03, 0x03, 32, true, 1},  // UNSIGNED_INT32.
	{0x08, 0x08, 8, true, 1},   // SIGNED_INT8.
	{0x09, 0x09, 16, true, 1},  // SIGNED_INT16.
	{0x0a, 0x0a, 32, true, 1},  // SIGNED_INT32.
	{0x10, 0x10, 16, true, 1},  // HALF.
	{0x20, 0x20, 32, true, 1},  // FLOAT.
	{0x50, 0x50, 32, false, 1}, // UNORM_INT_101010_2.
	{0x91, 0x92, 4, false, 4},  // BC1.
	{0x93, 0x96, 8, false, 4},  // BC2, BC3.
	{0x97, 0x98, 4, false, 4},  // BC4.
	{0x99, 0x9e, 8, false, 4},  // BC5, BC6H, BC7.
	{0x9f, 0xa1, 24, false, 1}, // P010, P016.
	{0xa2, 0xa2, 16, false, 1}, // NV16.
	{0xa3, 0xa4, 32, false, 1}, // P210, P216.
	{0xa5, 0xa5, 16, false, 1}, // YUY2.
	{0xa6, 0xa9, 32, false, 1}, // Y210, Y216, AYUV, Y410.
	{0xb0, 0xb0, 12, false, 1}, // NV12.
	{0xb1, 0xb1, 64, false, 1}, // Y416.
	{0xb2, 0xb2, 24, false, 1}, // Y444_PLANAR8.
	{0xb3, 0xb3, 48, false, 1}, // Y444_PLANAR10.
	{0xb4, 0xb4, 24, false, 1}, // YUV444_8bit_SemiPlanar.
	{0xb5, 0xb5, 48, false, 1}, // YUV444_16bit_SemiPlanar.
	{0xc0, 0xc0, 8, false, 1},  // UNORM_INT8X1, and of 2 and 4 channels.
	{0xc1, 0xc1, 16, false, 1}, {0xc2, 0xc2, 32, false, 1}, {0xc3, 0xc3, 16, false, 1}, // UNORM_INT16X1.
	{0xc4, 0xc4, 32, false, 1}, {0xc5, 0xc5, 64, false, 1}, {0xc6, 0xc6, 8, false, 1},  // SNORM_INT8X1.
	{0xc7, 0xc7, 16, false, 1}, {0xc8, 0xc8, 32, false, 1}, {0xc9, 0xc9, 16, false, 1}, // SNORM_INT16X1.
	{0xca, 0xca, 32, false, 1}, {0xcb, 0xcb, 64, false, 1},
};

static uint64_t texels(uint64_t n, unsigned side) { return n ? (n - 1) / side * side + side : side; }

// 0: not known, or the memory comes by a handle.
static uint64_t array_bytes(struct description d, unsigned levels)
{
	enum { SPARSE = 0x40, DEFERRED = 0x80, LAYERED = 0x01, CUBE = 0x04 }; // CUDA_ARRAY3D_*
	const struct format *f = formats, *end = formats + sizeof formats / sizeof *formats;
	while (f < end && (d.format < f->first || d.format > f->last))
		f++;
	if (f == end || d.flags & (SPARSE | DEFERRED))
		return 0;
	uint64_t all = 0;
	bool layers = d.flags & (LAYERED | CUBE);
	for (unsigned i = 0; i < levels && i < 32; i++) {
		uint64_t bits = f->bits * (f->each_channel ? (uint64_t)d.channels : 1);
		if (__builtin_mul_overflow(bits, texels(d.width >> i, f->side), &bits) ||
		    __builtin_mul_overflow(bits, texels(d.height >> i, f->side), &bits) ||
		    __builtin_mul_overflow(bits, texels(layers ? d.depth : d.depth >> i, 1), &bits) ||
		    __builtin_add_overflow(all, bits, &all))
			return 0; // the driver says what it thinks of that
	}
	return all / 8;
}

struct array_request {
	enum { FLAT, DEEP, LEVELS } kind;
	void **out;
	const void *given;
	unsigned levels;
};

static CUresult ask_driver(const struct array_request *q)
{
	switch (q->kind) {
	case FLAT: return gp_driver.cuArrayCreate(q->out, q->given);
	case DEEP: return gp_driver.cuArray3DCreate(q->out, q->given);
	default: return gp_driver.cuMipmappedArrayCreate(q->out, q->given, q->levels);
	}
}

static CUresult create_array(const struct array_request *q, struct description d)
{
	struct gp_context *c = gp_current_context();
	uint64_t bytes = c && q->out ? array_bytes(d, q->levels) : 0;
	if (!bytes)
		return ask_driver(q);
	_Atomic uint64_t *account = &gp_memory_of(c->gpu)->pinned;
	if (!gp_account_within(c->gpu, account, bytes)) {
		gp_memory_no_room_helps();
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	CUresult result = ask_driver(q);
	if (result)
		gp_account_give(account, bytes);
	else
		made(ARRAY(*q->out), (struct counted){.account = account, .bytes = bytes, .context = c->handle});
	return result;
}

CUresult gp_cuArrayCreate_v2(void **out, const void *given)
{
	const struct flat_description *f = given;
	struct description d = {0};
	if (f)
		d = (struct description){f->width, f->height, 0, f->format, f->channels, 0};
	return create_array(&(struct array_request){FLAT, out, given, 1}, d);
}

CUresult gp_cuArray3DCreate_v2(void **out, const void *given)
{
	struct description d = {0};
	if (given)
		d = *(const struct description *)given;
	return create_array(&(struct array_request){DEEP, out, given, 1}, d);
}

CUresult gp_cuMipmappedArrayCreate(void **out, const void *given, unsigned levels)
{
	struct description d = {0};
	if (given)
		d = *(const struct description *)given;
	return create_array(&(struct array_request){LEVELS, out, given, levels}, d);
}

CUresult gp_cuArrayDestroy(void *array)
{
	struct counted *of = leaves(ARRAY(array));
	CUresult result = gp_driver.cuArrayDestroy(array);
	left(ARRAY(array), of, result);
	return result;
}

CUresult gp_cuMipmappedArrayDestroy(void *array)
{
	struct counted *of = leaves(ARRAY(array));
	CUresult result = gp_driver.cuMipmappedArrayDestroy(array);
	left(ARRAY(array), of, result);
	return result;
}

// Another context may have the handle as soon as the driver has destroyed this one. So what ends with it is marked before.
void gp_counted_context_destroying(CUcontext context)
{
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < table.count; i++)
		table.at[i].of->leaving |= table.at[i].of->context == context;
	pthread_mutex_unlock(&lock);
}

void gp_counted_context_destroyed(CUcontext context, bool is)
{
	struct counted *of;
	do {
		of = NULL;
		pthread_mutex_lock(&lock);
		for (size_t i = 0; i < table.count && !of; i++) {
			struct counted *each = table.at[i].of;
			bool leaves = each->leaving && each->context == context;
			each->leaving &= !leaves;
			of = leaves && is ? take(i) : NULL;
		}
		pthread_mutex_unlock(&lock);
		end(of);
	} while (of);
}

// Pools. The driver alone knows what of a pool's memory an allocation may use: so it is asked first, and what made a pool grow beyond the
// limit is given back.

struct pool_request {
	CUdeviceptr *out;
	size_t bytes;
	bool named; // a pool is; else it is the device's current one
	void *pool;
	CUstream stream;
	bool of_thread; // _ptsz
};

static CUresult allocate_async(const struct pool_request *q)
{
	if (q->named)
		return q->of_thread ? gp_driver.cuMemAllocFromPoolAsync_ptsz(q->out, q->bytes, q->pool, q->stream) :
				      gp_driver.cuMemAllocFromPoolAsync(q->out, q->bytes, q->pool, q->stream);
	return q->of_thread ? gp_driver.cuMemAllocAsync_ptsz(q->out, q->bytes, q->stream) :
			      gp_driver.cuMemAllocAsync(q->out, q->bytes, q->stream);
}

bool gp_memory_is_beyond(const struct gp_gpu *gpu, uint64_t more)
{
	uint64_t limit = gp_memory_limit(gp_memory_total(gpu));
	uint64_t all = gp_account_own(gpu) + gp_memory_beside(gpu) + gp_memory_managed(gpu);
	return limit && (more > limit || all > limit - more);
}

static CUresult from_pool(const struct pool_request *q)
{
	CUstream stream = q->stream ? q->stream : q->of_thread ? GP_STREAM_PER_THREAD : GP_STREAM_LEGACY;
	struct gp_context *c = q->out ? gp_current_context() : NULL;
	if (!c || !gp_memory_limit(gp_memory_total(c->gpu)) || gp_is_captured(stream))
		return allocate_async(q);
	// An earlier request may have left its pool too large: its block was still in use on a stream.
	if (gp_memory_is_beyond(c->gpu, 0))
		gp_pools_trim(c->gpu);
	uint64_t before = gp_pools_reserved(c->gpu);
	if (gp_memory_is_beyond(c->gpu, 0))
		goto refused;
	if (q->bytes > before && gp_memory_is_beyond(c->gpu, q->bytes - before)) // whatever of the pools it may use
		goto refused;
	CUresult result = allocate_async(q);
	if (result || gp_pools_reserved(c->gpu) <= before || !gp_memory_is_beyond(c->gpu, 0))
		return result;
	gp_pools_trim(c->gpu);
	if (!gp_memory_is_beyond(c->gpu, 0))
		return result;
	gp_driver.cuMemFreeAsync(*q->out, stream);
	gp_pools_trim(c->gpu);
refused:
	gp_memory_no_room_helps();
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult gp_cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream stream)
{
	return from_pool(&(struct pool_request){out, bytes, false, NULL, stream, false});
}

CUresult gp_cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t bytes, CUstream stream)
{
	return from_pool(&(struct pool_request){out, bytes, false, NULL, stream, true});
}

CUresult gp_cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, void *pool, CUstream stream)
{
	return from_pool(&(struct pool_request){out, bytes, true, pool, stream, false});
}

CUresult gp_cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t bytes, void *pool, CUstream stream)
{
	return from_pool(&(struct pool_request){out, bytes, true, pool, stream, true});
}
