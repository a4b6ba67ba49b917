// hold_test.c - with preempt/gpu/hold.c preempt/process/facts.c preempt/driver/environment.c preempt/process/thread.c preempt/process/process.c.
//
// A hold whose lease has run out, while the watcher had no processor, is there again for the next work.
#define _GNU_SOURCE
#include "preempt/gpu/gpu.h"
#include "test/units/check.h"

void gp_thread_ends(void) {}

enum { BEAT_WORDS = 1024, EXPIRED = 16, CHAIN = 2 };

static uint32_t links;
static CUresult launch(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
		       unsigned shared, CUstream stream, void **parameters, void **extra)
{
	(void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream;
	CHECK(parameters && !extra);
	links++;
	return CUDA_SUCCESS;
}
uint32_t gp_rm_channels(void) { return 0; }
void gp_log_line(const char *text) { (void)text; }
struct gp_driver gp_driver = {.cuLaunchKernel = launch};

bool gp_context_pin(struct gp_context *c, CUcontext handle) { return c->handle == handle; }
void gp_context_unpin(struct gp_context *c) { (void)c; }
void gp_switch_seen(struct gp_gpu *g, uint64_t not_after_ns, uint64_t after_ns)
{
	(void)g, (void)not_after_ns, (void)after_ns;
}
bool gp_switch_sampled(struct gp_gpu *g) { return g == NULL; }

static CUresult attribute(int *value, int of, CUfunction f)
{
	(void)f;
	*value = of == CU_FUNC_ATTRIBUTE_NUM_REGS ? 32 : of == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
	return CUDA_SUCCESS;
}

// Launches that no driver takes fit, at any size; one that needs every SM is blocked.
static void fits(struct gp_context *c)
{
	static const uint32_t odd[] = {0, 1, 1025, 65536, 1u << 31, UINT32_MAX - 31, UINT32_MAX};
	enum { ODD = sizeof odd / sizeof *odd };
	struct gp_launch l = {
		.function = (CUfunction)16, .grid = {132 * 2, 1, 1}, .block = {1024, 1, 1}, .cooperative = true};

	gp_driver.cuFuncGetAttribute = attribute;
	CHECK(gp_hold_fit(c, &l) == GP_BLOCKED);
	for (int i = 0; i < ODD * ODD * ODD; i++) {
		l.block[0] = odd[i % ODD];
		l.block[1] = odd[i / ODD % ODD];
		l.block[2] = odd[i / ODD / ODD];
		l.shared_bytes = i % 2 ? UINT32_MAX : 0;
		if (gp_threads_of(l.block) <= 1 || l.shared_bytes)
			CHECK(gp_hold_fit(c, &l) == GP_FITS);
		else
			gp_hold_fit(c, &l);
	}
}

int main(void)
{
	static uint32_t words[BEAT_WORDS];
	struct gp_gpu *g = &gp_gpu[0];
	struct gp_context *c = &gp_context[0];
	struct gp_hold *h = &c->hold;

	gp_settings.hold = 1;
	gp_settings.chain = CHAIN;
	gp_settings.max_hold_ns = 3600ull * 1000 * 1000 * 1000;
	g->lower_peers = 1;
	c->gpu = g;
	c->handle = (CUcontext)c;
	c->window |= GP_WINDOW_OPEN;
	h->word = words;
	h->state = GP_HOLD_IDLE;

	g->sms = 132;
	g->threads_per_sm = 2048;
	g->registers_per_sm = 65536;
	g->shared_per_sm = 233472;
	g->shared_reserved = 1024;
	g->blocks_per_sm = 32;
	fits(c);

	gp_hold_arm(c);
	CHECK(h->state == GP_HOLD_ARMED && links == CHAIN);
	uint32_t chain = h->chain;
	gp_hold_arm(c); // it holds
	CHECK(h->chain == chain && links == CHAIN);
	h->word[EXPIRED] = chain;
	gp_hold_arm(c);
	CHECK(h->state == GP_HOLD_ARMED && h->chain == chain + CHAIN && links == 2 * CHAIN);
	CHECK(words[0] == h->chain - 1); // the old links end, the new ones do not

	// One that has lasted for as long as it may is the watcher's, which gives lower levels their share.
	chain = h->chain;
	h->word[EXPIRED] = chain;
	gp_settings.max_hold_ns = 1;
	gp_hold_arm(c);
	CHECK(h->chain == chain && links == 2 * CHAIN);
	return 0;
}
