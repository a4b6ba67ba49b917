// nothreads.c - preloaded, lets no thread start, like a limit of processes.
#include <errno.h>
#include <pthread.h>

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
	(void)thread, (void)attributes, (void)run, (void)argument;
	return EAGAIN;
}
