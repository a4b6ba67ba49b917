// environment.c - reads the variables of environment.h, all at one time.
//
// The driver reads them when it is initialised. A program may set them until then (Python and Ray do), and change them afterwards
// without any effect. So they are read on the thread that initialises the driver, just before.
#include "preempt/driver/environment.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[GP_VARIABLES] = {
	[GP_VISIBLE_DEVICES] = "CUDA_VISIBLE_DEVICES",
	[GP_MAX_CONNECTIONS] = "CUDA_DEVICE_MAX_CONNECTIONS",
	[GP_LAUNCH_BLOCKING] = "CUDA_LAUNCH_BLOCKING",
	[GP_FORCE_PTX_JIT] = "CUDA_FORCE_PTX_JIT",
	[GP_FORCE_JIT] = "CUDA_FORCE_JIT",
	[GP_MPS_PIPE_DIRECTORY] = "CUDA_MPS_PIPE_DIRECTORY",
	[GP_MPS_CLIENT_PRIORITY] = "CUDA_MPS_CLIENT_PRIORITY",
};

// Written once, before the core has threads.
static const char *values[GP_VARIABLES];
static bool are_read;

void gp_environment_read(void)
{
	for (int v = 0; v < GP_VARIABLES && !are_read; v++) {
		const char *value = getenv(names[v]);
		values[v] = value ? strdup(value) : NULL;
	}
	are_read = true;
}

const char *gp_environment(enum gp_variable variable) { return are_read ? values[variable] : getenv(names[variable]); }
