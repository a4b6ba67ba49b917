// threads.c - the library's own threads that live as long as the process.
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
	void (*run)(struct gp_gpu *); // never returns
	struct gp_gpu *gpu;           // NULL: all
	bool given;                   // to a thread
	_Atomic uint32_t begun;       // futex
};

static void watch(struct gp_gpu *all) { gp_watch_forever(); }
static void guard(struct gp_gpu *all) { gp_runlist_guard(); }
static void ask(struct gp_gpu *all) { gp_checkpoint_watch(); }
static void carry(struct gp_gpu *all) { gp_hint_run(); }

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

static bool give(struct duty *d)
{
	pthread_t thread;
	if (!d->given && gp_thread_start(&thread, begin, d)) {
		d->given = true;
		pthread_detach(thread);
		while (!d->begun)
			gp_futex_wait(&d->begun, 0, 0, false);
	}
	return d->given;
}

bool gp_threads_start(bool hints)
{
	static struct duty watcher = {.run = watch}, guardian = {.run = guard};
	static struct duty asker = {.run = ask}, carrier = {.run = carry};
	return give(&watcher) && give(&guardian) && (!gp_checkpoint_can_watch() || give(&asker)) &&
	       (!hints || give(&carrier));
}

static void feed(struct gp_gpu *all) { gp_queue_feed(); }

bool gp_feeder_start(void)
{
	static struct duty feeder = {.run = feed};
	return give(&feeder);
}

bool gp_windows_watch(struct gp_gpu *g)
{
	static struct duty watcher[GP_GPUS];
	struct duty *d = &watcher[g - gp_gpu];
	d->run = gp_blp_watch;
	d->gpu = g;
	return give(d);
}
