// Prints what others can see of this process: threads, signals, descriptors, the signal stack, the environment, limits.
#define _GNU_SOURCE
#include "seen.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>

static void *say(void *when)
{
	printf("%s\n", (char *)when);
	print_seen(stdout, "Threads");
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
