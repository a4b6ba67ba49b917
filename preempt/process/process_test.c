// process_test.c - with preempt/process/process.c.
//
// Times are counted in the first bucket whose bound they do not exceed. Threads of ours have small stacks and block all signals. Threads
// of the program are not cancelled while they wait in the library.
#define _GNU_SOURCE
#include "preempt/process/process.h"
#include "test/units/check.h"

#include <signal.h>

enum { ONE_SECOND = GP_FIRST_BUCKET }; // the bucket whose bound is 1 s

// The bucket in which a time is counted, which must be one.
static uint32_t bucket_of(uint64_t ns)
{
	struct gp_histogram h = {0};
	uint32_t found = GP_TIME_BUCKETS;

	gp_count_time(&h, ns);
	CHECK(h.sum_ns == ns);
	for (uint32_t i = 0; i < GP_TIME_BUCKETS; i++) {
		CHECK(h.buckets[i] == 0 || (h.buckets[i] == 1 && found == GP_TIME_BUCKETS));
		if (h.buckets[i])
			found = i;
	}
	CHECK(found < GP_TIME_BUCKETS);
	return found;
}

static void *look(void *stack_bytes)
{
	pthread_attr_t attributes;
	sigset_t blocked;
	CHECK(!pthread_sigmask(SIG_BLOCK, NULL, &blocked) && sigismember(&blocked, SIGTERM) &&
	      sigismember(&blocked, SIGINT));
	CHECK(!pthread_getattr_np(pthread_self(), &attributes));
	CHECK(!pthread_attr_getstacksize(&attributes, stack_bytes));
	CHECK(!pthread_attr_destroy(&attributes));
	return NULL;
}

// Our threads' stacks do not depend on those that the program asks for.
static void test_threads(void)
{
	enum { MiB = 1 << 20 };
	pthread_attr_t large;
	pthread_t thread;
	sigset_t blocked;
	size_t bytes = 0;
	CHECK(!pthread_attr_init(&large) && !pthread_attr_setstacksize(&large, 16 * MiB));
	CHECK(!pthread_setattr_default_np(&large) && !pthread_attr_destroy(&large));
	CHECK(gp_thread_start(&thread, look, &bytes) && !pthread_join(thread, NULL));
	CHECK(bytes && bytes <= 2 * MiB);
	CHECK(!pthread_sigmask(SIG_BLOCK, NULL, &blocked) && !sigismember(&blocked, SIGTERM));
}

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool waits, over, passed;
} room = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

// Its frame is gone before the thread is cancelled: the address sanitizer forbids the use of a frame that was never left.
static __attribute__((noinline)) void wait_uncancelled(bool bounded)
{
	pthread_mutex_lock(&room.lock);
	room.waits = true;
	while (!room.over) {
		struct timespec until;
		CHECK(!clock_gettime(CLOCK_REALTIME, &until));
		until.tv_sec += 1000;
		gp_wait_changed(&room.changed, &room.lock, bounded ? &until : NULL);
	}
	room.passed = true;
	pthread_mutex_unlock(&room.lock);
	gp_nap(1000);
	room.waits = false;
}

static void *wait_here(void *bounded)
{
	wait_uncancelled(bounded);
	pthread_testcancel();
	return NULL;
}

// A thread that is cancelled while it waits goes on to the next place of the program's.
static void test_cancelled(bool bounded)
{
	pthread_t thread;
	void *result = NULL;
	bool waits = false;
	room.waits = room.over = room.passed = false;
	CHECK(!pthread_create(&thread, NULL, wait_here, bounded ? &room : NULL));
	while (!waits) {
		pthread_mutex_lock(&room.lock);
		waits = room.waits; // it has let go the lock since
		pthread_mutex_unlock(&room.lock);
	}
	CHECK(!pthread_cancel(thread));
	pthread_mutex_lock(&room.lock);
	room.over = true;
	pthread_cond_signal(&room.changed);
	pthread_mutex_unlock(&room.lock);
	CHECK(!pthread_join(thread, &result) && result == PTHREAD_CANCELED);
	CHECK(room.passed && !room.waits);
}

int main(void)
{
	test_threads();
	test_cancelled(false);
	test_cancelled(true);
	CHECK(bucket_of(0) == 0);
	for (uint32_t i = 0; i < GP_TIME_BUCKETS - 1; i++) {
		// 2^i / 2^GP_FIRST_BUCKET seconds, in whole nanoseconds
		uint64_t bound = (1000000000ull << i) >> GP_FIRST_BUCKET;
		CHECK(bucket_of(bound) == i);
		CHECK(bucket_of(bound + 1) == i + 1);
	}
	CHECK(bucket_of(1000000000) == ONE_SECOND && bucket_of(190000) == 5); // up to 244 us
	CHECK(bucket_of(UINT64_MAX) == GP_TIME_BUCKETS - 1);

	struct gp_histogram h = {0};
	gp_count_time(&h, 5);
	gp_count_time(&h, 7);
	CHECK(h.buckets[0] == 2 && h.sum_ns == 12);
	return 0;
}
