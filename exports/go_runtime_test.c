// go_runtime_test.c - with exports/go_runtime.c
//
// Threads made before Go asks for them, and the meeting at which all become Go's. Ends well or says what is wrong.
#include "exports/layer.h"
#include "test/units/check.h"

#include <pthread.h>
#include <unistd.h>

bool gp_go_take(bool may_create);
int gp_go_thread(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
bool gp_go_reserve(unsigned count);
void gp_go_meet(void);
bool gp_go_more_meet(unsigned count);

enum { THREADS = 5, LIMIT_s = 120 };

static atomic_uint ran, met;

void gp_complain(const char *what) { CHECK(!what); }

// Of the queue: each argument comes once.
static void *run(void *bit)
{
	atomic_fetch_or(&ran, 1u << (uintptr_t)bit);
	return NULL;
}

static void *meet(void *unused)
{
	gp_go_meet();
	atomic_fetch_add(&met, 1);
	return unused;
}

// Go gets as many threads as were reserved, and no more unless it may create one.
static void test_reserved(void)
{
	pthread_t thread;
	CHECK(!gp_go_take(false));
	CHECK(gp_go_reserve(THREADS));
	for (uintptr_t i = 0; i < THREADS; i++) {
		CHECK(gp_go_more_meet(0)); // some are left
		CHECK(gp_go_take(false));
		CHECK(gp_go_thread(&thread, NULL, run, (void *)i) == 0);
	}
	CHECK(!gp_go_take(false));
	CHECK(gp_go_take(true) && gp_go_thread(&thread, NULL, run, (void *)THREADS) == 0);
	while (ran != (2u << THREADS) - 1)
		usleep(1000);
	ran = 0;
}

// All leave the meeting once all have come, and none before.
static void test_meeting(void)
{
	for (unsigned round = 1; round <= 3; round++) {
		pthread_t thread[THREADS];
		for (int i = 0; i < THREADS; i++) {
			CHECK(met == (round - 1) * THREADS);
			CHECK(!pthread_create(&thread[i], NULL, meet, NULL));
		}
		CHECK(!gp_go_more_meet(THREADS)); // no thread is left that could come
		for (int i = 0; i < THREADS; i++)
			CHECK(!pthread_join(thread[i], NULL));
		CHECK(met == round * THREADS);
	}
}

int main(void)
{
	alarm(LIMIT_s); // who waits is ended
	test_reserved();
	test_reserved(); // these have threads of their own
	test_meeting();
	return 0;
}
