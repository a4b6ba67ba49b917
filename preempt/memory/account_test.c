// account_test.c - with preempt/memory/account.c preempt/memory/ranges.c preempt/process/thread.c preempt/process/process.c preempt/driver/driver.c.
//
// The account of a range that is pinned, also by a thread that does so while another frees it. Allocations of the driver are found
// again, wherever they are in the table: each is counted until it is freed, once.
#define _GNU_SOURCE
#include "preempt/memory/own.h"
#include "test/units/check.h"

#include <unistd.h>

struct gp_memory gp_memory[GP_GPUS];
static int lines;
static struct gp_retry at_once; // a call that has not waited

static uint64_t left = UINT64_MAX;
uint64_t gp_memory_left(const struct gp_gpu *g, uint64_t beside) { return left; }
uint64_t gp_memory_total(const struct gp_gpu *g) { return UINT64_MAX; }
uint64_t gp_memory_limit(uint64_t total) { return 0; }
uint64_t gp_memory_beside(const struct gp_gpu *g) { return 0; }
uint64_t gp_memory_managed(const struct gp_gpu *g) { return 0; }
struct gp_memory_settings gp_memory_settings;
_Atomic uint32_t gp_memory_on;
void gp_log_line(const char *text) { lines++; }
void gp_thread_ends(void) { gp_memory_claims_end(); }

static struct gp_range *range(CUdeviceptr at)
{
	struct gp_range *r = gp_range_new(at, GP_GRANULE, GP_GRANULE, GP_RANGE_ALLOCATED, 1);
	CHECK(r && gp_account_take(gp_gpu, &gp_memory[0].resident, GP_GRANULE, &at_once));
	r->gpu = gp_gpu;
	return r;
}

// Allocations of the driver, as they should be counted.
enum { ADDRESSES = 2000, CONTEXTS = 3 };
static struct {
	bool is;
	size_t bytes;
	int context;
	CUdeviceptr address;
} model[ADDRESSES];
static int allocations;
static uint64_t counted;
static struct gp_context in[CONTEXTS];

static bool refuses;
static CUdeviceptr asked_to_free;
static CUresult driver_free(CUdeviceptr address)
{
	asked_to_free = address;
	return refuses ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
static CUresult driver_free_async(CUdeviceptr address, CUstream stream)
{
	(void)stream;
	return driver_free(address);
}

static void made(int i)
{
	model[i].is = true;
	model[i].bytes = 256 * (1 + random_number() % 100);
	model[i].context = (int)(random_number() % CONTEXTS);
	counted += model[i].bytes;
	allocations++;
	CHECK(gp_account_take(gp_gpu, &gp_memory[0].pinned, model[i].bytes, &at_once));
	gp_native_made(&in[model[i].context], model[i].address, model[i].bytes);
}

static void unmade(int i)
{
	model[i].is = false;
	counted -= model[i].bytes;
	allocations--;
}

static void freed(int i, bool async)
{
	CUresult result = CUDA_SUCCESS;
	refuses = random_number() % 8 == 0; // then it is still there
	asked_to_free = 0;
	if (async)
		result = gp_native_free_async(model[i].address, NULL);
	else
		CHECK(gp_native_free(model[i].address, &result) == model[i].is);
	CHECK(asked_to_free == (model[i].is || async ? model[i].address : 0));
	CHECK(!result == (asked_to_free == 0 || !refuses));
	if (model[i].is && !refuses)
		unmade(i);
}

static void end_context(int context, bool refused)
{
	gp_native_context_destroying((CUcontext)&in[context]);
	gp_native_context_destroyed((CUcontext)&in[context], !refused);
	for (int i = 0; i < ADDRESSES && !refused; i++)
		if (model[i].is && model[i].context == context)
			unmade(i);
}

// The driver gives an address anew while it is asked to end the context that had it.
static void test_anew(void)
{
	enum { OLD = 100, NEW = 200 };
	const uint64_t before = gp_memory[0].pinned;
	CUresult result;
	for (int first = 0; first <= 1; first++) { // what is freed first
		gp_memory[0].pinned += OLD + NEW;
		gp_native_made(&in[0], 256, OLD);
		gp_native_context_destroying((CUcontext)&in[0]);
		gp_native_made(&in[1], 256, NEW);
		if (first)
			gp_native_context_destroyed((CUcontext)&in[0], true);
		CHECK(gp_memory[0].pinned == before + NEW + (first ? 0 : OLD));
		CHECK(gp_native_free(256, &result) && !result);
		CHECK(gp_memory[0].pinned == before + (first ? 0 : OLD));
		if (!first)
			gp_native_context_destroyed((CUcontext)&in[0], true);
		CHECK(gp_memory[0].pinned == before);
	}
}

// So full that most searches meet other allocations, with addresses that differ little or much.
static void test_table(void)
{
	const uint64_t before = gp_memory[0].pinned;
	CUresult result;
	gp_driver.cuMemFree = driver_free;
	gp_driver.cuMemFreeAsync = driver_free_async;
	CHECK(!gp_native_free(256, &result)); // there is no table
	gp_native_context_destroying((CUcontext)&in[0]);
	gp_native_context_destroyed((CUcontext)&in[0], true);
	for (int i = 0; i < CONTEXTS; i++) {
		in[i].handle = (CUcontext)&in[i];
		in[i].gpu = gp_gpu;
	}
	for (int i = 0; i < ADDRESSES; i++)
		model[i].address =
			i % 2 ? 0x7f0000000000 + 256 * (CUdeviceptr)i : (1 + random_number() % (1ull << 39)) << 8;
	for (int most = 400; most <= ADDRESSES; most *= 2) // the table has room for 511, then grows
		for (int n = 0; n < 40000; n++) {
			int i = (int)(random_number() % (uint64_t)most);
			if (!model[i].is && random_number() % 3)
				made(i);
			else
				freed(i, random_number() % 2);
			if (n % 4000 == 0)
				end_context((int)(random_number() % CONTEXTS), random_number() % 4 == 0);
			CHECK(gp_memory[0].pinned == before + counted);
		}
	CHECK(allocations > 500);
	refuses = false;
	for (int i = 0; i < ADDRESSES; i++) {
		if (!model[i].is)
			made(i);
		CHECK(!gp_native_free(100, &result)); // is not there: a search ends, however full the table is
	}
	for (int i = 0; i < CONTEXTS; i++)
		end_context(i, false);
	CHECK(!allocations && !counted && gp_memory[0].pinned == before);
	for (int i = 0; i < ADDRESSES; i++)
		CHECK(!gp_native_free(model[i].address, &result));
	CHECK(!gp_native_free(0, &result));
}

// No more is taken than is left, nor than the agent has allowed; and others see what is taken at once.
static void test_bounds(void)
{
	struct gp_memory *m = &gp_memory[1];
	struct gp_gpu *g = &gp_gpu[1];
	static struct gp_view view;
	g->segment = &view.segment;
	left = 100;
	CHECK(!gp_account_take(g, &m->resident, 101, &at_once) && !m->resident);
	CHECK(gp_account_take(g, &m->resident, 100, &at_once) && m->resident == 100);
	CHECK(view.own.memory.resident == 100 && !view.own.memory.pinned);
	left = UINT64_MAX;
	m->allowance = 1 + 50;
	CHECK(gp_account_take(g, &m->pinned, 51, &at_once)); // memory stays: the allowance says nothing
	gp_account_untake(&m->pinned, 51, &at_once);
	gp_memory_on = 1;
	m->allowance = 1 + 50;
	CHECK(!gp_account_take(g, &m->pinned, 51, &at_once) && m->allowance == 51 && !m->pinned);
	CHECK(gp_account_take(g, &m->pinned, 30, &at_once) && m->allowance == 21);
	CHECK(gp_account_take(g, &m->pinned, 20, &at_once) && m->allowance == 1);
	CHECK(!gp_account_take(g, &m->pinned, 1, &at_once)); // 1: none is left; 0 would be no bound
	CHECK(view.own.memory.pinned == 50 && gp_account_own(g) == 150);
	gp_account_move(&m->resident, &m->swapped, 40);
	gp_account_move(&m->swapped, &m->swapped, 7);
	CHECK(m->resident == 60 && m->swapped == 40 && gp_account_own(g) == 150);
	gp_account_give(&m->pinned, 50);
	CHECK(view.own.memory.resident == 60 && !view.own.memory.pinned && gp_account_own(g) == 100);
	m->allowance = 0;
	CHECK(gp_account_take(g, &m->pinned, 1ull << 40, &at_once) && !m->allowance);
	gp_memory_on = 0;
}

enum { HAD = 1000, ASKED = 300, GUESSED = 50, ROUNDS = 300000 };
static struct gp_view claiming;
static _Atomic int rounds;

// A call that waits for room is made again and again, and the driver refuses it.
static void *waits_for_room(void *gpu)
{
	struct gp_gpu *g = gpu;
	struct gp_memory *m = &gp_memory[g - gp_gpu];
	struct gp_retry r = {0};
	for (; rounds < ROUNDS; rounds++) {
		gp_account_claim(g, ASKED + GUESSED, &r);
		CHECK(gp_account_take(g, &m->resident, ASKED, &r));
		gp_account_untake(&m->resident, ASKED, &r);
		gp_account_move(&m->resident, &m->swapped, HAD);
		gp_account_move(&m->swapped, &m->resident, HAD);
	}
	CHECK(gp_account_take(g, &m->resident, ASKED, &r));
	return NULL; // the thread ends, and the call with it
}

// A call claims what it waits for until it is over, whether an account has its bytes or not: it is never counted twice, nor not at all.
static void test_claims(void)
{
	struct gp_memory *m = &gp_memory[2];
	struct gp_memory_counters *told = &claiming.own.memory;
	struct gp_gpu *g = &gp_gpu[2];
	struct gp_retry r = {0};
	pthread_t thread;
	g->segment = &claiming.segment;
	CHECK(gp_account_take(g, &m->resident, HAD, &r) && told->claimed == HAD && !told->wanted);
	gp_account_claim(g, ASKED, &r);
	CHECK(told->claimed == HAD + ASKED && told->wanted == ASKED);
	gp_account_claim(g, ASKED + GUESSED, &r); // in its place
	CHECK(told->claimed == HAD + ASKED + GUESSED && told->wanted == ASKED + GUESSED);
	for (int refused = 0; refused < 2; refused++) {
		CHECK(gp_account_take(g, &m->resident, ASKED, &r) && told->resident == HAD + ASKED);
		CHECK(told->claimed == HAD + ASKED + GUESSED && told->wanted == ASKED + GUESSED);
		CHECK(gp_memory_accounts(g).met == ASKED);
		if (!refused)
			gp_account_untake(&m->resident, ASKED, &r);
		CHECK(told->claimed == HAD + ASKED + GUESSED && told->wanted == ASKED + GUESSED);
	}
	gp_memory_call_over(&r);
	CHECK(told->claimed == HAD + ASKED && !told->wanted && !m->wanted && !m->met);
	gp_memory_call_over(&r); // claims nothing any more
	gp_account_give(&m->resident, ASKED);
	gp_memory_publish(g, 7); // does not go
	CHECK(told->claimed == HAD && told->resident == HAD - 7 && told->pinned == 7);
	gp_memory_publish(g, 0);

	gp_account_claim(g, ASKED + GUESSED, &r);
	CHECK(!pthread_create(&thread, NULL, waits_for_room, g));
	uint64_t both = HAD + 2 * (ASKED + GUESSED);
	while (told->claimed != both && rounds < ROUNDS)
		usleep(100);
	for (uint64_t claimed = both; rounds < ROUNDS; claimed = told->claimed)
		CHECK(claimed == both);
	CHECK(!pthread_join(thread, NULL));
	CHECK(told->claimed == HAD + ASKED + ASKED + GUESSED && m->wanted == ASKED + GUESSED && !m->met);
	gp_memory_call_over(&r);
	CHECK(told->claimed == HAD + ASKED && told->resident == HAD + ASKED && !m->wanted);
}

int main(void)
{
	struct gp_range *stays = range(GP_GRANULE), *ends = range(4 * GP_GRANULE);
	gp_account_pin(stays, GP_PIN_REGISTERED);
	gp_account_pin(stays, GP_PIN_EXPORTED);
	CHECK(gp_memory[0].pinned == GP_GRANULE && gp_memory[0].resident == GP_GRANULE && lines == 2);
	CHECK(gp_memory_pins(gp_gpu) == (GP_PIN_REGISTERED | GP_PIN_EXPORTED));
	ends->ending = true; // its bytes will be taken from the account in which they are now
	gp_account_pin(ends, GP_PIN_REGISTERED);
	CHECK(gp_memory[0].pinned == GP_GRANULE && gp_memory[0].resident == GP_GRANULE && lines == 2);
	gp_account_give(&gp_memory[0].resident, ends->bytes);
	gp_range_drop(ends);
	CHECK(!gp_memory[0].resident && gp_account_own(gp_gpu) == GP_GRANULE);
	CHECK(gp_memory_pins(gp_gpu) == (GP_PIN_REGISTERED | GP_PIN_EXPORTED));
	gp_memory[0].pinned++; // of the driver's
	CHECK(gp_memory_pins(gp_gpu) == (GP_PIN_REGISTERED | GP_PIN_EXPORTED | GP_PIN_DRIVER));
	test_table();
	test_anew();
	test_bounds();
	test_claims();
	return 0;
}
