// gate_share_test.c - with preempt/gpu/gate_share.c.
//
// Launches that would wait at the gate for ever get their share and no more, whatever others' pages say of windows.
#define _GNU_SOURCE
#include "preempt/gpu/gpu.h"
#include "test/units/check.h"

#include <string.h>

enum { MS = 1000000, SECONDS = 20 };

struct gp_settings gp_settings;
static struct gp_gpu gpu;

// The part of the time that launches of so many threads pass while a window is open at every look, each millisecond.
static double passes(int threads)
{
	uint64_t now = 5000ull * MS, ran = 0, looks = 0;
	bool waits[4] = {false};

	memset(&gpu, 0, sizeof gpu);
	gpu.paged = 1;
	for (uint64_t end = now + SECONDS * 1000ull * MS; now < end; now += MS) {
		bool pass = false;
		for (int i = 0; i < threads; i++) {
			if (!waits[i]) {
				waits[i] = gp_gate_enter(&gpu, now);
			} else if (gp_gate_owes(&gpu, now)) {
				gp_gate_leave(&gpu, now);
				waits[i] = false;
			}
			pass |= !waits[i];
		}
		ran += pass;
		looks++;
	}
	for (int i = 0; i < threads; i++)
		if (waits[i])
			gp_gate_leave(&gpu, now);
	CHECK(gpu.owed.waiting == 0);
	return (double)ran / (double)looks;
}

int main(void)
{
	gp_settings.max_hold_ns = 100 * MS;
	static const double shares[] = {0.03, 0.2, 0.5};
	for (size_t i = 0; i < sizeof shares / sizeof shares[0]; i++)
		for (int threads = 1; threads <= 4; threads++) {
			gp_settings.own_share = shares[i];
			double got = passes(threads);
			CHECK(got > shares[i] * 0.9 && got < shares[i] * 1.1 + 0.02); // a look is a millisecond
		}
	gp_settings.own_share = 0; // higher levels may starve it
	CHECK(passes(2) == 0);

	// It is owed nothing for windows that leave it more than its share, nor before it has waited as long as one window may last.
	gp_settings.own_share = 0.1;
	passes(0);
	uint64_t now = 100000ull * MS;
	for (int i = 0; i < 1000; i++, now += 20 * MS) {
		CHECK(gp_gate_enter(&gpu, now));
		CHECK(!gp_gate_owes(&gpu, now + 10 * MS));
		gp_gate_leave(&gpu, now + 10 * MS);
	}
	now += 1000 * MS;
	CHECK(gp_gate_enter(&gpu, now) && !gp_gate_owes(&gpu, now + 99 * MS) && gp_gate_owes(&gpu, now + 101 * MS));
	CHECK(!gp_gate_enter(&gpu, now + 102 * MS)); // nor do others wait
	gp_gate_leave(&gpu, now + 102 * MS);
	CHECK(gp_gate_enter(&gpu, now + 120 * MS)); // 101 / 9 ms are over
	gp_gate_leave(&gpu, now + 120 * MS);

	// Processes of one user trust each other.
	passes(0);
	gpu.paged = 0;
	now += 1000 * MS;
	CHECK(gp_gate_enter(&gpu, now) && !gp_gate_owes(&gpu, now + 10000ull * MS));
	return 0;
}
