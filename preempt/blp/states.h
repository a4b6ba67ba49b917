// states.h - the states of a domain, and of an operation in its log.
//
// A thread changes a state with blp_become or blp_turn alone (states.c). Other threads may read it at any time.
#ifndef GPREEMPT_BLP_STATES_H
#define GPREEMPT_BLP_STATES_H

#include <stdbool.h>

struct gp_domain;
struct blp_entry;

// In this order: from BLP_CLOSING on, new work does not reach the driver; from BLP_FREEZING on, the flag is set.
enum blp_state {
	BLP_ABSENT,   // No domain is here.
	BLP_RUNNING,  // The driver gets each operation at once.
	BLP_RETIRED,  // RUNNING to the end: the driver refused a call (gp_domain.given_up).
	BLP_CLOSING,  // A stop begins, or is postponed at once.
	BLP_HELD,     // New work is only logged; what the driver has goes on.
	BLP_NARROW,   // Logged work goes on in a part of the SMs (gp_domain.narrow.on).
	BLP_FREEZING, // As BLP_STOPPING, but for graphs that are not frozen yet: their records are being zeroed.
	BLP_STOPPING, // Blocks that have begun run to their end, no other one begins.
	BLP_QUIET,    // No block runs.
	BLP_LATE,     // Blocks of some stream run on (BLP_IS_LATE), or may.
	BLP_STOPPED,  // It is known what was cut.
	BLP_STATES,
};

// Of an operation in the log. One whose stream has come further (blp_stream.done) is over in any of them.
enum blp_stage {
	BLP_QUEUED,        // It was only logged.
	BLP_SENT,          // The driver has it.
	BLP_CUT,           // A stop cut it: it is sent again.
	BLP_CUT_UNGUARDED, // As CUT, and no stop is to reach it then.
	BLP_UNGUARDED,     // The driver has it, and no stop reaches it any more.
	BLP_DONE,          // It is complete, though entries before it on its stream may not be.
	BLP_STAGES,
};

extern bool blp_asserts; // a transition that is not in the table ends the process; true in builds for tests

// The caller has done what a transition says, so each is made, and no block is lost or runs twice. One that is not in the table is a mistake
// of ours: it is logged, stops that are under way end, and none begins in this process any more.
bool blp_may_become(enum blp_state from, enum blp_state to);
void blp_become(struct gp_domain *, enum blp_state to); // under gp_domain.control
bool blp_may_turn(enum blp_stage from, enum blp_stage to);
// The same of an operation. Under gp_domain.lock.
void blp_turn(struct gp_domain *, struct blp_entry *, enum blp_stage to);
void blp_send(struct gp_domain *, struct blp_entry *); // the driver has all of it

#endif
