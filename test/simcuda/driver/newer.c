// newer.c - functions of drivers newer than the machine's own, CUDA 13.1 and later; SIMCUDA_VERSION says from which on
// cuGetProcAddress knows them (symbols.c).
#include "sim.h"

CUresult cuMemcpyAsync(CUdeviceptr, CUdeviceptr, size_t, CUstream);
CUresult cuStreamSynchronize(CUstream);
CUresult cuStreamIsCapturing(CUstream, int *);
CUresult cuLaunchHostFunc(CUstream, void (*)(void *), void *);

// ---- copies with attributes, 13.2

struct location { // CUmemLocation
	int type, id;
};
struct attributes { // CUmemcpyAttributes
	int order;
	struct location from, to;
	unsigned flags;
};
_Static_assert(sizeof(struct attributes) == 24, "CUmemcpyAttributes");

enum { SRC_ACCESS_ORDER_STREAM = 1, SRC_ACCESS_ORDER_DURING_API_CALL = 2, SRC_ACCESS_ORDER_ANY = 3 };

// Where the source may change as soon as the call returns, the copy is over by then.
static CUresult ordered(int order, CUstream s, CUresult r)
{
	int capturing = 0;
	if (r == CUDA_SUCCESS && order == SRC_ACCESS_ORDER_DURING_API_CALL)
		r = cuStreamIsCapturing(s, &capturing);
	return r == CUDA_SUCCESS && order == SRC_ACCESS_ORDER_DURING_API_CALL && !capturing ? cuStreamSynchronize(s) : r;
}

DUAL(cuMemcpyWithAttributesAsync, _ptsz,
     (CUdeviceptr d, CUdeviceptr f, size_t n, const struct attributes *a, CUstream s), (d, f, n, a, s))
{
	if (!a || a->order < SRC_ACCESS_ORDER_STREAM || a->order > SRC_ACCESS_ORDER_ANY)
		return CUDA_ERROR_INVALID_VALUE;
	return ordered(a->order, s, cuMemcpyAsync(d, f, n, s));
}

struct operand { // CUmemcpy3DOperand
	int type;
	union {
		struct {
			CUdeviceptr address;
			size_t row, layer;
			struct location hint;
		};
		struct {
			void *array;
			size_t offset[3];
		};
	};
};
struct copy_3d { // CUDA_MEMCPY3D_BATCH_OP
	struct operand from, to;
	size_t width, height, depth;
	int order;
	unsigned flags;
};
_Static_assert(sizeof(struct operand) == 40 && sizeof(struct copy_3d) == 112, "CUDA_MEMCPY3D_BATCH_OP");

static CUdeviceptr row_of(const struct operand *o, const struct copy_3d *c, size_t y, size_t z)
{
	return o->address + (z * (o->layer ? o->layer : c->height) + y) * (o->row ? o->row : c->width);
}

DUAL(cuMemcpy3DWithAttributesAsync, _ptsz, (const struct copy_3d *c, unsigned long long flags, CUstream s), (c, flags, s))
{
	enum { OPERAND_TYPE_POINTER = 1 };
	if (!c || flags || !c->width || !c->height || !c->depth || c->order < SRC_ACCESS_ORDER_STREAM ||
	    c->order > SRC_ACCESS_ORDER_ANY)
		return CUDA_ERROR_INVALID_VALUE;
	if (c->from.type != OPERAND_TYPE_POINTER || c->to.type != OPERAND_TYPE_POINTER)
		return CUDA_ERROR_NOT_SUPPORTED; // arrays are not simulated
	CUresult r = CUDA_SUCCESS;
	for (size_t z = 0; z < c->depth; z++)
		for (size_t y = 0; y < c->height && r == CUDA_SUCCESS; y++)
			r = cuMemcpyAsync(row_of(&c->to, c, y, z), row_of(&c->from, c, y, z), c->width, s);
	return ordered(c->order, s, r);
}

// ---- a function that no driver has: it stands for functions of drivers to come

DUAL(cuMemcpyHereafterAsync, _ptsz, (CUdeviceptr d, CUdeviceptr f, size_t n, CUstream s), (d, f, n, s))
{
	return cuMemcpyAsync(d, f, n, s);
}

// ---- host functions with a mode of waiting, 13.1

DUAL(cuLaunchHostFunc_v2, _ptsz, (CUstream s, void (*callback)(void *), void *user, unsigned mode),
     (s, callback, user, mode))
{
	return mode > 1 ? CUDA_ERROR_INVALID_VALUE : cuLaunchHostFunc(s, callback, user); // blocking, spinning
}

// ---- calls for which this machine has no hardware: a graphics queue (13.1), a fabric (13.5)

DUAL(cuStreamBeginCaptureToCig, _ptsz, (CUstream s, void *const *parameters), (s, parameters))
{
	(void)s;
	return parameters && *parameters ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
}

DUAL(cuStreamEndCaptureToCig, _ptsz, (CUstream s), (s))
{
	(void)s;
	return CUDA_ERROR_INVALID_VALUE; // none has begun
}

DUAL(cuFabricCpyBatchAsync, _ptsz, (size_t n, void *list, unsigned long long flags, CUstream s), (n, list, flags, s))
{
	(void)n, (void)flags, (void)s;
	return list ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
}
