// launches.c - launches of kernels and of host functions.
#include "../../../kernels/guard/guard.h"
#include "sim.h"

#include <string.h>

static CUresult launch_arguments(struct work *w, const struct definition *d, void **parameters, void **extra)
{
	const char *buffer = NULL;
	size_t bytes = 0;
	if (parameters && extra)
		return CUDA_ERROR_INVALID_VALUE;
	if (extra) {
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
		     bool cooperative, const struct sm_set *sms, void **parameters, void **extra)
{
	if (!is_function(f))
		return CUDA_ERROR_INVALID_HANDLE;
	*w = (struct work){
		.kind = OP_KERNEL, .function = f, .shared_bytes = shared, .cooperative = cooperative, .sms = *sms};
	memcpy(w->grid, grid, sizeof w->grid);
	memcpy(w->block, block, sizeof w->block);
	uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
	if (!grid[0] || !grid[1] || !grid[2] || !threads || threads > 1024 || grid[1] > 65535 || grid[2] > 65535 ||
	    shared > (unsigned)machine.shared_per_block_optin)
		return CUDA_ERROR_INVALID_VALUE;
	w->cluster = 1;
	for (int i = 0; i < 3; i++) { // REQUIRED_CLUSTER_WIDTH, HEIGHT, DEPTH
		uint32_t side = f->attribute[11 + i] ? (uint32_t)f->attribute[11 + i] : 1;
		if (grid[i] % side)
			return CUDA_ERROR_INVALID_CLUSTER_SIZE;
		w->cluster *= side;
	}
	int allowed = f->attribute[8] ? f->attribute[8] : machine.shared_per_block - f->definition->kernel->shared_bytes;
	if ((int)shared > allowed) // MAX_DYNAMIC_SHARED_SIZE_BYTES
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = launch_arguments(w, f->definition, parameters, extra);
	if (r != CUDA_SUCCESS || !cooperative)
		return r;
	uint64_t resident = sms_in(sms) * (uint64_t)kernel_blocks_per_sm(w->kernel, threads, shared);
	if ((uint64_t)grid[0] * grid[1] * grid[2] > resident)
		return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
	// A stop can cut it, though its blocks wait for each other.
	bool cut = w->hidden && (w->hidden & GPREEMPT_SHIFT) != GPREEMPT_WHOLE;
	return cut ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static _Thread_local uint32_t holds_launched;

// For tests: how many links of holds the calling thread has launched.
API uint32_t simcuda_holds_launched(void) { return holds_launched; }

#define GREEN_CLUSTER 8u // blocks of the largest cluster that a green context takes

static CUresult launch(CUfunction f, const unsigned grid[3], const unsigned block[3], unsigned shared, CUstream h,
		       bool cooperative, unsigned cluster, const int *priority, void **parameters, void **extra)
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
	r = launch_work(&w, f, grid, block, shared, cooperative, &s->sms, parameters, extra);
	if (r == CUDA_SUCCESS && cluster > 1)
		w.cluster = cluster;
	w.prioritized = priority;
	w.priority = priority ? *priority : s->priority;
	if (r == CUDA_SUCCESS && s->green && w.cluster > GREEN_CLUSTER)
		r = CUDA_ERROR_INVALID_CLUSTER_SIZE;
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
	return launch(f, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, shared, s, false, 1, NULL, parameters, extra);
}

DUAL(cuLaunchCooperativeKernel, _ptsz,
     (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
      CUstream s, void **parameters),
     (f, gx, gy, gz, bx, by, bz, shared, s, parameters))
{
	return launch(f, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, shared, s, true, 1, NULL, parameters, NULL);
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
	unsigned cluster = 1; // blocks
	const int *priority = NULL;
	for (unsigned i = 0; c->attrs && i < c->numAttrs; i++) {
		const int *value = c->attrs[i].value;
		cooperative |= c->attrs[i].id == LAUNCH_ATTRIBUTE_COOPERATIVE && value[0];
		if (c->attrs[i].id == LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
			cluster = (unsigned)(value[0] * value[1] * value[2]);
		else if (c->attrs[i].id == LAUNCH_ATTRIBUTE_PRIORITY)
			priority = value;
	}
	return launch(f, c->grid, c->block, c->sharedMemBytes, c->hStream ? c->hStream : otherwise, cooperative,
		      cluster, priority, parameters, extra);
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

// ---- how many blocks run at once

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
