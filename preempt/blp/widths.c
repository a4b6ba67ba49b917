// widths.c - streams of a part of the SMs, on which a stopped domain goes on: narrow.c.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"

enum {
	ASKED_NS = 1000 * 1000,
	SM_RESOURCE = 1, // CU_DEV_RESOURCE_TYPE_SM
	GREEN_DEFAULT_STREAM = 1,
};

uint32_t blp_width(const struct gp_domain *d)
{
	return d->reasons == GP_BLP_ASKED && d->narrow.usable == BLP_USABLE ? d->narrow.asked : 0;
}

// A green context is of the primary context, and nothing else.
static bool is_primary(CUcontext context, CUdevice device)
{
	CUcontext primary = NULL;
	unsigned flags;
	int active = 0;
	if (gp_driver.cuDevicePrimaryCtxGetState(device, &flags, &active) || !active || // else the next call would make it
	    gp_driver.cuDevicePrimaryCtxRetain(&primary, device))
		return false;
	gp_driver.cuDevicePrimaryCtxRelease(device);
	return primary == context;
}

static bool has_functions(void)
{
	return gp_driver.cuDevicePrimaryCtxGetState && gp_driver.cuDevicePrimaryCtxRetain &&
	       gp_driver.cuDevicePrimaryCtxRelease && gp_driver.cuCtxRecordEvent && gp_driver.cuDeviceGetDevResource &&
	       gp_driver.cuDevSmResourceSplitByCount && gp_driver.cuDevResourceGenerateDesc &&
	       gp_driver.cuGreenCtxCreate && gp_driver.cuGreenCtxDestroy && gp_driver.cuGreenCtxStreamCreate &&
	       gp_driver.cuOccupancyMaxActiveBlocksPerMultiprocessor;
}

// A stream of so many SMs in a context, which is current. The driver makes a green context when all work of the context is over.
static CUresult make_queue(const struct gp_domain *d, CUcontext context, uint32_t sms, struct blp_narrow_queue *q)
{
	struct gp_resource all[2] = {0}, group[2] = {0}; // a driver may write more than it did when this was written
	unsigned groups = 1;
	int lowest = 0, highest = 0;
	void *description = NULL;
	CUdevice device;
	CUresult result;

	if (!has_functions())
		return CUDA_ERROR_NOT_SUPPORTED;
	if ((result = gp_driver.cuCtxGetDevice(&device)) ||
	    (result = gp_driver.cuCtxGetStreamPriorityRange(&lowest, &highest)))
		return result;
	if (!is_primary(context, device))
		return CUDA_ERROR_NOT_SUPPORTED;
	if ((result = gp_driver.cuDeviceGetDevResource(device, all, SM_RESOURCE)))
		return result;
	if (all->sms != (uint32_t)d->gpu->sms) // the layout is another one, or others have some SMs
		return CUDA_ERROR_NOT_SUPPORTED;
	if ((result = gp_driver.cuDevSmResourceSplitByCount(group, &groups, all, NULL, 0, sms)))
		return result;
	if (!groups || group->sms > sms)
		return CUDA_ERROR_INVALID_VALUE;
	if ((result = gp_driver.cuDevResourceGenerateDesc(&description, group, 1)) ||
	    (result = gp_driver.cuGreenCtxCreate(&q->green, description, device, GREEN_DEFAULT_STREAM)))
		return result;
	if ((result = gp_driver.cuGreenCtxStreamCreate(&q->stream, q->green, CU_STREAM_NON_BLOCKING, lowest))) {
		gp_driver.cuGreenCtxDestroy(q->green);
		return result;
	}
	q->sms = sms;
	return 0;
}

static void refuse(struct gp_domain *d) { d->narrow.usable = BLP_REFUSED; }

static CUresult make_events(struct gp_domain *d)
{
	CUresult result = 0;
	if (!d->narrow.idle)
		result = gp_driver.cuEventCreate(&d->narrow.idle, CU_EVENT_DISABLE_TIMING);
	if (!result && !d->narrow.end)
		result = gp_driver.cuEventCreate(&d->narrow.end, CU_EVENT_DISABLE_TIMING);
	return result;
}

// The widest queue of at most so many SMs; NULL: there is none.
struct blp_narrow_queue *blp_widest(struct gp_domain *d, uint32_t sms)
{
	struct blp_narrow_queue *found = NULL;
	for (struct blp_narrow_queue *q = d->narrow.queue; q < d->narrow.queue + d->narrow.queues; q++)
		if (q->sms <= sms && (!found || q->sms > found->sms))
			found = q;
	return found;
}

static bool has(struct gp_domain *d, uint32_t sms)
{
	const struct blp_narrow_queue *q = blp_widest(d, sms);
	return q && q->sms == sms;
}

static void destroy(struct blp_narrow_queue *q)
{
	gp_driver.cuStreamDestroy(q->stream);
	gp_driver.cuGreenCtxDestroy(q->green);
}

// False: there are too many.
static bool add(struct gp_domain *d, struct blp_narrow_queue made)
{
	if (d->narrow.queues == BLP_WIDTHS)
		return false;
	d->narrow.queue[d->narrow.queues] = made;
	d->narrow.queues++;
	return true;
}

// Records an event behind all that a context has, which is current. While something is captured the driver refuses, and ends the captures. So
// none begins until it has answered. False: not now.
bool blp_record_whole(CUcontext context, CUevent event)
{
	int cancel;
	if (gp_capturing() || !gp_captures_keep_off(&cancel))
		return false;
	CUresult result = gp_driver.cuCtxRecordEvent(context, event);
	gp_captures_let_on(cancel);
	return !result;
}

// Whether all work of a context, which is current, is over by then.
static bool is_all_over(CUcontext context, CUevent event, uint64_t until_ns)
{
	CUresult result;
	while (!blp_record_whole(context, event)) {
		if (gp_now_ns() >= until_ns)
			return false;
		gp_nap(BLP_RECORDED_NS);
	}
	while ((result = blp_query(event)) == CUDA_ERROR_NOT_READY && gp_now_ns() < until_ns)
		gp_nap(BLP_RECORDED_NS);
	return !result;
}

// A queue that the program asks for, in the calling thread. CUDA_ERROR_NOT_READY: the context has work. The driver would wait for it, and
// it may wait for work that a stop holds back. It is asked twice: the call is counted only where it will not take long, since stops wait
// for its end.
CUresult blp_make_width(struct gp_domain *d, uint32_t sms)
{
	struct blp_narrow_queue made = {0};
	CUevent over;
	CUdevice device;
	pthread_mutex_lock(&d->control);
	CUcontext context = d->context;
	bool there = !context || d->given_up || has(d, sms), full = d->narrow.queues == BLP_WIDTHS;
	pthread_mutex_unlock(&d->control);
	if (there || full)
		return there ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
	if (!has_functions() || gp_driver.cuCtxGetDevice(&device) || !is_primary(context, device))
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult result = gp_driver.cuEventCreate(&over, CU_EVENT_DISABLE_TIMING);
	if (result)
		return result;
	result = CUDA_ERROR_NOT_READY;
	if (is_all_over(context, over, gp_now_ns() + ASKED_NS)) {
		gp_blp_loading(true);
		if (is_all_over(context, over, gp_now_ns() + BLP_RECORDED_NS))
			result = make_queue(d, context, sms, &made);
		gp_blp_loading(false);
	}
	gp_driver.cuEventDestroy(over);
	if (result)
		return result;
	pthread_mutex_lock(&d->control);
	if (d->context != context)
		result = CUDA_ERROR_INVALID_CONTEXT;
	else if (!(result = make_events(d)) && !add(d, made))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_unlock(&d->control);
	if (result)
		destroy(&made);
	return result;
}

void blp_release_narrow(struct gp_domain *d)
{
	for (uint32_t i = 0; i < d->narrow.queues; i++)
		destroy(&d->narrow.queue[i]);
	if (d->narrow.idle)
		gp_driver.cuEventDestroy(d->narrow.idle);
	if (d->narrow.end)
		gp_driver.cuEventDestroy(d->narrow.end);
}

void blp_count_beside(struct gp_domain *d, struct blp_entry *e, uint64_t ran)
{
	if (e->beside && ran > e->ran)
		gp_count(&d->gpu->stops.narrow_blocks, ran - e->ran);
	e->beside = false;
}

void blp_leave_narrow(struct gp_domain *d)
{
	gp_count(&d->gpu->stops.narrow_ns, gp_now_ns() - d->narrow.since_ns);
	d->narrow.was = d->narrow.on;
	d->narrow.on = NULL;
	blp_become(d, BLP_HELD);
}

bool blp_keep_narrow(struct gp_domain *d)
{
	if (!d->narrow.was)
		return true;
	refuse(d);
	BLP_TRY(cuEventRecord, d->narrow.end, d->narrow.was->stream);
	d->narrow.usable = BLP_LINGERS;
	return true;
}

bool blp_lingers(struct gp_domain *d)
{
	if (d->narrow.usable == BLP_LINGERS && !blp_query(d->narrow.end))
		d->narrow.usable = BLP_REFUSED;
	return d->narrow.usable == BLP_LINGERS;
}

bool blp_come_behind_narrow(struct gp_domain *d, const struct blp_stream *s)
{
	if (d->narrow.was && !blp_is_orphan(s))
		BLP_TRY(cuStreamWaitEvent, s->handle, d->narrow.end, 0);
	return true;
}
