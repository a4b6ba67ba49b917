// hello.c - a program without CUDA. It says hello, and whether the library was loaded into it.
#include <stdio.h>
#include <string.h>

int main(void)
{
	char line[4096];
	int loaded = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	while (maps && fgets(line, sizeof line, maps))
		loaded |= strstr(line, "libgpreempt.so") != NULL;
	printf("hello %d\n", loaded);
	return 0;
}
