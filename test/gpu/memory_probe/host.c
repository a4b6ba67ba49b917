// host.c - host memory: where it lies, how much there is, touching and pinning it.
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "memory.h"

#define MPOL_BIND 2 // of mbind(2)
#define PAGE 4096

static long read_number(const char *path, long otherwise)
{
	FILE *file = fopen(path, "r");
	long number = otherwise;
	if (file) {
		if (fscanf(file, "%ld", &number) != 1)
			number = otherwise;
		fclose(file);
	}
	return number;
}

int node_of_device(void)
{
	char bus[32] = "", path[128];
	if (ASK(cuDeviceGetPCIBusId, bus, sizeof bus, device) != CUDA_SUCCESS)
		return -1;
	for (char *c = bus; *c; c++)
		*c = (char)(*c >= 'A' && *c <= 'F' ? *c - 'A' + 'a' : *c);
	snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/numa_node", bus);
	return (int)read_number(path, -1);
}

int nodes(int *list, int most)
{
	int count = 0;
	for (int node = 0; node < 64 && count < most; node++) {
		char path[128], word[16];
		long megabytes = 0;
		snprintf(path, sizeof path, "/sys/devices/system/node/node%d/meminfo", node);
		FILE *file = fopen(path, "r");
		if (!file)
			continue;
		if (fscanf(file, "Node %*d %15s %ld", word, &megabytes) == 2 && megabytes > 0)
			list[count++] = node;
		fclose(file);
	}
	return count;
}

static size_t machine_available(void)
{
	char line[128];
	unsigned long kilobytes = 0;
	FILE *file = fopen("/proc/meminfo", "r");
	while (file && fgets(line, sizeof line, file))
		if (sscanf(line, "MemAvailable: %lu", &kilobytes) == 1)
			break;
	if (file)
		fclose(file);
	return kilobytes << 10;
}

static size_t cgroup_available(void)
{
	long most = read_number("/sys/fs/cgroup/memory.max", -1), used = read_number("/sys/fs/cgroup/memory.current", 0);
	return most < 0 ? (size_t)-1 : most > used ? (size_t)(most - used) : 0;
}

size_t host_available(void)
{
	size_t machine = machine_available(), cgroup = cgroup_available();
	return (machine < cgroup ? machine : cgroup) / 2;
}

void area_make(struct area *a, size_t bytes, int node, bool huge)
{
	bytes = (bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
	char *start =
		mmap(NULL, bytes + 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (start == MAP_FAILED)
		give_up("mmap of %zu bytes fails", bytes);
	char *aligned = (char *)(((uintptr_t)start + 2 * MIB - 1) & ~(uintptr_t)(2 * MIB - 1));
	if (aligned > start)
		munmap(start, (size_t)(aligned - start));
	munmap(aligned + bytes, (size_t)(start + 2 * MIB - aligned));
	*a = (struct area){.address = aligned, .bytes = bytes};
	madvise(aligned, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	unsigned long mask = 1ul << (node & 63);
	if (node >= 0 && syscall(SYS_mbind, aligned, bytes, MPOL_BIND, &mask, 65, 0))
		fact("refused", "mbind to node %d", node);
}

struct stripe { char *from, *to; };

static void *touch(void *argument)
{
	struct stripe *s = argument;
	for (char *c = s->from; c < s->to; c += PAGE)
		*(volatile char *)c = 1;
	return NULL;
}

double area_touch(struct area *a, unsigned threads)
{
	enum { MOST = 64 };
	struct stripe stripes[MOST];
	pthread_t thread[MOST];
	size_t part = (a->bytes / threads + PAGE - 1) / PAGE * PAGE;
	double began = now_us();
	for (unsigned i = 0; i < threads; i++) {
		char *from = a->address + i * part, *end = a->address + a->bytes;
		stripes[i] = (struct stripe){from, from + part < end ? from + part : end};
		if (pthread_create(&thread[i], NULL, touch, &stripes[i]))
			give_up("no thread");
	}
	for (unsigned i = 0; i < threads; i++)
		pthread_join(thread[i], NULL);
	return now_us() - began;
}

void area_pin(struct area *a, size_t piece, struct samples *us)
{
	a->piece = piece < a->bytes ? piece : a->bytes;
	for (size_t at = 0; at < a->bytes; at += a->piece) {
		size_t bytes = a->bytes - at < a->piece ? a->bytes - at : a->piece;
		TIMED(us, cuMemHostRegister(a->address + at, bytes, CU_MEMHOSTALLOC_PORTABLE));
	}
}

void area_unpin(struct area *a, struct samples *us)
{
	for (size_t at = 0; at < a->bytes; at += a->piece)
		TIMED(us, cuMemHostUnregister(a->address + at));
}

void area_free(struct area *a) { munmap(a->address, a->bytes); }
