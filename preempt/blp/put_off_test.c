// put_off_test.c - with preempt/blp/put_off.c.
//
// Windows one after the other, whose length depends on whether they are stopped for: which way they go. Ends well or says what is wrong.
#include "preempt/blp/domain.h"
#include "preempt/gpu/gpu.h"
#include "test/units/check.h"

#include <string.h>

enum { LC = 3, OTHER = 5 }; // slots

_Atomic bool gp_mps_lowered;
_Atomic uint32_t gp_membership = GP_JOINED;
struct gp_domain *_Atomic blp_domains[BLP_DOMAINS];
static uint32_t rung;
void gp_ring_gate(struct gp_gpu *g) { rung++; }

static const uint64_t MOST = 1000000;
static struct gp_segment segment;
static struct gp_domain domain;
static struct gp_gpu gpu;
static struct blp_windows windows;
static uint64_t now = 1000;

static uint64_t look(void)
{
	gpu.ignored &= gp_windows_open(&segment, gpu.ignored); // as the watcher does
	return blp_put_off(&windows, &gpu, now);
}

static bool is_stopped_for(void) { return gp_windows_open(&segment, gpu.higher & ~gpu.ignored); }

static void open_window(uint32_t slot)
{
	segment.slot[slot].windows++;
	gp_line_of(&segment, slot)->window_opened_ns = now;
}

static void close_window(uint32_t slot, uint64_t lasted)
{
	segment.slot[slot].window_ns += lasted;
	gp_line_of(&segment, slot)->window_opened_ns = 0;
}

// A window lasts as long where a stop comes at once, and where it waits. Whether it waits.
static bool window(uint64_t stopped_ns, uint64_t waiting_ns)
{
	open_window(LC);
	uint32_t before = rung;
	uint64_t waits = look();
	CHECK((!waits || waits == MOST) && is_stopped_for() == !waits && rung == before + !!waits);
	now += 1000;
	CHECK(look() == (waits ? MOST - 1000 : 0) && is_stopped_for() == !waits && rung == before + !!waits);
	now += MOST;
	CHECK(look() == 0 && is_stopped_for()); // then it comes
	close_window(LC, waits ? waiting_ns : stopped_ns); // as its process counts it, whenever the watcher looks
	now += 5 * MOST;
	CHECK(look() == 0 && !is_stopped_for() && !gpu.ignored);
	now += 1000;
	CHECK(look() == 0); // closed once
	return waits;
}

// How many of some windows wait.
static int waiting(int count, uint64_t stopped_ns, uint64_t waiting_ns)
{
	int waits = 0;
	for (int i = 0; i < count; i++)
		waits += window(stopped_ns, waiting_ns);
	return waits;
}

static void begin(bool mps, bool lowered)
{
	blp_domains[0] = &domain;
	domain.gpu = &gpu;
	domain.recorded = 1;
	gpu.segment = &segment;
	gpu.higher = 1ull << LC | 1ull << OTHER;
	gpu.mps = mps;
	gp_mps_lowered = lowered;
	windows = (struct blp_windows){0};
}

int main(void)
{
	begin(true, true);
	CHECK(waiting(8, 175000, 145000) == 4); // each way in turn
	CHECK(waiting(2560, 175000, 145000) == 2550);
	CHECK(waiting(2560, 145000, 175000) < 1400); // once half of the last ones of the other way are of this kind
	CHECK(waiting(2560, 145000, 175000) == 10);
	CHECK(waiting(2560, 145000, 145000) > 1200);
	CHECK(waiting(2560, 145000, 145000) == 2550);
	CHECK(waiting(2560, 145000, 145100) < 20);

	// Windows that are long in any way are all stopped for.
	CHECK(waiting(2560, 5000000, 5000000) < 20);
	CHECK(waiting(2560, 5000000, 4000000) == 0);
	CHECK(waiting(5120, 175000, 145000) > 2000); // short ones again

	// What says nothing about either way: no work of ours beside it, windows that are ignored, two at once of which the watcher saw one.
	struct blp_windows was = windows;
	domain.recorded = 0;
	CHECK(!window(1, 1));
	domain.recorded = 1;
	gpu.forced = 1;
	CHECK(!window(1, 1));
	gpu.forced = 0;
	open_window(LC);
	look();
	open_window(OTHER);
	now += 1000;
	CHECK(look() && !is_stopped_for()); // another slot's, beside it, waits too
	close_window(LC, 1);
	close_window(OTHER, 1);
	CHECK(!look());
	CHECK(!memcmp(was.count, windows.count, sizeof was.count));

	gpu.ignored = 1ull << LC; // longer than max_hold
	open_window(LC);
	CHECK(!look() && gpu.ignored == 1ull << LC);
	open_window(OTHER);
	CHECK(look() && gpu.ignored == gpu.higher);
	now += MOST;
	CHECK(!look() && gpu.ignored == 1ull << LC && is_stopped_for());
	close_window(LC, 1);
	close_window(OTHER, 1);
	CHECK(!look() && !is_stopped_for());

	begin(false, true);
	CHECK(waiting(1000, 175000, 145000) == 0);
	begin(true, false);
	CHECK(waiting(1000, 175000, 145000) == 0);
	return 0;
}
