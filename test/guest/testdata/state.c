// Prints what others can see of this process: threads, signals, descriptors, the signal stack, the environment, limits.
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static void *say(void *when)
{
	char line[256], path[64], to[256];
	FILE *status = fopen("/proc/thread-self/status", "re");
	printf("%s\n", (char *)when);
	while (status && fgets(line, sizeof line, status))
		if (!strncmp(line, "Threads", 7) || (!strncmp(line, "Sig", 3) && line[3] != 'Q') ||
		    !strncmp(line, "ShdPnd", 6))
			fputs(line, stdout);
	if (status)
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
	printf("signal stack %d\n", sigaltstack(NULL, &stack) ? -1 : stack.ss_flags);
	printf("files %ld\n", getrlimit(RLIMIT_NOFILE, &files) ? -1 : (long)files.rlim_cur);
	size_t variables = 0, bytes = 0;
	for (char **e = environ; *e; e++)
		if (strncmp(*e, "LD_PRELOAD=", 11))
			variables++, bytes += strlen(*e);
	printf("%zu variables, %zu bytes\n", variables, bytes);
	return NULL;
}

int main(void)
{
	pthread_t thread;
	say("at first");
	if (pthread_create(&thread, NULL, say, "in a thread") || pthread_join(thread, NULL))
		return 1;
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		say("in a child");
		fflush(stdout);
		_exit(0);
	}
	return waitpid(child, NULL, 0) != child;
}
