// Opens a library in a namespace of its own, or with RTLD_DEEPBIND, and uses it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
	void *library = !strcmp(argv[1], "dlmopen") ? dlmopen(LM_ID_NEWLM, argv[2], RTLD_NOW) :
						      dlopen(argv[2], RTLD_NOW | RTLD_DEEPBIND);
	if (!library) {
		puts(dlerror());
		return 1;
	}
	double (*cosine)(double) = (double (*)(double))dlsym(library, "cos");
	printf("opened %.1f\n", cosine ? cosine(0) : -1);
	return 0;
}
