// fit_test.c - with preempt/blp/fit.c preempt/process/facts.c preempt/process/thread.c preempt/process/process.c.
//
// The shapes of launches on GPUs that are made up: how many blocks an SM has room for, and how many share a number. Ends well or
// says what is wrong.
#include "preempt/blp/domain.h"
#include "preempt/code/code.h"
#include "preempt/process/facts.h"
#include "test/units/check.h"

void gp_thread_ends(void) {}

__typeof__(gp_driver) gp_driver;

static int most_shared = 227 * 1024, width, asked;

// A kernel of so many registers a thread is the function of that number. 255: the driver says nothing.
static CUresult attribute(int *value, int of, CUfunction f)
{
	asked++;
	if ((uintptr_t)f == 255)
		return 1;
	switch (of) {
	case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = (int)(uintptr_t)f; break;
	case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
	case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = most_shared; break;
	case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH: *value = width; break;
	default: *value = 0;
	}
	return 0;
}

static struct gp_gpu h200 = {.sms = 132,
			     .threads_per_sm = 2048,
			     .registers_per_sm = 65536,
			     .shared_per_sm = 233472,
			     .shared_reserved = 1024,
			     .blocks_per_sm = 32};

static struct blp_shape shape(struct gp_domain *d, uint32_t grid, uint32_t block, uint32_t registers, uint32_t shared,
			      bool independent)
{
	struct gp_code code = {.independent = independent};
	return blp_shape_of(d, (CUfunction)(uintptr_t)registers, &code, (uint32_t[]){grid, 1, 1},
			    (uint32_t[]){block, 1, 1}, shared);
}

static void shapes(void)
{
	static struct gp_domain d = {.gpu = &h200};
	static const struct {
		uint32_t block, registers, shared, on_sm;
	} kernel[] = {
		{32, 16, 0, 32},     {256, 32, 0, 8},     {256, 58, 0, 4},   {1024, 32, 0, 2}, {512, 128, 0, 1},
		{64, 16, 120000, 1}, {64, 16, 100000, 2}, {256, 255, 0, 32}, // the most that a GPU has
	};
	gp_driver.cuFuncGetAttribute = attribute;
	for (size_t i = 0; i < sizeof kernel / sizeof *kernel; i++) {
		uint32_t most = 132 * kernel[i].on_sm;
		for (uint32_t grid = most; grid <= most + 1; grid++) {
			struct blp_shape s =
				shape(&d, grid, kernel[i].block, kernel[i].registers, kernel[i].shared, grid % 2);
			CHECK(s.on_sm == kernel[i].on_sm);
			CHECK(s.whole == (grid == most));
			CHECK(s.cluster == 1);
		}
	}
	CHECK(shape(&d, 132, 512, 128, 0, true).whole);
	d.narrow.queues = 1; // as where the program asks for a width
	d.narrow.asked = 8;
	CHECK(!shape(&d, 132, 512, 128, 0, true).whole);
	CHECK(shape(&d, 132, 512, 128, 0, false).whole);
	CHECK(shape(&d, 132, 0, 32, 0, false).on_sm == 32); // no launch
}

// A program goes round its kernels, in sizes of their own. The driver is asked about most of them once, until handles become unknown.
static void rounds(void)
{
	static struct gp_domain d = {.gpu = &h200};
	enum { KERNELS = 160, QUESTIONS = 7 };
	for (int round = 0; round < 3; round++) {
		asked = 0;
		for (uint32_t k = 1; k <= KERNELS; k++) {
			shape(&d, 1000, 128, k, 0, false);
			shape(&d, 1000, 256, k, 1024, false);
		}
		CHECK(round == 1 ? asked < KERNELS * QUESTIONS / 10 : asked > KERNELS * QUESTIONS / 2);
		if (round == 1)
			gp_facts_forget();
	}
}

// The driver takes some sizes for certain and may refuse others. No size ends the program.
static void sizes(void)
{
	static struct gp_domain d = {.gpu = &h200};
	static const struct gp_code code;
	static const struct {
		uint32_t grid[3], block[3], shared;
		bool sound;
	} launch[] = {
		{{1, 1, 1}, {1, 1, 1}, 0, true},
		{{INT32_MAX, 65535, 65535}, {1024, 1, 1}, 49152, true},
		{{1, 1, 1}, {1, 16, 64}, 0, true},
		{{0, 1, 1}, {1, 1, 1}, 0, false},
		{{1, 0, 1}, {1, 1, 1}, 0, false},
		{{1u << 31, 1, 1}, {1, 1, 1}, 0, false},
		{{1, 65536, 1}, {1, 1, 1}, 0, false},
		{{1, 1, 65536}, {1, 1, 1}, 0, false},
		{{1, 1, 1}, {0, 1, 1}, 0, false},
		{{1, 1, 1}, {1025, 1, 1}, 0, false},
		{{1, 1, 1}, {1, 1, 65}, 0, false},
		{{1, 1, 1}, {32, 33, 1}, 0, false},
		{{1, 1, 1}, {1, 1, 1}, 49153, false},
		{{1, 1, 1}, {1, 1, 1}, UINT32_MAX, false},
		{{1, 1, 1}, {UINT32_MAX, 1, 1}, 0, false}, // in warps that is 0, in 32 bits
		{{1, 1, 1}, {UINT32_MAX - 31, 1, 1}, 0, false},
		{{1, 1, 1}, {1u << 27, 1u << 5, 1}, 0, false},
		{{1, 1, 1}, {65536, 65536, 1}, 0, false},
		{{1, 1, 1}, {UINT32_MAX, UINT32_MAX, UINT32_MAX}, UINT32_MAX, false},
		{{UINT32_MAX, UINT32_MAX, UINT32_MAX}, {1, 1, 1}, 0, false},
	};
	most_shared = 49152;
	gp_facts_forget();
	for (size_t i = 0; i < sizeof launch / sizeof *launch; i++)
		CHECK(blp_shape_of(&d, (CUfunction)16, &code, launch[i].grid, launch[i].block, launch[i].shared).sound ==
		      launch[i].sound);
	// The program allows more shared memory: that no is not remembered.
	most_shared = 60000;
	CHECK(blp_shape_of(&d, (CUfunction)16, &code, launch[0].grid, launch[0].block, 49153).sound);
	width = 2;
	CHECK(!blp_shape_of(&d, (CUfunction)17, &code, (uint32_t[]){3, 1, 1}, launch[0].block, 0).sound);
	CHECK(blp_shape_of(&d, (CUfunction)17, &code, (uint32_t[]){4, 1, 1}, launch[0].block, 0).sound);
	width = 0;
	CHECK(!blp_shape_of(&d, (CUfunction)255, &code, launch[0].grid, launch[0].block, 0).sound); // the driver says nothing
}

static void windows(void)
{
	static const struct {
		uint32_t grid, cluster, on_sm, sms, shift;
	} launch[] = {
		{1, 1, 32, 132, 0},
		{(1 << 14) - 1, 1, 32, 132, 0}, // small grids have none
		{1 << 14, 1, 32, 132, 9},
		{1 << 15, 1, 32, 132, 10},
		{1 << 16, 1, 32, 132, 11},
		{GPREEMPT_MOST - 1, 1, 32, 132, 11},
		{1 << 18, 1, 16, 132, 11}, // 2112 run at a time
		{1 << 18, 1, 15, 132, 10}, // 1980
		{1 << 18, 1, 8, 132, 10},
		{1 << 18, 1, 4, 132, 9},
		{1 << 14, 1, 4, 132, 9},
		{1 << 18, 1, 3, 132, 0}, // 256 would be less than two on each SM
		{1 << 15, 1, 2, 132, 0},
		{1 << 15, 1, 1, 132, 0},
		{GPREEMPT_MOST - 1, 1, 1, 132, 0},
		{1 << 18, 1, 8, 64, 9}, // in a width
		{1 << 18, 1, 8, 16, 7},
		{1 << 18, 1, 32, 8, 8},
		{1 << 18, 1, 1, 16, 0},
		{1 << 14, 8, 32, 132, 6}, // clusters count once
		{1 << 18, 2, 8, 132, 9},
		{1 << 18, 8, 8, 132, 7},
		{1 << 18, 16, 8, 132, 6},
		{3 << 16, 3, 8, 132, 8},
		{1 << 18, 16, 4, 1, 0}, // a cluster is more than a window
		{0, 1, 32, 132, 0},     // no launch
	};
	for (size_t i = 0; i < sizeof launch / sizeof *launch; i++) {
		struct blp_entry e = {
			.grid = {launch[i].grid, 1, 1}, .cluster = launch[i].cluster, .on_sm = launch[i].on_sm};
		uint8_t shift = blp_shift(&e, launch[i].sms);
		if (shift != launch[i].shift)
			printf("launch %zu: shift %u\n", i, shift);
		CHECK(shift == launch[i].shift);
	}
}

// A window of any launch is no larger than what runs at a time, and gives an SM more than two blocks. Each launch has many windows.
static void rules(void)
{
	for (int i = 0; i < 1000000; i++) {
		uint32_t sms = 1 + (uint32_t)(random_number() % 200), cluster = 1 + (uint32_t)(random_number() % 16);
		uint32_t grid =
			(uint32_t)(random_number() % GPREEMPT_MOST >> random_number() % 20) / cluster * cluster + cluster;
		if (grid >= GPREEMPT_MOST)
			continue;
		struct blp_entry e = {
			.grid = {1, grid, 1}, .cluster = cluster, .on_sm = 1 + (uint32_t)(random_number() % 32)};
		uint8_t shift = blp_shift(&e, sms);
		uint64_t window = (uint64_t)cluster << shift;
		CHECK(shift < GPREEMPT_WHOLE);
		CHECK(blp_windows(grid, cluster, shift) < GPREEMPT_MOST);
		if (!shift)
			continue;
		CHECK(window <= (uint64_t)e.on_sm * sms && window <= 2048);
		CHECK(window * 2 > 2 * sms); // clusters of three are counted as four
		CHECK(blp_windows(grid, cluster, shift) >= 32);
	}
}

int main(void)
{
	shapes();
	rounds();
	sizes();
	windows();
	rules();
	printf("ok\n");
}
