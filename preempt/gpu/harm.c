// harm.c - see harm.h: a kernel that takes memory bandwidth, or empties the L2 cache, makes requests slow on however few SMs it runs.
//
// A slow window is charged to the functions that ran beside it, in equal parts. A function is to blame if more than a quarter of its own
// windows were slow. That part must also be over twice that of all others together, once enough windows are counted (TRIALS). If all are
// alike, the width is to blame, which the other process sees to (width.c). Both counts begin with one good window, that of a function and
// that of the others. So a single slow window beside several functions blames none.
//
// A blamed function is held back for some windows, then tried again. Each time that it is blamed anew it is held back for twice as many.
#include "preempt/gpu/harm.h"

#include <stddef.h>

enum {
	ONE = 256, // window
	PROBES = 8,
	MEMORY = 64,   // windows beside which a function ran, before older ones count less
	SUSPICION = 4, // of those beside which one ran that is held back: so that good ones can clear it soon
	PATIENCE = 16, // windows that one is held back, at first
	MOST_PATIENCE = 4096,
	TRIALS = 16,  // Windows beside which anything ran. From then on a function is blamed by comparison only.
	CLEARED = 16, // Windows after which a function with good ones counts as if it had never been held back.
};

static uint32_t place(uintptr_t key)
{
	return (uint32_t)((uint64_t)key * 0x9E3779B97F4A7C15ull >> 32) % GP_HARM_FUNCTIONS;
}

static bool is_held(const struct gp_harm *h, const struct gp_harm_function *f)
{
	return f->patience && (int32_t)(f->until - h->windows) > 0;
}

static struct gp_harm_function *find(struct gp_harm *h, uintptr_t key)
{
	for (uint32_t i = 0; i < PROBES; i++) {
		struct gp_harm_function *f = &h->function[(place(key) + i) % GP_HARM_FUNCTIONS];
		if (f->key == key)
			return f;
	}
	return NULL;
}

// Takes a free place of those where the key may be, or the one whose function was not seen for longest. A function that is held back, or
// runs beside the window, keeps its place. NULL: all have to.
static struct gp_harm_function *insert(struct gp_harm *h, uintptr_t key)
{
	struct gp_harm_function *best = NULL;
	for (uint32_t i = 0; i < PROBES; i++) {
		struct gp_harm_function *f = &h->function[(place(key) + i) % GP_HARM_FUNCTIONS];
		if (f->beside || is_held(h, f))
			continue;
		if (!best || (best->key && (!f->key || (int32_t)(f->seen - best->seen) < 0)))
			best = f;
	}
	if (best)
		*best = (struct gp_harm_function){.key = key};
	return best;
}

bool gp_harm_holds(struct gp_harm *h, uintptr_t function)
{
	const struct gp_harm_function *f = find(h, function);
	bool held = f && is_held(h, f);
	h->kept |= held;
	return held;
}

void gp_harm_ran(struct gp_harm *h, uintptr_t function)
{
	struct gp_harm_function *f = find(h, function);
	if (f && f->beside)
		return;
	if (!f)
		f = insert(h, function);
	if (!f || h->count == GP_HARM_BESIDE) {
		h->many = true;
		return;
	}
	f->beside = true;
	f->seen = h->windows;
	h->beside[h->count++] = (uint16_t)(f - h->function);
}

static void charge(struct gp_harm_function *f, uint32_t part, bool slow)
{
	f->ran += part;
	f->slow += slow ? part : 0;
	if (f->ran > MEMORY * ONE) {
		f->ran /= 2;
		f->slow /= 2;
	}
	if (f->ran >= CLEARED * ONE && f->slow < f->ran / 8)
		f->patience = 0;
}

static bool slower(const struct gp_harm_function *f, const struct gp_harm_function *than)
{
	return (uint64_t)f->slow * (than->ran + ONE) > (uint64_t)than->slow * (f->ran + ONE);
}

static bool is_to_blame(const struct gp_harm *h, const struct gp_harm_function *f)
{
	uint64_t ran = ONE, slow = 0; // of the others
	for (int i = 0; i < GP_HARM_FUNCTIONS; i++) {
		const struct gp_harm_function *other = &h->function[i];
		ran += other == f ? 0 : other->ran;
		slow += other == f ? 0 : other->slow;
	}
	bool trial = ran + f->ran < TRIALS * ONE;
	return f->slow > (f->ran + ONE) / 4 && (trial || f->slow * ran > 2 * slow * f->ran);
}

static void hold(struct gp_harm *h, struct gp_harm_function *f)
{
	f->patience = !f->patience ? PATIENCE : f->patience < MOST_PATIENCE ? 2 * f->patience : MOST_PATIENCE;
	f->until = h->windows + f->patience;
	if (f->ran > SUSPICION * ONE) {
		f->slow = (uint32_t)((uint64_t)f->slow * SUSPICION * ONE / f->ran);
		f->ran = SUSPICION * ONE;
	}
	h->found++;
}

bool gp_harm_closes(struct gp_harm *h, enum gp_verdict verdict)
{
	struct gp_harm_function *worst = NULL;
	bool judged = verdict != GP_UNJUDGED && h->count && !h->many;

	h->windows += h->count || h->kept;
	for (uint32_t i = 0; i < h->count; i++) {
		struct gp_harm_function *f = &h->function[h->beside[i]];
		f->beside = false;
		if (!judged)
			continue;
		charge(f, ONE / h->count, verdict == GP_SLOW);
		if (!worst || slower(f, worst))
			worst = f;
	}
	h->count = 0;
	h->kept = h->many = false;
	bool blamed = judged && verdict == GP_SLOW && is_to_blame(h, worst);
	if (blamed)
		hold(h, worst);
	h->held = 0;
	for (int i = 0; i < GP_HARM_FUNCTIONS; i++)
		h->held += is_held(h, &h->function[i]);
	return blamed;
}
