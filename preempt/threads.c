// threads.c - the library's own threads that live as long as the process.
//
// Most start once there is something for them to do. No thread of the program starts one: it may have locks that the start of a thread takes.
#define _GNU_SOURCE
#include "preempt/preempt.h"
#include "hints/hints.h"
#include "preempt/blp/blp.h"
#include "preempt/driver/arena.h"
#include "preempt/gpu/gpu.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/prctl.h>

struct duty {
	void (*run)(struct gp_gpu *);
	struct gp_gpu *gpu;     // NULL: all
	bool given;             // to a thread
	_Atomic uint32_t begun; // futex
};

static void watch(struct gp_gpu *all) { gp_watch_forever(); }
static void carry(struct gp_gpu *all) { gp_hint_run(); }
static void guard(struct gp_gpu *all) { gp_runlist_guard(); }
static void ask(struct gp_gpu *all) { gp_checkpoint_watch(); }
static void feed(struct gp_gpu *all) { gp_queue_feed(); }

// A thread's first calls of the system come before its duty. Later the program may filter its calls, or have no more addresses for malloc,
// which the driver calls on these threads.
static void *begin(void *duty)
{
	struct duty *d = duty;
	prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0); // ns. The default of 50 us would be GPU time lost, as a window closes
	gp_get_arena();
	d->begun = 1;
	gp_futex_wake(&d->begun, 1, false);
	d->run(d->gpu);
	return NULL;
}

// Writers and readers of given: threads of lanes. Pairing: the lock. Without it a duty would get two threads.
static bool give(struct duty *d)
{
	static const uint64_t MOST_NS = 1000000000; // a filter of system calls may end the thread
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	pthread_t thread;
	pthread_mutex_lock(&lock);
	if (!d->given && gp_thread_start(&thread, begin, d)) {
		d->given = true;
		pthread_detach(thread);
		for (uint64_t end = gp_now_ns() + MOST_NS, now; !d->begun && (now = gp_now_ns()) < end;)
			gp_futex_wait(&d->begun, 0, end - now, false);
	}
	pthread_mutex_unlock(&lock);
	return d->given;
}

bool gp_guard_start(void)
{
	static struct duty guardian = {.run = guard};
	return give(&guardian);
}

bool gp_threads_start(bool hints, bool suspends)
{
	static struct duty watcher = {.run = watch}, carrier = {.run = carry};
	return give(&watcher) && (!hints || give(&carrier)) && (!suspends || gp_guard_start());
}

void gp_threads_start_wanted(void)
{
	static struct duty asker = {.run = ask}, feeder = {.run = feed};
	if (gp_doubts && gp_checkpoint_can_watch())
		give(&asker);
	if (gp_blp_was_full)
		give(&feeder); // without it launches wait for room
}

bool gp_windows_watch(struct gp_gpu *g)
{
	static struct duty watcher[GP_GPUS];
	struct duty *d = &watcher[g - gp_gpu];
	if (!d->given) // it reads them
		*d = (struct duty){.run = gp_blp_watch, .gpu = g};
	return give(d);
}
