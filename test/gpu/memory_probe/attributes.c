// attributes.c - what the driver says of memory of each kind, and which calls it refuses. No figures but facts.
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory.h"

static const struct {
	int number;
	const char *name;
} device_attributes[] = {
	{40, "ASYNC_ENGINE_COUNT"},
	{88, "PAGEABLE_MEMORY_ACCESS"},
	{91, "CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM"},
	{102, "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"},
	{103, "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED"},
	{107, "GENERIC_COMPRESSION_SUPPORTED"},
	{110, "GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED"},
	{115, "MEMORY_POOLS_SUPPORTED"},
	{116, "GPU_DIRECT_RDMA_SUPPORTED"},
	{124, "DMA_BUF_SUPPORTED"},
	{128, "HANDLE_TYPE_FABRIC_SUPPORTED"},
	{134, "HOST_NUMA_ID"},
	{141, "HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"},
};

void section_machine(void)
{
	char name[128] = "";
	int version = 0;
	size_t free_bytes, total;
	CHECK(cuDeviceGetName(name, sizeof name, device));
	CHECK(cuDriverGetVersion(&version));
	CHECK(cuMemGetInfo(&free_bytes, &total));
	fact(name, "device");
	fact(text("%d", version), "CUDA version");
	fact(text("%zu", total >> 20), "device memory, MiB");
	fact(text("%zu", free_bytes >> 20), "device memory free with one context, MiB");
	fact(text("%zu", host_available() >> 20), "host memory that is used at most, MiB");
	fact(text("%ld", sysconf(_SC_NPROCESSORS_ONLN)), "processors");
	for (size_t i = 0; i < sizeof device_attributes / sizeof *device_attributes; i++) {
		int value = 0;
		CUresult result = cu.cuDeviceGetAttribute(&value, device_attributes[i].number, device);
		fact(result == CUDA_SUCCESS ? text("%d", value) : error_name(result), "device attribute %s",
		     device_attributes[i].name);
	}
	size_t least = 0, best = 0;
	CHECK(cuMemGetAllocationGranularity(&least, &on_device, 0));
	CHECK(cuMemGetAllocationGranularity(&best, &on_device, 1));
	fact(text("%zu and %zu", least, best), "granularity, minimum and recommended");
}

// CU_POINTER_ATTRIBUTE_*, by number.
static const char *const pointer_attributes[] = {
	NULL,
	"CONTEXT",
	"MEMORY_TYPE",
	"DEVICE_POINTER",
	"HOST_POINTER",
	"P2P_TOKENS",
	"SYNC_MEMOPS",
	"BUFFER_ID",
	"IS_MANAGED",
	"DEVICE_ORDINAL",
	"IS_LEGACY_CUDA_IPC_CAPABLE",
	"RANGE_START_ADDR",
	"RANGE_SIZE",
	"MAPPED",
	"ALLOWED_HANDLE_TYPES",
	"IS_GPU_DIRECT_RDMA_CAPABLE",
	"ACCESS_FLAGS",
	"MEMPOOL_HANDLE",
	"MAPPING_SIZE",
	"MAPPING_BASE_ADDR",
	"MEMORY_BLOCK_ID",
	"IS_HW_DECOMPRESS_CAPABLE",
};
enum { ATTRIBUTES = sizeof pointer_attributes / sizeof *pointer_attributes };

static const char *told(CUresult result, unsigned long long value)
{
	return result == CUDA_SUCCESS ? text("0x%llx", value) : error_name(result);
}

static void ask_attributes(const char *kind, CUdeviceptr p)
{
	for (int i = 1; i < ATTRIBUTES; i++) {
		unsigned long long one[2] = {0}, several[2] = {0}; // P2P_TOKENS are 16 bytes
		void *values[] = {several};
		CUresult result = cu.cuPointerGetAttribute(one, i, p);
		CUresult together = cu.cuPointerGetAttributes(1, &i, values, p);
		if (result == together && one[0] == several[0])
			fact(told(result, one[0]), "%s: %s", kind, pointer_attributes[i]);
		else
			fact(text("%s, among several %s", told(result, one[0]), told(together, several[0])), "%s: %s",
			     kind, pointer_attributes[i]);
	}
}

static void ask_range(const char *kind, CUdeviceptr p, CUdeviceptr base)
{
	CUdeviceptr start = 0;
	size_t bytes = 0;
	CUresult result = cu.cuMemGetAddressRange(&start, &bytes, p);
	fact(result == CUDA_SUCCESS ? text("%zu bytes from base %+lld on", bytes, (long long)(start - base)) :
				      error_name(result),
	     "%s: cuMemGetAddressRange of base + %lld", kind, (long long)(p - base));
}

static void ask_rights(const char *kind, CUdeviceptr p)
{
	mem_handle handle = 0;
	unsigned on = 1;
	char ticket[64] = "";
	int fd = -1;
	CUresult result = ASK(cuMemRetainAllocationHandle, &handle, (void *)(uintptr_t)p);
	fact(error_name(result), "%s: cuMemRetainAllocationHandle", kind);
	if (result == CUDA_SUCCESS)
		CHECK(cuMemRelease(handle));
	fact(error_name(ASK(cuIpcGetMemHandle, ticket, p)), "%s: cuIpcGetMemHandle", kind);
	result = ASK(cuMemGetHandleForAddressRange, &fd, p, 2 * MIB, DMA_BUF, 0);
	fact(error_name(result), "%s: cuMemGetHandleForAddressRange, dma-buf", kind);
	if (result == CUDA_SUCCESS)
		close(fd);
	fact(error_name(cu.cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p)), "%s: set SYNC_MEMOPS", kind);
}

static void ask_all(const char *kind, CUdeviceptr p)
{
	ask_attributes(kind, p);
	ask_range(kind, p, p);
	ask_range(kind, p + 3 * MIB, p); // another handle's, where a handle has 2 MiB
	ask_rights(kind, p);
}

static void ask_pitches(void)
{
	static const size_t widths[] = {1,    4,     16,    31,    32,    33,    100,    127,     128,    129,
					255,  256,   257,   500,   511,   512,   513,    1000,    1023,   1024,
					1025, 2047,  2048,  2049,  4095,  4096,  4097,   5000,    8192,   8193,
					9999, 16384, 16385, 65535, 65536, 65537, 100000, 1000000, 1048577};
	static const unsigned elements[] = {4, 8, 16};
	for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
		size_t pitch[3] = {0};
		for (int e = 0; e < 3; e++) {
			CUdeviceptr p;
			if (cu.cuMemAllocPitch(&p, &pitch[e], widths[i], 7, elements[e]) == CUDA_SUCCESS)
				CHECK(cuMemFree(p));
		}
		fact(text("%zu, %zu, %zu", pitch[0], pitch[1], pitch[2]),
		     "pitch of a width of %zu, elements of 4, 8 and 16 bytes", widths[i]);
	}
}

void section_attributes(void)
{
	CUdeviceptr allocated, reserved, pooled;
	struct mapped mapped;
	void *host;
	CHECK(cuMemAlloc(&allocated, 4 * MIB + 100));
	ask_all("cuMemAlloc", allocated);
	mapped_make(&mapped, 2 * MIB, 2);
	ask_all("mapped", mapped.address);
	mapped_away(&mapped);
	ask_all("mapped, away", mapped.address);
	mapped_back(&mapped);
	ask_all("mapped, back", mapped.address);
	CHECK(cuMemAddressReserve(&reserved, 4 * MIB, 0, 0, 0));
	ask_all("reserved", reserved);
	if (ASK(cuMemAllocAsync, &pooled, 4 * MIB, NULL) == CUDA_SUCCESS) {
		CHECK(cuCtxSynchronize());
		ask_all("pool", pooled);
		CHECK(cuMemFreeAsync(pooled, NULL));
	}
	CHECK(cuMemHostAlloc(&host, 4 * MIB, CU_MEMHOSTALLOC_PORTABLE));
	ask_attributes("cuMemHostAlloc", (CUdeviceptr)(uintptr_t)host);
	CHECK(cuMemFree(allocated));
	ask_attributes("freed", allocated);
	ask_pitches();
}

static void try_sharing(void)
{
	struct properties p = on_device;
	mem_handle handle;
	CUresult result;
	p.handle_types = BY_DESCRIPTOR;
	if ((result = cu.cuMemCreate(&handle, 2 * MIB, &p, 0)) == CUDA_SUCCESS)
		CHECK(cuMemRelease(handle));
	fact(error_name(result), "cuMemCreate, shareable");
	p.rdma = 1;
	if ((result = cu.cuMemCreate(&handle, 2 * MIB, &p, 0)) == CUDA_SUCCESS)
		CHECK(cuMemRelease(handle));
	fact(error_name(result), "cuMemCreate, shareable, for RDMA");
}

static void try_too_much(void)
{
	mem_handle handle;
	CUdeviceptr p;
	fact(error_name(cu.cuMemCreate(&handle, 1ull << 42, &on_device, 0)), "cuMemCreate of 4 TiB");
	fact(error_name(cu.cuMemAlloc(&p, 1ull << 42)), "cuMemAlloc of 4 TiB");
	fact(error_name(cu.cuCtxSynchronize()), "cuCtxSynchronize after that");
}

// Two handles of 4 MiB, for a call that may or may not be taken: nothing is done with them afterwards.
static struct mapped fresh(void)
{
	struct mapped m;
	mapped_make(&m, 4 * MIB, 2);
	return m;
}

static void try_mapping(void)
{
	struct access access = own_access();
	struct mapped m = fresh();
	mem_handle handle;
	CHECK(cuMemCreate(&handle, 4 * MIB, &on_device, 0));
	fact(error_name(cu.cuMemMap(m.address, 4 * MIB, 0, handle, 0)), "cuMemMap where something is mapped");
	CHECK(cuMemUnmap(m.address, 4 * MIB));
	fact(error_name(cu.cuMemSetAccess(m.address, m.bytes, &access, 1)), "cuMemSetAccess over a run with a hole");
	fact(error_name(cu.cuMemMap(m.address, 2 * MIB, 2 * MIB, handle, 0)), "cuMemMap with an offset");
	m = fresh();
	CHECK(cuMemUnmap(m.address, 4 * MIB));
	fact(error_name(cu.cuMemMap(m.address, 2 * MIB, 0, handle, 0)), "cuMemMap of a part of a handle");
}

static void try_releasing(void)
{
	struct mapped m = fresh();
	char byte = 0;
	fact(error_name(cu.cuMemUnmap(m.address, 2 * MIB)), "cuMemUnmap of a part of a mapping");
	m = fresh();
	fact(error_name(cu.cuMemUnmap(m.address, m.bytes)), "cuMemUnmap of two mappings");
	m = fresh();
	fact(error_name(cu.cuMemFree(m.address)), "cuMemFree of mapped memory");
	m = fresh();
	fact(error_name(cu.cuMemAddressFree(m.address, m.bytes)), "cuMemAddressFree while something is mapped");
	m = fresh();
	CHECK(cuMemRelease(m.handle[0]));
	fact(error_name(cu.cuMemcpyHtoD(m.address, &byte, 1)),
	     "a copy to memory whose handle was released while mapped");
}

static void try_address(void)
{
	struct mapped m = fresh();
	CUdeviceptr old = m.address, again = 0;
	size_t bytes = m.bytes;
	mapped_free(&m);
	CHECK(cuMemAddressReserve(&again, bytes, 0, old, 0));
	fact(again == old ? "yes" : "no", "an address that was freed can be reserved again by its hint");
}

// The last of these spoil the context.
static void try_unmapped(void)
{
	struct mapped m = fresh();
	char byte = 0;
	mapped_away(&m);
	fact(error_name(cu.cuMemcpyHtoD(m.address, &byte, 1)), "a copy to memory that is not mapped");
	fact(error_name(cu.cuMemsetD8Async(m.address, 1, 16, NULL)), "a memset of memory that is not mapped");
	fact(error_name(cu.cuCtxSynchronize()), "cuCtxSynchronize after that memset");
	void *parameters[] = {&m.address, &(unsigned long long){1}};
	fact(error_name(cu.cuLaunchKernel(kernel_work, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL)),
	     "a launch on memory that is not mapped");
	fact(error_name(cu.cuCtxSynchronize()), "cuCtxSynchronize after that launch");
}

// Which calls on mapped memory does the driver take?
void section_rules(void)
{
	try_sharing();
	try_too_much();
	try_mapping();
	try_releasing();
	try_address();
	try_unmapped();
}
