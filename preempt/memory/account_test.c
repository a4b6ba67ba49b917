// account_test.c - with preempt/memory/account.c preempt/memory/ranges.c
//
// What a range counts as when it is pinned, also by a thread that does so while another frees it.
#define _GNU_SOURCE
#include "preempt/memory/own.h"
#include "test/units/check.h"

struct gp_gpu gp_gpu[GP_GPUS];
struct gp_memory gp_memory[GP_GPUS];
struct gp_driver gp_driver;
static int lines;

uint64_t gp_memory_left(const struct gp_gpu *g) { return UINT64_MAX; }
void gp_physical_pin(struct gp_physical *p, enum gp_pin pin) { CHECK(false); }
void gp_log_line(const char *text) { lines++; }

static struct gp_range *range(CUdeviceptr at)
{
	struct gp_range *r = gp_range_new(at, GP_GRANULE, GP_GRANULE, GP_RANGE_ALLOCATED, 1);
	CHECK(r && gp_account_take(gp_gpu, &gp_memory[0].resident, GP_GRANULE));
	r->gpu = gp_gpu;
	return r;
}

int main(void)
{
	struct gp_range *stays = range(GP_GRANULE), *ends = range(4 * GP_GRANULE);
	gp_range_pin(stays, GP_PIN_REGISTERED);
	gp_range_pin(stays, GP_PIN_EXPORTED);
	CHECK(gp_memory[0].pinned == GP_GRANULE && gp_memory[0].resident == GP_GRANULE && lines == 2);
	CHECK(gp_memory_pins(gp_gpu) == (GP_PIN_REGISTERED | GP_PIN_EXPORTED));
	ends->ending = true; // its bytes will be taken from the account in which they are now
	gp_range_pin(ends, GP_PIN_REGISTERED);
	CHECK(gp_memory[0].pinned == GP_GRANULE && gp_memory[0].resident == GP_GRANULE && lines == 2);
	gp_account_give(&gp_memory[0].resident, ends->bytes);
	gp_range_drop(ends);
	CHECK(!gp_memory[0].resident && gp_account_own(gp_gpu) == GP_GRANULE);
	return 0;
}
