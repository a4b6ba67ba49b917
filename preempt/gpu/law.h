// law.h - how much of the GPU's time a latency-critical process may lend, by its objective.
//
// The law is arithmetic on the times of steps: it reads no clock, takes no lock and calls nothing. Its caller serialises the calls.
//
// Credit grows by what a step was faster than the objective, and pays for slots: the step with a slot in it is longer. So no slot
// makes the credit negative. Over n steps the mean period is at most theta * objective + (slot + 2 switches + debt) / n. Debt is the
// time that LC's own long steps took beyond the objective. Theta trims that until the part of means above the objective is at
// most what the percentile allows (adaptive conformal inference).
#ifndef GPREEMPT_LAW_H
#define GPREEMPT_LAW_H

#include <stdbool.h>
#include <stdint.h>

enum {
	GP_LAW_KINDS = 64,  // of steps, by key; a further one takes the place of the rarest
	GP_LAW_MEANS = 256, // the most steps of a sliding mean
};

struct gp_law_settings {
	double slowdown;                 // Times slower than alone; 0: step_ns says it.
	double step_ns;                  // Mean time between results.
	double percentile;               // The part of means that is to be within the objective, 0 to 1.
	double min_slot_ns, max_slot_ns; // Bounds of one slot.
	uint32_t over_steps;             // Steps of a mean, 1 to GP_LAW_MEANS.
};

struct gp_law {
	double credit_ns, theta;
	double objective_ns; // for a period; 0: not known yet
	struct {
		uint64_t key;
		double steps;   // seen lately.
		double own_ns;  // mean of its own time, over the latest steps.
		double learnt;  // That many; 50 at most.
		uint32_t other; // Of these, the latest that took another time.
	} kind[GP_LAW_KINDS];
	double usual_ns;              // own time of the most frequent kind
	double excess_ns, elapsed_ns; // of other kinds beyond the most frequent one; own time. Both of the last 5 s or so
	double period_ns[GP_LAW_MEANS], sum_ns;
	uint32_t over_steps, periods, at; // of the ring: its length, how many it has, where the next one goes
	struct {
		uint64_t since_ns;
		uint32_t means, over; // since then
	} trim;
};

void gp_law_begin(struct gp_law *);
// A step has ended. period_ns: since the step before it ended, or the window opened; own_ns: of that, the time that it takes alone; below
// 0: unknown, since lower levels ran beside it; promised_ns: a slot that is due or under way, for which a later step pays. key: its kind.
// Returns whether the mean of the last over_steps periods is known and above the objective.
bool gp_law_step(struct gp_law *, const struct gp_law_settings *, uint64_t now_ns, double period_ns, double own_ns,
		 double promised_ns, uint64_t key, double switch_ns);
// Whether the law knows what steps of a kind take alone. own_ns: what one takes now; below 0: that is not known.
bool gp_law_knows(const struct gp_law *, uint64_t key, double own_ns);
// Nanoseconds that may be lent before the next step; 0: nothing.
double gp_law_slot(const struct gp_law *, const struct gp_law_settings *, double switch_ns);
// False: steps without lent time take longer than the objective allows, so nothing can be lent.
bool gp_law_attainable(const struct gp_law *);
// The process has no work: credit is not kept for later, debt is.
void gp_law_idle(struct gp_law *);

#endif
