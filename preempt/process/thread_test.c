// thread_test.c - with preempt/process/thread.c preempt/process/process.c.
//
// Each thread has its own, which begins as declared; more threads than there are blocks at the start have one; blocks come back; a
// signal handler and the thread that it interrupts have one block; a thread goes on once there is memory again.
#define _GNU_SOURCE
#include "preempt/process/process.h"
#include "test/units/check.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { THREADS = 400, FIRST = 7, BYTES = 6000 }; // of 512 kB, 80 or so have one from the start
GP_OF_THREAD struct own {
	int first;
	char rest[BYTES];
} own = {.first = FIRST};
GP_OF_THREAD _Atomic int handled;

static atomic_int there, ended, wrong;
static pthread_barrier_t together;

// That of a thread which ends: what it wrote is still there.
void gp_thread_ends(void)
{
	ended++;
	wrong += GP_MINE(own)->rest[BYTES - 1] != 1;
}

static void use(void)
{
	struct own *mine = GP_MINE(own);
	wrong += mine == &own || mine->first != FIRST || mine->rest[0] || mine->rest[BYTES - 1];
	memset(mine->rest, 1, BYTES);
	mine->first = 0;
	wrong += mine != GP_MINE(own);
	there++;
}

static void *live(void *unused)
{
	use();
	pthread_barrier_wait(&together);
	wrong += GP_MINE(own)->first != 0;
	return unused;
}

static void live_at_once(unsigned threads)
{
	static pthread_t thread[THREADS];
	pthread_attr_t small;
	pthread_attr_init(&small);
	CHECK(!pthread_attr_setstacksize(&small, 4 * PTHREAD_STACK_MIN)); // sanitizers need more than the least
	CHECK(!pthread_barrier_init(&together, NULL, threads));
	for (unsigned i = 0; i < threads; i++)
		CHECK(!pthread_create(&thread[i], &small, live, NULL));
	for (unsigned i = 0; i < threads; i++)
		CHECK(!pthread_join(thread[i], NULL));
	pthread_attr_destroy(&small);
}

static void on_signal(int signal)
{
	(void)signal;
	(*GP_MINE(handled))++;
}

// A storm of signals, while each of many threads gets its block: none is counted in a block that another one replaces.
static void *interrupted(void *arg)
{
	int sent = 0;
	(void)arg;
	for (; sent < 3; sent++)
		raise(SIGUSR1);
	use();
	wrong += *GP_MINE(handled) != sent;
	return NULL;
}

static void *use_once(void *unused)
{
	use();
	return unused;
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) // these have a mmap of their own
static atomic_bool refuses;
static atomic_int refused;

void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
	if (!refuses)
		return (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
	refused++;
	errno = ENOMEM;
	return MAP_FAILED;
}

static sem_t begin;

static void *use_later(void *unused)
{
	sem_wait(&begin);
	errno = EAGAIN;
	use();
	wrong += errno != EAGAIN;
	return unused;
}

// A limit is reached (ulimit -v), all blocks are taken, and a thread asks for its first: it goes on when another one ends.
static void test_no_memory(void)
{
	static pthread_t thread[THREADS], last;
	int before = there;
	CHECK(!sem_init(&begin, 0, 0) && !pthread_create(&last, NULL, use_later, NULL));
	CHECK(!pthread_barrier_init(&together, NULL, THREADS + 1));
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&thread[i], NULL, live, NULL));
	while (there != before + THREADS)
		sched_yield();
	refuses = true;
	sem_post(&begin);
	while (refused < 3)
		sched_yield();
	pthread_barrier_wait(&together);
	CHECK(!pthread_join(last, NULL));
	refuses = false;
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_join(thread[i], NULL));
}
#else
static void test_no_memory(void) {}
#endif

int main(void)
{
	pthread_t thread;
	live_at_once(3);
	CHECK(ended == 3 && !wrong);
	live_at_once(THREADS);
	live_at_once(THREADS);
	CHECK(ended == 3 + 2 * THREADS && !wrong);

	for (int i = 0; i < 1000; i++) { // one after the other: the same block
		CHECK(!pthread_create(&thread, NULL, use_once, NULL) && !pthread_join(thread, NULL));
	}
	CHECK(!wrong && ended == 3 + 2 * THREADS + 1000);

	signal(SIGUSR1, on_signal);
	for (int i = 0; i < 100; i++)
		CHECK(!pthread_create(&thread, NULL, interrupted, NULL) && !pthread_join(thread, NULL));
	CHECK(!wrong);
	test_no_memory();
	CHECK(!wrong);
	printf("fine\n");
	return 0;
}
