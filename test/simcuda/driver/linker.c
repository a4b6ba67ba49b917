// linker.c - the linker: the cubin that it is given or, for PTX, the one that SIMCUDA_CUBIN names.
#define _GNU_SOURCE
#include "sim.h"

#include <stdlib.h>
#include <string.h>

typedef struct link {
	char *cubin;
	uint64_t bytes;
} *CUlinkState;

// Whether the cubin has every kernel of the PTX.
static bool stands_for(const char *cubin, uint64_t bytes, const char *ptx, size_t ptx_bytes)
{
	CUresult r;
	struct image *image = image_read(cubin, bytes, &r);
	bool all = image && image->read;
	const char *end = ptx + ptx_bytes;
	for (const char *p = ptx; all && (p = memmem(p, (size_t)(end - p), ".entry", 6)); p++) {
		for (p += 6; p < end && strchr(" \t\r\n", *p) && *p; p++)
			;
		size_t n = 0;
		while (p + n < end && !strchr(" \t\r\n(", p[n]))
			n++;
		bool found = false;
		for (int i = 0; i < image->definitions; i++)
			found |= strlen(image->definition[i].name) == n && memcmp(image->definition[i].name, p, n) == 0;
		all = found && n;
	}
	if (image)
		image_free(image);
	return all;
}

CALL(cuLinkCreate_v2, (unsigned n, int *options, void **values, CUlinkState *out), (n, options, values, out))
{
	(void)n, (void)options, (void)values;
	struct CUctx_st *c;
	CUresult r = out ? enter(&c) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	*out = calloc(1, sizeof **out);
	if (!*out)
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	handle_add(*out, H_LINK);
	return leave(CUDA_SUCCESS);
}

CALL(cuLinkAddData_v2,
     (CUlinkState l, int type, const void *data, size_t bytes, const char *name, unsigned n, int *options, void **values),
     (l, type, data, bytes, name, n, options, values))
{
	(void)name, (void)n, (void)options, (void)values;
	CUresult r = enter_handle(l, H_LINK, data);
	if (r != CUDA_SUCCESS)
		return r;
	if (!bytes || l->cubin)
		return leave(bytes ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE); // one input
	if (type == 0) {                                                                   // CU_JIT_INPUT_CUBIN
		l->bytes = bytes;
		l->cubin = malloc(bytes);
		if (!l->cubin)
			return leave(CUDA_ERROR_OUT_OF_MEMORY);
		memcpy(l->cubin, data, bytes);
		return leave(CUDA_SUCCESS);
	}
	uint64_t text_bytes = bytes;
	const char *text = type == 1 ? data :
			   type == 2 ? fatbin_ptx(data, &text_bytes) :
				       NULL; // CU_JIT_INPUT_PTX, _FATBINARY
	if (!text)
		return leave(CUDA_ERROR_NOT_SUPPORTED);
	if (type == 1 && strnlen(text, bytes) + 1 < bytes)
		return leave(CUDA_ERROR_INVALID_PTX); // there is something behind the text
	const char *path = getenv("SIMCUDA_CUBIN");
	l->cubin = path ? image_file(path, &l->bytes) : NULL;
	if (!l->cubin)
		return leave(CUDA_ERROR_JIT_COMPILER_NOT_FOUND);
	if (!stands_for(l->cubin, l->bytes, text, text_bytes)) {
		free(l->cubin);
		l->cubin = NULL;
		return leave(CUDA_ERROR_INVALID_PTX);
	}
	return leave(CUDA_SUCCESS);
}

CALL(cuLinkAddFile_v2, (CUlinkState l, int type, const char *path, unsigned n, int *options, void **values),
     (l, type, path, n, options, values))
{
	uint64_t bytes;
	char *data = path ? image_file(path, &bytes) : NULL;
	if (!data)
		return path ? CUDA_ERROR_FILE_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
	CUresult r = cuLinkAddData_v2(l, type, data, bytes, path, n, options, values);
	free(data);
	return r;
}

CALL(cuLinkComplete, (CUlinkState l, void **cubin, size_t *bytes), (l, cubin, bytes))
{
	CUresult r = enter_handle(l, H_LINK, cubin);
	if (r != CUDA_SUCCESS)
		return r;
	if (!l->cubin)
		return leave(CUDA_ERROR_INVALID_VALUE);
	*cubin = l->cubin;
	if (bytes)
		*bytes = l->bytes;
	return leave(CUDA_SUCCESS);
}

CALL(cuLinkDestroy, (CUlinkState l), (l))
{
	CUresult r = enter_handle(l, H_LINK, l);
	if (r != CUDA_SUCCESS)
		return r;
	handle_remove(l);
	free(l->cubin);
	free(l);
	return leave(CUDA_SUCCESS);
}
