// calls.c - which calls wait for all work of a context, and which of them keep the context's lock while they do.
#include "sim.h"

// A launch of another thread waits for that lock. So a call that begins between the launches of a chain of holds makes
// the second launch wait for the first link's limit. Seen on an H100 (580.159.04), each call behind a hold of 80 ms and
// a launch of another thread 5 ms later; questions about streams never wait.
static const struct {
	bool waits, locks;
} calls[] = {
	[CALL_SUBMIT] = {.locks = true},
	[CALL_SYNCHRONIZE] = {.waits = true},
	[CALL_FREE] = {.waits = true, .locks = true},
	[CALL_FREE_HOST] = {.waits = true, .locks = true},
	[CALL_UNREGISTER] = {.waits = true, .locks = true},
	[CALL_LOAD] = {.waits = true, .locks = true},
	[CALL_UNLOAD] = {.waits = true},
	[CALL_FIRST_LAUNCH] = {.waits = true, .locks = true},
	[CALL_GREEN] = {.waits = true, .locks = true}, // that it waits was seen; that it locks was not looked at
};

static _Atomic uint32_t behind_holds, beside_holds;

// For tests: how many calls began to wait for a context while one of its holds was not told to end.
API uint32_t simcuda_calls_behind_holds(void) { return behind_holds; }

// The same of cooperative launches. On a GPU one that needs every SM waits for the hold.
API uint32_t simcuda_cooperative_beside_holds(void) { return beside_holds; }

static bool is_held(const struct CUctx_st *c)
{
	for (const struct CUstream_st *s = c->streams; s; s = s->next)
		for (const struct op *o = s->head; o; o = o->next)
			if (o->work.kind == OP_KERNEL && kernel_stands(o->work.kernel, o->work.argument))
				return true;
	return false;
}

void call_cooperative(const struct CUctx_st *c) { beside_holds += is_held(c); }

static __thread struct CUctx_st *keeps; // whose lock the calling thread has

static void unlock(void)
{
	if (keeps)
		keeps->locked = false;
	keeps = NULL;
	tell_done();
}

static void end(void *unused)
{
	(void)unused;
	unlock();
	sim_unlock();
}

void wait_done(void)
{
	pthread_cleanup_push(end, NULL);
	sim_wait(&sim_done);
	pthread_cleanup_pop(0);
}

void call_wait(struct CUctx_st *c, enum call call)
{
	while (calls[call].locks && c->locked && !sim_dead)
		wait_done();
	if (!calls[call].waits)
		return;
	behind_holds += is_held(c);
	if (!calls[call].locks) {
		context_wait(c);
		return;
	}
	c->locked = true;
	keeps = c;
	context_wait(c);
	unlock();
}

CUresult enter_submission(CUstream h, struct CUstream_st **s)
{
	struct CUctx_st *c;
	CUresult r = enter(&c);
	if (r != CUDA_SUCCESS)
		return r;
	call_wait(c, CALL_SUBMIT);
	r = stream_resolve(c, h, s);
	return r == CUDA_SUCCESS ? r : leave(r);
}
