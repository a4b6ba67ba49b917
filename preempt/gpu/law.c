// law.c - see law.h.
#include "preempt/gpu/law.h"

#include <string.h>

static const double MOST_DEBT_NS = 60e6; // a long prefill is not paid back for longer than some steps
static const double FIRST_THETA = 0.9;   // no violation at the start
static const double LEAST_THETA = 0.5;   // below this nothing is lent
static const double GAIN = 0.5;          // of the trim; 0.1 to 2 held the percentile in simulation
static const uint64_t TRIM_EVERY_NS = 2000 * 1000 * 1000ull;
static const double KIND_STEPS = 50;        // The mean of a kind's own time is over about so many steps.
static const double KIND_FADES = 1.0 / 500; // A kind counts for about 1 / KIND_FADES steps.
static const double KIND_VARIES = 1.25;     // A time so many times longer or shorter than the mean is another time.
static const uint32_t KIND_CHANGES = 3;     // After so many steps in a row of another time the mean begins anew.
static const double EXCESS_OVER_NS = 5e9;

void gp_law_begin(struct gp_law *l)
{
	memset(l, 0, sizeof *l);
	l->theta = FIRST_THETA;
}

static double clip(double value, double least, double most)
{
	return value < least ? least : value > most ? most : value;
}

// The index of a kind; a new one takes the place of the rarest.
static int index_of(struct gp_law *l, uint64_t key)
{
	int rarest = 0;
	for (int i = 0; i < GP_LAW_KINDS; i++) {
		if (l->kind[i].steps > 0 && l->kind[i].key == key)
			return i;
		if (l->kind[i].steps < l->kind[rarest].steps)
			rarest = i;
	}
	l->kind[rarest].key = key;
	l->kind[rarest].steps = l->kind[rarest].own_ns = l->kind[rarest].learnt = 0;
	l->kind[rarest].other = 0;
	return rarest;
}

static bool varies(double mean, double own_ns) { return own_ns > KIND_VARIES * mean || mean > KIND_VARIES * own_ns; }

// Learns from a step's own time. Returns that of the most frequent kind.
static double learn(struct gp_law *l, uint64_t key, double own_ns)
{
	int at = index_of(l, key), most = 0;
	for (int i = 0; i < GP_LAW_KINDS; i++)
		l->kind[i].steps *= 1 - KIND_FADES;
	typeof(*l->kind) *k = &l->kind[at];
	k->steps += 1;
	k->other = k->learnt && varies(k->own_ns, own_ns) ? k->other + 1 : 0;
	if (k->other == KIND_CHANGES)
		k->learnt = k->other = 0;
	k->learnt += k->learnt < KIND_STEPS;
	k->own_ns += (own_ns - k->own_ns) / k->learnt;
	for (int i = 1; i < GP_LAW_KINDS; i++)
		if (l->kind[i].steps > l->kind[most].steps)
			most = i;
	double usual = l->usual_ns = l->kind[most].own_ns, fades = clip(1 - own_ns / EXCESS_OVER_NS, 0, 1);
	l->excess_ns = l->excess_ns * fades + (at != most && own_ns > usual ? own_ns - usual : 0);
	l->elapsed_ns = l->elapsed_ns * fades + own_ns;
	return usual;
}

// Steps of other kinds delay those of the usual one, and more of them meet a period that is longer. So the objective for a period of any
// kind is the usual step's, over the part of the time that is left to usual steps.
static double relative(const struct gp_law *l, double slowdown, double usual_ns)
{
	double other = l->elapsed_ns > 0 ? l->excess_ns / l->elapsed_ns : 0;
	return slowdown * usual_ns / (1 - clip(other, 0, 0.9));
}

static bool mean_is_over(struct gp_law *l, uint32_t over_steps, double period_ns)
{
	if (l->periods == over_steps)
		l->sum_ns -= l->period_ns[l->at];
	else
		l->periods++;
	l->period_ns[l->at] = period_ns;
	l->sum_ns += period_ns;
	l->at = (l->at + 1) % over_steps;
	return l->periods == over_steps && l->sum_ns > l->objective_ns * over_steps;
}

static void trim(struct gp_law *l, const struct gp_law_settings *s, uint64_t now_ns, bool over)
{
	if (!l->trim.since_ns)
		l->trim.since_ns = now_ns;
	if (l->periods == s->over_steps) {
		l->trim.means++;
		l->trim.over += over;
	}
	if (now_ns < l->trim.since_ns + TRIM_EVERY_NS)
		return;
	if (l->trim.means)
		l->theta = clip(l->theta + GAIN * (1 - s->percentile - (double)l->trim.over / l->trim.means), 0, 1);
	l->trim.since_ns = now_ns;
	l->trim.means = l->trim.over = 0;
}

// Means over other numbers of steps say nothing of each other.
static void count_over(struct gp_law *l, uint32_t over_steps)
{
	if (l->over_steps == over_steps)
		return;
	l->over_steps = over_steps;
	l->periods = l->at = l->trim.means = l->trim.over = 0;
	l->sum_ns = 0;
}

bool gp_law_step(struct gp_law *l, const struct gp_law_settings *s, uint64_t now_ns, double period_ns, double own_ns,
		 double promised_ns, uint64_t key, double switch_ns)
{
	count_over(l, s->over_steps);
	double usual = own_ns < 0 ? l->usual_ns : learn(l, key, own_ns);
	l->objective_ns = s->slowdown > 0 ? relative(l, s->slowdown, usual) : s->step_ns;
	l->credit_ns = clip(l->credit_ns + l->theta * l->objective_ns - period_ns, -MOST_DEBT_NS,
			    s->max_slot_ns + 2 * switch_ns + promised_ns);
	bool over = mean_is_over(l, s->over_steps, period_ns);
	trim(l, s, now_ns, over);
	return over;
}

double gp_law_slot(const struct gp_law *l, const struct gp_law_settings *s, double switch_ns)
{
	if (l->theta < LEAST_THETA || l->credit_ns < s->min_slot_ns + 2 * switch_ns)
		return 0;
	double slot = l->credit_ns - 2 * switch_ns;
	return slot < s->max_slot_ns ? slot : s->max_slot_ns;
}

bool gp_law_knows(const struct gp_law *l, uint64_t key, double own_ns)
{
	for (int i = 0; i < GP_LAW_KINDS; i++)
		if (l->kind[i].steps > 0 && l->kind[i].key == key)
			return own_ns < 0 || !varies(l->kind[i].own_ns, own_ns);
	return false;
}

bool gp_law_attainable(const struct gp_law *l) { return l->usual_ns <= l->objective_ns; }

void gp_law_idle(struct gp_law *l)
{
	if (l->credit_ns > 0)
		l->credit_ns = 0;
}
