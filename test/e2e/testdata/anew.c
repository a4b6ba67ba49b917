// A stream waits for an event while the process is stopped, and the event is recorded anew before it goes on. Commands on standard
// input, an answer for each.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"

enum { NON_BLOCKING = 1, DISABLE_TIMING = 2 };
enum { SPINS, ADDED, BEHIND, OTHER, WORDS };
enum { NOT_BEGUN = 7 };
static handle context, chain, lamport;
static ptr memory;
static handle spins, waits, idle, other, event;
static pthread_t thread[3];
static int threads;
static _Atomic uint32_t slow;
static _Atomic pid_t at;

static volatile uint32_t *value(int word)
{
	return (volatile uint32_t *)(uintptr_t)memory + word;
} // device memory is the CPU's

static void launch(handle stream, int word)
{
	ptr data = memory + (unsigned)word * sizeof(uint32_t);
	unsigned n = 1, add = 1, us = 1;
	void *parameters[] = {&data, &n, &add, &us};
	OK(cuLaunchKernel(chain, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
}

// A kernel that waits for the program, which has begun, and the event behind it. It adds 1 to its word when it begins.
static void spin(void)
{
	ptr data = memory + ADDED * sizeof(uint32_t);
	unsigned n = 1, us = 1;
	void *parameters[] = {&memory, &data, &n, &us};
	*value(SPINS) = NOT_BEGUN;
	OK(cuLaunchKernel(lamport, 1, 1, 1, 32, 1, 1, 0, spins, parameters, NULL));
	OK(cuEventRecord(event, spins));
	while (*value(SPINS) == NOT_BEGUN)
		usleep(50);
}

// While the driver takes this launch, no other comes into the log.
static void *launch_slowly(void *none)
{
	void (*launch_waits)(_Atomic uint32_t *) = dlsym(RTLD_DEFAULT, "simcuda_launch_waits");
	CHECK(launch_waits);
	OK(cuCtxSetCurrent(context));
	launch_waits(&slow);
	launch(other, OTHER);
	return none;
}

static void *wait_for_event(void *none)
{
	OK(cuCtxSetCurrent(context));
	at = gettid();
	OK(cuStreamWaitEvent(waits, event, 0));
	launch(waits, BEHIND);
	return none;
}

static void *record_anew(void *none)
{
	OK(cuCtxSetCurrent(context));
	at = gettid();
	OK(cuEventRecord(event, idle));
	return none;
}

static bool sleeps(pid_t id)
{
	char path[64], state = 0;
	snprintf(path, sizeof path, "/proc/self/task/%d/stat", id);
	FILE *f = fopen(path, "r");
	CHECK(f && fscanf(f, "%*d (%*[^)]) %c", &state) == 1);
	fclose(f);
	return state == 'S';
}

static void start(void *(*run)(void *)) { CHECK(!pthread_create(&thread[threads++], NULL, run, NULL)); }

static void start_until_it_sleeps(void *(*run)(void *))
{
	at = 0;
	start(run);
	while (!at || !sleeps(at))
		usleep(50);
}

static void begin(bool anew)
{
	*value(BEHIND) = 0;
	slow = 0;
	spin();
	start(launch_slowly);
	while (!slow)
		usleep(50);
	start_until_it_sleeps(wait_for_event);
	if (anew)
		start_until_it_sleeps(record_anew);
}

static void go_on(void)
{
	for (slow = 2; threads; threads--)
		CHECK(!pthread_join(thread[threads - 1], NULL));
}

// Long enough for what does not wait.
static void work(void)
{
	for (int i = 0; i < 20; i++) {
		launch(other, OTHER);
		OK(cuStreamSynchronize(other));
	}
}

static void end(void)
{
	*value(SPINS) = 1;
	OK(cuStreamSynchronize(waits));
	OK(cuStreamSynchronize(spins));
}

int main(int argc, char **argv)
{
	handle module, *streams[] = {&spins, &waits, &idle, &other};
	char line[32];
	if (argc != 2)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	find_driver();
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	OK(cuModuleLoad(&module, argv[1]));
	OK(cuModuleGetFunction(&chain, module, "sim_chain"));
	OK(cuModuleGetFunction(&lamport, module, "sim_lamport"));
	OK(cuMemAlloc_v2(&memory, WORDS * sizeof(uint32_t)));
	OK(cuMemsetD32Async(memory, 0, WORDS, NULL));
	OK(cuStreamSynchronize(NULL));
	for (unsigned i = 0; i < sizeof streams / sizeof *streams; i++)
		OK(cuStreamCreate(streams[i], NON_BLOCKING));
	OK(cuEventCreate(&event, DISABLE_TIMING));
	printf("ready\n");
	while (fgets(line, sizeof line, stdin)) {
		line[strcspn(line, "\n")] = 0;
		if (!strcmp(line, "begin") || !strcmp(line, "begin, record anew"))
			begin(strcmp(line, "begin"));
		else if (!strcmp(line, "go on"))
			go_on();
		else if (!strcmp(line, "work"))
			work();
		else if (!strcmp(line, "end"))
			end();
		else
			return 2;
		printf("ran %u\n", *value(BEHIND));
	}
	return 0;
}
