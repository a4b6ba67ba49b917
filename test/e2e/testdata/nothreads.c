// nothreads.c - preloaded, like a limit of processes: it lets libgpreempt.so start only so many threads (THREADS, 0 if unset). While the
// file THREADS_RUN_OUT exists, it lets it start none.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
	static atomic_int started;
	const char *most = getenv("THREADS"), *file = getenv("THREADS_RUN_OUT");
	int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) =
		dlsym(RTLD_NEXT, "pthread_create");
	Dl_info caller;
	if (dladdr(__builtin_return_address(0), &caller) && strstr(caller.dli_fname, "libgpreempt.so")) {
		if (file ? access(file, F_OK) == 0 : started++ >= (most ? atoi(most) : 0))
			return EAGAIN;
	}
	return next(thread, attributes, run, argument);
}
