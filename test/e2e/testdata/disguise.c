// A program that prints what can be asked of memory of cuMemAlloc, and what it cannot be used for. Addresses are printed as
// distances from the allocation's begin, and numbers that only have to differ as whether they do.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define FUNCTIONS(F) \
	F(cuInit, (unsigned)) \
	F(cuDevicePrimaryCtxRetain, (handle *, int)) \
	F(cuDeviceTotalMem_v2, (size_t *, int)) \
	F(cuDevicePrimaryCtxReset_v2, (int)) \
	F(cuCtxCreate_v2, (handle *, unsigned, int)) \
	F(cuCtxDestroy_v2, (handle)) \
	F(cuCtxSetCurrent, (handle)) \
	F(cuCtxSynchronize, (void)) \
	F(cuStreamCreate, (handle *, unsigned)) \
	F(cuStreamBeginCapture_v2, (handle, int)) \
	F(cuStreamEndCapture, (handle, handle *)) \
	F(cuThreadExchangeStreamCaptureMode, (int *)) \
	F(cuMemAlloc_v2, (ptr *, size_t)) \
	F(cuMemAllocPitch_v2, (ptr *, size_t *, size_t, size_t, unsigned)) \
	F(cuMemFree_v2, (ptr)) \
	F(cuMemFreeAsync, (ptr, handle)) \
	F(cuMemGetInfo_v2, (size_t *, size_t *)) \
	F(cuMemGetAddressRange_v2, (ptr *, size_t *, ptr)) \
	F(cuMemRetainAllocationHandle, (unsigned long long *, void *)) \
	F(cuMemGetAccess, (unsigned long long *, const void *, ptr)) \
	F(cuMemSetAccess, (ptr, size_t, const void *, size_t)) \
	F(cuMemUnmap, (ptr, size_t)) \
	F(cuMemAddressFree, (ptr, size_t)) \
	F(cuMemGetHandleForAddressRange, (void *, ptr, size_t, int, unsigned long long)) \
	F(cuPointerGetAttribute, (void *, int, ptr)) \
	F(cuPointerGetAttributes, (unsigned, int *, void **, ptr)) \
	F(cuPointerSetAttribute, (const void *, int, ptr))

#include "driver.h"

enum {
	CONTEXT = 1,
	DEVICE_POINTER = 3,
	HOST_POINTER,
	P2P_TOKENS,
	SYNC_MEMOPS = 6,
	BUFFER_ID,
	RANGE_START = 11,
	MAPPING_BASE = 19,
	BLOCK_ID
};
enum { ATTRIBUTES = 24 };

static handle context;

static void print_value(int attribute, uint64_t value, ptr at, ptr start)
{
	switch (attribute) {
	case CONTEXT: printf(" %s", !value ? "none" : value == (uint64_t)context ? "its" : "another"); break;
	case DEVICE_POINTER: printf(" +%lld", (long long)(value - at)); break;
	case RANGE_START:
	case MAPPING_BASE: printf(" %+lld", (long long)(value - start)); break;
	case BUFFER_ID:
	case BLOCK_ID: printf(" %s", value ? "a number" : "0"); break;
	default: printf(" %llx", (unsigned long long)value);
	}
}

static void attributes(ptr at, ptr start)
{
	int list[ATTRIBUTES];
	uint64_t values[ATTRIBUTES];
	void *where[ATTRIBUTES];
	for (int i = 0; i < ATTRIBUTES; i++) {
		uint64_t value = 0;
		int r = cuPointerGetAttribute(&value, i + 1, at);
		printf("%d: %d", i + 1, r);
		if (!r)
			print_value(i + 1, value, at, start);
		puts("");
	}
	memset(values, 0, sizeof values);
	for (int i = 0; i < ATTRIBUTES; i++) { // tokens, which some drivers do not have, come last
		list[i] = i == ATTRIBUTES - 1 ? P2P_TOKENS : i + 1 + (i + 1 >= P2P_TOKENS);
		where[i] = &values[i];
	}
	for (int count = 1; count <= ATTRIBUTES; count += 6) {
		printf("%d at once: %d", count, cuPointerGetAttributes(count, list, where, at));
		for (int i = 0; i < count; i++)
			if (values[i])
				print_value(list[i], values[i], at, start);
		puts("");
	}
	printf("no place: %d %d\n", cuPointerGetAttribute(NULL, 1, at), cuPointerGetAttributes(1, NULL, NULL, at));
}

static void range(ptr at, ptr start)
{
	ptr begin = 0;
	size_t bytes = 0;
	int r = cuMemGetAddressRange_v2(&begin, &bytes, at);
	printf("range: %d", r);
	if (!r)
		printf(" %+lld %zu", (long long)(begin - start), bytes);
	printf(", alone %d %d\n", cuMemGetAddressRange_v2(NULL, &bytes, at), cuMemGetAddressRange_v2(&begin, NULL, at));
}

static void misuse(ptr at, size_t bytes)
{
	struct { int type, id, flags; } access = {1, 0, 3};
	unsigned long long value = 0;
	size_t pages = (bytes + (2 << 20) - 1) >> 21 << 21;
	printf("retain: %d\n", cuMemRetainAllocationHandle(&value, (void *)at));
	printf("get access: %d\n", cuMemGetAccess(&value, &access, at));
	printf("set access: %d\n", cuMemSetAccess(at, pages, &access, 1));
	printf("unmap: %d\n", cuMemUnmap(at, pages));
	printf("free addresses: %d\n", cuMemAddressFree(at, pages));
	printf("free inside: %d\n", cuMemFree_v2(at + 512));
}

static void sync_memops(ptr at)
{
	unsigned on = 1, off = 0, is = 7;
	printf("sync memops: %d", cuPointerSetAttribute(&on, SYNC_MEMOPS, at));
	printf(" %d", cuPointerGetAttribute(&is, SYNC_MEMOPS, at));
	printf(" %d", (unsigned char)is);
	printf(" %d", cuPointerSetAttribute(&off, SYNC_MEMOPS, at));
	printf(" %d", cuPointerGetAttribute(&is, SYNC_MEMOPS, at));
	printf(" %d, others: %d %d\n", (unsigned char)is, cuPointerSetAttribute(&on, BUFFER_ID, at),
	       cuPointerSetAttribute(NULL, SYNC_MEMOPS, at));
}

static void show(ptr start, size_t bytes)
{
	for (int i = 0; i < 3; i++) {
		ptr at = start + (i == 1 ? bytes / 2 : i == 2 ? bytes - 1 : 0);
		printf("at %llu of %zu\n", at - start, bytes);
		attributes(at, start);
		range(at, start);
	}
	if (bytes >= 1 << 20) { // behind its end, where smaller ones have others
		puts("behind");
		attributes(start + bytes, start);
		range(start + bytes, start);
	}
	misuse(start, bytes);
	sync_memops(start);
	if (bytes >= 2 << 20) { // smaller ones share pages
		int file = -1, r = cuMemGetHandleForAddressRange(&file, start, bytes & ~4095ull, 1, 0);
		printf("for a device: %d %d\n", r, file >= 0);
	}
}

// Calls that a capture forbids, in each mode of the thread.
static void captured(int mode)
{
	handle stream, graph = NULL;
	ptr before, at = 0;
	int mine = mode;
	OK(cuMemAlloc_v2(&before, 3 << 20));
	OK(cuStreamCreate(&stream, 1));
	OK(cuStreamBeginCapture_v2(stream, 0));
	OK(cuThreadExchangeStreamCaptureMode(&mine));
	int allocated = cuMemAlloc_v2(&at, 4 << 20);
	printf("in a capture, mode %d: alloc %d, free %d", mode, allocated, cuMemFree_v2(before));
	if (!allocated)
		printf(" %d", cuMemFree_v2(at));
	OK(cuThreadExchangeStreamCaptureMode(&mine));
	printf(", end %d", cuStreamEndCapture(stream, &graph));
	printf(", free %d\n", cuMemFree_v2(before));
}

static size_t free_now(void)
{
	size_t free_bytes, total;
	OK(cuMemGetInfo_v2(&free_bytes, &total));
	return free_bytes;
}

// Memory of a context ends with it, and memory of others does not.
static void contexts_end(void)
{
	handle other;
	ptr kept, at = 0;
	size_t bytes = 0;
	OK(cuMemAlloc_v2(&kept, 6 << 20));
	size_t before = free_now();
	OK(cuCtxCreate_v2(&other, 0, 0));
	for (int i = 0; i < 3; i++)
		OK(cuMemAlloc_v2(&at, i ? 300 << 20 : 100));
	printf("destroy: %d,", cuCtxDestroy_v2(other));
	OK(cuCtxSetCurrent(context));
	printf(" %lld more is free, known: %d, the other: %d\n", (long long)(free_now() - before),
	       cuMemGetAddressRange_v2(NULL, &bytes, at), cuMemGetAddressRange_v2(NULL, &bytes, kept));
	printf("destroy again: %d\n", cuCtxDestroy_v2((handle)8));
	OK(cuMemAlloc_v2(&at, 4 << 20));
	printf("reset: %d, ", cuDevicePrimaryCtxReset_v2(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	printf("known: %d %d, ", cuMemGetAddressRange_v2(NULL, &bytes, at), cuMemGetAddressRange_v2(NULL, &bytes, kept));
	OK(cuMemAlloc_v2(&at, 4 << 20));
	printf("%lld more is free, free: %d\n", (long long)(free_now() - before), cuMemFree_v2(at));
}

int main(void)
{
	static const size_t sizes[] = {1, 1000, (1 << 20) - 1, 1 << 20, 3000001, 4 << 20, 600 << 20};
	ptr at = 0;
	size_t pitch = 0, total, free_bytes, of_device;
	handle stream;
	find_driver();
	OK(cuInit(0));
	printf("without a context: %d %d\n", cuMemAlloc_v2(&at, 4 << 20), cuMemFree_v2(4096));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	OK(cuStreamCreate(&stream, 0));
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		OK(cuMemAlloc_v2(&at, sizes[i]));
		show(at, sizes[i]);
		printf("free: %d\n", cuMemFree_v2(at));
	}
	printf("nothing: %d %d %d\n", cuMemAlloc_v2(&at, 0), cuMemAlloc_v2(NULL, 4 << 20), cuMemFree_v2(0));
	printf("too much: %d %d\n", cuMemAlloc_v2(&at, SIZE_MAX), cuMemAlloc_v2(&at, 1ull << 50));
	for (unsigned element = 0; element <= 32; element = element ? 2 * element : 1) {
		int r = cuMemAllocPitch_v2(&at, &pitch, 5000, 700, element);
		printf("pitched, %u: %d\n", element, r);
		if (r)
			continue;
		printf("pitch %zu\n", pitch);
		show(at, pitch * 700);
		printf("free: %d\n", cuMemFree_v2(at));
	}
	printf("pitched: %d %d %d\n", cuMemAllocPitch_v2(&at, &pitch, 0, 1, 4),
	       cuMemAllocPitch_v2(&at, &pitch, 1, 0, 4), cuMemAllocPitch_v2(&at, &pitch, SIZE_MAX / 2, 9, 4));
	OK(cuMemAlloc_v2(&at, 5 << 20));
	printf("free on a stream: %d\n", cuMemFreeAsync(at, stream));
	OK(cuCtxSynchronize());
	OK(cuMemGetInfo_v2(&free_bytes, &total));
	OK(cuDeviceTotalMem_v2(&of_device, 0));
	printf("total %zu, of the device %zu\n", total, of_device);
	for (int mode = 0; mode < 3; mode++)
		captured(mode);
	contexts_end();
	OK(cuMemAlloc_v2(&at, 4 << 20));
	OK(cuCtxSetCurrent(NULL));
	printf("without a context: %d\n", cuMemFree_v2(at));
	return 0;
}
