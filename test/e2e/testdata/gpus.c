// A program with work on two GPUs. Says "ready". Each line of its input frees, unmaps or makes accessible something while GPU 0 runs a
// kernel. It says what, and whether that kernel still ran when the call had returned.
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define FUNCTIONS(F) \
	F(cuMemFreeHost, (void *)) \
	F(cuMemPoolCreate, (handle *, const void *)) \
	F(cuMemPoolDestroy, (handle)) \
	F(cuMemAddressReserve, (ptr *, size_t, size_t, ptr, uint64_t)) \
	F(cuMemCreate, (uint64_t *, size_t, const void *, uint64_t)) \
	F(cuMemMap, (ptr, size_t, size_t, uint64_t, uint64_t)) \
	F(cuMemSetAccess, (ptr, size_t, const void *, size_t)) \
	F(cuMemUnmap, (ptr, size_t))

#include "driver.h"

enum { PIECE = 2 << 20, PINNED = 1, DEVICE = 1, READWRITE = 3 }; // cuda.h

static handle pool_of(int device)
{
	struct {
		int type, handles, location_type, location;
		char unused[72];
	} properties = {.type = PINNED, .location_type = DEVICE, .location = device};
	handle pool;
	OK(cuMemPoolCreate(&pool, &properties));
	return pool;
}

static ptr mapped(int device)
{
	struct {
		int type, handles, location_type, location;
		void *unused;
		uint64_t flags;
	} properties = {.type = PINNED, .location_type = DEVICE, .location = device};
	uint64_t handle;
	ptr at;

	OK(cuMemAddressReserve(&at, PIECE, 0, 0, 0));
	OK(cuMemCreate(&handle, PIECE, &properties, 0));
	OK(cuMemMap(at, PIECE, 0, handle, 0));
	return at;
}

enum { BLOCKS = 1320, THREADS = 256, NON_BLOCKING = 1, NOT_READY = 600 };

int main(int count, char **argument)
{
	handle context[2], module[2], kernel, stream;
	char line[64], what[16];
	unsigned us;
	int from;
	ptr data;

	if (count != 2)
		return 2;
	find_driver();
	OK(cuInit(0));
	for (int i = 1; i >= 0; i--) {
		OK(cuDevicePrimaryCtxRetain(&context[i], i));
		OK(cuCtxSetCurrent(context[i]));
		OK(cuModuleLoad(&module[i], argument[1]));
	}
	OK(cuModuleGetFunction(&kernel, module[0], "sim_chain"));
	OK(cuStreamCreate(&stream, NON_BLOCKING));
	OK(cuMemAlloc_v2(&data, BLOCKS * sizeof(uint32_t)));
	puts("ready");
	fflush(stdout);
	// A line names the object to free, its GPU, the GPU whose context is current, and how long the kernel runs.
	for (int of; fgets(line, sizeof line, stdin) && sscanf(line, "%15s %d %d %u", what, &of, &from, &us) == 4;) {
		int n = 1, add = 1;
		void *parameters[] = {&data, &n, &add, &us}, *host = NULL;
		handle spare = NULL, pool = NULL;
		ptr memory = 0;
		OK(cuCtxSetCurrent(context[of]));
		bool maps = !strcmp(what, "unmap") || !strcmp(what, "access");
		struct { int location_type, location, flags; } access = {DEVICE, of, READWRITE};
		if (maps)
			memory = mapped(of);
		else if (!strcmp(what, "memory"))
			OK(cuMemAlloc_v2(&memory, 4096));
		else if (!strcmp(what, "host"))
			OK(cuMemHostAlloc(&host, 4096, 0));
		else if (!strcmp(what, "pool"))
			pool = pool_of(of);
		else
			OK(cuModuleLoad(&spare, argument[1]));
		OK(cuCtxSetCurrent(context[0]));
		OK(cuLaunchKernel(kernel, BLOCKS, 1, 1, THREADS, 1, 1, 0, stream, parameters, NULL));
		OK(cuCtxSetCurrent(context[from]));
		if (maps && *what == 'a')
			OK(cuMemSetAccess(memory, PIECE, &access, 1));
		else if (maps)
			OK(cuMemUnmap(memory, PIECE));
		else if (memory)
			OK(cuMemFree_v2(memory));
		else if (host)
			OK(cuMemFreeHost(host));
		else if (pool)
			OK(cuMemPoolDestroy(pool));
		else
			OK(cuModuleUnload(spare));
		int after = cuStreamQuery(stream);
		OK(cuCtxSetCurrent(context[0]));
		OK(cuStreamSynchronize(stream));
		printf("%s %d %d runs %d\n", what, of, from, after == NOT_READY);
		fflush(stdout);
	}
	return 0;
}
