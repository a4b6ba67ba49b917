// Another library that stands in front of the driver, in one of the forms that such libraries have:
//   OWN_LOOKUPS  has a dlsym and a cuGetProcAddress of its own, and asks libc's by version, as those that limit memory do. It answers
//                a thread's second question by RTLD_NEXT for a name with NULL.
//   SYMBOLS      only defines functions of the driver, and asks whichever dlsym comes first.
//   UNSEEN       answers cuGetProcAddress with functions that it does not export.
#define _GNU_SOURCE
#include "preempt/driver/hooks.h"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef void *dlsym_fn(void *, const char *);
typedef CUresult copy_fn(CUdeviceptr, CUdeviceptr, size_t, CUstream);
typedef CUresult free_fn(CUdeviceptr);
typedef CUresult proc_fn(const char *, void **, int, uint64_t, int *);

#ifdef OWN_LOOKUPS
static void *look(void *handle, const char *name)
{
	static dlsym_fn *of_libc;
	static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
	for (int i = 0; i < 3 && !of_libc; i++)
		of_libc = (dlsym_fn *)dlvsym(RTLD_NEXT, "dlsym", versions[i]);
	void *found = of_libc(handle, name);
	__asm__ volatile("" : "+r"(found)); // no tail call: RTLD_NEXT is asked from here
	return found;
}
#else
#define look dlsym
#endif

static void *own(const char *name)
{
	static void *driver;
	if (!driver)
		driver = dlopen("libcuda.so.1", RTLD_NOW);
	return look(driver, name);
}

#define SAY(name) (printf("other " name "\n"), fflush(stdout))

#ifdef UNSEEN
#define FRONT static
#else
#define FRONT
#endif

FRONT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	SAY("cuMemcpyAsync");
	return ((copy_fn *)own("cuMemcpyAsync"))(to, from, bytes, stream);
}

FRONT CUresult cuMemFree_v2(CUdeviceptr address)
{
	SAY("cuMemFree_v2");
	return ((free_fn *)own("cuMemFree_v2"))(address);
}

#ifndef SYMBOLS
CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status)
{
	CUresult result = ((proc_fn *)own("cuGetProcAddress_v2"))(symbol, function, version, flags, status);
	if (result || !function)
		return result;
	if (strcmp(symbol, "cuMemcpyAsync") == 0)
		*function = (void *)cuMemcpyAsync;
	else if (strcmp(symbol, "cuMemFree") == 0)
		*function = (void *)cuMemFree_v2;
	else if (strcmp(symbol, "cuGetProcAddress") == 0)
		*function = (void *)cuGetProcAddress_v2;
	return result;
}
#endif

#ifdef OWN_LOOKUPS
void *dlsym(void *handle, const char *name)
{
	static __thread const char *asked[64];
	static __thread int count;
	if (handle == RTLD_NEXT) {
		for (int i = 0; i < count; i++)
			if (strcmp(asked[i], name) == 0)
				return NULL;
		asked[count++ % 64] = name;
		return look(RTLD_NEXT, name);
	}
	if (strcmp(name, "cuMemcpyAsync") == 0)
		return (void *)cuMemcpyAsync;
	if (strcmp(name, "cuMemFree_v2") == 0)
		return (void *)cuMemFree_v2;
	if (strcmp(name, "cuGetProcAddress_v2") == 0)
		return (void *)cuGetProcAddress_v2;
	return look(handle, name);
}
#endif
