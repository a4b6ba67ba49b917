// A library that limits memory: it has a dlsym of its own, and counts what cuMemAlloc takes. It does not know cuMemCreate.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef void *dlsym_fn(void *, const char *);
static const size_t most = 1ul << 30;

static void *look(void *handle, const char *name)
{
	static dlsym_fn *of_libc;
	static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
	for (int i = 0; i < 3 && !of_libc; i++)
		of_libc = (dlsym_fn *)dlvsym(RTLD_NEXT, "dlsym", versions[i]);
	return of_libc(handle, name);
}

int cuMemAlloc_v2(unsigned long long *address, size_t bytes)
{
	static size_t taken;
	if (taken + bytes > most)
		return 2;
	taken += bytes;
	int (*own)(unsigned long long *, size_t) =
		(int (*)(unsigned long long *, size_t))look(dlopen("libcuda.so.1", RTLD_NOW), "cuMemAlloc_v2");
	return own(address, bytes);
}

void *dlsym(void *handle, const char *name)
{
	return strcmp(name, "cuMemAlloc_v2") == 0 ? (void *)cuMemAlloc_v2 : look(handle, name);
}
