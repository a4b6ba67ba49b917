// Sets a variable of the environment in the running process, as Python and Ray do, and initialises CUDA.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	setenv(argv[1], argv[2], 1);
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	int (*init)(unsigned int) = driver ? (int (*)(unsigned int))dlsym(driver, "cuInit") : NULL;
	printf("%d\n", init ? init(0) : -1);
	return argc != 3;
}
