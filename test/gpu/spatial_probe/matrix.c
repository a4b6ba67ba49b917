// matrix.c - each kind of latency-critical (LC) request beside each kind of best-effort (BE) work in each width: what a request takes
// beside what it takes alone, and what BE does beside what it does alone and without a limit.
#include "spatial.h"

struct limit {
	const char *name;
	enum how how;
	double width;
	double us;         // of a block; 0: 10
	unsigned kinds;    // of BE, as bits; 0: all
	bool same;         // the same priority for both
	char *settings[3]; // of the second process
};

#define CELL_SECONDS 1.0  // that one may take, whatever comes in between
#define BESIDE_GAP_US 120 // between requests, on average

static struct summary alone[LC_KINDS];
static double free_rate[BE_KINDS]; // blocks a us

static unsigned requests(int lc) { return plan.quick ? 3 : lc_is_long(lc) ? 250 : 500; }

// Half to one and a half of the mean, so that requests meet BE's blocks at all stages.
static void gap(void)
{
	static unsigned random = 1;
	random = random * 1664525u + 1013904223u;
	spin_us(BESIDE_GAP_US * (.5 + (double)(random >> 8) / (1 << 24)));
}

static struct summary ask(int lc, bool urgent)
{
	static struct samples s;
	double began = now_us();
	unsigned asked = 0;
	do {
		gap();
		double at = now_us();
		lc_request(lc, urgent);
		add(&s, now_us() - at);
	} while (++asked < requests(lc) && now_us() - began < CELL_SECONDS * 1e6);
	return sum_up(&s);
}

// Blocks a us since a count. Some must have ended for that.
static double rate_since(double blocks, double when)
{
	double now, then = be_blocks(&now);
	while (then <= blocks) {
		pause_us(100);
		then = be_blocks(&now);
	}
	return (then - blocks) / (now - when);
}

static double rate_alone(void)
{
	double when, blocks = be_blocks(&when);
	pause_us(plan.quick ? 1e3 : 60e3);
	return rate_since(blocks, when);
}

static void measure_alone(void)
{
	for (int lc = 0; lc < LC_KINDS; lc++)
		alone[lc] = ask(lc, true);
}

static bool is_asked(const struct limit *l, int be) { return !l->kinds || l->kinds >> be & 1; }

// In a quick run each kind of either comes in once.
static bool is_paired(int lc, int be) { return !plan.quick || lc % BE_KINDS == be; }

static void cell(const char *table, const struct limit *l, int lc, int be, double limited_rate)
{
	double when, blocks = be_blocks(&when), began = now_us();
	struct summary s = ask(lc, !l->same);
	double took = now_us() - began, rate = rate_since(blocks, when), busy = (double)s.count * alone[lc].p50 / took;
	row(table,
	    "limit=%s\tbe=%s\tlc=%s\tn=%zu\talone_p50=%.1f\talone_p99=%.1f\tp50=%.1f\tp99=%.1f\tmax=%.1f\tp50_x=%."
	    "3f\tp99_x=%.3f\t"
	    "left=%.3f\tbe_x=%.3f\tbe_alone_x=%.3f",
	    l->name, be_name[be], lc_name[lc], s.count, alone[lc].p50, alone[lc].p99, s.p50, s.p99, s.max,
	    s.p50 / alone[lc].p50, s.p99 / alone[lc].p99, busy < 1 ? 1 - busy : 0, rate / free_rate[be],
	    limited_rate / free_rate[be]);
}

static bool pass(const char *table, const struct limit *l, int be)
{
	struct be_plan p = {be, l->how, l->width, l->us ? l->us : 10};
	const char *why = time_for(3) ? be_begin(&p) : "no time";
	if (why) {
		not_measured(why, text("%s: %s, beside %s", table, l->name, be_name[be]));
		return false;
	}
	double rate = rate_alone();
	for (int lc = 0; lc < LC_KINDS; lc++)
		if (is_paired(lc, be)) {
			if (time_for(CELL_SECONDS + .5))
				cell(table, l, lc, be, rate);
			else
				not_measured("no time",
					     text("%s: %s, %s beside %s", table, l->name, lc_name[lc], be_name[be]));
		}
	be_end();
	return true;
}

static void measure_free(void)
{
	for (int be = 0; be < BE_KINDS; be++) {
		struct be_plan p = {be, FREE, 0, 10};
		const char *why = be_begin(&p);
		if (why)
			give_up("%s: %s", be_name[be], why);
		free_rate[be] = rate_alone();
		be_end();
	}
}

static void matrix(const char *table, const struct limit *limits, size_t count)
{
	lc_begin();
	be_use(NULL);
	measure_free();
	for (const struct limit *l = limits; l < limits + count; l++) {
		if (l->settings[0]) {
			be_use((char *const *)l->settings);
			fact(be_sees(), "%s: what the second process sees", l->name);
		}
		measure_alone();
		for (int be = 0; be < BE_KINDS; be++)
			if (is_asked(l, be) && !pass(table, l, be) && l->how == GREEN)
				break; // why is said once for a width
	}
	be_leave();
}

#define MATRIX(table, limits) matrix(table, limits, sizeof limits / sizeof *limits)
enum {
	FMA_AND_STREAM = 1 << 1 | 1 << 2,
	STREAMS = 1 << 2 | 1 << 6,
	FOUR_OR_MORE = 1 << 0 | 1 << 2 | 1 << 5 | 1 << 6
}; // fit on an SM

void section_beside(void)
{
	static const struct limit limits[] = {
		{.name = "priority"},
		{.name = "none", .same = true},
		{.name = "blocks of 100 us", .us = 100, .kinds = FMA_AND_STREAM},
		{.name = "blocks of 40 us", .us = 40, .kinds = FMA_AND_STREAM},
		{.name = "blocks of 2 us", .us = 2, .kinds = FMA_AND_STREAM},
	};
	MATRIX("beside", limits);
}

void section_cap(void)
{
	static const struct limit limits[] = {
		{.name = "1 an SM", .how = CAP},
		{.name = "half", .how = CAP, .width = .5, .kinds = FOUR_OR_MORE},
	};
	MATRIX("cap", limits);
}

void section_width(void)
{
	static const struct limit limits[] = {
		{.name = "64 SMs", .how = GREEN, .width = 64},   {.name = "16 SMs", .how = GREEN, .width = 16},
		{.name = "112 SMs", .how = GREEN, .width = 112}, {.name = "32 SMs", .how = GREEN, .width = 32},
		{.name = "96 SMs", .how = GREEN, .width = 96},
	};
	MATRIX("width", limits);
}

void section_persistent(void)
{
	static const struct limit limits[] = {
		{.name = "64 SMs' worth", .how = PERSISTENT, .width = 64},
		{.name = "16 SMs' worth", .how = PERSISTENT, .width = 16},
		{.name = "112 SMs' worth", .how = PERSISTENT, .width = 112},
	};
	MATRIX("persistent", limits);
}

void section_windows(void)
{
	static const struct limit limits[] = {
		{.name = "1 wave", .how = WINDOW, .width = 1},
		{.name = "half a wave", .how = WINDOW, .width = .5},
		{.name = "4 waves", .how = WINDOW, .width = 4},
	};
	MATRIX("windows", limits);
}

// A block that sleeps for as long as it works asks for half of the memory's bandwidth.
void section_throttle(void)
{
	static const struct limit limits[] = {
		{.name = "10 us asleep", .how = SLEEP, .width = 10, .kinds = STREAMS},
		{.name = "40 us asleep", .how = SLEEP, .width = 40, .kinds = STREAMS},
	};
	MATRIX("throttle", limits);
}

void section_rivals(void)
{
	static const struct limit limits[] = {
		{.name = "client priority", .settings = {"CUDA_MPS_CLIENT_PRIORITY=1"}},
		{.name = "50 %", .settings = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50"}},
		{.name = "25 %", .settings = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25"}},
		{.name = "75 %", .settings = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=75"}},
	};
	if (under_mps)
		MATRIX("rivals", limits);
	else
		not_measured("not here: an MPS server; see --mps", "rivals");
}

// How the work itself scales with SMs, alone: what is bound by memory stops gaining early.
void section_scaling(void)
{
	be_use(NULL);
	measure_free();
	for (int sms = 8; sms < gpu.sms; sms += sms < 32 ? 8 : 16)
		for (int be = 0; be < BE_KINDS; be++) {
			struct be_plan p = {be, GREEN, sms, 10};
			const char *why = time_for(2) ? be_begin(&p) : "no time";
			if (why) {
				not_measured(why, text("scaling, %d SMs", sms));
				break;
			}
			row("scaling", "sms=%d\tbe=%s\tbe_x=%.3f", sms, be_name[be], rate_alone() / free_rate[be]);
			be_end();
		}
	be_leave();
}
