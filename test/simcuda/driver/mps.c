// mps.c - priorities: of streams, and of the clients of an MPS server.
#include "sim.h"

#include <stdlib.h>

static int client_priority;

// The real driver reads it as it connects to the server, in its initialisation.
void mps_connect(void)
{
	const char *value = getenv("CUDA_MPS_CLIENT_PRIORITY");
	client_priority = value ? atoi(value) : 0;
}

API int simcuda_client_priority(void) { return client_priority; }

// The priority that a stream has, which a library in front of the driver may keep from the program.
API int simcuda_stream_priority(CUstream s) { return s->priority; }

DUAL(cuStreamSetAttribute, _ptsz, (CUstream s, int attribute, const void *value), (s, attribute, value))
{
	enum { CU_STREAM_ATTRIBUTE_PRIORITY = 8 }; // cuda.h
	struct CUctx_st *c;
	struct CUstream_st *st;
	CUresult r = value && attribute == CU_STREAM_ATTRIBUTE_PRIORITY ? enter(&c) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	r = stream_resolve(c, s, &st);
	if (r == CUDA_SUCCESS)
		st->priority = *(const int *)value;
	return leave(r);
}
