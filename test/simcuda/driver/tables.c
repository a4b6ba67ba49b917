// tables.c - cuGetExportTable: what CUDA runtimes up to 11.1 call of it. NVIDIA documents none of this; names and meanings
// are those that others who stand for its driver have found (ZLUDA, Wine).
#include "sim.h"

#include <stdlib.h>
#include <string.h>

CUresult cuModuleLoadFatBinary(CUmodule *, const void *);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);

static CUresult nothing(void) { return CUDA_SUCCESS; }

// ---- for the runtime itself

static CUresult load(CUmodule *out, const void *wrapper, int *options, void **values, unsigned n)
{
	(void)options, (void)values, (void)n;
	return cuModuleLoadFatBinary(out, wrapper);
}

static void *const cudart[10] = {
	(void *)sizeof cudart, (void *)nothing, (void *)cuDevicePrimaryCtxRetain,
	(void *)nothing,       (void *)nothing, (void *)nothing,
	(void *)load,          (void *)nothing, (void *)nothing,
	(void *)nothing,
};

// ---- for the hooks of tools: the runtime is told that none listens

static uint32_t callbacks[1024], more_callbacks[14];

static void get_callbacks(void **out, size_t *n)
{
	*out = callbacks;
	*n = sizeof callbacks / sizeof *callbacks;
}

static void get_more_callbacks(void **out, size_t *n)
{
	*out = more_callbacks;
	*n = sizeof more_callbacks / sizeof *more_callbacks;
}

static void *const hooks[7] = {
	(void *)sizeof hooks, (void *)nothing, (void *)get_callbacks,      (void *)nothing,
	(void *)nothing,      (void *)nothing, (void *)get_more_callbacks,
};

static void *const tls[4] = {(void *)sizeof tls, (void *)nothing, (void *)nothing, (void *)nothing};

// ---- what the runtime keeps with a context

static struct kept {
	struct kept *next;
	CUcontext context;
	const void *key;
	void *value;
} *kept; // with sim_lock

static CUresult find(CUcontext context, const void *key, struct kept ***at)
{
	struct CUctx_st *current;
	CUresult r = enter(context ? NULL : &current);
	if (r != CUDA_SUCCESS)
		return r;
	for (*at = &kept; **at && ((**at)->context != (context ? context : current) || (**at)->key != key);
	     *at = &(**at)->next)
		;
	return CUDA_SUCCESS;
}

static CUresult put_kept(CUcontext context, const void *key, void *value, void *destructor)
{
	struct kept **at, *new = calloc(1, sizeof *new);
	(void)destructor;
	CUresult r = find(context, key, &at);
	if (r != CUDA_SUCCESS || !new)
		abort();
	*new = (struct kept){*at, context ? context : context_current(), key, value};
	*at = new;
	return leave(CUDA_SUCCESS);
}

static CUresult delete_kept(CUcontext context, const void *key)
{
	struct kept **at, *old;
	CUresult r = find(context, key, &at);
	if (r != CUDA_SUCCESS)
		return r;
	if ((old = *at))
		*at = old->next;
	free(old);
	return leave(CUDA_SUCCESS);
}

static CUresult get_kept(void **out, CUcontext context, const void *key)
{
	struct kept **at;
	CUresult r = find(context, key, &at);
	if (r != CUDA_SUCCESS)
		return r;
	*out = *at ? (*at)->value : NULL;
	return leave(*at ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}

static void *const storage[] = {(void *)put_kept, (void *)delete_kept, (void *)get_kept};

static const struct {
	unsigned char identifier[16];
	void *const *table;
} tables[] = {
	{{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9}, cudart},
	{{0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a, 0x66}, hooks},
	{{0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec, 0xdc}, tls},
	{{0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95, 0x93}, storage},
};

CALL(cuGetExportTable, (const void **out, const void *identifier), (out, identifier))
{
	if (!out || !identifier)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
		if (memcmp(identifier, tables[i].identifier, sizeof tables[i].identifier) == 0) {
			*out = tables[i].table;
			return CUDA_SUCCESS;
		}
	*out = NULL;
	return CUDA_ERROR_NOT_FOUND;
}
