// thread.c - the blocks of thread.h.
//
// A thread gets its block on its first call that needs one, where there may be no more memory. So the first blocks are there
// from the start, and are used again. Further ones are mapped. A thread that finds neither waits until another one ends.
#define _GNU_SOURCE
#include "preempt/process/process.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// Set by the linker: what GP_OF_THREAD declares.
__attribute__((visibility("hidden"))) extern char __start_gp_thread[], __stop_gp_thread[];

enum { LINE = 64, READY_BYTES = 512 << 10, WORD_BITS = 64, WORDS = 2, NO_BLOCK_NAP_NS = 1000000 };
static char ready[READY_BYTES] __attribute__((aligned(LINE))); // untouched pages cost nothing
// A bit for each block of ready that a thread has. The thread that sets it has the block to itself; the clearing releases what was written.
static _Atomic uint64_t taken[WORDS];

__thread uintptr_t gp_thread_distance;

static size_t bytes_of_block(void) { return (size_t)(__stop_gp_thread - __start_gp_thread + LINE - 1) / LINE * LINE; }

static char *take_ready(void)
{
	size_t blocks = READY_BYTES / bytes_of_block(), most = WORDS * WORD_BITS;
	for (size_t i = 0; i < blocks && i < most; i++) {
		uint64_t bit = 1ull << i % WORD_BITS;
		if (!(atomic_load(&taken[i / WORD_BITS]) & bit) && !(atomic_fetch_or(&taken[i / WORD_BITS], bit) & bit))
			return ready + i * bytes_of_block();
	}
	return NULL;
}

static char *take_block(void)
{
	for (;; gp_nap(NO_BLOCK_NAP_NS)) {
		char *block = take_ready();
		if (block)
			return block;
		block = mmap(NULL, bytes_of_block(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (block != MAP_FAILED)
			return block;
	}
}

static void give_block(char *block)
{
	size_t i = (size_t)(block - ready) / bytes_of_block();
	if (block < ready || block >= ready + READY_BYTES)
		munmap(block, bytes_of_block());
	else
		atomic_fetch_and(&taken[i / WORD_BITS], ~(1ull << i % WORD_BITS));
}

GP_OF_THREAD bool heard; // its end will be
static pthread_key_t ends;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool ends_are_heard;
static pid_t process;

static void end(void *block)
{
	if (getpid() != process) // in a forked child locks of threads that are gone may be held for ever
		return;
	gp_thread_ends();
	gp_thread_distance = 0; // a later call of this thread gets a block again
	give_block(block);
}

static void hear_of_ends(void)
{
	process = getpid();
	ends_are_heard = !pthread_key_create(&ends, end);
}

void gp_thread_make(void)
{
	int saved_errno = errno;
	char *block = take_block();
	memcpy(block, __start_gp_thread, (size_t)(__stop_gp_thread - __start_gp_thread));
	uintptr_t none = 0, distance = (uintptr_t)block - (uintptr_t)__start_gp_thread;
	// A signal handler of this thread may have made one meanwhile.
	if (!__atomic_compare_exchange_n(&gp_thread_distance, &none, distance, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
		give_block(block);
	} else {
		pthread_once(&once, hear_of_ends);
		if (ends_are_heard)
			*GP_MINE(heard) = !pthread_setspecific(ends, block);
	}
	errno = saved_errno;
}

bool gp_thread_is_heard(void) { return *GP_MINE(heard); }
