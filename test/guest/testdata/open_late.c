// Opens libraries, one after the other.
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		if (!dlopen(argv[i], RTLD_NOW)) {
			printf("%s\n", dlerror());
			return 1;
		}
	puts("opened");
	return 0;
}
