// green.c - green contexts: streams of the primary context that have a part of the SMs. They share its memory and its kernels, and a thread
// that waits for it waits for them. sms.c has the effect of the part.
#include "sim.h"

#include <stdlib.h>

CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice);

typedef struct CUgreenCtx_st *CUgreenCtx;
struct resource { // CUdevResource of CUDA 12.4 to 13.0
	int type;
	int device;
	struct sm_set set; // ours: within what the header calls padding
	unsigned char padding[64];
	unsigned sms, least, multiple; // smCount, minSmPartitionSize, smCoscheduledAlignment
	unsigned char more[36];
};
_Static_assert(sizeof(struct resource) == 144 && offsetof(struct resource, sms) == 96, "CUdevResource");
enum { RESOURCE_SM = 1 };                             // CU_DEV_RESOURCE_TYPE_SM
enum { IGNORE_SM_COSCHEDULING = 1 };                  // of a split
enum { DEFAULT_STREAM = 1, STREAM_NON_BLOCKING = 1 }; // of a green context, and of its streams: neither may lack

static void fill_in(struct resource *r, int device, struct sm_set set)
{
	*r = (struct resource){.type = RESOURCE_SM,
			       .device = device,
			       .set = set,
			       .sms = sms_in(&set),
			       .least = (unsigned)machine.green_least,
			       .multiple = (unsigned)machine.green_multiple};
}

CALL(cuDeviceGetDevResource, (CUdevice d, struct resource *out, int type), (d, out, type))
{
	CUresult r = check_device(d, out);
	if (r == CUDA_SUCCESS && type != RESOURCE_SM)
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS)
		fill_in(out, d, (struct sm_set){{0}});
	return r;
}

CALL(cuDevSmResourceSplitByCount,
     (struct resource * group, unsigned *groups, const struct resource *all, struct resource *left, unsigned flags,
      unsigned count),
     (group, groups, all, left, flags, count))
{
	if (!groups || !all || all->type != RESOURCE_SM || flags & ~(unsigned)IGNORE_SM_COSCHEDULING || !count)
		return CUDA_ERROR_INVALID_VALUE;
	unsigned multiple = flags ? 2 : (unsigned)machine.green_multiple; // an SM has a twin, with which it is scheduled
	count = (count + multiple - 1) / multiple * multiple;
	unsigned most = all->sms / count;
	if (!most || (group && !*groups))
		return CUDA_ERROR_INVALID_VALUE;
	*groups = group && *groups < most ? *groups : most;
	for (unsigned i = 0; group && i < *groups; i++)
		fill_in(&group[i], all->device, sms_from(&all->set, i * count, count));
	if (left && *groups * count < all->sms)
		fill_in(left, all->device, sms_from(&all->set, *groups * count, all->sms));
	else if (left)
		*left = (struct resource){0};
	return CUDA_SUCCESS;
}

// A description is the resources together. The API has no function to free one.
CALL(cuDevResourceGenerateDesc, (struct resource * *out, struct resource *of, unsigned count), (out, of, count))
{
	if (!out || !of || !count)
		return CUDA_ERROR_INVALID_VALUE;
	struct sm_set set = of->set;
	for (unsigned i = 0; i < count; i++) {
		if (of[i].type != RESOURCE_SM || of[i].device != of->device)
			return CUDA_ERROR_INVALID_VALUE;
		for (size_t k = 0; k < sizeof set.bit / sizeof *set.bit; k++)
			set.bit[k] |= of[i].set.bit[k];
	}
	if (!(*out = malloc(sizeof **out)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	fill_in(*out, of->device, set);
	return CUDA_SUCCESS;
}

static CUresult make(CUgreenCtx *out, const struct resource *of, struct CUctx_st *c)
{
	CUgreenCtx g = calloc(1, sizeof *g);
	CUcontext as = calloc(1, sizeof *as);
	CUresult r = enter(NULL);
	if (r == CUDA_SUCCESS)
		call_wait(c, CALL_GREEN);
	if (r == CUDA_SUCCESS && (!g || !as || !sms_make(c) || !memory_charge(c->device, machine.green_bytes)))
		r = leave(CUDA_ERROR_OUT_OF_MEMORY);
	if (r != CUDA_SUCCESS) {
		free(g);
		free(as);
		return r;
	}
	*as = (struct CUctx_st){.of = c, .green = g, .device = c->device, .id = c->id, .flags = c->flags};
	*g = (struct CUgreenCtx_st){
		.ctx = c, .as_context = as, .sms = of->set, .own = stream_new(c, STREAM_NON_BLOCKING, 0)};
	if (!g->own)
		abort();
	stream_of_green(g->own, g);
	handle_add(as, H_CONTEXT);
	handle_add(g, H_GREEN);
	*out = g;
	return leave(CUDA_SUCCESS);
}

CALL(cuGreenCtxCreate, (CUgreenCtx * out, const struct resource *of, CUdevice d, unsigned flags), (out, of, d, flags))
{
	CUcontext c;
	CUresult r = out && of && of->device == d && flags == DEFAULT_STREAM ? check_device(d, out) :
									       CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS)
		r = cuDevicePrimaryCtxRetain(&c, d);
	if (r != CUDA_SUCCESS)
		return r;
	sim_take(machine.green_ns);
	r = make(out, of, c);
	if (r != CUDA_SUCCESS)
		cuDevicePrimaryCtxRelease_v2(d);
	return r;
}

// enter_handle, for a green context whose primary context lives.
static CUresult enter_green(CUgreenCtx g, const void *out)
{
	CUresult r = enter_handle(g, H_GREEN, out);
	return r == CUDA_SUCCESS && !handle_is(g->ctx, H_CONTEXT) ? leave(CUDA_ERROR_INVALID_CONTEXT) : r;
}

// Its work goes on. Its streams are good for nothing but to be destroyed.
CALL(cuGreenCtxDestroy, (CUgreenCtx g), (g))
{
	CUresult r = enter_handle(g, H_GREEN, &g);
	if (r != CUDA_SUCCESS)
		return r;
	int device = g->as_context->device;
	if (handle_is(g->ctx, H_CONTEXT)) {
		for (struct CUstream_st *s = g->ctx->streams; s; s = s->next)
			s->detached |= s->green == g;
		g->own->destroyed = true; // the executor frees it
		tell_executor(g->ctx->bell);
	}
	memory_discharge(device, machine.green_bytes);
	handle_remove(g->as_context);
	handle_remove(g);
	free(g->as_context);
	free(g);
	leave(CUDA_SUCCESS);
	return cuDevicePrimaryCtxRelease_v2(device);
}

CALL(cuGreenCtxStreamCreate, (CUstream * out, CUgreenCtx g, unsigned flags, int priority), (out, g, flags, priority))
{
	CUresult r = flags == STREAM_NON_BLOCKING ? enter_green(g, out) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	if (!(*out = stream_new(g->ctx, flags,
				priority > 0              ? 0 :
				priority < 1 - PRIORITIES ? 1 - PRIORITIES :
							    priority)))
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	stream_of_green(*out, g);
	handle_add(*out, H_STREAM);
	return leave(CUDA_SUCCESS);
}

CALL(cuStreamGetGreenCtx, (CUstream s, CUgreenCtx *out), (s, out))
{
	struct CUstream_st *st;
	CUresult r = out ? enter_stream(s, &st) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	bool special = !handle_is(s, H_STREAM); // that of the current context
	*out = !special ? st->green : context_top()->of ? context_top()->green : NULL;
	return leave(CUDA_SUCCESS);
}

CALL(cuCtxFromGreenCtx, (CUcontext * out, CUgreenCtx g), (out, g))
{
	CUresult r = enter_green(g, out);
	if (r != CUDA_SUCCESS)
		return r;
	*out = g->as_context;
	return leave(CUDA_SUCCESS);
}

CALL(cuCtxGetDevResource, (CUcontext c, struct resource *out, int type), (c, out, type))
{
	CUresult r = type == RESOURCE_SM ? enter_handle(c, H_CONTEXT, out) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	fill_in(out, c->device, c->of ? c->green->sms : (struct sm_set){{0}});
	return leave(CUDA_SUCCESS);
}

CALL(cuGreenCtxGetDevResource, (CUgreenCtx g, struct resource *out, int type), (g, out, type))
{
	CUresult r = type == RESOURCE_SM ? enter_green(g, out) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	fill_in(out, g->ctx->device, g->sms);
	return leave(CUDA_SUCCESS);
}

// ---- events: behind all that its streams have, and ahead of all that they get

CALL(cuGreenCtxRecordEvent, (CUgreenCtx g, CUevent e), (g, e))
{
	CUresult r = enter_green(g, &g);
	if (r != CUDA_SUCCESS)
		return r;
	if (!handle_is(e, H_EVENT))
		return leave(CUDA_ERROR_INVALID_HANDLE);
	struct work w = {.kind = OP_MARK};
	for (struct CUstream_st *s = g->ctx->streams; s; s = s->next)
		if (s->green == g && s != g->own)
			op_unref(stream_submit(g->own, &w, s->last));
	op_unref(e->op);
	e->op = stream_submit(g->own, &w, NULL);
	e->capture = NULL;
	return leave(CUDA_SUCCESS);
}

CALL(cuGreenCtxWaitEvent, (CUgreenCtx g, CUevent e), (g, e))
{
	CUresult r = enter_green(g, &g);
	if (r != CUDA_SUCCESS)
		return r;
	if (!handle_is(e, H_EVENT))
		return leave(CUDA_ERROR_INVALID_HANDLE);
	struct work w = {.kind = OP_MARK};
	for (struct CUstream_st *s = g->ctx->streams; s && e->op; s = s->next)
		if (s->green == g)
			op_unref(stream_submit(s, &w, e->op));
	return leave(CUDA_SUCCESS);
}
