// piece.c - host memory that the driver may copy to at the full rate.
//
// Pinning spends most of its time on making pages, one after the other. So a few threads touch them before, as huge pages where
// the machine has them.
#define _GNU_SOURCE
#include "preempt/memory/arena.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
	TOUCHERS = 4,
	PAGE_BYTES = 4096,
	MPOL_PREFERRED = 1, // Linux, mempolicy
	NODES = 1024,       // of the mask
	ALREADY = 712,      // CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
};

struct part {
	volatile char *memory;
	const _Atomic bool *cut;
};

static void *touch(void *argument)
{
	const struct part *part = argument;
	for (size_t at = 0; at < GP_CHUNK_BYTES / TOUCHERS; at += PAGE_BYTES) {
		if (at % GP_GRANULE == 0 && *part->cut)
			break;
		part->memory[at] = part->memory[at]; // pinned before, it may have contents
	}
	return NULL;
}

bool gp_piece_touch(void *memory, const _Atomic bool *cut)
{
	pthread_t thread[TOUCHERS];
	struct part part[TOUCHERS];
	bool runs[TOUCHERS] = {false};

	for (int i = 0; i < TOUCHERS; i++) {
		part[i] = (struct part){(char *)memory + i * (GP_CHUNK_BYTES / TOUCHERS), cut};
		runs[i] = i && gp_thread_start(&thread[i], touch, &part[i]);
	}
	for (int i = 0; i < TOUCHERS; i++)
		if (!runs[i])
			touch(&part[i]);
	for (int i = 1; i < TOUCHERS; i++)
		if (runs[i])
			pthread_join(thread[i], NULL);
	return !*cut;
}

// The node is preferred, not bound, since a full node must not end the process. Containers may forbid the call.
static void put_near(const struct gp_gpu *g, void *memory)
{
	int node = -1;
	unsigned long mask[NODES / (8 * sizeof(long))] = {0};
	if (gp_driver.cuDeviceGetAttribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, g->device) || node < 0 || node >= NODES)
		return;
	mask[(size_t)node / (8 * sizeof(long))] = 1ul << ((size_t)node % (8 * sizeof(long)));
	syscall(SYS_mbind, memory, GP_CHUNK_BYTES, MPOL_PREFERRED, mask, NODES, 0);
}

void *gp_piece_make(const struct gp_gpu *g)
{
	// Aligned to huge pages: the excess in front and behind is given back.
	size_t room = GP_CHUNK_BYTES + GP_GRANULE;
	char *memory = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED)
		return NULL;
	char *aligned = (char *)(((uintptr_t)memory + GP_GRANULE - 1) & ~(uintptr_t)(GP_GRANULE - 1));
	if (aligned > memory)
		munmap(memory, (size_t)(aligned - memory));
	munmap(aligned + GP_CHUNK_BYTES, (size_t)(memory + room - (aligned + GP_CHUNK_BYTES)));
	madvise(aligned, GP_CHUNK_BYTES, MADV_HUGEPAGE);
	madvise(aligned, GP_CHUNK_BYTES, MADV_DONTFORK); // a child must not keep the pages
	put_near(g, aligned);
	return aligned;
}

CUcontext gp_piece_context(void) { return gp_current_handle(); }

bool gp_piece_pin(void *memory)
{
	CUresult result = gp_driver.cuMemHostRegister(memory, GP_CHUNK_BYTES, CU_MEMHOSTREGISTER_PORTABLE);
	return result == CUDA_SUCCESS || result == ALREADY;
}

void gp_piece_end(void *memory, bool pinned)
{
	if (pinned)
		gp_driver.cuMemHostUnregister(memory);
	munmap(memory, GP_CHUNK_BYTES);
}
