// states.c - the only functions that change the state of a domain, and of an operation in its log.
#include "preempt/blp/domain.h"
#include "preempt/code/code.h"

#include <stdio.h>
#include <stdlib.h>

#if defined(GP_TEST) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
bool blp_asserts = true;
#else
bool blp_asserts;
#endif

#ifdef GP_TEST
uint64_t blp_drain_ns, blp_patience_ns, blp_long_ns, blp_tolerance;
bool blp_always_full;

__attribute__((constructor)) static void read_times(void)
{
	const char *drain = getenv("GPREEMPT_TEST_DRAIN_NS"), *patience = getenv("GPREEMPT_TEST_PATIENCE_NS"),
		   *long_window = getenv("GPREEMPT_TEST_LONG_NS");
	blp_drain_ns = drain ? strtoull(drain, NULL, 10) : 100000000;
	blp_always_full = getenv("GPREEMPT_TEST_QUEUE");
	blp_patience_ns = patience ? strtoull(patience, NULL, 10) : 1000000000;
	blp_long_ns = long_window ? strtoull(long_window, NULL, 10) : 1000000;
	blp_tolerance = long_window ? 1000000 : 2;
}
#endif

_Atomic uint32_t blp_changes, blp_stopped;

static const char *const name[BLP_STATES] = {
	[BLP_ABSENT] = "ABSENT", [BLP_RUNNING] = "RUNNING", [BLP_RETIRED] = "RETIRED",   [BLP_CLOSING] = "CLOSING",
	[BLP_HELD] = "HELD",     [BLP_NARROW] = "NARROW",   [BLP_FREEZING] = "FREEZING", [BLP_STOPPING] = "STOPPING",
	[BLP_QUIET] = "QUIET",   [BLP_LATE] = "LATE",       [BLP_STOPPED] = "STOPPED",
};

// From each state, the set of those that may follow. A domain may end in any state but CLOSING, which lasts only inside close_gate. Once
// the driver has refused a call, a stop ends from any of its states.
#define TO(state) (1u << (state))
static const uint32_t next[BLP_STATES] = {
	[BLP_ABSENT] = TO(BLP_RUNNING),
	[BLP_RUNNING] = TO(BLP_CLOSING) | TO(BLP_ABSENT),
	[BLP_RETIRED] = TO(BLP_ABSENT),
	[BLP_CLOSING] = TO(BLP_RUNNING) | TO(BLP_HELD),
	[BLP_HELD] = TO(BLP_FREEZING) | TO(BLP_NARROW) | TO(BLP_RUNNING) | TO(BLP_RETIRED) | TO(BLP_ABSENT),
	[BLP_NARROW] = TO(BLP_HELD) | TO(BLP_ABSENT),
	[BLP_FREEZING] = TO(BLP_STOPPING) | TO(BLP_HELD) | TO(BLP_ABSENT),
	[BLP_STOPPING] = TO(BLP_QUIET) | TO(BLP_LATE) | TO(BLP_HELD) | TO(BLP_ABSENT),
	[BLP_QUIET] = TO(BLP_STOPPED) | TO(BLP_HELD) | TO(BLP_ABSENT),
	[BLP_LATE] = TO(BLP_STOPPED) | TO(BLP_HELD) | TO(BLP_ABSENT),
	[BLP_STOPPED] = TO(BLP_HELD) | TO(BLP_NARROW) | TO(BLP_ABSENT),
};

bool blp_may_become(enum blp_state from, enum blp_state to) { return next[from] & TO(to); }

// The watcher ends the stop, also one that the program asked for, and launches what was cut. Later mistakes follow from the first.
static void note_mistake(struct gp_domain *d, const char *what, const char *from, const char *to)
{
	static _Atomic bool noted;
	char text[96];
	snprintf(text, sizeof text, "BLP: %s became %s from %s: no kernel is stopped from here on", what, to, from);
	if (blp_asserts) {
		fprintf(stderr, "gpreempt: %s\n", text);
		abort();
	}
	if (__atomic_exchange_n((bool *)&noted, true, __ATOMIC_ACQ_REL))
		return;
	gp_log_line(text);
	gp_count(&d->gpu->stops.given_up, 1);
	gp_blp_unwant();
	blp_retired = true;
	gp_ring_windows(d->gpu);
	gp_notify(); // the agent tells others
}

// Writers: the thread that holds control. Readers: all threads, at any time.
// A thread that closes a domain stores CLOSING, then reads driver_waits, uncuttable and recorded. Others count themselves there, then
// read the state. So one of the two sees the other. Without that a stop would cut what another thread lets run, or wait for a call that
// waits for it. A thread that asks the driver reads blp_changes, asks, then reads blp_stopped, the state and blp_changes again. So the
// state is closed, and counted in blp_stopped, before a change is counted, and open after it. Without that the end of a launch that was
// cut would count as its completion.
void blp_become(struct gp_domain *d, enum blp_state to)
{
	enum blp_state from = d->state;
	bool was_closed = from >= BLP_CLOSING, closes = to >= BLP_CLOSING;
	if (closes && !was_closed)
		blp_stopped++;
	if (was_closed && !closes) {
		blp_changes++;
		blp_stopped--;
	}
	d->state = to;
	if (from == BLP_CLOSING && closes)
		blp_changes++;
	if (!blp_may_become(from, to))
		note_mistake(d, "a domain", name[from], name[to]);
}

static const char *const stage_name[BLP_STAGES] = {
	[BLP_QUEUED] = "QUEUED",       [BLP_SENT] = "SENT", [BLP_CUT] = "CUT", [BLP_CUT_UNGUARDED] = "CUT_UNGUARDED",
	[BLP_UNGUARDED] = "UNGUARDED", [BLP_DONE] = "DONE",
};

static const uint32_t next_stage[BLP_STAGES] = {
	[BLP_QUEUED] = TO(BLP_SENT) | TO(BLP_CUT_UNGUARDED) | TO(BLP_DONE),
	[BLP_SENT] = TO(BLP_CUT) | TO(BLP_CUT_UNGUARDED) | TO(BLP_UNGUARDED) | TO(BLP_DONE),
	[BLP_CUT] = TO(BLP_SENT) | TO(BLP_CUT_UNGUARDED) | TO(BLP_DONE),
	[BLP_CUT_UNGUARDED] = TO(BLP_UNGUARDED) | TO(BLP_DONE),
	[BLP_UNGUARDED] = TO(BLP_DONE),
};

bool blp_may_turn(enum blp_stage from, enum blp_stage to) { return next_stage[from] & TO(to); }

void blp_turn(struct gp_domain *d, struct blp_entry *e, enum blp_stage to)
{
	enum blp_stage from = e->stage;
	e->stage = to;
	if (!blp_may_turn(from, to))
		note_mistake(d, "an operation", stage_name[from], stage_name[to]);
}

void blp_send(struct gp_domain *d, struct blp_entry *e)
{
	blp_turn(d, e, e->stage == BLP_CUT_UNGUARDED ? BLP_UNGUARDED : BLP_SENT);
	if (d->state != BLP_NARROW)
		e->taken = e->taken == BLP_NEVER ? BLP_ONCE : BLP_AGAIN;
}
