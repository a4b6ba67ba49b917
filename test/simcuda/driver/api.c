// api.c - the exported driver API: initialisation, devices, contexts, streams, events, memory, launches. Other files have the rest.
#define _GNU_SOURCE
#include "../../../kernels/guard/guard.h"
#include "sim.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ---- initialisation, errors

static int device_count;
static struct CUctx_st *primary[8];
static int primary_refs[8];
static unsigned primary_flags[8];
static uint64_t next_context = 1;

// The driver names its threads, by the numbers that the process's own PID namespace gives them: /proc must be of that namespace.
static bool names_threads(void)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/task/%d/comm", getpid(), gettid());
	int fd = open(path, O_RDWR | O_CLOEXEC);
	char name[16];
	ssize_t n = fd < 0 ? -1 : read(fd, name, sizeof name);
	bool named = n > 0 && write(fd, name, (size_t)n - 1) == n - 1; // the name that it has
	if (fd >= 0)
		close(fd);
	return named;
}

CALL(cuInit, (unsigned flags), (flags))
{
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (sim_forked)
		return CUDA_ERROR_NOT_INITIALIZED;
	static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
	pthread_mutex_lock(&once);
	CUresult r = CUDA_SUCCESS;
	if (!faults_understood())
		r = 999; // CUDA_ERROR_UNKNOWN
	if (getenv("SIMCUDA_NAME_THREADS") && !names_threads())
		r = 304; // CUDA_ERROR_OPERATING_SYSTEM
	if (!sim_initialized && r == CUDA_SUCCESS) {
		mps_connect();
		device_count = sim_devices();
		for (int i = 0; i < device_count && r == CUDA_SUCCESS; i++)
			if (engine_attach(i) != 0) {
				fprintf(stderr, "simulated CUDA driver: cannot open the shared state of device %d\n", i);
				r = 999;
			}
		if (device_count == 0)
			r = 100; // CUDA_ERROR_NO_DEVICE
		if (r == CUDA_SUCCESS && rm_open() != 0)
			r = 999;
		sim_initialized = r == CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&once);
	return r;
}

CALL(cuDriverGetVersion, (int *version), (version))
{
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = sim_driver_version();
	return CUDA_SUCCESS;
}

static const struct {
	CUresult error;
	const char *name, *text;
} errors[] = {
	{0, "CUDA_SUCCESS", "no error"},
	{1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	{2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	{3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
	{4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
	{100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	{101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
	{200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
	{201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
	{209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
	{218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
	{221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "PTX JIT compiler library not found"},
	{301, "CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
	{400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
	{500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
	{600, "CUDA_ERROR_NOT_READY", "device not ready"},
	{700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
	{704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
	{705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled"},
	{708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", "cannot set while device is active in this process"},
	{712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"},
	{713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
	{720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch"},
	{801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
	{900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
	{901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
	{902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would result in a merge of separate capture sequences"},
	{903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began"},
	{904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
	{905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream"},
	{906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
	 "operation would make the legacy stream depend on a capturing blocking stream"},
	{907, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"},
	{908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
	 "attempt to terminate a thread-local capture sequence from another thread"},
	{910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", "the graph update was not performed because it included changes which violated constraints specific to instantiated graph update"},
	{999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static CUresult error_text(CUresult error, const char **out, bool name)
{
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = NULL;
	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
		if (errors[i].error == error) {
			*out = name ? errors[i].name : errors[i].text;
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_VALUE;
}

CALL(cuGetErrorName, (CUresult error, const char **out), (error, out)) { return error_text(error, out, true); }

CALL(cuGetErrorString, (CUresult error, const char **out), (error, out)) { return error_text(error, out, false); }

// ---- devices

static CUresult check_device(CUdevice d, const void *out)
{
	if (sim_forked || !sim_initialized)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	return d >= 0 && d < device_count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CALL(cuDeviceGet, (CUdevice * out, int ordinal), (out, ordinal))
{
	CUresult r = check_device(ordinal, out);
	if (r == CUDA_SUCCESS)
		*out = ordinal;
	return r;
}

CALL(cuDeviceGetCount, (int *out), (out))
{
	if (sim_forked || !sim_initialized)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = device_count;
	return CUDA_SUCCESS;
}

CALL(cuDeviceGetName, (char *out, int length, CUdevice d), (out, length, d))
{
	CUresult r = check_device(d, out);
	if (r == CUDA_SUCCESS && length > 0)
		snprintf(out, (size_t)length, "%s", machine.name);
	return r;
}

CALL(cuDeviceGetAttribute, (int *out, int attribute, CUdevice d), (out, attribute, d))
{
	CUresult r = check_device(d, out);
	if (r == CUDA_SUCCESS && machine_attribute(d, attribute, out) != 0)
		r = CUDA_ERROR_INVALID_VALUE;
	return r;
}

CALL(cuDeviceGetUuid_v2, (uint8_t *out, CUdevice d), (out, d))
{
	CUresult r = check_device(d, out);
	if (r == CUDA_SUCCESS)
		sim_uuid(d, out);
	return r;
}

CALL(cuDeviceGetUuid, (uint8_t *out, CUdevice d), (out, d)) { return cuDeviceGetUuid_v2(out, d); }

CALL(cuDeviceTotalMem_v2, (size_t *out, CUdevice d), (out, d))
{
	CUresult r = check_device(d, out);
	if (r == CUDA_SUCCESS)
		*out = sim_memory_bytes();
	return r;
}

CALL(cuDeviceGetPCIBusId, (char *out, int length, CUdevice d), (out, length, d))
{
	CUresult r = check_device(d, out);
	if (r == CUDA_SUCCESS && length > 0)
		snprintf(out, (size_t)length, "0000:%02x:00.0", d + 1);
	return r;
}

CALL(cuDeviceComputeCapability, (int *major, int *minor, CUdevice d), (major, minor, d))
{
	CUresult r = check_device(d, major);
	if (r == CUDA_SUCCESS && minor) {
		*major = machine.cc_major;
		*minor = machine.cc_minor;
	}
	return r;
}

// ---- contexts

// The caller does not hold sim_lock: RM calls leave the library.
static CUresult context_make(int device, unsigned flags, bool is_primary, struct CUctx_st **out)
{
	int tsg = engine_add(device, machine.timeslice_us * 1000);
	if (tsg < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct CUctx_st *c = calloc(1, sizeof *c);
	struct rm_context *rm = c ? rm_context_create(device, tsg) : NULL;
	if (!rm) {
		free(c);
		engine_remove(device, tsg);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	c->device = device;
	c->tsg = tsg;
	c->flags = flags;
	c->primary = is_primary;
	c->rm = rm;
	pthread_mutex_lock(&sim_lock);
	c->id = next_context++;
	c->legacy = stream_new(c, 0, 0);
	if (!c->legacy || context_start(c) != 0) {
		pthread_mutex_unlock(&sim_lock);
		rm_context_destroy(rm);
		engine_remove(device, tsg);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	c->legacy->legacy = true;
	c->next = sim_contexts;
	sim_contexts = c;
	handle_add(c, H_CONTEXT);
	pthread_mutex_unlock(&sim_lock);
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
	pthread_mutex_unlock(&sim_lock);
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
	pthread_mutex_unlock(&sim_lock);
	engine_remove(c->device, c->tsg);
	rm_context_destroy(c->rm);
	free(c);
	return CUDA_SUCCESS;
}

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
	if (!handle_is(c, H_CONTEXT) || c->primary)
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	if (context_top() == c)
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

// Makes a context current, or a new one where that is NULL, by a call that nobody intercepts.
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

CALL(cuCtxGetDevice, (CUdevice * out), (out))
{
	struct CUctx_st *c;
	CUresult r = out ? enter(&c) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	*out = c->device;
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

// What cuda.h lets a context change; of these only SYNC_MEMOPS is kept.
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

// ---- streams

CALL(cuStreamCreateWithPriority, (CUstream * out, unsigned flags, int priority), (out, flags, priority))
{
	struct CUctx_st *c;
	CUresult r = out && !(flags & ~1u) ? enter(&c) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
	*out = stream_new(c, flags, priority);
	if (!*out)
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	handle_add(*out, H_STREAM);
	return leave(CUDA_SUCCESS);
}

CALL(cuStreamCreate, (CUstream * out, unsigned flags), (out, flags))
{
	return cuStreamCreateWithPriority(out, flags, 0);
}

CALL(cuStreamDestroy_v2, (CUstream s), (s))
{
	CUresult r = enter(NULL);
	if (r != CUDA_SUCCESS)
		return r;
	if (!handle_is(s, H_STREAM))
		return leave(CUDA_ERROR_INVALID_HANDLE);
	if (s->capture)
		return leave(capture_query(s));
	handle_remove(s);
	s->destroyed = true; // its work goes on; the executor frees it
	engine_ring(s->ctx->bell);
	return leave(CUDA_SUCCESS);
}

DUAL(cuStreamSynchronize, _ptsz, (CUstream s), (s))
{
	struct CUstream_st *st;
	CUresult r = enter_stream(s, &st);
	if (r != CUDA_SUCCESS)
		return r;
	if (st->capture)
		return leave(capture_query(st));
	struct CUctx_st *c = st->ctx;
	if (st->legacy) {
		if (capture_in_context(c, true)) {
			capture_invalidate(c, true);
			return leave(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
		}
		struct work w = {.kind = OP_MARK}; // behind all blocking streams
		op_wait(stream_submit(st, &w, NULL));
	} else {
		op_wait(op_ref(st->last));
	}
	pools_synchronized();
	return leave(c->error);
}

DUAL(cuStreamQuery, _ptsz, (CUstream s), (s))
{
	struct CUstream_st *st;
	CUresult r = enter_stream(s, &st);
	if (r != CUDA_SUCCESS)
		return r;
	if (st->capture)
		return leave(capture_query(st));
	bool busy = st->last && !st->last->done;
	if (st->legacy)
		for (struct CUstream_st *b = st->ctx->streams; b; b = b->next)
			busy |= !(b->flags & 1) && b->last && !b->last->done;
	return leave(busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
}

DUAL(cuStreamGetCtx, _ptsz, (CUstream s, CUcontext *out), (s, out))
{
	struct CUstream_st *st;
	CUresult r = out ? enter_stream(s, &st) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	*out = st->ctx;
	return leave(CUDA_SUCCESS);
}

DUAL(cuStreamGetPriority, _ptsz, (CUstream s, int *out), (s, out))
{
	struct CUstream_st *st;
	CUresult r = out ? enter_stream(s, &st) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	*out = st->priority;
	return leave(CUDA_SUCCESS);
}

DUAL(cuStreamGetFlags, _ptsz, (CUstream s, unsigned *out), (s, out))
{
	struct CUstream_st *st;
	CUresult r = out ? enter_stream(s, &st) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	*out = st->flags;
	return leave(CUDA_SUCCESS);
}

DUAL(cuStreamGetId, _ptsz, (CUstream s, unsigned long long *out), (s, out))
{
	struct CUstream_st *st;
	CUresult r = out ? enter_stream(s, &st) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	*out = st->id;
	return leave(CUDA_SUCCESS);
}

// ---- events

CALL(cuEventCreate, (CUevent * out, unsigned flags), (out, flags))
{
	struct CUctx_st *c;
	CUresult r = out ? enter(&c) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	*out = calloc(1, sizeof **out);
	if (!*out)
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	(*out)->flags = flags;
	handle_add(*out, H_EVENT);
	return leave(CUDA_SUCCESS);
}

CALL(cuEventDestroy_v2, (CUevent e), (e))
{
	CUresult r = enter(NULL);
	if (r != CUDA_SUCCESS)
		return r;
	if (!handle_is(e, H_EVENT))
		return leave(CUDA_ERROR_INVALID_HANDLE);
	handle_remove(e);
	op_unref(e->op);
	free(e);
	return leave(CUDA_SUCCESS);
}

static CUresult record(CUevent e, CUstream h)
{
	struct CUstream_st *s;
	CUresult r = enter_submission(h, &s);
	if (r != CUDA_SUCCESS)
		return r;
	if (!handle_is(e, H_EVENT))
		return leave(CUDA_ERROR_INVALID_HANDLE);
	if (s->capture)
		return leave(capture_record(e, s));
	struct op *o = NULL;
	struct work w = {.kind = OP_MARK};
	r = put(s, &w, &o);
	if (r == CUDA_SUCCESS) {
		op_unref(e->op);
		e->op = o;
		e->capture = NULL;
	}
	return leave(r);
}

DUAL(cuEventRecord, _ptsz, (CUevent e, CUstream s), (e, s)) { return record(e, s); }

DUAL(cuEventRecordWithFlags, _ptsz, (CUevent e, CUstream s, unsigned flags), (e, s, flags))
{
	return flags & ~1u ? CUDA_ERROR_INVALID_VALUE : record(e, s);
}

DUAL(cuStreamWaitEvent, _ptsz, (CUstream s, CUevent e, unsigned flags), (s, e, flags))
{
	(void)flags;
	struct CUstream_st *st;
	CUresult r = enter_submission(s, &st);
	if (r != CUDA_SUCCESS)
		return r;
	if (!handle_is(e, H_EVENT))
		return leave(CUDA_ERROR_INVALID_HANDLE);
	if (e->capture || st->capture)
		return leave(capture_wait(st, e));
	if (e->op) {
		struct work w = {.kind = OP_MARK};
		op_unref(stream_submit(st, &w, e->op));
	}
	return leave(CUDA_SUCCESS);
}

static CUresult enter_event(CUevent e, struct CUctx_st **c)
{
	CUresult r = enter(NULL);
	if (r != CUDA_SUCCESS)
		return r;
	if (!handle_is(e, H_EVENT))
		return leave(CUDA_ERROR_INVALID_HANDLE);
	*c = context_current();
	if (e->capture)
		return leave(CUDA_ERROR_CAPTURED_EVENT);
	if (*c && (r = capture_unsafe(*c)) != CUDA_SUCCESS)
		return leave(r);
	return CUDA_SUCCESS;
}

CALL(cuEventSynchronize, (CUevent e), (e))
{
	struct CUctx_st *c;
	CUresult r = enter_event(e, &c);
	if (r != CUDA_SUCCESS)
		return r;
	op_wait(op_ref(e->op));
	pools_synchronized();
	return leave(c ? c->error : CUDA_SUCCESS);
}

CALL(cuEventQuery, (CUevent e), (e))
{
	struct CUctx_st *c;
	CUresult r = enter_event(e, &c);
	if (r != CUDA_SUCCESS)
		return r;
	r = leave(e->op && !e->op->done ? CUDA_ERROR_NOT_READY : c ? c->error : CUDA_SUCCESS);
	if (r == CUDA_ERROR_NOT_READY)
		pause_answer();
	return r;
}

CALL(cuEventElapsedTime_v2, (float *out, CUevent from, CUevent to), (out, from, to))
{
	CUresult r = out ? enter(NULL) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	if (!handle_is(from, H_EVENT) || !handle_is(to, H_EVENT) || !from->op || !to->op || ((from->flags | to->flags) & 2))
		return leave(CUDA_ERROR_INVALID_HANDLE);
	if (!from->op->done || !to->op->done)
		return leave(CUDA_ERROR_NOT_READY);
	*out = (float)((double)(int64_t)(to->op->done_ns - from->op->done_ns) / 1e6);
	return leave(CUDA_SUCCESS);
}

CALL(cuEventElapsedTime, (float *out, CUevent from, CUevent to), (out, from, to))
{
	return cuEventElapsedTime_v2(out, from, to);
}

// ---- copies, memsets

enum direction { TO_DEVICE, TO_HOST, ON_DEVICE, ANY };

static CUresult copy(uint64_t dst, uint64_t src, size_t bytes, CUstream h, enum direction d, bool wait)
{
	struct CUstream_st *s;
	CUresult r = enter_submission(h, &s);
	if (r != CUDA_SUCCESS)
		return r;
	if (d == ANY)
		d = memory_is_device(dst) ? (memory_is_device(src) ? ON_DEVICE : TO_DEVICE) : TO_HOST;
	bool to = d != TO_HOST, from = d != TO_DEVICE;
	if (!dst || !src || (to && !address_known(dst, bytes)) ||
	    (from && memory_pinned(src) && !address_known(src, bytes)) || (d == ON_DEVICE && !address_known(src, bytes)))
		return leave(bytes ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
	if (wait && ((r = capture_unsafe(s->ctx)) != CUDA_SUCCESS || s->capture))
		return leave(r != CUDA_SUCCESS ? r : capture_query(s));
	struct work w = {.kind = OP_COPY,
			 .dst = dst,
			 .src = src,
			 .bytes = bytes,
			 .host = d != ON_DEVICE,
			 .from_device = d == TO_HOST,
			 .known_dst = address_known(dst, bytes),
			 .known_src = address_known(src, bytes)};
	if (!wait && !s->capture && d == TO_DEVICE && !memory_pinned(src)) { // pageable: staged at once
		w.staged = malloc(bytes ? bytes : 1);
		if (!w.staged)
			return leave(CUDA_ERROR_OUT_OF_MEMORY);
		memcpy(w.staged, (void *)src, bytes);
	}
	if (!s->capture && d == TO_HOST && !memory_pinned(dst))
		wait = true;
	struct op *o = NULL;
	struct CUctx_st *c = s->ctx;
	r = put(s, &w, wait ? &o : NULL);
	if (r != CUDA_SUCCESS)
		free(w.staged);
	if (r == CUDA_SUCCESS && wait) {
		op_wait(o);
		r = c->error;
	}
	return leave(r);
}

#define COPY(name, destination, source, how) \
	CALL(name##_v2, (destination d, source f, size_t n), (d, f, n)) \
	{ \
		return copy((uint64_t)d, (uint64_t)f, n, STREAM_LEGACY, how, true); \
	} \
	CALL(name##_v2_ptds, (destination d, source f, size_t n), (d, f, n)) \
	{ \
		return copy((uint64_t)d, (uint64_t)f, n, STREAM_PER_THREAD, how, true); \
	} \
	DUAL(name##Async_v2, _ptsz, (destination d, source f, size_t n, CUstream s), (d, f, n, s)) \
	{ \
		return copy((uint64_t)d, (uint64_t)f, n, s, how, false); \
	}

COPY(cuMemcpyHtoD, CUdeviceptr, const void *, TO_DEVICE)
COPY(cuMemcpyDtoH, void *, CUdeviceptr, TO_HOST)

// A copy within the device does not make the host wait.
CALL(cuMemcpyDtoD_v2, (CUdeviceptr d, CUdeviceptr f, size_t n), (d, f, n))
{
	return copy(d, f, n, STREAM_LEGACY, ON_DEVICE, false);
}

CALL(cuMemcpyDtoD_v2_ptds, (CUdeviceptr d, CUdeviceptr f, size_t n), (d, f, n))
{
	return copy(d, f, n, STREAM_PER_THREAD, ON_DEVICE, false);
}

DUAL(cuMemcpyDtoDAsync_v2, _ptsz, (CUdeviceptr d, CUdeviceptr f, size_t n, CUstream s), (d, f, n, s))
{
	return copy(d, f, n, s, ON_DEVICE, false);
}

CALL(cuMemcpy, (CUdeviceptr d, CUdeviceptr f, size_t n), (d, f, n)) { return copy(d, f, n, STREAM_LEGACY, ANY, true); }

CALL(cuMemcpy_ptds, (CUdeviceptr d, CUdeviceptr f, size_t n), (d, f, n))
{
	return copy(d, f, n, STREAM_PER_THREAD, ANY, true);
}

DUAL(cuMemcpyAsync, _ptsz, (CUdeviceptr d, CUdeviceptr f, size_t n, CUstream s), (d, f, n, s))
{
	return copy(d, f, n, s, ANY, false);
}

static CUresult set(CUdeviceptr d, uint32_t value, int width, size_t n, CUstream h)
{
	struct CUstream_st *s;
	CUresult r = enter_submission(h, &s);
	if (r != CUDA_SUCCESS)
		return r;
	if (n > sim_memory_bytes() || !address_known(d, n * (size_t)width))
		return leave(CUDA_ERROR_INVALID_VALUE);
	struct work w = {.kind = OP_MEMSET, .dst = d, .bytes = n * (size_t)width, .value = value, .width = width};
	return leave(put(s, &w, NULL));
}

CALL(cuMemsetD8_v2, (CUdeviceptr d, unsigned char v, size_t n), (d, v, n)) { return set(d, v, 1, n, STREAM_LEGACY); }

CALL(cuMemsetD8_v2_ptds, (CUdeviceptr d, unsigned char v, size_t n), (d, v, n))
{
	return set(d, v, 1, n, STREAM_PER_THREAD);
}

CALL(cuMemsetD32_v2, (CUdeviceptr d, unsigned v, size_t n), (d, v, n)) { return set(d, v, 4, n, STREAM_LEGACY); }

CALL(cuMemsetD32_v2_ptds, (CUdeviceptr d, unsigned v, size_t n), (d, v, n))
{
	return set(d, v, 4, n, STREAM_PER_THREAD);
}

DUAL(cuMemsetD8Async, _ptsz, (CUdeviceptr d, unsigned char v, size_t n, CUstream s), (d, v, n, s))
{
	return set(d, v, 1, n, s);
}

DUAL(cuMemsetD32Async, _ptsz, (CUdeviceptr d, unsigned v, size_t n, CUstream s), (d, v, n, s))
{
	return set(d, v, 4, n, s);
}

DUAL(cuMemsetD16Async, _ptsz, (CUdeviceptr d, unsigned short v, size_t n, CUstream s), (d, v, n, s))
{
	return set(d, v, 2, n, s);
}

// Sets row after row.
static CUresult set_rows(CUdeviceptr d, size_t pitch, uint32_t value, int width, size_t n, size_t rows, CUstream s)
{
	CUresult r = rows > 1 && pitch < n * (size_t)width ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	for (size_t i = 0; i < rows && r == CUDA_SUCCESS; i++)
		r = set(d + i * pitch, value, width, n, s);
	return r;
}

DUAL(cuMemsetD2D8Async, _ptsz, (CUdeviceptr d, size_t pitch, unsigned char v, size_t n, size_t rows, CUstream s),
     (d, pitch, v, n, rows, s))
{
	return set_rows(d, pitch, v, 1, n, rows, s);
}

DUAL(cuMemsetD2D16Async, _ptsz, (CUdeviceptr d, size_t pitch, unsigned short v, size_t n, size_t rows, CUstream s),
     (d, pitch, v, n, rows, s))
{
	return set_rows(d, pitch, v, 2, n, rows, s);
}

DUAL(cuMemsetD2D32Async, _ptsz, (CUdeviceptr d, size_t pitch, unsigned v, size_t n, size_t rows, CUstream s),
     (d, pitch, v, n, rows, s))
{
	return set_rows(d, pitch, v, 4, n, rows, s);
}

struct side_2d { // of CUDA_MEMCPY2D
	size_t x, y;
	int type;
	void *host;
	CUdeviceptr device;
	void *array;
	size_t pitch;
};

static CUdeviceptr side_address(const struct side_2d *s)
{
	enum { CU_MEMORYTYPE_HOST = 1, CU_MEMORYTYPE_ARRAY = 3 };
	CUdeviceptr base = s->type == CU_MEMORYTYPE_ARRAY ? 0 :
			   s->type == CU_MEMORYTYPE_HOST  ? (CUdeviceptr)s->host :
							    s->device;
	return base ? base + s->y * s->pitch + s->x : 0;
}

DUAL(cuMemcpy2DAsync_v2, _ptsz, (const void *p, CUstream s), (p, s))
{
	const struct {
		struct side_2d from, to;
		size_t width, rows;
	} *c = p;
	if (!c || !side_address(&c->from) || !side_address(&c->to) || c->from.pitch < c->from.x + c->width ||
	    c->to.pitch < c->to.x + c->width)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = CUDA_SUCCESS;
	for (size_t i = 0; i < c->rows && r == CUDA_SUCCESS; i++)
		r = copy(side_address(&c->to) + i * c->to.pitch, side_address(&c->from) + i * c->from.pitch, c->width,
			 s, ANY, false);
	return r;
}

CALL(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
     (int *out, CUfunction f, int threads, size_t shared, unsigned flags), (out, f, threads, shared, flags))
{
	(void)flags;
	CUresult r = out && threads > 0 ? enter(NULL) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	if (!is_function(f))
		return leave(CUDA_ERROR_INVALID_HANDLE);
	*out = kernel_blocks_per_sm(f->definition->kernel, (uint64_t)threads, shared);
	return leave(CUDA_SUCCESS);
}

CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *out, CUfunction f, int threads, size_t shared),
     (out, f, threads, shared))
{
	return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out, f, threads, shared, 0);
}

// ---- launches

static CUresult launch_arguments(struct work *w, const struct definition *d, void **parameters, void **extra)
{
	const char *buffer = NULL;
	size_t bytes = 0;
	if (!parameters && extra) {
		for (; *extra; extra += 2) {     // CU_LAUNCH_PARAM_END
			if (*extra == (void *)1) // CU_LAUNCH_PARAM_BUFFER_POINTER
				buffer = extra[1];
			else if (*extra == (void *)2) // CU_LAUNCH_PARAM_BUFFER_SIZE
				bytes = *(size_t *)extra[1];
			else
				return CUDA_ERROR_INVALID_VALUE;
		}
		if (bytes != d->bytes)
			return CUDA_ERROR_INVALID_VALUE;
	}
	w->kernel = d->kernel;
	w->guarded = d->guarded;
	for (int i = 0; i < d->parameters; i++) {
		const void *from = parameters ? parameters[i] : buffer ? buffer + d->parameter[i].offset : NULL;
		if (!from)
			return CUDA_ERROR_INVALID_VALUE;
		if (i < d->kernel->parameters)
			memcpy(&w->argument[i], from, d->parameter[i].size);
		else if (d->guarded)
			memcpy(&w->hidden, from, sizeof w->hidden);
	}
	return CUDA_SUCCESS;
}

CUresult launch_work(struct work *w, CUfunction f, const unsigned grid[3], const unsigned block[3], unsigned shared,
		     bool cooperative, void **parameters, void **extra)
{
	if (!is_function(f))
		return CUDA_ERROR_INVALID_HANDLE;
	*w = (struct work){.kind = OP_KERNEL, .function = f, .shared_bytes = shared, .cooperative = cooperative};
	memcpy(w->grid, grid, sizeof w->grid);
	memcpy(w->block, block, sizeof w->block);
	uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
	if (!grid[0] || !grid[1] || !grid[2] || !threads || threads > 1024 || grid[1] > 65535 || grid[2] > 65535 ||
	    shared > (unsigned)machine.shared_per_block_optin)
		return CUDA_ERROR_INVALID_VALUE;
	int allowed = f->attribute[8] ? f->attribute[8] : machine.shared_per_block - f->definition->kernel->shared_bytes;
	if ((int)shared > allowed) // MAX_DYNAMIC_SHARED_SIZE_BYTES
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = launch_arguments(w, f->definition, parameters, extra);
	if (r != CUDA_SUCCESS || !cooperative)
		return r;
	uint64_t resident = (uint64_t)machine.sms * (uint64_t)kernel_blocks_per_sm(w->kernel, threads, shared);
	if ((uint64_t)grid[0] * grid[1] * grid[2] > resident)
		return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
	// A stop can cut it, though its blocks wait for each other.
	bool cut = w->hidden && (w->hidden & GPREEMPT_SHIFT) != GPREEMPT_WHOLE;
	return cut ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static _Thread_local uint32_t holds_launched;

// For tests: how many links of holds the calling thread has launched.
API uint32_t simcuda_holds_launched(void) { return holds_launched; }

static CUresult launch(CUfunction f, const unsigned grid[3], const unsigned block[3], unsigned shared, CUstream h,
		       bool cooperative, void **parameters, void **extra)
{
	struct CUstream_st *s;
	struct CUctx_st *c;
	CUresult r = enter(&c);
	if (r != CUDA_SUCCESS)
		return r;
	if (is_function(f) && !capture_in_context(c, false))
		function_load(f, c);
	leave(r);
	pause_launch();
	r = enter_submission(h, &s);
	if (r != CUDA_SUCCESS)
		return r;
	struct work w = {0};
	r = launch_work(&w, f, grid, block, shared, cooperative, parameters, extra);
	if (r == CUDA_SUCCESS && cooperative)
		call_cooperative(s->ctx);
	leave(r == CUDA_SUCCESS ? r = put(s, &w, NULL) : r);
	holds_launched += r == CUDA_SUCCESS && w.kernel->over;
	sim_doorbell(w.kernel);
	return r;
}

DUAL(cuLaunchKernel, _ptsz,
     (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
      CUstream s, void **parameters, void **extra),
     (f, gx, gy, gz, bx, by, bz, shared, s, parameters, extra))
{
	return launch(f, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, shared, s, false, parameters, extra);
}

DUAL(cuLaunchCooperativeKernel, _ptsz,
     (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
      CUstream s, void **parameters),
     (f, gx, gy, gz, bx, by, bz, shared, s, parameters))
{
	return launch(f, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, shared, s, true, parameters, NULL);
}

typedef struct {
	unsigned grid[3], block[3], sharedMemBytes;
	CUstream hStream;
	const struct { // CUlaunchAttribute
		int id, pad, value[16];
	} *attrs;
	unsigned numAttrs;
} CUlaunchConfig;

static CUresult launch_config(const CUlaunchConfig *c, CUfunction f, void **parameters, void **extra, CUstream otherwise)
{
	if (!c)
		return CUDA_ERROR_INVALID_VALUE;
	bool cooperative = false;
	for (unsigned i = 0; c->attrs && i < c->numAttrs; i++)
		cooperative |= c->attrs[i].id == LAUNCH_ATTRIBUTE_COOPERATIVE && c->attrs[i].value[0];
	return launch(f, c->grid, c->block, c->sharedMemBytes, c->hStream ? c->hStream : otherwise, cooperative,
		      parameters, extra);
}

CALL(cuLaunchKernelEx, (const CUlaunchConfig *c, CUfunction f, void **parameters, void **extra), (c, f, parameters, extra))
{
	return launch_config(c, f, parameters, extra, STREAM_LEGACY);
}

CALL(cuLaunchKernelEx_ptsz, (const CUlaunchConfig *c, CUfunction f, void **parameters, void **extra),
     (c, f, parameters, extra))
{
	return launch_config(c, f, parameters, extra, STREAM_PER_THREAD);
}

DUAL(cuLaunchHostFunc, _ptsz, (CUstream s, void (*callback)(void *), void *user), (s, callback, user))
{
	struct CUstream_st *st;
	CUresult r = callback ? enter_submission(s, &st) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	struct work w = {.kind = OP_HOST, .callback = callback, .user = user};
	return leave(put(st, &w, NULL));
}

static CUresult memory_operation(CUstream h, CUdeviceptr at, uint32_t value, unsigned flags, enum op_kind kind)
{
	struct CUstream_st *s;
	const char *refuse = getenv("SIMCUDA_REFUSE_VALUES");
	CUresult r = enter_submission(h, &s);
	if (r != CUDA_SUCCESS)
		return r;
	if (refuse && strcmp(refuse, "1") == 0)
		return leave(CUDA_ERROR_NOT_SUPPORTED);
	if ((at & 3) || !address_known(at, 4))
		return leave(CUDA_ERROR_INVALID_VALUE);
	struct work w = {.kind = kind, .dst = at, .value = value, .flags = flags};
	return leave(put(s, &w, NULL));
}

DUAL(cuStreamWriteValue32_v2, _ptsz, (CUstream s, CUdeviceptr at, uint32_t value, unsigned flags), (s, at, value, flags))
{
	return memory_operation(s, at, value, flags, OP_WRITE_VALUE);
}

DUAL(cuStreamWaitValue32_v2, _ptsz, (CUstream s, CUdeviceptr at, uint32_t value, unsigned flags), (s, at, value, flags))
{
	return memory_operation(s, at, value, flags, OP_WAIT_VALUE);
}
