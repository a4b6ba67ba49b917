// A program that uses functions of newer drivers behind kernels. Says "ready", and for each line of its input
// "<what> <rounds>" how many rounds went wrong; "ask NAME dlsym|proc" asks for a function by name.
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define FUNCTIONS(F) \
	F(cuMemsetD8_v2, (ptr, unsigned char, size_t)) \
	F(cuGetProcAddress_v2, (const char *, void **, int, uint64_t, void *)) \
	F(cuMemcpyWithAttributesAsync, (ptr, ptr, size_t, const void *, handle)) \
	F(cuMemcpy3DWithAttributesAsync, (const void *, unsigned long long, handle)) \
	F(cuLaunchHostFunc_v2, (handle, void (*)(void *), void *, unsigned))

#include "driver.h"

enum { BLOCKS = 1320, THREADS = 1024, NON_BLOCKING = 1, US = 300, BYTES = BLOCKS * 4 };
static handle kernel, stream;
static ptr data, copy;

struct attributes {
	int order, from[2], to[2];
	unsigned flags;
}; // CUmemcpyAttributes
struct operand {
	int type;
	ptr address;
	size_t row, layer;
	int hint[2];
};
struct copy_3d {
	struct operand from, to;
	size_t width, height, depth;
	int order;
	unsigned flags;
}; // CUDA_MEMCPY3D_BATCH_OP

static void look(void *wrong)
{ // the simulated driver's device memory
	for (int i = 0; i < BLOCKS; i++)
		*(int *)wrong |= ((int *)data)[i] != 2;
}

static int one(const char *what)
{
	int n = 1, us = US, wrong = 0;
	void *parameters[] = {&data, &n, &us};
	OK(cuMemsetD8_v2(data, 0, BYTES));
	OK(cuStreamSynchronize(NULL));
	for (int i = 0; i < 2; i++)
		OK(cuLaunchKernel(kernel, BLOCKS, 1, 1, THREADS, 1, 1, 0, stream, parameters, NULL));
	if (!strcmp(what, "host")) {
		OK(cuLaunchHostFunc_v2(stream, look, &wrong, 0));
	} else if (!strcmp(what, "copy")) {
		struct attributes a = {.order = 1};
		OK(cuMemcpyWithAttributesAsync(copy, data, BYTES, &a, stream));
	} else {
		struct copy_3d c = {.from = {1, data, 0, 0, {0}},
				    .to = {1, copy, 0, 0, {0}},
				    .width = BYTES,
				    .height = 1,
				    .depth = 1,
				    .order = 1};
		OK(cuMemcpy3DWithAttributesAsync(&c, 0, stream));
	}
	OK(cuStreamSynchronize(stream));
	for (int i = 0; i < BLOCKS && strcmp(what, "host"); i++)
		wrong |= ((int *)copy)[i] != 2;
	return wrong;
}

int main(int count, char **argument)
{
	char line[128], what[32], name[64], how[16];
	handle context, module;
	int rounds;

	if (count != 2)
		return 2;
	handle library = find_driver();
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	OK(cuModuleLoad(&module, argument[1]));
	OK(cuModuleGetFunction(&kernel, module, "sim_increment"));
	OK(cuStreamCreate(&stream, NON_BLOCKING));
	OK(cuMemAlloc_v2(&data, BYTES));
	OK(cuMemAlloc_v2(&copy, BYTES));
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		void *found = NULL;
		if (sscanf(line, "ask %63s %15s", name, how) == 2) {
			if (!strcmp(how, "dlsym"))
				found = dlsym(library, name);
			else if (cuGetProcAddress_v2(name, &found, 13050, 0, NULL))
				found = NULL; // the driver has no such function
			printf("found %d\n", found != NULL);
		} else if (sscanf(line, "%31s %d", what, &rounds) == 2) {
			int wrong = 0;
			for (int i = 0; i < rounds; i++)
				wrong += one(what);
			printf("wrong %d\n", wrong);
		} else {
			return 2;
		}
		fflush(stdout);
	}
	return 0;
}
