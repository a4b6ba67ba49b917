// load.c - modules and libraries, and what is loaded in their place.
//
// A module is loaded from the rewritten image alone. A library is loaded as it came, which costs nothing: the driver
// does nothing with it until something of it is used. Then the rewritten one is loaded as a second library, and takes
// its place for good, so that there is one instance of its variables.
#define _GNU_SOURCE
#include "code.h"
#include "core.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct CUlinkState_st *CUlinkState;

enum { // cuda.h
	CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
	CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
	CU_DEVICE_ATTRIBUTE_MPS_ENABLED = 133,
	CU_JIT_WALL_TIME = 2,
	CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6,
	CU_JIT_GLOBAL_SYMBOL_NAMES = 17,
	CU_JIT_GLOBAL_SYMBOL_COUNT = 19,
	CU_JIT_REFERENCED_KERNEL_NAMES = 26,
	CU_JIT_REFERENCED_VARIABLE_COUNT = 29,
	CU_JIT_INPUT_PTX = 1,
	CU_JIT_INPUT_FATBINARY = 2,
	CU_LIBRARY_HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE = 0,
	CU_LIBRARY_BINARY_IS_PRESERVED = 1,
	CU_STREAM_CAPTURE_MODE_RELAXED = 2,
};

// CUlibraryHostUniversalFunctionAndDataTable, cuda.h
struct host_table {
	void *functions;
	size_t functions_size;
	void *data;
	size_t data_size;
};

enum { MAX_OPTIONS = 32, MAX_LIBRARY_OPTIONS = 8, BUCKETS = 1024 };

static struct {
	CUresult (*cuDeviceGetCount)(int *);
	CUresult (*cuDriverGetVersion)(int *);
	CUresult (*cuLibraryLoadData)(CUlibrary *, const void *, const int *, void *const *, unsigned, const int *,
				      void *const *, unsigned);
	CUresult (*cuLibraryGetModule)(CUmodule *, CUlibrary);
	CUresult (*cuLibraryUnload)(CUlibrary);
	CUresult (*cuParamSetv)(CUfunction, int, void *, unsigned);
	CUresult (*cuParamSetSize)(CUfunction, unsigned);
	CUresult (*cuLinkCreate)(unsigned, const int *, void *const *, CUlinkState *);
	CUresult (*cuLinkAddData)(CUlinkState, int, const void *, size_t, const char *, unsigned, const int *, void *const *);
	CUresult (*cuLinkComplete)(CUlinkState, void **, size_t *);
	CUresult (*cuLinkDestroy)(CUlinkState);
} driver;

static _Atomic uint32_t *armed;
_Atomic uint32_t gp_rewritten;

// Options of the just-in-time compiler, without what is written to: the program may have taken that back.
struct jit {
	unsigned count;
	int option[MAX_OPTIONS];
	void *value[MAX_OPTIONS];
	char text[16 + MAX_OPTIONS * 24]; // with the driver's version: what decides what its linker makes
};

struct module {
	struct module *next; // in a bucket
	CUmodule handle;
	CUcontext context;
	const struct gp_rewritten *rewritten;
	bool of_library; // which owns the mapping
	bool stale;	 // its context is said to have ended, and nothing of it was launched since
};

struct library {
	struct library *next, *next_second; // in buckets
	CUlibrary original, second;	    // second: NULL until it is loaded, and where it is not
	const struct gp_rewritten *rewritten;
	const void *source;
	size_t copied; // source is a mapping of ours, of so many bytes
	struct jit jit;
	bool preserved;
	unsigned options;
	int option[MAX_LIBRARY_OPTIONS];
	void *value[MAX_LIBRARY_OPTIONS];
	struct host_table host_table;
	pthread_mutex_t lock; // of what follows
	bool settled;
};

static pthread_mutex_t registry = PTHREAD_MUTEX_INITIALIZER; // of the lists; nothing is asked under it
static struct module *modules[BUCKETS];
static struct library *libraries[BUCKETS], *seconds[BUCKETS], *spare;

static size_t bucket_of(const void *handle) { return (uintptr_t)handle * 0x9E3779B97F4A7C15ull >> 54; } // 10 bits

// Whether it is wanted.

static _Atomic uint32_t when; // GP_BLP_*

void gp_blp_set(uint32_t w) { when = w; }

bool gp_blp_wanted(void)
{
	uint32_t w = when;
	if (w == GP_BLP_OFF)
		return false;
	int devices = 0, under = 0;
	if (w == GP_BLP_UNDER_MPS) {
		if (!driver.cuDeviceGetCount || driver.cuDeviceGetCount(&devices))
			return false;
		for (CUdevice d = 0; d < devices && !under; d++)
			if (gp_driver.cuDeviceGetAttribute(&under, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, d))
				under = 0;
		if (devices)
			when = under ? GP_BLP_ON : GP_BLP_OFF;
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

static int current_capability(void)
{
	CUdevice d;
	return gp_driver.cuCtxGetDevice(&d) ? 0 : capability(d);
}

// A library is there for all GPUs: they must be of one kind.
static int common_capability(void)
{
	int count = 0, common = 0;
	if (!driver.cuDeviceGetCount || driver.cuDeviceGetCount(&count))
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

static const char *copy_options(struct jit *to, unsigned count, const int *option, void *const *value)
{
	int version = 0;
	if (driver.cuDriverGetVersion)
		driver.cuDriverGetVersion(&version);
	char *text = to->text + sprintf(to->text, "%d ", version);
	to->count = 0;
	if (count && (!option || !value))
		return "options that are missing";
	for (unsigned i = 0; i < count; i++) {
		int o = option[i];
		if (o >= CU_JIT_WALL_TIME && o <= CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
			continue;
		if ((o >= CU_JIT_GLOBAL_SYMBOL_NAMES && o <= CU_JIT_GLOBAL_SYMBOL_COUNT) ||
		    (o >= CU_JIT_REFERENCED_KERNEL_NAMES && o <= CU_JIT_REFERENCED_VARIABLE_COUNT))
			return "options of the linker that name symbols";
		if (to->count == MAX_OPTIONS)
			return "too many options";
		to->option[to->count] = o;
		to->value[to->count++] = value[i];
		text += sprintf(text, "%d=%lx ", o & 0xffff, (unsigned long)(uint32_t)(uintptr_t)value[i]);
	}
	return NULL;
}

// Rewriting.

static void failed(const char *reason)
{
	char line[256];
	struct gp_request log = {.what = GP_REQUEST_LOG, .path = line};
	gp_count(&gp_kernels.refused[GP_REFUSED_IMAGE], 1);
	snprintf(line, sizeof line, "code runs as it came, not preemptible: %s", reason);
	gp_request(&log);
}

static void unmap(const struct gp_rewritten *r) { munmap((void *)r, r->bytes); }

static bool succeeded(const char *call, CUresult result, struct gp_request *r)
{
	if (result)
		snprintf(r->reason, sizeof r->reason, "%s: CUDA error %d", call, result);
	return !result;
}

// compile lets the driver's linker make a cubin of PTX, in the current context.
static void compile(struct gp_request *r, const struct jit *jit)
{
	CUlinkState state;
	void *cubin = NULL;
	size_t bytes = 0;

	r->answer = GP_ANSWER_FAILED;
	if (!driver.cuLinkCreate || !driver.cuLinkAddData || !driver.cuLinkComplete || !driver.cuLinkDestroy) {
		strcpy(r->reason, "the driver has no linker");
		return;
	}
	if (!succeeded("cuLinkCreate", driver.cuLinkCreate(jit->count, jit->option, jit->value, &state), r))
		return;
	int type = r->fatbin ? CU_JIT_INPUT_FATBINARY : CU_JIT_INPUT_PTX;
	if (succeeded("cuLinkAddData", driver.cuLinkAddData(state, type, r->memory, r->bytes, "gpreempt", 0, NULL, NULL), r) &&
	    succeeded("cuLinkComplete", driver.cuLinkComplete(state, &cubin, &bytes), r)) {
		r->image = cubin;
		r->image_bytes = bytes;
		r->linked = true;
		r->answered = 0;
		gp_request(r);
	}
	driver.cuLinkDestroy(state);
}

static void count(const struct gp_rewritten *r)
{
	for (uint32_t i = 0; i < r->kernels; i++)
		gp_count(r->kernel[i].reason ? &gp_kernels.refused[r->kernel[i].refusal % GP_REFUSALS] : &gp_kernels.guarded, 1);
	gp_count(&gp_kernels.seen, r->kernels);
}

// rewrite returns a mapping, or NULL where the original is to be used.
static const struct gp_rewritten *rewrite(const void *image, size_t bytes, int sm, const struct jit *jit)
{
	uint64_t begun = gp_now_ns();
	struct gp_request r = {.what = GP_REQUEST_REWRITE, .image = image, .image_bytes = bytes, .sm = (uint32_t)sm, .options = jit->text};
	gp_count(&gp_kernels.images, 1);
	gp_request(&r);
	if (r.answer == GP_ANSWER_LINK)
		compile(&r, jit);
	gp_count(&gp_kernels.load_ns, gp_now_ns() - begun);
	if (r.answer != GP_ANSWER_DONE) {
		failed(r.reason);
		return NULL;
	}
	gp_count(&gp_kernels.cached, r.cached);
	const struct gp_rewritten *rewritten = r.memory;
	count(rewritten);
	if (rewritten->image_bytes)
		return rewritten;
	unmap(rewritten);
	return NULL;
}

static const void *image_of(const struct gp_rewritten *r) { return (const char *)r + r->image; }

// in_use is called before the first handle of rewritten code is known to anybody: from now on every launch must pass
// through the core.
static void in_use(void)
{
	enum { REWRITTEN = 2 }; // another bit of gp_armed than the agents'
	atomic_fetch_or(armed, REWRITTEN);
	gp_rewritten++;
}

// The driver may keep reading an image that is to be preserved; otherwise it has its own copy.
static void image_read(const struct gp_rewritten *r)
{
	uintptr_t page = 4096, begin = ((uintptr_t)image_of(r) + page - 1) & -page;
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

// Modules.

static CUcontext current(void)
{
	CUcontext c = NULL;
	gp_driver.cuCtxGetCurrent(&c);
	return c;
}

static void remember(CUmodule handle, const struct gp_rewritten *r, bool of_library)
{
	struct module new = {.handle = handle, .context = current(), .rewritten = r, .of_library = of_library};
	struct module *m, **bucket = &modules[bucket_of(handle)];
	pthread_mutex_lock(&registry);
	for (m = *bucket; m && m->handle != handle; m = m->next)
		;
	if (!m && (m = calloc(1, sizeof *m))) {
		m->next = *bucket;
		*bucket = m;
	} else if (m && !m->of_library && m->rewritten != r) {
		unmap(m->rewritten); // of a module that ended with its context
	}
	if (m) {
		new.next = m->next;
		*m = new;
	}
	pthread_mutex_unlock(&registry);
}

// drop takes modules out of the registry: one, those of a library, or the stale ones.
static void drop(CUmodule handle, const struct gp_rewritten *of, bool stale)
{
	pthread_mutex_lock(&registry);
	for (int b = 0; b < BUCKETS; b++)
		for (struct module **at = &modules[b]; *at;) {
			struct module *m = *at;
			if (m->handle != handle && (!of || m->rewritten != of) && !(stale && m->stale)) {
				at = &m->next;
				continue;
			}
			*at = m->next;
			if (!m->of_library)
				unmap(m->rewritten);
			free(m);
		}
	pthread_mutex_unlock(&registry);
}

static const void *module_loading(struct gp_load *load)
{
	struct jit jit;
	const void *image = load->image;
	struct gp_request copy = {.what = GP_REQUEST_COPY, .path = load->path};

	load->token = NULL;
	if (!gp_blp_wanted() || (!image && !load->path))
		return NULL;
	int sm = current_capability();
	if (!sm) // no context: the driver says so
		return NULL;
	const char *reason = copy_options(&jit, load->options, load->option, load->value);
	if (reason) {
		failed(reason);
		return NULL;
	}
	if (load->path) {
		gp_request(&copy);
		if (copy.answer != GP_ANSWER_DONE) {
			failed(copy.reason);
			return NULL;
		}
		image = copy.memory;
	}
	const struct gp_rewritten *r = rewrite(image, copy.bytes, sm, &jit);
	if (load->path)
		munmap(copy.memory, copy.bytes);
	if (!r)
		return NULL;
	in_use();
	load->token = (void *)r;
	return image_of(r);
}

static void module_loaded(struct gp_load *load, CUmodule module)
{
	const struct gp_rewritten *r = load->token;
	if (module) {
		image_read(r);
		remember(module, r, false);
		gp_code_forget(); // a handle that meant nothing before
	} else {
		failed("the driver did not load the rewritten module");
		unmap(r);
	}
}

static void module_unloading(CUmodule module)
{
	if (!gp_rewritten)
		return;
	drop(module, NULL, false);
	gp_code_forget();
}

// A context may live on, if others hold it: what was loaded into it is still known then.
void gp_load_context_destroying(CUcontext context)
{
	enum { MAX_STALE = 4096 };
	int stale = 0;
	if (!gp_rewritten)
		return;
	pthread_mutex_lock(&registry);
	for (int b = 0; b < BUCKETS; b++)
		for (struct module *m = modules[b]; m; m = m->next)
			stale += m->stale;
	pthread_mutex_unlock(&registry);
	if (stale > MAX_STALE) // of contexts that ended before
		drop(NULL, NULL, true);
	pthread_mutex_lock(&registry);
	for (int b = 0; b < BUCKETS; b++)
		for (struct module *m = modules[b]; m; m = m->next)
			m->stale |= m->context == context;
	pthread_mutex_unlock(&registry);
	gp_code_forget();
}

// Libraries.

static struct library *find_library(CUlibrary handle)
{
	struct library *l;
	pthread_mutex_lock(&registry);
	for (l = libraries[bucket_of(handle)]; l && l->original != handle; l = l->next)
		;
	pthread_mutex_unlock(&registry);
	return l;
}

static void release(struct library *l)
{
	if (l->copied)
		munmap((void *)l->source, l->copied);
	l->copied = 0;
	l->source = NULL;
}

static struct library *new_library(void)
{
	pthread_mutex_lock(&registry);
	struct library *l = spare;
	if (l)
		spare = l->next;
	pthread_mutex_unlock(&registry);
	return l ? l : calloc(1, sizeof *l); // zeros are an initialised mutex
}

// keep_options copies what the second library is to be loaded with.
static const char *keep_options(struct library *l, const struct gp_load *load)
{
	l->preserved = false;
	l->options = 0;
	if (load->library_options > MAX_LIBRARY_OPTIONS)
		return "too many options";
	for (unsigned i = 0; i < load->library_options; i++) {
		int option = load->library_option[i];
		void *value = load->library_value ? load->library_value[i] : NULL;
		if (option == CU_LIBRARY_BINARY_IS_PRESERVED) {
			l->preserved = true;
		} else if (option != CU_LIBRARY_HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE) {
			return "unknown option of a library";
		} else if (value) {
			l->host_table = *(struct host_table *)value;
			value = &l->host_table;
		}
		l->option[i] = option;
		l->value[i] = value;
		l->options = i + 1;
	}
	return copy_options(&l->jit, load->options, load->option, load->value);
}

static void library_loaded(const struct gp_load *load, CUlibrary handle)
{
	struct gp_request copy = {.what = GP_REQUEST_COPY, .image = load->image, .path = load->path};
	struct library *l = gp_blp_wanted() ? new_library() : NULL;
	if (!l)
		return;
	const char *reason = keep_options(l, load);
	l->original = handle;
	l->source = load->image;
	l->settled = false;
	if (!reason && !(copy.sm = (uint32_t)common_capability()))
		reason = "GPUs of several kinds";
	if (!reason && !l->preserved) { // the program may take it back
		gp_request(&copy);
		if (copy.answer != GP_ANSWER_DONE)
			reason = copy.reason;
		l->source = copy.memory;
		l->copied = copy.bytes;
	}
	if (reason) {
		failed(reason);
		l->copied = 0;
		l->settled = true;
	}
	pthread_mutex_lock(&registry);
	size_t b = bucket_of(handle);
	l->next = libraries[b];
	libraries[b] = l;
	pthread_mutex_unlock(&registry);
}

// settle loads what is to take the library's place.
static void settle(struct library *l)
{
	int sm = common_capability();
	CUlibrary second = NULL;
	const struct gp_rewritten *r = rewrite(l->source, l->copied, sm, &l->jit);
	if (!r)
		return;
	in_use();
	CUresult result = driver.cuLibraryLoadData(&second, image_of(r), l->jit.option, l->jit.value, l->jit.count,
						   l->option, l->value, l->options);
	if (result) {
		char reason[64];
		snprintf(reason, sizeof reason, "cuLibraryLoadData: CUDA error %d", result);
		failed(reason);
		unmap(r);
		return;
	}
	if (!l->preserved)
		image_read(r);
	pthread_mutex_lock(&registry);
	l->rewritten = r;
	l->second = second;
	size_t b = bucket_of(second);
	l->next_second = seconds[b];
	seconds[b] = l;
	pthread_mutex_unlock(&registry);
	gp_code_forget();
}

static CUlibrary library_used(CUlibrary handle)
{
	struct library *l = find_library(handle);
	if (!l)
		return handle;
	pthread_mutex_lock(&l->lock);
	if (!l->settled) {
		int mode = CU_STREAM_CAPTURE_MODE_RELAXED; // something may be captured meanwhile
		if (!gp_driver.cuThreadExchangeStreamCaptureMode(&mode)) {
			settle(l);
			gp_driver.cuThreadExchangeStreamCaptureMode(&mode);
		}
		release(l);
		l->settled = true;
	}
	CUlibrary used = l->second ? l->second : handle;
	pthread_mutex_unlock(&l->lock);
	return used;
}

static struct library *find_second(CUlibrary handle)
{
	struct library *l;
	pthread_mutex_lock(&registry);
	for (l = seconds[bucket_of(handle)]; l && l->second != handle; l = l->next_second)
		;
	pthread_mutex_unlock(&registry);
	return l;
}

static CUlibrary library_of(CUlibrary handle)
{
	struct library *l = find_second(handle);
	return l ? l->original : handle;
}

static void take_out(struct library *l)
{
	struct library **at;
	for (at = &libraries[bucket_of(l->original)]; *at && *at != l; at = &(*at)->next)
		;
	if (*at)
		*at = l->next;
	for (at = &seconds[bucket_of(l->second)]; *at && *at != l; at = &(*at)->next_second)
		;
	if (*at)
		*at = l->next_second;
}

static void library_unloading(CUlibrary handle)
{
	struct library *l = find_library(handle);
	if (!l)
		return;
	pthread_mutex_lock(&l->lock);
	pthread_mutex_lock(&registry);
	take_out(l);
	pthread_mutex_unlock(&registry);
	release(l);
	if (l->second) {
		drop(NULL, l->rewritten, false);
		gp_code_forget();
		driver.cuLibraryUnload(l->second);
		unmap(l->rewritten);
	}
	l->rewritten = NULL;
	l->second = NULL;
	l->settled = true;
	pthread_mutex_unlock(&l->lock);
	pthread_mutex_lock(&registry);
	l->next = spare; // not freed: another thread may have it in hand
	spare = l;
	pthread_mutex_unlock(&registry);
}

const struct gp_rewritten *gp_rewritten_library(CUlibrary handle)
{
	struct library *l = find_second(handle);
	return l ? l->rewritten : NULL;
}

static void library_module(CUlibrary handle, CUmodule module)
{
	struct library *l = find_second(handle);
	if (l)
		remember(module, l->rewritten, true);
}

static void kernel_function(CUfunction kernel, CUfunction function)
{
	CUlibrary library;
	CUmodule module;
	if (gp_rewritten && gp_driver.cuKernelGetLibrary && !gp_driver.cuKernelGetLibrary(&library, kernel) &&
	    !gp_driver.cuFuncGetModule(&module, function))
		library_module(library, module);
}

// A module of a library that nobody asked for as such.
static const struct gp_rewritten *search(CUmodule module, const char *kernel)
{
	const struct gp_rewritten *found = NULL;
	CUlibrary candidates[64];
	int count = 0;
	CUmodule of;

	pthread_mutex_lock(&registry);
	for (int b = 0; b < BUCKETS; b++)
		for (struct library *l = seconds[b]; l && count < 64; l = l->next_second)
			if (gp_rewritten_find(l->rewritten, kernel))
				candidates[count++] = l->second;
	pthread_mutex_unlock(&registry);
	for (int i = 0; i < count && !found; i++)
		if (!driver.cuLibraryGetModule(&of, candidates[i]) && of == module) {
			library_module(candidates[i], module);
			found = gp_rewritten_library(candidates[i]);
		}
	return found;
}

// With the lock: a module of the context is used.
static void lives(CUcontext context)
{
	for (int b = 0; b < BUCKETS; b++)
		for (struct module *m = modules[b]; m; m = m->next)
			m->stale &= m->context != context;
}

const struct gp_rewritten *gp_rewritten_module(CUmodule module, const char *kernel)
{
	struct module *m;
	pthread_mutex_lock(&registry);
	for (m = modules[bucket_of(module)]; m && m->handle != module; m = m->next)
		;
	const struct gp_rewritten *r = m ? m->rewritten : NULL;
	if (m && m->stale)
		lives(m->context);
	pthread_mutex_unlock(&registry);
	if (r || !driver.cuLibraryGetModule || !kernel)
		return r;
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED; // it may load the module
	if (gp_driver.cuThreadExchangeStreamCaptureMode(&mode))
		return NULL;
	r = search(module, kernel);
	gp_driver.cuThreadExchangeStreamCaptureMode(&mode);
	return r;
}

static bool parameter_hidden(CUfunction function, size_t index)
{
	const struct gp_code *code = gp_code_of(function);
	return code && index == code->parameters;
}

void gp_code_let_pass(CUfunction function)
{
	CUdeviceptr none = 0;
	const struct gp_code *code = gp_code_of(function);
	if (!code || !driver.cuParamSetv || !driver.cuParamSetSize)
		return;
	driver.cuParamSetv(function, (int)code->hidden, &none, sizeof none);
	driver.cuParamSetSize(function, code->bytes);
}

const char *gp_load_start(void *(*symbol)(const char *), _Atomic uint32_t *armed_word)
{
	armed = armed_word;
	driver.cuDeviceGetCount = symbol("cuDeviceGetCount");
	driver.cuDriverGetVersion = symbol("cuDriverGetVersion");
	driver.cuLibraryLoadData = symbol("cuLibraryLoadData");
	driver.cuLibraryGetModule = symbol("cuLibraryGetModule");
	driver.cuLibraryUnload = symbol("cuLibraryUnload");
	driver.cuParamSetv = symbol("cuParamSetv");
	driver.cuParamSetSize = symbol("cuParamSetSize");
	driver.cuLinkCreate = symbol("cuLinkCreate_v2");
	driver.cuLinkAddData = symbol("cuLinkAddData_v2");
	driver.cuLinkComplete = symbol("cuLinkComplete");
	driver.cuLinkDestroy = symbol("cuLinkDestroy");
	gp_driver.cuFuncGetModule = symbol("cuFuncGetModule");
	gp_driver.cuFuncGetName = symbol("cuFuncGetName");
	gp_driver.cuFuncGetParamInfo = symbol("cuFuncGetParamInfo");
	gp_driver.cuKernelGetName = symbol("cuKernelGetName");
	gp_driver.cuKernelGetLibrary = symbol("cuKernelGetLibrary");
	gp_driver.cuKernelGetParamInfo = symbol("cuKernelGetParamInfo");
	return !gp_driver.cuFuncGetModule ? "cuFuncGetModule" : !gp_driver.cuFuncGetName ? "cuFuncGetName" :
	       !gp_driver.cuKernelGetName ? "cuKernelGetName" : NULL; // CUDA 12.3
}

void gp_load_hooks(struct gp_hooks *hooks)
{
	hooks->module_loading = module_loading;
	hooks->module_loaded = module_loaded;
	hooks->module_unloading = module_unloading;
	hooks->library_loaded = library_loaded;
	hooks->library_used = library_used;
	hooks->library_of = library_of;
	hooks->library_unloading = library_unloading;
	hooks->library_module = library_module;
	hooks->kernel_function = kernel_function;
	hooks->parameter_hidden = parameter_hidden;
}

// Requests.

static struct {
	pthread_mutex_t lock;
	struct gp_request *first, **last;
	_Atomic uint32_t made; // futex
} requests = {.lock = PTHREAD_MUTEX_INITIALIZER};

void gp_request(struct gp_request *r)
{
	r->next = NULL;
	pthread_mutex_lock(&requests.lock);
	if (!requests.first)
		requests.last = &requests.first;
	*requests.last = r;
	requests.last = &r->next;
	requests.made++;
	pthread_mutex_unlock(&requests.lock);
	gp_futex_wake(&requests.made, 1, false);
	while (!r->answered)
		gp_futex_wait(&r->answered, 0, 0, false);
}

struct gp_request *gp_request_next(void)
{
	for (;;) {
		pthread_mutex_lock(&requests.lock);
		uint32_t seen = requests.made;
		struct gp_request *r = requests.first;
		if (r)
			requests.first = r->next;
		pthread_mutex_unlock(&requests.lock);
		if (r)
			return r;
		gp_futex_wait(&requests.made, seen, 0, false);
	}
}

void gp_request_answer(struct gp_request *r, int answer)
{
	r->answer = answer;
	r->answered = 1; // from here on it may be gone: waking an address that nobody waits at does no harm
	gp_futex_wake(&r->answered, 1, false);
}
