// go_memory.c - the memory of Go's runtime, which would end the process where it gets none: a limit of the address space, or of mappings.
// It takes what was put aside, and then it waits, with all of the library that needs memory, until there is some: the program goes on.
#include "exports/layer.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
	SPARE_ARENA = 2 * 64 << 20, // bytes: one more arena of Go's heap (heapArenaBytes), with what it takes to align it
	SPARE_MEMORY = 16 << 20,    // bytes: what the runtime needs beside its heap
	PLAIN = MAP_PRIVATE | MAP_ANONYMOUS,
};

// Addresses that were put aside, when the program had not taken all that a limit allows. No memory before they are used.
static struct {
	_Atomic uintptr_t arena;  // 0: there is none any more
	_Atomic uintptr_t memory; // 0: there was none
	_Atomic size_t taken;     // bytes of memory
} spare;

static uintptr_t put_aside(size_t bytes, int protection)
{
	void *addresses = mmap(NULL, bytes, protection, PLAIN, -1, 0);
	return addresses == MAP_FAILED ? 0 : (uintptr_t)addresses;
}

void gp_go_spare_memory(void)
{
	spare.arena = put_aside(SPARE_ARENA, PROT_NONE);
	spare.memory = put_aside(SPARE_MEMORY, PROT_READ | PROT_WRITE);
}

static uintptr_t take_spare(size_t bytes, int protection)
{
	if (protection == PROT_NONE)
		return bytes <= SPARE_ARENA ? atomic_exchange(&spare.arena, 0) : 0;
	size_t page = (size_t)sysconf(_SC_PAGESIZE), taken = spare.taken;
	bytes = (bytes + page - 1) / page * page;
	do
		if (!spare.memory || bytes > SPARE_MEMORY - taken)
			return 0;
	while (!atomic_compare_exchange_weak(&spare.taken, &taken, taken + bytes));
	return spare.memory + taken;
}

// preempt/process/process.h. The program's threads do not wait for what Go's threads do that wait here (gp_go_starves). Tests have no core.
extern _Atomic uint32_t gp_go_memory_waits __attribute__((weak));

static void count_wait(uint32_t more)
{
	if (&gp_go_memory_waits)
		gp_go_memory_waits += more;
}

// Instead of the function of Go's package cgo that its runtime calls. An address, or an error below 4096.
typedef uintptr_t map_fn(void *, uintptr_t, int32_t, int32_t, int32_t, uint32_t);
extern map_fn __real_x_cgo_mmap __attribute__((weak)); // tests link without it
extern map_fn __wrap_x_cgo_mmap;
uintptr_t __wrap_x_cgo_mmap(void *at, uintptr_t bytes, int32_t protection, int32_t flags, int32_t file, uint32_t offset)
{
	enum { FIRST_ns = 1000000, LONGEST_ns = 512000000 };
	bool waits = false;
	for (long wait_ns = FIRST_ns;; wait_ns = wait_ns < LONGEST_ns ? 2 * wait_ns : LONGEST_ns) {
		uintptr_t result = __real_x_cgo_mmap(at, bytes, protection, flags, file, offset), spared = 0;
		if ((result != ENOMEM && result != EAGAIN) || (flags & ~MAP_FIXED) != PLAIN) {
			if (waits)
				count_wait(-1u);
			return result;
		}
		if (at && protection == PROT_NONE && !(flags & MAP_FIXED))
			return result; // the runtime asks for a place anywhere then
		if (!at && (spared = take_spare(bytes, protection)))
			return spared;
		if (!waits)
			count_wait(1);
		waits = true;
		syscall(SYS_nanosleep, &(struct timespec){.tv_nsec = wait_ns}, NULL);
	}
}
