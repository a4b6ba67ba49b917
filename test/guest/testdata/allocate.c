// Allocates so many pieces of 256 MB as the driver gives, at most eight, and prints how many.
#include <dlfcn.h>
#include <stdio.h>

int main(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context;
	unsigned long long address;
	int pieces = 0;
	if (((int (*)(unsigned int))dlsym(driver, "cuInit"))(0) ||
	    ((int (*)(void **, int))dlsym(driver, "cuDevicePrimaryCtxRetain"))(&context, 0) ||
	    ((int (*)(void *))dlsym(driver, "cuCtxSetCurrent"))(context))
		return 1;
	int (*allocate)(unsigned long long *, size_t) =
		(int (*)(unsigned long long *, size_t))dlsym(driver, "cuMemAlloc_v2");
	while (pieces < 8 && allocate(&address, 256ul << 20) == 0)
		pieces++;
	printf("%d\n", pieces);
	return 0;
}
