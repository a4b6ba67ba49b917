// switch_test.c - with preempt/gpu/switch.c preempt/process/process.c.
//
// switch.c learns the time of a switch on any GPU from brackets around it.
#define _GNU_SOURCE
#include "preempt/gpu/gpu.h"
#include "test/units/check.h"

#include <stdlib.h>

enum { US = 1000, DEFAULT = 200 * US };

static struct gp_view *view;

static struct gp_gpu *fresh(void)
{
	static int next;
	struct gp_gpu *g = &gp_gpu[next++];
	CHECK(next <= GP_GPUS);
	g->known = 1;
	g->lower_peers = 0;
	g->segment = &view->segment;
	return g;
}

static void see(struct gp_gpu *g, int times, uint64_t ns, uint64_t apart)
{
	for (int i = 0; i < times; i++)
		gp_switch_seen(g, ns - apart / 2, ns + (apart + 1) / 2);
}

static bool near(uint64_t is, uint64_t ns) { return is > ns - ns / 20 && is < ns + ns / 20; }

static void follows(void)
{
	for (uint64_t ns = 30 * US; ns < 1500 * US; ns *= 2) {
		struct gp_gpu *g = fresh();
		CHECK(gp_switch_ns(g) == DEFAULT && gp_switch_learnt(g) == 0);
		see(g, 7, ns, 10 * US);
		CHECK(gp_switch_ns(g) == DEFAULT); // too few
		see(g, 1, ns, 10 * US);
		CHECK(near(gp_switch_ns(g), ns) && gp_switch_learnt(g) == gp_switch_ns(g));
		see(g, 32, 3 * ns / 2, 10 * US); // another driver, another clock
		CHECK(near(gp_switch_ns(g), ns < 1400 * US ? 3 * ns / 2 : ns));
	}
}

// Among what the watcher sees are times in which nothing was switched, and such in which something else was waited for.
static void robust(void)
{
	struct gp_gpu *g = fresh();
	for (int i = 0; i < 8; i++) {
		see(g, 2, 190 * US + (uint64_t)i * US, 20 * US);
		see(g, 1, i % 2 ? 25 * US : 1700 * US, 20 * US);
	}
	CHECK(near(gp_switch_ns(g), 195 * US));
	uint64_t was = gp_switch_ns(g);
	see(g, 40, 8 * US, 4 * US);      // the GPU was free
	see(g, 40, 2500 * US, 10 * US);  // another's timeslice
	see(g, 40, 100 * US, 120 * US);  // no look for long
	see(g, 40, 800 * US, 1000 * US); // nor here
	for (int i = 0; i < 40; i++)
		gp_switch_seen(g, 300 * US, 200 * US); // nonsense
	CHECK(gp_switch_ns(g) == was);
}

// Until this process has seen enough, what others say counts, as far as it may be true.
static void told(void)
{
	struct gp_gpu *g = fresh();
	gp_switch_told(g, 90 * US);
	CHECK(gp_switch_ns(g) == 90 * US && gp_switch_learnt(g) == 0); // it is not passed on
	gp_switch_told(g, UINT64_MAX);
	CHECK(gp_switch_ns(g) == DEFAULT);
	gp_switch_told(g, 1);
	CHECK(gp_switch_ns(g) == DEFAULT);
	gp_switch_told(g, 90 * US);
	see(g, 8, 400 * US, 10 * US);
	CHECK(near(gp_switch_ns(g), 400 * US));
}

// The longest of the GPUs that are taken from lower levels.
static void longest(void)
{
	CHECK(gp_taking_longest_ns() == DEFAULT); // there are none
	struct gp_gpu *a = fresh(), *b = fresh(), *c = fresh();
	see(a, 8, 60 * US, 10 * US);
	see(b, 8, 120 * US, 10 * US);
	see(c, 8, 900 * US, 10 * US);
	a->lower_peers = 1;
	CHECK(near(gp_taking_longest_ns(), 60 * US));
	b->lower_peers = 2;
	CHECK(near(gp_taking_longest_ns(), 120 * US));
	b->mps = 1; // lower levels are stopped there, not switched away from
	CHECK(gp_taking_longest_ns() == 100 * US);
	a->mps = 1;
	b->lower_peers = 0;
	CHECK(gp_taking_longest_ns() == 100 * US);
}

// The first switches are measured, and some of the later ones.
static void sampled(void)
{
	struct gp_gpu *g = fresh();
	uint32_t n = 0;
	view->own.switches = 1;
	CHECK(gp_switch_sampled(g));
	CHECK(gp_switch_sampled(g));
	see(g, 31, 190 * US, 10 * US);
	CHECK(gp_switch_sampled(g));
	see(g, 1, 190 * US, 10 * US);
	for (int i = 0; i < 320; i++, view->own.switches++)
		n += gp_switch_sampled(g);
	CHECK(n == 10);
	g->segment = NULL;
	CHECK(!gp_switch_sampled(g));
}

int main(void)
{
	view = calloc(1, sizeof *view);
	CHECK(view);
	follows();
	robust();
	told();
	longest();
	sampled();
	free(view);
	return 0;
}
