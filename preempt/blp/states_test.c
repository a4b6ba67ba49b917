// states_test.c - with preempt/blp/states.c.
//
// Which state of a domain, and of an operation, may follow which, over all pairs; what a transition counts; what becomes of one that must
// not be. Ends well or says what is wrong.
#include "preempt/blp/domain.h"
#include "preempt/code/code.h"
#include "test/units/check.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int lines, rings, notes, unwanted;
_Atomic bool blp_retired;
void gp_log_line(const char *text)
{
	CHECK(!strcmp(text, "BLP: a domain became STOPPING from NARROW: no kernel is stopped from here on"));
	lines++;
}
void gp_ring_windows(struct gp_gpu *g) { rings++; }
void gp_notify(void) { notes++; }
bool gp_blp_unwant(void) { return ++unwanted; }

// The design's arrows (docs/design/blp.md).
static const struct {
	enum blp_state from, to;
} arrows[] = {
	{BLP_ABSENT, BLP_RUNNING},  {BLP_RUNNING, BLP_CLOSING}, {BLP_CLOSING, BLP_RUNNING}, // postponed
	{BLP_CLOSING, BLP_HELD},    {BLP_HELD, BLP_FREEZING},   {BLP_FREEZING, BLP_STOPPING},
	{BLP_FREEZING, BLP_HELD},   {BLP_FREEZING, BLP_ABSENT}, {BLP_HELD, BLP_NARROW}, // nothing was to be cut
	{BLP_HELD, BLP_RUNNING},    {BLP_HELD, BLP_RETIRED},    {BLP_STOPPING, BLP_QUIET},
	{BLP_STOPPING, BLP_LATE},   {BLP_QUIET, BLP_STOPPED},   {BLP_LATE, BLP_STOPPED},
	{BLP_STOPPED, BLP_NARROW},  {BLP_STOPPED, BLP_HELD},                               // to be launched again
	{BLP_NARROW, BLP_HELD},     {BLP_STOPPING, BLP_HELD},                              // The driver refused.
	{BLP_QUIET, BLP_HELD},      {BLP_LATE, BLP_HELD},       {BLP_RUNNING, BLP_ABSENT}, // its context or stream ends
	{BLP_RETIRED, BLP_ABSENT},  {BLP_HELD, BLP_ABSENT},     {BLP_NARROW, BLP_ABSENT},
	{BLP_STOPPING, BLP_ABSENT}, {BLP_QUIET, BLP_ABSENT},    {BLP_LATE, BLP_ABSENT},
	{BLP_STOPPED, BLP_ABSENT},
};

static bool is_arrow(enum blp_state from, enum blp_state to)
{
	for (size_t i = 0; i < sizeof arrows / sizeof *arrows; i++)
		if (arrows[i].from == from && arrows[i].to == to)
			return true;
	return false;
}

static const struct {
	enum blp_stage from, to;
} stage_arrows[] = {
	{BLP_QUEUED, BLP_SENT},
	{BLP_QUEUED, BLP_CUT_UNGUARDED}, // Ahead of what runs on.
	{BLP_QUEUED, BLP_DONE},          // A mistake of the program, or lost.
	{BLP_SENT, BLP_DONE},
	{BLP_SENT, BLP_CUT},
	{BLP_SENT, BLP_CUT_UNGUARDED}, // It is late, and has not begun.
	{BLP_SENT, BLP_UNGUARDED},     // It is late, and runs on.
	{BLP_CUT, BLP_SENT},
	{BLP_CUT, BLP_CUT_UNGUARDED},
	{BLP_CUT, BLP_DONE}, // a launch behind it has begun; or lost
	{BLP_CUT_UNGUARDED, BLP_UNGUARDED},
	{BLP_CUT_UNGUARDED, BLP_DONE}, // lost
	{BLP_UNGUARDED, BLP_DONE},
};

static bool is_stage_arrow(enum blp_stage from, enum blp_stage to)
{
	for (size_t i = 0; i < sizeof stage_arrows / sizeof *stage_arrows; i++)
		if (stage_arrows[i].from == from && stage_arrows[i].to == to)
			return true;
	return false;
}

static struct gp_gpu gpu;
static struct gp_domain domain = {.gpu = &gpu};

static void all_pairs(void)
{
	for (enum blp_state from = 0; from < BLP_STATES; from++)
		for (enum blp_state to = 0; to < BLP_STATES; to++)
			CHECK(blp_may_become(from, to) == is_arrow(from, to));
	for (enum blp_stage from = 0; from < BLP_STAGES; from++)
		for (enum blp_stage to = 0; to < BLP_STAGES; to++)
			CHECK(blp_may_turn(from, to) == is_stage_arrow(from, to));
}

// An operation that was made unguarded is unguarded once it is sent again.
static void sent(void)
{
	struct blp_entry e = {.stage = BLP_CUT}, unguarded = {.stage = BLP_CUT_UNGUARDED};
	CHECK(!blp_is_sent(&e) && !blp_is_unguarded(&e) && !blp_is_sent(&unguarded) && blp_is_unguarded(&unguarded));
	blp_send(&domain, &e);
	blp_send(&domain, &unguarded);
	CHECK(e.taken == BLP_ONCE && unguarded.taken == BLP_ONCE);
	CHECK(e.stage == BLP_SENT && blp_is_sent(&e) && !blp_is_unguarded(&e) && !blp_is_done(&e));
	CHECK(unguarded.stage == BLP_UNGUARDED && blp_is_sent(&unguarded) && blp_is_unguarded(&unguarded) &&
	      !blp_is_done(&unguarded));
	struct blp_entry narrow = {.stage = BLP_QUEUED};
	domain.state = BLP_NARROW; // the stream's own queue has not got it
	blp_send(&domain, &narrow);
	CHECK(narrow.stage == BLP_SENT && narrow.taken == BLP_NEVER);
	domain.state = BLP_ABSENT;
	blp_turn(&domain, &e, BLP_DONE);
	CHECK(blp_is_done(&e) && !blp_is_sent(&e));
}

// A domain is closed once for each stop, and what the driver answered before either end of it is not taken for true.
static void counts(void)
{
	static const enum blp_state stop[] = {BLP_RUNNING,  BLP_CLOSING, BLP_HELD,    BLP_FREEZING, BLP_STOPPING,
					      BLP_LATE,     BLP_STOPPED, BLP_NARROW,  BLP_HELD,     BLP_FREEZING,
					      BLP_STOPPING, BLP_QUIET,   BLP_STOPPED, BLP_HELD,     BLP_RUNNING};
	for (size_t i = 0; i < sizeof stop / sizeof *stop; i++) {
		blp_become(&domain, stop[i]);
		bool runs = stop[i] == BLP_RUNNING, begins = stop[i] == BLP_CLOSING;
		CHECK(blp_is_closed(&domain) == !runs && blp_stopped == !runs);
		CHECK(blp_changes == (i < 2 ? 0u : i + 1 < sizeof stop / sizeof *stop ? 1u : 2u));
		CHECK(begins || blp_is_stopped(&domain) == !runs);
		CHECK(blp_is_flagged(&domain) == (stop[i] == BLP_FREEZING || stop[i] == BLP_STOPPING ||
						  stop[i] == BLP_LATE || stop[i] == BLP_QUIET || stop[i] == BLP_STOPPED));
	}
	blp_become(&domain, BLP_CLOSING);
	blp_become(&domain, BLP_RUNNING); // postponed
	CHECK(!blp_stopped && blp_changes == 3);
	blp_become(&domain, BLP_CLOSING);
	blp_become(&domain, BLP_HELD);
	blp_become(&domain, BLP_ABSENT);
	CHECK(!blp_stopped && blp_changes == 5);
}

// A transition that is not in the table. In a program the state says what has happened, and nothing is stopped any more. The library tells its
// peers, and says so in one line and one count, however many follow. In a test the process ends.
static void mistakes(void)
{
	domain.state = BLP_NARROW;
	blp_asserts = false;
	CHECK(!blp_retired);
	blp_become(&domain, BLP_STOPPING); // the flag is set
	CHECK(blp_is_flagged(&domain) && blp_retired && !domain.given_up);
	struct blp_entry e = {.stage = BLP_DONE};
	blp_send(&domain, &e);
	CHECK(blp_is_sent(&e));
	CHECK(lines == 1 && rings == 1 && notes == 1 && unwanted == 1 && gpu.stops.given_up == 1);

	int status = 0;
	fflush(NULL);
	pid_t child = fork();
	if (!child) {
		blp_asserts = true;
		close(STDERR_FILENO);
		blp_become(&domain, BLP_RUNNING);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

int main(void)
{
	all_pairs();
	counts();
	sent();
	mistakes();
	return 0;
}
