// late.c - a program with a late call. At a line a kernel runs, and the call that launches the next one has not reached the driver: "late". It does
// at the next line, and when that kernel has ended: "done".
#include "driver.h"

#include <pthread.h>
#include <stdint.h>
#include <unistd.h>

static handle kernel, stream;
static _Atomic uint32_t late;

static void spin(void)
{
	unsigned long long us = 1;
	void *parameters[] = {&us};
	OK(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
}

static void *tell(void *unused)
{
	char line[64];
	while (late != 1)
		usleep(50);
	puts("late");
	CHECK(fgets(line, sizeof line, stdin));
	late = 2;
	return unused;
}

int main(void)
{
	enum { NON_BLOCKING = 1 };
	handle context, module;
	pthread_t thread;
	char line[64];

	setvbuf(stdout, NULL, _IOLBF, 0);
	find_driver();
	void (*launch_waits)(_Atomic uint32_t *) = dlsym(RTLD_DEFAULT, "simcuda_launch_waits");
	CHECK(launch_waits);
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	OK(cuModuleLoadData(&module, "simulated image"));
	OK(cuModuleGetFunction(&kernel, module, "sim_spin_us"));
	OK(cuStreamCreate(&stream, NON_BLOCKING));
	puts("ready");
	CHECK(fgets(line, sizeof line, stdin) && !pthread_create(&thread, NULL, tell, NULL));
	spin();
	launch_waits(&late);
	spin();
	CHECK(!pthread_join(thread, NULL));
	OK(cuStreamSynchronize(stream));
	puts("done");
	CHECK(!fgets(line, sizeof line, stdin));
	return 0;
}
