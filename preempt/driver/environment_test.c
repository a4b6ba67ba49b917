// environment_test.c - with preempt/driver/environment.c.
//
// A variable keeps the value that it has when the driver is initialised.
#include "preempt/driver/environment.h"
#include "test/units/check.h"

#include <string.h>

int main(void)
{
	unsetenv("CUDA_VISIBLE_DEVICES");
	setenv("CUDA_MPS_PIPE_DIRECTORY", "/early", 1);
	setenv("CUDA_FORCE_JIT", "1", 1);
	CHECK(!gp_environment(GP_VISIBLE_DEVICES));
	CHECK(!strcmp(gp_environment(GP_MPS_PIPE_DIRECTORY), "/early"));
	setenv("CUDA_VISIBLE_DEVICES", "1,2", 1);
	setenv("CUDA_MPS_PIPE_DIRECTORY", "/then", 1);
	unsetenv("CUDA_FORCE_JIT");
	gp_environment_read();
	setenv("CUDA_VISIBLE_DEVICES", "3", 1);
	setenv("CUDA_FORCE_JIT", "1", 1);
	unsetenv("CUDA_MPS_PIPE_DIRECTORY");
	gp_environment_read(); // initialised again
	CHECK(!strcmp(gp_environment(GP_VISIBLE_DEVICES), "1,2"));
	CHECK(!strcmp(gp_environment(GP_MPS_PIPE_DIRECTORY), "/then"));
	CHECK(!gp_environment(GP_FORCE_JIT));
	printf("fine\n");
	return 0;
}
