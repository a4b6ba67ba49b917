// process.c - the state of the process, the clock, and futexes.
#define _GNU_SOURCE
#include "preempt/process/process.h"

#include <errno.h>
#include <limits.h>
#include <link.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// How long something may go unseen that rings at another place than is waited at.
static const uint64_t AGAIN_NS = 1000 * 1000;

struct gp_context gp_context[GP_CONTEXTS];
_Atomic uint32_t gp_context_places;
struct gp_gpu gp_gpu[GP_GPUS];
struct gp_settings gp_settings;
struct gp_kernel_counters gp_kernels;
_Atomic uint32_t gp_wake, gp_events;
_Atomic uint32_t gp_away, gp_recalled;
_Atomic uint32_t gp_membership, gp_doubts, gp_losses, gp_rejoined, gp_contexts_ending;

_Atomic int64_t gp_clock_ahead_ns;

uint64_t gp_now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec - (uint64_t)gp_clock_ahead_ns;
}

struct timespec gp_kernel_time(uint64_t ns)
{
	ns += (uint64_t)gp_clock_ahead_ns;
	return (struct timespec){(time_t)(ns / 1000000000ull), (long)(ns % 1000000000ull)};
}

void gp_futex_wake(_Atomic uint32_t *word, int count, bool shared)
{
	syscall(SYS_futex, word, FUTEX_WAKE | (shared ? 0 : FUTEX_PRIVATE_FLAG), count, NULL, NULL, 0);
}

void gp_wake_watcher(void)
{
	gp_wake++;
	gp_futex_wake(&gp_wake, 1, false);
}

void gp_count_time(struct gp_histogram *h, uint64_t ns)
{
	const uint64_t second = 1000000000;
	uint32_t i = 0;
	while (i < GP_TIME_BUCKETS - 1 &&
	       (i < GP_FIRST_BUCKET ? ns > second >> (GP_FIRST_BUCKET - i) : ns > second << (i - GP_FIRST_BUCKET)))
		i++;
	gp_count(&h->buckets[i], 1);
	gp_count(&h->sum_ns, ns);
}

int gp_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns, bool shared)
{
	struct timespec t = {(time_t)(timeout_ns / 1000000000ull), (long)(timeout_ns % 1000000000ull)};
	return (int)syscall(SYS_futex, word, FUTEX_WAIT | (shared ? 0 : FUTEX_PRIVATE_FLAG), seen,
			    timeout_ns ? &t : NULL, NULL, 0);
}

_Atomic uint32_t gp_helper_gone;

static _Atomic bool exiting;
static pthread_once_t exits = PTHREAD_ONCE_INIT;
static void exit_begins(void) { exiting = true; }
static void hear_of_exit(void) { atexit(exit_begins); }

bool gp_exiting(void)
{
	pthread_once(&exits, hear_of_exit);
	return exiting;
}

void gp_nap(uint64_t ns) { syscall(SYS_nanosleep, &(struct timespec){0, (long)ns}, NULL); }

// Where this process rings: at a place of its own, or where all do.
static struct gp_rings *own_rings(struct gp_gpu *g)
{
	struct gp_segment *s = g->segment;
	if (!s)
		return NULL;
	return g->paged ? &gp_own_line(g)->rings : &gp_view_of(s)->shared;
}

static void ring(_Atomic uint32_t *word)
{
	(*word)++;
	gp_futex_wake(word, INT_MAX, true);
}

void gp_ring(struct gp_gpu *g)
{
	struct gp_rings *r = own_rings(g);
	if (r)
		ring(&r->bell);
}

void gp_ring_windows(struct gp_gpu *g)
{
	struct gp_rings *r = own_rings(g);
	if (r)
		ring(&r->windows);
}

void gp_ring_gate(struct gp_gpu *g)
{
	struct gp_rings *r = own_rings(g);
	if (r)
		ring(&r->gate);
}

static _Atomic uint32_t *gate_word(struct gp_gpu *g, uint32_t slot)
{
	struct gp_segment *s = g->segment;
	return g->paged ? &gp_line_of(s, slot)->rings.gate : &s->rings.gate;
}

uint32_t gp_gate_seen(struct gp_gpu *g, uint32_t slot) { return *gate_word(g, slot); }

void gp_wait_gate(struct gp_gpu *g, uint32_t slot, uint32_t seen, uint64_t timeout_ns, bool forced)
{
	if (g->paged && forced && timeout_ns > AGAIN_NS) // only the slot's owner changes the word that is waited at
		timeout_ns = AGAIN_NS;
	bool passes = forced && (!gp_heeds_windows(g) || g->ignored >> slot & 1);
	if (gp_line_of(g->segment, slot)->window_opened_ns && !passes)
		gp_futex_wait(gate_word(g, slot), seen, timeout_ns, true);
}

static void see(struct gp_seen *seen, _Atomic uint32_t *word)
{
	seen->word[seen->count] = word;
	seen->value[seen->count++] = *word;
}

void gp_windows_seen(struct gp_gpu *g, struct gp_seen *seen)
{
	struct gp_segment *s = g->segment;
	seen->count = 0;
	see(seen, &own_rings(g)->windows);
	for (uint64_t m = g->paged ? g->higher : 0; m; m &= m - 1)
		see(seen, &gp_line_of(s, (uint32_t)__builtin_ctzll(m))->rings.windows);
}

// Linux 5.16 waits for several words. Before, the first is waited for, and the rest looked at again and again.
void gp_wait_windows(const struct gp_seen *seen, uint64_t timeout_ns)
{
	enum { FUTEX_WAITV = 449, WORD_OF_32_BITS = 2 };
	struct {
		uint64_t value, address;
		uint32_t flags, reserved;
	} word[GP_SLOTS + 1];
	if (seen->count > 1) {
		struct timespec t = gp_kernel_time(gp_now_ns() + timeout_ns);
		for (uint32_t i = 0; i < seen->count; i++) {
			word[i].value = seen->value[i];
			word[i].address = (uintptr_t)seen->word[i];
			word[i].flags = WORD_OF_32_BITS;
			word[i].reserved = 0;
		}
		long result = syscall(FUTEX_WAITV, word, seen->count, 0, &t, CLOCK_MONOTONIC);
		if (result >= 0 || errno == EAGAIN || errno == ETIMEDOUT || errno == EINTR)
			return;
		for (uint32_t i = 1; i < seen->count; i++)
			if (*seen->word[i] != seen->value[i])
				return;
		timeout_ns = timeout_ns < AGAIN_NS ? timeout_ns : AGAIN_NS;
	}
	gp_futex_wait(seen->word[0], seen->value[0], timeout_ns, true);
}

void gp_notify(void)
{
	gp_events++;
	gp_futex_wake(&gp_events, INT_MAX, false);
	gp_ring_helper(GP_BELL_EVENTS);
}

_Atomic(_Atomic uint32_t *) gp_helper_bells;

void gp_ring_helper(enum gp_helper_bell which)
{
	_Atomic uint32_t *bells = gp_helper_bells;
	if (!bells)
		return;
	bells[which]++;
	gp_futex_wake(&bells[which], INT_MAX, true);
}

void gp_membership_doubt(bool lost)
{
	gp_losses += lost;
	gp_doubts++; // last: a thread that sees it sees the loss
	gp_futex_wake(&gp_doubts, 1, false);
	gp_notify(); // the first has a thread started
}

// The thread-local storage of each library that is loaded, or more than it takes.
static int add_thread_local(struct dl_phdr_info *library, size_t size, void *sum)
{
	for (int i = 0; i < library->dlpi_phnum; i++)
		if (library->dlpi_phdr[i].p_type == PT_TLS)
			*(size_t *)sum += library->dlpi_phdr[i].p_memsz + library->dlpi_phdr[i].p_align;
	return 0;
}

// A program that locks what it maps (mlockall) has each stack in memory whole, of 8 MB by default. Our own frames take some KB;
// how much the driver takes on such threads was not measured. The program's thread-local storage lies there too.
// The storage is found out once, as the first thread starts: later the loader's lock may be a thread's that waits for what the thread is for.
bool gp_thread_start(pthread_t *thread, void *(*run)(void *), void *argument)
{
	enum { STACK_BYTES = 1 << 20 };
	static _Atomic size_t storage_bytes;
	pthread_attr_t attributes;
	sigset_t all, before;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int failed = pthread_attr_init(&attributes);
	if (!failed) {
		size_t sum = 0;
		if (!storage_bytes && dl_iterate_phdr(add_thread_local, &sum) == 0)
			storage_bytes = sum + 1;
		pthread_attr_setstacksize(&attributes, STACK_BYTES + storage_bytes);
		failed = pthread_create(thread, &attributes, run, argument);
		pthread_attr_destroy(&attributes);
	}
	if (failed == EINVAL)
		failed = pthread_create(thread, NULL, run, argument);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return !failed;
}

// Only the first recall since memory left is of use.
void gp_recall(void)
{
	if (__atomic_exchange_n((uint32_t *)&gp_recalled, 1, __ATOMIC_ACQ_REL))
		return;
	for (int i = 0; i < GP_GPUS && gp_gpu[i].known; i++) {
		gp_ring(&gp_gpu[i]);
	}
}
