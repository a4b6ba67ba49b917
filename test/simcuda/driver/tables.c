// tables.c - cuGetExportTable: the table by which CUDA runtimes before 12.0 load code. NVIDIA documents none of this. Names and meanings
// were found by others who stand for its driver (ZLUDA, Wine).
#include "sim.h"

#include <string.h>

CUresult cuModuleLoadFatBinary(CUmodule *, const void *);

static CUresult load(CUmodule *out, const void *wrapper, int *options, void **values, unsigned n)
{
	(void)options, (void)values, (void)n;
	return cuModuleLoadFatBinary(out, wrapper);
}

static void *const runtime[10] = {[0] = (void *)sizeof runtime, [6] = (void *)load};

CALL(cuGetExportTable, (const void **out, const void *identifier), (out, identifier))
{
	static const unsigned char of_runtime[16] = {0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a,
						     0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9};
	if (!out || !identifier)
		return CUDA_ERROR_INVALID_VALUE;
	bool known = !memcmp(identifier, of_runtime, sizeof of_runtime);
	*out = known ? runtime : NULL;
	return known ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
