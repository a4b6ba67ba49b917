// width_test.c - with preempt/gpu/width.c.
//
// Programs whose windows suffer in some way from the SMs that they leave: how soon width.c learns their level, and how many slow windows
// that takes.
#include "preempt/gpu/width.h"
#include "test/units/check.h"

#include <math.h>
#include <string.h>

enum { MS = 1000000 };

// A kind of request: how long its windows last alone, and times what at each level.
struct request {
	const char *name;
	double alone_ns, cost[GP_WIDTH_LEVELS];
	double noise, rare,
		times;       // Windows vary by noise; the part rare of all takes so many times as long, at any level.
	uint32_t level;      // The level that it is to be found at.
	double leaves, slow; // At least this part of all windows leave that; at most this part take 1.10 times as long.
};

static struct gp_widths all;
// The same windows, of more operations: as long as all have as many, nothing else is decided.
static struct gp_widths of_3, of_1000;
static struct {
	struct gp_widths *of;
	uint64_t operations;
} more[] = {{&of_3, 3}, {&of_1000, 1000}};

static void forget(void)
{
	memset(&all, 0, sizeof all);
	memset(&of_3, 0, sizeof of_3);
	memset(&of_1000, 0, sizeof of_1000);
}

static double part(void) { return (double)random_number() / (double)(1ull << 53); }

// One window; returns the level that it left.
static uint32_t window(const struct request *r, uint64_t key, double *lasted)
{
	uint32_t level = gp_width_opens(&all, key);
	CHECK(level < GP_WIDTH_LEVELS);
	*lasted = r->cost[level] * (1 + r->noise * (part() + part() + part() + part() - 2) * 1.7); // about normal
	if (part() < r->rare)
		*lasted *= r->times;
	gp_width_closes(&all, (uint64_t)(r->alone_ns * *lasted), 1, true);
	CHECK(all.kinds <= GP_WIDTH_KINDS);
	for (int i = 0; i < 2; i++) {
		CHECK(gp_width_opens(more[i].of, key) == level);
		gp_width_closes(more[i].of, (uint64_t)(r->alone_ns * *lasted), more[i].operations, true);
		CHECK(more[i].of->kinds == all.kinds && more[i].of->too_wide == all.too_wide);
	}
	return level;
}

static void learn(const struct request *r)
{
	enum { SOON = 50, WINDOWS = 20000 };
	uint32_t left = 0, slow = 0, first = 0;
	double lasted;

	forget();
	for (uint32_t i = 1; i <= WINDOWS; i++) {
		uint32_t level = window(r, 42, &lasted);
		if (all.kinds && !first)
			first = i;
		if (i == SOON && r->noise + r->rare == 0)
			CHECK(all.kinds == 1 && all.width[0].level == r->level);
		left += level == r->level;
		slow += lasted > 1.10;
	}
	printf("%s: known after %u windows, %.3f leave level %u, %.4f are slow, %llu times too wide\n", r->name, first,
	       (double)left / WINDOWS, r->level, (double)slow / WINDOWS, (unsigned long long)all.too_wide);
	CHECK(first && (first <= SOON || r->noise > 0.1));
	CHECK(left >= r->leaves * WINDOWS && slow <= r->slow * WINDOWS);
}

static const struct request requests[] = {
	{"indifferent", 2 * MS, {1, 1, 1, 1}, 0, 0, 1, 3, 0.95, 0},
	{"nearly indifferent", 2 * MS, {1, 1.01, 1.02, 1.035}, 0, 0, 1, 3, 0.95, 0},
	{"suffers at any width", 2 * MS, {1, 1.3, 1.5, 1.8}, 0, 0, 1, 0, 0.99, 0.01},
	{"suffers a little at any width", 2 * MS, {1, 1.06, 1.07, 1.08}, 0, 0, 1, 0, 0.98, 0},
	{"leaves 1/4", 2 * MS, {1, 1.01, 1.02, 1.25}, 0, 0, 1, 2, 0.94, 0.01},
	{"leaves 1/8", 2 * MS, {1, 1.02, 1.2, 4}, 0, 0, 1, 1, 0.94, 0.01},
	{"too short", 390e3, {1, 1, 1, 1}, 0, 0, 1, 0, 1, 0},
	{"long", 50e9, {1, 1, 1, 1}, 0, 0, 1, 3, 0.95, 0},
	{"for years, leaves 1/4", 1.8e17, {1, 1.01, 1.02, 1.25}, 0, 0, 1, 2, 0.94, 0.01},
	{"varies by 3 %, indifferent", 2 * MS, {1, 1, 1.01, 1.01}, 0.03, 0, 1, 3, 0.8, 0.01},
	{"varies by 3 %, leaves 1/4", 2 * MS, {1, 1, 1, 1.2}, 0.03, 0, 1, 2, 0.8, 0.01},
	{"varies by 3 %, suffers", 2 * MS, {1, 1.2, 1.3, 1.8}, 0.03, 0, 1, 0, 0.98, 0.01},
	{"varies by 15 %, suffers", 2 * MS, {1, 1.4, 1.6, 1.8}, 0.15, 0, 1, 0, 0.995, 1},
	{"varies by 30 %, suffers", 2 * MS, {1, 1.4, 1.6, 1.8}, 0.30, 0, 1, 0, 0.99, 1},
	{"1 of 200 takes twice as long, indifferent", 2 * MS, {1, 1, 1, 1}, 0.01, 0.005, 2, 3, 0.7, 0.01},
	{"1 of 200 takes twice as long, suffers", 2 * MS, {1, 1.2, 1.3, 1.8}, 0.01, 0.005, 2, 0, 0.98, 0.01},
};

// A kind whose windows are others from now on leaves nothing within 5 of them, and is then learnt anew.
static void change(void)
{
	static const struct request before = {"", 2 * MS, {1, 1, 1, 1}, 0.01, 0, 1, 3, 0, 0};
	static const struct request after[] = {
		{"twice as long", 4 * MS, {1, 1, 1, 1}, 0.01, 0, 1, 3, 0, 0},
		{"a fifth longer", 2.4 * MS, {1, 1, 1, 1}, 0.01, 0, 1, 3, 0, 0},
		{"half as long", 1 * MS, {1, 1, 1, 1}, 0.01, 0, 1, 3, 0, 0},
		{"half as long, suffers", 1 * MS, {1, 1.2, 1.4, 1.6}, 0.01, 0, 1, 0, 0, 0},
		{"suffers now", 2 * MS, {1, 1.2, 1.4, 1.6}, 0.01, 0, 1, 0, 0, 0},
		{"twice as long, leaves 1/8", 4 * MS, {1, 1, 1.3, 1.6}, 0.01, 0, 1, 1, 0, 0},
		{"too short", 300e3, {1, 1, 1, 1}, 0.01, 0, 1, 0, 0, 0},
	};
	for (size_t i = 0; i < sizeof after / sizeof *after; i++) {
		for (uint32_t known = 33; known < 300; known++) { // also beside windows that measure the yardstick
			double lasted;
			uint32_t fell = 0;
			forget();
			for (uint32_t j = 0; j < known; j++)
				window(&before, 7, &lasted);
			CHECK(all.width[0].level == 3);
			for (uint32_t j = 1; j <= 150; j++) {
				window(&after[i], 7, &lasted);
				if (!fell && !all.width[0].level)
					fell = j;
				if (j == 2 && after[i].alone_ns > 3 * MS) // one of the two may have measured the yardstick
					CHECK(fell);
				if (j == 5 && !fell) {
					printf("%s, after %u windows: it goes on leaving level %u\n", after[i].name,
					       known, all.width[0].level);
					exit(1);
				}
			}
			if (all.width[0].level != after[i].level || !all.kinds)
				printf("%s, after %u windows: level %u, %llu known\n", after[i].name, known,
				       all.width[0].level, (unsigned long long)all.kinds);
			CHECK(all.width[0].level == after[i].level && all.kinds == 1);
		}
	}
}

// Indifferent requests whose windows vary by 1 % at most change: the new ones leave as much again within 5 windows, not counting one
// that measures the yardstick in between.
static void back(void)
{
	static const struct request before = {"", 2 * MS, {1, 1, 1, 1}, 0.0029, 0, 1, 3, 0, 0};
	static const struct request after[] = {
		{"twice as long", 4 * MS, {1, 1, 1, 1}, 0.0029, 0, 1, 3, 0, 0},
		{"a fifth longer", 2.4 * MS, {1, 1, 1, 1}, 0.0029, 0, 1, 3, 0, 0},
		{"half as long", 1 * MS, {1, 1, 1, 1}, 0.0029, 0, 1, 3, 0, 0},
	};
	for (size_t i = 0; i < sizeof after / sizeof *after; i++)
		for (uint32_t known = 42; known < 300; known++) { // the level has stood
			double lasted;
			uint32_t control = 0;
			forget();
			for (uint32_t j = 0; j < known; j++)
				window(&before, 7, &lasted);
			CHECK(all.width[0].level == 3);
			for (uint32_t j = 1; j <= 5; j++)
				control |= (known + j) % 32 == 0;
			for (uint32_t j = 1; j <= 5 + control; j++)
				window(&after[i], 7, &lasted);
			if (all.width[0].level != 3)
				printf("%s, after %u windows: level %u\n", after[i].name, known, all.width[0].level);
			CHECK(all.width[0].level == 3 && !all.width[0].before.most);
		}
}

// Another request may leave what the one before could not, however often that was tried.
static void other(void)
{
	static const struct request before = {"", 2 * MS, {1, 1, 1, 1.3}, 0, 0, 1, 2, 0, 0};
	static const struct request after = {"", 3 * MS, {1, 1, 1, 1}, 0, 0, 1, 3, 0, 0};
	double lasted;

	forget();
	for (int i = 0; i < 1000; i++)
		window(&before, 1, &lasted);
	CHECK(all.width[0].level == 2 && all.width[0].retry_after > 1100);
	for (int i = 0; i < 50; i++)
		window(&after, 1, &lasted);
	CHECK(all.width[0].level == 3 && all.kinds == 1);
}

// Its clocks fall by a fifth, and rise again: that is no reason to leave less for long.
static void drift(void)
{
	struct request r = {"", 2 * MS, {1, 1, 1, 1}, 0.01, 0, 1, 3, 0, 0};
	uint32_t left = 0;
	double lasted;

	forget();
	for (uint32_t i = 0; i < 6000; i++) {
		r.alone_ns = 2 * MS * (1 + 0.2 * (i < 3000 ? i : 6000 - i) / 3000);
		left += window(&r, 1, &lasted) == 3;
	}
	printf("drift: %.3f leave level 3\n", left / 6000.0);
	CHECK(left > 0.85 * 6000);
}

// A machine makes windows slow now and then, whatever they leave: the level is taken up again, but not twice.
static void chance(void)
{
	static const struct request indifferent = {"", 2 * MS, {1, 1, 1, 1}, 0, 0, 1, 3, 0, 0};
	static const struct {
		uint32_t at, slow;
		double times;
	} hitches[] = {{27, 1, 4}, {40, 1, 4}, {100, 3, 1.3}, {100, 1, 4}};
	double lasted;

	for (size_t i = 0; i < sizeof hitches / sizeof *hitches; i++)
		for (int twice = 0; twice < 2; twice++) {
			forget();
			for (uint32_t j = 0; j < hitches[i].at; j++)
				window(&indifferent, 1, &lasted);
			for (int hitch = 0; hitch <= twice; hitch++) {
				struct request slow = indifferent;
				CHECK(all.width[0].level == 3);
				slow.alone_ns *= hitches[i].times;
				for (uint32_t j = 0; j < hitches[i].slow; j++)
					window(&slow, 1, &lasted);
				CHECK(all.width[0].level == 0);
				for (int j = 0; j < 12; j++)
					window(&indifferent, 1, &lasted);
			}
			CHECK(all.width[0].level == (twice ? 2 : 3));
		}
}

// The windows of a kind take as long as before, but would take less alone: the yardstick follows.
static void hidden(void)
{
	static const struct request before = {"", 2 * MS, {1, 1, 1, 1}, 0, 0, 1, 3, 0, 0};
	static const struct request suffers = {"", 1.8 * MS, {1, 1, 1, 1.1}, 0, 0, 1, 2, 0, 0};
	static const struct request not_short = {"", 405e3, {1, 1, 1, 1}, 0, 0, 1, 3, 0, 0};
	static const struct request too_short = {"", 395e3, {1, 1, 1, 1}, 0, 0, 1, 0, 0, 0};
	double lasted;

	for (int i = 0; i < 2; i++) {
		forget();
		for (int j = 0; j < 100; j++)
			window(i ? &not_short : &before, 1, &lasted);
		CHECK(all.width[0].level == 3);
		for (int j = 0; j < 400; j++)
			window(i ? &too_short : &suffers, 1, &lasted);
		CHECK(all.width[0].level == (i ? 0 : 2));
	}
}

// A level that was too wide is tried again, seldom, and taken up when it is not any more.
static void again(void)
{
	struct request r = {"", 2 * MS, {1, 1, 1.3, 1.3}, 0, 0, 1, 1, 0, 0};
	uint32_t tries = 0, last = 0, gap = 0;
	double lasted;

	forget();
	for (uint32_t i = 1; i <= 20000; i++) {
		if (window(&r, 1, &lasted) < 2)
			continue;
		if (i > last + 10) { // not the second slow one
			CHECK(!last || i - last >= gap);
			gap = last ? i - last : 250;
			tries++;
		}
		last = i;
	}
	CHECK(tries >= 6 && tries <= 9 && all.width[0].level == 1);
	r.cost[2] = r.cost[3] = 1;
	uint32_t waited = 0;
	while (window(&r, 1, &lasted) != 3)
		CHECK(++waited < 4200);
	for (int i = 0; i < 64; i++)
		window(&r, 1, &lasted);
	CHECK(all.width[0].level == 3 && all.kinds == 1);
	// It has stood: that it was too wide is forgotten, and how often.
	r.cost[2] = r.cost[3] = 1.3;
	for (int i = 0; i < 100; i++)
		window(&r, 1, &lasted);
	CHECK(all.width[0].level == 1);
	r.cost[2] = r.cost[3] = 1;
	for (waited = 0; window(&r, 1, &lasted) != 3;)
		CHECK(++waited < 600);
}

// A window in which four operations take 2 ms alone: when it falls while it is open, and what follows.
static void falls(void)
{
	static const struct {
		uint64_t busy_ns, operations;
		bool falls, slow;
	} looks[] = {
		{1, 1, false, false},         {2.9 * MS, 1, false, false}, // the rest may come in no time
		{3.1 * MS, 1, true, true},    {2.9 * MS, 4, false, false}, {3.1 * MS, 4, true, true},
		{3.7 * MS, 5, false, false},  {3.8 * MS, 5, true, true},   {5.9 * MS, 8, false, false},
		{6.1 * MS, 8, true, true},    {5.9 * MS, 10, true, false}, // nothing is known of so many
		{1, UINT64_MAX, true, false},
	};
	for (size_t i = 0; i < sizeof looks / sizeof *looks; i++)
		for (int left = 0; left < 2; left++) {
			forget();
			CHECK(!gp_width_falls(&all, 1000ull * MS, 1)); // none is open
			for (int j = 0; j < (left ? 40 : 5); j++) {
				gp_width_opens(&all, 1);
				CHECK(!gp_width_falls(&all, 2 * MS, 4));
				gp_width_closes(&all, 2 * MS, 4, true);
			}
			CHECK(gp_width_opens(&all, 1) == (left ? 3 : 0));
			CHECK(gp_width_falls(&all, looks[i].busy_ns, looks[i].operations) == (left && looks[i].falls));
			// Without best effort beside it, its end is not slow.
			uint64_t n = looks[i].operations < 4 ? 4 : looks[i].operations;
			gp_width_closes(&all, n < 11 ? n * MS / 2 : 2 * MS, n, true);
			bool gone = left && looks[i].slow;
			CHECK(all.width[0].level == (left && !gone ? 3 : 0) && (!gone || all.width[0].before.most));
			CHECK(gp_width_opens(&all, 1) == (left && !looks[i].falls ? 3 : 0));
			gp_width_closes(&all, 2 * MS, 4, true);
		}
}

static void bounds(void)
{
	static const struct request indifferent = {"", 2 * MS, {1, 1, 1, 1}, 0, 0, 1, 3, 0, 0};
	static const uint64_t durations[] = {0, 1, 99, 400000, 2000000, UINT64_MAX / 100, UINT64_MAX - 1, UINT64_MAX};
	static const uint64_t numbers[] = {0, 1, 1, 2, 7, 1000, UINT32_MAX, UINT64_MAX};
	double lasted;

	// As many kinds as there is room for keep what they learnt; of more, the one goes that was used least recently.
	forget();
	for (int i = 0; i < 50; i++)
		for (uint64_t key = 1; key <= GP_WIDTH_KINDS; key++)
			window(&indifferent, key, &lasted);
	CHECK(all.kinds == GP_WIDTH_KINDS);
	CHECK(gp_width_opens(&all, 2) == 3 && gp_width_opens(&all, 1) == 3); // 3 was used least recently
	CHECK(gp_width_opens(&all, 1000) == 0 && all.kinds == GP_WIDTH_KINDS - 1);
	CHECK(gp_width_opens(&all, 1) == 3 && gp_width_opens(&all, 4) == 3 && gp_width_opens(&all, 3) == 0);
	CHECK(all.kinds == GP_WIDTH_KINDS - 2 && gp_width_opens(&all, 0) == 3); // the same as 1

	// Windows that are not judged teach nothing, nor does one that is closed twice.
	forget();
	for (int i = 0; i < 1000; i++) {
		CHECK(gp_width_opens(&all, 9) == 0);
		gp_width_closes(&all, 2 * MS, 1, false);
		gp_width_closes(&all, 2 * MS, 1, true);
	}
	CHECK(all.kinds == 0 && all.width[0].alone.count == 0);
	forget();
	for (int i = 0; i < 40; i++)
		window(&indifferent, 9, &lasted);
	uint32_t level = all.width[0].level;
	for (int i = 0; i < 1000; i++) {
		gp_width_opens(&all, 9);
		gp_width_closes(&all, 1000 * MS, 1, false);
	}
	CHECK(level == 3 && all.width[0].level == 3);

	// Windows of any length and number of operations.
	forget();
	for (int i = 0; i < 300000; i++) {
		CHECK(gp_width_opens(&all, random_number() % 70) < GP_WIDTH_LEVELS);
		gp_width_closes(&all, durations[random_number() % 8], numbers[random_number() % 8],
				random_number() % 8 != 0);
		CHECK(all.kinds <= GP_WIDTH_KINDS);
	}

	static const uint32_t sms[][5] = {
		{132, 0, 16, 32, 64}, {108, 0, 8, 24, 48}, {16, 0, 0, 0, 8}, {0, 0, 0, 0, 0}, {148, 0, 16, 32, 72}};
	for (size_t i = 0; i < sizeof sms / sizeof *sms; i++)
		for (uint32_t l = 0; l < GP_WIDTH_LEVELS; l++)
			CHECK(gp_width_sms(l, sms[i][0]) == sms[i][l + 1]);
}

// Requests that come at random and are served one after another, so that windows hold several of them, with gaps where none is there.
struct traffic {
	const char *name;
	double load;         // The GPU's load alone.
	double times;        // How many times as long a request takes beside best effort, at any width.
	double noise;        // Of a request.
	double mixed;        // This part of all requests takes three times as long.
	uint64_t operations; // Of a request.
	uint32_t level;      // The level that windows are to leave, but for the first few.
	double leaves;       // At least this part of windows leave that.
};

static void serve(const struct traffic *t)
{
	enum { WINDOWS = 20000, LEARNING = 100 };
	const double service = 2 * MS, stop = 0.15 * MS, grace = 0.5 * MS;
	const double apart = service * (1 + 2 * t->mixed) / t->load;
	double arrives = 0, requests = 0, beside = 0;
	uint32_t left = 0, most = 0, fell = 0;

	forget();
	for (uint32_t i = 0; i < WINDOWS; i++) {
		uint32_t level = gp_width_opens(&all, 1), leaves = level, n = 0;
		double opened = arrives, now = opened + stop, gaps = 0;
		while (arrives < now + grace) {
			if (arrives > now) {
				gaps += arrives - now;
				now = arrives;
			}
			double is = service * (1 + t->noise * (part() + part() + part() + part() - 2) * 1.7);
			CHECK(n < 100000); // beside best effort it may never end
			now += is * (part() < t->mixed ? 3 : 1) * (leaves ? t->times : 1);
			arrives += -log(1 - part()) * apart;
			n++;
			beside += leaves > 0;
			// The watcher looks.
			if (leaves && gp_width_falls(&all, (uint64_t)(now - opened - gaps), n * t->operations)) {
				leaves = 0;
				fell++;
			}
		}
		gp_width_closes(&all, (uint64_t)(now - opened - gaps), n * t->operations, true);
		if (i >= LEARNING)
			left += level == t->level;
		requests += n;
		most = n > most ? n : most;
	}
	printf("%s, load %.2f: %.3f leave level %u, %u fell in the middle, %llu times too wide, %.1f requests, %u at "
	       "most, %.3f of them leave something\n",
	       t->name, t->load, (double)left / (WINDOWS - LEARNING), t->level, fell, (unsigned long long)all.too_wide,
	       requests / WINDOWS, most, beside / requests);
	CHECK(left >= t->leaves * (WINDOWS - LEARNING));
	CHECK(t->level ? beside >= 0.7 * requests : beside <= 0.05 * requests);
}

static const struct traffic streams[] = {
	{"indifferent", 0.5, 1, 0, 0, 1, 3, 0.8},
	{"indifferent", 0.7, 1, 0, 0, 1, 3, 0.8},
	{"indifferent", 0.9, 1, 0, 0, 1, 3, 0.8},
	{"varies by 3 %, indifferent", 0.5, 1, 0.03, 0, 3, 3, 0.8},
	{"varies by 3 %, indifferent", 0.7, 1, 0.03, 0, 3, 3, 0.8},
	{"varies by 3 %, indifferent", 0.9, 1, 0.03, 0, 3, 3, 0.8},
	{"suffers", 0.5, 1.2, 0.01, 0, 1, 0, 0.98},
	{"suffers", 0.7, 1.2, 0.01, 0, 1, 0, 0.98},
	{"suffers", 0.9, 1.2, 0.01, 0, 1, 0, 0.98},
	{"suffers a little", 0.5, 1.07, 0.01, 0, 3, 0, 0.98},
	{"suffers a little", 0.7, 1.07, 0.01, 0, 3, 0, 0.98},
	{"suffers a little", 0.9, 1.07, 0.01, 0, 3, 0, 0.98},
	{"short and long ones", 0.5, 1, 0.01, 0.5, 1, 0, 0.95},
	{"short and long ones", 0.7, 1, 0.01, 0.5, 1, 0, 0.95},
	{"short and long ones", 0.9, 1, 0.01, 0.5, 1, 0, 0.95},
	{"short and long ones, suffers", 0.5, 1.2, 0.01, 0.5, 1, 0, 0.95},
	{"short and long ones, suffers", 0.7, 1.2, 0.01, 0.5, 1, 0, 0.95},
	{"short and long ones, suffers", 0.9, 1.2, 0.01, 0.5, 1, 0, 0.95},
};

int main(void)
{
	for (size_t i = 0; i < sizeof requests / sizeof *requests; i++)
		learn(&requests[i]);
	for (size_t i = 0; i < sizeof streams / sizeof *streams; i++)
		serve(&streams[i]);
	change();
	back();
	other();
	drift();
	hidden();
	chance();
	again();
	falls();
	bounds();
	return 0;
}
