// go_runtime_test.c - with exports/go_runtime.c.
//
// Threads made before Go asks for them, and the meeting at which all become Go's. Ends well or says what is wrong.
#include "exports/layer.h"
#include "test/units/check.h"

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

struct go_thread {
	uintptr_t *stack;
	uint64_t *tls;
	void (*run)(void);
};
void __wrap_x_cgo_thread_start(struct go_thread *);
void __wrap_x_cgo_sys_thread_create(void *(*)(void *));
bool gp_go_reserve(unsigned count);
unsigned gp_go_round(void);
void gp_go_meet(unsigned round);
bool gp_go_more_meet(unsigned count);

enum { THREADS = 5, FIRST = 1 << 16, LIMIT_s = 120 };

static atomic_uint ran, met;

void gp_complain(const char *what) { CHECK(!what); }

void gp_go_spare_memory(void) {}

// Of the queue: each stack comes once.
static uintptr_t stacks[THREADS + 1][2];

void crosscall1(void (*run)(void), void (*set_g)(void *), void *g)
{
	CHECK(run == abort && !set_g);
	atomic_fetch_or(&ran, 1u << ((uintptr_t (*)[2])g - stacks));
}

static void *run_first(void *argument)
{
	CHECK(!argument);
	atomic_fetch_or(&ran, FIRST);
	return argument;
}

static bool take(bool may_create)
{
	uint64_t answer = may_create;
	__wrap_x_cgo_thread_start(&(struct go_thread){.tls = &answer});
	return answer;
}

static void start(int i)
{
	__wrap_x_cgo_thread_start(&(struct go_thread){.stack = stacks[i], .run = abort});
	CHECK(stacks[i][0] == 0 && stacks[i][1] >= PTHREAD_STACK_MIN);
}

static void *meet(void *round)
{
	gp_go_meet((unsigned)(uintptr_t)round);
	atomic_fetch_add(&met, 1);
	return NULL;
}

// Go gets as many threads as were reserved, and no more unless it may create one. Each runs once.
static void test_reserved(void)
{
	CHECK(!take(false));
	CHECK(gp_go_reserve(THREADS + 1));
	CHECK(take(false));
	__wrap_x_cgo_sys_thread_create(run_first);
	for (int i = 0; i < THREADS; i++) {
		CHECK(gp_go_more_meet(0)); // some are left
		CHECK(take(false));
		start(i);
	}
	CHECK(!take(false));
	CHECK(take(true));
	start(THREADS);
	while (ran != ((2u << THREADS) - 1 | FIRST))
		usleep(1000);
	ran = 0;
}

// All leave the meeting once all have come, and none before.
static void test_meeting(void)
{
	for (unsigned round = 1; round <= 3; round++) {
		pthread_t thread[THREADS];
		void *now = (void *)(uintptr_t)gp_go_round();
		for (int i = 0; i < THREADS; i++) {
			CHECK(met == (round - 1) * THREADS);
			CHECK(!pthread_create(&thread[i], NULL, meet, now));
		}
		CHECK(!gp_go_more_meet(THREADS)); // no thread is left that could come
		for (int i = 0; i < THREADS; i++)
			CHECK(!pthread_join(thread[i], NULL));
		CHECK(met == round * THREADS);
	}
}

// Threads leave where the one that would end the round cannot run until one has left.
static void test_nobody_ends_the_round(void)
{
	pthread_t first;
	void *round = (void *)(uintptr_t)gp_go_round();
	met = 0;
	CHECK(!pthread_create(&first, NULL, meet, round));
	CHECK(!pthread_join(first, NULL)); // in whose thread the second runs
	meet(round);
	CHECK(met == 2);
	CHECK(!gp_go_more_meet(2));
	met = 0;
	test_meeting();
}

int main(void)
{
	alarm(LIMIT_s); // ends a process that waits
	test_reserved();
	test_reserved(); // these have threads of their own
	test_meeting();
	test_nobody_ends_the_round();
	return 0;
}
