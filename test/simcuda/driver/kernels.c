// kernels.c - the kernels that the simulated GPU knows, by name, and their effects.
#include "fill.h"
#include "sim.h"

#include <string.h>

static uint64_t work_duration(const uint64_t *a, uint64_t blocks)
{
	uint64_t resident = (uint64_t)machine.sms * 2;
	return a[1] * ((blocks + resident - 1) / resident);
}

static bool work_finish(const uint64_t *a)
{
	if (!a[0])
		return true;
	if (!address_valid(a[0], sizeof(float)))
		return false;
	*(float *)a[0] += 1;
	return true;
}

static uint64_t mix_duration(const uint64_t *a, uint64_t blocks)
{
	(void)blocks;
	return 5000 + 8 * (uint32_t)a[1] / 3000; // reads and writes each word
}

static bool mix_finish(const uint64_t *a)
{
	uint32_t *word = (uint32_t *)a[0], n = (uint32_t)a[1], rounds = (uint32_t)a[2];
	if (!address_valid(a[0], 4ull * n))
		return false;
	if (!sim_contents())
		n = 0;
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t round = 0; round < rounds; round++)
			word[i] = (word[i] ^ (word[i] >> 15)) * 0x2c1b3c6du + i + round;
	return true;
}

static uint64_t spin_duration(const uint64_t *a, uint64_t blocks)
{
	(void)blocks;
	return a[0] * 1000;
}

static uint64_t fixed_duration(const uint64_t *a, uint64_t blocks)
{
	(void)a, (void)blocks;
	return 20000;
}

static uint64_t empty_duration(const uint64_t *a, uint64_t blocks)
{
	(void)a, (void)blocks;
	return 1000;
}

static bool add_finish(const uint64_t *a)
{
	if (a[1] > UINT64_MAX / 4 || !address_valid(a[0], a[1] * 4))
		return false;
	for (uint64_t i = 0; i < a[1]; i++)
		((uint32_t *)a[0])[i] += (uint32_t)a[2];
	return true;
}

static bool copy_finish(const uint64_t *a)
{
	if (!address_valid(a[0], a[2]) || !address_valid(a[1], a[2]))
		return false;
	memmove((void *)a[0], (void *)a[1], a[2]);
	return true;
}

// The kernels of kernels/sim.cu.
static uint64_t increment_duration(const uint64_t *a, uint64_t blocks)
{
	(void)blocks;
	return a[2] * 1000;
}

static uint64_t chain_duration(const uint64_t *a, uint64_t blocks)
{
	(void)blocks;
	return a[3] * 1000;
}

static uint32_t *part(const uint64_t *a, uint64_t number)
{ // the words of the block; NULL: an illegal address
	uint64_t bytes = (uint32_t)a[1] * 4ull;
	if ((int32_t)a[1] < 0 || number > (UINT64_MAX - a[0]) / 4 / 0x80000000u || !address_valid(a[0], 1) ||
	    !address_valid(a[0] + number * bytes, bytes))
		return NULL;
	return (uint32_t *)(a[0] + number * bytes);
}

static bool increment_block(const uint64_t *a, uint64_t number)
{
	uint32_t *at = part(a, number);
	for (uint64_t i = 0; at && i < a[1]; i++)
		at[i]++;
	return at != NULL;
}

static bool chain_block(const uint64_t *a, uint64_t number)
{
	uint32_t *at = part(a, number);
	for (uint64_t i = 0; at && i < a[1]; i++)
		at[i] = at[i] * 3 + (uint32_t)a[2];
	return at != NULL;
}

// Kernels whose blocks wait for each other, with the parameters (unsigned *word, int *data, int n_per_block, unsigned us_total).
static enum progress increment_and(enum progress next, const uint64_t *a, uint64_t number)
{
	return increment_block((uint64_t[]){a[1], a[2]}, number) ? next : FAULTS;
}

static enum progress marlin_proceed(const uint64_t *a, uint64_t blocks, struct place *b)
{
	if (!address_valid(a[0], 4))
		return FAULTS;
	_Atomic uint32_t *word = (_Atomic uint32_t *)a[0];
	uint32_t turn = (uint32_t)(blocks - 1 - b->number);
	if (atomic_load(word) != turn)
		return WAITS;
	enum progress progress = increment_and(ENDS, a, b->number);
	atomic_store(word, b->number ? turn + 1 : 0);
	return progress;
}

static enum progress lamport_proceed(const uint64_t *a, uint64_t blocks, struct place *b)
{
	if (!address_valid(a[0], 4))
		return FAULTS;
	_Atomic uint32_t *word = (_Atomic uint32_t *)a[0];
	if (!b->target) {
		b->target = blocks;
		enum progress progress = increment_and(b->number ? ENDS : PROCEEDS, a, b->number);
		atomic_fetch_add(word, 1);
		return progress;
	}
	if (atomic_load(word) != b->target)
		return WAITS;
	atomic_store(word, 0);
	return ENDS;
}

static enum progress barrier_proceed(const uint64_t *a, uint64_t blocks, struct place *b)
{
	if (!address_valid(a[0], 4))
		return FAULTS;
	_Atomic uint32_t *word = (_Atomic uint32_t *)a[0];
	if (!b->target) {
		enum progress progress = increment_and(PROCEEDS, a, b->number);
		b->target = (atomic_fetch_add(word, 1) / blocks + 1) * blocks;
		return progress;
	}
	return (int32_t)(atomic_load(word) - (uint32_t)b->target) < 0 ? WAITS : increment_and(ENDS, a, b->number);
}

// A block of bench_work_reset: it ends early, and says so, where the word is raised.
static enum progress reset_proceed(const uint64_t *a, uint64_t blocks, struct place *b)
{
	(void)blocks;
	if (!address_valid(a[0], sizeof(float)) || !address_valid(a[2], 4) || !address_valid(a[3], 4))
		return FAULTS;
	if (!b->target)
		b->target = now_ns() + a[1];
	if (atomic_load((_Atomic uint32_t *)a[2])) {
		*(volatile uint32_t *)a[3] = 1;
		return ENDS;
	}
	return now_ns() < b->target ? WAITS : ENDS;
}

// The kernels of kernels/fill.cu.
static uint64_t moved_duration(uint64_t bytes) { return bytes * 1000 / machine.device_bytes_per_us; }

static uint64_t wide_duration(const uint64_t *a, uint64_t blocks)
{
	(void)blocks;
	return moved_duration(a[2] * a[3]);
}

static uint64_t narrow_duration(const uint64_t *a, uint64_t blocks)
{
	(void)blocks;
	return moved_duration(a[2] * a[3] * a[4]);
}

static bool rows_valid(uint64_t rows, uint64_t pitch, uint64_t width, uint64_t height)
{
	return !width || !height || address_valid(rows, pitch * (height - 1) + width);
}

static bool wide_fill(const uint64_t *a, uint64_t number)
{
	if (!rows_valid(a[0], a[1], a[2], a[3]))
		return false;
	fill_block(a, number);
	return true;
}

static bool wide_copy(const uint64_t *a, uint64_t number)
{
	if (!rows_valid(a[0], a[1], a[2], a[3]) || !rows_valid(a[5], a[6], a[2], a[3]))
		return false;
	copy_block(a, number);
	return true;
}

static bool narrow_fill(const uint64_t *a, uint64_t number)
{
	if (!rows_valid(a[0], a[1], a[3] * a[4], a[2]))
		return false;
	fill_narrow_block(a, number);
	return true;
}

static bool narrow_copy(const uint64_t *a, uint64_t number)
{
	if (!rows_valid(a[0], a[1], a[3] * a[4], a[2]) || !rows_valid(a[5], a[6], a[3] * a[4], a[2]))
		return false;
	copy_narrow_block(a, number);
	return true;
}

// gpreempt_hold(volatile uint64_t *word, uint32_t sequence, uint32_t chain, uint64_t limit_ns, uint64_t lease_ns,
//	uint32_t *expired, uint64_t *place)

// The register of a running link that says when it last saw the beat change. One for each word: one link runs on it at a time.
static struct lease {
	_Atomic uint64_t word;
	_Atomic uint32_t sequence, beat;
	_Atomic uint64_t renewed_ns; // in the link's time
} leases[64];

static struct lease *lease_of(uint64_t word)
{
	for (size_t i = 0; i < sizeof leases / sizeof *leases; i++) {
		uint64_t nobodys = 0;
		if (leases[i].word == word || atomic_compare_exchange_strong(&leases[i].word, &nobodys, word))
			return &leases[i];
	}
	return NULL; // no lease: the link runs to its limit
}

static bool lease_is_over(const uint64_t *a, uint32_t beat, uint64_t ran_ns)
{
	struct lease *l = lease_of(a[0]);
	if (!l)
		return false;
	if (l->sequence != (uint32_t)a[1] || l->beat != beat) {
		l->renewed_ns = l->sequence == (uint32_t)a[1] ? ran_ns : 0;
		l->sequence = (uint32_t)a[1];
		l->beat = beat;
	}
	return ran_ns > l->renewed_ns + a[4];
}

static bool hold_over(const uint64_t *a, uint64_t ran_ns)
{
	_Atomic uint64_t *word = (_Atomic uint64_t *)a[0];
	volatile uint32_t *expired = (volatile uint32_t *)a[5];
	uint32_t sequence = (uint32_t)a[1], chain = (uint32_t)a[2];
	uint64_t seen = atomic_load(word);
	*(volatile uint64_t *)a[6] = (uint64_t)sequence << 32; // SM 0
	if (*expired == chain || (int32_t)((uint32_t)seen - sequence) >= 0)
		return true;
	if (ran_ns < a[3] && !lease_is_over(a, (uint32_t)(seen >> 32), ran_ns))
		return false;
	*expired = chain;
	return true;
}

static uint64_t hold_limit(const uint64_t *a) { return a[3]; }

bool kernel_stands(const struct kernel *k, const uint64_t *a)
{
	if (!k->over)
		return false;
	device_acts();
	uint32_t ended = (uint32_t)atomic_load((_Atomic uint64_t *)a[0]), expired = *(volatile uint32_t *)a[5];
	device_acted();
	return expired != (uint32_t)a[2] && (int32_t)(ended - (uint32_t)a[1]) < 0;
}

static const struct kernel kernels[] = {
	{"gpreempt_hold", 7, {8, 4, 4, 8, 8, 8, 8}, 16, 0, 0, NULL, hold_over, hold_limit, NULL, NULL, NULL},
	{"bench_work", 2, {8, 8}, 32, 0, 0, work_duration, NULL, NULL, work_finish, NULL, NULL},
	{"bench_work_uneven", 2, {8, 8}, 32, 0, 0, work_duration, NULL, NULL, work_finish, NULL, NULL},
	{"bench_work_reset", 4, {8, 8, 8, 8}, 32, 4, 0, empty_duration, NULL, NULL, NULL, NULL, reset_proceed},
	{"bench_mix", 3, {8, 4, 4}, 32, 0, 0, mix_duration, NULL, NULL, mix_finish, NULL, NULL},
	{"bench_empty", 0, {0}, 16, 0, 0, empty_duration, NULL, NULL, NULL, NULL, NULL},
	{"sim_spin_us", 1, {8}, 16, 0, 0, spin_duration, NULL, NULL, NULL, NULL, NULL},
	{"sim_add", 3, {8, 8, 4}, 16, 0, 0, fixed_duration, NULL, NULL, add_finish, NULL, NULL},
	{"ncclDevKernel_sim_add", 3, {8, 8, 4}, 16, 0, 0, fixed_duration, NULL, NULL, add_finish, NULL, NULL}, // by its name only
	{"sim_copy", 3, {8, 8, 8}, 16, 0, 0, fixed_duration, NULL, NULL, copy_finish, NULL, NULL},
	{"sim_increment", 3, {8, 4, 4}, 16, 0, 0, increment_duration, NULL, NULL, NULL, increment_block, NULL},
	{"sim_chain", 4, {8, 4, 4, 4}, 16, 0, 0, chain_duration, NULL, NULL, NULL, chain_block, NULL},
	{"sim_marlin", 4, {8, 8, 4, 4}, 16, 0, 0, chain_duration, NULL, NULL, NULL, NULL, marlin_proceed},
	{"sim_lamport", 4, {8, 8, 4, 4}, 16, 0, 0, chain_duration, NULL, NULL, NULL, NULL, lamport_proceed},
	{"sim_barrier", 4, {8, 8, 4, 4}, 16, 0, 0, chain_duration, NULL, NULL, NULL, NULL, barrier_proceed},
	{"gpreempt_fill", 6, {8, 8, 8, 8, 8, 4}, 38, 0, 0, wide_duration, NULL, NULL, NULL, wide_fill, NULL},
	{"gpreempt_copy", 7, {8, 8, 8, 8, 8, 8, 8}, 58, 0, 0, wide_duration, NULL, NULL, NULL, wide_copy, NULL},
	{"gpreempt_fill_narrow", 6, {8, 8, 8, 4, 4, 4}, 22, 0, 0, narrow_duration, NULL, NULL, NULL, narrow_fill, NULL},
	{"gpreempt_copy_narrow", 7, {8, 8, 8, 4, 4, 8, 8}, 26, 0, 0, narrow_duration, NULL, NULL, NULL, narrow_copy, NULL},
};
const struct kernel kernel_unknown = {"unknown", 0, {0}, 32, 0, 0, fixed_duration, NULL, NULL, NULL, NULL, NULL};

const struct kernel *kernel_at(int index)
{
	return (size_t)index < sizeof kernels / sizeof *kernels ? &kernels[index] : NULL;
}

const struct kernel *kernel_find(const char *name)
{
	for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
		if (strcmp(kernels[i].name, name) == 0)
			return &kernels[i];
	return NULL;
}

int kernel_blocks_per_sm(const struct kernel *k, uint64_t threads, uint64_t shared_bytes)
{
	uint64_t padded = (threads + 31) / 32 * 32;
	uint64_t limits[] = {
		(uint64_t)machine.blocks_per_sm,
		(uint64_t)machine.threads_per_sm / padded,
		(uint64_t)machine.registers_per_sm / ((uint64_t)k->registers * padded),
		(uint64_t)machine.shared_per_sm / (shared_bytes + (uint64_t)(k->shared_bytes + machine.shared_reserved)),
	};
	uint64_t blocks = threads > 1024 ? 0 : limits[0];
	for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
		blocks = limits[i] < blocks ? limits[i] : blocks;
	return (int)blocks;
}
