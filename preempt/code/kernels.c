// kernels.c - finds what is known of a kernel by its handle.
#define _GNU_SOURCE
#include "preempt/code/handles.h"
#include "preempt/code/rewrite.h"

#include <stdlib.h>
#include <string.h>

enum { LAYOUTS = 256, KEPT_WHOLE = 256 };

static const struct gp_code no_code;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // of layouts, and of what follows

// Of an image that is gone another kernel may have the place: being kept whole does it no harm.
static const struct gp_rewritten_kernel *kept_whole[KEPT_WHOLE];
static uint32_t kept;

// layout returns the one description of some parameters. They are few: most kernels share them.
static const struct gp_code *layout(const struct gp_rewritten *image, const struct gp_rewritten_kernel *kernel)
{
	bool whole = false;
	for (uint32_t i = 0; i < KEPT_WHOLE && kept_whole[i]; i++)
		whole |= kept_whole[i] == kernel;
	struct described {
		struct described *next;
		struct gp_code code;
	};
	static struct described *described[LAYOUTS];
	const void *parameters = (const char *)image + kernel->layout;
	size_t bytes = kernel->parameters * sizeof *((struct gp_code *)0)->parameter;
	bool independent = kernel->independent == 1;
	uint32_t hash = kernel->hidden + whole + 2 * independent;
	for (size_t i = 0; i < bytes / sizeof(uint16_t); i++)
		hash = hash * 31 + ((const uint16_t *)parameters)[i];
	struct described **chain = &described[hash % LAYOUTS];
	for (struct described *k = *chain; k; k = k->next)
		if (k->code.parameters == kernel->parameters && k->code.hidden == kernel->hidden && k->code.whole == whole &&
		    k->code.independent == independent && !memcmp(k->code.parameter, parameters, bytes))
			return &k->code;
	struct described *k = calloc(1, sizeof *k + bytes);
	if (!k)
		return NULL;
	k->code.guarded = true;
	k->code.whole = whole;
	k->code.independent = independent;
	k->code.parameters = kernel->parameters;
	k->code.hidden = kernel->hidden;
	k->code.bytes = kernel->hidden + sizeof(CUdeviceptr);
	memcpy(k->code.parameter, parameters, bytes);
	k->next = *chain;
	*chain = k;
	return &k->code;
}

// as_seen says whether the driver, where it can say, sees the hidden parameter and nothing behind it.
static bool as_seen(const struct gp_rewritten_kernel *k, CUresult (*info)(CUfunction, size_t, size_t *, size_t *),
		    CUfunction function)
{
	size_t offset = 0, size = 0;
	return !info || (!info(function, k->parameters, &offset, &size) && offset == k->hidden &&
			 size == sizeof(CUdeviceptr) && info(function, k->parameters + 1u, &offset, &size));
}

// The rewritten kernel that a handle stands for, if it has a guard, and what tells of its parameters.
static const struct gp_rewritten_kernel *kernel_of(CUfunction function, const struct gp_rewritten **in,
						   CUresult (**info)(CUfunction, size_t, size_t *, size_t *))
{
	const struct gp_rewritten *image = NULL;
	const char *name = gp_driver_kernel_name(function);
	CUlibrary library;
	CUmodule module;

	*info = gp_driver.cuKernelGetParamInfo;

	if (gp_driver.cuKernelGetLibrary && !gp_driver.cuKernelGetLibrary(&library, function)) {
		image = gp_rewritten_library(library);
	} else {
		CUfunction of_kernel, of = function;
		if (!gp_driver.cuKernelGetLibrary && gp_driver.cuKernelGetFunction &&
		    !gp_driver.cuKernelGetFunction(&of_kernel, function))
			of = of_kernel;
		else
			*info = gp_driver.cuFuncGetParamInfo;
		if (!name || gp_driver.cuFuncGetModule(&module, of))
			return NULL;
		if (!(image = gp_rewritten_module(module)))
			image = gp_library_of_module(module, name);
	}
	const struct gp_rewritten_kernel *kernel = image && name ? gp_rewritten_find(image, name) : NULL;
	*in = image;
	return kernel && !kernel->reason ? kernel : NULL;
}

static const struct gp_code *ask(CUfunction function)
{
	CUresult (*info)(CUfunction, size_t, size_t *, size_t *);
	const struct gp_rewritten *image;
	const struct gp_rewritten_kernel *kernel = kernel_of(function, &image, &info);

	if (!kernel)
		return &no_code;
	if (!as_seen(kernel, info, function)) {
		gp_log_line("the driver reports other parameters than a rewritten kernel has: the kernel is launched "
			    "unchanged");
		return &no_code;
	}
	pthread_mutex_lock(&lock);
	const struct gp_code *code = layout(image, kernel);
	pthread_mutex_unlock(&lock);
	return code ? code : &no_code;
}

void gp_code_keep_whole(CUfunction function)
{
	CUresult (*info)(CUfunction, size_t, size_t *, size_t *);
	const struct gp_rewritten *image;
	const struct gp_rewritten_kernel *kernel = kernel_of(function, &image, &info);

	if (!kernel)
		return;
	pthread_mutex_lock(&lock);
	kept_whole[kept++ % KEPT_WHOLE] = kernel;
	pthread_mutex_unlock(&lock);
	gp_code_forget();
}

static const struct gp_code *known(const struct gp_code *code) { return code == &no_code ? NULL : code; }

static __attribute__((noinline, cold)) const struct gp_code *learn(CUfunction function)
{
	uint32_t generation;
	const struct gp_code *code = gp_handle_look(function, &generation);
	if (code)
		return known(code);
	code = ask(function);
	gp_handle_enter(function, code, generation);
	return known(code);
}

const struct gp_code *gp_code_of(CUfunction function)
{
	if (!atomic_load_explicit(&gp_images_rewritten, memory_order_relaxed) || !function)
		return NULL;
	uint32_t before = atomic_load_explicit(&gp_code_generation, memory_order_acquire);
	const struct gp_code *code = gp_handle_find(function);
	atomic_thread_fence(memory_order_acquire);
	if (!code || before % 2 || before != atomic_load_explicit(&gp_code_generation, memory_order_relaxed))
		return learn(function);
	return known(code);
}

bool gp_code_is_loaded(CUfunction function, uint64_t context)
{
	uint32_t before = atomic_load_explicit(&gp_code_generation, memory_order_acquire);
	struct gp_handle *h = gp_handle_place(function);
	uint64_t loaded = h ? atomic_load_explicit(&h->loaded, memory_order_relaxed) : 0;
	atomic_thread_fence(memory_order_acquire);
	return loaded & context && before % 2 == 0 &&
	       before == atomic_load_explicit(&gp_code_generation, memory_order_relaxed);
}

// To ask for an attribute loads the code, too.
bool gp_code_load(CUfunction kernel, uint64_t context)
{
	int registers, mode = gp_relax_captures(); // a capture in global mode forbids loading to other threads too
	uint32_t generation = gp_code_generation;
	CUfunction function;

	gp_code_loading(true);
	if (!gp_driver.cuKernelGetFunction || gp_driver.cuKernelGetFunction(&function, kernel))
		function = kernel;
	CUresult result = gp_driver.cuFuncLoad ?
				  gp_driver.cuFuncLoad(function) :
				  gp_driver.cuFuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function);
	gp_code_loading(false);
	gp_unrelax_captures(mode);
	if (!result)
		gp_handle_add_loaded(kernel, context, generation);
	return !result;
}

bool gp_code_learn_loaded(CUfunction function, uint64_t context)
{
	int state = 0;
	uint32_t generation = gp_code_generation;
	CUlibrary library;
	if (!gp_driver.cuFuncIsLoaded ||
	    (gp_driver.cuKernelGetLibrary && !gp_driver.cuKernelGetLibrary(&library, function))) // a CUkernel
		return false;
	int mode = gp_relax_captures();
	CUresult result = gp_driver.cuFuncIsLoaded(&state, function);
	gp_unrelax_captures(mode);
	if (result || state != CU_FUNCTION_LOADING_STATE_LOADED)
		return false;
	gp_code_of(function); // it has a place from now on
	gp_handle_add_loaded(function, context, generation);
	return true;
}

bool gp_code_parameter_hidden(CUfunction function, size_t index)
{
	const struct gp_code *code = gp_code_of(function);
	return code && index == code->parameters;
}

void gp_code_let_pass(CUfunction function)
{
	CUdeviceptr none = 0;
	const struct gp_code *code = gp_code_of(function);
	if (!code || !gp_driver.cuParamSetv || !gp_driver.cuParamSetSize)
		return;
	gp_driver.cuParamSetv(function, (int)code->hidden, &none, sizeof none);
	gp_driver.cuParamSetSize(function, code->bytes);
}
