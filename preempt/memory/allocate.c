// allocate.c - cuMemAlloc, cuMemAllocPitch and cuMemFree.
//
// Small allocations, and those that a capture forbids or might forbid, are left to the driver, which decides as without us. So
// are those for which virtual memory management fails, unless it fails for want of memory. They are counted, and stay where
// they are.
#define _GNU_SOURCE
#include "preempt/memory/own.h"

#include <stdio.h>

struct request {
	CUdeviceptr *out;
	size_t bytes;
	// cuMemAllocPitch; pitch is NULL in cuMemAlloc
	size_t *pitch, row, width, rows;
	unsigned element;
	struct gp_retry *retry;
};

static CUresult ask_driver(const struct request *q)
{
	return q->pitch ? gp_driver.cuMemAllocPitch(q->out, q->pitch, q->width, q->rows, q->element) :
			  gp_driver.cuMemAlloc(q->out, q->bytes);
}

// lacking: the GPU that the memory is asked of, on which the caller may wait for room.
static CUresult allocate_native(const struct request *q, struct gp_context *c, struct gp_gpu **lacking)
{
	if (!c || !q->out)
		return ask_driver(q);
	_Atomic uint64_t *account = &gp_memory_of(c->gpu)->pinned;
	*lacking = c->gpu;
	if (!gp_account_take(c->gpu, account, q->bytes, q->retry))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = ask_driver(q);
	gp_memory_answered(c, result);
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		gp_memory_refused(c->gpu, q->bytes, q->retry);
	if (result)
		gp_account_untake(account, q->bytes, q->retry);
	else
		gp_native_made(c, *q->out, q->bytes);
	return result;
}

static void say_refused(CUresult result)
{
	char text[128];
	snprintf(text, sizeof text,
		 "virtual memory management failed (CUDA error %d): that memory stays on the GPU, as the driver's own",
		 result);
	gp_log_line(text);
}

// The caller has relaxed what captures forbid.
static CUresult allocate_range(const struct request *q, struct gp_context *c, struct gp_gpu **lacking)
{
	size_t bytes = (q->bytes + GP_GRANULE - 1) / GP_GRANULE * GP_GRANULE;
	_Atomic uint64_t *account = &gp_memory_of(c->gpu)->resident;
	*lacking = c->gpu;
	if (!gp_account_take(c->gpu, account, bytes, q->retry))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = gp_chunks_allocate(c, q->bytes, q->out, q->retry);
	if (result)
		gp_account_untake(account, bytes, q->retry);
	else if (q->pitch)
		*q->pitch = q->row;
	return result;
}

static bool is_native(const struct request *q, const struct gp_context *c)
{
	struct gp_allocation_properties p;
	return !q->out || q->bytes <= GP_SMALL_BYTES || q->bytes > SIZE_MAX / 2 || !c || !gp_sample_properties(c->gpu, &p);
}

static CUresult attempt(const struct request *q, struct gp_gpu **lacking)
{
	struct gp_context *c = gp_current_context();
	if (is_native(q, c))
		return allocate_native(q, c, lacking);
	int mode = gp_relax_captures();
	bool forbidden = gp_capturing() && mode != CU_STREAM_CAPTURE_MODE_RELAXED;
	CUresult result = forbidden ? CUDA_SUCCESS : allocate_range(q, c, lacking);
	gp_unrelax_captures(mode);
	if (forbidden)
		return allocate_native(q, c, lacking);
	if (!result || result == CUDA_ERROR_OUT_OF_MEMORY)
		return result;
	say_refused(result);
	return allocate_native(q, c, lacking);
}

// Beyond memory.limit the wait for room says no at once.
static CUresult allocate(struct request *q)
{
	struct gp_retry retry = {.bytes = q->bytes};
	struct gp_gpu *lacking;
	CUresult result;
	bool freed;
	q->retry = &retry;
	do {
		lacking = NULL;
		retry.at_cap = false;
		gp_memory_enter();
		gp_freed_look(false);
		result = attempt(q, &lacking);
		freed = result == CUDA_ERROR_OUT_OF_MEMORY && gp_freed_look(true);
		gp_memory_leave();
	} while (freed ||
		 (result == CUDA_ERROR_OUT_OF_MEMORY && lacking && gp_memory_wait_for_room(lacking, q->bytes, &retry)));
	gp_memory_call_over(&retry);
	return result;
}

CUresult gp_cuMemAlloc_v2(CUdeviceptr *out, size_t bytes)
{
	return allocate(&(struct request){.out = out, .bytes = bytes});
}

// The distance between rows on a GPU is a multiple of one number. The driver tells it when it is asked for a row of one
// element. 0: it does not.
static size_t pitch_unit(const struct gp_gpu *gpu)
{
	static _Atomic size_t unit[GP_GPUS];
	int i = (int)(gpu - gp_gpu);
	if (!unit[i]) {
		CUdeviceptr row;
		size_t pitch = 0;
		int mode = gp_relax_captures();
		if (!gp_driver.cuMemAllocPitch(&row, &pitch, 4, 1, 4)) {
			gp_driver.cuMemFree(row);
			unit[i] = pitch;
		}
		gp_unrelax_captures(mode);
	}
	return unit[i];
}

CUresult gp_cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t rows, unsigned element)
{
	struct gp_context *c = gp_current_context();
	struct request q = {.out = out, .pitch = pitch, .width = width, .rows = rows, .element = element};
	size_t unit;
	bool sound = pitch && width && rows && (element == 4 || element == 8 || element == 16);
	if (!sound || !c || !(unit = pitch_unit(c->gpu)) || __builtin_add_overflow(width, unit - 1, &q.row) ||
	    __builtin_mul_overflow(q.row / unit * unit, rows, &q.bytes))
		return gp_driver.cuMemAllocPitch(out, pitch, width, rows, element);
	q.row = q.row / unit * unit;
	return allocate(&q);
}

bool gp_range_claim(CUdeviceptr address, struct gp_range **r)
{
	pthread_mutex_lock(&gp_memory_lock);
	*r = gp_range_at(address);
	if (*r && (*r)->kind != GP_RANGE_ALLOCATED)
		*r = NULL;
	bool mine = *r && (*r)->address == address && !(*r)->ending && !(*r)->doomed && !((*r)->pins & GP_PIN_IMPORTED);
	if (mine)
		(*r)->ending = true;
	pthread_mutex_unlock(&gp_memory_lock);
	return mine;
}

static void unclaim(struct gp_range *r)
{
	pthread_mutex_lock(&gp_memory_lock);
	r->ending = false;
	pthread_mutex_unlock(&gp_memory_lock);
}

CUresult gp_range_end(struct gp_range *r, bool whatever)
{
	struct gp_memory *m = gp_memory_of(r->gpu);
	_Atomic uint64_t *account = r->pins ? &m->pinned : &m->resident;
	uint64_t out = gp_chunks_out(r), in = r->import.opened ? 0 : r->bytes - out;
	int mode = gp_relax_captures();
	CUresult result = gp_chunks_free(r);
	if (result && whatever && (result = gp_chunks_free(r))) {
		gp_chunks_empty(r, r->chunks, 0);
		gp_chunks_forget(r);
		result = CUDA_SUCCESS;
	}
	gp_unrelax_captures(mode);
	if (result)
		return result;
	gp_account_give(account, in);
	gp_account_give(&m->swapped, out);
	return CUDA_SUCCESS;
}

static CUresult release(CUdeviceptr address)
{
	struct gp_range *r;
	CUresult result;
	if (gp_native_free(address, &result)) // what is small is freed most often
		return result;
	if (!gp_range_claim(address, &r))
		return r ? CUDA_ERROR_INVALID_VALUE : gp_counted_free(address);
	CUcontext current = gp_current_handle();
	if (!current) { // the driver says what is wrong
		unclaim(r);
		return gp_driver.cuMemFree(address);
	}
	result = gp_peers_synchronize(r, current);
	if (!result)
		result = gp_range_end(r, false);
	if (result)
		unclaim(r);
	return result;
}

// Memory that is out need not come back to be freed: a program that ends would wait for that.
CUresult gp_cuMemFree_v2(CUdeviceptr address)
{
	bool away = gp_memory_keep_moves_away();
	if (!away)
		gp_memory_enter();
	CUresult result = release(address);
	gp_freed_look(false);
	if (away)
		gp_memory_let_moves();
	else
		gp_memory_leave();
	return result;
}
