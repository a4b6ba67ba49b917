// A second preloaded library. NAME is what this copy calls itself; the first asks for the next one's.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <errno.h>

const char *name(void) { return NAME; }

#ifdef FIRST
const char *next_name(void) { return ((const char *(*)(void))dlsym(RTLD_NEXT, "name"))(); }

// Only a descriptor of the test's is answered.
int ioctl(int fd, unsigned long request, ...)
{
	if (fd == -7)
		return 0;
	errno = EBADF;
	return -1;
}
#endif
