// A program that comes by three functions of the driver in one of the ways of find, and calls each once.
#define _GNU_SOURCE
#include "preempt/driver/hooks.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

CUresult cuInit(unsigned int);
CUresult cuMemcpyAsync(CUdeviceptr, CUdeviceptr, size_t, CUstream);
CUresult cuMemFree_v2(CUdeviceptr);
typedef CUresult proc_fn(const char *, void **, int, uint64_t, int *);

static void *find(const char *way, void *driver, const char *name, const char *symbol, void *linked)
{
	void *found = NULL;
	if (strcmp(way, "linked") == 0)
		found = linked;
	else if (strcmp(way, "dlsym") == 0)
		found = dlsym(driver, name);
	else if (strcmp(way, "dlvsym") == 0)
		found = dlvsym(driver, name, "ANY");
	else if (strcmp(way, "default") == 0)
		found = dlsym(RTLD_DEFAULT, name);
	else if (strcmp(way, "next") == 0)
		found = dlsym(RTLD_NEXT, name);
	else if (strncmp(way, "proc", 4) == 0) {
		void *get = dlsym(driver, "cuGetProcAddress_v2");
		if (strcmp(way, "procproc") == 0 && ((proc_fn *)get)("cuGetProcAddress", &get, 12000, 0, NULL))
			abort();
		if (((proc_fn *)get)(symbol, &found, 12000, 0, NULL))
			abort();
	}
	if (!found) {
		printf("%s is not found\n", name);
		exit(1);
	}
	return found;
}

int main(int argc, char **argv)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	const char *way = argv[argc - 1];
	((CUresult (*)(unsigned int))find(way, driver, "cuInit", "cuInit", (void *)cuInit))(0);
	((CUresult (*)(CUdeviceptr, CUdeviceptr, size_t, CUstream))find(way, driver, "cuMemcpyAsync", "cuMemcpyAsync",
									(void *)cuMemcpyAsync))(1, 2, 3, NULL);
	((CUresult (*)(CUdeviceptr))find(way, driver, "cuMemFree_v2", "cuMemFree", (void *)cuMemFree_v2))(1);
	return 0;
}
