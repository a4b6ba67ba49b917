// A program whose threads are sent signals without a pause while CUDA is initialised. Then each handler has to be the same as before. Says
// "taken".
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "driver.h"

enum { THREADS = 2 };
static const int signals[] = {SIGURG, SIGUSR1, SIGPROF, SIGPIPE};
static atomic_bool end;
static _Thread_local volatile unsigned taken;

static void take(int number, siginfo_t *info, void *context)
{
	(void)number, (void)info, (void)context;
	taken++;
}

static void *storm(void *unused)
{
	while (!end)
		for (unsigned i = 0; i < sizeof signals / sizeof *signals; i++)
			CHECK(!pthread_kill(pthread_self(), signals[i]));
	CHECK(taken > 0);
	return unused;
}

static void look(struct sigaction *all)
{
	for (int s = 1; s < NSIG; s++)
		if (sigaction(s, NULL, &all[s]))
			all[s].sa_flags = -1; // the C library's own
}

int main(void)
{
	static struct sigaction before[NSIG], after[NSIG];
	struct sigaction own = {.sa_sigaction = take, .sa_flags = SA_SIGINFO | SA_RESTART};
	pthread_t thread[THREADS];
	for (unsigned i = 0; i < sizeof signals / sizeof *signals; i++)
		CHECK(!sigaction(signals[i], &own, NULL));
	look(before);
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&thread[i], NULL, storm, NULL));
	find_driver();
	OK(cuInit(0));
	handle context;
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	end = true;
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_join(thread[i], NULL));
	look(after);
	for (int s = 1; s < NSIG; s++)
		CHECK(before[s].sa_sigaction == after[s].sa_sigaction && before[s].sa_flags == after[s].sa_flags);
	printf("taken\n");
	return 0;
}
