// modules.c - modules, libraries, their functions and variables.
#include "sim.h"

#include <stdlib.h>
#include <string.h>

struct CUmod_st { // also a CUlibrary
	struct image *image;
	struct CUmod_st *library;        // of a library's module: the library
	struct CUmod_st *modules, *next; // of a library: its modules, one per context
	uint64_t context;                // of a library's module: CUctx_st.id
	struct CUfunc_st *functions;
	uint64_t *variable; // addresses, 0 = none yet
};

// ---- loading

static struct CUmod_st *module_new(struct image *image, enum handle_kind kind)
{
	struct CUmod_st *m = calloc(1, sizeof *m);
	if (!m || !(m->variable = calloc((size_t)image->variables + 1, sizeof *m->variable)))
		abort();
	m->image = image;
	handle_add(m, kind);
	return m;
}

// Handles of functions that are gone, sim_lock held. A driver gives the same ones to the next functions; whether free() and calloc() would
// depends on the program and its C library.
static struct CUfunc_st *spare;

static void module_free(struct CUmod_st *m)
{
	handle_remove(m);
	for (int i = 0; i < m->image->variables; i++)
		if (m->variable[i])
			memory_remove(m->variable[i], MEMORY_DEVICE);
	while (m->functions) {
		struct CUfunc_st *f = m->functions;
		m->functions = f->next;
		handle_remove(f);
		f->next = spare;
		spare = f;
	}
	while (m->modules) {
		struct CUmod_st *of = m->modules;
		m->modules = of->next;
		module_free(of);
	}
	if (!m->library)
		image_free(m->image);
	free(m->variable);
	free(m);
}

static CUresult load(struct CUmod_st **out, const void *data, uint64_t bytes, enum handle_kind kind)
{
	struct CUctx_st *c;
	CUresult r = !out || !data ? CUDA_ERROR_INVALID_VALUE : kind == H_MODULE ? enter_unsafe(&c) : enter(NULL);
	if (r != CUDA_SUCCESS)
		return r;
	struct image *image = image_read(data, bytes, &r);
	if (image && kind == H_MODULE)
		call_wait(c, CALL_LOAD);
	if (image)
		*out = module_new(image, kind);
	return leave(r);
}

static CUresult load_file(struct CUmod_st **out, const char *path, enum handle_kind kind)
{
	if (!out || !path)
		return CUDA_ERROR_INVALID_VALUE;
	uint64_t bytes;
	char *data = image_file(path, &bytes);
	if (!data)
		return CUDA_ERROR_FILE_NOT_FOUND;
	CUresult r = load(out, data, bytes, kind);
	free(data);
	return r;
}

static CUresult unload(struct CUmod_st *m, enum handle_kind kind)
{
	CUresult r = enter(NULL);
	if (r != CUDA_SUCCESS)
		return r;
	if (!handle_is(m, kind) || m->library)
		return leave(CUDA_ERROR_INVALID_HANDLE);
	struct CUctx_st *c = context_current();
	if (c)
		call_wait(c, CALL_UNLOAD);
	module_free(m);
	return leave(CUDA_SUCCESS);
}

CALL(cuModuleLoadData, (CUmodule * out, const void *image), (out, image)) { return load(out, image, 0, H_MODULE); }

CALL(cuModuleLoadDataEx, (CUmodule * out, const void *image, unsigned n, int *options, void **values),
     (out, image, n, options, values))
{
	(void)n, (void)options, (void)values;
	return load(out, image, 0, H_MODULE);
}

CALL(cuModuleLoadFatBinary, (CUmodule * out, const void *image), (out, image)) { return load(out, image, 0, H_MODULE); }

CALL(cuModuleLoad, (CUmodule * out, const char *path), (out, path)) { return load_file(out, path, H_MODULE); }

CALL(cuModuleUnload, (CUmodule m), (m)) { return unload(m, H_MODULE); }

CALL(cuModuleGetLoadingMode, (int *out), (out))
{
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = sim_lazy() ? 2 : 1; // CU_MODULE_LAZY_LOADING, CU_MODULE_EAGER_LOADING
	return CUDA_SUCCESS;
}

CALL(cuLibraryLoadData,
     (CUmodule * out, const void *code, int *jit, void **jit_values, unsigned njit, int *options, void **values, unsigned n),
     (out, code, jit, jit_values, njit, options, values, n))
{
	(void)jit, (void)jit_values, (void)njit, (void)options, (void)values, (void)n;
	return load(out, code, 0, H_LIBRARY);
}

CALL(cuLibraryLoadFromFile,
     (CUmodule * out, const char *path, int *jit, void **jit_values, unsigned njit, int *options, void **values, unsigned n),
     (out, path, jit, jit_values, njit, options, values, n))
{
	(void)jit, (void)jit_values, (void)njit, (void)options, (void)values, (void)n;
	return load_file(out, path, H_LIBRARY);
}

CALL(cuLibraryUnload, (CUmodule l), (l)) { return unload(l, H_LIBRARY); }

static CUresult enter_module(struct CUmod_st *m, enum handle_kind kind)
{
	CUresult r = enter(NULL);
	return r == CUDA_SUCCESS && !handle_is(m, kind) ? leave(CUDA_ERROR_INVALID_HANDLE) : r;
}

// The module of a library in the current context.
static CUresult module_of(struct CUmod_st *library, struct CUmod_st **out)
{
	struct CUctx_st *c = context_current();
	if (!c)
		return CUDA_ERROR_INVALID_CONTEXT;
	struct CUmod_st *m = library->modules;
	while (m && m->context != c->id)
		m = m->next;
	if (!m) {
		m = module_new(library->image, H_MODULE);
		m->library = library;
		m->context = c->id;
		m->next = library->modules;
		library->modules = m;
	}
	*out = m;
	return CUDA_SUCCESS;
}

CALL(cuLibraryGetModule, (CUmodule * out, CUmodule l), (out, l))
{
	CUresult r = out ? enter_module(l, H_LIBRARY) : CUDA_ERROR_INVALID_VALUE;
	return r == CUDA_SUCCESS ? leave(module_of(l, out)) : r;
}

// ---- functions

static struct CUfunc_st *function_of(struct CUmod_st *m, const struct definition *d, enum handle_kind kind)
{
	struct CUfunc_st *f = m->functions;
	while (f && f->definition != d)
		f = f->next;
	if (f)
		return f;
	f = spare;
	if (f)
		spare = f->next;
	else if (!(f = malloc(sizeof *f)))
		abort();
	*f = (struct CUfunc_st){.definition = d, .module = m, .next = m->functions};
	m->functions = f;
	handle_add(f, kind);
	return f;
}

static CUresult named(struct CUfunc_st **out, struct CUmod_st *m, const char *name, enum handle_kind container,
		      enum handle_kind kind)
{
	CUresult r = out && name ? enter_module(m, container) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	for (int i = 0; i < m->image->definitions; i++)
		if (strcmp(m->image->definition[i].name, name) == 0) {
			*out = function_of(m, &m->image->definition[i], kind);
			return leave(CUDA_SUCCESS);
		}
	return leave(CUDA_ERROR_NOT_FOUND);
}

static CUresult count(unsigned *out, struct CUmod_st *m, enum handle_kind container)
{
	CUresult r = out ? enter_module(m, container) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	*out = (unsigned)m->image->definitions;
	return leave(CUDA_SUCCESS);
}

static CUresult enumerate(struct CUfunc_st **out, unsigned n, struct CUmod_st *m, enum handle_kind container,
			  enum handle_kind kind)
{
	CUresult r = out ? enter_module(m, container) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	for (unsigned i = 0; i < n && i < (unsigned)m->image->definitions; i++)
		out[i] = function_of(m, &m->image->definition[i], kind);
	return leave(CUDA_SUCCESS);
}

CALL(cuModuleGetFunction, (CUfunction * out, CUmodule m, const char *name), (out, m, name))
{
	return named(out, m, name, H_MODULE, H_FUNCTION);
}

CALL(cuModuleGetFunctionCount, (unsigned *out, CUmodule m), (out, m)) { return count(out, m, H_MODULE); }

CALL(cuModuleEnumerateFunctions, (CUfunction * out, unsigned n, CUmodule m), (out, n, m))
{
	return enumerate(out, n, m, H_MODULE, H_FUNCTION);
}

CALL(cuLibraryGetKernel, (CUfunction * out, CUmodule l, const char *name), (out, l, name))
{
	return named(out, l, name, H_LIBRARY, H_KERNEL);
}

CALL(cuLibraryGetKernelCount, (unsigned *out, CUmodule l), (out, l)) { return count(out, l, H_LIBRARY); }

CALL(cuLibraryEnumerateKernels, (CUfunction * out, unsigned n, CUmodule l), (out, n, l))
{
	return enumerate(out, n, l, H_LIBRARY, H_KERNEL);
}

static CUresult enter_function(CUfunction f)
{
	CUresult r = enter(NULL);
	return r == CUDA_SUCCESS && !is_function(f) ? leave(CUDA_ERROR_INVALID_HANDLE) : r;
}

bool is_function(const void *f) { return handle_is(f, H_FUNCTION) || handle_is(f, H_KERNEL); }

CALL(cuKernelGetFunction, (CUfunction * out, CUfunction k), (out, k))
{
	CUresult r = enter_handle(k, H_KERNEL, out);
	if (r != CUDA_SUCCESS)
		return r;
	struct CUmod_st *m;
	r = module_of(k->module, &m);
	if (r == CUDA_SUCCESS)
		*out = function_of(m, k->definition, H_FUNCTION);
	return leave(r);
}

CALL(cuKernelGetLibrary, (CUmodule * out, CUfunction k), (out, k))
{
	CUresult r = enter_handle(k, H_KERNEL, out);
	if (r != CUDA_SUCCESS)
		return r;
	*out = k->module;
	return leave(CUDA_SUCCESS);
}

CALL(cuFuncGetModule, (CUmodule * out, CUfunction f), (out, f))
{
	CUresult r = enter_handle(f, H_FUNCTION, out);
	if (r != CUDA_SUCCESS)
		return r;
	*out = f->module;
	return leave(CUDA_SUCCESS);
}

CALL(cuFuncGetName, (const char **out, CUfunction f), (out, f))
{
	CUresult r = out ? enter_function(f) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	*out = f->definition->name;
	return leave(CUDA_SUCCESS);
}

CALL(cuKernelGetName, (const char **out, CUfunction k), (out, k)) { return cuFuncGetName(out, k); }

CALL(cuFuncGetParamInfo, (CUfunction f, size_t index, size_t *offset, size_t *size), (f, index, offset, size))
{
	CUresult r = offset ? enter_function(f) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	if (index >= (size_t)f->definition->parameters)
		return leave(CUDA_ERROR_INVALID_VALUE);
	*offset = f->definition->parameter[index].offset;
	if (size)
		*size = f->definition->parameter[index].size;
	return leave(CUDA_SUCCESS);
}

CALL(cuKernelGetParamInfo, (CUfunction k, size_t index, size_t *offset, size_t *size), (k, index, offset, size))
{
	return cuFuncGetParamInfo(k, index, offset, size);
}

CALL(cuFuncIsLoaded, (int *out, CUfunction f), (out, f))
{
	CUresult r = out ? enter_function(f) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	struct CUctx_st *c = context_current();
	*out = !sim_lazy() || (c && f->loaded >> c->id % 64 & 1); // CU_FUNCTION_LOADING_STATE_UNLOADED, LOADED
	return leave(CUDA_SUCCESS);
}

CALL(cuFuncLoad, (CUfunction f), (f))
{
	CUresult r = enter_function(f);
	if (r != CUDA_SUCCESS)
		return r;
	struct CUctx_st *c = context_current();
	if (c)
		function_load(f, c);
	return leave(c ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT);
}

void function_load(CUfunction f, struct CUctx_st *c)
{
	uint64_t bit = 1ull << c->id % 64;
	if ((f->loaded & bit) || !sim_lazy())
		return;
	f->loaded |= bit;
	if (!c->code_bytes && memory_charge(c->device, sim_code_bytes()))
		c->code_bytes = sim_code_bytes();
	call_wait(c, CALL_FIRST_LAUNCH);
}

CALL(cuFuncGetAttribute, (int *out, int attribute, CUfunction f), (out, attribute, f))
{
	CUresult r = out ? enter_function(f) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	const struct kernel *k = f->definition->kernel;
	switch (attribute) {                   // CUfunction_attribute
	case 0: *out = 1024; break;            // MAX_THREADS_PER_BLOCK
	case 1: *out = k->shared_bytes; break; // SHARED_SIZE_BYTES
	case 2: *out = 0; break;               // CONST_SIZE_BYTES
	case 3: *out = k->local_bytes; break;  // LOCAL_SIZE_BYTES
	case 4: *out = k->registers; break;    // NUM_REGS
	case 5:
	case 6: *out = 10 * machine.cc_major + machine.cc_minor; break; // PTX_VERSION, BINARY_VERSION
	case 8: *out = f->attribute[8] ? f->attribute[8] : machine.shared_per_block - k->shared_bytes; break;
	case 9: *out = f->attribute[9] ? f->attribute[9] : -1; break; // PREFERRED_SHARED_MEMORY_CARVEOUT
	default:
		if (attribute < 0 || attribute > 15)
			return leave(CUDA_ERROR_INVALID_VALUE);
		*out = f->attribute[attribute];
	}
	return leave(CUDA_SUCCESS);
}

CALL(cuFuncSetAttribute, (CUfunction f, int attribute, int value), (f, attribute, value))
{
	CUresult r = enter_function(f);
	if (r != CUDA_SUCCESS)
		return r;
	bool valid = attribute >= 8 && attribute <= 15; // the others are read-only
	if (attribute == 8)
		valid = value >= 0 && value <= machine.shared_per_block_optin - f->definition->kernel->shared_bytes;
	if (attribute == 9)
		valid = value >= -1 && value <= 100;
	if (valid)
		f->attribute[attribute] = value;
	return leave(valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CALL(cuKernelGetAttribute, (int *out, int attribute, CUfunction k, CUdevice d), (out, attribute, k, d))
{
	(void)d;
	return cuFuncGetAttribute(out, attribute, k);
}

CALL(cuKernelSetAttribute, (int attribute, int value, CUfunction k, CUdevice d), (attribute, value, k, d))
{
	(void)d;
	return cuFuncSetAttribute(k, attribute, value);
}

// ---- variables: each module has its own

static CUresult variable(struct CUmod_st *m, const char *name, CUdeviceptr *out, size_t *bytes)
{
	for (int i = 0; i < m->image->variables; i++) {
		const struct variable *v = &m->image->variable[i];
		if (strcmp(v->name, name) != 0)
			continue;
		if (!m->variable[i]) {
			m->variable[i] = memory_allocate(v->bytes, MEMORY_DEVICE, NULL);
			if (!m->variable[i])
				return CUDA_ERROR_OUT_OF_MEMORY;
			if (v->initial)
				memcpy((void *)m->variable[i], v->initial, v->bytes);
			else
				memset((void *)m->variable[i], 0, v->bytes);
		}
		if (out)
			*out = m->variable[i];
		if (bytes)
			*bytes = v->bytes;
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_NOT_FOUND;
}

CALL(cuModuleGetGlobal_v2, (CUdeviceptr * out, size_t *bytes, CUmodule m, const char *name), (out, bytes, m, name))
{
	CUresult r = name ? enter_module(m, H_MODULE) : CUDA_ERROR_INVALID_VALUE;
	return r == CUDA_SUCCESS ? leave(variable(m, name, out, bytes)) : r;
}

CALL(cuLibraryGetGlobal, (CUdeviceptr * out, size_t *bytes, CUmodule l, const char *name), (out, bytes, l, name))
{
	struct CUmod_st *m;
	CUresult r = name ? enter_module(l, H_LIBRARY) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	r = module_of(l, &m);
	return leave(r == CUDA_SUCCESS ? variable(m, name, out, bytes) : r);
}
