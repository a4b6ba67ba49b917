// hold.c - tiny kernels that keep the TSG of a latency-critical context on the GPU.
//
// Why a chain: behind a single kernel the host engine runs out of methods for the channel, loads the
// next TSG, and the kernel is switched out; with a second one waiting behind it, the engine stays.
// Why maximum carve-out: an SM's split of shared memory and L1 is fixed while a block lives on it. A default split would keep kernels
// with large shared memory off that SM.
//
// A hold may come to stand in the way of the work that it is for: the host engine turned to another TSG before the second
// link was there, and fetches nothing of this one while the first link runs; or a call of the program waits, with a lock
// of the driver's, for all that runs. A hold gives way, for any cause:
//   probe  the watcher has the host engine write a value now and then. While the engine is with this TSG that takes a few
//          microseconds, whatever runs; if it takes PROBE_LATE_NS while a link runs, the link ends, and the engine comes
//          back after one round trip.
//   lease  a link ends by itself, and those behind it, when the watcher has not moved the beat for the time of a step:
//          the process is stopped, or the watcher waits for the same lock of the driver's.
//   step   while work is unfinished a link ends every hold_step_ns and the next takes over, for unknown causes.
//
// Calls that wait for the whole context are known (context_waits): none is in the driver while a hold is armed.
// Writers: a thread that is about to make such a call writes context_waits; those that yield, close the window or lock the process write
// yielded, open and gp_membership. A thread that arms writes state.
// Readers: each of the other's words.
// Pairing: a caller raises context_waits, then waits until no hold is armed or being armed. A thread that arms stores ARMING, then looks
// at context_waits. A thread that yields, closes or locks says that, then releases an armed hold; a thread that arms looks at all of them
// behind ARMED. One of the two sees the other.
// Without the second look this breaks: a link runs while a call waits, with the driver's lock, for all that runs; or it runs behind a
// closed window. hold_orders_test.c tries every order.
#define _GNU_SOURCE
#include "preempt/gpu/gpu.h"
#include "preempt/process/facts.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum {
	BEAT = 1, // indices into hold.word; from here on a cache line of its own each
	EXPIRED = 16,
	PLACE = 32,
	FETCHED = 48,
	HOLD_BYTES = 4096,
};

enum { MOST_MOVES = 4 }; // of one hold; the first SM may have been learnt wrong

// A probe was fetched within 12 us at p99 and 90 us at most beside running kernels (H100, 10000 probes); after a step the
// engine is back within 400 us. This is no switch but a write over the bus: where it takes longer a link ends in vain, twice at most, and
// the next one takes over.
static const uint64_t PROBE_EVERY_NS = 200 * 1000, PROBE_LATE_NS = 100 * 1000;
static const uint64_t LOOK_EVERY_NS = 50 * 1000;
static const uint64_t SAMPLE_EVERY_NS = 10 * 1000, SAMPLE_FOR_NS = 2000 * 1000; // looks for when a switch is over
enum { BEATS_A_LEASE = 4 };                                                     // at least
static const uint64_t END_LOOK_NS = 1000 * 1000; // a wake-up is never missed; this bounds what a peer in trouble costs

// With fewer hardware channels than these, streams of the program were seen to stand behind a waiting link (H100, 1 to 33
// busy streams: with 1 to 6 channels, with 8 and 32 never). 8 is the driver's own number.
enum { FEWEST_CHANNELS = 8 };

const char *gp_hold_unwanted(void)
{
	const char *channels = gp_environment(GP_MAX_CONNECTIONS), *blocking = gp_environment(GP_LAUNCH_BLOCKING);

	if (blocking && atoi(blocking))
		return "CUDA_LAUNCH_BLOCKING makes every launch wait for its kernel";
	if (channels && atoi(channels) > 0 && atoi(channels) < FEWEST_CHANNELS)
		return "with CUDA_DEVICE_MAX_CONNECTIONS below 8 the program's streams would wait behind it";
	return NULL;
}

// Links up to a sequence end. The thread that has the hold writes; the GPU, and threads that do not have the hold, may look at any time.
static void end_links(struct gp_hold *h, uint32_t upto) { __atomic_store_n(&h->word[0], upto, __ATOMIC_RELAXED); }
static uint32_t ended(const struct gp_hold *h) { return __atomic_load_n(&h->word[0], __ATOMIC_RELAXED); }

static CUresult launch_link(struct gp_hold *h, uint32_t sequence)
{
	uint64_t limit = gp_settings.max_hold_ns;
	volatile uint32_t *expired = &h->word[EXPIRED];
	volatile uint64_t *place = (volatile uint64_t *)&h->word[PLACE];
	uint64_t lease = gp_settings.hold_step_ns;
	uint32_t chain = h->chain;
	void *parameters[] = {&h->word, &sequence, &chain, &limit, &lease, &expired, &place};
	return gp_driver.cuLaunchKernel(h->function, 1, 1, 1, 1, 1, 1, 0, h->stream, parameters, NULL);
}

// Makes the hold in the context that is current. Returns the driver's error and which call gave it.
static CUresult prepare(struct gp_hold *h, const char **call)
{
	CUmodule module;
	void *memory = NULL;

	GP_TRY(call, cuModuleLoadData, &module, gp_settings.hold_image);
	GP_TRY(call, cuModuleGetFunction, &h->function, module, "gpreempt_hold");
	GP_TRY(call, cuFuncSetAttribute, h->function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 100);
	GP_TRY(call, cuMemHostAlloc, &memory, HOLD_BYTES, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
	GP_TRY(call, cuStreamCreateWithPriority, &h->stream, CU_STREAM_NON_BLOCKING, 0);
	GP_TRY(call, cuStreamCreateWithPriority, &h->probe.stream, CU_STREAM_NON_BLOCKING, 0);
	h->word = memset(memory, 0, HOLD_BYTES); // the driver may give what was used before
	// The first launch loads the kernel, which may wait for the context: do it now, released.
	h->word[0] = h->queued = 1;
	*call = "cuLaunchKernel";
	return launch_link(h, h->queued);
}

CUresult gp_hold_prepare(struct gp_context *c, const char **call)
{
	CUcontext popped;
	uint32_t channels = gp_rm_channels();

	if (channels && channels < FEWEST_CHANNELS) {
		gp_log_line("no hold in this process: with fewer than 8 hardware channels the program's streams would "
			    "wait behind it; clients of MPS have 2, set CUDA_DEVICE_MAX_CONNECTIONS=8");
		c->hold.state = GP_HOLD_FAILED;
		c->gpu->hold_failed = 1;
		return CUDA_SUCCESS;
	}
	// The application may be capturing in global mode, which forbids allocation to other threads too.
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	CUcontext handle = c->handle;
	if (!handle || !gp_context_pin(c, handle))
		return 0;
	*call = "cuCtxPushCurrent";
	CUresult result = gp_driver.cuCtxPushCurrent(handle);
	if (!result) {
		gp_driver.cuThreadExchangeStreamCaptureMode(&mode);
		result = prepare(&c->hold, call);
		gp_driver.cuThreadExchangeStreamCaptureMode(&mode);
		gp_driver.cuCtxPopCurrent(&popped);
	}
	c->hold.state = result ? GP_HOLD_FAILED : GP_HOLD_IDLE;
	gp_context_unpin(c);
	return result;
}

// The thread that moves the state to ARMING has the hold to itself until it stores another state.
static bool seize(struct gp_hold *h, uint32_t from)
{
	return __atomic_compare_exchange_n((uint32_t *)&h->state, &from, GP_HOLD_ARMING, false, __ATOMIC_SEQ_CST,
					   __ATOMIC_RELAXED);
}

static void yield_to(struct gp_context *c, uint32_t state)
{
	c->hold.state = state;
	if (c->context_waits)
		gp_futex_wake(&c->hold.state, INT_MAX, false);
}

static void failed(struct gp_context *c)
{
	end_links(&c->hold, c->hold.queued);
	yield_to(c, GP_HOLD_FAILED);
	c->gpu->hold_failed = 1;
}

// A thread that meanwhile began to wait for the context, yielded, or closed the window, could not release it.
static void armed(struct gp_context *c)
{
	yield_to(c, GP_HOLD_ARMED);
	if (c->context_waits || c->yielded || !gp_is_open(c) || gp_membership != GP_JOINED)
		gp_hold_release(c);
}

static uint64_t since(uint64_t now, uint64_t then) { return now > then ? now - then : 0; }

// Its lease ran out, and the watcher, which has no processor or waits in another context, has not seen it yet. One that lasted for as long
// as it may is left to the watcher. That of two which see it at once the second releases a new one is harmless: it arms the next.
static bool ran_out(const struct gp_hold *h)
{
	return h->state == GP_HOLD_ARMED && h->word[EXPIRED] == h->chain &&
	       since(gp_now_ns(), h->started_ns) <= gp_settings.max_hold_ns;
}

void gp_hold_arm(struct gp_context *c)
{
	struct gp_hold *h = &c->hold;

	if (ran_out(h))
		gp_hold_release(c);
	if (h->state != GP_HOLD_IDLE || c->context_waits || c->yielded || !c->gpu->lower_peers || gp_membership != GP_JOINED)
		return;
	if (h->blocked_until_ns && gp_now_ns() < h->blocked_until_ns)
		return;
	if (!seize(h, GP_HOLD_IDLE))
		return;
	if (c->context_waits) {
		yield_to(c, GP_HOLD_IDLE);
		return;
	}
	h->chain = h->queued + 1;
	for (uint32_t i = 0; i < gp_settings.chain; i++)
		if (launch_link(h, ++h->queued)) {
			failed(c);
			return;
		}
	h->moves = 0;
	h->blocked_until_ns = 0;
	h->started_ns = gp_now_ns();
	if (gp_own_slot(c->gpu))
		gp_count(&gp_own_slot(c->gpu)->holds, 1);
	armed(c);
}

void gp_hold_release(struct gp_context *c)
{
	struct gp_hold *h = &c->hold;

	if (!seize(h, GP_HOLD_ARMED))
		return;
	end_links(h, h->queued);
	struct gp_slot *slot = gp_own_slot(c->gpu);
	if (slot) {
		gp_count(&slot->hold_ns, gp_now_ns() - h->started_ns);
		if (h->word[EXPIRED] == h->chain)
			gp_count(&slot->holds_expired, 1);
	}
	yield_to(c, GP_HOLD_IDLE);
}

void gp_hold_end(struct gp_context *c)
{
	struct gp_hold *h = &c->hold;

	for (uint32_t state; (state = h->state) == GP_HOLD_ARMING || state == GP_HOLD_ARMED;)
		if (state == GP_HOLD_ARMED)
			gp_hold_release(c);
		else
			gp_futex_wait(&h->state, GP_HOLD_ARMING, END_LOOK_NS, false);
}

// A thread that is arming it at this moment sees context_waits and gives up. If the state changes meanwhile, the exchange fails and the
// loop begins again.
void gp_hold_forget(struct gp_context *c)
{
	uint32_t state;

	do {
		gp_hold_end(c);
		state = c->hold.state;
	} while (state == GP_HOLD_ARMING || state == GP_HOLD_ARMED ||
		 !__atomic_compare_exchange_n((uint32_t *)&c->hold.state, &state, GP_HOLD_ABSENT, false,
					      __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
	c->hold.was = state;
}

void gp_hold_put_back(struct gp_context *c) { c->hold.state = c->hold.was; }

// The running link ends and the next one takes over. The link that replaces the ended one is queued first, so
// the channel never runs out of methods.
static bool next_link(struct gp_context *c)
{
	struct gp_hold *h = &c->hold;

	if (!seize(h, GP_HOLD_ARMED))
		return false;
	if (c->context_waits) {
		armed(c);
		return false;
	}
	if (launch_link(h, ++h->queued)) {
		failed(c);
		return false;
	}
	end_links(h, h->queued - gp_settings.chain);
	armed(c);
	return true;
}

// The link that is to run does, since when it was first seen to.
static bool link_runs(struct gp_hold *h, uint64_t now)
{
	if ((int32_t)(h->word[GP_HOLD_BEGUN] - ended(h)) <= 0)
		h->probe.begun_ns = 0;
	else if (!h->probe.begun_ns)
		h->probe.begun_ns = now;
	return h->probe.begun_ns != 0;
}

// Whether the probe says that the engine is with another TSG. Sends one where it is time. An equal's TSG may have its
// slice, and so will this one, which bounds a stall too.
static bool turned_away(struct gp_context *c, uint64_t now)
{
	enum { MOST_MISSED = 2 }; // then probes wait for something else: the program's streams may share their channel
	struct gp_hold *h = &c->hold;

	if (!gp_driver.cuStreamWriteValue32 || h->probe.missed >= MOST_MISSED || gp_equals_open(c->gpu))
		return false;
	if (h->word[FETCHED] == h->probe.sent) {
		h->probe.asked = false;
		if (since(now, h->probe.sent_ns) < PROBE_EVERY_NS)
			return false;
		h->probe.sent_ns = now;
		if (gp_driver.cuStreamWriteValue32(h->probe.stream, (CUdeviceptr)(uintptr_t)&h->word[FETCHED],
						   h->probe.sent + 1, 0))
			h->probe.missed = MOST_MISSED; // none is on its way
		else
			h->probe.sent++;
		return false;
	}
	if (since(now, h->probe.sent_ns) < PROBE_LATE_NS || since(now, h->probe.begun_ns) < PROBE_LATE_NS)
		return false;
	h->probe.missed += h->probe.asked; // a step has not brought it
	h->probe.asked = true;
	return h->probe.missed < MOST_MISSED;
}

static void step(struct gp_context *c, uint64_t now)
{
	struct gp_hold *h = &c->hold;

	if (!next_link(c))
		return;
	h->probe.stepped_ns = now;
	h->probe.begun_ns = 0;
	h->probe.stepped_to = ended(h) + 1;
}

// The chain's first link was seen to run: a switch took that long, if the GPU was taken from a lower level since the last one.
static void count_switch(struct gp_context *c, uint64_t now)
{
	struct gp_hold *h = &c->hold;
	struct gp_slot *slot = gp_own_slot(c->gpu);
	uint64_t switches = slot ? slot->switches : 0;
	if (slot && switches != h->probe.switches) {
		gp_count_time(&slot->times.switches, since(now, h->started_ns));
		if (h->probe.waited_ns && !h->probe.beside && gp_switch_sampled(c->gpu))
			gp_switch_seen(c->gpu, since(h->probe.waited_ns, h->started_ns), since(gp_now_ns(), h->started_ns));
	}
	h->probe.switches = switches;
}

// The chain's first link was seen not to run. Where another process's window is open, it may wait for that one.
static void wait_for_switch(struct gp_context *c, uint64_t now)
{
	struct gp_gpu *g = c->gpu;
	struct gp_segment *s = g->segment;
	c->hold.probe.waited_ns = now;
	c->hold.probe.beside |= s && gp_windows_open(s, g->same | g->higher);
}

// A switch that is to be measured is under way. A switch beside another process's window is not: it may wait for that one.
static bool measures_switch(struct gp_context *c, uint64_t now)
{
	const struct gp_hold *h = &c->hold;
	const struct gp_slot *slot = gp_own_slot(c->gpu);
	bool over = h->probe.chain == h->chain && (h->probe.begun_ns || h->probe.stepped_to || h->probe.beside);
	return !over && since(now, h->started_ns) < SAMPLE_FOR_NS && slot && slot->switches != h->probe.switches &&
	       gp_switch_sampled(c->gpu);
}

// Looks whether the hold, which is armed, stands in the way of the work that it is for.
static void look(struct gp_context *c, uint64_t now, bool unfinished)
{
	struct gp_hold *h = &c->hold;

	if (h->probe.chain != h->chain) {
		h->probe.chain = h->chain;
		h->probe.missed = h->probe.stepped_to = 0;
		h->probe.asked = h->probe.beside = false;
		h->probe.begun_ns = h->probe.waited_ns = 0;
		h->probe.stepped_ns = h->started_ns;
	}
	if (h->word[EXPIRED] == h->chain) { // the lease ran out, and what hindered the watcher is over
		gp_hold_release(c);
		if (unfinished)
			gp_hold_arm(c);
		return;
	}
	bool ran = h->probe.begun_ns || h->probe.stepped_to; // since an earlier look, or an earlier link did
	if (!link_runs(h, now)) {
		if (!ran)
			wait_for_switch(c, now);
		return;
	}
	if (!ran)
		count_switch(c, now);
	uint64_t unchecked = since(now, h->probe.stepped_ns > c->unfinished_ns ? h->probe.stepped_ns : c->unfinished_ns);
	if (turned_away(c, now)) {
		if (gp_own_slot(c->gpu))
			gp_count(&gp_own_slot(c->gpu)->holds_stalled, 1);
		step(c, now);
	} else if (unfinished && unchecked > gp_settings.hold_step_ns) {
		step(c, now);
	} else if (unfinished && h->probe.stepped_to == ended(h) + 1 && h->word[PLACE] != h->first_sm &&
		   unchecked > PROBE_LATE_NS && h->moves < MOST_MOVES) {
		h->moves++; // a link that begins beside a kernel may be on a worse SM (gp_hold_settle)
		step(c, now);
	}
}

// Renews the lease of a hold and looks whether it stands in the way. unfinished: work of the application is.
uint64_t gp_hold_look(struct gp_context *c, uint64_t now, bool unfinished)
{
	struct gp_hold *h = &c->hold;
	bool announced = c->hint.awaited_ns, armed = h->state == GP_HOLD_ARMED;
	CUcontext popped;

	if (!armed && !(announced && h->state == GP_HOLD_IDLE))
		return UINT64_MAX;
	// The GPU is not kept for work that is only announced from work of this level that is there.
	if (announced && gp_equals_open(c->gpu)) {
		gp_hold_release(c);
		return LOOK_EVERY_NS;
	}
	if (gp_hold_usable(c)) {
		h->word[BEAT]++;
		if (!c->context_waits && !gp_driver.cuCtxPushCurrent(c->handle)) {
			if (armed)
				look(c, now, unfinished);
			else
				gp_hold_arm(c);
			gp_driver.cuCtxPopCurrent(&popped);
		}
	}
	if (h->state == GP_HOLD_ARMED && measures_switch(c, now))
		return SAMPLE_EVERY_NS;
	return unfinished ? LOOK_EVERY_NS : gp_settings.hold_step_ns / BEATS_A_LEASE;
}

// Makes room for a kernel that was just launched and needs every SM: the running link ends and leaves its
// SM to the kernel's last block; the next link finds no room until a block of the kernel ends, and runs
// in the gap behind it. The kernel, submitted a launch earlier, is there before the next link.
void gp_hold_step(struct gp_context *c)
{
	if (next_link(c) && gp_own_slot(c->gpu))
		gp_count(&gp_own_slot(c->gpu)->holds_collided, 1);
}

// Called while nothing of the application runs. The GPU gives blocks to its SMs in a fixed order, the
// emptiest first. A hold on the SM that is first in that order is out of the way: everywhere else it makes
// two blocks of a kernel share another SM, and the kernel takes twice its time. A link that starts on an
// idle GPU is on the first SM; one that started beside a kernel is not. Of several threads that have waited at once, the one that
// exchanges seen_place counts the link.
void gp_hold_settle(struct gp_context *c)
{
	struct gp_hold *h = &c->hold;
	uint64_t place = *(volatile uint64_t *)&h->word[PLACE];
	uint64_t seen_place = h->seen_place;
	uint32_t sm = (uint32_t)place;

	if ((uint32_t)(place >> 32) != ended(h) + 1 || sm >= GP_SMS || place == seen_place ||
	    !__atomic_compare_exchange_n((uint64_t *)&h->seen_place, &seen_place, place, false, __ATOMIC_RELAXED,
					 __ATOMIC_RELAXED))
		return;
	if (h->seen[sm] < UINT16_MAX && ++h->seen[sm] > h->seen[h->first_sm])
		h->first_sm = sm;
	if (sm != h->first_sm && h->moves < MOST_MOVES && next_link(c))
		h->moves++;
}

// Ends the hold until everything submitted has finished.
void gp_hold_yield(struct gp_context *c)
{
	c->yielded = 1;
	if (c->hold.state == GP_HOLD_ARMED && gp_own_slot(c->gpu))
		gp_count(&gp_own_slot(c->gpu)->holds_collided, 1);
	gp_hold_release(c);
}

// How a launch fares beside a hold on one SM.
enum gp_fit gp_hold_fit(struct gp_context *c, const struct gp_launch *l)
{
	const struct gp_gpu *g = c->gpu;
	uint64_t blocks = (uint64_t)l->grid[0] * l->grid[1] * l->grid[2];
	uint32_t threads = gp_threads_of(l->block);

	if (!threads || !blocks || g->sms <= 1 || l->shared_bytes > (uint32_t)g->shared_per_sm)
		return GP_FITS;
	const struct gp_facts *f = gp_facts_of(g, l->function, threads, l->shared_bytes);
	uint32_t alone = f->on_sm, beside = f->beside_warp;
	if (alone <= beside)
		return GP_FITS;
	uint64_t capacity = (uint64_t)g->sms * alone, reduced = capacity - (alone - beside);
	if (l->cooperative)
		return blocks > reduced ? GP_BLOCKED : GP_FITS;
	uint64_t waves = (blocks + capacity - 1) / capacity;
	// Beyond eight waves one more costs less than making room for it.
	return waves <= 8 && (blocks + reduced - 1) / reduced > waves ? GP_SPREADS : GP_FITS;
}

bool gp_holds(struct gp_context *c) { return gp_settings.hold && c->gpu->lower_peers && gp_hold_usable(c); }
