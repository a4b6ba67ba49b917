// go_memory_test.c - with exports/go_memory.c preempt/process/process.c.
//
// Memory that Go's runtime cannot get: it takes what was put aside, or waits, and says so. Ends well or says what is wrong.
#include "exports/layer.h"
#include "preempt/process/process.h"
#include "test/units/check.h"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

typedef uintptr_t map_fn(void *, uintptr_t, int32_t, int32_t, int32_t, uint32_t);
map_fn __wrap_x_cgo_mmap, __real_x_cgo_mmap;

enum {
	PLAIN = MAP_PRIVATE | MAP_ANONYMOUS,
	READ_WRITE = PROT_READ | PROT_WRITE,
	ARENA = 64 << 20,
	MEMORY = 16 << 20,
	GRANTED = 4096,
	LIMIT_s = 120
};

static atomic_int refusal;  // an error, or 0
static atomic_uint refused; // calls

// The runtime's own: the system, which has none.
uintptr_t __real_x_cgo_mmap(void *at, uintptr_t bytes, int32_t protection, int32_t flags, int32_t file, uint32_t offset)
{
	(void)at, (void)bytes, (void)protection, (void)flags, (void)file, (void)offset;
	if (!refusal)
		return GRANTED;
	refused++;
	return (uintptr_t)refusal;
}

static uintptr_t map(void *at, uintptr_t bytes, int protection, int flags)
{
	return __wrap_x_cgo_mmap(at, bytes, protection, flags, -1, 0);
}

static void *map_waiting(void *result)
{
	*(uintptr_t *)result = map(NULL, MEMORY, READ_WRITE, PLAIN);
	return NULL;
}

// A thread that waits is counted, and goes on once there is memory.
static void test_waits(int error)
{
	uintptr_t result = 0;
	pthread_t thread;
	refusal = error;
	unsigned before = refused;
	CHECK(!pthread_create(&thread, NULL, map_waiting, &result));
	while (gp_go_memory_waits == 0 || refused < before + 3)
		usleep(1000);
	CHECK(gp_go_memory_waits == 1 && !result);
	refusal = 0;
	CHECK(!pthread_join(thread, NULL));
	CHECK(result == GRANTED && gp_go_memory_waits == 0);
}

int main(void)
{
	alarm(LIMIT_s); // ends a process that waits
	gp_go_spare_memory();
	CHECK(map(NULL, 1, READ_WRITE, PLAIN) == GRANTED);

	refusal = ENOMEM;
	uintptr_t arena = map(NULL, 2 * ARENA, PROT_NONE, PLAIN); // once
	CHECK(arena > GRANTED && !mprotect((void *)arena, 2 * ARENA, PROT_NONE));
	uintptr_t first = map(NULL, MEMORY / 2 - 1, READ_WRITE, PLAIN), second = map(NULL, MEMORY / 2, READ_WRITE, PLAIN);
	CHECK(first > GRANTED && second == first + MEMORY / 2);
	*(char *)first = *(char *)(second + MEMORY / 2 - 1) = 1;

	CHECK(map((void *)arena, ARENA, PROT_NONE, PLAIN) == ENOMEM); // the runtime asks for another place
	CHECK(map(NULL, 1, READ_WRITE, MAP_SHARED | MAP_ANONYMOUS) == ENOMEM);
	refusal = EACCES;
	CHECK(map(NULL, 1, READ_WRITE, PLAIN) == EACCES);
	CHECK(gp_go_memory_waits == 0);

	test_waits(ENOMEM);
	test_waits(EAGAIN);
	return 0;
}
