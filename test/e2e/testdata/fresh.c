// A program whose first work in each context waits for what the program does next. Says "went well" at the end.
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include "driver.h"

static atomic_int released;

static void pause_us(long us) { nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL); }

static void wait_for_program(void *context)
{
	while (released < (int)(intptr_t)context)
		pause_us(50);
}

int main(void)
{
	find_driver();
	OK(cuInit(0));
	for (int n = 1; n <= 20; n++) {
		handle context, waiting, other;
		ptr memory;
		OK(cuCtxCreate_v2(&context, 0, 0));
		OK(cuStreamCreate(&waiting, 1));
		OK(cuLaunchHostFunc(waiting, wait_for_program, (void *)(intptr_t)n));
		OK(cuMemAlloc_v2(&memory, 1 << 20));
		OK(cuStreamCreate(&other, 1));
		for (int i = 0; i < 20; i++) { // whatever the library does in this context, these go on
			OK(cuMemsetD8Async(memory, 1, 1 << 20, other));
			pause_us(200);
		}
		released = n;
		OK(cuCtxSynchronize());
		OK(cuCtxDestroy_v2(context));
	}
	printf("went well\n");
	return 0;
}
