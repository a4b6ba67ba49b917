// whole.c - waits of whole contexts for an event (cuCtxWaitEvent, cuGreenCtxWaitEvent).
//
// All that the context gets from then on waits: on streams that come later, too, and on those of the library. The event may wait for the
// program. So until it is reached nothing of the context is logged, and no stop puts anything there. Whether it is reached, a record on the
// library's own stream tells, behind the wait.
//
// The call counts itself in under_way, then takes each domain's lock, and is counted until the record is owed there. So who is to log
// something, under that lock, has done so before and is waited for, or sees the count, or what is owed.
//
// Once nothing is left that could be cut, it counts itself in entering, too, then looks whether a domain is stopped. Who stops one makes the
// epoch odd, then looks at that count, and at what is owed. So either the stop cuts nothing, or the call waits for its end, as long as its
// patience lasts.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"

static _Atomic uint32_t under_way, entering;
static __thread bool counts __attribute__((tls_model("initial-exec"))),
	enters __attribute__((tls_model("initial-exec"))); // the calling thread; left by longjmp, its next call does

// NULL: not known.
static CUcontext named(const struct gp_operation *o)
{
	CUcontext context = o->whole;
	if (!context && (!gp_driver.cuCtxFromGreenCtx || gp_driver.cuCtxFromGreenCtx(&context, o->whole_green)))
		return NULL;
	return context;
}

static bool concerns(CUcontext context, const struct gp_domain *d)
{
	return d->context && (!context || d->whole == gp_whole_context(context));
}

CUcontext blp_begin_whole(const struct gp_operation *o)
{
	if (o->work == GP_AWAIT) {
		under_way += !counts;
		counts = true;
		for (int i = 0; i < BLP_DOMAINS && blp_domains[i]; i++) {
			pthread_mutex_lock(&blp_domains[i]->lock); // who did not see that has finished
			pthread_mutex_unlock(&blp_domains[i]->lock);
		}
	}
	return named(o);
}

static struct gp_domain *stopped(CUcontext context)
{
	for (int i = 0; i < BLP_DOMAINS && blp_domains[i]; i++)
		if (blp_domains[i]->epoch % 2 && concerns(context, blp_domains[i]))
			return blp_domains[i];
	return NULL;
}

void blp_enter_whole(CUcontext context)
{
	uint64_t deadline = blp_patience();
	struct gp_domain *d;
	entering += !enters;
	enters = true;
	while ((d = stopped(context)) && gp_now_ns() < deadline) {
		entering--;
		pthread_mutex_lock(&d->lock);
		blp_wait_resumed(d, deadline);
		pthread_mutex_unlock(&d->lock);
		entering++;
	}
}

// d->lock is held.
static void record(struct gp_domain *d)
{
	bool pushed;
	if (!blp_enter(d->context, &pushed))
		return;
	CUresult result = gp_driver.cuEventRecord(d->awaited, d->stream);
	blp_leave(pushed);
	if (result)
		blp_give_up(d, "cuEventRecord", result);
	else
		d->awaits = BLP_RECORDED;
}

// One record at a time: a program may make many such calls, and the queue of the library's stream has an end. The next one is behind all of
// them.
static bool still_awaits(struct gp_domain *d)
{
	if (d->awaits & BLP_RECORDED && blp_query(d->awaited) != CUDA_ERROR_NOT_READY)
		d->awaits &= ~(uint32_t)BLP_RECORDED;
	if (d->awaits == BLP_OWED && !d->given_up && !blp_driver_waits(d))
		record(d);
	d->tainted -= !d->awaits;
	return d->awaits;
}

bool blp_awaits(struct gp_domain *d) { return (d->awaits && still_awaits(d)) || under_way; }

bool blp_may_await(const struct gp_domain *d) { return entering || d->awaits; } // in this order

void blp_end_whole(const struct gp_operation *o)
{
	CUcontext context = counts && !o->result ? named(o) : NULL;
	for (int i = 0; i < BLP_DOMAINS && blp_domains[i] && counts && !o->result; i++) {
		struct gp_domain *d = blp_domains[i];
		pthread_mutex_lock(&d->lock);
		if (concerns(context, d)) {
			d->tainted += !d->awaits;
			d->awaits |= BLP_OWED;
			blp_awaits(d);
		}
		pthread_mutex_unlock(&d->lock);
	}
	entering -= enters;
	under_way -= counts;
	counts = enters = false;
}
