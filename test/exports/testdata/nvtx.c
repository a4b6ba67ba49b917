// A program that looks an NVTX tool up: by a handle, as NVTX does, or in the way that its argument says. TOOL: the tool, which is preloaded too, and
// asks for the one behind it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int initialize_fn(void *);

#ifdef TOOL
int InitializeInjectionNvtx2(void *get)
{
	static int calls;
	if (calls++)
		exit(3); // it has found itself
	initialize_fn *behind = (initialize_fn *)dlsym(RTLD_NEXT, "InitializeInjectionNvtx2");
	printf("tool, behind it %s\n", behind ? "another" : "none");
	return behind ? behind(get) : 1;
}

int InitializeInjectionOther(void) { return 0; }
#else
int main(int count, char **argument)
{
	const char *way = argument[count - 1];
	void *handle = strcmp(way, "next") == 0    ? RTLD_NEXT :
		       strcmp(way, "default") == 0 ? RTLD_DEFAULT :
						     dlopen(getenv("NVTX_INJECTION64_PATH"), RTLD_LAZY);
	initialize_fn *initialize = (initialize_fn *)dlsym(handle, "InitializeInjectionNvtx2");
	if (!dlsym(handle, "InitializeInjectionOther")) // which is nothing of NVTX
		return 2;
	return initialize && initialize(NULL) ? 0 : 1;
}
#endif
