// fill.c - memsets and copies within a GPU's memory as kernels that can be stopped (kernels/fill.cu).
//
// Only for plain allocations of the current context's device. All other memory is left to the driver, and so is every call
// that it might refuse.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"
#include "preempt/code/code.h"
#include "preempt/process/process.h"
#include "kernels/fill.h"

// Rows of bytes.
struct rows {
	CUdeviceptr at;
	size_t pitch;
};

static bool extent(const struct rows *r, size_t width, size_t height, size_t *bytes)
{
	return !__builtin_mul_overflow(height - 1, r->pitch, bytes) && !__builtin_add_overflow(*bytes, width, bytes) &&
	       (height == 1 || r->pitch >= width);
}

// Whether the rows lie in one allocation of the current device.
static bool plain(const struct gp_context *c, CUdevice device, const struct rows *r, size_t width, size_t height)
{
	CUcontext context = NULL;
	CUdeviceptr start = 0;
	size_t size = 0, bytes;
	uint64_t type = 0, synchronous = 0, managed = 0;
	int ordinal = -1;
	int attribute[] = {
		CU_POINTER_ATTRIBUTE_CONTEXT,        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
		CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,    CU_POINTER_ATTRIBUTE_IS_MANAGED,
		CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
		CU_POINTER_ATTRIBUTE_RANGE_SIZE,
	};
	void *value[] = {&context, &type, &synchronous, &managed, &ordinal, &start, &size};

	if (!extent(r, width, height, &bytes) ||
	    gp_driver.cuPointerGetAttributes(sizeof attribute / sizeof *attribute, attribute, value, r->at))
		return false;
	return (uint32_t)type == CU_MEMORYTYPE_DEVICE && !(uint8_t)managed && !(uint8_t)synchronous &&
	       ordinal == device && (!context || context == c->handle) && start && r->at >= start &&
	       r->at - start <= size && bytes <= size - (r->at - start);
}

static bool read_2d(const struct gp_copy_side *s, size_t width, struct rows *r)
{
	*r = (struct rows){s->device + s->y * s->pitch + s->x_bytes, s->pitch};
	return (s->memory_type == CU_MEMORYTYPE_DEVICE || s->memory_type == CU_MEMORYTYPE_UNIFIED) &&
	       s->pitch <= INT32_MAX && s->y <= INT32_MAX && s->x_bytes <= s->pitch && width <= s->pitch - s->x_bytes;
}

static uint32_t repeated(uint32_t value, uint32_t element_bytes)
{
	return element_bytes == 1 ? (value & 0xff) * 0x01010101u :
	       element_bytes == 2 ? (value & 0xffff) * 0x00010001u :
				    value;
}

// A memset or copy, as its kernel gets it.
struct fill {
	struct rows to, from;
	size_t width, height; // in bytes, and rows
	bool copies;
};

// False: it is left to the driver.
static bool read_fill(const struct gp_operation *o, struct fill *f)
{
	const struct gp_context *c = o->context;
	struct rows to = {o->memory.to, o->memory.to_pitch}, from = {o->memory.from, 0};
	size_t width, height = o->memory.height;
	bool copies = o->work == GP_COPY;
	CUdevice device;

	if (!__atomic_load_n((uint32_t *)&c->fill.ready, __ATOMIC_ACQUIRE))
		return false;
	if (o->memory.copy_2d) {
		const struct gp_copy_2d *p = o->memory.copy_2d;
		width = p->width_bytes;
		height = p->height;
		if (!read_2d(&p->to, width, &to) || !read_2d(&p->from, width, &from))
			return false;
	} else if (__builtin_mul_overflow(o->memory.width, (size_t)o->memory.element_bytes, &width) ||
		   ((to.at | (height > 1 ? to.pitch : 0)) & (o->memory.element_bytes - 1))) {
		return false;
	}
	if (!width || !height || gp_driver.cuCtxGetDevice(&device) || !plain(c, device, &to, width, height) ||
	    (copies && !plain(c, device, &from, width, height)))
		return false;
	if (height > 1 && to.pitch == width && (!copies || from.pitch == width)) { // without gaps
		width *= height;
		height = 1;
	}
	*f = (struct fill){to, from, width, height, copies};
	return true;
}

static bool launch_fill(struct gp_operation *o, const struct fill *f)
{
	const struct gp_context *c = o->context;
	struct rows to = f->to, from = f->from;
	size_t width = f->width, height = f->height;
	bool copies = f->copies;
	uint32_t value = repeated(o->memory.value, o->memory.element_bytes);
	uint64_t aligned = to.at | to.pitch | width | (copies ? from.at | from.pitch : 0), blocks;
	uint32_t unit = aligned % 16 ? aligned % 4 ? 1 : 4 : 16, count = (uint32_t)(width / unit);
	uint64_t segments = width / FILL_SEGMENT + 2; // for any alignment of a row
	struct gp_launch launch = {.block = {FILL_THREADS, 1, 1}};
	void *wide_fill[] = {&to.at, &to.pitch, &width, &height, &segments, &value};
	void *wide_copy[] = {&to.at, &to.pitch, &width, &height, &segments, &from.at, &from.pitch};
	void *narrow_fill[] = {&to.at, &to.pitch, &height, &count, &unit, &value};
	void *narrow_copy[] = {&to.at, &to.pitch, &height, &count, &unit, &from.at, &from.pitch};

	if (height > 1 && width < FILL_NARROW) {
		launch.function = copies ? c->fill.copy_narrow : c->fill.fill_narrow;
		launch.parameters = copies ? narrow_copy : narrow_fill;
		if (__builtin_mul_overflow(height, (uint64_t)count, &blocks))
			return false;
		blocks = blocks / FILL_UNITS + 1;
	} else {
		launch.function = copies ? c->fill.copy : c->fill.fill;
		launch.parameters = copies ? wide_copy : wide_fill;
		if (__builtin_mul_overflow(height, segments, &blocks))
			return false;
		blocks = blocks / (FILL_THREADS / 32) + 1;
	}
	if (blocks > INT32_MAX)
		return false;
	launch.grid[0] = (uint32_t)blocks;
	launch.grid[1] = launch.grid[2] = 1;
	if (!blp_launch(o, &launch))
		return false;
	o->blocking = false;
	return true;
}

static bool find_fill(const struct gp_operation *o, struct fill *f)
{
	if (!o->context || !gp_driver.cuPointerGetAttributes || (!o->memory.height && !o->memory.copy_2d))
		return false;
	const struct gp_domain *d = blp_domain_for(o);
	return d && (gp_settings.level || d->scope) && // only the program itself stops streams of the highest level
	       read_fill(o, f);
}

bool gp_blp_fills_later(CUcontext context, const struct gp_operation *o)
{
	struct gp_operation now = *o;
	now.handle = context;
	now.context = gp_find_context(context);
	struct fill f;
	return !blp_separated() && find_fill(&now, &f);
}

bool blp_fill(struct gp_operation *o)
{
	struct fill f;
	return find_fill(o, &f) && launch_fill(o, &f);
}

// Where code is loaded lazily the first launch would wait for the whole context. The program's memset would not. So the launch might wait
// for the program's next call.
static CUresult load_now(CUfunction function)
{
	if (gp_driver.cuFuncLoad)
		return gp_driver.cuFuncLoad(function);
	return gp_driver_loads_lazily() ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

// The kernels are loaded and rewritten like the program's own.
static CUresult load(struct gp_context *c, const char **call)
{
	struct gp_load loading = {.image = gp_settings.fill_image};
	CUmodule module = NULL;
	CUresult result;

	*call = "rewriting of memsets and copies";
	const void *image = gp_module_loading(&loading);
	if (!image)
		return CUDA_ERROR_UNKNOWN;
	*call = "cuModuleLoadData";
	result = gp_driver.cuModuleLoadData(&module, image);
	if (result == CUDA_ERROR_CONTEXT_IS_DESTROYED) // not initialised yet, as a CUDA runtime makes it current: no refusal
		gp_module_put_off(&loading);
	else
		gp_module_loaded(&loading, result ? NULL : module);
	const struct {
		const char *name;
		CUfunction *function;
	} kernel[] = {
		{"gpreempt_fill", &c->fill.fill},
		{"gpreempt_copy", &c->fill.copy},
		{"gpreempt_fill_narrow", &c->fill.fill_narrow},
		{"gpreempt_copy_narrow", &c->fill.copy_narrow},
	};
	*call = "cuModuleGetFunction";
	for (size_t i = 0; i < sizeof kernel / sizeof *kernel && !result; i++) {
		result = gp_driver.cuModuleGetFunction(kernel[i].function, module, kernel[i].name);
		if (!result && !gp_code_of(*kernel[i].function))
			result = CUDA_ERROR_UNKNOWN;
		if (!result)
			result = load_now(*kernel[i].function);
	}
	return result;
}

CUresult gp_fill_prepare(struct gp_context *c, const char **call)
{
	CUcontext handle = c->handle, popped;
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED; // a capture in global mode forbids loading to other threads too

	if (!handle || !gp_driver.cuPointerGetAttributes || !gp_blp_wanted() || !gp_context_pin(c, handle))
		return 0;
	if (c->ending) { // its modules have been forgotten
		gp_context_unpin(c);
		return 0;
	}
	*call = "cuCtxPushCurrent";
	CUresult result = gp_driver.cuCtxPushCurrent(handle);
	if (!result) {
		gp_driver.cuThreadExchangeStreamCaptureMode(&mode);
		result = load(c, call);
		gp_driver.cuThreadExchangeStreamCaptureMode(&mode);
		gp_driver.cuCtxPopCurrent(&popped);
	}
	if (!result)
		c->fill.ready = 1;
	gp_context_unpin(c);
	return result == CUDA_ERROR_NOT_SUPPORTED ? CUDA_SUCCESS : result; // the driver's own memsets and copies serve too
}
