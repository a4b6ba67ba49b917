// A program that makes contexts, works in each for a while and destroys it. Says the number of each that has ended, until the end of its
// input. With an argument it retains a primary context first, and leaves that alone.
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include "driver.h"

static atomic_bool ended;

static void *listen_to_input(void *unused)
{
	while (getchar() != EOF)
		;
	ended = true;
	return unused;
}

static double now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

int main(int arguments, char **unused)
{
	pthread_t thread;
	handle primary;

	(void)unused;
	find_driver();
	OK(cuInit(0));
	if (arguments > 1)
		OK(cuDevicePrimaryCtxRetain(&primary, 0));
	pthread_create(&thread, NULL, listen_to_input, NULL);
	for (int n = 1; !ended; n++) {
		handle context, module, kernel;
		uint64_t us = 500;
		void *parameters[] = {&us};
		OK(cuCtxCreate_v2(&context, 0, 0));
		OK(cuModuleLoadData(&module, "kernels"));
		OK(cuModuleGetFunction(&kernel, module, "sim_spin_us"));
		for (double until = now_ms() + 250; now_ms() < until;) { // its TSG is settled by then
			OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
			OK(cuCtxSynchronize());
		}
		OK(cuCtxDestroy_v2(context));
		printf("%d\n", n);
		fflush(stdout);
	}
	pthread_join(thread, NULL);
	return 0;
}
