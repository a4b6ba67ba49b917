// fill.c - the kernels of ../../../kernels/fill.cu, which are C too.
#include "sim.h"

#include "../../../kernels/testdata/cpu.h"

#include "../../../kernels/fill.cu"

static bool rows_valid(uint64_t at, uint64_t pitch, uint64_t width, uint64_t height) {
	return height > 0 && address_valid(at, (height - 1) * pitch + width);
}

#define BLOCK(valid, call) \
	if (!(valid)) \
		return false; \
	blockIdx.x = (unsigned int)number; \
	for (threadIdx.x = 0; threadIdx.x < FILL_THREADS; threadIdx.x++) \
		call; \
	return true

static bool fill_block(const uint64_t *a, uint64_t number) {
	BLOCK(rows_valid(a[0], a[1], a[2], a[3]), gpreempt_fill(a[0], a[1], a[2], a[3], a[4], (unsigned int)a[5]));
}

static bool copy_block(const uint64_t *a, uint64_t number) {
	BLOCK(rows_valid(a[0], a[1], a[2], a[3]) && rows_valid(a[5], a[6], a[2], a[3]),
		gpreempt_copy(a[0], a[1], a[2], a[3], a[4], a[5], a[6]));
}

static bool fill_narrow_block(const uint64_t *a, uint64_t number) {
	BLOCK(rows_valid(a[0], a[1], a[3] * a[4], a[2]),
		gpreempt_fill_narrow(a[0], a[1], a[2], (unsigned int)a[3], (unsigned int)a[4], (unsigned int)a[5]));
}

static bool copy_narrow_block(const uint64_t *a, uint64_t number) {
	BLOCK(rows_valid(a[0], a[1], a[3] * a[4], a[2]) && rows_valid(a[5], a[6], a[3] * a[4], a[2]),
		gpreempt_copy_narrow(a[0], a[1], a[2], (unsigned int)a[3], (unsigned int)a[4], a[5], a[6]));
}

// A block is 32 KiB at most.
static uint64_t duration(const uint64_t *a, uint64_t blocks) {
	(void)a;
	return machine.copy_latency_ns + blocks * 32768 * 1000 / machine.device_bytes_per_us;
}

const struct kernel fill_kernels[4] = {
	{"gpreempt_fill", 6, {8, 8, 8, 8, 8, 4}, 38, 0, 0, duration, NULL, NULL, NULL, fill_block},
	{"gpreempt_copy", 7, {8, 8, 8, 8, 8, 8, 8}, 58, 0, 0, duration, NULL, NULL, NULL, copy_block},
	{"gpreempt_fill_narrow", 6, {8, 8, 8, 4, 4, 4}, 22, 0, 0, duration, NULL, NULL, NULL, fill_narrow_block},
	{"gpreempt_copy_narrow", 7, {8, 8, 8, 4, 4, 8, 8}, 26, 0, 0, duration, NULL, NULL, NULL, copy_narrow_block},
};
