// width.c - a program with requests whose length its input says while they run. It can also have work all the time that needs no SM.
//
//	works            work that waits for this program is on a stream from now on: "works"
//	request N US     a kernel of N blocks begins a request and takes so long: "begun". The request goes on when the next line comes,
//	                 and ends with one more kernel, which takes as many microseconds as that line says: "done"
//	copied N US      the same behind a copy
//	kernels N T K US K kernels of N blocks of T threads follow each other, and each takes so long alone. Then "done", and how many of them
//	                 took longer
//	late             a kernel runs, and the call that launches the next one has not reached the driver: "late". It does at the next
//	                 line, and when that kernel has ended: "done"
#include "driver.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

enum { NON_BLOCKING = 1, GEQ = 0 };

static handle kernel, stream;

static void launch(unsigned blocks, unsigned threads, unsigned long long us)
{
	void *parameters[] = {&us};
	OK(cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, NULL));
}

static void spin(unsigned blocks, unsigned long long us) { launch(blocks, 32, us); }

static void kernels(unsigned blocks, unsigned threads, unsigned count, unsigned long long us)
{
	uint64_t (*slow)(void) = (uint64_t (*)(void))dlsym(RTLD_DEFAULT, "simcuda_slow_launches");
	CHECK(slow);
	uint64_t before = slow();
	for (unsigned i = 0; i < count; i++)
		launch(blocks, threads, us);
	OK(cuStreamSynchronize(stream));
	printf("done %u\n", (unsigned)(slow() - before));
}

static _Atomic uint32_t late;

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

static void launch_late(void)
{
	void (*launch_waits)(_Atomic uint32_t *) = dlsym(RTLD_DEFAULT, "simcuda_launch_waits");
	pthread_t thread;
	CHECK(launch_waits && !pthread_create(&thread, NULL, tell, NULL));
	spin(1, 1);
	launch_waits(&late);
	spin(1, 1);
	CHECK(!pthread_join(thread, NULL));
	OK(cuStreamSynchronize(stream));
	puts("done");
}

int main(void)
{
	char line[64];
	handle context, module;
	ptr word, input;
	unsigned blocks, threads, count, requests = 0;
	unsigned long long us;

	setvbuf(stdout, NULL, _IOLBF, 0);
	find_driver();
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	OK(cuModuleLoadData(&module, "simulated image"));
	OK(cuModuleGetFunction(&kernel, module, "sim_spin_us"));
	OK(cuStreamCreate(&stream, NON_BLOCKING));
	OK(cuMemAlloc_v2(&word, 4));
	OK(cuMemAlloc_v2(&input, 4));
	OK(cuMemsetD32Async(word, 0, 1, stream));
	OK(cuStreamSynchronize(stream));
	puts("ready");
	while (fgets(line, sizeof line, stdin)) {
		int copied = sscanf(line, "copied %u %llu", &blocks, &us) == 2;
		if (copied || sscanf(line, "request %u %llu", &blocks, &us) == 2) {
			if (copied)
				OK(cuMemcpyHtoD_v2(input, &requests, sizeof requests));
			spin(blocks, us);
			OK(cuStreamWaitValue32_v2(stream, word, ++requests, GEQ));
			puts("begun");
			CHECK(fgets(line, sizeof line, stdin) && sscanf(line, "%llu", &us) == 1);
			spin(blocks, us);
			OK(cuMemcpyHtoD_v2(word, &requests, sizeof requests));
			OK(cuStreamSynchronize(stream));
			puts("done");
		} else if (sscanf(line, "kernels %u %u %u %llu", &blocks, &threads, &count, &us) == 4) {
			kernels(blocks, threads, count, us);
		} else if (!strcmp(line, "late\n")) {
			launch_late();
		} else {
			OK(cuStreamWaitValue32_v2(stream, word, 1, GEQ));
			puts("works");
		}
	}
	_Exit(0); // with the work that waits
}
