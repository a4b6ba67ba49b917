// device_test.c - with preempt/memory/device.c preempt/driver/driver.c.
//
// The memory of contexts counts as measured: by the driver's account of the process, or by the memory that nobody publishes.
#include "preempt/memory/memory.h"
#include "test/units/check.h"

static const uint64_t TOTAL = 64ull << 30, LIMIT = 1 << 30, MIB = 1 << 20, LATER_NS = 100 * 1000 * 1000;

struct gp_gpu gp_gpu[GP_GPUS];
struct gp_memory gp_memory[GP_GPUS];
struct gp_memory_settings gp_memory_settings;
static uint64_t now_ns = 1, pools, of_process, free_bytes, gets_meanwhile, comes_and_goes;
static unsigned asked;
static struct gp_segment segment;

uint64_t gp_now_ns(void) { return now_ns; }
uint64_t gp_pools_reserved(const struct gp_gpu *g) { return pools; }
struct gp_context *gp_current_context(void) { return NULL; }
struct gp_context *gp_memory_try_context(const struct gp_gpu *g) { return (struct gp_context *)g; }
void gp_memory_leave_context(struct gp_context *c) {}

uint64_t gp_rm_memory(const struct gp_gpu *g)
{
	asked++;
	gp_memory->pinned += gets_meanwhile;
	of_process += gets_meanwhile;
	gp_memory->changes += gets_meanwhile || comes_and_goes;
	gets_meanwhile = 0;
	return of_process + comes_and_goes;
}

static CUresult get_info(size_t *free, size_t *total)
{
	*free = free_bytes;
	*total = TOTAL;
	return CUDA_SUCCESS;
}

static CUresult total_bytes(size_t *bytes, CUdevice device)
{
	*bytes = TOTAL;
	return CUDA_SUCCESS;
}

// The process's memory beside its accounts, in MiB; whether it was measured for that.
static uint64_t beside(bool measured)
{
	unsigned before = asked;
	uint64_t mib = gp_memory_beside(gp_gpu) / MIB;
	CHECK((asked != before) == measured);
	return mib;
}

static void test_of_process(void)
{
	gp_memory->managed = 0;
	gp_memory->pinned = 100 * MIB;
	pools = 64 * MIB;
	of_process = 264 * MIB;
	now_ns += LATER_NS;
	CHECK(beside(true) == 164); // at once, though others were counted before
	of_process += 50 * MIB;     // it loads code
	CHECK(beside(false) == 164);
	gp_memory->pinned += LIMIT / 64;
	of_process += LIMIT / 64;
	CHECK(beside(false) == 164);
	gp_memory->pinned += 1; // it has grown
	CHECK(beside(true) == 213);
	pools += 32 * MIB; // so did its pools
	of_process += 32 * MIB;
	CHECK(beside(true) == 245);
	gp_memory->pinned -= 64 * MIB; // it does not have what a thread was granted
	now_ns += LATER_NS;
	of_process -= 128 * MIB;
	CHECK(beside(true) == 245); // the largest of the last three
	for (int i = 0; i < 2; i++) {
		now_ns += LATER_NS;
		beside(true);
	}
	CHECK(beside(false) == 181);
	gets_meanwhile = 10 * MIB; // another thread
	now_ns += LATER_NS;
	CHECK(beside(true) == 181);
	for (int i = 0; i < 3; i++) { // more than contexts have: of other processes in a sandbox, say
		of_process += i ? 0 : 4000 * MIB;
		now_ns += LATER_NS;
		CHECK(beside(true) == 96 + 1024);
	}
	of_process -= 4000 * MIB;
	for (int i = 0; i < 3; i++) {
		now_ns += LATER_NS;
		beside(true);
	}
	CHECK(beside(false) == 181);
	const uint64_t no_answers[] = {MIB, 0, TOTAL + 1},
		       right = of_process; // less than its accounts have, none, more than there is
	for (int k = 0; k < 3; k++)
		for (int i = 0; i < 3; i++) {
			of_process = no_answers[k];
			now_ns += LATER_NS;
			CHECK(beside(true) == 181);
		}
	of_process = right;
	comes_and_goes = 200 * MIB; // of another thread, between the two readings of the accounts
	for (int i = 0; i < 4; i++) {
		now_ns += LATER_NS;
		CHECK(beside(true) == 181);
	}
	comes_and_goes = 0;
	gp_memory->swapped = 512 * MIB; // memory comes back: some is made, and in no account
	of_process += 256 * MIB;
	for (int i = 0; i < 4; i++) {
		now_ns += LATER_NS;
		CHECK(beside(true) == 181);
	}
	gp_memory->swapped = 0;
	gp_memory->resident = 512 * MIB;
	of_process += 256 * MIB - 60 * MIB;
	for (int i = 0; i < 4; i++) {
		now_ns += LATER_NS;
		CHECK(beside(true) == (i < 2 ? 181 : 121)); // three smaller ones take the place of the larger
	}
}

static void test_of_all(void)
{
	CHECK(beside(true) == 1024); // all is its own, as far as it knows; no contexts have more
	gp_gpu->segment = &segment;
	gp_gpu->slot = 2;
	segment.members = 1 << 2 | 1 << 5;
	segment.slot[5].memory.resident = 1000 * MIB;
	CHECK(beside(false) == 300); // the half of it: the driver was asked a moment ago
	now_ns += LATER_NS;
	CHECK(beside(true) == 300);
	now_ns += LATER_NS;
	segment.slot[5].memory.pinned = UINT64_MAX; // it lies
	CHECK(beside(true) == 300);
	now_ns += LATER_NS;
	segment.slot[5].memory.pinned = 0;
	gp_memory->managed = 500 * MIB; // wherever that is
	free_bytes -= 400 * MIB;
	CHECK(beside(true) == 300);
	now_ns += LATER_NS;
	free_bytes = 0;
	CHECK(beside(true) == 1024);
}

int main(void)
{
	gp_driver.cuMemGetInfo = get_info;
	gp_driver.cuDeviceTotalMem = total_bytes;
	gp_memory_settings.limit_bytes = LIMIT;
	free_bytes = TOTAL - 1600 * MIB;
	test_of_all();
	test_of_process();
	return 0;
}
