// intercept_code.c - the exported functions that load modules and libraries, and that look up what is in them.
//
// The core may have a module loaded from another image, and may replace a library by another one. All handles that the program
// sees are the driver's. Kernels and functions are both CUfunction here.
#include "exports/layer.h"

// Everything between begin and gp_call_end may wait for the whole context, also the hooks.
static struct gp_call begin(void) { return gp_call_begin(GP_WAIT_CONTEXT, NULL); }

// A function of the driver that loads code, or may, between the hooks' code_loading. The hooks' work before it takes longer, and is not
// part of it.
#define LOADING(hooks, call) \
	({ \
		const struct gp_hooks *hooks_ = hooks; \
		if (hooks_) \
			hooks_->code_loading(true); \
		CUresult loaded_ = call; \
		if (hooks_) \
			hooks_->code_loading(false); \
		loaded_; \
	})

// Loads the image that the core gives instead of the program's. False: nothing was loaded.
static bool load_other(const struct gp_hooks *hooks, struct gp_load *load, CUmodule *module)
{
	const void *other = module && hooks ? hooks->module_loading(load) : NULL;
	if (!other)
		return false;
	CUresult result =
		LOADING(hooks, load->options ? REAL(cuModuleLoadDataEx)(module, other, load->options,
									(void *)load->option, (void **)load->value) :
					       REAL(cuModuleLoadData)(module, other));
	hooks->module_loaded(load, result == CUDA_SUCCESS ? *module : NULL);
	return result == CUDA_SUCCESS;
}

static CUresult tell_loaded_as_given(const struct gp_hooks *hooks, struct gp_load *load, CUmodule *module, CUresult result)
{
	load->token = NULL;
	if (result == CUDA_SUCCESS && module && hooks)
		hooks->module_loaded(load, *module);
	return result;
}

#define LOAD_MODULE(other, ...) \
	struct gp_call call = begin(); \
	struct gp_load load = {__VA_ARGS__}; \
	return gp_call_end(call, load_other(call.hooks, &load, module) ? \
					 CUDA_SUCCESS : \
					 tell_loaded_as_given(call.hooks, &load, module, \
							      WITH_ROOM(call.hooks, GP_CURRENT_DEVICE, \
									LOADING(call.hooks, other))));

CUresult cuModuleLoad(CUmodule *module, const char *path){LOAD_MODULE(REAL(cuModuleLoad)(module, path), .path = path)}

CUresult cuModuleLoadData(CUmodule *module,
			  const void *image){LOAD_MODULE(REAL(cuModuleLoadData)(module, image), .image = image)}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, void *options, void **values){
	LOAD_MODULE(REAL(cuModuleLoadDataEx)(module, image, count, options, values), .image = image, .options = count,
		    .option = options, .value = values)}

CUresult cuModuleLoadFatBinary(CUmodule *module,
			       const void *image){LOAD_MODULE(REAL(cuModuleLoadFatBinary)(module, image), .image = image)}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	struct gp_call call = begin();
	CUresult result = WITH_ROOM(call.hooks, GP_CURRENT_DEVICE,
				    LOADING(call.hooks, REAL(cuModuleGetFunction)(function, module, name)));
	if (result == CUDA_SUCCESS && call.hooks)
		call.hooks->module_function(module);
	return gp_call_end(call, result);
}

CUresult cuModuleUnload(CUmodule module)
{ // of the current context
	CUresult result;
	const struct gp_hooks *hooks = gp_current_hooks();
	if (hooks && hooks->module_unload(module, &result))
		return result;
	struct gp_call call = gp_call_begin(GP_TAKE, GP_CURRENT);
	if (call.hooks)
		call.hooks->module_unloading(module);
	return gp_call_end(call, REAL(cuModuleUnload)(module));
}

static CUresult end_library_load(struct gp_call call, CUlibrary *library, CUresult result, const struct gp_load *load)
{
	if (result == CUDA_SUCCESS && library && call.hooks)
		call.hooks->library_loaded(load, *library);
	return gp_call_end(call, result);
}

#define LOAD_LIBRARY(name, from, field) \
	struct gp_call call = begin(); \
	CUresult result = WITH_ROOM(call.hooks, GP_CURRENT_DEVICE, \
				    LOADING(call.hooks, REAL(name)(library, from, options, values, count, \
								   library_options, library_values, library_count))); \
	return end_library_load(call, library, result, \
				&(struct gp_load){.field = from, \
						  .options = count, \
						  .option = options, \
						  .value = values, \
						  .library_options = library_count, \
						  .library_option = library_options, \
						  .library_value = library_values});

CUresult cuLibraryLoadData(CUlibrary *library, const void *image, void *options, void **values, unsigned int count,
			   void *library_options, void **library_values,
			   unsigned int library_count){LOAD_LIBRARY(cuLibraryLoadData, image, image)}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, void *options, void **values, unsigned int count,
			       void *library_options, void **library_values,
			       unsigned int library_count){LOAD_LIBRARY(cuLibraryLoadFromFile, path, path)}

CUresult cuLibraryUnload(CUlibrary library)
{
	CUresult result;
	const struct gp_hooks *hooks = gp_current_hooks();
	if (hooks && hooks->library_unload(library, &result))
		return result;
	struct gp_call call = gp_call_begin(GP_TAKE, NULL);
	if (call.hooks)
		call.hooks->library_unloading(library);
	return gp_call_end(call, REAL(cuLibraryUnload)(library));
}

#define USE_LIBRARY(name, ...) \
	struct gp_call call = begin(); \
	library = call.hooks ? call.hooks->library_used(library) : library; \
	return gp_call_end(call, WITH_ROOM(call.hooks, GP_CURRENT_DEVICE, LOADING(call.hooks, REAL(name)(__VA_ARGS__))));

CUresult cuLibraryGetKernel(CUfunction *kernel, CUlibrary library,
			    const char *name){USE_LIBRARY(cuLibraryGetKernel, kernel, library, name)}

CUresult cuLibraryGetKernelCount(unsigned int *count,
				 CUlibrary library){USE_LIBRARY(cuLibraryGetKernelCount, count, library)}

CUresult cuLibraryEnumerateKernels(CUfunction *kernels, unsigned int count,
				   CUlibrary library){USE_LIBRARY(cuLibraryEnumerateKernels, kernels, count, library)}

CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUlibrary library,
			    const char *name){USE_LIBRARY(cuLibraryGetGlobal, address, bytes, library, name)}

CUresult cuLibraryGetManaged(CUdeviceptr *address, size_t *bytes, CUlibrary library,
			     const char *name){USE_LIBRARY(cuLibraryGetManaged, address, bytes, library, name)}

CUresult cuLibraryGetUnifiedFunction(void **function, CUlibrary library,
				     const char *name){USE_LIBRARY(cuLibraryGetUnifiedFunction, function, library, name)}

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
	struct gp_call call = begin();
	CUlibrary used = call.hooks ? call.hooks->library_used(library) : library;
	CUresult result =
		WITH_ROOM(call.hooks, GP_CURRENT_DEVICE, LOADING(call.hooks, REAL(cuLibraryGetModule)(module, used)));
	if (result == CUDA_SUCCESS && module && call.hooks)
		call.hooks->library_module(used, *module);
	return gp_call_end(call, result);
}

CUresult cuKernelGetFunction(CUfunction *function, CUfunction kernel)
{
	struct gp_call call = gp_call_begin(GP_LOAD, kernel);
	CUresult result = WITH_ROOM(call.hooks, GP_CURRENT_DEVICE, REAL(cuKernelGetFunction)(function, kernel));
	if (result == CUDA_SUCCESS && function && call.hooks)
		call.hooks->kernel_function(kernel, *function);
	return gp_call_end(call, result);
}

CUresult cuKernelGetLibrary(CUlibrary *library, CUfunction kernel)
{
	CUresult result = REAL(cuKernelGetLibrary)(library, kernel);
	const struct gp_hooks *hooks = gp_current_hooks();
	if (result == CUDA_SUCCESS && library && hooks)
		*library = hooks->library_of(*library);
	return result;
}

// Rewritten kernels have one more parameter, the last one. If the program asks about it, the driver is asked about the one behind
// it, and answers that there is none.

static size_t skip_hidden(CUfunction function, size_t index)
{
	const struct gp_hooks *hooks = gp_current_hooks();
	return index + (hooks && hooks->parameter_hidden(function, index));
}

CUresult cuKernelGetParamInfo(CUfunction kernel, size_t index, size_t *offset, size_t *size)
{
	return REAL(cuKernelGetParamInfo)(kernel, skip_hidden(kernel, index), offset, size);
}

CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *size)
{
	return REAL(cuFuncGetParamInfo)(function, skip_hidden(function, index), offset, size);
}

static CUresult subtract_hidden(CUfunction function, size_t *count, CUresult result)
{
	const struct gp_hooks *hooks = gp_current_hooks();
	if (result == CUDA_SUCCESS && count && *count && hooks && hooks->parameter_hidden(function, *count - 1))
		--*count;
	return result;
}

CUresult cuKernelGetParamCount(CUfunction kernel, size_t *count)
{
	return subtract_hidden(kernel, count, REAL(cuKernelGetParamCount)(kernel, count));
}

CUresult cuFuncGetParamCount(CUfunction function, size_t *count)
{
	return subtract_hidden(function, count, REAL(cuFuncGetParamCount)(function, count));
}

// A launch that is stopped is repeated later. By then the program may have lowered the kernel's limit of shared memory for
// another launch. So the limit is never lowered.
static bool lowers_limit(int attribute, int value, CUresult result, int now)
{
	const struct gp_hooks *hooks = gp_current_hooks();
	return attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && result == CUDA_SUCCESS && value >= 0 &&
	       value < now && hooks && hooks->code_wanted();
}

// Launches that are repeated later need the clusters that they had, and what is known of these is out of date then.
static bool changes_clusters(int attribute)
{
	const struct gp_hooks *hooks = gp_current_hooks();
	return attribute >= CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH &&
	       attribute <= CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH && hooks && hooks->code_wanted();
}

static CUresult end_change(struct gp_call call, CUresult result)
{
	if (call.hooks)
		call.hooks->clusters_changed();
	return gp_call_end(call, result);
}

CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value)
{
	int now = 0;
	if (changes_clusters(attribute)) {
		struct gp_call call = gp_call_begin(GP_TAKE, GP_CURRENT);
		return end_change(call, REAL(cuFuncSetAttribute)(function, attribute, value));
	}
	CUresult result = REAL(cuFuncGetAttribute)(&now, attribute, function);
	if (lowers_limit(attribute, value, result, now))
		return CUDA_SUCCESS;
	return REAL(cuFuncSetAttribute)(function, attribute, value);
}

CUresult cuKernelSetAttribute(int attribute, int value, CUfunction kernel, CUdevice device)
{
	int now = 0;
	if (changes_clusters(attribute)) {
		struct gp_call call = gp_call_begin(GP_TAKE, NULL);
		return end_change(call, REAL(cuKernelSetAttribute)(attribute, value, kernel, device));
	}
	struct gp_call call = gp_call_begin(GP_LOAD, kernel);
	CUresult result = REAL(cuKernelGetAttribute)(&now, attribute, kernel, device);
	return gp_call_end(call, lowers_limit(attribute, value, result, now) ?
					 CUDA_SUCCESS :
					 REAL(cuKernelSetAttribute)(attribute, value, kernel, device));
}
