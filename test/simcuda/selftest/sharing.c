// sharing.c - the simulated driver's promises about memory that others may use, and about times that memory takes. usage: sharing NAME;
// prints "simulated: NAME ok" or the first failure, and exits 0 or 1.
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

typedef unsigned long long ptr;
typedef void *handle;
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(handle *, int);
int cuCtxSetCurrent(handle);
int cuCtxSynchronize(void);
int cuCtxSetFlags(unsigned);
int cuCtxGetFlags(unsigned *);
int cuDeviceGetAttribute(int *, int, int);
int cuDeviceGraphMemTrim(int);
int cuDeviceGetGraphMemAttribute(int, int, uint64_t *);
int cuGraphNodeGetType(handle, int *);
int cuGraphGetNodes(handle, handle *, size_t *);
int cuGraphInstantiateWithFlags(handle *, handle, unsigned long long);
int cuGraphLaunch(handle, handle);
int cuGraphMemAllocNodeGetParams(handle, void *);
int cuGraphMemFreeNodeGetParams(handle, ptr *);
int cuMemFreeAsync(ptr, handle);
int cuMemAlloc_v2(ptr *, size_t);
int cuMemFree_v2(ptr);
int cuMemGetInfo_v2(size_t *, size_t *);
int cuMemcpyDtoH_v2(void *, ptr, size_t);
int cuMemcpyDtoDAsync_v2(ptr, ptr, size_t, handle);
int cuMemsetD32_v2(ptr, unsigned, size_t);
int cuMemsetD32Async(ptr, unsigned, size_t, handle);
int cuStreamCreate(handle *, unsigned);
int cuStreamSynchronize(handle);
int cuStreamBeginCapture_v2(handle, int);
int cuStreamEndCapture(handle, handle *);
int cuModuleLoadData(handle *, const void *);
int cuModuleGetFunction(handle *, handle, const char *);
int cuLaunchKernel(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **);
int cuDeviceCanAccessPeer(int *, int, int);
int cuCtxEnablePeerAccess(handle, unsigned);
int cuCtxDisablePeerAccess(handle);
int cuMemAllocAsync(ptr *, size_t, handle);
int cuDeviceGetDefaultMemPool(handle *, int);

struct location { int type, id; };
struct access {
	struct location location;
	int flags;
};
struct properties {
	int type, handle_types;
	struct location location;
	void *windows;
	unsigned char flags[8];
};
typedef unsigned long long physical;
int cuMemPoolSetAccess(handle, const struct access *, size_t);
int cuMemPoolGetAccess(int *, handle, const struct location *);
int cuMemAddressReserve(ptr *, size_t, size_t, ptr, unsigned long long);
int cuMemCreate(physical *, size_t, const struct properties *, unsigned long long);
int cuMemRelease(physical);
int cuMemMap(ptr, size_t, size_t, physical, unsigned long long);
int cuMemUnmap(ptr, size_t);
int cuMemSetAccess(ptr, size_t, const struct access *, size_t);
int cuMemGetHandleForAddressRange(void *, ptr, size_t, int, unsigned long long);
int cuMulticastCreate(unsigned long long *, const void *);

typedef struct { char bytes[64]; } ipc_handle;
int cuIpcGetMemHandle(ipc_handle *, ptr);
int cuIpcOpenMemHandle_v2(ptr *, ipc_handle, unsigned);
int cuIpcCloseMemHandle(ptr);

enum {
	INVALID_VALUE = 1,
	OUT_OF_MEMORY = 2,
	INVALID_CONTEXT = 201,
	ILLEGAL_ADDRESS = 700,
	ALREADY_ENABLED = 704,
	NOT_ENABLED = 705,
	NOT_SUPPORTED = 801,
	CAPTURE_UNSUPPORTED = 900,
	CAPTURE_INVALIDATED = 901,
	UNKNOWN = 999
};
#define MB (1ull << 20)

static handle context[2], copy_kernel[2];

static void start(int devices)
{
	handle module;
	setenv("SIMCUDA_DEVICES", devices == 2 ? "2" : "1", 1);
	setenv("SIMCUDA_MEMORY_MB", "1000", 1);
	setenv("SIMCUDA_CONTEXT_MB", "100", 1);
	OK(cuInit(0));
	for (int i = devices - 1; i >= 0; i--) {
		OK(cuDevicePrimaryCtxRetain(&context[i], i));
		OK(cuCtxSetCurrent(context[i]));
		OK(cuModuleLoadData(&module, "simulated image"));
		OK(cuModuleGetFunction(&copy_kernel[i], module, "sim_copy"));
	}
}

static uint64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static size_t free_mb(void)
{
	size_t free, total;
	OK(cuMemGetInfo_v2(&free, &total));
	return free / MB;
}

static uint32_t word(ptr p)
{
	uint32_t seen;
	OK(cuMemcpyDtoH_v2(&seen, p, 4));
	return seen;
}

static ptr allocated(int device, size_t bytes, uint32_t value)
{
	ptr p;
	OK(cuCtxSetCurrent(context[device]));
	OK(cuMemAlloc_v2(&p, bytes));
	OK(cuMemsetD32_v2(p, value, bytes / 4));
	OK(cuCtxSynchronize());
	return p;
}

static physical created(int device, size_t bytes)
{
	struct properties of_device = {.type = 1, .location = {1, device}};
	physical h;
	OK(cuMemCreate(&h, bytes, &of_device, 0));
	return h;
}

static ptr mapped(int device, size_t bytes)
{ // for its own device
	struct access own = {{1, device}, 3};
	ptr p;
	OK(cuMemAddressReserve(&p, bytes, 0, 0, 0));
	OK(cuMemMap(p, bytes, 0, created(device, bytes), 0));
	OK(cuMemSetAccess(p, bytes, &own, 1));
	return p;
}

// A kernel of the first device copies a word.
static int copied(ptr to, ptr from)
{
	uint64_t bytes = 4;
	void *parameters[] = {&to, &from, &bytes};
	OK(cuCtxSetCurrent(context[0]));
	OK(cuLaunchKernel(copy_kernel[0], 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
	return cuCtxSynchronize();
}

static void peers(void)
{
	start(2);
	int can;
	OK(cuDeviceCanAccessPeer(&can, 0, 1));
	CHECK(can);
	OK(cuDeviceCanAccessPeer(&can, 1, 1));
	CHECK(!can);
	ptr before = allocated(1, 4096, 5), own = allocated(0, 4096, 1);
	REFUSED(NOT_ENABLED, cuCtxDisablePeerAccess(context[1]));
	OK(cuMemcpyDtoDAsync_v2(own, before, 4, NULL)); // copies need no peer access
	OK(cuCtxSynchronize());
	CHECK(word(own) == 5);
	OK(cuCtxEnablePeerAccess(context[1], 0));
	REFUSED(ALREADY_ENABLED, cuCtxEnablePeerAccess(context[1], 0));
	OK(copied(own, before));
	ptr after = allocated(1, 5 * MB, 6);
	OK(copied(own, after));
	CHECK(word(own) == 6);
	OK(cuCtxDisablePeerAccess(context[1]));
	CHECK(copied(own, after) == ILLEGAL_ADDRESS);
}

static void strangers(void)
{ // peer access covers neither what is mapped nor pools
	start(2);
	ptr own = allocated(0, 4096, 1), other = mapped(1, 2 * MB), pooled;
	handle stream, pool;
	OK(cuCtxEnablePeerAccess(context[1], 0));
	struct access both[] = {{{1, 0}, 3}, {{1, 1}, 3}};
	struct location first = {1, 0};
	OK(cuCtxSetCurrent(context[1]));
	OK(cuStreamCreate(&stream, 1));
	OK(cuMemsetD32Async(other, 7, 1, stream));
	OK(cuMemAllocAsync(&pooled, 4096, stream));
	OK(cuMemsetD32Async(pooled, 8, 1, stream));
	OK(cuStreamSynchronize(stream));
	OK(cuDeviceGetDefaultMemPool(&pool, 1));
	int flags;
	OK(cuMemPoolGetAccess(&flags, pool, &first));
	CHECK(flags == 0);
	OK(cuMemPoolSetAccess(pool, both, 1));
	OK(cuMemPoolGetAccess(&flags, pool, &first));
	CHECK(flags == 3);
	OK(copied(own, pooled));
	CHECK(word(own) == 8);
	OK(cuMemSetAccess(other, 2 * MB, both, 2));
	OK(copied(own, other));
	CHECK(word(own) == 7);
	both[0].flags = 0;
	OK(cuMemSetAccess(other, 2 * MB, both, 1));
	CHECK(copied(own, other) == ILLEGAL_ADDRESS);
}

static void pool_strangers(void)
{
	start(2);
	ptr own = allocated(0, 4096, 1), pooled;
	OK(cuCtxEnablePeerAccess(context[1], 0));
	OK(cuCtxSetCurrent(context[1]));
	OK(cuMemAllocAsync(&pooled, 4096, NULL));
	OK(cuCtxSynchronize());
	CHECK(copied(own, pooled) == ILLEGAL_ADDRESS);
}

// The other process: opens the memory whose handles it gets, looks, changes it, and says so.
static void importer(int in, int out)
{
	ipc_handle h[2];
	char said;
	CHECK(read(in, h, sizeof h) == sizeof h);
	start(1);
	for (int i = 0; i < 2; i++) {
		size_t before = free_mb();
		ptr p, again;
		REFUSED(INVALID_VALUE, cuIpcOpenMemHandle_v2(&p, h[i], 0));
		OK(cuIpcOpenMemHandle_v2(&p, h[i], 1));
		OK(cuIpcOpenMemHandle_v2(&again, h[i], 1));
		CHECK(p == again && word(p) == 1 && free_mb() == before);
		REFUSED(INVALID_VALUE, cuMemFree_v2(p));
		OK(cuMemsetD32_v2(p, 2, 1));
		OK(cuCtxSynchronize());
		CHECK(write(out, "", 1) == 1 && read(in, &said, 1) == 1);
		CHECK(word(p) == 3);
		OK(cuIpcCloseMemHandle(again));
		CHECK(word(p + 4) == 1);
		OK(cuIpcCloseMemHandle(p));
		REFUSED(INVALID_VALUE, cuIpcCloseMemHandle(p));
	}
	_exit(0);
}

static void ipc(void)
{ // small allocations and large ones
	int to[2], from[2], status;
	char said;
	ipc_handle h[2];
	CHECK(pipe(to) == 0 && pipe(from) == 0);
	pid_t child = fork();
	CHECK(close(child ? to[0] : to[1]) == 0 && close(child ? from[1] : from[0]) == 0);
	if (!child)
		importer(to[0], from[1]);
	start(1);
	ptr p[2] = {allocated(0, 1000, 1), allocated(0, 5 * MB, 1)}, own;
	for (int i = 0; i < 2; i++) {
		OK(cuIpcGetMemHandle(&h[i], p[i]));
		CHECK(word(p[i]) == 1);
	}
	REFUSED(INVALID_CONTEXT, cuIpcOpenMemHandle_v2(&own, h[0], 1));
	REFUSED(INVALID_VALUE, cuIpcGetMemHandle(&h[0], mapped(0, 2 * MB)));
	CHECK(write(to[1], h, sizeof h) == sizeof h);
	for (int i = 0; i < 2; i++) {
		CHECK(read(from[0], &said, 1) == 1);
		CHECK(word(p[i]) == 2);
		OK(cuMemsetD32_v2(p[i], 3, 1));
		OK(cuCtxSynchronize());
		CHECK(write(to[1], "", 1) == 1);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	OK(cuMemFree_v2(p[0]));
	OK(cuMemFree_v2(p[1]));
}

static void devices_on_the_bus(void)
{
	start(1);
	ptr native = allocated(0, 4 * MB, 1), pieces;
	struct access own = {{1, 0}, 3};
	int file;
	OK(cuMemAddressReserve(&pieces, 8 * MB, 0, 0, 0));
	for (int i = 0; i < 2; i++)
		OK(cuMemMap(pieces + (unsigned)i * 2 * MB, 2 * MB, 0, created(0, 2 * MB), 0));
	OK(cuMemSetAccess(pieces, 4 * MB, &own, 1));
	OK(cuMemGetHandleForAddressRange(&file, native + 4096, 8192, 1, 0));
	struct stat st;
	CHECK(fstat(file, &st) == 0 && st.st_size == 8192);
	OK(cuMemGetHandleForAddressRange(&file, pieces, 4 * MB, 1, 0)); // over handles
	REFUSED(INVALID_VALUE, cuMemGetHandleForAddressRange(&file, pieces, 6 * MB, 1, 0));
	REFUSED(INVALID_VALUE, cuMemGetHandleForAddressRange(&file, native, 8 * MB, 1, 0));
	REFUSED(INVALID_VALUE, cuMemGetHandleForAddressRange(&file, native + 512, 4096, 1, 0));
	unsigned long long h;
	int value;
	REFUSED(NOT_SUPPORTED, cuMulticastCreate(&h, &own));
	OK(cuDeviceGetAttribute(&value, 132, 0)); // MULTICAST_SUPPORTED
	CHECK(value == 0);
	OK(cuDeviceGetAttribute(&value, 124, 0)); // DMA_BUF_SUPPORTED
	CHECK(value == 1);
	OK(cuDeviceGetAttribute(&value, 110, 0)); // GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
	CHECK(value == 1);
	unsigned flags;
	OK(cuCtxSetFlags(0x80)); // SYNC_MEMOPS
	OK(cuCtxGetFlags(&flags));
	CHECK(flags & 0x80);
	OK(cuDeviceGraphMemTrim(0));
}

static void captured(void)
{ // an allocation beside a global capture fails and ends it, beside another thread's or a relaxed one it does not
	start(1);
	handle stream, graph;
	ptr p;
	OK(cuStreamCreate(&stream, 1));
	OK(cuStreamBeginCapture_v2(stream, 0));
	REFUSED(CAPTURE_UNSUPPORTED, cuMemAlloc_v2(&p, 4096));
	REFUSED(CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
	OK(cuStreamBeginCapture_v2(stream, 2));
	OK(cuMemAlloc_v2(&p, 4096));
	OK(cuStreamEndCapture(stream, &graph));
}

static void graph_memory(void)
{ // the device has it from the launch until the trim, and a node that is freed leaves room for the next
	start(1);
	handle stream, graph, exec, nodes[5];
	ptr at[2], freed;
	struct {
		struct properties of;
		unsigned char rest[56]; // of CUmemPoolProps
		const void *accesses;
		size_t count, bytes;
		ptr at;
	} q;
	uint64_t before = free_mb(), kept;
	size_t count = 5;
	int type;
	OK(cuStreamCreate(&stream, 1));
	OK(cuStreamBeginCapture_v2(stream, 0));
	for (int i = 0; i < 2; i++) {
		OK(cuMemAllocAsync(&at[i], 100 * MB, stream));
		OK(cuMemsetD32Async(at[i], (unsigned)i + 7, 1, stream));
		if (!i)
			OK(cuMemFreeAsync(at[i], stream));
	}
	OK(cuStreamEndCapture(stream, &graph));
	OK(cuGraphGetNodes(graph, nodes, &count)); // the newest first
	CHECK(count == 5);
	OK(cuGraphNodeGetType(nodes[4], &type));
	CHECK(type == 10); // MEM_ALLOC
	OK(cuGraphMemAllocNodeGetParams(nodes[4], &q));
	CHECK(q.at == at[0] && q.bytes == 100 * MB && q.of.location.id == 0);
	OK(cuGraphNodeGetType(nodes[2], &type));
	CHECK(type == 11); // MEM_FREE
	OK(cuGraphMemFreeNodeGetParams(nodes[2], &freed));
	CHECK(freed == at[0]);
	REFUSED(INVALID_VALUE, cuGraphMemFreeNodeGetParams(nodes[4], &freed));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	CHECK(free_mb() == before);
	OK(cuGraphLaunch(exec, stream));
	OK(cuStreamSynchronize(stream));
	CHECK(free_mb() == before - 100);
	OK(cuDeviceGetGraphMemAttribute(0, 2, &kept)); // RESERVED_MEM_CURRENT
	CHECK(kept == 100 * MB);
	OK(cuDeviceGraphMemTrim(0));
	CHECK(free_mb() == before);
}

static void scrubbing(void)
{ // 500 ms for 500 MB
	setenv("SIMCUDA_SCRUB_MS_PER_GB", "1000", 1);
	start(1);
	physical h = created(0, 500 * MB), other;
	struct properties of_device = {.type = 1, .location = {1, 0}};
	uint64_t from = now_ms();
	OK(cuMemRelease(h));
	CHECK(free_mb() == 400 || now_ms() - from >= 500);
	while (cuMemCreate(&other, 500 * MB, &of_device, 0) == OUT_OF_MEMORY)
		usleep(1000);
	CHECK(now_ms() - from >= 500);
	ptr p;
	OK(cuMemAlloc_v2(&p, 300 * MB));
	from = now_ms();
	OK(cuMemFree_v2(p));
	CHECK(free_mb() == 100 || now_ms() - from >= 300);
	while (free_mb() != 400)
		usleep(1000);
	CHECK(now_ms() - from >= 300);
}

static void creating(void)
{
	setenv("SIMCUDA_CREATE_MS_PER_GB", "1000", 1);
	start(1);
	uint64_t from = now_ms();
	OK(cuMemRelease(created(0, 200 * MB)));
	CHECK(now_ms() - from >= 200);
}

static void calling(void)
{
	setenv("SIMCUDA_CALL_US", "cuMemRelease:200000,cuMemCreate:300000", 1);
	start(1);
	uint64_t from = now_ms();
	physical h = created(0, 2 * MB);
	CHECK(now_ms() - from >= 300);
	from = now_ms();
	OK(cuMemRelease(h));
	CHECK(now_ms() - from >= 200);
}

static void calling_misspelt(void)
{
	setenv("SIMCUDA_CALL_US", "cuMemReleas:2", 1);
	REFUSED(UNKNOWN, cuInit(0));
}

static void copying_nothing(void)
{ // but what is small
	setenv("SIMCUDA_CONTENTS", "0", 1);
	start(1);
	ptr p;
	char *host = calloc(1, 2 * MB);
	OK(cuMemAlloc_v2(&p, 2 * MB));
	OK(cuMemsetD32_v2(p, 7, MB / 8));
	OK(cuMemcpyDtoH_v2(host, p, 2 * MB));
	CHECK(host[0] == 0);
	OK(cuMemcpyDtoH_v2(host, p, MB / 2));
	CHECK(host[0] == 7 && host[MB / 2 - 4] == 7);
	free(host);
}

static const struct test tests[] = {
	{"peers", peers},
	{"strangers", strangers},
	{"pool_strangers", pool_strangers},
	{"ipc", ipc},
	{"devices_on_the_bus", devices_on_the_bus},
	{"captured", captured},
	{"graph_memory", graph_memory},
	{"scrubbing", scrubbing},
	{"creating", creating},
	{"calling", calling},
	{"calling_misspelt", calling_misspelt},
	{"copying_nothing", copying_nothing},
};

int main(int argc, char **argv) { return run_test(argc, argv, tests, sizeof tests / sizeof *tests); }
