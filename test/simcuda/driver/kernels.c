// kernels.c - the kernels that the simulated GPU knows, by name. Images are not looked at.
#include "sim.h"

#include <string.h>

static uint64_t work_duration(const uint64_t *a, uint64_t blocks) {
	uint64_t resident = (uint64_t)machine.sms * 2;
	return a[1] * ((blocks + resident - 1) / resident);
}

static bool work_finish(const uint64_t *a) {
	if (!a[0])
		return true;
	if (!address_valid(a[0], sizeof(float)))
		return false;
	*(float *)a[0] += 1;
	return true;
}

static uint64_t spin_duration(const uint64_t *a, uint64_t blocks) {
	(void)blocks;
	return a[0] * 1000;
}

static uint64_t fixed_duration(const uint64_t *a, uint64_t blocks) {
	(void)a, (void)blocks;
	return 20000;
}

static bool add_finish(const uint64_t *a) {
	if (a[1] > UINT64_MAX / 4 || !address_valid(a[0], a[1] * 4))
		return false;
	for (uint64_t i = 0; i < a[1]; i++)
		((uint32_t *)a[0])[i] += (uint32_t)a[2];
	return true;
}

static bool copy_finish(const uint64_t *a) {
	if (!address_valid(a[0], a[2]) || !address_valid(a[1], a[2]))
		return false;
	memmove((void *)a[0], (void *)a[1], a[2]);
	return true;
}

// gpreempt_hold(volatile uint32_t *word, uint32_t sequence, uint32_t chain, uint64_t limit_ns, uint32_t *expired,
//	uint64_t *place)
static bool hold_over(const uint64_t *a, uint64_t ran_ns) {
	_Atomic uint32_t *word = (_Atomic uint32_t *)a[0];
	volatile uint32_t *expired = (volatile uint32_t *)a[4];
	uint32_t sequence = (uint32_t)a[1], chain = (uint32_t)a[2];
	*(volatile uint64_t *)a[5] = (uint64_t)sequence << 32; // SM 0
	if (*expired == chain || (int32_t)(atomic_load(word) - sequence) >= 0)
		return true;
	if (ran_ns < a[3])
		return false;
	*expired = chain;
	return true;
}

static uint64_t hold_limit(const uint64_t *a) {
	return a[3];
}

static const struct kernel kernels[] = {
	{"gpreempt_hold", 6, {8, 4, 4, 8, 8, 8}, 16, 0, 0, NULL, hold_over, hold_limit, NULL},
	{"bench_work", 2, {8, 8}, 32, 0, 0, work_duration, NULL, NULL, work_finish},
	{"sim_spin_us", 1, {8}, 16, 0, 0, spin_duration, NULL, NULL, NULL},
	{"sim_add", 3, {8, 8, 4}, 16, 0, 0, fixed_duration, NULL, NULL, add_finish},
	{"sim_copy", 3, {8, 8, 8}, 16, 0, 0, fixed_duration, NULL, NULL, copy_finish},
};

const struct kernel *kernel_find(const char *name) {
	for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
		if (strcmp(kernels[i].name, name) == 0)
			return &kernels[i];
	return NULL;
}
