// environment.h - variables of the environment that tell the driver something, as far as this library follows them.
#ifndef GPREEMPT_ENVIRONMENT_H
#define GPREEMPT_ENVIRONMENT_H

enum gp_variable {
	GP_VISIBLE_DEVICES,     // CUDA_VISIBLE_DEVICES
	GP_MAX_CONNECTIONS,     // CUDA_DEVICE_MAX_CONNECTIONS
	GP_LAUNCH_BLOCKING,     // CUDA_LAUNCH_BLOCKING
	GP_FORCE_PTX_JIT,       // CUDA_FORCE_PTX_JIT
	GP_FORCE_JIT,           // CUDA_FORCE_JIT
	GP_MPS_PIPE_DIRECTORY,  // CUDA_MPS_PIPE_DIRECTORY
	GP_MPS_CLIENT_PRIORITY, // CUDA_MPS_CLIENT_PRIORITY
	GP_VARIABLES
};

// Returns its value when the driver was initialised, before that its value now; NULL: it is not set.
const char *gp_environment(enum gp_variable);
void gp_environment_read(void); // the driver is about to be initialised, on this thread

#endif
