// Calls that sanitizers intercept, before main too: looks up, opens, reads, allocates, in threads.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *work(void *text)
{
	int fds[2];
	char read_back[16] = "";
	if (pipe(fds) || write(fds[1], text, strlen(text)) < 0 || read(fds[0], read_back, sizeof read_back - 1) < 0)
		return NULL;
	close(fds[0]);
	close(fds[1]);
	return strdup(read_back);
}

int main(void)
{
	pthread_t thread;
	void *copy, *library = dlopen("libm.so.6", RTLD_NOW);
	double (*cosine)(double) = library ? (double (*)(double))dlsym(library, "cos") : NULL;
	if (!cosine || pthread_create(&thread, NULL, work, "read") || pthread_join(thread, &copy))
		return 1;
	printf("%s %.1f %d\n", (char *)copy, cosine(0), dlsym(RTLD_DEFAULT, "cuInit") != NULL);
	free(copy);
	return 0;
}
