// memory.c - what the simulated driver promises about memory, and about calls that fail.
// usage: memory NAME; prints "simulated: NAME ok" or the first failure, and exits 0 or 1.
#define _GNU_SOURCE
#include "check.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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
int cuMemcpyDtoH_v2(void *, ptr, size_t);
int cuMemsetD32_v2(ptr, unsigned, size_t);

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, ILLEGAL_ADDRESS = 700, UNKNOWN = 999 };

static handle start(void) {
	handle context;
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	return context;
}

// ---- calls that fail

static void failing(void) {
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

static int status_of(void (*run)(void)) { // in a process of its own
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

static void killed_at_second_free(void) {
	setenv("SIMCUDA_KILL", "cuMemFree:2", 1);
	start();
	ptr p;
	OK(cuMemAlloc_v2(&p, 4096));
	OK(cuMemFree_v2(p));
	OK(cuMemAlloc_v2(&p, 4096));
	cuMemFree_v2(p);
}

static void killing(void) {
	int status = status_of(killed_at_second_free);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void misspelt(void) { // a test must not pass because nothing fails
	setenv("SIMCUDA_FAIL", "cuMemAllok:1", 1);
	REFUSED(UNKNOWN, cuInit(0));
}

static const struct {
	const char *name;
	void (*run)(void);
} tests[] = {
	{"failing", failing},
	{"killing", killing},
	{"misspelt", misspelt},
};

int main(int argc, char **argv) {
	for (size_t i = 0; argc == 2 && i < sizeof tests / sizeof *tests; i++)
		if (strcmp(tests[i].name, argv[1]) == 0) {
			tests[i].run();
			printf("simulated: %s ok\n", argv[1]);
			return 0;
		}
	fprintf(stderr, "usage: memory NAME\n");
	return 2;
}
