// unseen.c - prints what a program sees of itself: signals, masks, descriptors, its limits, and its children. Before it uses CUDA, once a kernel
// has run, and at the end. Arguments: the image of the kernels, and what else is to be so.
//
//	reaper  it takes in its children's children, as the first process of a container does
//	fire    from the first kernel to the end two threads launch kernels and look all the time. Each has a mask, a pending signal and a signal
//	        stack, and takes signals. They end the program where they see a difference, or a handler runs elsewhere than on that stack.
#define _GNU_SOURCE
#include "driver.h"
#include "../../guest/testdata/seen.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static void print_all(FILE *to)
{
	print_seen(to, NULL);
	int child = waitpid(-1, NULL, WNOHANG);
	fprintf(to, "children %d %s\n", child, strerror(errno));
}

static void look(const char *when)
{
	printf("%s\n", when);
	print_all(stdout);
}

static void handler(int unused) { (void)unused; }

enum { FIRERS = 2, STACK_BYTES = 64 << 10 };
static atomic_bool ends;
static atomic_uint looked;
static handle context, kernel;
static _Thread_local const char *own_stack;
static _Thread_local volatile unsigned taken;

static void on_stack(int unused)
{
	char here;
	(void)unused;
	if (&here < own_stack || &here >= own_stack + STACK_BYTES)
		_Exit(9);
	taken++;
}

static char *all_seen(void)
{
	static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER; // at a time: its files are descriptors, too
	char *text = NULL;
	size_t bytes = 0;
	FILE *to = open_memstream(&text, &bytes);
	CHECK(to);
	pthread_mutex_lock(&one);
	print_all(to);
	pthread_mutex_unlock(&one);
	fclose(to);
	return text;
}

// number: the other thread takes other signals.
static void *fire(void *number)
{
	stack_t stack = {.ss_sp = malloc(STACK_BYTES), .ss_size = STACK_BYTES}, last;
	int own = SIGRTMIN + 2 * (int)(size_t)number;
	sigset_t mask;
	handle stream;
	ptr data;
	int per_block = 32;
	unsigned us = 300;
	void *parameters[] = {&data, &per_block, &us};

	own_stack = stack.ss_sp;
	CHECK(own_stack && !sigaltstack(&stack, &last));
	sigemptyset(&mask);
	sigaddset(&mask, own);
	CHECK(!pthread_sigmask(SIG_SETMASK, &mask, NULL) && !pthread_kill(pthread_self(), own)); // stays pending
	OK(cuCtxSetCurrent(context));
	OK(cuStreamCreate(&stream, 1));
	OK(cuMemAlloc_v2(&data, 64 * per_block * sizeof(int)));
	char *before = all_seen();
	do {
		OK(cuLaunchKernel(kernel, 64, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
		CHECK(!pthread_kill(pthread_self(), SIGUSR2));
		char *now = all_seen();
		if (strcmp(before, now)) {
			size_t at = 0;
			for (size_t i = 0; now[i] == before[i]; i++)
				if (now[i] == '\n')
					at = i + 1;
			printf("%.*s, before %.*s\n", (int)strcspn(now + at, "\n"), now + at,
			       (int)strcspn(before + at, "\n"), before + at);
			exit(1);
		}
		free(now);
		OK(cuStreamSynchronize(stream));
		CHECK(!pthread_kill(pthread_self(), SIGUSR2));
		looked++;
	} while (!ends);
	CHECK(taken > 0 && !sigaltstack(&last, NULL)); // a sanitizer ends its own
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t firer[FIRERS];
	handle module;
	char line[64];
	const char *as = argc > 2 ? argv[2] : "";
	bool fires = !strcmp(as, "fire");

	if (!strcmp(as, "reaper"))
		CHECK(!prctl(PR_SET_CHILD_SUBREAPER, 1));
	struct sigaction action = {.sa_handler = on_stack, .sa_flags = SA_ONSTACK | SA_RESTART};
	sigaddset(&action.sa_mask, SIGHUP);
	CHECK(argc > 1 && !sigaction(SIGUSR2, &action, NULL));
	signal(SIGUSR1, handler);
	signal(SIGPIPE, SIG_IGN);
	setvbuf(stdout, NULL, _IOLBF, 0);
	look("before");
	find_driver();
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	OK(cuModuleLoad(&module, argv[1]));
	OK(cuModuleGetFunction(&kernel, module, "sim_increment"));
	ptr data;
	int per_block = 32;
	unsigned us = 1;
	void *parameters[] = {&data, &per_block, &us};
	OK(cuMemAlloc_v2(&data, per_block * sizeof(int)));
	OK(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
	OK(cuCtxSynchronize());
	look("with a kernel");
	for (size_t i = 0; fires && i < FIRERS; i++)
		CHECK(!pthread_create(&firer[i], NULL, fire, (void *)i));
	puts("ready");
	while (fgets(line, sizeof line, stdin) && !strcmp(line, "looked\n"))
		printf("looked %u\n", looked);
	ends = true;
	for (int i = 0; fires && i < FIRERS; i++)
		CHECK(!pthread_join(firer[i], NULL));
	look("at the end");
	CHECK(!fgets(line, sizeof line, stdin));
	return 0;
}
