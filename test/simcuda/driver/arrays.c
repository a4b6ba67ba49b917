// arrays.c - arrays: their part of the device's memory, and no more. No copy to or from an array works.
#include "sim.h"

#include <stdlib.h>

struct description { // CUDA_ARRAY3D_DESCRIPTOR
	size_t width, height, depth;
	int format;
	unsigned channels, flags;
};
struct flat_description { // CUDA_ARRAY_DESCRIPTOR
	size_t width, height;
	int format;
	unsigned channels;
};
struct CUarray_st {
	struct CUarray_st *next;
	struct CUctx_st *owner;
	struct description description;
	uint64_t bytes;
};
typedef struct CUarray_st *CUarray;
static CUarray arrays;

static uint64_t element_bytes(int format)
{ // CUarray_format
	switch (format) {
	case 0x01:
	case 0x08: return 1;
	case 0x02:
	case 0x09:
	case 0x10: return 2;
	case 0x03:
	case 0x0a:
	case 0x20: return 4;
	default: return 0;
	}
}

// BC7, of which a block of 4 by 4 texels has 16 bytes. No other format that is not simple is simulated.
static bool compressed(int format) { return format == 0x9d || format == 0x9e; }

static CUresult create(CUarray *out, struct description d)
{
	struct CUctx_st *c;
	uint64_t cell = compressed(d.format) ? 1 : element_bytes(d.format) * d.channels, most = 1 << 20;
	bool sound = out && cell && (d.channels == 1 || d.channels == 2 || d.channels == 4) && d.width &&
		     d.width <= most && d.height <= most && d.depth <= most;
	CUresult r = sound ? enter_unsafe(&c) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	uint64_t bytes = cell * d.width * (d.height ? d.height : 1), layers = d.depth ? d.depth : 1;
	if (compressed(d.format))
		bytes = ((d.width + 3) / 4) * ((d.height + 3) / 4 ? (d.height + 3) / 4 : 1) * 16;
	bool fits = bytes <= sim_memory_bytes() / layers && memory_charge(c->device, bytes * layers);
	CUarray a = fits ? malloc(sizeof *a) : NULL;
	if (!a)
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	*a = (struct CUarray_st){arrays, c, d, bytes * layers};
	arrays = a;
	handle_add(a, H_ARRAY);
	*out = a;
	return leave(CUDA_SUCCESS);
}

CALL(cuArrayCreate_v2, (CUarray * out, const struct flat_description *d), (out, d))
{
	return d ? create(out, (struct description){d->width, d->height, 0, d->format, d->channels, 0}) :
		   CUDA_ERROR_INVALID_VALUE;
}

CALL(cuArray3DCreate_v2, (CUarray * out, const struct description *d), (out, d))
{
	return d ? create(out, *d) : CUDA_ERROR_INVALID_VALUE;
}

static void array_free(CUarray a)
{
	memory_discharge(a->owner->device, a->bytes);
	handle_remove(a);
	CUarray *at = &arrays;
	while (*at != a)
		at = &(*at)->next;
	*at = a->next;
	free(a);
}

static CUresult enter_array(CUarray a, const void *argument)
{
	struct CUctx_st *c;
	CUresult r = argument ? enter(&c) : CUDA_ERROR_INVALID_VALUE;
	return r == CUDA_SUCCESS && !handle_is(a, H_ARRAY) ? leave(CUDA_ERROR_INVALID_HANDLE) : r;
}

CALL(cuArrayDestroy, (CUarray a), (a))
{
	CUresult r = enter_array(a, a);
	if (r != CUDA_SUCCESS)
		return r;
	call_wait(a->owner, CALL_FREE);
	array_free(a);
	return leave(CUDA_SUCCESS);
}

CALL(cuArray3DGetDescriptor_v2, (struct description * out, CUarray a), (out, a))
{
	CUresult r = enter_array(a, out);
	if (r != CUDA_SUCCESS)
		return r;
	*out = a->description;
	return leave(CUDA_SUCCESS);
}

CALL(cuArrayGetDescriptor_v2, (struct flat_description * out, CUarray a), (out, a))
{
	CUresult r = enter_array(a, out);
	if (r != CUDA_SUCCESS)
		return r;
	const struct description *d = &a->description;
	*out = (struct flat_description){d->width, d->height, d->format, d->channels};
	return leave(CUDA_SUCCESS);
}

void arrays_owner_ends(const struct CUctx_st *owner)
{
	for (CUarray a = arrays, next; a; a = next) {
		next = a->next;
		if (a->owner == owner)
			array_free(a);
	}
}
