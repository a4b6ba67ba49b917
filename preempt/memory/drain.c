// drain.c - waits until the GPU has nothing of this process to do.
//
// The driver's wait for a context has no time limit. So a thread of its own waits, and the mover waits for that thread, up to
// its deadline. If that passes, the thread waits on. That does no harm: it only waits, and the mover alone decides what
// follows.
#define _GNU_SOURCE
#include "preempt/memory/move.h"

#include <limits.h>

static _Atomic uint32_t asked, answered; // numbers of drains, both futexes; if they are equal the thread has nothing to do
static _Atomic CUresult answer;
static bool runs; // the mover's

// A context that is being destroyed, or that was never initialised, has no work.
static bool has_none(CUresult result)
{
	return result == CUDA_ERROR_DEINITIALIZED || result == CUDA_ERROR_INVALID_CONTEXT ||
	       result == CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

static CUresult synchronize(struct gp_context *c)
{
	CUcontext handle = c->handle, popped;
	if (!handle || !gp_context_pin(c, handle))
		return CUDA_SUCCESS;
	CUresult result = gp_driver.cuCtxPushCurrent(handle);
	if (!result) {
		result = gp_driver.cuCtxSynchronize();
		gp_driver.cuCtxPopCurrent(&popped);
	}
	gp_context_unpin(c);
	return has_none(result) ? CUDA_SUCCESS : result;
}

static void *drain_forever(void *unused)
{
	for (;;) {
		uint32_t number = asked;
		if (number == answered) {
			gp_futex_wait(&asked, number, 0, false);
			continue;
		}
		gp_relax_captures(); // not before: the driver may not be initialised yet as the thread begins, and refuses it then
		CUresult worst = CUDA_SUCCESS;
		// Once the gate is open again the mover has given up. Then captures may begin, which a wait would end.
		for (int i = 0; i < GP_CONTEXTS && gp_memory_closed(); i++) {
			CUresult result = synchronize(&gp_context[i]);
			worst = worst ? worst : result;
		}
		answer = worst;
		answered = number;
		gp_futex_wake(&answered, INT_MAX, false);
	}
	return NULL;
}

static bool start(void)
{
	pthread_t thread;
	runs = runs || (gp_thread_start(&thread, drain_forever, NULL) && !pthread_detach(thread));
	return runs;
}

void gp_memory_make_drain(void) { start(); }

static bool wait_answer(uint64_t deadline_ns)
{
	uint32_t seen;
	while ((seen = answered) != asked) {
		uint64_t now = gp_now_ns();
		if (now >= deadline_ns)
			return false;
		gp_futex_wait(&answered, seen, deadline_ns - now, false);
	}
	return true;
}

// A context without a place in the table is not waited for.
static bool all_known(void)
{
	for (int i = 0; i < GP_CONTEXTS; i++)
		if (!gp_context[i].handle)
			return true;
	return false;
}

bool gp_memory_draining(void) { return answered != asked; }

bool gp_memory_drain(uint64_t deadline_ns, CUresult *result)
{
	*result = CUDA_SUCCESS;
	if (!all_known() || !start() || !wait_answer(deadline_ns)) // the thread may be busy with an earlier drain
		return false;
	asked++;
	gp_futex_wake(&asked, 1, false);
	if (!wait_answer(deadline_ns))
		return false;
	*result = answer;
	return true;
}
