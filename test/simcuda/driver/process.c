// process.c - the state of the driver in a process: the lock, handles, the contexts of its threads. Each call enters and leaves here.
#define _GNU_SOURCE
#include "sim.h"

#include <stdlib.h>
#include <time.h>

pthread_mutex_t sim_lock = PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP; // held for microseconds
pthread_cond_t sim_done = PTHREAD_COND_INITIALIZER;
_Atomic bool sim_initialized;
bool sim_forked, sim_dead;
struct CUctx_st *sim_contexts;

// ---- the beginning, forks, the end

static void before_fork(void) { pthread_mutex_lock(&sim_lock); }

static void in_parent(void) { pthread_mutex_unlock(&sim_lock); }

static void in_child(void)
{ // a driver does not survive a fork
	sim_lock = (pthread_mutex_t)PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP;
	pthread_cond_init(&sim_done, NULL);
	rm_forked();
	checkpoint_forked();
	if (sim_initialized)
		sim_forked = sim_dead = true;
}

static void __attribute__((constructor)) loaded(void) { pthread_atfork(before_fork, in_parent, in_child); }

static void __attribute__((destructor)) unloaded(void)
{
	if (!sim_initialized || sim_forked)
		return;
	// A signal handler that interrupted one of our calls may have called exit(): the wait for the lock is bounded.
	struct timespec limit;
	clock_gettime(CLOCK_REALTIME, &limit);
	limit.tv_sec++;
	bool locked = pthread_mutex_timedlock(&sim_lock, &limit) == 0;
	sim_dead = true;
	pthread_cond_broadcast(&sim_done); // the lock may be another's
	if (locked) {
		engine_leave();
		sim_unlock();
	}
}

// ---- sim_unlock and sim_wait tell threads of a change: told earlier, they would only wait for the lock

static struct {
	bool done;
	_Atomic uint32_t *bell;
} untold;

void tell_done(void) { untold.done = true; }

void tell_executor(_Atomic uint32_t *bell)
{
	if (untold.bell && untold.bell != bell)
		engine_ring(untold.bell);
	untold.bell = bell;
}

void sim_unlock(void)
{
	typeof(untold) now = untold;
	untold = (typeof(untold)){0};
	pthread_mutex_unlock(&sim_lock);
	if (now.done)
		pthread_cond_broadcast(&sim_done);
	if (now.bell)
		engine_ring(now.bell);
}

void sim_wait(pthread_cond_t *until)
{
	if (untold.done)
		pthread_cond_broadcast(&sim_done);
	if (untold.bell)
		engine_ring(untold.bell);
	untold = (typeof(untold)){0};
	pthread_cond_wait(until, &sim_lock);
}

// ---- handles: a handle from the application is looked up before it is followed

#define BUCKETS 4096
static struct entry {
	void *pointer;
	enum handle_kind kind;
	struct entry *next;
} *handles[BUCKETS];

static struct entry **bucket(const void *p) { return &handles[((uintptr_t)p >> 4) * 0x9e3779b97f4a7c15ull >> 52]; }

void handle_add(void *p, enum handle_kind kind)
{
	struct entry *e = malloc(sizeof *e);
	if (!e)
		abort();
	*e = (struct entry){p, kind, *bucket(p)};
	*bucket(p) = e;
}

void handle_remove(void *p)
{
	for (struct entry **at = bucket(p); *at; at = &(*at)->next)
		if ((*at)->pointer == p) {
			struct entry *e = *at;
			*at = e->next;
			free(e);
			return;
		}
}

bool handle_is(const void *p, enum handle_kind kind)
{
	for (struct entry *e = *bucket(p); e; e = e->next)
		if (e->pointer == p)
			return e->kind == kind;
	return false;
}

// ---- the contexts of a thread: the last is current

#define STACK 16
static __thread struct CUctx_st *stack[STACK];
static __thread int depth;

bool context_stack_full(void) { return depth == STACK; }

void context_push(struct CUctx_st *c) { stack[depth++] = c; }

struct CUctx_st *context_top(void) { return depth ? stack[depth - 1] : NULL; }

struct CUctx_st *context_pop(void) { return depth ? stack[--depth] : NULL; }

struct CUctx_st *context_current(void)
{
	struct CUctx_st *c = depth && handle_is(stack[depth - 1], H_CONTEXT) ? stack[depth - 1] : NULL;
	if (c && c->of) // a green context: it is that one, which may have ended
		c = handle_is(c->of, H_CONTEXT) ? c->of : NULL;
	return c;
}

// ---- calls

CUresult leave(CUresult r)
{
	sim_unlock();
	return r;
}

static CUresult enter_driver(void)
{
	if (sim_forked)
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_mutex_lock(&sim_lock);
	if (sim_dead)
		return leave(CUDA_ERROR_DEINITIALIZED);
	return sim_initialized ? CUDA_SUCCESS : leave(CUDA_ERROR_NOT_INITIALIZED);
}

CUresult enter(struct CUctx_st **current)
{
	CUresult r = enter_driver();
	if (r != CUDA_SUCCESS || !current)
		return r;
	if (!(*current = context_current()))
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	if ((*current)->late)
		return leave(CUDA_ERROR_CONTEXT_IS_DESTROYED);
	return (*current)->error ? leave((*current)->error) : CUDA_SUCCESS;
}

CUresult enter_handle(const void *h, enum handle_kind kind, const void *out)
{
	CUresult r = out ? enter(NULL) : CUDA_ERROR_INVALID_VALUE;
	return r == CUDA_SUCCESS && !handle_is(h, kind) ? leave(CUDA_ERROR_INVALID_HANDLE) : r;
}
