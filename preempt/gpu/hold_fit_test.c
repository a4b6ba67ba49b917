// hold_fit_test.c - with preempt/gpu/hold.c preempt/process/facts.c preempt/driver/environment.c preempt/process/thread.c preempt/process/process.c.
//
// How a launch fares beside a hold on one SM, by the needs of its kernel; where the driver refuses a link, and why no hold is wanted.
#define _GNU_SOURCE
#include "preempt/gpu/gpu.h"
#include "test/units/check.h"

#include <stdlib.h>
#include <string.h>

static struct gp_gpu *const g = &gp_gpu[0];
static struct gp_context *const c = &gp_context[0];
static struct gp_hold *const h = &gp_context[0].hold;

// The driver: kernels are their attributes.
struct kernel { int registers, shared; };
static uint32_t asked, links, refused_link;
static bool refuses;
static CUresult attribute(int *value, int which, CUfunction f)
{
	const struct kernel *k = (const struct kernel *)f;
	asked++;
	switch (which) {
	case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = k->registers; break;
	case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = k->shared; break;
	case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
	case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = 227 * 1024; break;
	default: *value = 0;
	}
	return refuses ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
static CUresult launch(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
		       unsigned shared, CUstream stream, void **parameters, void **extra)
{
	(void)f, (void)stream, (void)parameters, (void)extra;
	CHECK(gx == 1 && gy == 1 && gz == 1 && bx == 1 && by == 1 && bz == 1 && !shared);
	return ++links == refused_link ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
static uint32_t channels;
uint32_t gp_rm_channels(void) { return channels; }
static const char *logged;
void gp_log_line(const char *text) { logged = text; }
struct gp_driver gp_driver = {.cuFuncGetAttribute = (void *)attribute, .cuLaunchKernel = launch};

bool gp_context_pin(struct gp_context *context, CUcontext handle) { return context->handle == handle; }
void gp_context_unpin(struct gp_context *context) { (void)context; }
void gp_switch_seen(struct gp_gpu *gpu, uint64_t not_after_ns, uint64_t after_ns)
{
	(void)gpu, (void)not_after_ns, (void)after_ns;
}
bool gp_switch_sampled(struct gp_gpu *gpu) { return gpu == NULL; }

void gp_thread_ends(void) {}

enum { SMS = 132 };

static void h100(void)
{
	g->sms = SMS;
	g->threads_per_sm = 2048;
	g->registers_per_sm = 65536;
	g->shared_per_sm = 233472;
	g->shared_reserved = 1024;
	g->blocks_per_sm = 32;
	c->gpu = g;
}

static enum gp_fit fit(const struct kernel *k, uint32_t threads, uint32_t blocks, uint32_t shared, bool cooperative)
{
	struct gp_launch l = {.function = (CUfunction)k,
			      .grid = {blocks, 1, 1},
			      .block = {threads, 1, 1},
			      .shared_bytes = shared,
			      .cooperative = cooperative};
	enum gp_fit is = gp_hold_fit(c, &l);
	CHECK(gp_hold_fit(c, &l) == is); // from the thread's cache
	if (!cooperative && blocks % 4 == 0 && threads % 4 == 0) {
		l.grid[0] = blocks / 4;
		l.grid[1] = 2;
		l.grid[2] = 2;
		l.block[0] = threads / 4;
		l.block[1] = 2;
		l.block[2] = 2;
		CHECK(gp_hold_fit(c, &l) == is); // in any shape
	}
	return is;
}

// Blocks of which so many fit on an SM alone, and so many beside the hold, by what is scarce: all of them, one less, and so on, are
// launched.
static void fits(const struct kernel *k, uint32_t threads, uint32_t shared, uint32_t alone, uint32_t beside)
{
	uint32_t capacity = SMS * alone, reduced = capacity - (alone - beside);
	CHECK(fit(k, threads, reduced, shared, true) == GP_FITS);
	CHECK(fit(k, threads, capacity, shared, true) == (reduced < capacity ? GP_BLOCKED : GP_FITS));
	CHECK(fit(k, threads, reduced, shared, false) == GP_FITS);
	if (reduced == capacity)
		return;
	CHECK(fit(k, threads, reduced + 1, shared, true) == GP_BLOCKED);
	CHECK(fit(k, threads, reduced + 1, shared, false) == GP_SPREADS);
	CHECK(fit(k, threads, capacity, shared, false) == GP_SPREADS);
	CHECK(fit(k, threads, capacity + 1, shared, false) == (capacity + 1 <= 2 * reduced ? GP_FITS : GP_SPREADS));
	CHECK(fit(k, threads, 8 * capacity, shared, false) == GP_SPREADS);
	CHECK(fit(k, threads, 8 * capacity + 1, shared, false) == GP_FITS); // one wave more costs less than room
	CHECK(fit(k, threads, 20 * capacity, shared, false) == GP_FITS);
}

static void test_fits(void)
{
	const struct kernel light = {16, 0}, registers = {64, 0}, odd = {33, 0}, most = {255, 0},
			    statically = {16, 100 * 1024}, few = {1, 0};
	h100();
	fits(&light, 1024, 0, 2, 1);        // threads
	fits(&light, 96, 0, 21, 21);        // 2048 / 96 leaves room for the hold
	fits(&light, 64, 0, 32, 31);        // blocks
	fits(&registers, 256, 0, 4, 3);     // registers: 64 * 32 a warp
	fits(&odd, 128, 0, 12, 12);         // 33 registers are 40 of a thread: 12 blocks of 4 warps, and some are left
	fits(&most, 128, 0, 2, 1);          // 256 * 128 registers
	fits(&most, 32, 0, 2, 1);           // registers are given to four warps at a time
	fits(&light, 32, 100 * 1024, 2, 2); // 101 KiB with what each block reserves; 26 KiB are left
	fits(&light, 32, 113 * 1024, 2, 1); // all of it
	fits(&statically, 32, 13 * 1024, 2, 1);
	fits(&light, 32, 226 * 1024, 1, 1); // 227 KiB of 228: the hold reserves the last one
	fits(&light, 32, 227 * 1024, 1, 0);
	fits(&few, 1024, 0, 2, 1);
	CHECK(fit(&light, 32, SMS, 300 * 1024, true) == GP_FITS); // it does not run at all: the driver refuses it
	CHECK(fit(&light, 0, SMS, 0, true) == GP_FITS);
	CHECK(fit(&light, 1024, 0, 0, true) == GP_FITS);
	uint32_t before = asked;
	fit(&light, 1024, 2 * SMS, 0, false);
	CHECK(asked == before); // a kernel is known in any shape
	refuses = true;
	const struct kernel unknown = {16, 0};
	CHECK(fit(&unknown, 1024, 2 * SMS, 0, true) == GP_FITS);
	refuses = false;
	CHECK(fit(&unknown, 1024, 2 * SMS, 0, true) == GP_BLOCKED); // nothing wrong is remembered
	g->sms = 1;                                                 // the hold takes all that there is
	CHECK(fit(&light, 1024, 2, 0, true) == GP_FITS);
	g->sms = 2;
	CHECK(fit(&light, 1024, 4, 0, true) == GP_BLOCKED);
}

// A hold never comes back after the driver refused a link: the links before it end, and the GPU's hold_failed says so.
static void test_refusals(void)
{
	enum { CHAIN = 3, EXPIRED = 16 };
	static uint32_t words[1024];
	gp_settings.hold = 1;
	gp_settings.chain = CHAIN;
	gp_settings.max_hold_ns = UINT64_MAX / 2;
	g->lower_peers = 1;
	c->handle = (CUcontext)c;
	c->window |= GP_WINDOW_OPEN;
	h->word = words;
	for (uint32_t at = 1; at <= CHAIN + 1; at++) {
		h->state = GP_HOLD_IDLE;
		g->hold_failed = links = 0;
		refused_link = at;
		gp_hold_arm(c);
		CHECK((h->state == GP_HOLD_FAILED) == (at <= CHAIN));
		gp_hold_step(c);
		CHECK(h->state == GP_HOLD_FAILED && g->hold_failed && words[0] == h->queued && !gp_holds(c));
		gp_hold_arm(c);
		gp_hold_step(c);
		CHECK(h->state == GP_HOLD_FAILED && links == at);
	}

	// Nor is one armed where no process is to be kept off, where the context has no hold, or while lower levels get their share.
	refused_link = 0;
	h->state = GP_HOLD_IDLE;
	g->lower_peers = 0;
	gp_hold_arm(c);
	CHECK(h->state == GP_HOLD_IDLE && !gp_holds(c));
	g->lower_peers = 1;
	CHECK(gp_holds(c));
	h->blocked_until_ns = gp_now_ns() + 3600ull * 1000000000;
	gp_hold_arm(c);
	CHECK(h->state == GP_HOLD_IDLE);
	h->blocked_until_ns = 1;
	gp_hold_arm(c);
	CHECK(h->state == GP_HOLD_ARMED && !h->blocked_until_ns);
	gp_hold_yield(c);
	CHECK(h->state == GP_HOLD_IDLE && c->yielded);
	gp_hold_arm(c);
	CHECK(h->state == GP_HOLD_IDLE);
	c->yielded = 0;
	h->state = GP_HOLD_ABSENT;
	gp_hold_arm(c);
	CHECK(h->state == GP_HOLD_ABSENT && !gp_holds(c));
}

// The counters of holds.
static void test_counts(void)
{
	enum { EXPIRED = 16 };
	struct gp_view *view = aligned_alloc(GP_PAGE, sizeof *view);
	memset(view, 0, sizeof *view);
	g->segment = &view->segment;
	h->state = GP_HOLD_IDLE;
	gp_hold_arm(c);
	gp_hold_release(c);
	CHECK(view->own.holds == 1 && view->own.hold_ns && !view->own.holds_expired && !view->own.holds_collided);
	gp_hold_release(c); // there is none
	CHECK(view->own.holds == 1);
	gp_hold_arm(c);
	gp_hold_step(c);
	CHECK(view->own.holds_collided == 1);
	h->word[EXPIRED] = h->chain;
	gp_hold_release(c);
	CHECK(view->own.holds == 2 && view->own.holds_expired == 1);
	gp_hold_step(c);
	CHECK(view->own.holds_collided == 1);
	gp_hold_arm(c);
	gp_hold_yield(c);
	CHECK(view->own.holds_collided == 2 && view->own.holds == 3);
	gp_hold_yield(c);
	CHECK(view->own.holds_collided == 2);
	c->yielded = 0;
	g->segment = NULL;
	free(view);
}

// A hold is moved to the SM on which most links were seen, a few times.
static void test_settle(void)
{
	enum { MOST_MOVES = 4 };
	h->state = GP_HOLD_IDLE;
	memset((void *)h->seen, 0, sizeof h->seen);
	h->first_sm = 0;
	h->seen_place = 0;
	gp_hold_arm(c);
	volatile uint64_t *place = (volatile uint64_t *)&h->word[32];
	for (int i = 0; i < 3; i++) { // the link that runs says where it is
		*place = (uint64_t)(h->word[0] + 1) << 32 | 17;
		uint32_t before = links;
		gp_hold_settle(c);
		CHECK(h->first_sm == 17 && h->seen[17] == 1 + i && links == before);
		gp_hold_settle(c); // counted once
		CHECK(h->seen[17] == 1 + i);
		gp_hold_step(c);
	}
	for (uint32_t i = 0; i < MOST_MOVES + 2; i++) {
		*place = (uint64_t)(h->word[0] + 1) << 32 | (100 + i);
		uint32_t before = links;
		gp_hold_settle(c);
		CHECK(links == before + (i < MOST_MOVES) && h->moves == (i < MOST_MOVES ? i + 1 : MOST_MOVES));
		if (i >= MOST_MOVES)
			gp_hold_step(c);
	}
	uint32_t before = links;
	*place = (uint64_t)h->word[0] << 32 | 3; // a link that has ended
	gp_hold_settle(c);
	*place = (uint64_t)(h->word[0] + 1) << 32 | GP_SMS; // no SM
	gp_hold_settle(c);
	CHECK(links == before && !h->seen[3]);
	*place = (uint64_t)(h->word[0] + 1) << 32 | 17;
	h->seen[17] = UINT16_MAX;
	gp_hold_settle(c);
	CHECK(h->seen[17] == UINT16_MAX && h->first_sm == 17);
	gp_hold_release(c);
}

static void test_unwanted(void)
{
	unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
	unsetenv("CUDA_LAUNCH_BLOCKING");
	CHECK(!gp_hold_unwanted());
	setenv("CUDA_LAUNCH_BLOCKING", "0", 1);
	CHECK(!gp_hold_unwanted());
	setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
	CHECK(strstr(gp_hold_unwanted(), "CUDA_LAUNCH_BLOCKING"));
	unsetenv("CUDA_LAUNCH_BLOCKING");
	static const struct {
		const char *channels;
		bool unwanted;
	} of[] = {{"7", true}, {"1", true}, {"8", false}, {"32", false}, {"0", false}, {"-1", false}, {"", false}};
	for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
		setenv("CUDA_DEVICE_MAX_CONNECTIONS", of[i].channels, 1);
		CHECK(!gp_hold_unwanted() == !of[i].unwanted);
	}
}

// As many channels as RM shows count, not those that the program asked for.
static void test_channels(void)
{
	static struct gp_gpu gpu;
	static struct gp_context gone = {.gpu = &gpu};
	const char *call = NULL;
	static const uint32_t enough[] = {0, 8, 32}, few[] = {1, 2, 7};
	for (int i = 0; i < 3; i++) {
		channels = enough[i];
		CHECK(!gp_hold_prepare(&gone, &call) && gone.hold.state == GP_HOLD_ABSENT && !gpu.hold_failed && !logged);
	}
	for (int i = 0; i < 3; i++) {
		channels = few[i];
		CHECK(!gp_hold_prepare(&gone, &call) && !call && gone.hold.state == GP_HOLD_FAILED && gpu.hold_failed);
		CHECK(strstr(logged, "fewer than 8"));
		gone.hold.state = GP_HOLD_ABSENT;
		gpu.hold_failed = 0;
		logged = NULL;
	}
	channels = 0;
}

int main(void)
{
	test_channels();
	test_fits();
	test_refusals();
	test_counts();
	test_settle();
	test_unwanted();
	return 0;
}
