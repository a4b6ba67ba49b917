// carry.h - shared by the files that carry out hints. Unless it says otherwise, a function is for the thread of
// gp_hint_run.
#ifndef GPREEMPT_CARRY_H
#define GPREEMPT_CARRY_H

#include "hints/hints.h"
#include "preempt/gpu/gpu.h"

// Counts in every GPU's slot. Any thread.
#define GP_HINT_COUNT(source, field, by) \
	do { \
		for (int i_ = 0; i_ < GP_GPUS && gp_gpu[i_].known; i_++) \
			if (gp_own_slot(&gp_gpu[i_])) \
				gp_count(&gp_own_slot(&gp_gpu[i_])->hint[source].field, by); \
	} while (0)

// The program itself announced the work; other sources guess.
static inline bool gp_hint_announced(uint32_t source) { return GP_HINTS_TOLD >> source & 1; }

// carry.c
extern _Atomic uint32_t gp_hint_bell, gp_hint_dropped;
extern _Atomic uint64_t gp_hint_due_ns; // when the next hint is due; 0: there is none
void gp_hint_ring(void);                // wakes the thread of gp_hint_run; any thread

// timing.c
extern const uint64_t gp_hint_longest_margin_ns, gp_hint_nap_ns;
uint64_t gp_hint_watched_lead_ns(void);       // How long before the work a caller can leave the hold to the watcher.
void gp_hint_learn_watcher(uint64_t late_ns); // The watcher armed a hold so long after it was woken.
void gp_hint_try_watcher(void);               // A caller armed one itself.
uint64_t gp_hint_lead_ns(uint32_t source);    // How long before the work a hint of the source is carried out.
uint64_t gp_hint_early_ns(uint32_t source);   // How long before that the thread means to wake.
void gp_hint_learn_margin(uint64_t late_ns);
void gp_hint_learn_wake(uint64_t late_ns);
uint64_t gp_hint_spin(uint64_t due_ns, uint32_t seen);
void gp_hint_earn_spinning(uint64_t passed_ns);

// account.c
void gp_hint_accounts_begin(uint64_t now);
void gp_hint_refill(uint64_t now);
bool gp_hint_paid(uint32_t source); // the source has credit and is on
bool gp_hint_off(uint32_t source);
uint64_t gp_hint_most_at_once_ns(void);
uint64_t gp_hint_settle(uint32_t source, bool hit, uint64_t cost_ns, uint64_t now);
uint64_t gp_hint_settle_copies(uint64_t now);
void gp_hint_forgive(uint64_t now, uint64_t *next_ns);
void gp_hint_copy_hit(void);                 // any thread
void gp_hint_copy_wrong(uint64_t waited_ns); // any thread

#endif
