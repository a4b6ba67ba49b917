// queue.c - see queue.h. A stream's operations are complete up to its mark, a word in host memory that the GPU writes behind them. Or they are
// up to the number that its latest kernel wrote beside that as it began.
//
// Writers: the appending thread writes tail. The holder of `submitting` writes head and marked. The watcher writes asleep. Readers: each of
// these threads reads the others' words. Pairing: an appender raises tail, then tries `submitting`; a thread that gives `submitting` back
// looks at tail again. The watcher sets asleep, then looks at tail; a thread that leaves work behind raises tail, then looks at asleep.
// What breaks: without the second looks an operation stays behind for ever.
#define _GNU_SOURCE
#include "queue.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct entry {
	struct operation operation;
	char padding[QUEUE_ENTRY_BYTES - sizeof(struct operation)]; // as parameters and attributes would take
};

static struct stream {
	_Alignas(64) _Atomic unsigned tail; // appended
	_Alignas(64) _Atomic unsigned head; // handed over
	unsigned marked;                    // of head, behind the latest mark
	struct entry *entry;
	CUstream handle;
} stream[QUEUE_STREAMS];

static unsigned streams, in_flight, mark_every;
static enum way way;
static enum word word;
static double nap_us;
static uint32_t *marks; // by stream, 64 bytes apart: one cache line each. The first word is the mark's, the second the kernels'
static _Atomic unsigned submitting, asleep, changed;
static pthread_t watcher;

static uint32_t *mark_of(unsigned i) { return marks + (size_t)i * 16; }

// Operations of a stream that are complete. Numbers differ by far less than half of their range.
static unsigned complete_of(unsigned i)
{
	uint32_t mark = __atomic_load_n(mark_of(i), __ATOMIC_ACQUIRE),
		 begun = __atomic_load_n(mark_of(i) + 1, __ATOMIC_ACQUIRE);
	return (int32_t)(begun - mark) > 0 ? begun : mark;
}

static unsigned under_way(void)
{
	unsigned sum = 0;
	for (unsigned i = 0; i < streams; i++)
		sum += stream[i].head - complete_of(i);
	return sum;
}

static bool is_left(void)
{
	for (unsigned i = 0; i < streams; i++)
		if (stream[i].head != stream[i].tail)
			return true;
	return false;
}

// Whether the kernel itself says that it has begun.
static bool tells(const struct operation *o) { return word == BY_KERNEL && way != DIRECT && o->telling; }

static void launch(const struct operation *o, unsigned number)
{
	CUdeviceptr begun = (CUdeviceptr)(uintptr_t)(mark_of(o->stream) + 1);
	void *parameters[] = {(void *)&o->out, (void *)&o->iterations, &begun, &number};
	CUfunction function = tells(o) ? o->telling : o->function;
	CUstream handle = stream[o->stream].handle;
	if (function)
		CHECK(cuLaunchKernel(function, o->blocks, 1, 1, 256, 1, 1, 0, handle, parameters, NULL));
	else
		CHECK(cuGraphLaunch(o->graph, handle));
}

// A mark costs the GPU about 2 us between two kernels (H200), so a stream gets few of them.
static void mark(unsigned i)
{
	struct stream *s = &stream[i];
	CHECK(cuStreamWriteValue32(s->handle, (CUdeviceptr)(uintptr_t)mark_of(i), s->head, 0));
	s->marked = s->head;
}

// Whether a mark has to say when the operations of a stream end. A kernel that tells says it of those before it.
static bool lacks_mark(unsigned i)
{
	const struct stream *s = &stream[i];
	if (s->marked == s->head)
		return false;
	return !tells(&s->entry[(s->head - 1) % QUEUE_ROOM].operation) || s->head - complete_of(i) == 1;
}

// Marks operations that no mark stands behind, unless a mark is on its way. Called with `submitting` held.
static void mark_the_rest(void)
{
	for (unsigned i = 0; i < streams; i++)
		if (stream[i].marked != __atomic_load_n(mark_of(i), __ATOMIC_ACQUIRE))
			return;
	for (unsigned i = 0; i < streams; i++)
		if (lacks_mark(i))
			mark(i);
}

// Hands over operations for which there is room, a stream after the other. Called with `submitting` held.
static void hand_over(void)
{
	unsigned room = in_flight, used = under_way();
	room = used < room ? room - used : 0;
	for (bool some = true; some && room;) {
		some = false;
		for (unsigned i = 0; i < streams && room; i++) {
			struct stream *s = &stream[i];
			unsigned head = s->head;
			if (head == s->tail)
				continue;
			const struct operation *o = &s->entry[head % QUEUE_ROOM].operation;
			launch(o, head);
			s->head = ++head;
			room--;
			some = true;
			if (!tells(o) && head - s->marked >= mark_every)
				mark(i);
		}
	}
	if (!room && is_left())
		mark_the_rest();
}

// Returns whether operations are left for which the driver has no room.
static bool submit(void)
{
	while (is_left()) {
		if (atomic_exchange(&submitting, 1))
			return true; // that thread looks again
		bool room = under_way() < in_flight;
		hand_over();
		submitting = 0;
		if (!room)
			return true;
	}
	return false;
}

static void *watch(void *unused)
{
	CHECK(cuCtxSetCurrent(context));
	for (;;) {
		unsigned seen = changed;
		bool left = submit();
		if (way == SPINS)
			continue;
		if (left) {
			struct timespec nap = {.tv_nsec = (long)(nap_us * 1000)};
			nanosleep(&nap, NULL);
			continue;
		}
		asleep = 1;
		if (!is_left() && way != SPINS)
			syscall(SYS_futex, &changed, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
		asleep = 0;
	}
	return NULL;
}

static void wake(void)
{
	changed++;
	syscall(SYS_futex, &changed, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void queue_open(unsigned count)
{
	streams = count;
	way = DIRECT;
	in_flight = mark_every = 1;
	CHECK(cuMemHostAlloc((void **)&marks, (size_t)QUEUE_STREAMS * 64,
			     CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
	memset(marks, 0, (size_t)QUEUE_STREAMS * 64);
	for (unsigned i = 0; i < streams; i++) {
		stream[i].handle = stream_of(0);
		stream[i].entry = calloc(QUEUE_ROOM, sizeof *stream[i].entry);
		if (!stream[i].entry)
			give_up("no memory");
	}
	if (pthread_create(&watcher, NULL, watch, NULL))
		give_up("no thread");
}

void queue_set(enum way how, enum word by, unsigned most, unsigned every, double nap)
{
	while (atomic_exchange(&submitting, 1)) // the watcher reads these with it
		;
	in_flight = most;
	mark_every = every;
	nap_us = nap;
	way = how;
	word = by;
	submitting = 0;
	wake();
}

void queue_append(const struct operation *o)
{
	struct stream *s = &stream[o->stream];
	if (way == DIRECT) {
		launch(o, 0);
		return;
	}
	while (s->tail - s->head == QUEUE_ROOM)
		submit();
	s->entry[s->tail % QUEUE_ROOM].operation = *o;
	s->tail++;
	if (submit() && asleep)
		wake();
}

void queue_drain(void)
{
	while (is_left())
		if (!time_for(0))
			give_up("operations are lost: %u under way", under_way());
		else
			sched_yield();
	CHECK(cuCtxSynchronize());              // as a program waits: no mark is needed behind the last operations
	while (atomic_exchange(&submitting, 1)) // the watcher may still look
		;
	for (unsigned i = 0; i < streams && way != DIRECT; i++) {
		stream[i].marked = stream[i].head;
		__atomic_store_n(mark_of(i), stream[i].head, __ATOMIC_RELEASE);
		__atomic_store_n(mark_of(i) + 1, stream[i].head, __ATOMIC_RELEASE);
	}
	submitting = 0;
}

double queue_watcher_seconds(void)
{
	clockid_t clock;
	struct timespec used;
	if (pthread_getcpuclockid(watcher, &clock) || clock_gettime(clock, &used))
		give_up("no clock of a thread");
	return (double)used.tv_sec + (double)used.tv_nsec / 1e9;
}
