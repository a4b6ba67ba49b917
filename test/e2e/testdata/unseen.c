// unseen.c - prints what a program sees of itself: signals, masks, descriptors, its limits, and its children. Before it uses CUDA, once a kernel
// has run, and at the end. "reaper": it takes in its children's children, as the first process of a container does.
#include "driver.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static void look(const char *when)
{
	char line[256], path[64], to[256];
	FILE *status = fopen("/proc/self/status", "re");
	printf("%s\n", when);
	CHECK(status);
	while (fgets(line, sizeof line, status))
		if (!strncmp(line, "Sig", 3) && line[3] != 'Q')
			fputs(line, stdout);
	fclose(status);
	for (int fd = 0; fd < 1024; fd++) {
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		ssize_t length = readlink(path, to, sizeof to - 1);
		if (length > 0)
			printf("descriptor %d %.4s\n", fd, to);
	}
	for (int s = 1; s < NSIG; s++) {
		struct sigaction action;
		if (!sigaction(s, NULL, &action) && (action.sa_handler != SIG_DFL || action.sa_flags))
			printf("signal %d flags %x\n", s, action.sa_flags);
	}
	stack_t stack;
	struct rlimit files;
	CHECK(!sigaltstack(NULL, &stack) && !getrlimit(RLIMIT_NOFILE, &files));
	printf("signal stack %d, files %ld\n", stack.ss_flags, (long)files.rlim_cur);
	int child = waitpid(-1, NULL, WNOHANG);
	printf("children %d %s\n", child, strerror(errno));
}

static void handler(int unused) { (void)unused; }

int main(int argc, char **argv)
{
	handle context, module, kernel;
	unsigned long long us = 1;
	void *parameters[] = {&us};
	char line[64];

	if (argc > 1 && !strcmp(argv[1], "reaper"))
		CHECK(!prctl(PR_SET_CHILD_SUBREAPER, 1));
	signal(SIGUSR1, handler);
	signal(SIGPIPE, SIG_IGN);
	setvbuf(stdout, NULL, _IOLBF, 0);
	look("before");
	find_driver();
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	OK(cuModuleLoadData(&module, "simulated image"));
	OK(cuModuleGetFunction(&kernel, module, "sim_spin_us"));
	OK(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
	OK(cuCtxSynchronize());
	look("with a kernel");
	puts("ready");
	CHECK(fgets(line, sizeof line, stdin));
	look("at the end");
	CHECK(!fgets(line, sizeof line, stdin));
	return 0;
}
