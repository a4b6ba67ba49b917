// A thread with the least stack that POSIX allows uses half of it.
#define _GNU_SOURCE
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static void *work(void *unused)
{
	volatile char own[8192];
	for (size_t i = 0; i < sizeof own; i += 512)
		own[i] = 1;
	char byte; // an intercepted function, too
	return read(-1, &byte, own[sizeof own / 2]) == -1 ? unused : NULL;
}

int main(void)
{
	pthread_attr_t least;
	pthread_t thread;
	pthread_attr_init(&least);
	if (pthread_attr_setstacksize(&least, PTHREAD_STACK_MIN) || pthread_create(&thread, &least, work, NULL) ||
	    pthread_join(thread, NULL))
		return 1;
	puts("fine");
	return 0;
}
