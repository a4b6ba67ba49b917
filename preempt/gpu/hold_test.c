// hold_test.c - with preempt/gpu/hold.c preempt/process/thread.c preempt/process/process.c
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
struct gp_driver gp_driver = {.cuLaunchKernel = launch};

bool gp_context_pin(struct gp_context *c, CUcontext handle) { return c->handle == handle; }
void gp_context_unpin(struct gp_context *c) { (void)c; }
void gp_switch_seen(struct gp_gpu *g, uint64_t not_after_ns, uint64_t after_ns)
{
	(void)g, (void)not_after_ns, (void)after_ns;
}
bool gp_switch_sampled(struct gp_gpu *g) { return g == NULL; }

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
	c->open = 1;
	h->word = words;
	h->state = GP_HOLD_IDLE;

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
