// mps.c - what tests ask about priorities under MPS.
#include "sim.h"

#include <stdlib.h>

static int client_priority;

// The real driver reads it as it connects to the server, in its initialisation.
void mps_connect(void) {
	const char *value = getenv("CUDA_MPS_CLIENT_PRIORITY");
	client_priority = value ? atoi(value) : 0;
}

API int simcuda_client_priority(void) { return client_priority; }

// The priority that a stream has, which a library in front of the driver may keep from the program.
API int simcuda_stream_priority(CUstream s) { return s->priority; }
