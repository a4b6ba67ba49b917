// lanes.c - see far.h.
#define _GNU_SOURCE
#include "preempt/far/far.h"
#include "preempt/bridge.h"

#include <pthread.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

// The linker's: the beginning of this file's mapping, and the end of its code.
extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern const char etext[] __attribute__((visibility("hidden")));

// The helper's side.

static void carry_out(struct gp_lane *);

static bool change(struct gp_lane *lane, uint32_t from, uint32_t to)
{
	return __atomic_compare_exchange_n((uint32_t *)&lane->state, &from, to, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static struct gp_page *page;
static _Atomic bool opened[GP_LANES];
static pthread_mutex_t lane_lock[GP_LANES]; // zeros: free

void gp_far_use(struct gp_page *p) { page = p; }

struct gp_lane *gp_far_begin(uint32_t i)
{
	static struct gp_page here; // of a process that has no program: a test
	i = opened[i] ? i : GP_LANE_CORE;
	struct gp_lane *lane = &(page ? page : &here)->lane[i];
	pthread_mutex_lock(&lane_lock[i]);
	memset(&lane->call, 0, sizeof lane->call);
	return lane;
}

bool gp_far_is_open(uint32_t lane) { return opened[lane]; }

void gp_far_opened(uint32_t lane) { opened[lane] = true; }

void gp_far_carry_out(struct gp_lane *lane, void (*function)(void))
{
	lane->call.function = (uint64_t)((const char *)function - __ehdr_start);
	if (!page) {
		carry_out(lane);
		return;
	}
	if (!change(lane, GP_LANE_FREE, GP_LANE_ASKED))
		return; // closed: the result is 0
	gp_futex_wake(&lane->state, 1, true);
	while (lane->state == GP_LANE_ASKED)
		gp_futex_wait(&lane->state, GP_LANE_ASKED, 0, true);
}

void gp_far_end(struct gp_lane *lane)
{
	change(lane, GP_LANE_ANSWERED, GP_LANE_FREE);
	pthread_mutex_unlock(&lane_lock[page ? lane - page->lane : GP_LANE_CORE]);
}

// The program's side.

typedef uint64_t integers(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, double, double, double, double);

// Arguments of both kinds go in registers, by their order among their kind: a function takes those that it has.
static void carry_out(struct gp_lane *lane)
{
	struct gp_far_call *c = &lane->call;
	uint64_t a[GP_FAR_ARGUMENTS];
	for (int i = 0; i < GP_FAR_ARGUMENTS; i++)
		a[i] = c->in_data & 1u << i ? (uint64_t)(uintptr_t)(lane->data + c->argument[i] % GP_FAR_DATA) :
					      c->argument[i];
	if (c->function >= (uint64_t)(etext - __ehdr_start)) { // no helper asks for that
		c->result = 0;
		return;
	}
	integers *function = (integers *)(uintptr_t)(__ehdr_start + c->function);
	c->result = function(a[0], a[1], a[2], a[3], a[4], a[5], c->number[0], c->number[1], c->number[2], c->number[3]);
	if (c->text && c->result) {
		strncpy((char *)lane->data, (const char *)(uintptr_t)c->result, GP_FAR_TEXT - 1);
		lane->data[GP_FAR_TEXT - 1] = 0;
		c->result = 1;
	}
}

// writers and readers: threads that carry out calls. pairing: each adds, with acquire and release. what breaks without it: nothing on a processor,
// where the helper's own loads and stores order both calls; a thread sanitizer does not see those.
static _Atomic uint64_t order;
void gp_far_order(void) { order++; }

uint64_t gp_far_calls(void) { return order / 2; }

static _Atomic(struct gp_page *) served;

void gp_lane_serve(struct gp_page *p, uint32_t i)
{
	struct gp_lane *lane = &p->lane[i];
	if (i == GP_LANE_CORE)
		served = p;
	for (uint32_t state; (state = lane->state) != GP_LANE_CLOSED;) {
		if (state != GP_LANE_ASKED) {
			gp_futex_wait(&lane->state, state, 0, true);
			continue;
		}
		gp_far_order();
		carry_out(lane);
		gp_far_order();
		if (change(lane, GP_LANE_ASKED, GP_LANE_ANSWERED))
			gp_futex_wake(&lane->state, 1, true);
	}
}

// Memory that is out comes back before the mover's thread ends, unless a later helper has one: nobody else moves any.
static void *serve(void *of)
{
	enum { AGAIN_NS = 100000000 };
	static _Atomic uint32_t movers;
	struct gp_lane *lane = of;
	struct gp_page *p = lane->page;
	bool mover = lane == &p->lane[GP_LANE_MOVER];
	uint32_t number = mover ? ++movers : 0;
	prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0); // ns
	gp_lane_serve(p, (uint32_t)(lane - p->lane));
	if (mover && !gp_exiting())
		gp_bridge_memory_suspend(false, 0);
	__atomic_store_n(&lane->page, NULL, __ATOMIC_RELEASE); // from here on the page may be the next helper's
	while (mover && movers == number && !gp_exiting() && !gp_bridge_memory_returns())
		gp_nap(AGAIN_NS);
	return NULL;
}

bool gp_lane_open_here(uint32_t i)
{
	struct gp_page *p = served;
	pthread_t thread;
	if (!p || i >= GP_LANES || p->lane[i].page)
		return false;
	p->lane[i].page = p;
	if (gp_thread_start(&thread, serve, &p->lane[i]))
		return pthread_detach(thread), true;
	p->lane[i].page = NULL;
	return false;
}

void gp_lanes_close(struct gp_page *p)
{
	for (int i = 0; i < GP_LANES; i++) {
		p->lane[i].state = GP_LANE_CLOSED;
		gp_futex_wake(&p->lane[i].state, 1, true);
	}
}

// Its calls change nothing, and may wait for ever.
static bool may_last(int lane)
{
	return lane == GP_LANE_LOG || lane == GP_LANE_REWRITER ||
	       (lane >= GP_LANE_METER && lane < GP_LANE_METER + GP_GPUS);
}

bool gp_lanes_are_busy(struct gp_page *p)
{
	for (int i = 0; i < GP_LANES; i++)
		if (p->lane[i].state == GP_LANE_ASKED && !may_last(i))
			return true;
	return false;
}

static bool has_thread(struct gp_page *p, int lane) { return __atomic_load_n(&p->lane[lane].page, __ATOMIC_ACQUIRE); }

bool gp_lanes_have_ended(struct gp_page *p)
{
	for (int i = 0; i < GP_LANES; i++)
		if (has_thread(p, i))
			return false;
	return true;
}

void gp_lanes_end(struct gp_page *p)
{
	enum { AGAIN_NS = 200000, MOST_NS = 1000000000 };
	uint64_t end = gp_now_ns() + MOST_NS;
	for (int i = 0; i < GP_LANES; i++) {
		while (has_thread(p, i) && (!may_last(i) || gp_now_ns() < end))
			gp_nap(AGAIN_NS);
	}
}
