// rewrite.c - rewrites code in loads: whether it does, for which GPU, with which options, and with which result.
//
// A module is loaded from the rewritten image alone (modules.c). A library is loaded as it came, which costs nothing: the
// driver does nothing with it until something of it is used. Then the rewritten one is loaded as a second library, and takes its place
// until it is unloaded (libraries.c). So its variables have one instance.
#define _GNU_SOURCE
#include "preempt/code/rewrite.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void nobody_hears(bool begins) { (void)begins; }
void (*gp_code_loading)(bool begins) = nobody_hears;

static _Atomic uint32_t *armed;
_Atomic uint32_t gp_images_rewritten;

// Whether it is wanted.

static _Atomic uint32_t when; // GP_BLP_*

void gp_blp_set(uint32_t w) { when = w; }

// Also where it cannot be told yet whether it is wanted, as before the driver's cuInit.
bool gp_blp_unwant(void)
{
	bool wanted = gp_blp_wanted();
	return __atomic_exchange_n((uint32_t *)&when, GP_BLP_OFF, __ATOMIC_ACQ_REL) != GP_BLP_OFF && wanted;
}

static bool has_prepared_context(void)
{
	for (uint32_t i = 0; i < gp_context_places; i++)
		if (gp_context[i].prepared)
			return true;
	return false;
}

bool gp_blp_wanted(void)
{
	uint32_t w = when;
	if (w == GP_BLP_OFF)
		return false;
	int devices = 0;
	bool under = false;
	if (w == GP_BLP_UNDER_MPS) {
		if (!gp_driver.cuDeviceGetCount || gp_driver.cuDeviceGetCount(&devices))
			return false;
		for (CUdevice d = 0; d < devices && !under; d++)
			under = gp_under_mps(d);
		if (under && !has_prepared_context())
			return true; // RM may yet show that this process has a TSG of its own
		if (devices && !__atomic_compare_exchange_n((uint32_t *)&when, &w, under ? GP_BLP_ON : GP_BLP_OFF,
							    false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			return w == GP_BLP_ON; // another thread has told, or it is not wanted any more
		if (!under)
			return false;
	}
	return true;
}

static int capability(CUdevice d)
{
	int major = 0, minor = 0;
	if (gp_driver.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, d) ||
	    gp_driver.cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, d))
		return 0;
	return major * 10 + minor;
}

int gp_current_capability(void)
{
	CUdevice d;
	return gp_driver.cuCtxGetDevice(&d) ? 0 : capability(d);
}

// A library is there for all GPUs: they must be of one kind.
int gp_common_capability(void)
{
	int count = 0, common = 0;
	if (!gp_driver.cuDeviceGetCount || gp_driver.cuDeviceGetCount(&count))
		return 0;
	for (CUdevice d = 0; d < count; d++) {
		int c = capability(d);
		if (d && c != common)
			return 0;
		common = c;
	}
	return common;
}

// Options.

enum { MOST_OPTIONS = 64 }; // a load has: CUDA 13 knows 35, each of which a program names once

const char *gp_jit_copy(struct gp_jit *to, unsigned count, const int *option, void *const *value)
{
	char *text = to->text + sprintf(to->text, "%d ", gp_driver_version());
	to->count = 0;
	if (count && (!option || !value))
		return "options that are missing";
	if (count > MOST_OPTIONS) // what is behind the first few may not be memory
		return "too many options";
	for (unsigned i = 0; i < count; i++) {
		int o = option[i];
		if (o >= CU_JIT_WALL_TIME && o <= CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
			continue;
		if ((o >= CU_JIT_GLOBAL_SYMBOL_NAMES && o <= CU_JIT_GLOBAL_SYMBOL_COUNT) ||
		    (o >= CU_JIT_REFERENCED_KERNEL_NAMES && o <= CU_JIT_REFERENCED_VARIABLE_COUNT))
			return "options of the linker that name symbols";
		if (to->count == GP_JIT_OPTIONS)
			return "too many options";
		to->option[to->count] = o;
		to->value[to->count++] = value[i];
		text += sprintf(text, "%d=%lx ", o & 0xffff, (unsigned long)(uint32_t)(uintptr_t)value[i]);
	}
	return NULL;
}

// Rewriting.

void gp_load_failed(const char *reason)
{
	char line[256];
	if (!*reason) // there is no code for the GPU: the driver will refuse it
		return;
	gp_count(&gp_kernels.refused[GP_REFUSED_IMAGE], 1);
	snprintf(line, sizeof line, "code runs as it came, not preemptible: %s", reason);
	gp_log_line(line);
}

void gp_rewritten_unmap(const struct gp_rewritten *r) { munmap((void *)r, r->bytes); }

static bool succeeded(const char *call, CUresult result, struct gp_request *r)
{
	if (result)
		snprintf(r->reason, sizeof r->reason, "%s: CUDA error %d", call, result);
	return !result;
}

// A library may be used where no context is current, but the linker needs one: then it is any that is known.
static struct gp_context *enter_context(void)
{
	CUcontext current = NULL;
	if (gp_driver.cuCtxGetCurrent(&current) || current)
		return NULL;
	for (int i = 0; i < GP_CONTEXTS; i++) {
		struct gp_context *c = &gp_context[i];
		CUcontext handle = c->handle;
		if (!handle || !gp_context_pin(c, handle))
			continue;
		if (!gp_driver.cuCtxPushCurrent(handle))
			return c;
		gp_context_unpin(c);
	}
	return NULL;
}

static void leave_context(struct gp_context *c)
{
	CUcontext popped;
	if (!c)
		return;
	gp_driver.cuCtxPopCurrent(&popped);
	gp_context_unpin(c);
}

// compile lets the driver's linker make a cubin of PTX, and asks again.
static void compile(struct gp_request *r, const struct gp_jit *jit)
{
	CUlinkState state;
	void *cubin = NULL;
	size_t bytes = 0;

	r->answer = GP_FAILED;
	if (!gp_driver.cuLinkCreate || !gp_driver.cuLinkAddData || !gp_driver.cuLinkComplete || !gp_driver.cuLinkDestroy) {
		strcpy(r->reason, "the driver has no linker");
		return;
	}
	if (!succeeded("cuLinkCreate", gp_driver.cuLinkCreate(jit->count, jit->option, jit->value, &state), r))
		return;
	int type = r->picked.form == GP_FATBIN_PTX ? CU_JIT_INPUT_FATBINARY : CU_JIT_INPUT_PTX;
	if (succeeded("cuLinkAddData",
		      gp_driver.cuLinkAddData(state, type, r->picked.memory, r->picked.bytes, "gpreempt", 0, NULL, NULL),
		      r) &&
	    succeeded("cuLinkComplete", gp_driver.cuLinkComplete(state, &cubin, &bytes), r)) {
		r->linked = cubin;
		r->linked_bytes = bytes;
		gp_request_ask(r);
	}
	gp_driver.cuLinkDestroy(state);
}

// by: 1, or what takes that back.
static void count(const struct gp_rewritten *r, uint64_t by)
{
	for (uint32_t i = 0; i < r->kernels; i++)
		gp_count(r->kernel[i].reason ? &gp_kernels.refused[r->kernel[i].refusal % GP_REFUSALS] : &gp_kernels.guarded,
			 by);
	gp_count(&gp_kernels.seen, by * r->kernels);
}

void gp_rewritten_uncount(const struct gp_rewritten *r)
{
	gp_count(&gp_kernels.images, UINT64_MAX);
	count(r, UINT64_MAX);
}

const struct gp_rewritten *gp_rewrite(struct gp_request *r, const struct gp_jit *jit)
{
	uint64_t begun = gp_now_ns();
	r->what = GP_REWRITE;
	r->options = jit->text;
	gp_request_ask(r);
	if (r->answer == GP_LINK) {
		struct gp_context *c = enter_context();
		compile(r, jit);
		leave_context(c);
	}
	gp_picked_unmap(&r->picked);
	gp_count(&gp_kernels.load_ns, gp_now_ns() - begun);
	if (r->answer == GP_DONE) {
		gp_count(&gp_kernels.cached, r->cached);
		count(r->rewritten, 1);
	} else {
		gp_load_failed(r->reason);
	}
	atomic_thread_fence(memory_order_release);
	gp_count(&gp_kernels.images, 1); // last: a reader that sees the image counted sees its result
	if (r->answer != GP_DONE)
		return NULL;
	if (r->rewritten->image_bytes)
		return r->rewritten;
	gp_rewritten_unmap(r->rewritten);
	return NULL;
}

const void *gp_rewritten_image(const struct gp_rewritten *r) { return (const char *)r + r->image; }

// From now on every launch must pass through the core.
void gp_rewritten_in_use(void)
{
	enum { REWRITTEN = 2 }; // another bit of gp_armed than the agents'
	atomic_fetch_or(armed, REWRITTEN);
	gp_images_rewritten++;
}

// The driver may keep reading an image that is to be preserved; otherwise it has its own copy.
void gp_rewritten_read(const struct gp_rewritten *r)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	uintptr_t begin = ((uintptr_t)gp_rewritten_image(r) + page - 1) & -page;
	uintptr_t end = ((uintptr_t)r + r->bytes) & -page;
	if (begin < end)
		madvise((void *)begin, end - begin, MADV_DONTNEED);
}

const struct gp_rewritten_kernel *gp_rewritten_find(const struct gp_rewritten *r, const char *name)
{
	uint32_t low = 0, high = r->kernels;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		int order = strcmp(name, (const char *)r + r->kernel[middle].name);
		if (!order)
			return &r->kernel[middle];
		if (order < 0)
			high = middle;
		else
			low = middle + 1;
	}
	return NULL;
}

void gp_code_start(_Atomic uint32_t *armed_word) { armed = armed_word; }
