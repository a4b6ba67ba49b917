// Memsets and copies within device memory, mixed with kernels, on a stream; a model of the memory says what it must
// hold. Commands on standard input: "run N": N operations; "seen": how many there were.
#define _GNU_SOURCE
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FUNCTIONS(F) \
	F(cuMemsetD16Async, (ptr, unsigned short, size_t, handle)) \
	F(cuMemsetD2D8Async, (ptr, size_t, unsigned char, size_t, size_t, handle)) \
	F(cuMemsetD2D16Async, (ptr, size_t, unsigned short, size_t, size_t, handle)) \
	F(cuMemsetD2D32Async, (ptr, size_t, unsigned, size_t, size_t, handle)) \
	F(cuMemcpyDtoDAsync_v2, (ptr, ptr, size_t, handle)) \
	F(cuMemcpyAsync, (ptr, ptr, size_t, handle)) \
	F(cuMemcpy2DAsync_v2, (const void *, handle))

#include "driver.h"

struct side {
	size_t x, y;
	int type;
	void *host;
	ptr device;
	void *array;
	size_t pitch;
};
struct copy_2d {
	struct side from, to;
	size_t width, height;
};

enum { BYTES = 1 << 20, HALF = BYTES / 2, WORDS = 64, DEVICE = 2, UNIFIED = 4 };
static unsigned char *model;
static ptr memory;
static handle stream, increment;
static unsigned done;

static uint64_t pick(uint64_t below) { return ((uint64_t)rand() << 20 ^ (uint64_t)rand()) % below; }

static void set(int width)
{
	uint64_t at = pick(BYTES / 2) / width * width, n = pick((BYTES - at) / width + 1);
	uint32_t value = (uint32_t)rand();
	if (!n)
		n = 1;
	if (width == 1)
		OK(cuMemsetD8Async(memory + at, (unsigned char)value, n, stream));
	else if (width == 2)
		OK(cuMemsetD16Async(memory + at, (unsigned short)value, n, stream));
	else
		OK(cuMemsetD32Async(memory + at, value, n, stream));
	for (uint64_t i = 0; i < n; i++)
		memcpy(model + at + i * width, &value, width);
}

static void set_rows(int width)
{
	uint64_t n = 1 + pick(400), rows = 1 + pick(200), pitch = (n + pick(100)) * width;
	uint64_t at = pick(BYTES - pitch * rows) / width * width;
	uint32_t value = (uint32_t)rand();
	if (width == 1)
		OK(cuMemsetD2D8Async(memory + at, pitch, (unsigned char)value, n, rows, stream));
	else if (width == 2)
		OK(cuMemsetD2D16Async(memory + at, pitch, (unsigned short)value, n, rows, stream));
	else
		OK(cuMemsetD2D32Async(memory + at, pitch, value, n, rows, stream));
	for (uint64_t row = 0; row < rows; row++)
		for (uint64_t i = 0; i < n; i++)
			memcpy(model + at + row * pitch + i * width, &value, width);
}

static void copy(bool unified)
{
	uint64_t n = 1 + pick(HALF), from = pick(HALF - n + 1), to = HALF + pick(HALF - n + 1);
	if (rand() & 1) {
		uint64_t t = from;
		from = to, to = t;
	}
	if (unified)
		OK(cuMemcpyAsync(memory + to, memory + from, n, stream));
	else
		OK(cuMemcpyDtoDAsync_v2(memory + to, memory + from, n, stream));
	memcpy(model + to, model + from, n);
}

static void copy_rows(void)
{
	uint64_t width = 1 + pick(600), height = 1 + pick(200), x = pick(50), y = pick(3);
	struct copy_2d c = {
		.from = {x, y, rand() & 1 ? DEVICE : UNIFIED, NULL, memory, NULL, width + x + pick(40)},
		.to = {y, x % 4, DEVICE, NULL, memory + HALF, NULL, width + y + pick(40)},
		.width = width,
		.height = height,
	};
	OK(cuMemcpy2DAsync_v2(&c, stream));
	for (uint64_t row = 0; row < height; row++)
		memcpy(model + HALF + (c.to.y + row) * c.to.pitch + c.to.x,
		       model + (c.from.y + row) * c.from.pitch + c.from.x, width);
}

static void kernel(void)
{
	enum { BLOCKS = 4000 };
	unsigned n = WORDS, us = 1000;
	void *parameters[] = {&memory, &n, &us};
	OK(cuLaunchKernel(increment, BLOCKS, 1, 1, 256, 1, 1, 0, stream, parameters, NULL));
	for (uint64_t i = 0; i < BLOCKS * WORDS; i++) {
		uint32_t value;
		memcpy(&value, model + i * 4, 4);
		value++;
		memcpy(model + i * 4, &value, 4);
	}
}

static void run(unsigned count)
{
	static unsigned char have[BYTES];
	for (unsigned i = 0; i < count; i++, done++)
		switch (rand() % 11) {
		case 0: set(1); break;
		case 1: set(2); break;
		case 2: set(4); break;
		case 3: set_rows(1); break;
		case 4: set_rows(2); break;
		case 5: set_rows(4); break;
		case 6: copy(false); break;
		case 7: copy(true); break;
		case 8: copy_rows(); break;
		default: kernel();
		}
	OK(cuStreamSynchronize(stream));
	OK(cuMemcpyDtoH_v2(have, memory, BYTES));
	for (int i = 0; i < BYTES; i++)
		if (have[i] != model[i]) {
			printf("byte %d is %d, must be %d\n", i, have[i], model[i]);
			return;
		}
	printf("same %u\n", done);
}

// Calls that the library's kernels do not carry out: host memory, ranges that leave their allocation, odd addresses. The driver answers.
static void refused(void)
{
	void *host;
	OK(cuMemHostAlloc(&host, 4096, 0));
	memset(host, 7, 4096);
	int past = cuMemsetD8Async(memory + BYTES - 1, 0, 2, stream), nowhere = cuMemsetD8Async(16, 0, 1, stream);
	int out = cuMemcpyAsync((ptr)host, memory, 4096, stream);
	OK(cuStreamSynchronize(stream));
	printf("past %d nowhere %d out %d %d\n", past, nowhere, out, memcmp(host, model, 4096));
}

int main(int argc, char **argv)
{
	handle context, module;
	char line[64];
	unsigned n;
	if (argc != 2)
		return 1;
	find_driver();
	setvbuf(stdout, NULL, _IOLBF, 0);
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	OK(cuModuleLoad(&module, argv[1]));
	OK(cuModuleGetFunction(&increment, module, "sim_increment"));
	OK(cuStreamCreate(&stream, 1));
	OK(cuMemAlloc_v2(&memory, BYTES));
	model = calloc(1, BYTES);
	OK(cuMemcpyHtoD_v2(memory, model, BYTES));
	while (fgets(line, sizeof line, stdin))
		if (sscanf(line, "run %u", &n) == 1)
			run(n);
		else if (strcmp(line, "refused\n") == 0)
			refused();
	return 0;
}
