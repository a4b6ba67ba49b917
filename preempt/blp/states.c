// states.c - the only function that changes the state of a domain.
#include "preempt/blp/domain.h"

#include <stdio.h>
#include <stdlib.h>

#if defined(GP_ASSERTS) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
bool blp_asserts = true;
#else
bool blp_asserts;
#endif

_Atomic uint32_t blp_changes, blp_stopped;

static const char *const name[BLP_STATES] = {
	[BLP_ABSENT] = "ABSENT", [BLP_RUNNING] = "RUNNING", [BLP_RETIRED] = "RETIRED",   [BLP_CLOSING] = "CLOSING",
	[BLP_HELD] = "HELD",     [BLP_NARROW] = "NARROW",   [BLP_STOPPING] = "STOPPING", [BLP_QUIET] = "QUIET",
	[BLP_LATE] = "LATE",     [BLP_STOPPED] = "STOPPED",
};

// From each state, the set of those that may follow. A domain may end in any state but CLOSING, which lasts only inside close_gate. Once the
// driver has refused a call, a stop ends from wherever it is.
#define TO(state) (1u << (state))
static const uint32_t next[BLP_STATES] = {
	[BLP_ABSENT] = TO(BLP_RUNNING),
	[BLP_RUNNING] = TO(BLP_CLOSING) | TO(BLP_ABSENT),
	[BLP_RETIRED] = TO(BLP_ABSENT),
	[BLP_CLOSING] = TO(BLP_RUNNING) | TO(BLP_HELD),
	[BLP_HELD] = TO(BLP_STOPPING) | TO(BLP_NARROW) | TO(BLP_RUNNING) | TO(BLP_RETIRED) | TO(BLP_ABSENT),
	[BLP_NARROW] = TO(BLP_HELD) | TO(BLP_ABSENT),
	[BLP_STOPPING] = TO(BLP_QUIET) | TO(BLP_LATE) | TO(BLP_HELD) | TO(BLP_ABSENT),
	[BLP_QUIET] = TO(BLP_STOPPED) | TO(BLP_HELD) | TO(BLP_ABSENT),
	[BLP_LATE] = TO(BLP_STOPPED) | TO(BLP_HELD) | TO(BLP_ABSENT),
	[BLP_STOPPED] = TO(BLP_HELD) | TO(BLP_NARROW) | TO(BLP_ABSENT),
};

bool blp_may_become(enum blp_state from, enum blp_state to) { return next[from] & TO(to); }

static void refuse(struct gp_domain *d, enum blp_state from, enum blp_state to)
{
	char text[64];
	snprintf(text, sizeof text, "BLP: a domain was to become %s from %s", name[to], name[from]);
	if (blp_asserts) {
		fprintf(stderr, "gpreempt: %s\n", text);
		abort();
	}
	gp_log_line(text);
	blp_give_up(d, "blp_become", CUDA_ERROR_UNKNOWN);
}

// Writers: the thread that holds control. Readers: all threads, at any time.
// A thread that closes a domain stores CLOSING, then reads driver_waits, firm and recorded. Others count themselves there, then read the state.
// So one of the two sees the other. Without that a stop would cut what another thread lets run, or wait for a call that waits for it.
// A thread that asks the driver reads blp_changes, asks, then reads the state and blp_changes again. So the state is closed before a change is
// counted, and open after it. Without that the end of a launch that was cut would count as its completion.
void blp_become(struct gp_domain *d, enum blp_state to)
{
	enum blp_state from = d->state;
	bool was_closed = from >= BLP_CLOSING, closes = to >= BLP_CLOSING;
	if (!blp_may_become(from, to)) {
		refuse(d, from, to);
		return;
	}
	if (closes && !was_closed)
		blp_stopped++;
	if (was_closed && !closes) {
		blp_stopped--;
		blp_changes++;
	}
	d->state = to;
	if (from == BLP_CLOSING && closes)
		blp_changes++;
}
