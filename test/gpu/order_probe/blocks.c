// blocks.c - can a launch that has no room keep the last blocks of a partly placed grid from theirs? A waiter takes the place of one
// block of the spinner S, which else fills the GPU. A late launch M comes, and then the waiter ends: there is room for the last block of S,
// and S ends, if that block gets it. If M's blocks must be placed first, and have no room before S ends, nobody gets anywhere: STUCK.
#include <sched.h>

#include "order.h"

enum spinner {
	DEFAULT,
	CREATED,
	URGENT,
	AS_URGENT,
	SPINNERS
}; // S's stream: the default one, or one of priority 0; or S is urgent
enum mode {
	BEFORE,
	TINY_BETWEEN,
	MODES
}; // M, then the waiter ends; or three tiny urgent kernels come and go between the two
static const char *const spinner_name[] = {"default", "created", "greatest", "as greatest"}, *const mode_name[] = {
												     "before", "tiny"};

enum {
	STUCK_REPEATS = 3,
	PATIENCE_MS = 300, // the first time that a kind of M is stuck
	LATER_MS = 30,     // every other time: what is not stuck takes less than one
	GUARD_MS = 650,
};
#define LATE_US (plan.quick ? 1e3 : 5e3) // from M's launch to the waiter's end

static struct cell { // a case
	int kind;
	enum spinner spinner;
	enum mode mode;
	enum priority priority;
	int repeats, unset;  // unset: the waiter and S did not begin
	int stuck, done;     // S did not end; M did
	int early, in;       // M ended before the waiter; M may use the SM of the waiter
	int tiny, guarded;   // tiny kernels that ended; the guard ended it
	unsigned kept;       // the most blocks of S that had no place
	double patience_ms;  // the longest
	struct samples s, m; // microseconds from the waiter's end to theirs
} cell[LATE_KINDS * SPINNERS * MODES * PRIORITIES];
static int cells;
static bool was_stuck[LATE_KINDS];
static CUstream waiter, created, urgent;

// What is not stuck is asked first in the simplest way: default stream, nothing between.
static void make_cells(const char *name)
{
	for (int mode = 0; mode < MODES; mode++)
		for (int spinner = 0; spinner < SPINNERS; spinner++)
			for (int kind = 0; kind < LATE_KINDS; kind++)
				for (int priority = 0; priority < PRIORITIES; priority++) {
					if (spinner >= URGENT && (mode || late_kind[kind].where != ALL))
						continue; // enough to see whether that keeps S's last blocks first
					const char *why = late_can(kind, (enum priority)priority);
					if (!why)
						cell[cells++] = (struct cell){
							.kind = kind, spinner, mode, (enum priority)priority};
					else if (late_kind[kind].where != ALL && mode + spinner == 0)
						not_measured(why, text("%s: %s on %s, %s", name, late_kind[kind].name,
								       where_name(late_kind[kind].where),
								       priority_name[priority]));
				}
}

// The waiter has its place, then S all that are left: its count does not change any more. Returns how many blocks of S have none.
static bool set_up(CUstream s, bool as_urgent, unsigned *kept)
{
	hold_clear();
	waiter_launch(waiter, 0);
	for (double began = now_us(); !waiters_begun(1);)
		if (now_us() - began > 50e3)
			return false;
	spinner_launch(s, as_urgent ? &gpu.greatest : NULL);
	unsigned arrived = 0;
	for (double changed = now_us(); arrived < gpu.all && now_us() - changed < (arrived ? 1e3 : 50e3);) {
		unsigned now = spinner_arrived();
		if (now != arrived)
			changed = now_us();
		arrived = now;
	}
	*kept = gpu.all - arrived;
	return arrived > 0;
}

// The waiter ends; until S and M have, or patience is over.
static void watch(struct cell *c)
{
	double patience_us = (was_stuck[c->kind] ? LATER_MS : PATIENCE_MS) * 1e3 * slowness, s_us = -1, m_us = -1, us = 0;
	double began = now_us();
	hold_release();
	for (; us < patience_us && (s_us < 0 || m_us < 0); us = now_us() - began) {
		sched_yield();
		if (s_us < 0 && spinner_arrived() == gpu.all)
			s_us = now_us() - began;
		if (m_us < 0 && late_done())
			m_us = now_us() - began;
	}
	if (s_us >= 0)
		add(&c->s, s_us);
	if (m_us >= 0)
		add(&c->m, m_us);
	c->stuck += s_us < 0;
	c->done += m_us >= 0;
	was_stuck[c->kind] |= s_us < 0;
	if ((s_us < 0 || m_us < 0) && patience_us / 1e3 > c->patience_ms)
		c->patience_ms = patience_us / 1e3;
}

static void repeat(struct cell *c)
{
	CUstream s = c->spinner == CREATED ? created : c->spinner == URGENT ? urgent : NULL;
	unsigned kept = 0;
	guard_set(GUARD_MS);
	bool set = set_up(s, c->spinner == AS_URGENT, &kept);
	if (set) {
		late_launch(c->kind, c->priority);
		if (c->mode == TINY_BETWEEN)
			c->tiny += (int)late_tiny();
		pause_us(LATE_US);
		c->early += late_done();
		c->in += late_has(c->kind, waiter_sm(0));
		watch(c);
	}
	hold_abort();
	CHECK(cuStreamSynchronize(s));
	CHECK(cuStreamSynchronize(waiter));
	late_finish();
	c->guarded += guard_clear();
	c->repeats += set;
	c->unset += !set;
	c->kept = kept > c->kept ? kept : c->kept;
}

static bool wants_more(const struct cell *c)
{
	return c->repeats + c->unset < (c->stuck && plan.samples > STUCK_REPEATS ? STUCK_REPEATS : plan.samples);
}

static const char *us_or_none(size_t count, double value) { return count ? text("%.0f", value) : "-"; }

static void tell(struct cell *c, const char *name)
{
	const struct late_kind *k = &late_kind[c->kind];
	struct summary s = sum_up(&c->s), m = sum_up(&c->m);
	row(name,
	    "m=%s\ton=%s\tpriority=%s\ts_stream=%s\tmode=%s\tn=%d\tstuck=%d\tm_done=%d\tm_early=%d\tin=%d\tkept=%"
	    "u\ttiny=%d\t"
	    "unset=%d\tguard=%d\twaited_ms=%.0f\ts_p50=%s\ts_max=%s\tm_p50=%s\tm_max=%s",
	    k->name, where_name(k->where), priority_name[c->priority], spinner_name[c->spinner], mode_name[c->mode],
	    c->repeats, c->stuck, c->done, c->early, c->in, c->kept, c->tiny, c->unset, c->guarded, c->patience_ms,
	    us_or_none(s.count, s.p50), us_or_none(s.count, s.max), us_or_none(m.count, m.p50),
	    us_or_none(m.count, m.max));
	if (c->stuck)
		fact(text("%d of %d", c->stuck, c->repeats), "%s: STUCK: %s on %s, %s; S on %s; %s", name, k->name,
		     where_name(k->where), priority_name[c->priority], spinner_name[c->spinner], mode_name[c->mode]);
}

// S with all the GPU to itself, so that its code is loaded; it must end.
static void try_spinner(const char *name)
{
	hold_clear();
	guard_set(GUARD_MS);
	spinner_launch(created, NULL);
	CHECK(cuStreamSynchronize(created));
	fact(text("%u of %u%s", spinner_arrived(), gpu.all, guard_clear() ? ", and the guard ended it" : ""),
	     "%s: blocks of S that are there at once, alone", name);
}

static void blocks(const char *name, char *const settings[])
{
	int asked = 0, stuck = 0;
	waiter = stream_of(gpu.greatest);
	created = stream_of(0);
	urgent = stream_of(gpu.greatest);
	late_begin(settings);
	fact(own_priorities(), "%s: priorities, S's process", name);
	fact(late_priorities(), "%s: priorities, M's process", name);
	if (under_mps)
		fact(text("S's %s, M's %s", own_client_priority(), late_client_priority()), "%s: MPS client priority",
		     name);
	try_spinner(name);
	make_cells(name);
	for (int round = 0; round < plan.samples; round++)
		for (int i = 0; i < cells && time_for(1.5); i++)
			if (wants_more(&cell[i]))
				repeat(&cell[i]);
	late_end();
	for (int i = 0; i < cells; i++) {
		if (!cell[i].repeats && !cell[i].unset)
			continue;
		asked++;
		stuck += cell[i].stuck > 0;
		tell(&cell[i], name);
	}
	fact(text("%d of %d", stuck, asked), "%s: cases that were STUCK", name);
	if (asked < cells)
		not_measured(text("%d: no time", cells - asked), text("%s: cases that were not asked", name));
}

// Between two clients of one server, by their priorities: of neither, of both, and of S's alone.
static void between_clients(const char *name, char *const settings[])
{
	if (under_mps)
		blocks(name, settings);
	else
		not_measured("not here: an MPS server; see --mps", name);
}

void section_blocks(void) { blocks("blocks", NULL); }

void section_blocks_both(void) { between_clients("blocks-both", NULL); }

void section_blocks_spinner(void) { between_clients("blocks-spinner", (char *[]){"CUDA_MPS_CLIENT_PRIORITY=0", NULL}); }
