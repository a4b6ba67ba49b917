// lookup.c - answers programs that look up a function of the driver: dlsym, dlvsym, dlopen, cuGetProcAddress.
//
// cudart opens libcuda.so.1 itself and asks dlsym for cuGetProcAddress, so exported names alone would never be
// called. The real function always answers first, and its answer is replaced only where it is the address of a function
// in table.h; ABI versions, per-thread variants and status codes stay the driver's.
#include "exports/layer.h"
#include "hints/nvtx.h"

#include <dlfcn.h>
#include <string.h>

static void *const wrappers[GP_ROWS] = {
// NULL: called, not intercepted
#define ROW(kind, name, ...) (void *)name,
#define CALLED(name, params) NULL,
#include "exports/table.h"
};

// Returns what the caller gets instead of the function that libc (in any library) or the driver found.
static void *substitute(void *found, const char *name, bool by_driver, const void *caller)
{
	if (!found || gp_is_ours(found) || !gp_resolve(false))
		return found;
	enum gp_row row = gp_row_of(found);
	if (row != GP_ROWS)
		return gp_calls_back(caller, row) ? found : wrappers[row];
	if (name && gp_may_submit(name) && (by_driver || found == gp_driver_symbol(name)))
		gp_note_unknown(name);
	return found;
}

// Exported: dlsym, dlvsym, dlopen.

static bool may_be_driver(const char *name) { return name[0] == 'c' && name[1] == 'u'; }

// A program may ask for a driver function only to learn whether there is a driver, or whether it has the function.
// Without a driver, our own definition must not be the answer.
static bool found_only_here(void *handle, const char *name)
{
	if (likely(handle != RTLD_DEFAULT || !may_be_driver(name)))
		return false;
	for (int row = 0; row < GP_ROWS; row++)
		if (strcmp(gp_row_name[row], name) == 0)
			return !gp_resolve(false) || !gp_driver_has(row);
	return false;
}

// NVTX looks the tool up that NVTX_INJECTION64_PATH names, by the handle of that library. RTLD_NEXT and RTLD_DEFAULT depend on the
// caller: a tool that asks for the one behind it would get itself.
static bool is_nvtx(void *handle, const char *name)
{
	return name[0] == 'I' && handle != RTLD_NEXT && handle != RTLD_DEFAULT &&
	       strcmp(name, "InitializeInjectionNvtx2") == 0 && gp_active();
}

// RTLD_NEXT and RTLD_DEFAULT depend on the caller. libc needs no help: in the global order of lookups this library comes before
// the driver. But another library that answers for libc does so from its own place, behind this one.
static inline bool passes(void *handle, const char *name, const void *caller)
{
	if (!may_be_driver(name) || !gp_active())
		return true;
	if (handle != RTLD_NEXT && handle != RTLD_DEFAULT)
		return false;
	return gp_lookups_are_libcs() || (handle == RTLD_NEXT && !gp_is_ahead(caller, name));
}

PUBLIC void *dlsym(void *restrict handle, const char *restrict name)
{
	gp_dlsym_fn *next = gp_next_dlsym();
	const void *caller = __builtin_return_address(0);
	if (found_only_here(handle, name))
		return gp_next_symbol(name);
	if (is_nvtx(handle, name))
		return gp_nvtx_beside(next(handle, name));
	if (passes(handle, name, caller))
		TAIL next(handle, name);
	return substitute(next(handle, name), name, false, caller);
}

// Our lookup functions have no versions, so dlvsym passes them by. One that intercepts in front of this library asks so for what it goes
// on to.
static void *lookup_function(const char *name)
{
	return strcmp(name, "dlsym") == 0  ? (void *)dlsym :
	       strcmp(name, "dlvsym") == 0 ? (void *)dlvsym :
	       strcmp(name, "dlopen") == 0 ? (void *)dlopen :
					     NULL;
}

PUBLIC void *dlvsym(void *restrict handle, const char *restrict name, const char *restrict version)
{
	gp_dlvsym_fn *next = gp_next_dlvsym();
	const void *caller = __builtin_return_address(0);
	if (handle == RTLD_NEXT && name[0] == 'd' && name[1] == 'l' && gp_active() && lookup_function(name) &&
	    gp_is_ahead(caller, name))
		return lookup_function(name);
	if (passes(handle, name, caller))
		TAIL next(handle, name, version);
	return substitute(next(handle, name, version), name, false, caller);
}

// A library that is opened with RTLD_DEEPBIND would find libcuda's functions before ours, so the flag is dropped.
PUBLIC void *dlopen(const char *file, int mode)
{
	gp_dlopen_fn *next = gp_next_dlopen();
	if (mode & RTLD_DEEPBIND && gp_active())
		mode &= ~RTLD_DEEPBIND;
	TAIL next(file, mode);
}

// The next library may answer with a function that it does not export. The driver's own answer to the same question says which one it
// stands in front of.
static void *substitute_answer(void *found, const char *symbol, void *drivers, const void *caller)
{
	enum gp_row row = gp_row_of(found) == GP_ROWS && drivers ? gp_row_of(drivers) : GP_ROWS;
	if (row == GP_ROWS || gp_is_ours(found))
		return substitute(found, symbol, true, caller);
	gp_set_next(row, found);
	return gp_calls_back(caller, row) ? found : wrappers[row];
}

#define OWN_OF(name) ((typeof(&name))gp_own(ROW_OF_##name))

CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, uint64_t flags)
{
	const void *caller = __builtin_return_address(0);
	CUresult result = REAL(cuGetProcAddress)(symbol, pfn, version, flags);
	if (result == CUDA_SUCCESS && pfn && gp_active()) {
		typeof(&cuGetProcAddress) own = OWN_OF(cuGetProcAddress);
		void *drivers = NULL;
		if (own && own(symbol, &drivers, version, flags) != CUDA_SUCCESS)
			drivers = NULL;
		*pfn = substitute_answer(*pfn, symbol, drivers, caller);
	}
	return result;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags, void *status)
{
	const void *caller = __builtin_return_address(0);
	CUresult result = REAL(cuGetProcAddress_v2)(symbol, pfn, version, flags, status);
	if (result == CUDA_SUCCESS && pfn && gp_active()) {
		typeof(&cuGetProcAddress_v2) own = OWN_OF(cuGetProcAddress_v2);
		void *drivers = NULL;
		int ignored;
		if (own && own(symbol, &drivers, version, flags, &ignored) != CUDA_SUCCESS)
			drivers = NULL;
		*pfn = substitute_answer(*pfn, symbol, drivers, caller);
	}
	return result;
}
