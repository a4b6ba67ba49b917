// interleave.c - runs the threads of a handshake in every order, up to a number of interruptions.
//
// The compiler tells of each access of the sources (-fsanitize=thread), and this file takes the place of the sanitizer's runtime: before an
// access to an atomic or volatile object it may let another thread go on. Threads are contexts of one thread of the system, so a switch
// costs little. A run is a list of choices. The next run repeats it up to the last choice that has another answer left, and takes that. So
// all orders are run in which threads are interrupted so many times: a race is found or it needs more interruptions.
//
// Accesses have one order here, as if all were sequentially consistent: the thread sanitizer, which runs the other tests, knows of weaker
// ones. This file has its own waits (futexes, mutexes, conditions, naps), and its own clock.
#define _GNU_SOURCE
#include "test/units/interleave/interleave.h"

#include <errno.h>
#include <link.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum { STACK_BYTES = 1 << 18, CHOICES = 1 << 12, STEPS = 1 << 16, MUTEXES = 64, NOBODY = -1 };

static struct thread {
	ucontext_t context;
	char *storage; // its thread-local variables, while another runs
	char *initial; // and at the beginning of each run
	enum { READY, ASLEEP, OVER } state;
	const void *at;    // asleep: what it waits at. A mutex: until that is free
	uint64_t until_ns; // asleep: until then; 0: without a bound
	bool naps;         // its wait ends by its bound alone
	bool expired;      // its wait did
	void *stack;
} thread[INTERLEAVED];
static int threads, current = NOBODY;
static ucontext_t outside;

static struct choice {
	int is, of;
	const void *where;
	int who; // goes on
} choice[CHOICES];
static int choices, known; // in this run; of these, so many are repeated
static int preemptions, steps;
static uint64_t clock_ns;
static const struct interleaving *test;

static struct {
	const pthread_mutex_t *mutex;
	int owner;
} mutex_of[MUTEXES];

// Thread-local variables of the program: those of all threads are at one place, one after the other.
static struct {
	char *at;
	size_t bytes;
	char *initial, *main;
} storage;

static int find_storage(struct dl_phdr_info *info, size_t size, void *unused)
{
	(void)size, (void)unused;
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_TLS) {
			storage.at = info->dlpi_tls_data;
			storage.bytes = info->dlpi_phdr[i].p_memsz;
		}
	return 1; // the first one is the program
}

static void keep_storage(char *copy)
{
	if (storage.bytes)
		memcpy(copy, storage.at, storage.bytes);
}

static void use_storage(const char *copy)
{
	if (storage.bytes)
		memcpy(storage.at, copy, storage.bytes);
}

static void failed(const char *what)
{
	printf("%s: %s\n", test->name, what);
	exit(1);
}

// Says in which order it went wrong: addr2line knows the places.
static void say_order(void)
{
	if (current == NOBODY)
		return;
	printf("%s: in this order, of places in the program (addr2line -e):\n", test->name);
	for (int i = 0; i < choices; i++)
		if (i == 0 || choice[i].who != choice[i - 1].who)
			printf("  at %p thread %d goes on\n", choice[i].where, choice[i].who);
}

static int choose(int of, const void *where)
{
	if (choices == CHOICES)
		failed("more choices than there is room for");
	struct choice *c = &choice[choices++];
	if (choices > known)
		*c = (struct choice){0, of, where, NOBODY};
	else if (c->of != of)
		failed("two runs of one order differ");
	c->where = where;
	return c->is;
}

static int *owner_of(const pthread_mutex_t *mutex)
{
	for (int i = 0; i < MUTEXES; i++) {
		if (!mutex_of[i].mutex)
			mutex_of[i].owner = NOBODY;
		if (!mutex_of[i].mutex || mutex_of[i].mutex == mutex) {
			mutex_of[i].mutex = mutex;
			return &mutex_of[i].owner;
		}
	}
	failed("more mutexes than there is room for");
	return NULL;
}

static void expire(struct thread *t)
{
	if (clock_ns < t->until_ns)
		clock_ns = t->until_ns;
	t->state = READY;
	t->expired = true;
}

static void go_on(int next)
{
	int was = current;
	if (thread[next].state == ASLEEP)
		expire(&thread[next]);
	if (next == was)
		return;
	keep_storage(thread[was].storage);
	use_storage(thread[next].storage);
	current = next;
	swapcontext(&thread[was].context, &thread[next].context);
}

static int others(int *list, int but)
{
	int count = 0;
	for (int i = 0; i < threads; i++)
		if (i != but &&
		    (thread[i].state == READY || (test->bounds && thread[i].state == ASLEEP && thread[i].until_ns)))
			list[count++] = i;
	return count;
}

static void point(const void *where)
{
	int list[INTERLEAVED], count;
	if (current == NOBODY)
		return;
	if (++steps == STEPS)
		failed("a thread goes on for ever");
	if (preemptions == test->preemptions || !(count = others(list, current)))
		return;
	int i = choose(count + 1, where);
	choice[choices - 1].who = i ? list[i - 1] : current;
	if (!i)
		return;
	preemptions++;
	go_on(list[i - 1]);
}

// The bound of a wait ends it where nothing else goes on: a nap's, the next one first.
static bool end_nap(void)
{
	struct thread *first = NULL;
	for (int i = 0; i < threads; i++) {
		struct thread *t = &thread[i];
		if (t->state == ASLEEP && t->naps && (!first || t->until_ns < first->until_ns))
			first = t;
	}
	if (!first)
		return false;
	expire(first);
	return true;
}

// The thread sleeps, or is over: another one goes on.
static void give_up(const void *where)
{
	int list[INTERLEAVED], count = others(list, NOBODY);
	if (!count) {
		if (!end_nap())
			failed("a wake-up was missed: each thread waits");
		count = others(list, NOBODY);
	}
	int i = count > 1 ? choose(count, where) : 0;
	if (count > 1)
		choice[choices - 1].who = list[i];
	go_on(list[i]);
}

static bool sleep_at(const void *at, uint64_t bound_ns, bool naps, const void *where)
{
	struct thread *t = &thread[current];
	if (++steps == STEPS)
		failed("a thread waits again and again, for ever");
	t->state = ASLEEP;
	t->at = at;
	t->until_ns = bound_ns ? clock_ns + bound_ns : 0;
	t->naps = naps;
	t->expired = false;
	give_up(where);
	return !thread[current].expired;
}

static int wake(const void *at, int count)
{
	int woken = 0;
	for (int i = 0; i < threads && woken < count; i++)
		if (thread[i].state == ASLEEP && thread[i].at == at) {
			thread[i].state = READY;
			woken++;
		}
	return woken;
}

static void begin(void)
{
	test->run[current]();
	thread[current].state = OVER;
	bool all = true;
	for (int i = 0; i < threads; i++)
		all = all && thread[i].state == OVER;
	if (all)
		setcontext(&outside);
	give_up(NULL);
}

static void run(void)
{
	choices = preemptions = steps = 0;
	clock_ns = 1000000000;
	memset(mutex_of, 0, sizeof mutex_of);
	test->reset();
	for (int i = 0; i < threads; i++) {
		struct thread *t = &thread[i];
		t->state = READY;
		memcpy(t->storage, t->initial, storage.bytes);
		getcontext(&t->context);
		t->context.uc_stack.ss_sp = t->stack;
		t->context.uc_stack.ss_size = STACK_BYTES;
		t->context.uc_link = NULL;
		makecontext(&t->context, begin, 0);
	}
	keep_storage(storage.main);
	int first = choose(threads, NULL);
	choice[choices - 1].who = current = first;
	use_storage(thread[first].storage);
	swapcontext(&outside, &thread[first].context);
	use_storage(storage.main);
	test->check();
	current = NOBODY;
}

// Blocks of preempt/process/thread.c, where it is linked. Each thread has one before the first run, so that all runs are alike. A block's
// contents at the end of a run are there in the next run.
__attribute__((weak)) void gp_thread_make(void);

static void make_thread(char *initial)
{
	keep_storage(storage.main);
	use_storage(storage.initial);
	if (gp_thread_make)
		gp_thread_make();
	keep_storage(initial);
	use_storage(storage.main);
}

void interleave(const struct interleaving *next)
{
	uint64_t orders = 0;

	test = next;
	if (!storage.initial) {
		atexit(say_order);
		dl_iterate_phdr(find_storage, NULL);
		storage.initial = malloc(storage.bytes + 1);
		storage.main = malloc(storage.bytes + 1);
		keep_storage(storage.initial);
	}
	for (threads = 0; threads < INTERLEAVED && test->run[threads]; threads++)
		if (!thread[threads].stack) {
			thread[threads].stack = malloc(STACK_BYTES);
			thread[threads].storage = malloc(storage.bytes + 1);
			thread[threads].initial = malloc(storage.bytes + 1);
			make_thread(thread[threads].initial);
		}
	for (known = 0;; orders++) {
		run();
		for (known = choices; known && choice[known - 1].is + 1 == choice[known - 1].of; known--)
			;
		if (!known)
			break;
		choice[known - 1].is++;
	}
	if (!orders)
		failed("one order: the sources tell of no access");
	printf("%s: %llu orders\n", test->name, (unsigned long long)orders + 1);
}

void interleave_point(void) { point(__builtin_return_address(0)); }
void interleave_at(uint64_t ns) { clock_ns = ns; }

// Functions of libc that the sources call.

int clock_gettime(clockid_t id, struct timespec *t)
{
	(void)id;
	clock_ns++;
	*t = (struct timespec){(time_t)(clock_ns / 1000000000), (long)(clock_ns % 1000000000)};
	return 0;
}

static uint64_t ns_of(const struct timespec *t) { return (uint64_t)t->tv_sec * 1000000000ull + (uint64_t)t->tv_nsec; }

long syscall(long number, ...)
{
	const void *where = __builtin_return_address(0);
	long a[3];
	va_list list;
	va_start(list, number);
	for (int i = 0; i < 3; i++)
		a[i] = va_arg(list, long);
	const struct timespec *bound = number == SYS_futex ? va_arg(list, const struct timespec *) : NULL;
	va_end(list);
	if (number == SYS_nanosleep && current != NOBODY)
		return sleep_at(NULL, ns_of((const struct timespec *)a[0]), true, where), 0;
	if (number != SYS_futex || current == NOBODY) {
		errno = ENOSYS; // as for those that a kernel does not have
		return number == SYS_futex ? 0 : -1;
	}
	point(where);
	if ((a[1] & FUTEX_CMD_MASK) == FUTEX_WAKE)
		return wake((const void *)a[0], (int)a[2]);
	if (*(volatile uint32_t *)a[0] != (uint32_t)a[2]) {
		errno = EAGAIN;
		return -1;
	}
	if (sleep_at((const void *)a[0], bound ? ns_of(bound) : 0, false, where))
		return 0;
	errno = ETIMEDOUT;
	return -1;
}

static int lock(pthread_mutex_t *mutex, const void *where)
{
	if (current == NOBODY)
		return 0;
	point(where);
	while (*owner_of(mutex) != NOBODY) {
		if (*owner_of(mutex) == current)
			failed("a thread takes a mutex that it has");
		sleep_at(mutex, 0, false, where);
	}
	*owner_of(mutex) = current;
	return 0;
}

int pthread_mutex_lock(pthread_mutex_t *mutex) { return lock(mutex, __builtin_return_address(0)); }

int pthread_mutex_trylock(pthread_mutex_t *mutex)
{
	point(__builtin_return_address(0));
	if (current != NOBODY && *owner_of(mutex) != NOBODY)
		return EBUSY;
	if (current != NOBODY)
		*owner_of(mutex) = current;
	return 0;
}

int pthread_mutex_unlock(pthread_mutex_t *mutex)
{
	if (current == NOBODY)
		return 0;
	if (*owner_of(mutex) != current)
		failed("a thread gives back a mutex that it does not have");
	*owner_of(mutex) = NOBODY;
	wake(mutex, INTERLEAVED);
	point(__builtin_return_address(0));
	return 0;
}

static int wait_for(pthread_cond_t *changed, pthread_mutex_t *mutex, uint64_t bound_ns, const void *where)
{
	*owner_of(mutex) = NOBODY;
	wake(mutex, INTERLEAVED);
	bool woken = sleep_at(changed, bound_ns, false, where);
	lock(mutex, where);
	return woken ? 0 : ETIMEDOUT;
}

int pthread_cond_wait(pthread_cond_t *changed, pthread_mutex_t *mutex)
{
	return wait_for(changed, mutex, 0, __builtin_return_address(0));
}

int pthread_cond_timedwait(pthread_cond_t *changed, pthread_mutex_t *mutex, const struct timespec *until)
{
	uint64_t at = ns_of(until);
	return wait_for(changed, mutex, at > clock_ns ? at - clock_ns : 1, __builtin_return_address(0));
}

int pthread_cond_signal(pthread_cond_t *changed)
{
	point(__builtin_return_address(0));
	return wake(changed, 1), 0;
}

int pthread_cond_broadcast(pthread_cond_t *changed)
{
	point(__builtin_return_address(0));
	return wake(changed, INTERLEAVED), 0;
}

// Functions that the compiler calls (gcc's sanitizer.def).

void __tsan_init(void) {}
void __tsan_func_entry(void *caller) { (void)caller; }
void __tsan_func_exit(void) {}
void __tsan_read_range(void *at, size_t bytes) { (void)at, (void)bytes; }
void __tsan_write_range(void *at, size_t bytes) { (void)at, (void)bytes; }

#define PLAIN(bytes) \
	void __tsan_read##bytes(void *at) { (void)at; } \
	void __tsan_write##bytes(void *at) { (void)at; } \
	void __tsan_unaligned_read##bytes(void *at) { (void)at; } \
	void __tsan_unaligned_write##bytes(void *at) { (void)at; } \
	void __tsan_volatile_read##bytes(void *at) { (void)at, point(__builtin_return_address(0)); } \
	void __tsan_volatile_write##bytes(void *at) { (void)at, point(__builtin_return_address(0)); }
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)

#define FETCH(bits, type, name) \
	type __tsan_atomic##bits##_fetch_##name(volatile void *at, type by, int order) \
	{ \
		(void)order; \
		point(__builtin_return_address(0)); \
		return __atomic_fetch_##name((volatile type *)at, by, __ATOMIC_SEQ_CST); \
	}
#define ATOMIC(bits, type) \
	type __tsan_atomic##bits##_load(const volatile void *at, int order) \
	{ \
		(void)order; \
		point(__builtin_return_address(0)); \
		return __atomic_load_n((const volatile type *)at, __ATOMIC_SEQ_CST); \
	} \
	void __tsan_atomic##bits##_store(volatile void *at, type value, int order) \
	{ \
		(void)order; \
		point(__builtin_return_address(0)); \
		__atomic_store_n((volatile type *)at, value, __ATOMIC_SEQ_CST); \
	} \
	type __tsan_atomic##bits##_exchange(volatile void *at, type value, int order) \
	{ \
		(void)order; \
		point(__builtin_return_address(0)); \
		return __atomic_exchange_n((volatile type *)at, value, __ATOMIC_SEQ_CST); \
	} \
	bool __tsan_atomic##bits##_compare_exchange_strong(volatile void *at, void *is, type value, int order, int other) \
	{ \
		(void)order, (void)other; \
		point(__builtin_return_address(0)); \
		return __atomic_compare_exchange_n((volatile type *)at, (type *)is, value, false, __ATOMIC_SEQ_CST, \
						   __ATOMIC_SEQ_CST); \
	} \
	bool __tsan_atomic##bits##_compare_exchange_weak(volatile void *at, void *is, type value, int order, int other) \
	{ \
		return __tsan_atomic##bits##_compare_exchange_strong(at, is, value, order, other); \
	} \
	FETCH(bits, type, add) \
	FETCH(bits, type, sub) FETCH(bits, type, and) FETCH(bits, type, or) FETCH(bits, type, xor)
ATOMIC(8, uint8_t)
ATOMIC(16, uint16_t)
ATOMIC(32, uint32_t)
ATOMIC(64, uint64_t)

void __tsan_atomic_thread_fence(int order)
{
	(void)order;
	point(__builtin_return_address(0));
}
void __tsan_atomic_signal_fence(int order) { (void)order; }
