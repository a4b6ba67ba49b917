// limits.c - takes memory in one way until the driver has no more, gives it back, and does the same again.
//
// limits WAY: for each of two rounds a line: pieces of 8 MiB, MiB that cuMemGetInfo then says are free, MiB of the total.
#define FUNCTIONS(F) \
	F(cuMemAllocPitch_v2, (ptr *, size_t *, size_t, size_t, unsigned)) \
	F(cuMemAllocManaged, (ptr *, size_t, unsigned)) \
	F(cuMemAllocAsync, (ptr *, size_t, handle)) \
	F(cuMemAllocFromPoolAsync, (ptr *, size_t, handle, handle)) \
	F(cuMemFreeAsync, (ptr, handle)) \
	F(cuMemPoolCreate, (handle *, const void *)) \
	F(cuMemPoolTrimTo, (handle, size_t)) \
	F(cuMemCreate, (unsigned long long *, size_t, const void *, unsigned long long)) \
	F(cuMemRelease, (unsigned long long)) \
	F(cuMemAddressReserve, (ptr *, size_t, size_t, ptr, unsigned long long)) \
	F(cuMemAddressFree, (ptr, size_t)) \
	F(cuMemMap, (ptr, size_t, size_t, unsigned long long, unsigned long long)) \
	F(cuMemUnmap, (ptr, size_t)) \
	F(cuArrayCreate_v2, (handle *, const void *)) \
	F(cuArray3DCreate_v2, (handle *, const void *)) \
	F(cuArrayDestroy, (handle)) \
	F(cuDeviceGraphMemTrim, (int)) \
	F(cuGraphAddMemAllocNode, (handle *, handle, const handle *, size_t, void *)) \
	F(cuGraphCreate, (handle *, unsigned)) \
	F(cuGraphDestroy, (handle)) \
	F(cuGraphExecDestroy, (handle)) \
	F(cuGraphInstantiateWithFlags, (handle *, handle, unsigned long long)) \
	F(cuGraphLaunch, (handle, handle)) \
	F(cuStreamBeginCapture_v2, (handle, int)) \
	F(cuStreamEndCapture, (handle, handle *)) \
	F(cuMemGetInfo_v2, (size_t *, size_t *)) \
	F(cuDeviceGetDefaultMemPool, (handle *, int))
#include "driver.h"

#include <stdbool.h>
#include <string.h>

enum { PIECE = 8 << 20, SMALL = 1 << 20, MOST = 4096, OUT_OF_MEMORY = 2 };

union piece {
	ptr at;
	handle array;
	struct {
		unsigned long long handle;
		ptr at;
	} mapped;
	ptr small[PIECE / SMALL];
};
static union piece pieces[MOST];
static handle pool, initial, stream;

static int plain(union piece *p) { return cuMemAlloc_v2(&p->at, PIECE); }
static int managed(union piece *p) { return cuMemAllocManaged(&p->at, PIECE, 1); }
static int give_plain(union piece *p) { return cuMemFree_v2(p->at); }

static int small(union piece *p)
{
	int r = 0;
	size_t i = 0;
	while (i < PIECE / SMALL && !(r = cuMemAlloc_v2(&p->small[i], SMALL)))
		i++;
	while (r && i)
		OK(cuMemFree_v2(p->small[--i]));
	return r;
}

static int give_small(union piece *p)
{
	for (size_t i = 0; i < PIECE / SMALL; i++)
		OK(cuMemFree_v2(p->small[i]));
	return 0;
}

static int pitched(union piece *p)
{
	size_t pitch;
	return cuMemAllocPitch_v2(&p->at, &pitch, 4096, PIECE / 4096, 4);
}

static int async(union piece *p) { return cuMemAllocAsync(&p->at, PIECE, NULL); }
static int pooled(union piece *p) { return cuMemAllocFromPoolAsync(&p->at, PIECE, pool, NULL); }

static int give_async(union piece *p)
{
	int r = cuMemFreeAsync(p->at, NULL);
	return r ? r : cuStreamSynchronize(NULL);
}

static int created(union piece *p)
{
	struct { // CUmemAllocationProp
		int type, handle_types, location, id;
		void *none;
		unsigned char flags[8];
	} properties = {.type = 1, .location = 1};
	return cuMemCreate(&p->mapped.handle, PIECE, &properties, 0);
}

static int give_created(union piece *p) { return cuMemRelease(p->mapped.handle); }

// The handle is released at once, and the mapping keeps the memory.
static int mapped(union piece *p)
{
	int r = created(p);
	if (r)
		return r;
	OK(cuMemAddressReserve(&p->mapped.at, PIECE, 0, 0, 0));
	OK(cuMemMap(p->mapped.at, PIECE, 0, p->mapped.handle, 0));
	return cuMemRelease(p->mapped.handle);
}

static int give_mapped(union piece *p)
{
	OK(cuMemUnmap(p->mapped.at, PIECE));
	return cuMemAddressFree(p->mapped.at, PIECE);
}

static int flat(union piece *p)
{
	struct {
		size_t width, height;
		int format;
		unsigned channels;
	} d = {1024, 2048, 0x20, 1};
	return cuArrayCreate_v2(&p->array, &d);
}

static int deep(union piece *p)
{
	struct {
		size_t width, height, depth;
		int format;
		unsigned channels, flags;
	} d = {256, 256, 32, 0x10, 2, 0};
	return cuArray3DCreate_v2(&p->array, &d);
}

static int compressed(union piece *p) // BC7
{
	struct {
		size_t width, height;
		int format;
		unsigned channels;
	} d = {4093, 2047, 0x9d, 4};
	return cuArrayCreate_v2(&p->array, &d);
}

static int give_array(union piece *p) { return cuArrayDestroy(p->array); }

// Launches the graph once, and destroys it.
static int launched(handle graph)
{
	handle exec;
	int r = cuGraphInstantiateWithFlags(&exec, graph, 0);
	if (!r) {
		r = cuGraphLaunch(exec, NULL);
		OK(cuStreamSynchronize(NULL));
		OK(cuGraphExecDestroy(exec));
	}
	OK(cuGraphDestroy(graph));
	return r;
}

// Graphs share their memory, so each piece is one node more than the graph of the piece before has.
static int noded(union piece *p)
{
	struct {
		int type, handle_types, location, id;
		unsigned char rest[72];
		const void *accesses;
		size_t count, bytes;
		ptr at;
	} q = {.type = 1, .location = 1, .bytes = PIECE};
	handle graph, node;
	OK(cuGraphCreate(&graph, 0));
	for (union piece *i = pieces; i <= p; i++)
		OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &q));
	return launched(graph);
}

static int captured(int count, int at_once)
{
	ptr at[MOST];
	handle graph;
	OK(cuStreamBeginCapture_v2(stream, 0));
	for (int i = 0; i < count; i += at_once) {
		for (int k = 0; k < at_once; k++)
			OK(cuMemAllocAsync(&at[k], PIECE, stream));
		for (int k = 0; k < at_once; k++)
			OK(cuMemFreeAsync(at[k], stream));
	}
	OK(cuStreamEndCapture(stream, &graph));
	return launched(graph);
}

// What a graph frees, its later nodes have: that is no reason to refuse it.
static int capture(union piece *p)
{
	int at_once = (int)(p - pieces) + 1;
	if (at_once == 1)
		OK(captured(100, 1));
	return captured(at_once, at_once);
}

static int give_graph(union piece *p) { return p == pieces ? cuDeviceGraphMemTrim(0) : 0; }

static const struct way {
	const char *name;
	int (*take)(union piece *), (*give)(union piece *);
} ways[] = {
	{"memory", plain, give_plain},
	{"small", small, give_small},
	{"pitch", pitched, give_plain},
	{"managed", managed, give_plain},
	{"async", async, give_async},
	{"pool", pooled, give_async},
	{"handle", created, give_created},
	{"mapped", mapped, give_mapped},
	{"array", flat, give_array},
	{"array of 3", deep, give_array},
	{"compressed array", compressed, give_array},
	{"graph", noded, give_graph},
	{"captured graph", capture, give_graph},
};

static void round_of(const struct way *w)
{
	size_t free, total, count = 0;
	int r = 0;
	while (count < MOST && !(r = w->take(&pieces[count])))
		count++;
	CHECK(r == OUT_OF_MEMORY);
	OK(cuMemGetInfo_v2(&free, &total));
	printf("%zu %zu %zu\n", count, free >> 20, total >> 20);
	fflush(stdout);
	while (count)
		OK(w->give(&pieces[--count]));
	OK(cuMemPoolTrimTo(pool, 0));
	OK(cuMemPoolTrimTo(initial, 0));
}

int main(int count, char **arguments)
{
	struct { // CUmemPoolProps
		int type, handle_types, location, id;
		unsigned char rest[72];
	} properties = {.type = 1, .location = 1};
	handle context;
	find_driver();
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	OK(cuStreamCreate(&stream, 1));
	OK(cuMemPoolCreate(&pool, &properties));
	OK(cuDeviceGetDefaultMemPool(&initial, 0));
	for (size_t i = 0; count == 2 && i < sizeof ways / sizeof *ways; i++)
		if (!strcmp(ways[i].name, arguments[1])) {
			round_of(&ways[i]);
			round_of(&ways[i]);
			return 0;
		}
	return 1;
}
