// harm_test.c - with preempt/gpu/harm.c preempt/gpu/width.c.
//
// Kernels beside requests that leave SMs; some make requests slow on any number of SMs. The tests check which are held back, how soon,
// how many slow windows that takes, and how much requests leave in the end.
#include "preempt/gpu/width.h"
#include "test/units/check.h"

#include <string.h>

enum { MS = 1000000, KERNELS = 6 };

static struct gp_widths widths;
static struct gp_harm harm;

static double part(void) { return (double)random_number() / (double)(1ull << 53); }

// A best-effort program beside a kind of request.
struct program {
	const char *name;
	uint32_t kernels;
	double cost[KERNELS]; // How many times as long a window takes if the kernel runs beside it.
	double beside;        // This part of the kernels runs, or is held back, in a window.
	double noise;         // Windows vary by this part.
	double any;           // How many times as long a window takes if anything runs beside it.
};

struct count { uint32_t ran[KERNELS], held[KERNELS], slow, left; };

// One window, as window.c and preempt/blp/narrow.c have it. The process beside it answers before the next one opens.
static void window(const struct program *p, struct count *count)
{
	uint32_t level = gp_width_opens(&widths, 42);
	double lasted = 1;
	bool any = false, idle = true;

	for (uint32_t k = 0; level && k < p->kernels; k++) {
		if (part() >= p->beside)
			continue;
		if (gp_harm_holds(&harm, k + 1)) {
			count->held[k]++;
			continue;
		}
		gp_harm_ran(&harm, k + 1);
		count->ran[k]++;
		any = true;
		if (p->cost[k] > lasted)
			lasted = p->cost[k];
	}
	idle = !harm.count && harm.kept;
	if (any && p->any > lasted)
		lasted = p->any;
	lasted *= 1 + p->noise * (part() + part() + part() + part() - 2) * 1.7;
	enum gp_verdict verdict = gp_width_verdict(&widths, (uint64_t)(lasted * MS), 1);
	CHECK((verdict != GP_UNJUDGED) == (level != 0));
	gp_width_closes(&widths, (uint64_t)(lasted * MS), 1, !(verdict == GP_GOOD && idle));
	count->slow += lasted > 1.10;
	count->left += level != 0;
	uint64_t found = harm.found;
	bool blames = gp_harm_closes(&harm, verdict);
	CHECK(harm.found == found + blames && (!blames || verdict == GP_SLOW) && harm.held <= p->kernels);
	if (blames)
		gp_width_excuse(&widths);
	CHECK(widths.kinds <= 1);
}

static struct count run(const struct program *p, uint32_t windows)
{
	struct count count = {.slow = 0};
	for (uint32_t i = 0; i < windows; i++)
		window(p, &count);
	printf("%s: of %u windows %u leave something, %u are slow; run beside, held back:", p->name, windows,
	       count.left, count.slow);
	for (uint32_t k = 0; k < p->kernels; k++)
		printf(" %u %u", count.ran[k], count.held[k]);
	printf("; level %u, %llu times too wide\n", widths.width[0].level, (unsigned long long)widths.too_wide);
	return count;
}

static void forget(void)
{
	memset(&widths, 0, sizeof widths);
	memset(&harm, 0, sizeof harm);
}

// One kernel of some hurts: it is stopped, the others go on in half of the SMs.
static void one_hurts(void)
{
	static const struct program programs[] = {
		{"two kernels", 2, {1, 1.2}, 0.7, 0, 1},
		{"two kernels, and noise", 2, {1, 1.2}, 0.7, 0.02, 1},
		{"six kernels", KERNELS, {1, 1.2, 1, 1, 1, 1}, 0.3, 0, 1},
		{"two that hurt much", 3, {1, 1.4, 3}, 0.5, 0.01, 1},
		{"one that hurts a little", 2, {1, 1.12}, 0.7, 0, 1},
	};
	enum { SOON = 200, WINDOWS = 20000 };
	for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
		const struct program *p = &programs[i];
		forget();
		run(p, SOON);
		struct count c = run(p, WINDOWS);
		for (uint32_t k = 0; k < p->kernels; k++) {
			if (p->cost[k] > 1)
				CHECK(c.ran[k] < WINDOWS / 100 && c.held[k] > p->beside * WINDOWS * 0.8);
			else
				CHECK(c.ran[k] > p->beside * WINDOWS * 0.9 && c.held[k] < WINDOWS / 100);
		}
		CHECK(c.slow < WINDOWS / 100 && c.left > WINDOWS * 0.95 && widths.width[0].level == 3);
	}
}

// Where all hurt, as beside requests that need all of the GPU, the width is to blame.
static void all_hurt(void)
{
	static const struct program programs[] = {
		{"all hurt", KERNELS, {1, 1, 1, 1, 1, 1}, 0.5, 0, 1.2},
		{"the only one hurts", 1, {1.2}, 1, 0, 1},
	};
	enum { WINDOWS = 20000 };
	for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
		forget();
		struct count c = run(&programs[i], WINDOWS);
		CHECK(c.slow < WINDOWS / 100);
	}
}

// No kernel hurts; windows are slow by chance: none is held back for long.
static void none_hurts(void)
{
	static const struct program program = {"none hurts", KERNELS, {1, 1, 1, 1, 1, 1}, 0.5, 0.03, 1};
	enum { WINDOWS = 20000 };
	forget();
	struct count c = run(&program, WINDOWS);
	for (uint32_t k = 0; k < KERNELS; k++)
		CHECK(c.held[k] < WINDOWS / 100);
	CHECK(c.left > WINDOWS * 0.9);
}

// One that hurts no more goes on again.
static void stops_hurting(void)
{
	static const struct program hurts = {"one hurts", 2, {1, 1.3}, 0.8, 0, 1},
				    no_more = {"and no more", 2, {1, 1}, 0.8, 0, 1};
	enum { WINDOWS = 1000 };
	forget();
	run(&hurts, WINDOWS);
	CHECK(harm.held == 1);
	run(&no_more, 2 * WINDOWS);
	struct count c = run(&no_more, WINDOWS);
	CHECK(harm.held == 0 && c.held[1] == 0 && c.ran[1] > WINDOWS * 0.7);
}

// A process that always takes the blame is not believed for ever.
static void excuses(void)
{
	uint32_t slow = 0, leave;
	forget();
	for (int i = 0; i < 200; i++) {
		leave = gp_width_opens(&widths, 7);
		uint64_t ns = leave ? 12 * MS / 10 : MS;
		enum gp_verdict verdict = gp_width_verdict(&widths, ns, 1);
		gp_width_closes(&widths, ns, 1, true);
		slow += verdict == GP_SLOW;
		if (verdict == GP_SLOW)
			gp_width_excuse(&widths);
	}
	CHECK(slow == 6 + 2 && widths.too_wide == 1);
	gp_width_excuse(&widths); // there is no slow window
	CHECK(widths.too_wide == 1);
}

// More functions than there is room for, of any address.
static void many(void)
{
	forget();
	for (int i = 0; i < 200000; i++) {
		uint32_t of = random_number() % 100; // beside most windows more than can be told
		for (uint32_t n = 0; n < of; n++) {
			uintptr_t key = (random_number() % 3000 + 1) * 16;
			if (!gp_harm_holds(&harm, key))
				gp_harm_ran(&harm, key);
		}
		gp_harm_closes(&harm, random_number() % 4 ? GP_GOOD : GP_SLOW);
		CHECK(harm.count == 0 && harm.held <= GP_HARM_FUNCTIONS);
	}
}

// One that is held back is not forgotten for others that come, however many.
static void stays_held(void)
{
	enum { HELD = 1 << 20, OTHERS = 4 * GP_HARM_FUNCTIONS };
	forget();
	for (int i = 0; i < 1000 && !harm.held; i++) {
		gp_harm_ran(&harm, HELD);
		gp_harm_closes(&harm, GP_SLOW);
		gp_harm_ran(&harm, 16);
		gp_harm_closes(&harm, GP_GOOD);
	}
	CHECK(harm.held == 1 && harm.found == 1);
	for (int i = 2; i < OTHERS; i++) // between two windows: of none that counts
		gp_harm_ran(&harm, (uintptr_t)i * 16);
	CHECK(gp_harm_holds(&harm, HELD) && !gp_harm_holds(&harm, 16));
	uint32_t windows = 0;
	for (; gp_harm_holds(&harm, HELD) && windows < 1000; windows++) {
		for (int i = 0; i < 8; i++)
			gp_harm_ran(&harm, (random_number() % OTHERS + 2) * 16);
		gp_harm_closes(&harm, GP_GOOD);
	}
	CHECK(windows >= 8 && windows <= 16); // for so many
}

int main(void)
{
	one_hurts();
	all_hurt();
	none_hurts();
	stops_hurting();
	excuses();
	many();
	stays_held();
	return 0;
}
