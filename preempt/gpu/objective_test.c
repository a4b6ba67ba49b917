// objective_test.c - with preempt/gpu/objective.c preempt/gpu/ranks.c preempt/gpu/steps.c preempt/gpu/slots.c preempt/gpu/law.c.
//
// Which results end a step, and when a process lends: engines of several kinds, late slots, and services that rest after each step. The
// clock is the test's, and so are waits.
#define _GNU_SOURCE
#include "preempt/gpu/objective.h"
#include "test/units/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { US = 1000, MS = 1000 * US, LOWER = 9 };

struct gp_gpu gp_gpu[GP_GPUS];
_Atomic uint32_t gp_captures;
static struct gp_gpu *const g = &gp_gpu[0];
static struct gp_view *view;
static struct gp_context *c;
static struct gp_stream stream;
static uint64_t now = 1000000000000, late_ns, held_ns;
static void (*while_held)(void); // once, while a launch waits in a shared slot

uint64_t gp_now_ns(void) { return now; }
uint64_t gp_switch_ns(struct gp_gpu *gpu) { return gpu == g ? 300 * US : 0; }
void gp_wake_watcher(void) {}
void gp_futex_wake(_Atomic uint32_t *word, int count, bool shared) { (void)word, (void)count, (void)shared; }
_Atomic uint64_t gp_loaded[GP_LOADED];
bool gp_name_is_due(const void *kernel) { return kernel; }
// A handle is a small number, or its name.
const char *gp_driver_kernel_name(CUfunction kernel)
{
	return (uintptr_t)kernel < 4096 ? "gemm" : (const char *)kernel;
}
// The launch waits for the window to close, which the watcher does at once, or for the slot to end.
int gp_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns, bool shared)
{
	(void)word, (void)seen, (void)shared;
	if (gp_lend_drains(g)) {
		c->window &= ~(uint64_t)GP_WINDOW_OPEN;
		gp_objective_closes(g, now);
	} else if (g->giving_way) {
		if (while_held)
			while_held();
		now += timeout_ns;
		held_ns += timeout_ns;
	} else {
		now += timeout_ns;
		if (now >= gp_own_line(g)->lent_until_ns)
			now += late_ns;
	}
	return 0;
}

static const struct gp_objective_counters *counters(void) { return &view->own.objective; }

// A launch; a slot that is due is lent with it.
static void launch(enum gp_work work, uint64_t what)
{
	struct gp_operation o = {.work = work, .context = c};
	if (work == GP_GRAPH)
		o.graph = (CUgraphExec)(uintptr_t)what;
	else
		o.launch.function = (CUfunction)(uintptr_t)what;
	gp_step_submits(c);
	enum gp_lending lent = gp_step_launch(c, &o);
	if (lent)
		gp_lend(c, lent);
	if (!gp_is_open(c)) {
		gp_objective_opens(g, now);
		g->giving_way += gp_shared_slot_opens(g);
		c->window |= GP_WINDOW_OPEN;
	}
	if (lent)
		gp_lend_over(g);
}

static void work(uint32_t kernels, uint32_t graphs, uint64_t ns)
{
	for (uint32_t i = 0; i < kernels; i++)
		launch(GP_KERNEL, 1);
	for (uint32_t i = 0; i < graphs; i++)
		launch(GP_GRAPH, 2);
	now += ns;
}

// A result is copied, and the program waits for it.
static void result_of(uint64_t bytes)
{
	static uint64_t sequence;
	gp_step_copied(c, &stream, ++sequence, bytes);
	gp_step_stream_done(c, &stream, sequence);
}
static void result(void) { result_of(64); }

static void rest(uint64_t ns)
{
	gp_objective_closes(g, now);
	c->window &= ~(uint64_t)GP_WINDOW_OPEN;
	now += ns;
}

static void start(double step_ns)
{
	struct gp_wish none = {0}, wish = {.step_ns = step_ns, .percentile = 0.99};
	gp_objective_begin(&none, 8 * MS, 32 * MS, 32);
	memset(view, 0, sizeof *view);
	memset(&stream, 0, sizeof stream);
	g->known = true;
	g->segment = &view->segment;
	g->lower_peers = 1;
	g->lower = 1ull << LOWER;
	gp_line_of(g->segment, LOWER)->busy = 1;
	c->gpu = g;
	c->window &= ~(uint64_t)GP_WINDOW_OPEN;
	now += 1000ull * 1000 * MS;
	late_ns = 0;
	gp_objective_allow(true);
	gp_objective_begin(&wish, 8 * MS, 32 * MS, 32);
}

// A program's objective has the bounds of a configuration's, and one outside them changes nothing.
static void test_bounds(void)
{
	const double most = 60e9, least = 1e5;
	const double wrong[][3] = {{0.9, 0, 0},         {20.1, 0, 0},     {1.5, 20 * MS, 0}, {0, least * 0.99, 0},
				   {0, most * 1.01, 0}, {1.5, 0, 99e3},   {1.5, 0, -1},      {1.5, 0, most * 2},
				   {0, 0, 20 * MS},     {-1, 20 * MS, 0}, {NAN, 0, 0},       {0, NAN, 0},
				   {1.5, 0, NAN}};
	struct gp_wish now_in_force;
	start(20 * MS);
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
		CHECK(!gp_objective_set(wrong[i][0], wrong[i][1], wrong[i][2]));
	CHECK(gp_objective_read(&now_in_force) && now_in_force.step_ns == 20 * MS);
	CHECK(gp_objective_set(0, least, least) && gp_objective_set(0, most, most) && gp_objective_set(1, 0, 0) &&
	      gp_objective_set(20, 0, 0));
	CHECK(gp_objective_set(0, 0, 0) && !gp_objective_read(&now_in_force));
}

// Steps take longer than the objective though nothing is lent: what was compared is published.
static void test_unattainable(void)
{
	start(4 * MS);
	for (int step = 0; step < 100; step++) {
		work(300, 0, 5 * MS);
		result();
	}
	CHECK(counters()->state == GP_OBJECTIVE_UNATTAINABLE && counters()->objective_ns == 4 * MS && !counters()->slots);
	CHECK(counters()->unlent_ns > 49 * MS / 10 && counters()->unlent_ns < 52 * MS / 10);
}

// The same objective again changes nothing, and another one forgets the mean.
static void test_same_objective(void)
{
	start(20 * MS);
	for (int step = 0; step < 100; step++) {
		work(300, 0, 5 * MS);
		result();
		CHECK(gp_objective_set(0, 20 * MS, 0));
	}
	CHECK(counters()->steps == 100 && counters()->means == 100 - 31);
	CHECK(gp_objective_set(0, 21 * MS, 0));
	for (int step = 0; step < 31; step++) {
		work(300, 0, 5 * MS);
		result();
	}
	CHECK(counters()->steps == 131 && counters()->means == 100 - 31);

	// The credit of one objective pays for no slot of another.
	for (int changes = 0; changes < 2; changes++) {
		uint32_t lent = 0;
		for (int steps = 1; steps < 60; steps++) {
			start(20 * MS);
			for (int step = 0; step < steps; step++) {
				work(300, 1, 5 * MS);
				result();
			}
			uint64_t slots = counters()->slots;
			if (changes)
				CHECK(gp_objective_set(0, 21 * MS, 0));
			launch(GP_GRAPH, 2);
			lent += counters()->slots > slots;
		}
		CHECK((lent > 5) == !changes && (lent == 0) == changes);
	}
}

// A loop over tokens, which asks after each whether the sequence has ended: two results of one step.
static void test_further_results(void)
{
	start(1 * US);
	for (int token = 0; token < 200; token++) {
		work(300, 0, 20 * MS);
		result();
		work(5, 0, 200 * US);
		result();
		work(2, 0, 50 * US);
		result();
	}
	CHECK(counters()->steps == 200);
}

// A program looks at its next prompt before the model does: time on the CPU, and some kernels.
static void test_looks_at_requests(void)
{
	start(1 * US);
	work(300, 0, 20 * MS);
	result();
	for (int request = 0; request < 20; request++) {
		rest(3 * MS);
		work(5, 0, 200 * US);
		result();
		for (int token = 0; token < 32; token++) {
			work(300, 0, 20 * MS);
			result();
		}
	}
	CHECK(counters()->steps == 1 + 20 * 32);
	start(1 * US); // a graph is a step, however few launches that is, and also where the program waits for a second copy of its result
	for (int step = 0; step < 400; step++) {
		if (step % 4 == 0) {
			now += 100 * US;
			work(400, 0, 20 * MS);
		} else {
			rest(1 * MS);
			work(0, 1, 900 * US);
			gp_step_copied(c, &stream, 1ull << 40, 64);
		}
		result();
	}
	CHECK(counters()->steps >= 399);

	start(40 * MS); // what was lent before the window opened anew is no part of the time since then
	uint64_t slots = 0;
	for (int step = 0; step < 400; step++) {
		now += 100 * US;
		work(400, 0, 20 * MS);
		result();
		now += 100 * US;
		launch(GP_KERNEL, 1); // which pays for a slot, if one is due
		slots = counters()->slots;
		rest(1 * MS);
		work(10, 0, 12 * MS);
		result();
	}
	CHECK(slots > 10 && counters()->steps >= 799);
}

// Steps of decode are one graph, and come soon behind long steps of prefill, each of which has hundreds of kernels.
static void test_prefill_and_decode(void)
{
	start(1 * US);
	for (int step = 0; step < 400; step++) {
		if (step % 4)
			work(3, 1, 5 * MS);
		else
			work(400, 0, 200 * MS);
		result();
	}
	CHECK(counters()->steps >= 399); // the first decode of all may be its prefill's
}

// With drafts a step is many graphs, without one: as long, and each is a step.
static void test_speculative_decoding(void)
{
	start(1 * US);
	for (int step = 0; step < 400; step++) {
		work(4, step % 5 ? 33 : 1, 12 * MS);
		result();
	}
	CHECK(counters()->steps == 400);
}

// A loop that is lent in: the further result comes after a slot, a switch, and what its program then does.
static void test_further_results_behind_slots(void)
{
	start(60 * MS);
	for (int token = 0; token < 200; token++) {
		work(300, 0, 12 * MS);
		result();
		work(5, 0, 1500 * US);
		result();
	}
	CHECK(counters()->slots > 50);
	CHECK(counters()->steps >= 200 && counters()->steps <= 250);
}

// Prefill is a pass of its own, with a result for the new sequence only: the period of the others is that until their next result.
static void test_passes(void)
{
	start(20 * MS);
	for (int step = 0; step < 400; step++) {
		if (step % 8 == 7) {
			work(400, 0, 30 * MS);
			result_of(8);
		}
		work(3, 1, 5 * MS);
		result_of(64);
	}
	CHECK(counters()->steps == 450);
	CHECK(counters()->means == 400 - 31); // periods; the mean is known from the 32nd on
	// Most of the batch ends at once, without a pass.
	uint64_t means = counters()->means;
	for (int step = 0; step < 40; step++) {
		work(3, 1, 5 * MS);
		result_of(8);
	}
	CHECK(counters()->means == means + 40);
	// Of many passes in a row the fourth one ends a step: no process waits for ever.
	work(3, 1, 5 * MS);
	result_of(64);
	means = counters()->means;
	for (int pass = 0; pass < 4; pass++) {
		work(400, 0, 30 * MS);
		result_of(8);
	}
	CHECK(counters()->means == means + 1);
}

// An engine that splits batches waits for each part, and looks at the results of all: most steps have one part, then all have two.
static void test_parts_of_a_batch(void)
{
	start(20 * MS);
	for (int step = 0; step < 400; step++) {
		work(1, 1, 5 * MS);
		result_of(512 * 1024);
		if (step >= 50 && (step % 4 == 0 || step > 200)) {
			now += step % 3 ? 6 * US : 50 * US;
			gp_step_submits(c); // it copies the next input
			work(700, 0, 10 * MS);
			result_of(step % 8 ? 128 * 1024 : 1024 * 1024);
		}
		now += 1 * MS;
	}
	CHECK(counters()->steps == 400 && counters()->means == 400 - 31);
	// Now no result is looked at: after a while each ends a step.
	for (int step = 0; step < 400; step++) {
		now += 6 * US;
		work(1, 1, 5 * MS);
		result_of(512 * 1024);
	}
	CHECK(counters()->steps > 700);
	// Nor is any looked at behind long looks: a step has 17 parts at most.
	for (int step = 0; step < 100; step++) {
		now += 20 * MS;
		work(1, 1, 5 * MS);
		result_of(512 * 1024);
	}
	uint64_t steps = counters()->steps;
	for (int part = 0; part < 17; part++) {
		now += 6 * US;
		work(1, 1, 5 * MS);
		result_of(512 * 1024);
	}
	CHECK(counters()->steps == steps + 1);
	// A later look is one, though it is short.
	start(20 * MS);
	for (int step = 0; step < 400; step++) {
		now += step % 3 ? 70 * US : 2 * MS;
		work(1, 1, 5 * MS);
		result_of(512 * 1024);
	}
	CHECK(counters()->steps == 400);
}

// A service takes its next request at once where one waits, and else rests. Its results are small: each ends a step.
static void test_queues_of_a_service(void)
{
	start(20 * MS);
	for (int step = 0; step < 400; step++) {
		now += step % 3 ? 20 * US : 2 * MS;
		work(1, 1, 5 * MS);
		result_of(4096);
	}
	CHECK(counters()->steps == 400);
}

// Drafts make results longer, and steps have more launches with them than without.
static void test_results_of_drafts(void)
{
	for (int every = 2; every <= 4; every += 2) {
		start(20 * MS);
		for (int step = 0; step < 400; step++) {
			work(4, step % every ? 1 : 33, 12 * MS);
			result_of(step % every ? 64 : 320);
		}
		CHECK(counters()->steps == 400 && counters()->means == 400 - 31 && counters()->over == 0 &&
		      counters()->slots > 50);
	}
}

// The first result of a request counts, though it is that of a pass; so does that of a lone request after a batch.
static void test_first_results(void)
{
	start(20 * MS);
	CHECK(gp_objective_set(0, 20 * MS, 50 * MS));
	for (int request = 0; request < 20; request++) {
		for (int step = 0; step < 20; step++) {
			work(3, 1, 5 * MS);
			result_of(64);
		}
		uint64_t requests = counters()->requests;
		work(3, 1, MS);
		gp_lend_request(now); // while a step is under way, which has no result for it
		now += 4 * MS;
		result_of(64);
		CHECK(counters()->requests == requests);
		work(400, 0, 30 * MS);
		result_of(8);
		work(3, 1, 15 * MS);
		result_of(72);
	}
	CHECK(counters()->requests == 20 && counters()->late_requests == 0);
	for (int request = 0; request < 20; request++) {
		for (int step = 0; step < 20; step++) {
			work(3, 1, 5 * MS);
			result_of(64);
		}
		rest(100 * MS);
		gp_lend_request(now);
		for (int step = 0; step < 4; step++) {
			work(3 + 400 * !step, 1, 15 * MS);
			result_of(8);
		}
	}
	CHECK(counters()->means == 20 * 22 + 20 * 24 - 31); // nothing is a pass behind a rest
	CHECK(counters()->requests == 40 && counters()->late_requests == 0);
}

// A program that copies all of its logits has large results, which count once smaller ones have ended no step for a second.
static void test_large_results(void)
{
	start(20 * MS);
	for (int step = 0; step < 400; step++) {
		work(300, 0, 10 * MS);
		if (gp_step_result_bytes(g) >= 128 * 1024)
			result_of(128 * 1024);
		gp_objective_watch(g, now);
	}
	CHECK(counters()->steps >= 295 && counters()->steps < 300 && counters()->state == GP_OBJECTIVE_LENDS);
	start(20 * MS);
	for (int step = 0; step < 400; step++) {
		work(300, 0, 10 * MS);
		if (step == 50)
			result();
		gp_objective_watch(g, now);
	}
	CHECK(gp_step_result_bytes(g) >= 128 * 1024 && counters()->state == GP_OBJECTIVE_STEPLESS);
	// Keys and values that are copied to the host end no step once there are small results.
	for (int step = 0; step < 400; step++) {
		if (step % 4 == 0) {
			work(3, 1, 5 * MS);
			if (gp_step_result_bytes(g) >= 1024 * 1024)
				result_of(1024 * 1024);
		}
		work(3, 1, 5 * MS);
		result();
	}
	CHECK(counters()->steps <= 402 && counters()->over <= 32 && counters()->slots > 5); // the first step took seconds
}

// Steps of a small model are short. Without graphs those of decode have as many launches as those of prefill, with graphs they are not
// much shorter.
static void test_short_steps(void)
{
	start(1 * US);
	for (int step = 0; step < 400; step++) {
		work(300, 0, step % 4 ? 600 * US : 50 * MS);
		result();
	}
	for (int step = 0; step < 400; step++) {
		work(step % 2 ? 3 : 100, step % 2, step % 2 ? 600 * US : 900 * US);
		result();
	}
	CHECK(counters()->steps == 800);
}

// A result without a launch ahead of it, as of the host's own copies, is no step.
static void test_results_without_work(void)
{
	start(1 * US);
	for (int step = 0; step < 100; step++) {
		work(10, 0, 5 * MS);
		result();
		now += 5 * MS;
		result();
	}
	CHECK(counters()->steps == 100);
}

// Steps until a slot more was lent; how late it is to end.
static uint32_t until_a_slot(uint64_t late)
{
	uint64_t slots = counters()->slots;
	late_ns = late;
	for (uint32_t steps = 1; steps < 30000; steps++) {
		work(3, 1, 5 * MS);
		result();
		if (counters()->slots > slots)
			return steps;
	}
	return UINT32_MAX;
}

// Best effort that its maximum keeps off the GPU gets no slot.
static void test_capped(void)
{
	start(20 * MS);
	g->segment->slot[LOWER].capped = 1;
	for (int step = 0; step < 100; step++) {
		work(3, 1, 5 * MS);
		result();
	}
	CHECK(counters()->slots == 0 && counters()->steps == 100);
	g->segment->slot[LOWER].capped = 0;
	for (int step = 0; step < 100; step++) {
		work(3, 1, 5 * MS);
		result();
	}
	CHECK(counters()->slots > 5);
}

static void test_late_slots(void)
{
	start(20 * MS);
	until_a_slot(0);
	for (int i = 0; i < 500; i++) // one of 60
		CHECK(until_a_slot(i % 60 ? 0 : 3 * MS) < 100);
	CHECK(counters()->state == GP_OBJECTIVE_LENDS);
	for (int i = 0; i < 60; i++)
		until_a_slot(0);
	for (int i = 0; i < 3; i++)
		CHECK(until_a_slot(3 * MS) < 100);
	late_ns = 0;
	uint64_t off = now;
	work(3, 1, 5 * MS);
	result();
	CHECK(counters()->state == GP_OBJECTIVE_LATE);
	CHECK(until_a_slot(0) < UINT32_MAX && now - off >= 59000ull * MS && now - off < 61000ull * MS);
	work(3, 1, 5 * MS);
	result();
	CHECK(counters()->state == GP_OBJECTIVE_LENDS);
	uint32_t slots = 0;
	for (; slots < 1000 && counters()->state == GP_OBJECTIVE_LENDS; slots++) // one of 25 is too many
		until_a_slot(slots % 25 ? 0 : 3 * MS);
	CHECK(slots < 200);
}

// A service computes 1.5 ms a request, and waits for the next one: its slack is a lack of requests.
static void test_rests(void)
{
	start(20 * MS);
	for (int request = 0; request < 1000; request++) {
		for (int more = 0; more <= request % 3; more++) { // one after the other
			work(10, 0, 1500 * US);
			result();
		}
		rest(4 * MS);
	}
	CHECK(counters()->steps > 900 && counters()->slots == 0 && counters()->state == GP_OBJECTIVE_RESTS);

	// An engine may wait for its program for longer than a step takes. It rests where that is more than twice as long, or 20 ms.
	static const struct {
		uint64_t step_ns, pause_ns;
		bool rests;
	} engines[] = {{5 * MS, 9 * MS, false},
		       {5 * MS, 11 * MS, true},
		       {15 * MS, 18 * MS, false},
		       {15 * MS, 25 * MS, true},
		       {30 * MS, 25 * MS, false}};
	for (size_t i = 0; i < sizeof engines / sizeof *engines; i++) {
		start(4 * (double)engines[i].step_ns);
		for (int step = 0; step < 100; step++) {
			work(3, 1, engines[i].step_ns);
			result();
			rest(step % 4 ? 2 * MS : engines[i].pause_ns);
		}
		CHECK((counters()->slots > 5) == !engines[i].rests &&
		      counters()->state == (engines[i].rests ? GP_OBJECTIVE_RESTS : GP_OBJECTIVE_LENDS));
	}

	// Once requests of many steps are usual, the next one has slots from its first steps on.
	uint64_t early = 0;
	for (int request = 0; request < 30; request++) {
		uint64_t slots = counters()->slots;
		for (int step = 0; step < 6; step++) {
			work(3, 1, 5 * MS);
			result();
		}
		early += counters()->slots - slots;
		for (int step = 0; step < 40; step++) {
			work(3, 1, 5 * MS);
			result();
		}
		rest(15 * MS);
	}
	CHECK(early > 20);
}

// A rank's steps have the slots of other ranks in them: an objective that is relative to steps alone lends nothing, and one in time does.
static void test_ranks(void)
{
	static const char *const kernels[] = {"gemm_f16",
					      "_Z31ncclDevKernel_AllGather_RING_LL24ncclDevKernelArgsStorageILm4096EE",
					      "_ZN4vllm26cross_device_reduce_1stageIfLi2EEEvv"};
	for (int i = 0; i < 3; i++) {
		struct gp_wish none = {0}, relative = {.slowdown = 3, .percentile = 0.99};
		start(20 * MS);
		gp_objective_begin(&none, 8 * MS, 32 * MS, 32);
		gp_objective_begin(&relative, 8 * MS, 32 * MS, 32);
		gp_is_rank = 0;
		gp_rank_kernel((CUfunction)(uintptr_t)kernels[i]);
		for (int step = 0; step < 100; step++) {
			work(3, 1, 5 * MS);
			result();
		}
		CHECK((counters()->slots == 0) == (i > 0) &&
		      counters()->state == (i ? GP_OBJECTIVE_RANKS : GP_OBJECTIVE_LENDS));
	}
	start(20 * MS);
	for (int step = 0; step < 100; step++) {
		work(3, 1, 5 * MS);
		result();
	}
	CHECK(counters()->slots > 5 && counters()->state == GP_OBJECTIVE_LENDS);
}

// The launches of a request after a rest pay for no slot, with what it may begin: a copy opens the window too, and a program may launch
// work behind the result copy of the step before.
static void test_requests_after_rests(void)
{
	for (int kind = 0; kind < 4; kind++) {
		start(20 * MS);
		uint32_t waited = 0;
		for (int request = 0; request < 40; request++) {
			for (int step = 0; step < 30; step++) {
				work(3, kind < 3, 5 * MS);
				if (kind == 2) { // one more kernel behind the copy
					static uint64_t sequence = 1ull << 40;
					gp_step_copied(c, &stream, ++sequence, 64);
					work(1, 0, 100 * US);
					gp_step_stream_done(c, &stream, sequence);
				} else {
					result();
				}
			}
			rest(10000ull * MS);
			if (kind == 1) {
				gp_objective_opens(g, now);
				c->window |= GP_WINDOW_OPEN;
			}
			uint64_t slots = counters()->slots;
			work(3, kind < 3, 0);
			waited += counters()->slots > slots;
		}
		CHECK(counters()->slots > 100 && waited == 0);
	}
	// A service of one step a request, with a kernel behind the copy.
	start(20 * MS);
	for (int request = 0; request < 1000; request++) {
		static uint64_t sequence = 1ull << 41;
		work(10, 0, 1500 * US);
		gp_step_copied(c, &stream, ++sequence, 64);
		work(1, 0, 100 * US);
		gp_step_stream_done(c, &stream, sequence);
		rest(10 * MS);
	}
	CHECK(counters()->steps > 900 && counters()->slots == 0 && counters()->state == GP_OBJECTIVE_RESTS);
	// No rests: a program that computes in the middle of a step, and one that asks for a result long after it came.
	for (int late = 0; late < 2; late++) {
		start(30 * MS);
		for (int step = 0; step < 100; step++) {
			work(3, 1, 4 * MS);
			rest(late ? 8 * MS : MS);
			if (!late)
				work(3, 1, 4 * MS);
			result();
		}
		CHECK(counters()->slots > 5 && counters()->state == GP_OBJECTIVE_LENDS);
	}
	// An engine that has not rested yet is not said to rest.
	start(20 * MS);
	for (int step = 0; step < 4; step++) {
		work(3, 1, 5 * MS);
		result();
	}
	CHECK(counters()->state == GP_OBJECTIVE_NONE);
}

// Each step has several results, and the program waits for the last. The kernel before each but the last is the kind's. Three of four steps
// take 20 ms, the others 5 ms and are of another kind. Returns how long the objective lets a period be.
static uint64_t objective_of_kinds(int results)
{
	static uint64_t sequence;
	struct gp_wish wish = {.slowdown = 2, .percentile = 0.99};
	start(1 * US);
	gp_objective_begin(&wish, 8 * MS, 32 * MS, 32);
	for (int step = 0; step < 400; step++) {
		for (int i = 1; i < results; i++) {
			launch(GP_KERNEL, step % 4 ? 10 : 20);
			gp_step_copied(c, &stream, ++sequence, 64);
		}
		work(1, 0, step % 4 ? 20 * MS : 5 * MS);
		gp_step_copied(c, &stream, ++sequence, 64);
		gp_step_stream_done(c, &stream, sequence);
	}
	return counters()->objective_ns;
}

// The first launch of a step says of which kind it is. Where more results came than are remembered it is forgotten, and the first launch
// behind the last but one counts.
static void test_kinds_of_steps_with_several_results(void)
{
	uint64_t known = objective_of_kinds(2), forgotten = objective_of_kinds(66);
	CHECK(known > 39 * MS && known < 41 * MS);
	CHECK(forgotten > 25 * MS && forgotten < 38 * MS);
}

static uint64_t stays_ns; // lower levels run for so long behind a shared slot

// Under MPS: work of an engine that takes own_ns alone, and slowdown times as long while lower levels run beside it. The watcher looks every
// 50 us. Adds to *beside_ns how long lower levels had a slot.
static void pass_beside(double own_ns, double slowdown, uint64_t *beside_ns)
{
	static uint64_t until;
	for (double left = own_ns; left > 0;) {
		int turned = gp_shared_slot_turn(g, now);
		g->giving_way += (uint32_t)turned;
		until = turned < 0 ? now + stays_ns : until;
		CHECK(g->giving_way <= 1);
		left -= g->giving_way || now < until ? 50 * US / slowdown : 50 * US;
		*beside_ns += g->giving_way ? 50 * US : 0;
		now += 50 * US;
	}
}

// A step; its first launch may wait in a slot. Returns how long it took.
static uint64_t step_beside(double own_ns, double slowdown, uint64_t *beside_ns)
{
	static uint64_t sequence = 1ull << 42;
	uint64_t began = now;
	work(3, 1, 0);
	*beside_ns += now - began;
	gp_step_copied(c, &stream, ++sequence, 64);
	pass_beside(own_ns, slowdown, beside_ns);
	gp_step_stream_done(c, &stream, sequence);
	return now - began;
}

static void start_beside(double slowdown)
{
	struct gp_wish wish = {.slowdown = slowdown, .percentile = 0.99};
	start(1 * US);
	gp_objective_begin(&wish, 8 * MS, 32 * MS, 32);
	g->mps = 1;
}

static void end_beside(void)
{
	g->giving_way -= gp_shared_slot_closes(g, now);
	CHECK(!g->giving_way);
	g->mps = 0;
	held_ns = stays_ns = 0;
}

// The law learns what a step takes alone although lower levels leave late, and anew where it changes; and a further result beside them is
// no step.
static void test_learns_beside_others(void)
{
	enum { STEPS = 1500 };
	uint64_t beside = 0, began;
	start_beside(1.2);
	stays_ns = 9 * MS;
	began = now;
	for (int step = 0; step < STEPS; step++)
		step_beside(8 * MS, 1.7, &beside);
	CHECK(counters()->slots > 50 && (double)counters()->objective_ns < 1.03 * 1.2 * 8 * MS);
	CHECK((double)(now - began) < STEPS * 1.2 * 8 * MS);
	end_beside();

	start_beside(1.5);
	for (int step = 0; step < STEPS; step++)
		step_beside(14 * MS, 1.2, &beside);
	began = now;
	while ((double)counters()->objective_ns > 1.1 * 1.5 * 7 * MS) {
		step_beside(7 * MS, 1.2, &beside);
		CHECK(now < began + 3000ull * MS);
	}
	end_beside();

	start_beside(1.5);
	for (int step = 0; step < STEPS; step++) {
		work(20, 0, 0);
		step_beside(20 * MS, 1.5, &beside);
		work(1, 0, 0);
		pass_beside(800 * US, 1.5, &beside);
		result();
	}
	CHECK(counters()->slots > 50 && counters()->steps <= STEPS);
	end_beside();
}

// Lower levels run beside steps for as long as credit pays, and what steps take alone is still learnt.
static void test_shared_slots(void)
{
	enum { STEPS = 2000, WARM = 400 };
	static const struct {
		double objective, slowdown, least_beside, most_beside;
	} cases[] = {
		{1.2, 1.7, 0.1, 0.5},                        // about 0.2 / 0.7 of the work
		{1.5, 1.7, 0.5, 0.95}, {2, 1.7, 0.93, 0.99}, // but for the steps that are made alone
		{4, 1.7, 0.95, 0.995},                       // launches are held back, too
		{2, 3, 0.5, 0.95},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		start_beside(cases[i].objective);
		uint64_t beside = 0, before = 0, over = 0, began = 0;
		for (int step = 0; step < STEPS; step++) {
			if (step == WARM)
				began = now, before = beside, over = counters()->over;
			step_beside(7 * MS, cases[i].slowdown, &beside);
		}
		double part = (double)(beside - before) / (double)(now - began),
		       mean = (double)(now - began) / (STEPS - WARM);
		CHECK(part > cases[i].least_beside && part < cases[i].most_beside);
		CHECK(mean < cases[i].objective * 7 * MS);
		CHECK(counters()->over - over <= (STEPS - WARM) / 50);
		double learnt = (double)counters()->objective_ns / (cases[i].objective * 7 * MS);
		CHECK(learnt > 0.98 && learnt < 1.03);
		CHECK(counters()->state == GP_OBJECTIVE_LENDS &&
		      ((double)held_ns > 0.05 * (double)(now - began)) == (cases[i].objective > cases[i].slowdown));
		end_beside();
	}
}

// Each way in which a shared slot ends takes it back: its time, no work of lower levels, a cut, an objective that is no more, the window.
static void test_shared_slots_end(void)
{
	enum { TIME, IDLE, REQUEST, CAPTURE, NO_OBJECTIVE, WINDOW, WAYS };
	for (int way = TIME; way < WAYS; way++) {
		struct gp_wish none = {0}, first = {.step_ns = 20 * MS, .first_ns = 1000 * MS, .percentile = 0.99};
		uint64_t beside = 0;
		start(20 * MS);
		gp_objective_begin(&first, 8 * MS, 32 * MS, 32);
		g->mps = 1;
		while (!g->giving_way)
			step_beside(5 * MS, 1.5, &beside);
		CHECK(gp_own_line(g)->lent_until_ns > now);
		uint64_t slots = counters()->slots;
		switch (way) {
		case TIME: now = gp_own_line(g)->lent_until_ns; break;
		case IDLE: gp_line_of(g->segment, LOWER)->busy = 0; break;
		case REQUEST: gp_lend_request(now); break;
		case CAPTURE: gp_lend_capture(); break;
		case NO_OBJECTIVE: gp_objective_begin(&none, 8 * MS, 32 * MS, 32); break;
		}
		if (way == WINDOW)
			CHECK(gp_shared_slot_closes(g, now) && !gp_shared_slot_closes(g, now));
		else
			CHECK(!gp_shared_slot_turns(g, now) && gp_shared_slot_turn(g, now) == -1);
		g->giving_way--;
		CHECK(gp_shared_slot_turns(g, now) == UINT64_MAX && !gp_shared_slot_turn(g, now) &&
		      !gp_shared_slot_closes(g, now));
		CHECK(counters()->slots == slots + 1 && !gp_own_line(g)->lent_until_ns);
		CHECK(counters()->cut[GP_CUT_IDLE] == (way == IDLE) && counters()->cut[GP_CUT_REQUEST] == (way == REQUEST));
		CHECK(counters()->cut[GP_CUT_CAPTURE] == (way == CAPTURE) &&
		      counters()->cut[GP_CUT_CHANGED] == (way == NO_OBJECTIVE));
		g->mps = 0;
	}
}

static void window_closes(void)
{
	while_held = NULL;
	CHECK(gp_shared_slot_closes(g, now));
	g->giving_way--;
	c->window &= ~(uint64_t)GP_WINDOW_OPEN;
	gp_objective_closes(g, now);
	CHECK(gp_lent(g) && gp_own_line(g)->lent_until_ns > now); // others may join it still
}

static void request_arrives(void)
{
	while_held = NULL;
	gp_lend_request(now);
	CHECK(!gp_shared_slot_turns(g, now) && gp_shared_slot_turn(g, now) == -1);
	g->giving_way--;
}

// A launch that waits in a shared slot: its window may close meanwhile, and then the slot lasts until it goes on; and the slot may be cut.
static void test_held_launches(void)
{
	void (*const what[])(void) = {window_closes, request_arrives};
	for (int way = 0; way < 2; way++) {
		struct gp_wish wish = {.step_ns = 40 * MS, .first_ns = 1000 * MS, .percentile = 0.99};
		uint64_t beside = 0;
		start(40 * MS);
		gp_objective_begin(&wish, 8 * MS, 32 * MS, 32);
		g->mps = 1;
		held_ns = 0;
		while (held_ns < 100 * MS) // it lends and goes on
			step_beside(7 * MS, 1.5, &beside);
		while_held = what[way];
		uint64_t slots = counters()->slots;
		while (while_held)
			step_beside(7 * MS, 1.5, &beside);
		CHECK(gp_is_open(c) && counters()->slots == slots + (way == 1)); // one whose window closed goes on
		uint64_t before = counters()->slots;
		for (int step = 0; step < 100; step++)
			step_beside(7 * MS, 1.5, &beside);
		CHECK(counters()->slots > before && counters()->state == GP_OBJECTIVE_LENDS);
		end_beside();
	}
}

int main(void)
{
	view = aligned_alloc(GP_PAGE, sizeof *view);
	c = calloc(1, sizeof *c);
	CHECK(view && c);
	test_bounds();
	test_unattainable();
	test_same_objective();
	test_further_results();
	test_further_results_behind_slots();
	test_passes();
	test_large_results();
	test_results_of_drafts();
	test_parts_of_a_batch();
	test_queues_of_a_service();
	test_first_results();
	test_looks_at_requests();
	test_prefill_and_decode();
	test_speculative_decoding();
	test_short_steps();
	test_results_without_work();
	test_capped();
	test_late_slots();
	test_rests();
	test_shared_slots();
	test_shared_slots_end();
	test_held_launches();
	test_learns_beside_others();
	test_ranks();
	test_requests_after_rests();
	test_kinds_of_steps_with_several_results();
	free(c);
	free(view);
	return 0;
}
