// contexts.c - contexts: how they begin and end, which is current, and what they are.
#include "sim.h"

#include <stdlib.h>

static uint64_t next_context = 1;

// The caller does not hold sim_lock: RM calls leave the library.
static CUresult context_make(int device, unsigned flags, bool is_primary, struct CUctx_st **out)
{
	int tsg = engine_add(device, machine.timeslice_us * 1000);
	if (tsg < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct CUctx_st *c = calloc(1, sizeof *c);
	bool late = is_primary && sim_late_contexts();
	struct rm_context *rm = c && !late ? rm_context_create(device, tsg) : NULL;
	if (!c || (!rm && !late)) {
		free(c);
		engine_remove(device, tsg);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	c->device = device;
	c->tsg = tsg;
	c->flags = flags;
	c->primary = is_primary;
	c->late = late;
	c->rm = rm;
	pthread_mutex_lock(&sim_lock);
	c->id = next_context++;
	c->legacy = stream_new(c, 0, 0);
	if (!c->legacy || context_start(c) != 0) {
		sim_unlock();
		rm_context_destroy(rm);
		engine_remove(device, tsg);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	c->legacy->legacy = true;
	c->next = sim_contexts;
	sim_contexts = c;
	handle_add(c, H_CONTEXT);
	sim_unlock();
	*out = c;
	return CUDA_SUCCESS;
}

// Takes the memory of a context, or gives it back.
static bool context_memory(int device, bool take)
{
	pthread_mutex_lock(&sim_lock);
	bool fits = !take || memory_charge(device, sim_context_bytes());
	if (!take)
		memory_discharge(device, sim_context_bytes());
	sim_unlock();
	return fits;
}

static CUresult context_new(int device, unsigned flags, bool is_primary, struct CUctx_st **out)
{
	if (!context_memory(device, true))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = context_make(device, flags, is_primary, out);
	if (r != CUDA_SUCCESS)
		context_memory(device, false);
	return r;
}

// The caller holds sim_lock, which is released.
static CUresult context_end(struct CUctx_st *c)
{
	context_wait(c);
	context_stop(c);
	memory_owner_ends(c);
	arrays_owner_ends(c);
	pools_synchronized();
	memory_discharge(c->device, sim_context_bytes());
	memory_discharge(c->device, c->code_bytes);
	handle_remove(c);
	for (struct CUctx_st **at = &sim_contexts; *at; at = &(*at)->next)
		if (*at == c) {
			*at = c->next;
			break;
		}
	while (c->streams) {
		struct CUstream_st *s = c->streams;
		c->streams = s->next;
		handle_remove(s);
		op_unref(s->last);
		free(s);
	}
	sms_free(c);
	sim_unlock();
	engine_remove(c->device, c->tsg);
	rm_context_destroy(c->rm);
	free(c);
	return CUDA_SUCCESS;
}

// ---- the primary context of each device

static struct CUctx_st *primary[8];
static int primary_refs[8];
static unsigned primary_flags[8];
static pthread_mutex_t primary_lock = PTHREAD_MUTEX_INITIALIZER; // before sim_lock

CALL(cuDevicePrimaryCtxRetain, (CUcontext * out, CUdevice d), (out, d))
{
	CUresult r = check_device(d, out);
	if (r != CUDA_SUCCESS)
		return r;
	pthread_mutex_lock(&primary_lock);
	if (!primary[d])
		r = context_new(d, primary_flags[d], true, &primary[d]);
	if (r == CUDA_SUCCESS) {
		primary_refs[d]++;
		*out = primary[d];
	}
	pthread_mutex_unlock(&primary_lock);
	return r;
}

static CUresult primary_drop(CUdevice d, bool reset)
{
	CUresult r = check_device(d, &d);
	if (r != CUDA_SUCCESS)
		return r;
	pthread_mutex_lock(&primary_lock);
	if (!primary[d] || (!reset && primary_refs[d] == 0)) {
		pthread_mutex_unlock(&primary_lock);
		return reset ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
	}
	primary_refs[d] = reset ? 0 : primary_refs[d] - 1;
	if (primary_refs[d] == 0 && (r = enter(NULL)) == CUDA_SUCCESS) {
		struct CUctx_st *c = primary[d];
		primary[d] = NULL;
		r = context_end(c);
	}
	pthread_mutex_unlock(&primary_lock);
	return r;
}

CALL(cuDevicePrimaryCtxRelease_v2, (CUdevice d), (d)) { return primary_drop(d, false); }

CALL(cuDevicePrimaryCtxReset_v2, (CUdevice d), (d)) { return primary_drop(d, true); }

CALL(cuDevicePrimaryCtxGetState, (CUdevice d, unsigned *flags, int *active), (d, flags, active))
{
	CUresult r = check_device(d, active);
	if (r == CUDA_SUCCESS) {
		*active = primary[d] != NULL;
		if (flags)
			*flags = primary_flags[d];
	}
	return r;
}

CALL(cuDevicePrimaryCtxSetFlags_v2, (CUdevice d, unsigned flags), (d, flags))
{
	CUresult r = check_device(d, &d);
	if (r == CUDA_SUCCESS)
		primary_flags[d] = flags;
	return r;
}

// ---- contexts of the program

static CUresult create_context(CUcontext *out, unsigned flags, CUdevice d)
{
	CUresult r = check_device(d, out);
	if (r == CUDA_SUCCESS && context_stack_full())
		r = CUDA_ERROR_OUT_OF_MEMORY;
	if (r == CUDA_SUCCESS)
		r = context_new(d, flags, false, out);
	if (r == CUDA_SUCCESS)
		context_push(*out);
	return r;
}

CALL(cuCtxCreate_v2, (CUcontext * out, unsigned flags, CUdevice d), (out, flags, d))
{
	return create_context(out, flags, d);
}

CALL(cuCtxCreate_v4, (CUcontext * out, void *parameters, unsigned flags, CUdevice d), (out, parameters, flags, d))
{
	(void)parameters;
	return create_context(out, flags, d);
}

CALL(cuCtxDestroy_v2, (CUcontext c), (c))
{
	CUresult r = enter(NULL);
	if (r != CUDA_SUCCESS)
		return r;
	if (!handle_is(c, H_CONTEXT) || c->primary || c->of)
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	if (context_top() == c)
		context_pop();
	return context_end(c);
}

CALL(cuCtxAttach, (CUcontext * out, unsigned flags), (out, flags))
{
	struct CUctx_st *c;
	CUresult r = !out || flags ? CUDA_ERROR_INVALID_VALUE : enter(&c);
	if (r != CUDA_SUCCESS)
		return r;
	if (c->primary || context_top() != c)
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	c->attached++;
	*out = c;
	return leave(CUDA_SUCCESS);
}

// cuda.h: "Decrements the usage count of the context ctx, and destroys the context if the usage count goes to 0"; it must be current.
CALL(cuCtxDetach, (CUcontext c), (c))
{
	CUresult r = enter(NULL);
	if (r != CUDA_SUCCESS)
		return r;
	if (!handle_is(c, H_CONTEXT) || c->primary || c->of || context_top() != c)
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	if (c->attached) {
		c->attached--;
		return leave(CUDA_SUCCESS);
	}
	context_pop();
	return context_end(c);
}

CALL(cuCtxSetCurrent, (CUcontext c), (c))
{
	CUresult r = enter(NULL);
	if (r != CUDA_SUCCESS)
		return r;
	if (c && !handle_is(c, H_CONTEXT))
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	context_pop();
	if (c)
		context_push(c);
	return leave(CUDA_SUCCESS);
}

// Initialises primary contexts, which then have channels. Runtimes do that by a call that is not intercepted. No context comes or goes
// meanwhile.
API void simcuda_initialise(void)
{
	for (struct CUctx_st *c = sim_contexts; c; c = c->next)
		if (c->late)
			c->rm = rm_context_create(c->device, c->tsg);
	if (enter(NULL) != CUDA_SUCCESS)
		return;
	for (struct CUctx_st *c = sim_contexts; c; c = c->next)
		c->late = c->late && !c->rm;
	leave(CUDA_SUCCESS);
}

// Makes a context current, or a new one where that is NULL, by a call that is not intercepted.
API CUresult simcuda_enter(CUcontext *c) { return *c ? cuCtxSetCurrent(*c) : create_context(c, 0, 0); }

CALL(cuCtxGetCurrent, (CUcontext * out), (out))
{
	CUresult r = out ? enter(NULL) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	*out = context_top();
	return leave(CUDA_SUCCESS);
}

CALL(cuCtxPushCurrent_v2, (CUcontext c), (c))
{
	CUresult r = enter(NULL);
	if (r != CUDA_SUCCESS)
		return r;
	if (!handle_is(c, H_CONTEXT) || context_stack_full())
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	context_push(c);
	return leave(CUDA_SUCCESS);
}

CALL(cuCtxPopCurrent_v2, (CUcontext * out), (out))
{
	CUresult r = enter(NULL);
	if (r != CUDA_SUCCESS)
		return r;
	struct CUctx_st *c = context_pop();
	if (!c)
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	if (out)
		*out = c;
	return leave(CUDA_SUCCESS);
}

// ---- what a context is

CALL(cuCtxGetDevice, (CUdevice * out), (out))
{
	struct CUctx_st *c;
	CUresult r = out ? enter(NULL) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	if (!(c = context_current()))
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	if (c->error)
		return leave(c->error);
	*out = c->device; // also of one that is not initialised
	return leave(CUDA_SUCCESS);
}

CALL(cuCtxGetFlags, (unsigned *out), (out))
{
	struct CUctx_st *c;
	CUresult r = out ? enter(&c) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	*out = c->flags;
	return leave(CUDA_SUCCESS);
}

// cuda.h lets a context change these flags. Only SYNC_MEMOPS is kept.
CALL(cuCtxSetFlags, (unsigned flags), (flags))
{
	enum { SYNC_MEMOPS = 0x80, KNOWN = 0xff };
	struct CUctx_st *c;
	CUresult r = flags & ~KNOWN ? CUDA_ERROR_INVALID_VALUE : enter(&c);
	if (r != CUDA_SUCCESS)
		return r;
	c->flags = (c->flags & ~SYNC_MEMOPS) | (flags & SYNC_MEMOPS);
	return leave(CUDA_SUCCESS);
}

CALL(cuCtxGetApiVersion, (CUcontext given, unsigned *out), (given, out))
{
	struct CUctx_st *c;
	CUresult r = !out ? CUDA_ERROR_INVALID_VALUE : enter(given ? NULL : &c);
	if (r != CUDA_SUCCESS)
		return r;
	if (given && !handle_is(given, H_CONTEXT))
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	*out = 3020;
	return leave(CUDA_SUCCESS);
}

CALL(cuCtxGetId, (CUcontext given, unsigned long long *out), (given, out))
{
	struct CUctx_st *c = given;
	CUresult r = !out ? CUDA_ERROR_INVALID_VALUE : enter(given ? NULL : &c);
	if (r != CUDA_SUCCESS)
		return r;
	if (!handle_is(c, H_CONTEXT))
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	*out = c->id;
	return leave(CUDA_SUCCESS);
}

CALL(cuCtxGetStreamPriorityRange, (int *least, int *greatest), (least, greatest))
{
	struct CUctx_st *c;
	CUresult r = enter(&c);
	if (r != CUDA_SUCCESS)
		return r;
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return leave(CUDA_SUCCESS);
}

CALL(cuCtxSynchronize, (void), ())
{
	struct CUctx_st *c;
	CUresult r = enter(&c);
	if (r != CUDA_SUCCESS)
		return r;
	if (capture_in_context(c, false)) {
		capture_invalidate(c, false);
		return leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	}
	call_wait(c, CALL_SYNCHRONIZE);
	pools_synchronized();
	return leave(c->error);
}
