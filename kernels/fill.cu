// Memsets and copies within device memory, as kernels that can be stopped between blocks: the driver's own can not be
// once they are queued. In the subset of the language that is C too, so that a test, and the simulated driver, run
// them on a CPU.
//
// Wide rows: each warp has a segment of 4 KiB of the destination, aligned to 16 bytes whatever the row is. So
// a block is some microseconds of work. Narrow rows would leave most of a warp idle, so their elements are
// numbered through.
#include "fill.h"

#ifdef __cplusplus
#define KERNEL extern "C" __global__ void __launch_bounds__(FILL_THREADS)
#define DEVICE static __device__ __forceinline__
#define UNROLLED _Pragma("unroll")
#endif

typedef unsigned char byte;
typedef unsigned long long address;

enum { VECTOR = 16, LANES = 32, UNROLL = FILL_SEGMENT / VECTOR / LANES };

// The part of a segment that lies in its row. False: none.
DEVICE bool segment_of(address row, address width, address number, address *from, address *to)
{
	address begin = (row & ~(address)(VECTOR - 1)) + number * FILL_SEGMENT, end = begin + FILL_SEGMENT;
	*from = begin > row ? begin : row;
	*to = end < row + width ? end : row + width;
	return *from < *to;
}

DEVICE bool place_of(address segments, address height, address *row, address *number)
{
	address warp = (address)blockIdx.x * (FILL_THREADS / LANES) + threadIdx.x / LANES;
	*row = height == 1 ? 0 : warp / segments;
	*number = height == 1 ? warp : warp % segments;
	return *row < height;
}

// value is the pattern, repeated to four bytes; the address of an element is a multiple of its size.
DEVICE byte byte_of(unsigned int value, address at) { return (byte)(value >> 8 * (at & 3)); }

KERNEL gpreempt_fill(address to_rows, address pitch, address width, address height, address segments, unsigned int value)
{
	address row, number, from, to;
	unsigned int lane = threadIdx.x % LANES;
	if (!place_of(segments, height, &row, &number) || !segment_of(to_rows + row * pitch, width, number, &from, &to))
		return;
	address body = (from + VECTOR - 1) & ~(address)(VECTOR - 1), tail = to & ~(address)(VECTOR - 1);
	uint4 vector = {value, value, value, value};
	if (body > tail) { // inside one vector
		if (lane < to - from)
			*(byte *)(from + lane) = byte_of(value, from + lane);
		return;
	}
	if (lane < body - from)
		*(byte *)(from + lane) = byte_of(value, from + lane);
	UNROLLED
	for (int i = 0; i < UNROLL; i++)
		if (body + (i * LANES + lane) * VECTOR < tail)
			*(uint4 *)(body + (i * LANES + lane) * VECTOR) = vector;
	if (lane < to - tail)
		*(byte *)(tail + lane) = byte_of(value, tail + lane);
}

// Four words that begin shift bits into the first of five.
DEVICE uint4 shifted(unsigned int a, unsigned int b, unsigned int c, unsigned int d, unsigned int e, unsigned int shift)
{
	uint4 v = {__funnelshift_r(a, b, shift), __funnelshift_r(b, c, shift), __funnelshift_r(c, d, shift),
		   __funnelshift_r(d, e, shift)};
	return v;
}

// The 16 bytes that begin so many bytes into the first of two vectors. The same case for a whole warp.
DEVICE uint4 joined(uint4 a, uint4 b, unsigned int bytes)
{
	unsigned int shift = bytes % 4 * 8;
	switch (bytes / 4) {
	case 0: return shifted(a.x, a.y, a.z, a.w, b.x, shift);
	case 1: return shifted(a.y, a.z, a.w, b.x, b.y, shift);
	case 2: return shifted(a.z, a.w, b.x, b.y, b.z, shift);
	}
	return shifted(a.w, b.x, b.y, b.z, b.w, shift);
}

KERNEL gpreempt_copy(address to_rows, address to_pitch, address width, address height, address segments,
		     address from_rows, address from_pitch)
{
	address row, number, from, to;
	unsigned int lane = threadIdx.x % LANES;
	if (!place_of(segments, height, &row, &number) || !segment_of(to_rows + row * to_pitch, width, number, &from, &to))
		return;
	address away = from_rows + row * from_pitch - (to_rows + row * to_pitch); // source = destination + away
	address body = (from + VECTOR - 1) & ~(address)(VECTOR - 1), tail = to & ~(address)(VECTOR - 1);
	if (body > tail) {
		if (lane < to - from)
			*(byte *)(from + lane) = *(const byte *)(from + lane + away);
		return;
	}
	if (lane < body - from)
		*(byte *)(from + lane) = *(const byte *)(from + lane + away);
	unsigned int odd = away % VECTOR;
	uint4 vector[UNROLL];
	if (!odd) {
		UNROLLED
		for (int i = 0; i < UNROLL; i++)
			if (body + (i * LANES + lane) * VECTOR < tail)
				vector[i] = *(const uint4 *)(body + (i * LANES + lane) * VECTOR + away);
	} else {
		// Both vectors hold wanted bytes, so that neither load leaves the source's 16-byte granules.
		UNROLLED
		for (int i = 0; i < UNROLL; i++)
			if (body + (i * LANES + lane) * VECTOR < tail) {
				const uint4 *v = (const uint4 *)(body + (i * LANES + lane) * VECTOR + away - odd);
				vector[i] = joined(v[0], v[1], odd);
			}
	}
	UNROLLED
	for (int i = 0; i < UNROLL; i++)
		if (body + (i * LANES + lane) * VECTOR < tail)
			*(uint4 *)(body + (i * LANES + lane) * VECTOR) = vector[i];
	if (lane < to - tail)
		*(byte *)(tail + lane) = *(const byte *)(tail + lane + away);
}

// Narrow rows of count units of 1, 4 or 16 bytes, of which addresses and pitches are multiples.

DEVICE bool unit_of(unsigned int count, address height, int i, address *row, unsigned int *column)
{
	address first = (address)blockIdx.x * FILL_UNITS;
	unsigned int rest = (unsigned int)(first % count) + i * FILL_THREADS + threadIdx.x;
	*row = first / count + rest / count;
	*column = rest % count;
	return *row < height;
}

KERNEL gpreempt_fill_narrow(address to_rows, address pitch, address height, unsigned int count, unsigned int unit,
			    unsigned int value)
{
	uint4 vector = {value, value, value, value};
	address row;
	unsigned int column;
	for (int i = 0; i < FILL_UNITS / FILL_THREADS; i++) {
		if (!unit_of(count, height, i, &row, &column))
			return;
		address to = to_rows + row * pitch + (address)column * unit;
		if (unit == 16)
			*(uint4 *)to = vector;
		else if (unit == 4)
			*(unsigned int *)to = value;
		else
			*(byte *)to = byte_of(value, to);
	}
}

KERNEL gpreempt_copy_narrow(address to_rows, address to_pitch, address height, unsigned int count, unsigned int unit,
			    address from_rows, address from_pitch)
{
	address row;
	unsigned int column;
	for (int i = 0; i < FILL_UNITS / FILL_THREADS; i++) {
		if (!unit_of(count, height, i, &row, &column))
			return;
		address to = to_rows + row * to_pitch + (address)column * unit;
		address from = from_rows + row * from_pitch + (address)column * unit;
		if (unit == 16)
			*(uint4 *)to = *(const uint4 *)from;
		else if (unit == 4)
			*(unsigned int *)to = *(const unsigned int *)from;
		else
			*(byte *)to = *(const byte *)from;
	}
}
