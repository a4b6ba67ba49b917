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
	gp_forget_closed(&gpu); // as the watcher does
	uint64_t waits = blp_put_off(&windows, &gpu, now);
	CHECK(windows.wanted == !!gp_windows_open(&segment, gpu.higher & ~gpu.ignored)); // for the watcher and for all others
	CHECK(!waits || !windows.wanted);
	return waits;
}

static bool is_stopped_for(void) { return windows.wanted; }

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
	CHECK(look() == 0 && is_stopped_for());            // then it comes
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
	const int most = 2560 - 2560 / 257 - 1, least = 2560 / 257; // of so many windows
	begin(true, true);
	CHECK(waiting(96, 175000, 145000) == 48); // both ways
	CHECK(waiting(2560, 175000, 145000) >= most);
	CHECK(waiting(8000, 145000, 175000) < 7000); // once half of the last ones of the other way are of this kind
	CHECK(waiting(2560, 145000, 175000) <= least + 1);
	CHECK(waiting(24000, 145000, 145000) > 6000);
	CHECK(waiting(2560, 145000, 145000) >= most);
	CHECK(waiting(2560, 145000, 147800) >= most);  // longer by 1.9 %
	CHECK(waiting(16000, 145000, 149000) < 12000); // by 2.8 %
	CHECK(waiting(2560, 145000, 149000) <= least + 1);

	// Windows that are long in any way are all stopped for.
	CHECK(waiting(2560, 5000000, 5000000) < 40);
	CHECK(waiting(2560, 5000000, 4000000) == 0);
	CHECK(waiting(24000, 175000, 145000) > 6000); // short ones again

	// Long and short windows take turns.
	begin(true, true);
	int waits = 0;
	for (int i = 0; i < 2560; i++)
		waits += i & 1 ? window(100000, 140000) : window(600000, 800000);
	CHECK(waits < 16 + 2560 / 4);
	// A rare long one is worse by more than what the short ones gain.
	begin(true, true);
	waits = 0;
	for (int i = 0; i < 2560; i++)
		waits += i % 5 ? window(100000, 99000) : window(500000, 800000);
	CHECK(waits < 2560 / 4);

	// Windows take turns in fours, and are longer where stops wait.
	begin(true, true);
	waits = 0;
	for (int i = 0; i < 1000; i++)
		waits += i & 2 ? window(100000, 130000) : window(600000, 780000);
	CHECK(waits < 40);
	// The first windows are long, as they load code.
	begin(true, true);
	CHECK(waiting(40, 3000000, 3000000) <= 8);
	CHECK(waiting(300, 600000, 500000) > 100);

	// A few that were kept up are no reason.
	begin(true, true);
	waits = 0;
	for (int i = 0; i < 2560; i++)
		waits += window(i % 9 ? 100000 : 900000, 120000);
	CHECK(waits < 100);

	// A clear difference decides soon, and chance rarely does: windows vary by 40 us of 600.
	begin(true, true);
	CHECK(waiting(16, 145000, 175000) == 8 && waiting(200, 145000, 175000) <= 1);
	uint32_t random = 1;
	waits = 0;
	for (int run = 0; run < 50; run++) {
		begin(true, true);
		for (int i = 0; i < 640; i++) {
			random = random * 1664525 + 1013904223;
			uint64_t lasts = 560000 + (random >> 8) % 80000;
			waits += window(lasts, lasts);
		}
	}
	CHECK(waits > 50 * 640 * 90 / 100);

	// Another process has the slot.
	begin(true, true);
	waiting(100, 175000, 145000);
	segment.slot[LC].started_ns++;
	CHECK(!window(175000, 145000) && windows.history[LC].count[BLP_STOPS] == 1 &&
	      windows.history[LC].count[BLP_WAITS] == 0);

	// The watcher was busy with a stop while others came and went.
	begin(true, true);
	segment.slot[LC].started_ns++;
	open_window(LC);
	CHECK(!look());
	for (int i = 0; i < 3; i++) {
		close_window(LC, 100000 * (i + 1));
		open_window(LC);
	}
	close_window(LC, 400000);
	CHECK(!look() && windows.history[LC].count[BLP_STOPS] == 1 && windows.history[LC].lasted_ns[BLP_STOPS][0] == 250000);
	segment.slot[LC].windows = 7; // it lies
	open_window(LC);
	CHECK(look() == MOST);
	segment.slot[LC].windows = 7;
	close_window(LC, 1);
	CHECK(!look() && windows.history[LC].count[BLP_STOPS] == 1 && !windows.history[LC].count[BLP_WAITS]);

	// Windows say nothing about either way without work of ours beside them, or if nobody heeds them.
	waiting(2560, 175000, 145000);
	struct blp_history was = windows.history[LC];
	domain.recorded = 0;
	CHECK(waiting(600, 1, 1) == 0);
	domain.recorded = 1;
	gpu.forced = 1;
	CHECK(waiting(600, 1, 1) == 0);
	gpu.forced = 0;
	CHECK(!memcmp(&was, &windows.history[LC], sizeof was));

	// A window closes behind the first look at it, and opens again.
	open_window(LC);
	CHECK(look() == MOST && gpu.ignored == 1ull << LC && gpu.passed == gpu.ignored && gpu.passed_until_ns == now + MOST);
	gp_forget_closed(&gpu);
	close_window(LC, 145000);
	CHECK(!blp_put_off(&windows, &gpu, now) && !gpu.ignored);
	open_window(LC);
	CHECK(look() == MOST);

	// Another one's opens beside it, whose stops do not wait. Such windows say nothing.
	was = windows.history[LC];
	open_window(OTHER);
	CHECK(!look() && is_stopped_for() && !gpu.ignored);
	close_window(OTHER, 1);
	CHECK(!look() && is_stopped_for());
	close_window(LC, 1);
	CHECK(!look() && !memcmp(&was, &windows.history[LC], sizeof was));

	open_window(LC); // both at once
	open_window(OTHER);
	CHECK(!look() && is_stopped_for());
	close_window(LC, 1);
	close_window(OTHER, 1);
	CHECK(!look() && !memcmp(&was, &windows.history[LC], sizeof was));

	gpu.ignored = 1ull << OTHER; // longer than max_hold
	open_window(OTHER);
	CHECK(!look() && gpu.ignored == 1ull << OTHER && !is_stopped_for());
	open_window(LC);
	CHECK(look() == MOST && gpu.ignored == gpu.higher);
	now += MOST;
	CHECK(!look() && gpu.ignored == 1ull << OTHER && is_stopped_for());
	close_window(LC, 1);
	close_window(OTHER, 1);
	CHECK(!look() && !is_stopped_for() && !gpu.ignored);

	begin(false, true);
	CHECK(waiting(1000, 175000, 145000) == 0);
	begin(true, false);
	CHECK(waiting(1000, 175000, 145000) == 0);
	return 0;
}
