// address_space.c - says in a line that the limit of address space is too low, where Go's runtime would end with a stack trace.
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

// Go 1.26 reserves about 600 MiB for its heap's summaries, and its threads have stacks.
#define NEEDED_MIB 768UL

// Before the Go runtime starts.
__attribute__((constructor)) static void check(void)
{
	struct rlimit limit;
	if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
		return;
	void *area = mmap(NULL, NEEDED_MIB << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (area == MAP_FAILED) {
		fprintf(stderr,
			"gpreempt: the limit of address space, %lu KiB (ulimit -v), is too low: %lu MiB must be free\n",
			(unsigned long)(limit.rlim_cur >> 10), NEEDED_MIB);
		_exit(1);
	}
	munmap(area, NEEDED_MIB << 20);
}
