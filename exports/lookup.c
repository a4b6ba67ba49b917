// lookup.c - answers programs that look up a function of the driver: dlsym, dlvsym, dlopen, cuGetProcAddress.
//
// cudart opens libcuda.so.1 itself and asks dlsym for cuGetProcAddress, so exported names alone would never be
// called. The real function always answers first, and its answer is replaced only where it is the address of a function
// in table.h; ABI versions, per-thread variants and status codes stay the driver's.
#include "exports/layer.h"

#include <dlfcn.h>
#include <string.h>

static void *const wrappers[GP_ROWS] = {
// NULL: called, not intercepted
#define ROW(kind, name, ...) (void *)name,
#define CALLED(name, params) NULL,
#include "exports/table.h"
};

// Returns what the program gets instead of the function that libc (in any library) or the driver found.
static void *substitute(void *found, const char *name, bool by_driver)
{
	if (!found || gp_is_ours(found) || !gp_resolve(false))
		return found;
	enum gp_row row = gp_row_of(found);
	if (row != GP_ROWS)
		return wrappers[row];
	if (name && gp_may_submit(name) && (by_driver || found == gp_driver_symbol(name)))
		gp_note_unknown(name);
	return found;
}

// Exported: dlsym, dlvsym, dlopen.

static bool may_be_driver(const char *name) { return name[0] == 'c' && name[1] == 'u'; }

// RTLD_NEXT and RTLD_DEFAULT depend on the caller. They need no help: in the global order of lookups this library comes before
// the driver.
static inline bool caller_decides(void *handle) { return handle == RTLD_NEXT || handle == RTLD_DEFAULT; }

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

PUBLIC void *dlsym(void *restrict handle, const char *restrict name)
{
	gp_dlsym_fn *next = gp_real_dlsym();
	if (found_only_here(handle, name))
		return gp_next_symbol(name);
	if (caller_decides(handle) || !may_be_driver(name) || !gp_active())
		TAIL next(handle, name);
	return substitute(next(handle, name), name, false);
}

PUBLIC void *dlvsym(void *restrict handle, const char *restrict name, const char *restrict version)
{
	gp_dlvsym_fn *next = gp_real_dlvsym();
	if (caller_decides(handle) || !may_be_driver(name) || !gp_active())
		TAIL next(handle, name, version);
	return substitute(next(handle, name, version), name, false);
}

// A library that is opened with RTLD_DEEPBIND would find libcuda's functions before ours, so the flag is dropped.
PUBLIC void *dlopen(const char *file, int mode)
{
	gp_dlopen_fn *next = gp_real_dlopen();
	if (mode & RTLD_DEEPBIND && gp_active())
		mode &= ~RTLD_DEEPBIND;
	TAIL next(file, mode);
}

// Runtimes that ask here for cuGetExportTable (11.3 and later) would refuse the table of export_table.c.
static bool substituted(const char *symbol) { return !symbol || strcmp(symbol, "cuGetExportTable") != 0; }

CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, uint64_t flags)
{
	CUresult result = REAL(cuGetProcAddress)(symbol, pfn, version, flags);
	if (result == CUDA_SUCCESS && pfn && gp_active() && substituted(symbol))
		*pfn = substitute(*pfn, symbol, true);
	return result;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags, void *status)
{
	CUresult result = REAL(cuGetProcAddress_v2)(symbol, pfn, version, flags, status);
	if (result == CUDA_SUCCESS && pfn && gp_active() && substituted(symbol))
		*pfn = substitute(*pfn, symbol, true);
	return result;
}
