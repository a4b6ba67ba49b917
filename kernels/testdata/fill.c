// Runs the kernels of fill.cu against memset and memcpy, as cases on standard input say:
//	fill to pitch width height value size
//	copy to pitch width height from pitch
// Addresses are offsets. Prints "same", or the first byte that differs. Memory outside the rows must stay as it was,
// and no load may touch what lies more than a vector beyond the source.
#include "cpu.h"
#include "../fill.cu"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ROOM = 1 << 18 };
static byte *memory, *source, *want, pattern[ROOM];

static address blocks_of(address width, address height)
{
	address segments = (width + VECTOR - 1 + FILL_SEGMENT - 1) / FILL_SEGMENT;
	return (height * segments + FILL_THREADS / LANES - 1) / (FILL_THREADS / LANES);
}

#define EACH_THREAD(blocks, call) \
	for (blockIdx.x = 0; blockIdx.x < (blocks); blockIdx.x++) \
		for (threadIdx.x = 0; threadIdx.x < FILL_THREADS; threadIdx.x++) \
	call

static unsigned int unit_for(address all) { return all % 16 == 0 ? 16 : all % 4 == 0 ? 4 : 1; }

int main(void)
{
	char what[8];
	memory = aligned_alloc(4096, ROOM), want = malloc(ROOM);
	// Pages that fault on either side of the source.
	byte *pages = mmap(NULL, ROOM + 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	source = pages + 4096;
	if (!memory || !want || pages == MAP_FAILED || mprotect(source, ROOM, PROT_READ | PROT_WRITE))
		return 1;
	for (int i = 0; i < ROOM; i++) {
		pattern[i] = (byte)(i * 7 + 3);
		source[i] = (byte)(rand() >> 8);
	}
	address to, pitch, width, height, a, b;
	while (scanf("%7s %llu %llu %llu %llu %llu %llu", what, &to, &pitch, &width, &height, &a, &b) == 7) {
		bool fill = !strcmp(what, "fill"), narrow = height > 1 && width < FILL_NARROW;
		address base = (address)memory + to, from = (address)source + a;
		address segments = (width + VECTOR - 1 + FILL_SEGMENT - 1) / FILL_SEGMENT;
		memcpy(memory, pattern, ROOM);
		memcpy(want, pattern, ROOM);
		unsigned int value = (unsigned int)a;
		if (fill && b < 2)
			value = (value & 0xff) * 0x01010101u;
		else if (fill && b == 2)
			value = (value & 0xffff) * 0x00010001u;
		for (address row = 0; row < height; row++)
			for (address i = 0; i < width; i++)
				want[to + row * pitch + i] =
					fill ? (byte)(value >> 8 * (i % (b ? b : 1))) : source[a + row * b + i];
		unsigned int unit = unit_for(base | pitch | width | (fill ? 0 : from | b));
		unsigned int count = (unsigned int)width / unit;
		address units = (height * count + FILL_UNITS - 1) / FILL_UNITS;
		if (narrow && fill)
			EACH_THREAD(units, gpreempt_fill_narrow(base, pitch, height, count, unit, value));
		else if (narrow)
			EACH_THREAD(units, gpreempt_copy_narrow(base, pitch, height, count, unit, from, b));
		else if (fill)
			EACH_THREAD(blocks_of(width, height), gpreempt_fill(base, pitch, width, height, segments, value));
		else
			EACH_THREAD(blocks_of(width, height), gpreempt_copy(base, pitch, width, height, segments, from, b));
		int i = memcmp(memory, want, ROOM) ? 0 : ROOM;
		while (i < ROOM && memory[i] == want[i])
			i++;
		if (i == ROOM)
			printf("same\n");
		else
			printf("byte %d is %u, must be %u\n", i, memory[i], want[i]);
	}
	return 0;
}
