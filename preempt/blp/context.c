// context.c - a thread makes the context of a domain current, or gives the domain up.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"

bool blp_enter(CUcontext context, bool *pushed)
{
	CUcontext current = NULL;
	*pushed = false;
	if (!gp_driver.cuCtxGetCurrent(&current) && current == context)
		return true;
	return *pushed = gp_driver.cuCtxPushCurrent(context) == CUDA_SUCCESS;
}

void blp_leave(bool pushed)
{
	CUcontext popped;
	if (pushed)
		gp_driver.cuCtxPopCurrent(&popped);
}

void blp_give_up(struct gp_domain *d, const char *call, CUresult result)
{
	CUresult none = 0;
	if (d->given_up)
		return;
	// Where the context is gone, so is what the log holds: nothing is lost that the driver would have kept.
	if (!gp_blp_is_gone(result) && __atomic_compare_exchange_n((CUresult *)&d->error, &none, result, false,
								   __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
		d->gpu->refusal = result;
		d->gpu->refused = call;
		gp_count(&d->gpu->stops.given_up, 1);
	}
	d->given_up = 1; // a thread that sees this finds the error
	gp_ring_windows(d->gpu);
}
