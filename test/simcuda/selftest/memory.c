// memory.c - the simulated driver's promises about memory, and about calls that fail. usage: memory NAME; prints "simulated: NAME ok" or
// the first failure, and exits 0 or 1.
#define _GNU_SOURCE
#include "check.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

typedef unsigned long long ptr;
typedef void *handle;
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(handle *, int);
int cuCtxSetCurrent(handle);
int cuCtxSynchronize(void);
int cuMemAlloc_v2(ptr *, size_t);
int cuMemFree_v2(ptr);
int cuMemAllocPitch_v2(ptr *, size_t *, size_t, size_t, unsigned);
int cuMemAllocManaged(ptr *, size_t, unsigned);
int cuMemGetInfo_v2(size_t *, size_t *);
int cuDeviceTotalMem_v2(size_t *, int);
int cuCtxCreate_v2(handle *, unsigned, int);
int cuCtxDestroy_v2(handle);
int cuDevicePrimaryCtxRelease_v2(int);
int cuMemcpyHtoD_v2(ptr, const void *, size_t);
int cuMemcpyDtoH_v2(void *, ptr, size_t);
int cuMemcpyHtoDAsync_v2(ptr, const void *, size_t, handle);
int cuMemcpyDtoHAsync_v2(void *, ptr, size_t, handle);
int cuMemcpyDtoDAsync_v2(ptr, ptr, size_t, handle);
int cuMemsetD32_v2(ptr, unsigned, size_t);
int cuMemsetD8_v2(ptr, unsigned char, size_t);
int cuMemHostAlloc(void **, size_t, unsigned);
int cuMemFreeHost(void *);
int cuMemHostRegister_v2(void *, size_t, unsigned);
int cuMemHostUnregister(void *);
int cuStreamCreate(handle *, unsigned);
int cuStreamSynchronize(handle);
int cuEventCreate(handle *, unsigned);
int cuEventRecord(handle, handle);
int cuEventElapsedTime(float *, handle, handle);
int cuModuleLoadData(handle *, const void *);
int cuModuleGetFunction(handle *, handle, const char *);
int cuLaunchKernel(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **);
int cuPointerGetAttribute(void *, int, ptr);
int cuPointerSetAttribute(const void *, int, ptr);
int cuMemGetAddressRange_v2(ptr *, size_t *, ptr);

struct location { int type, id; };
struct properties {
	int type, handle_types;
	struct location location;
	void *windows;
	unsigned char compression, rdma;
	unsigned short usage;
	unsigned char reserved[4];
};
struct access {
	struct location location;
	int flags;
};
typedef unsigned long long physical;
int cuMemAddressReserve(ptr *, size_t, size_t, ptr, unsigned long long);
int cuMemAddressFree(ptr, size_t);
int cuMemCreate(physical *, size_t, const struct properties *, unsigned long long);
int cuMemRelease(physical);
int cuMemMap(ptr, size_t, size_t, physical, unsigned long long);
int cuMemUnmap(ptr, size_t);
int cuMemSetAccess(ptr, size_t, const struct access *, size_t);
int cuMemGetAccess(unsigned long long *, const struct location *, ptr);
int cuMemRetainAllocationHandle(physical *, void *);
int cuMemGetAllocationGranularity(size_t *, const struct properties *, int);
int cuMemGetAllocationPropertiesFromHandle(struct properties *, physical);
int cuMemExportToShareableHandle(void *, physical, int, unsigned long long);
int cuMemImportFromShareableHandle(physical *, void *, int);

struct pool_properties {
	int type, handle_types;
	struct location location;
	void *windows;
	size_t most;
	unsigned char rest[56];
};
int cuMemAllocAsync(ptr *, size_t, handle);
int cuMemAllocFromPoolAsync(ptr *, size_t, handle, handle);
int cuMemFreeAsync(ptr, handle);
int cuDeviceGetDefaultMemPool(handle *, int);
int cuMemPoolCreate(handle *, const struct pool_properties *);
int cuMemPoolDestroy(handle);
int cuMemPoolTrimTo(handle, size_t);
int cuMemPoolSetAttribute(handle, int, void *);
int cuMemPoolGetAttribute(handle, int, void *);
struct array {
	size_t width, height, depth;
	int format;
	unsigned channels, flags;
};
int cuArray3DCreate_v2(handle *, const struct array *);
int cuArrayDestroy(handle);

enum {
	INVALID_VALUE = 1,
	OUT_OF_MEMORY = 2,
	INVALID_DEVICE = 101,
	NOT_FOUND = 500,
	ILLEGAL_ADDRESS = 700,
	NOT_SUPPORTED = 801,
	UNKNOWN = 999
};
#define MB (1ull << 20)

static handle start(void)
{
	handle context;
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	return context;
}

// ---- calls that fail

static void failing(void)
{
	setenv("SIMCUDA_FAIL", "cuMemAlloc:2,cuMemFree_v2:1:2,cuMemsetD32:2+:801", 1);
	start();
	ptr a, b = 0;
	OK(cuMemAlloc_v2(&a, 4096));
	REFUSED(UNKNOWN, cuMemAlloc_v2(&b, 4096));
	CHECK(b == 0);
	OK(cuMemAlloc_v2(&b, 4096));
	OK(cuMemsetD32_v2(a, 7, 1024));
	REFUSED(801, cuMemsetD32_v2(a, 8, 1024));
	REFUSED(801, cuMemsetD32_v2(a, 8, 1024));
	uint32_t seen;
	OK(cuMemcpyDtoH_v2(&seen, a, 4));
	CHECK(seen == 7);
	REFUSED(OUT_OF_MEMORY, cuMemFree_v2(a));
	OK(cuMemcpyDtoH_v2(&seen, a, 4)); // the call had no effect
	OK(cuMemFree_v2(a));
	OK(cuMemFree_v2(b));
}

static int status_of(void (*run)(void))
{ // in a process of its own
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		run();
		_exit(0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	return status;
}

static void killed_at_second_free(void)
{
	setenv("SIMCUDA_KILL", "cuMemFree:2", 1);
	start();
	ptr p;
	OK(cuMemAlloc_v2(&p, 4096));
	OK(cuMemFree_v2(p));
	OK(cuMemAlloc_v2(&p, 4096));
	cuMemFree_v2(p);
}

static void killing(void)
{
	int status = status_of(killed_at_second_free);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void misspelt(void)
{ // a test must not pass because nothing fails
	setenv("SIMCUDA_FAIL", "cuMemAllok:1", 1);
	REFUSED(UNKNOWN, cuInit(0));
}

// ---- how much there is

static size_t free_mb(void)
{
	size_t free, total, device;
	OK(cuMemGetInfo_v2(&free, &total));
	OK(cuDeviceTotalMem_v2(&device, 0));
	CHECK(total == device && free <= total && free % (2 * MB) == 0);
	return free / MB;
}

static void little(void)
{ // of which a context takes 100
	setenv("SIMCUDA_MEMORY_MB", "1000", 1);
	setenv("SIMCUDA_CONTEXT_MB", "100", 1);
}

static void size(void)
{
	little();
	start();
	CHECK(free_mb() == 900);
	ptr p[5], pitched, managed;
	OK(cuMemAlloc_v2(&p[0], 500 * MB));
	CHECK(free_mb() == 400);
	REFUSED(OUT_OF_MEMORY, cuMemAlloc_v2(&p[1], 400 * MB + 1));
	CHECK(free_mb() == 400);
	OK(cuMemAlloc_v2(&p[1], 399 * MB + 1)); // in pages of 2 MiB
	CHECK(free_mb() == 0);
	REFUSED(OUT_OF_MEMORY, cuMemAlloc_v2(&p[2], 1));
	OK(cuMemAllocManaged(&managed, 2000 * MB, 1)); // needs none until it is used
	OK(cuMemFree_v2(managed));
	OK(cuMemFree_v2(p[0]));
	CHECK(free_mb() == 500);
	for (int i = 2; i < 5; i++) // small ones share pages
		OK(cuMemAlloc_v2(&p[i], MB - 1024));
	CHECK(free_mb() == 496);
	OK(cuMemFree_v2(p[2]));
	CHECK(free_mb() == 498);
	size_t pitch;
	OK(cuMemAllocPitch_v2(&pitched, &pitch, 513, 4096, 4));
	CHECK(pitch == 1024 && free_mb() == 494);
	handle second, array;
	OK(cuCtxCreate_v2(&second, 0, 0));
	CHECK(free_mb() == 394);
	struct array a = {1024, 1024, 8, 0x20, 4, 0};
	OK(cuArray3DCreate_v2(&array, &a));
	CHECK(free_mb() == 266);
	OK(cuArrayDestroy(array));
	OK(cuArray3DCreate_v2(&array, &a));
	OK(cuMemAlloc_v2(&p[0], 200 * MB));
	handle third;
	REFUSED(OUT_OF_MEMORY, cuCtxCreate_v2(&third, 0, 0));
	OK(cuCtxDestroy_v2(second)); // with all that is in it
	CHECK(free_mb() == 494);
	OK(cuDevicePrimaryCtxRelease_v2(0));
	start();
	CHECK(free_mb() == 900);
}

static void huge(void)
{ // memory that nobody touches costs nothing
	start();
	ptr p;
	OK(cuMemAlloc_v2(&p, 120000 * MB));
	OK(cuMemsetD8_v2(p + 110000 * MB, 5, 1000));
	unsigned char seen;
	OK(cuMemcpyDtoH_v2(&seen, p + 110000 * MB + 999, 1));
	CHECK(seen == 5);
	REFUSED(OUT_OF_MEMORY, cuMemAlloc_v2(&p, 120000 * MB));
}

// Another process that takes so many MiB and waits to be killed.
static pid_t holder(size_t bytes)
{
	int ready[2];
	CHECK(pipe(ready) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		ptr p;
		start();
		OK(cuMemAlloc_v2(&p, bytes));
		CHECK(write(ready[1], "", 1) == 1);
		for (;;)
			pause();
	}
	char c;
	close(ready[1]);
	CHECK(read(ready[0], &c, 1) == 1);
	close(ready[0]);
	return child;
}

static void end(pid_t child) { CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child); }

static void shared(void)
{
	little();
	pid_t first = holder(300 * MB), second = holder(50 * MB);
	start();
	CHECK(free_mb() == 350);
	ptr p;
	REFUSED(OUT_OF_MEMORY, cuMemAlloc_v2(&p, 351 * MB));
	end(first);
	OK(cuMemAlloc_v2(&p, 750 * MB)); // what a killed process had is free
	CHECK(free_mb() == 0);
	kill(second, SIGSTOP); // a stopped one keeps it
	REFUSED(OUT_OF_MEMORY, cuMemAlloc_v2(&p, 1));
	end(second);
	CHECK(free_mb() == 150);
}

static void meet(_Atomic int *here, int n)
{
	atomic_fetch_add(here, 1);
	while (atomic_load(here) < n)
		usleep(100);
}

static void take_all(_Atomic int *here)
{ // 10 MiB a time; ends with what it got, in tens of MiB
	start();
	meet(here, 2);
	ptr p;
	int n = 0;
	for (; cuMemAlloc_v2(&p, 10 * MB) == 0; n++)
		;
	meet(here, 4); // nobody gives anything back before the other has been refused
	_exit(n);
}

static void racing(void)
{ // two that want all get it all, and no more
	little();
	_Atomic int *here = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (int round = 0; round < 5; round++) {
		pid_t child[2];
		atomic_store(here, 0);
		for (int i = 0; i < 2; i++)
			if ((child[i] = fork()) == 0)
				take_all(here);
		int got = 0;
		for (int i = 0; i < 2; i++) {
			int status;
			CHECK(waitpid(child[i], &status, 0) == child[i] && WIFEXITED(status));
			got += WEXITSTATUS(status);
		}
		CHECK(got == 80);
	}
}

static void pools(void)
{
	little();
	start();
	handle pool, own, stream;
	ptr p, q;
	OK(cuStreamCreate(&stream, 1));
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	OK(cuMemAllocAsync(&p, 100 * MB, stream));
	CHECK(free_mb() == 800);
	OK(cuMemFreeAsync(p, stream));
	OK(cuStreamSynchronize(stream));
	CHECK(free_mb() == 900);
	uint64_t threshold = 60 * MB, value;
	OK(cuMemPoolSetAttribute(pool, 4, &threshold));
	OK(cuMemAllocAsync(&p, 100 * MB, stream));
	OK(cuMemAllocAsync(&q, 10 * MB, stream));
	OK(cuMemFreeAsync(p, stream));
	OK(cuStreamSynchronize(stream));
	CHECK(free_mb() == 840);
	OK(cuMemPoolGetAttribute(pool, 5, &value));
	CHECK(value == 60 * MB);
	OK(cuMemPoolGetAttribute(pool, 7, &value));
	CHECK(value == 10 * MB);
	OK(cuMemPoolTrimTo(pool, 0));
	CHECK(free_mb() == 890); // what lives stays
	REFUSED(OUT_OF_MEMORY, cuMemAllocAsync(&p, 891 * MB, stream));
	physical h;
	REFUSED(INVALID_VALUE, cuMemRetainAllocationHandle(&h, (void *)q));
	OK(cuMemFree_v2(q));
	struct pool_properties properties = {1, 0, {1, 0}, NULL, 64 * MB, {0}};
	OK(cuMemPoolCreate(&own, &properties));
	REFUSED(OUT_OF_MEMORY, cuMemAllocFromPoolAsync(&p, 65 * MB, own, stream));
	OK(cuMemAllocFromPoolAsync(&p, 64 * MB, own, stream));
	OK(cuMemPoolDestroy(own)); // it lasts as long as what came from it
	OK(cuMemsetD32_v2(p, 9, 100));
	OK(cuCtxSynchronize());
	OK(cuMemFreeAsync(p, stream));
	OK(cuStreamSynchronize(stream));
	OK(cuMemPoolTrimTo(pool, 0));
	CHECK(free_mb() == 900);
}

// ---- virtual memory management

static const struct properties on_device = {.type = 1, .handle_types = 1, .location = {1, 0}};
static const struct access ours = {{1, 0}, 3};

static uint32_t word(ptr p)
{
	uint32_t seen;
	OK(cuMemcpyDtoH_v2(&seen, p, 4));
	return seen;
}

static physical created(size_t bytes)
{
	physical h;
	OK(cuMemCreate(&h, bytes, &on_device, 0));
	return h;
}

static void mapped(ptr p, size_t bytes, physical h)
{
	OK(cuMemMap(p, bytes, 0, h, 0));
	OK(cuMemSetAccess(p, bytes, &ours, 1));
}

static void virtual(void)
{
	little();
	start();
	size_t granularity;
	OK(cuMemGetAllocationGranularity(&granularity, &on_device, 0));
	CHECK(granularity == 2 * MB);
	ptr p, q;
	REFUSED(INVALID_VALUE, cuMemAddressReserve(&p, 3 * MB, 0, 0, 0));
	REFUSED(INVALID_VALUE, cuMemAddressReserve(&p, 4 * MB, 3 * MB, 0, 0));
	OK(cuMemAddressReserve(&p, 4000000 * MB, 0, 0, 0)); // addresses are no memory
	OK(cuMemAddressReserve(&q, 8 * MB, 64 * MB, 0, 0));
	CHECK(p % (2 * MB) == 0 && q % (64 * MB) == 0 && free_mb() == 900);
	physical a, b, again;
	REFUSED(INVALID_VALUE, cuMemCreate(&a, 3 * MB, &on_device, 0));
	struct properties wrong = on_device;
	wrong.location.id = 1;
	REFUSED(INVALID_DEVICE, cuMemCreate(&a, 2 * MB, &wrong, 0));
	wrong = on_device;
	wrong.handle_types = 8; // FABRIC
	REFUSED(NOT_SUPPORTED, cuMemCreate(&a, 2 * MB, &wrong, 0));
	REFUSED(OUT_OF_MEMORY, cuMemCreate(&a, 902 * MB, &on_device, 0));
	a = created(4 * MB);
	b = created(4 * MB);
	CHECK(a != b && free_mb() == 892);
	REFUSED(INVALID_VALUE, cuMemMap(p + MB, 4 * MB, 0, a, 0));
	REFUSED(INVALID_VALUE, cuMemMap(p, 2 * MB, 2 * MB, a, 0));     // an offset
	REFUSED(INVALID_VALUE, cuMemMap(p, 6 * MB, 0, a, 0));          // more than there is
	REFUSED(INVALID_VALUE, cuMemMap(q + 6 * MB, 4 * MB, 0, a, 0)); // beyond the reservation
	REFUSED(INVALID_VALUE, cuMemMap(p, 4 * MB, 0, 12345, 0));
	OK(cuMemMap(p, 4 * MB, 0, a, 0));
	REFUSED(INVALID_VALUE, cuMemMap(p + 2 * MB, 4 * MB, 0, b, 0)); // taken
	OK(cuMemMap(p + 4 * MB, 4 * MB, 0, b, 0));
	REFUSED(INVALID_VALUE, cuMemSetAccess(p, 6 * MB, &ours, 1));  // in part
	REFUSED(INVALID_VALUE, cuMemSetAccess(p, 10 * MB, &ours, 1)); // not mapped
	unsigned long long flags;
	OK(cuMemGetAccess(&flags, &ours.location, p));
	CHECK(flags == 0);
	OK(cuMemSetAccess(p, 8 * MB, &ours, 1)); // over both
	OK(cuMemGetAccess(&flags, &ours.location, p + 5 * MB));
	CHECK(flags == 3);
	OK(cuMemsetD32_v2(p + 3 * MB, 7, 2 * MB / 4));
	CHECK(word(p + 4 * MB - 4) == 7 && word(p + 4 * MB) == 7);
	OK(cuMemRetainAllocationHandle(&again, (void *)(p + 5 * MB)));
	CHECK(again == b);
	OK(cuMemRelease(b));
	OK(cuMemRelease(b));
	REFUSED(INVALID_VALUE, cuMemRelease(b));
	CHECK(free_mb() == 892); // it is still mapped
	struct properties seen;
	OK(cuMemGetAllocationPropertiesFromHandle(&seen, a));
	CHECK(memcmp(&seen, &on_device, sizeof seen) == 0);
	REFUSED(INVALID_VALUE, cuMemUnmap(p, 2 * MB));
	REFUSED(INVALID_VALUE, cuMemUnmap(p, 12 * MB));
	REFUSED(INVALID_VALUE, cuMemAddressFree(p, 4000000 * MB)); // in use
	OK(cuMemUnmap(p, 8 * MB));                                 // two whole mappings
	CHECK(free_mb() == 896);
	OK(cuMemRelease(a));
	CHECK(free_mb() == 900);
	REFUSED(INVALID_VALUE, cuMemAddressFree(p, 8 * MB));
	OK(cuMemAddressFree(p, 4000000 * MB));
	OK(cuMemAddressFree(q, 8 * MB));
	ptr native;
	OK(cuMemAlloc_v2(&native, 4 * MB));
	REFUSED(INVALID_VALUE, cuMemRetainAllocationHandle(&again, (void *)native));
	REFUSED(INVALID_VALUE, cuMemUnmap(native, 4 * MB));
	struct properties host = {.type = 1, .location = {3, 0}}; // HOST_NUMA
	OK(cuMemCreate(&a, 512 * MB, &host, 0));
	CHECK(free_mb() == 896);
	OK(cuMemRelease(a));
}

// The bytes on disk of the driver's file of physical memory.
static uint64_t file_bytes(void)
{
	for (int fd = 0; fd < 256; fd++) {
		char path[64], name[64] = "";
		struct stat st;
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		if (readlink(path, name, sizeof name - 1) > 0 && strstr(name, "simcuda-memory")) {
			CHECK(fstat(fd, &st) == 0);
			return (uint64_t)st.st_blocks * 512;
		}
	}
	CHECK(!"the driver has its file");
	return 0;
}

static void contents(void)
{ // belong to the handle; the address stays
	start();
	ptr p, q;
	enum { BYTES = 4 << 20 };
	OK(cuMemAddressReserve(&p, BYTES, 0, 0, 0));
	OK(cuMemAddressReserve(&q, BYTES, 0, 0, 0));
	physical a = created(BYTES), b = created(BYTES);
	mapped(p, BYTES, a);
	OK(cuMemsetD32_v2(p, 0xaaaa, BYTES / 4));
	OK(cuCtxSynchronize()); // nothing else waits
	OK(cuMemUnmap(p, BYTES));
	mapped(p, BYTES, b);
	OK(cuMemsetD32_v2(p, 0xbbbb, BYTES / 4));
	OK(cuCtxSynchronize());
	mapped(q, BYTES, a);
	CHECK(word(q + BYTES - 4) == 0xaaaa && word(p) == 0xbbbb);
	OK(cuMemUnmap(p, BYTES));
	mapped(p, BYTES, a); // twice
	OK(cuMemsetD32_v2(q, 1, 1));
	CHECK(word(p) == 1);
	static uint32_t kept[BYTES / 4];
	OK(cuMemcpyDtoH_v2(kept, p, BYTES)); // out and in again, in another handle
	OK(cuMemUnmap(p, BYTES));
	OK(cuMemRelease(b));
	b = created(BYTES);
	mapped(p, BYTES, b);
	OK(cuMemcpyHtoD_v2(p, kept, BYTES));
	OK(cuMemUnmap(q, BYTES));
	OK(cuMemRelease(a));
	CHECK(word(p) == 1 && word(p + 4) == 0xaaaa && word(p + BYTES - 4) == 0xaaaa);
	for (int i = 0; i < 100; i++) { // host memory of what is released comes back
		physical h = created(64 * MB);
		ptr r;
		OK(cuMemAddressReserve(&r, 64 * MB, 0, 0, 0));
		mapped(r, 64 * MB, h);
		OK(cuMemsetD8_v2(r, 1, 8 * MB));
		OK(cuCtxSynchronize());
		OK(cuMemUnmap(r, 64 * MB));
		OK(cuMemRelease(h));
		OK(cuMemAddressFree(r, 64 * MB));
	}
	CHECK(file_bytes() < 64 * MB);
}

static handle function(const char *name)
{
	handle module, f;
	OK(cuModuleLoadData(&module, "any"));
	OK(cuModuleGetFunction(&f, module, name));
	return f;
}

// Each in a process of its own, as the error stays: the memory is reserved, and mapped without access if so wished.
static int manner;

static void illegal(void)
{
	start();
	ptr p, good;
	void *host;
	handle copy = function("sim_copy");
	OK(cuMemAddressReserve(&p, 8 * MB, 0, 0, 0));
	OK(cuMemAlloc_v2(&good, 8 * MB));
	OK(cuMemHostAlloc(&host, 4096, 0));
	mapped(p, 2 * MB, created(2 * MB));
	if (manner & 1)
		OK(cuMemMap(p + 2 * MB, 2 * MB, 0, created(2 * MB), 0));
	ptr at = p + 2 * MB - 2048; // half of it is good
	uint64_t bytes = 4096;
	void *arguments[] = {&good, &at, &bytes};
	int submitted = 0;
	switch (manner >> 1) {
	case 0: submitted = cuLaunchKernel(copy, 1, 1, 1, 32, 1, 1, 0, NULL, arguments, NULL); break;
	case 1: submitted = cuMemcpyHtoDAsync_v2(at, host, bytes, NULL); break;
	case 2: submitted = cuMemcpyDtoHAsync_v2(host, at, bytes, NULL); break;
	case 3: submitted = cuMemcpyDtoDAsync_v2(good, at, bytes, NULL); break;
	case 4: submitted = cuMemsetD8_v2(at, 1, bytes); break;
	}
	OK(submitted); // it is found when it is carried out
	REFUSED(ILLEGAL_ADDRESS, cuCtxSynchronize());
	REFUSED(ILLEGAL_ADDRESS, cuMemAlloc_v2(&good, 1));
	REFUSED(ILLEGAL_ADDRESS, cuCtxSynchronize());
}

static void faulting(void)
{
	for (manner = 0; manner < 10; manner++)
		CHECK(status_of(illegal) == 0);
}

static void unmapping(void)
{ // beside a copy, without waiting for it
	start();
	ptr p;
	void *host;
	handle stream;
	enum { BYTES = 256 << 20 };
	OK(cuStreamCreate(&stream, 1));
	OK(cuMemAddressReserve(&p, BYTES, 0, 0, 0));
	mapped(p, BYTES, created(BYTES));
	OK(cuMemHostAlloc(&host, BYTES, 0));
	OK(cuMemcpyHtoDAsync_v2(p, host, BYTES, stream)); // 5 ms of the bus's time, and then as long as the host takes
	struct timespec t = {0, 8000000};
	nanosleep(&t, NULL);
	OK(cuMemUnmap(p, BYTES));
	int r = cuStreamSynchronize(stream);
	CHECK(r == 0 || r == ILLEGAL_ADDRESS);
}

static void arrived(ptr p)
{ // the first byte of a copy: device memory is host memory
	while (!*(volatile char *)p)
		usleep(100);
}

static void cut(void)
{                                              // in the middle
	setenv("SIMCUDA_COPY_GBS", "0.01", 1); // 1 s
	start();
	ptr p;
	char *host;
	enum { BYTES = 10 << 20 };
	OK(cuMemAddressReserve(&p, BYTES, 0, 0, 0));
	mapped(p, BYTES, created(BYTES));
	OK(cuMemHostAlloc((void **)&host, BYTES, 0));
	OK(cuMemcpyHtoDAsync_v2(p, host, BYTES, NULL));
	arrived(p);
	OK(cuMemUnmap(p, BYTES));
	REFUSED(ILLEGAL_ADDRESS, cuCtxSynchronize());
}

static void devices(void)
{ // each has its own memory, and access of its own
	setenv("SIMCUDA_DEVICES", "2", 1);
	little();
	handle context[2];
	OK(cuInit(0));
	for (int i = 0; i < 2; i++)
		OK(cuDevicePrimaryCtxRetain(&context[i], i));
	struct properties second = on_device;
	second.location.id = 1;
	physical h;
	ptr p, native;
	OK(cuMemCreate(&h, 800 * MB, &second, 0)); // no context is current
	OK(cuMemAddressReserve(&p, 800 * MB, 0, 0, 0));
	mapped(p, 800 * MB, h); // for the first device
	OK(cuCtxSetCurrent(context[0]));
	CHECK(free_mb() == 900);
	OK(cuMemAlloc_v2(&native, 800 * MB));
	OK(cuMemsetD32_v2(p, 6, 1));
	OK(cuCtxSynchronize());
	int ordinal;
	OK(cuPointerGetAttribute(&ordinal, 9, p)); // DEVICE_ORDINAL
	CHECK(ordinal == 1);
	OK(cuCtxSetCurrent(context[1]));
	CHECK(free_mb() == 100);
	REFUSED(OUT_OF_MEMORY, cuMemAlloc_v2(&native, 102 * MB));
	OK(cuMemsetD32_v2(p, 6, 1));
	REFUSED(ILLEGAL_ADDRESS, cuCtxSynchronize());
	OK(cuCtxSetCurrent(context[0])); // whose error it is not
	CHECK(word(p) == 6);
}

static void looks(void)
{
	handle context = start(), owner = NULL;
	ptr native, p, base;
	size_t bytes;
	OK(cuMemAlloc_v2(&native, 5 * MB + 12));
	OK(cuMemAddressReserve(&p, 8 * MB, 0, 0, 0));
	REFUSED(INVALID_VALUE, cuPointerGetAttribute(&owner, 1, p)); // reserved only
	REFUSED(NOT_FOUND, cuMemGetAddressRange_v2(&base, &bytes, p));
	struct properties rdma = on_device;
	rdma.rdma = 1;
	physical h;
	OK(cuMemCreate(&h, 4 * MB, &rdma, 0));
	OK(cuMemMap(p, 4 * MB, 0, created(4 * MB), 0));
	OK(cuMemMap(p + 4 * MB, 4 * MB, 0, h, 0));
	OK(cuPointerGetAttribute(&owner, 1, native + MB)); // CONTEXT
	CHECK(owner == context);
	OK(cuPointerGetAttribute(&owner, 1, p));
	CHECK(owner == NULL);
	bool flag;
	OK(cuPointerGetAttribute(&flag, 10, native)); // IS_LEGACY_CUDA_IPC_CAPABLE
	CHECK(flag);
	OK(cuPointerGetAttribute(&flag, 10, p));
	CHECK(!flag);
	unsigned long long types, first, second;
	OK(cuPointerGetAttribute(&types, 14, native)); // ALLOWED_HANDLE_TYPES
	CHECK(types == 0);
	OK(cuPointerGetAttribute(&types, 14, p));
	CHECK(types == 1);
	OK(cuPointerGetAttribute(&flag, 15, p)); // IS_GPU_DIRECT_RDMA_CAPABLE
	CHECK(!flag);
	OK(cuPointerGetAttribute(&flag, 15, p + 4 * MB));
	CHECK(flag);
	int kind, sync = 1;
	OK(cuPointerGetAttribute(&kind, 2, p)); // MEMORY_TYPE
	CHECK(kind == 2);
	OK(cuPointerSetAttribute(&sync, 6, native)); // SYNC_MEMOPS
	REFUSED(NOT_SUPPORTED, cuPointerSetAttribute(&sync, 6, p));
	OK(cuPointerGetAttribute(&flag, 6, native));
	CHECK(flag);
	OK(cuMemGetAddressRange_v2(&base, &bytes, native + 2 * MB));
	CHECK(base == native && bytes == 5 * MB + 12); // the size that was asked for
	OK(cuMemGetAddressRange_v2(&base, &bytes, p + 5 * MB));
	CHECK(base == p + 4 * MB && bytes == 4 * MB);     // one handle's
	OK(cuPointerGetAttribute(&first, 7, p + 4 * MB)); // BUFFER_ID
	OK(cuMemUnmap(p + 4 * MB, 4 * MB));
	OK(cuMemMap(p + 4 * MB, 4 * MB, 0, h, 0));
	OK(cuPointerGetAttribute(&second, 7, p + 4 * MB));
	CHECK(first != second);
}

static void sharing(void)
{
	start();
	ptr p;
	int exported;
	physical h = created(4 * MB), other;
	OK(cuMemAddressReserve(&p, 4 * MB, 0, 0, 0));
	mapped(p, 4 * MB, h);
	OK(cuMemsetD32_v2(p, 1, MB));
	OK(cuCtxSynchronize());
	OK(cuMemExportToShareableHandle(&exported, h, 1, 0));
	CHECK(word(p + 4 * MB - 4) == 1); // it kept its contents and its address
	OK(cuMemImportFromShareableHandle(&other, (void *)(intptr_t)exported, 1));
	ptr q;
	OK(cuMemAddressReserve(&q, 4 * MB, 0, 0, 0));
	mapped(q, 4 * MB, other);
	OK(cuMemsetD32_v2(q, 2, 1));
	CHECK(word(p) == 2 && word(p + 4) == 1);
	struct properties seen;
	OK(cuMemGetAllocationPropertiesFromHandle(&seen, other));
	CHECK(memcmp(&seen, &on_device, sizeof seen) == 0);
	OK(cuMemUnmap(p, 4 * MB));
	OK(cuMemRelease(h));
	CHECK(word(q) == 2);
	int nothing = dup(0);
	REFUSED(INVALID_VALUE, cuMemImportFromShareableHandle(&other, (void *)(intptr_t)nothing, 1));
	struct properties private = on_device;
	private.handle_types = 0;
	OK(cuMemCreate(&h, 2 * MB, &private, 0));
	REFUSED(INVALID_VALUE, cuMemExportToShareableHandle(&exported, h, 1, 0));
}

// ---- how long copies take: never less than at their rate

static uint64_t now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000;
}

enum { TEN = 10000000 }; // bytes

static void rates(void)
{
	setenv("SIMCUDA_COPY_GBS", "0.1,0.2,0.05", 1); // 10 MB: 100 ms in, 50 ms out, 200 ms while both go
	setenv("SIMCUDA_PIN_MS_PER_GB", "5000", 1);
	start();
	handle first, second;
	ptr p, q;
	char *host, *other = malloc(TEN);
	OK(cuStreamCreate(&first, 1));
	OK(cuStreamCreate(&second, 1));
	OK(cuMemAlloc_v2(&p, TEN));
	OK(cuMemAlloc_v2(&q, TEN));
	uint64_t from = now_us();
	OK(cuMemHostAlloc((void **)&host, TEN, 0));
	CHECK(now_us() - from >= 50000);
	from = now_us();
	OK(cuMemHostRegister_v2(other, TEN, 0));
	CHECK(now_us() - from >= 50000);
	memset(host, 3, TEN);
	from = now_us();
	OK(cuMemcpyHtoDAsync_v2(p, host, TEN, first));
	OK(cuStreamSynchronize(first));
	CHECK(now_us() - from >= 100000);
	from = now_us();
	OK(cuMemcpyDtoHAsync_v2(other, p, TEN, first));
	OK(cuStreamSynchronize(first));
	CHECK(now_us() - from >= 50000 && memcmp(host, other, TEN) == 0);
	from = now_us(); // two streams: one after the other
	OK(cuMemcpyHtoDAsync_v2(p, host, TEN, first));
	OK(cuMemcpyHtoDAsync_v2(q, host, TEN, second));
	OK(cuCtxSynchronize());
	CHECK(now_us() - from >= 200000);
	from = now_us();
	OK(cuMemcpyHtoDAsync_v2(p, host, TEN, first));
	OK(cuMemcpyDtoHAsync_v2(other, q, TEN, second));
	OK(cuCtxSynchronize());
	CHECK(now_us() - from >= 140000); // out alone 50 ms, 7.5 MB beside it; together 200 until one is over
	from = now_us();
	OK(cuMemcpyDtoDAsync_v2(p, q, TEN, first)); // not over the bus
	OK(cuStreamSynchronize(first));
	CHECK(memcmp(host, other, TEN) == 0);
	OK(cuMemHostUnregister(other));
	OK(cuMemFreeHost(host));
}

static void behind(void)
{ // a small copy waits for the large one of its direction, and for none of the other
	setenv("SIMCUDA_COPY_GBS", "0.01", 1); // 1 s
	start();
	handle first, second, third, large, small, opposite;
	ptr p, q;
	void *host;
	OK(cuStreamCreate(&first, 1));
	OK(cuStreamCreate(&second, 1));
	OK(cuStreamCreate(&third, 1));
	OK(cuEventCreate(&large, 0));
	OK(cuEventCreate(&small, 0));
	OK(cuEventCreate(&opposite, 0));
	OK(cuMemAlloc_v2(&p, TEN));
	OK(cuMemAlloc_v2(&q, TEN));
	OK(cuMemHostAlloc(&host, TEN, 0));
	for (int i = 0; i < 4; i++) // as one: the stream keeps the bus
		OK(cuMemcpyHtoDAsync_v2(p, host, TEN / 4, first));
	OK(cuEventRecord(large, first));
	arrived(p);
	OK(cuMemcpyHtoDAsync_v2(q, host, 1000, second));
	OK(cuEventRecord(small, second));
	OK(cuMemcpyDtoHAsync_v2((char *)host + 5000, q, 1000, third));
	OK(cuEventRecord(opposite, third));
	OK(cuCtxSynchronize());
	float ms;
	OK(cuEventElapsedTime(&ms, large, small));
	TIMED(ms >= 0);
	OK(cuEventElapsedTime(&ms, opposite, large));
	TIMED(ms >= 0);
}

static void copier(_Atomic int *here)
{
	void *host;
	ptr p;
	start();
	OK(cuMemHostAlloc(&host, TEN, 0));
	OK(cuMemAlloc_v2(&p, TEN));
	meet(here, 3);
	OK(cuMemcpyHtoD_v2(p, host, TEN));
	_exit(0);
}

static void between(void)
{ // processes share the bus
	setenv("SIMCUDA_COPY_GBS", "0.1", 1);
	_Atomic int *here = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t child[2];
	for (int i = 0; i < 2; i++)
		if ((child[i] = fork()) == 0)
			copier(here);
	meet(here, 3);
	uint64_t from = now_us();
	for (int i = 0, status; i < 2; i++)
		CHECK(waitpid(child[i], &status, 0) == child[i] && status == 0);
	TIMED(now_us() - from >= 190000); // where this process was not the last to begin
}

static const struct test tests[] = {
	{"failing", failing}, {"killing", killing},   {"misspelt", misspelt}, {"size", size},
	{"huge", huge},       {"shared", shared},     {"racing", racing},     {"pools", pools},
	{"virtual", virtual}, {"contents", contents}, {"faulting", faulting}, {"unmapping", unmapping},
	{"cut", cut},         {"devices", devices},   {"looks", looks},       {"sharing", sharing},
	{"rates", rates},     {"behind", behind},     {"between", between},
};

int main(int argc, char **argv) { return run_test(argc, argv, tests, sizeof tests / sizeof *tests); }
