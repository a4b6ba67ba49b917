// intercept_code.c - loads of modules and libraries, and what is got out of them. The core may put another image in the
// place of a module's, and another library in the place of one; handles that the program sees of either are the
// driver's. Kernels and functions are both CUfunction here.
#include "exports/layer.h"

#define CALL(hooks, hook, ...) \
	do { \
		if ((hooks)->hook) \
			(hooks)->hook(__VA_ARGS__); \
	} while (0)

// hook, or otherwise where there is none.
#define ASK(hooks, hook, otherwise, ...) ((hooks) && (hooks)->hook ? (hooks)->hook(__VA_ARGS__) : (otherwise))

// Everything between begin and end may wait for the whole context, the hooks too.
struct call {
	const struct gp_hooks *hooks;
	enum gp_wait wait;
	bool waits;
};

static struct call begin_as(enum gp_wait wait, void *object) {
	struct call call = {.hooks = gp_hooks(), .wait = wait};
	call.waits = call.hooks && atomic_load_explicit(&gp_armed, memory_order_relaxed);
	if (call.waits)
		CALL(call.hooks, before_wait, wait, object);
	return call;
}

static struct call begin(void) { return begin_as(GP_WAIT_CONTEXT, NULL); }

static CUresult end(struct call call, CUresult result) {
	if (call.waits)
		CALL(call.hooks, after_wait, call.wait, NULL, result);
	return result;
}

// load_other loads what the core would rather have; false: nothing was loaded.
static bool load_other(const struct gp_hooks *hooks, struct gp_load *load, CUmodule *module) {
	const void *other = module ? ASK(hooks, module_loading, NULL, load) : NULL;
	if (!other)
		return false;
	CUresult result = load->options ? REAL(cuModuleLoadDataEx)(module, other, load->options, (void *)load->option, (void **)load->value)
					: REAL(cuModuleLoadData)(module, other);
	CALL(hooks, module_loaded, load, result == CUDA_SUCCESS ? *module : NULL);
	return result == CUDA_SUCCESS;
}

static CUresult tell_loaded_as_given(const struct gp_hooks *hooks, struct gp_load *load, CUmodule *module, CUresult result) {
	load->token = NULL;
	if (result == CUDA_SUCCESS && module && hooks)
		CALL(hooks, module_loaded, load, *module);
	return result;
}

#define LOAD_MODULE(other, ...) \
	struct call call = begin(); \
	struct gp_load load = {__VA_ARGS__}; \
	return end(call, load_other(call.hooks, &load, module) ? CUDA_SUCCESS : tell_loaded_as_given(call.hooks, &load, module, other));

CUresult cuModuleLoad(CUmodule *module, const char *path) {
	LOAD_MODULE(REAL(cuModuleLoad)(module, path), .path = path)
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
	LOAD_MODULE(REAL(cuModuleLoadData)(module, image), .image = image)
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, void *options, void **values) {
	LOAD_MODULE(REAL(cuModuleLoadDataEx)(module, image, count, options, values), .image = image, .options = count,
		.option = options, .value = values)
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) {
	LOAD_MODULE(REAL(cuModuleLoadFatBinary)(module, image), .image = image)
}

CUresult gp_load_by_table(gp_table_load *drivers, CUmodule *module, const void *image, uintptr_t options, uintptr_t last) {
	LOAD_MODULE(drivers(module, image, NULL, NULL, options, last), .image = image)
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
	struct call call = begin();
	CUresult result = REAL(cuModuleGetFunction)(function, module, name);
	if (result == CUDA_SUCCESS && call.hooks)
		CALL(call.hooks, module_function, module);
	return end(call, result);
}

CUresult cuModuleUnload(CUmodule module) { // of the current context
	struct call call = begin_as(GP_TAKE, GP_CURRENT);
	if (call.hooks)
		CALL(call.hooks, module_unloading, module);
	return end(call, REAL(cuModuleUnload)(module));
}

static CUresult end_library_load(struct call call, CUlibrary *library, CUresult result, const struct gp_load *load) {
	if (result == CUDA_SUCCESS && library && call.hooks)
		CALL(call.hooks, library_loaded, load, *library);
	return end(call, result);
}

#define LOAD_LIBRARY(name, from, field) \
	struct call call = begin(); \
	CUresult result = REAL(name)(library, from, options, values, count, library_options, library_values, library_count); \
	return end_library_load(call, library, result, &(struct gp_load){.field = from, .options = count, .option = options, \
		.value = values, .library_options = library_count, .library_option = library_options, \
		.library_value = library_values});

CUresult cuLibraryLoadData(CUlibrary *library, const void *image, void *options, void **values, unsigned int count,
	void *library_options, void **library_values, unsigned int library_count) {
	LOAD_LIBRARY(cuLibraryLoadData, image, image)
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, void *options, void **values, unsigned int count,
	void *library_options, void **library_values, unsigned int library_count) {
	LOAD_LIBRARY(cuLibraryLoadFromFile, path, path)
}

CUresult cuLibraryUnload(CUlibrary library) {
	struct call call = begin_as(GP_TAKE, NULL);
	if (call.hooks)
		CALL(call.hooks, library_unloading, library);
	return end(call, REAL(cuLibraryUnload)(library));
}

#define USE_LIBRARY(name, ...) \
	struct call call = begin(); \
	library = ASK(call.hooks, library_used, library, library); \
	return end(call, REAL(name)(__VA_ARGS__));

CUresult cuLibraryGetKernel(CUfunction *kernel, CUlibrary library, const char *name) {
	USE_LIBRARY(cuLibraryGetKernel, kernel, library, name)
}

CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary library) {
	USE_LIBRARY(cuLibraryGetKernelCount, count, library)
}

CUresult cuLibraryEnumerateKernels(CUfunction *kernels, unsigned int count, CUlibrary library) {
	USE_LIBRARY(cuLibraryEnumerateKernels, kernels, count, library)
}

CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUlibrary library, const char *name) {
	USE_LIBRARY(cuLibraryGetGlobal, address, bytes, library, name)
}

CUresult cuLibraryGetManaged(CUdeviceptr *address, size_t *bytes, CUlibrary library, const char *name) {
	USE_LIBRARY(cuLibraryGetManaged, address, bytes, library, name)
}

CUresult cuLibraryGetUnifiedFunction(void **function, CUlibrary library, const char *name) {
	USE_LIBRARY(cuLibraryGetUnifiedFunction, function, library, name)
}

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library) {
	struct call call = begin();
	CUlibrary used = ASK(call.hooks, library_used, library, library);
	CUresult result = REAL(cuLibraryGetModule)(module, used);
	if (result == CUDA_SUCCESS && module && call.hooks)
		CALL(call.hooks, library_module, used, *module);
	return end(call, result);
}

CUresult cuKernelGetFunction(CUfunction *function, CUfunction kernel) {
	struct call call = begin_as(GP_LOAD, kernel);
	CUresult result = REAL(cuKernelGetFunction)(function, kernel);
	if (result == CUDA_SUCCESS && function && call.hooks)
		CALL(call.hooks, kernel_function, kernel, *function);
	return end(call, result);
}

CUresult cuKernelGetLibrary(CUlibrary *library, CUfunction kernel) {
	CUresult result = REAL(cuKernelGetLibrary)(library, kernel);
	if (result == CUDA_SUCCESS && library)
		*library = ASK(gp_hooks(), library_of, *library, *library);
	return result;
}

// Of a hidden parameter the program is told what the driver says of the one behind it: that there is none.

static size_t skip_hidden(CUfunction function, size_t index) {
	const struct gp_hooks *hooks = gp_hooks();
	return index + ASK(hooks, parameter_hidden, false, function, index);
}

CUresult cuKernelGetParamInfo(CUfunction kernel, size_t index, size_t *offset, size_t *size) {
	return REAL(cuKernelGetParamInfo)(kernel, skip_hidden(kernel, index), offset, size);
}

CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *size) {
	return REAL(cuFuncGetParamInfo)(function, skip_hidden(function, index), offset, size);
}

static CUresult subtract_hidden(CUfunction function, size_t *count, CUresult result) {
	const struct gp_hooks *hooks = gp_hooks();
	if (result == CUDA_SUCCESS && count && *count && ASK(hooks, parameter_hidden, false, function, *count - 1))
		--*count;
	return result;
}

CUresult cuKernelGetParamCount(CUfunction kernel, size_t *count) {
	return subtract_hidden(kernel, count, REAL(cuKernelGetParamCount)(kernel, count));
}

CUresult cuFuncGetParamCount(CUfunction function, size_t *count) {
	return subtract_hidden(function, count, REAL(cuFuncGetParamCount)(function, count));
}

// A launch that is stopped is repeated later, when the program may have allowed its kernel less shared memory again, for
// another launch: the limit is only ever raised.
static bool lowers_limit(int attribute, int value, CUresult result, int now) {
	const struct gp_hooks *hooks = gp_hooks();
	return attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && result == CUDA_SUCCESS && value >= 0 && value < now &&
	       hooks && hooks->code_wanted && hooks->code_wanted();
}

CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value) {
	int now = 0;
	CUresult result = REAL(cuFuncGetAttribute)(&now, attribute, function);
	if (lowers_limit(attribute, value, result, now))
		return CUDA_SUCCESS;
	return REAL(cuFuncSetAttribute)(function, attribute, value);
}

CUresult cuKernelSetAttribute(int attribute, int value, CUfunction kernel, CUdevice device) {
	int now = 0;
	struct call call = begin_as(GP_LOAD, kernel);
	CUresult result = REAL(cuKernelGetAttribute)(&now, attribute, kernel, device);
	return end(call, lowers_limit(attribute, value, result, now) ? CUDA_SUCCESS : REAL(cuKernelSetAttribute)(attribute, value, kernel, device));
}
