// hint.c - carries out hints: takes the GPU a switch ahead of announced work, and gives it back if none comes.
//
// Hints arrive in a mailbox from any thread. One thread of the core (gp_hint_run) opens the window and arms the
// hold at the right time; work that comes proceeds in the open window, and the hold goes when the window closes as
// always, so it is never released before the work is queued. What hints cost the lower levels is charged to their
// source and bounded.
#define _GNU_SOURCE
#include "core.h"

#include <string.h>

_Static_assert(GP_HINT_ARRIVAL + 1 == GP_HINT_SOURCES, "sources of hints.h and segment.h");

struct gp_arrivals gp_arrivals;

static const uint64_t DEFAULT_SWITCH_NS = 200 * 1000;       // a context switch on an H200, until measured
static const uint64_t MARGIN_NS = 30 * 1000, LONGEST_MARGIN_NS = 100 * 1000; // waking up and launching the hold
static const uint64_t MAX_AHEAD_NS = 10ull * 1000000000;    // a hint for later is nonsense
static const uint64_t MAX_VALID_NS = 100 * 1000 * 1000;
static const uint64_t RECENT_NS = 10ull * 1000000000;       // contexts without work for longer get no hold
static const uint64_t LONGEST_SWITCH_NS = 1000 * 1000;      // a longer sample says nothing about the switch
static const uint64_t SAMPLE_SPIN_NS = 300 * 1000, SAMPLE_POLL_NS = 10 * 1000;
static const uint64_t SPIN_NS = 50 * 1000;                  // at most, before a guess is carried out
static const uint64_t LONGEST_EARLY_NS = 150 * 1000, EARLY_STEP_NS = 1000;
static const double SPIN_SHARE = 0.005, SPIN_SAVED_NS = 1e6; // of a processor's time, and of what was not used
static const uint64_t REFILL_NS = 100 * 1000000;            // of credit, before a source that took too much goes on
static const uint64_t FIRST_BACKOFF_NS = 1000000000, LAST_BACKOFF_NS = 64ull * 1000000000;
enum {
	MAILS = 64,
	PENDING = 16,
	SAMPLES = 32,
	FEW_SAMPLES = 8,     // until then each hint is one
	SAMPLE_EVERY = 32,   // hints, after that
	CU_STREAM_CAPTURE_MODE_RELAXED_ = 2, // cuda.h
};

// The mailbox: a bounded queue of many writers. A place is free for position p while its turn is p.

static struct mail {
	_Atomic uint32_t turn;
	uint32_t source;
	uint64_t start_ns, valid_ns;
	double confidence;
	struct gp_context *taken; // the caller carried the hint out, at
	uint64_t taken_ns;
	uint32_t begun_before; // see active
} mail[MAILS];
static _Atomic uint32_t mail_end, bell, asleep, overflowed[GP_HINT_SOURCES];
static uint32_t mail_begin;

// For callers: bits of the sources that may carry out hints themselves; how far ahead; whether one is in force.
static _Atomic uint32_t trusted, in_force;
static _Atomic uint64_t published_lead_ns;

static bool takes_hints(struct gp_context *c)
{
	return c->handle && c->gpu->segment && !c->gpu->mps && c->gpu->lower_peers && gp_settings.hold &&
	       gp_hold_usable(c);
}

// Given by the program itself, which knows; the other sources guess.
static bool announced(uint32_t source) { return source == GP_HINT_EXPLICIT || source == GP_HINT_NVTX; }

// A hint for about as soon as a switch takes is carried out by the thread that gives it, if that is one that
// works on the GPU: another thread would wake tens of microseconds later, and now and then hundreds.
static void take_at_once(struct mail *m)
{
	uint64_t now = gp_now_ns();
	uint32_t free = 0;

	if (!announced(m->source) || !(trusted & 1u << m->source) || in_force ||
	    !(m->confidence >= gp_settings.hint_min_confidence && m->confidence <= 1) ||
	    m->start_ns > now + published_lead_ns + LONGEST_MARGIN_NS || m->valid_ns > MAX_VALID_NS ||
	    m->start_ns + m->valid_ns + gp_settings.hint_wait_ns < now)
		return;
	struct gp_context *c = gp_current_context();
	if (!c || c->open || !takes_hints(c) || c->gpu->segment->open & c->gpu->higher ||
	    !__atomic_compare_exchange_n((uint32_t *)&in_force, &free, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		return;
	m->taken = c;
	m->taken_ns = now;
	m->begun_before = c->hold.word[GP_HOLD_BEGUN];
	c->hint.met_ns = 0;
	c->hint.until_ns = m->start_ns + m->valid_ns + gp_settings.hint_wait_ns;
	c->hint.awaited_ns = now;
	gp_window_wake(c->gpu, gp_window_open(c));
	gp_hold_arm(c);
}

void gp_hint(enum gp_hint_source source, uint64_t start_ns, uint64_t valid_ns, double confidence)
{
	if (!gp_settings.hints || (uint32_t)source >= GP_HINT_SOURCES)
		return;
	struct mail hint = {.source = source, .start_ns = start_ns, .valid_ns = valid_ns, .confidence = confidence};
	take_at_once(&hint);
	uint32_t place = mail_end;
	for (;;) {
		int32_t ahead = (int32_t)(mail[place % MAILS].turn - place);
		if (ahead < 0) { // full
			overflowed[source]++;
			if (hint.taken) {
				hint.taken->hint.awaited_ns = hint.taken->hint.until_ns = 0;
				in_force = 0;
			}
			return;
		}
		if (ahead > 0)
			place = mail_end;
		else if (__atomic_compare_exchange_n((uint32_t *)&mail_end, &place, place + 1, false, __ATOMIC_ACQ_REL,
						     __ATOMIC_RELAXED))
			break;
	}
	struct mail *m = &mail[place % MAILS];
	m->source = source;
	m->start_ns = start_ns;
	m->valid_ns = valid_ns;
	m->confidence = confidence;
	m->taken = hint.taken;
	m->taken_ns = hint.taken_ns;
	m->begun_before = hint.begun_before;
	m->turn = place + 1;
	bell++;
	if (asleep)
		gp_futex_wake(&bell, 1, false);
}

static bool take_mail(struct mail *out)
{
	struct mail *m = &mail[mail_begin % MAILS];
	if (m->turn != mail_begin + 1)
		return false;
	*out = (struct mail){0, m->source, m->start_ns, m->valid_ns, m->confidence, m->taken, m->taken_ns, m->begun_before};
	m->turn = mail_begin + MAILS;
	mail_begin++;
	return true;
}

// What follows up to the launch path belongs to the thread of gp_hint_run.

static struct pending {
	uint32_t source;
	uint64_t given_ns, start_ns, end_ns;
	bool postponed; // another hint was in force when it was due
} pending[PENDING];
static int pending_count;

static struct {
	bool on;
	uint32_t source;
	uint64_t began_ns, end_ns;
	bool taken; // the GPU was not the process's already
	struct gp_context *sampled;
	uint32_t began_before; // the hold's begun word when it was armed
} active;

static struct {
	double credit_ns; // GPU time that it may cost
	double rate;      // of hits, recent ones weigh more
	uint64_t off_until_ns, backoff_ns;
} account[GP_HINT_SOURCES];
static double credit_ns; // of all sources together
static uint64_t credited_ns;

static uint64_t samples[SAMPLES], switch_ns;
static uint32_t sample_count, carried_out;

// Copies are counted on the launch path and by the watcher; here they are charged.
static _Atomic uint32_t copies_hit, copies_wrong;
static _Atomic uint64_t copies_wrong_ns;

#define COUNT(source, field, by) do { \
	for (int i_ = 0; i_ < GP_GPUS && gp_gpu[i_].known; i_++) \
		if (gp_own_slot(&gp_gpu[i_])) \
			gp_count(&gp_own_slot(&gp_gpu[i_])->hint[source].field, by); \
} while (0)

static void publish_off(uint32_t source, bool off)
{
	if (source == GP_HINT_COPY)
		gp_settings.hint_copy = !off;
	for (int i = 0; i < GP_GPUS && gp_gpu[i].known; i++) {
		struct gp_slot *slot = gp_own_slot(&gp_gpu[i]);
		if (slot && off)
			slot->hints_off |= 1u << source;
		else if (slot)
			slot->hints_off &= ~(1u << source);
	}
}

static uint64_t margin_ns = MARGIN_NS;
static uint64_t switch_time_ns(void) { return switch_ns ? switch_ns : DEFAULT_SWITCH_NS; }
static uint64_t announced_lead_ns(void) { return switch_time_ns() + margin_ns; }

// Who guesses knows how early work may come, and named a time that allows for it: a margin would count twice.
static uint64_t lead_ns(uint32_t source) { return announced(source) ? announced_lead_ns() : switch_time_ns(); }

// The margin follows how late this thread wakes at its worst.
static void learn_margin(uint64_t late_ns)
{
	margin_ns -= (margin_ns - MARGIN_NS) / 64;
	if (late_ns > margin_ns)
		margin_ns = late_ns < LONGEST_MARGIN_NS ? late_ns : LONGEST_MARGIN_NS;
}

// A guess is carried out exactly in time: the thread means to wake early by what it usually takes to wake, and
// spins for the rest. What is usual, of three in four wakes, is learnt.
static uint64_t early_ns = 50 * 1000;
static double spin_credit_ns;

static void learn_wake(uint64_t late_ns)
{
	bool later = late_ns > early_ns && spin_credit_ns > 0;
	if (later && early_ns < LONGEST_EARLY_NS)
		early_ns += 3 * EARLY_STEP_NS;
	else if (!later)
		early_ns -= early_ns < EARLY_STEP_NS ? early_ns : EARLY_STEP_NS;
}

static void spun(uint64_t ns)
{
	spin_credit_ns -= (double)ns;
	for (int i = 0; i < GP_GPUS && gp_gpu[i].known; i++)
		if (gp_own_slot(&gp_gpu[i]))
			gp_count(&gp_own_slot(&gp_gpu[i])->hint_spun_ns, ns);
}

// Spins until due, or as long as it may, or until another hint comes. Returns the time.
static uint64_t spin(uint64_t due, uint32_t seen)
{
	uint64_t from = gp_now_ns(), now = from, most = spin_credit_ns > 0 ? SPIN_NS : 0;

	while (now < due && now - from < most && bell == seen)
		now = gp_now_ns();
	spun(now - from);
	return now;
}

// The time from arming to running is short while the lower levels have no work and that of a switch while
// they have, so the longer ones are what counts: of those from half the third longest on, which leaves out
// two that something else delayed, the 90th percentile.
static void learn_switch(uint64_t sample)
{
	uint64_t sorted[SAMPLES];
	int n, first = 0;

	if (sample > LONGEST_SWITCH_NS)
		return;
	samples[sample_count++ % SAMPLES] = sample;
	if (sample_count < 3)
		return;
	n = sample_count < SAMPLES ? (int)sample_count : SAMPLES;
	for (int i = 0; i < n; i++) {
		int j = i;
		for (; j > 0 && sorted[j - 1] > samples[i]; j--)
			sorted[j] = sorted[j - 1];
		sorted[j] = samples[i];
	}
	while (sorted[first] < sorted[n - 3] / 2)
		first++;
	switch_ns = sorted[first + (n - 1 - first) * 9 / 10];
	for (int i = 0; i < GP_GPUS && gp_gpu[i].known; i++)
		if (gp_own_slot(&gp_gpu[i]))
			gp_own_slot(&gp_gpu[i])->hint_switch_us = (uint32_t)(switch_ns / 1000);
}

// What may be saved up, and owed: a second's.
static double full_account_ns(void) { return gp_settings.hint_max_cost * 1e9; }

// A hint that turns out to be wrong must not use up what many others need.
static uint64_t most_at_once_ns(void) { return (uint64_t)(full_account_ns() / 8); }

static void refill(uint64_t now)
{
	double most = full_account_ns(), more = gp_settings.hint_max_cost * (double)(now - credited_ns);
	spin_credit_ns += SPIN_SHARE * (double)(now - credited_ns);
	if (spin_credit_ns > SPIN_SAVED_NS)
		spin_credit_ns = SPIN_SAVED_NS;
	credited_ns = now;
	credit_ns = credit_ns + more < most ? credit_ns + more : most;
	for (int i = 0; i < (int)GP_HINT_SOURCES; i++)
		account[i].credit_ns = account[i].credit_ns + more < most ? account[i].credit_ns + more : most;
}

// What became of a hint: counts, and switches a source off that costs too much or is mostly wrong. Returns
// for how long, or 0.
static uint64_t settle(uint32_t source, bool hit, uint64_t cost_ns, uint64_t now)
{
	enum { MEMORY = 8 };
	account[source].rate += ((hit ? 1 : 0) - account[source].rate) / MEMORY;
	account[source].credit_ns -= (double)cost_ns;
	credit_ns -= (double)cost_ns;
	if (credit_ns < -full_account_ns())
		credit_ns = -full_account_ns();
	if (account[source].credit_ns < -full_account_ns())
		account[source].credit_ns = -full_account_ns();
	if (account[source].rate > 0.8)
		account[source].backoff_ns = FIRST_BACKOFF_NS;
	if (account[source].credit_ns > 0 && account[source].rate >= 0.5)
		return 0;
	uint64_t off = account[source].backoff_ns;
	if (account[source].rate < 0.5) {
		account[source].backoff_ns = off * 2 < LAST_BACKOFF_NS ? off * 2 : LAST_BACKOFF_NS;
	} else if (gp_settings.hint_max_cost > 0) { // useful, only too expensive
		double debt_ns = -account[source].credit_ns / gp_settings.hint_max_cost;
		off = debt_ns < (double)LAST_BACKOFF_NS ? (uint64_t)debt_ns + REFILL_NS : LAST_BACKOFF_NS;
	}
	account[source].off_until_ns = now + off;
	COUNT(source, off, 1);
	publish_off(source, true);
	return off;
}

// A source that was off gets another chance, of two or three wrong hints.
static void forgive(uint64_t now, uint64_t *next_ns)
{
	for (uint32_t i = 0; i < GP_HINT_SOURCES; i++) {
		if (!account[i].off_until_ns)
			continue;
		if (now >= account[i].off_until_ns) {
			account[i].off_until_ns = 0;
			account[i].rate = 0.7;
			publish_off(i, false);
		} else if (account[i].off_until_ns < *next_ns) {
			*next_ns = account[i].off_until_ns;
		}
	}
}

static uint64_t settle_copies(uint64_t now)
{
	uint32_t hits = __atomic_exchange_n((uint32_t *)&copies_hit, 0, __ATOMIC_RELAXED);
	uint32_t wrongs = __atomic_exchange_n((uint32_t *)&copies_wrong, 0, __ATOMIC_RELAXED);
	uint64_t cost_ns = __atomic_exchange_n((uint64_t *)&copies_wrong_ns, 0, __ATOMIC_RELAXED), off = 0;

	for (; hits && !account[GP_HINT_COPY].off_until_ns; hits--)
		settle(GP_HINT_COPY, true, 0, now);
	for (uint32_t i = 0; i < wrongs && !account[GP_HINT_COPY].off_until_ns; i++)
		off = settle(GP_HINT_COPY, false, cost_ns / wrongs < most_at_once_ns() ? cost_ns / wrongs : most_at_once_ns(), now);
	return off;
}

static bool sample_due(void)
{
	return sample_count < FEW_SAMPLES || (carried_out % SAMPLE_EVERY == 0 && spin_credit_ns > 0); // it spins
}

static bool anybody_to_preempt(void)
{
	for (int i = 0; i < GP_CONTEXTS; i++)
		if (takes_hints(&gp_context[i]))
			return true;
	return false;
}

// Whether a hold began to run since it was armed. With the lock its word is not freed meanwhile.
enum begun { NEVER, NOT_YET, BEGUN };

static enum begun hold_begun(struct gp_context *c, uint32_t before)
{
	enum begun begun = NEVER;

	pthread_mutex_lock(&c->query_lock);
	if (c->handle && c->hold.word && c->hold.word[GP_HOLD_BEGUN] != before)
		begun = BEGUN;
	else if (c->handle && c->hold.state == GP_HOLD_ARMED)
		begun = NOT_YET;
	pthread_mutex_unlock(&c->query_lock);
	return begun;
}

// Sorts a hint in, or drops it.
static void receive(const struct mail *m, uint64_t now)
{
	COUNT(m->source, given, 1);
	if (m->taken) {
		carried_out++;
		memset(&active, 0, sizeof active);
		active.on = active.taken = true;
		active.source = m->source;
		active.began_ns = m->taken_ns;
		active.end_ns = m->start_ns + m->valid_ns + gp_settings.hint_wait_ns;
		active.began_before = m->begun_before;
		active.sampled = sample_due() && hold_begun(m->taken, m->begun_before) == NOT_YET ? m->taken : NULL;
		return;
	}
	uint64_t valid = m->valid_ns < MAX_VALID_NS ? m->valid_ns : MAX_VALID_NS;
	if (valid > most_at_once_ns())
		valid = most_at_once_ns();
	if (!(m->confidence >= gp_settings.hint_min_confidence && m->confidence <= 1) || // also not a number
	    m->start_ns > now + MAX_AHEAD_NS || m->start_ns + valid + gp_settings.hint_wait_ns < now ||
	    account[m->source].off_until_ns || !anybody_to_preempt())
		goto drop;
	uint64_t start = m->start_ns > now ? m->start_ns : now, end = m->start_ns + valid + gp_settings.hint_wait_ns;
	if (active.on && start < active.end_ns)
		goto drop;
	for (int i = 0; i < pending_count; i++)
		if (start < pending[i].end_ns && pending[i].start_ns < end)
			goto drop;
	if (pending_count == PENDING)
		goto drop;
	pending[pending_count++] = (struct pending){m->source, now, start, end, false};
	return;
drop:
	COUNT(m->source, dropped, 1);
}

static uint64_t last_work_ns(struct gp_context *c, uint64_t now)
{
	uint64_t idle_since = c->idle_since_ns;
	return c->open && !idle_since ? now : idle_since;
}

// The hold in one context, whose window is then open. With the lock the context is not destroyed meanwhile.
static void hold_for(struct gp_context *c, uint64_t now, uint64_t end)
{
	CUcontext popped;

	pthread_mutex_lock(&c->query_lock);
	if (!c->handle)
		goto gone;
	c->hint.met_ns = 0;
	c->hint.until_ns = end; // before the look at open: see close_window
	c->hint.awaited_ns = now;
	if (!c->open) {
		gp_window_wake(c->gpu, gp_window_open(c));
		active.taken = true;
	}
	if (c->hold.state == GP_HOLD_IDLE && !gp_driver.cuCtxPushCurrent(c->handle)) {
		uint32_t begun = c->hold.word[GP_HOLD_BEGUN];
		gp_hold_arm(c);
		if (c->hold.state == GP_HOLD_ARMED && !active.sampled && sample_due()) {
			active.sampled = c;
			active.began_before = begun;
		}
		gp_driver.cuCtxPopCurrent(&popped);
	}
gone:
	pthread_mutex_unlock(&c->query_lock);
}

static void carry_out(const struct pending *p, uint64_t now)
{
	struct gp_context *chosen[GP_GPUS];
	uint64_t latest = 0, ahead = (p->start_ns - p->given_ns) / 2, lead = 2 * announced_lead_ns();
	uint64_t since = p->start_ns - (ahead > lead ? ahead : lead), arrived = gp_last_arrival_ns;
	int count = 0;

	if (!(account[p->source].credit_ns > 0) || !(credit_ns > 0) || account[p->source].off_until_ns) {
		COUNT(p->source, dropped, 1);
		return;
	}
	// On each GPU the context that had work last; a GPU that the process no longer uses is left alone.
	for (int i = 0; i < GP_CONTEXTS; i++)
		if (takes_hints(&gp_context[i]) && last_work_ns(&gp_context[i], now) > latest)
			latest = last_work_ns(&gp_context[i], now);
	for (int g = 0; g < GP_GPUS && gp_gpu[g].known; g++) {
		struct gp_context *best = NULL;
		for (int i = 0; i < GP_CONTEXTS; i++) {
			struct gp_context *c = &gp_context[i];
			if (c->gpu == &gp_gpu[g] && takes_hints(c) && !(c->gpu->segment->open & c->gpu->higher) && last_work_ns(c, now) + RECENT_NS >= latest &&
			    (!best || last_work_ns(c, now) > last_work_ns(best, now)))
				best = c;
		}
		if (best)
			chosen[count++] = best;
	}
	bool busy = false;
	for (int i = 0; i < count; i++)
		busy |= chosen[i]->open && !chosen[i]->idle_since_ns;
	if (!count) {
		COUNT(p->source, dropped, 1);
		return;
	}
	if (busy || (arrived > p->given_ns && arrived >= since)) {
		COUNT(p->source, late, 1);
		return;
	}
	uint32_t free = 0; // a caller may be ahead by a moment: then this one is a duplicate
	if (!__atomic_compare_exchange_n((uint32_t *)&in_force, &free, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
		COUNT(p->source, dropped, 1);
		return;
	}
	carried_out++;
	memset(&active, 0, sizeof active);
	active.on = true;
	active.source = p->source;
	active.began_ns = now;
	active.end_ns = p->end_ns;
	for (int i = 0; i < count; i++)
		hold_for(chosen[i], now, p->end_ns);
}

// Ends the wait for work: the windows close as usual from here on. Returns when work came, or 0.
static uint64_t end_wait(void)
{
	uint64_t met = 0;

	for (int i = 0; i < GP_CONTEXTS; i++) {
		struct gp_context *c = &gp_context[i];
		if (!c->hint.until_ns && !c->hint.met_ns)
			continue;
		c->hint.awaited_ns = 0;
		c->hint.until_ns = 0;
		uint64_t at = __atomic_exchange_n((uint64_t *)&c->hint.met_ns, 0, __ATOMIC_ACQ_REL);
		if (at && (!met || at < met))
			met = at;
	}
	return met;
}

static bool met(void)
{
	for (int i = 0; i < GP_CONTEXTS; i++)
		if (gp_context[i].hint.met_ns)
			return true;
	return false;
}

// Looks after the hint that is being carried out. Returns for how long its source is now off, or 0.
static uint64_t attend(uint64_t now)
{
	if (active.sampled) {
		enum begun begun = hold_begun(active.sampled, active.began_before);
		if (begun == BEGUN)
			learn_switch(now - active.began_ns);
		if (begun != NOT_YET || now - active.began_ns > LONGEST_SWITCH_NS)
			active.sampled = NULL;
	}
	bool came = met();
	if (!came && now < active.end_ns)
		return 0;
	if (came && active.sampled)
		return 0; // a little longer, for the sample
	active.on = false;
	uint64_t at = end_wait(), off;
	in_force = 0;
	if (at) {
		uint64_t waited = at > active.began_ns ? at - active.began_ns : 0;
		// The switch is paid for with or without a hint. For take_at_once some more is free.
		uint64_t lead = lead_ns(active.source) + (announced(active.source) ? LONGEST_MARGIN_NS : 0);
		COUNT(active.source, hit, 1);
		COUNT(active.source, waited_ns, waited);
		if (active.taken)
			COUNT(active.source, saved_ns, waited < switch_time_ns() ? waited : switch_time_ns());
		off = settle(active.source, true, waited > lead ? waited - lead : 0, now);
	} else {
		COUNT(active.source, wrong, 1);
		COUNT(active.source, waited_ns, now - active.began_ns);
		off = settle(active.source, false, now - active.began_ns + switch_time_ns(), now);
		gp_wake++; // the watcher closes the window
		gp_futex_wake(&gp_wake, 1, false);
	}
	return off;
}

uint64_t gp_hint_run(uint32_t *source)
{
	static __thread bool relaxed;

	if (!relaxed) { // a capture in global mode must not be broken by the hold's launch
		int mode = CU_STREAM_CAPTURE_MODE_RELAXED_;
		gp_driver.cuThreadExchangeStreamCaptureMode(&mode);
		relaxed = true;
	}
	for (;;) {
		uint32_t seen = bell;
		uint64_t began = gp_now_ns(), now = began, next = UINT64_MAX;
		struct mail m;

		refill(now);
		forgive(now, &next);
		for (uint32_t i = 0; i < GP_HINT_SOURCES; i++) {
			uint32_t lost = __atomic_exchange_n((uint32_t *)&overflowed[i], 0, __ATOMIC_RELAXED);
			if (lost) {
				COUNT(i, given, lost);
				COUNT(i, dropped, lost);
			}
		}
		*source = GP_HINT_COPY;
		uint64_t copies_off = settle_copies(now);
		if (copies_off)
			return copies_off;
		if (active.on) {
			*source = active.source;
			uint64_t off = attend(now);
			if (off)
				return off;
		}
		for (int i = 0; i < MAILS && take_mail(&m); i++)
			receive(&m, now);
		for (int i = 0; i < pending_count;) {
			bool guessed = !announced(pending[i].source);
			uint64_t lead = lead_ns(pending[i].source), early = guessed ? early_ns : 0;
			uint64_t due = pending[i].start_ns > lead ? pending[i].start_ns - lead : 0;
			if (active.on && due < active.end_ns && due <= now) {
				due = met() ? now : active.end_ns; // one at a time; the window stays open meanwhile
				pending[i].postponed = true;
			}
			if (due > now + early || active.on) {
				due -= active.on ? 0 : early;
				next = due < next ? due : next;
				i++;
				continue;
			}
			if (due > now) {
				now = spin(due, seen);
				if (bell != seen) {
					next = now;
					break;
				}
			} else if (!guessed && due > pending[i].given_ns && !pending[i].postponed) {
				learn_margin(now - due);
			}
			struct pending p = pending[i];
			pending[i] = pending[--pending_count];
			carry_out(&p, now);
		}
		if (active.on && active.sampled) // exact to the microsecond, which sleeping is not
			next = now - active.began_ns < SAMPLE_SPIN_NS ? 0 : now + SAMPLE_POLL_NS;
		else if (active.on && active.end_ns < next)
			next = active.end_ns;
		uint32_t trust = 0;
		for (uint32_t i = 0; i < GP_HINT_SOURCES && credit_ns > 0; i++)
			if (account[i].credit_ns > 0 && !account[i].off_until_ns)
				trust |= 1u << i;
		trusted = trust;
		published_lead_ns = announced_lead_ns();
		now = gp_now_ns();
		if (next <= now) {
			if (next == 0)
				spun(now - began); // for the sample
			continue;
		}
		asleep = 1;
		gp_futex_wait(&bell, seen, next == UINT64_MAX ? 0 : next - now, false);
		asleep = 0;
		if (bell == seen && next - now > LONGEST_EARLY_NS)
			learn_wake(gp_now_ns() > next ? gp_now_ns() - next : 0);
	}
}

void gp_hint_start(void)
{
	credited_ns = gp_now_ns();
	credit_ns = gp_settings.hint_max_cost * 0.5e9;
	for (uint32_t i = 0; i < GP_HINT_SOURCES; i++) {
		account[i].credit_ns = credit_ns;
		account[i].rate = 1;
		account[i].backoff_ns = FIRST_BACKOFF_NS;
	}
	for (uint32_t i = 0; i < MAILS; i++)
		mail[i].turn = i;
	gp_settings.hints = 1;
}

// The launch path.

_Atomic uint64_t gp_last_arrival_ns;

void gp_hint_work(struct gp_context *c, const struct gp_submission *s)
{
	if (!gp_settings.hints)
		return;
	uint64_t now = gp_now_ns();
	bool kernels = s->work == GP_KERNEL || s->work == GP_GRAPH;
	bool awaited = c->hint.awaited_ns && __atomic_exchange_n((uint64_t *)&c->hint.awaited_ns, 0, __ATOMIC_ACQ_REL);
	struct gp_slot *slot = gp_own_slot(c->gpu);

	if (awaited) {
		c->hint.met_ns = now;
		c->hint.until_ns = 0;
	}
	if (awaited || !c->open) {
		gp_last_arrival_ns = now;
		gp_arrivals.at_ns[gp_arrivals.count++ % 256] = now;
	}
	// A copy that opens the window is a hint that kernels follow.
	if (!slot || !c->gpu->lower_peers)
		return;
	struct gp_hint_counters *counters = &slot->hint[GP_HINT_COPY];
	if (!c->open && !awaited && s->work == GP_COPY && gp_settings.hint_copy) {
		gp_count(&counters->given, 1);
		c->copied_ns = now;
	} else if (kernels) {
		uint64_t copied = __atomic_exchange_n((uint64_t *)&c->copied_ns, 0, __ATOMIC_ACQ_REL);
		if (copied) {
			gp_count(&counters->hit, 1);
			copies_hit++;
			gp_count(&counters->waited_ns, now - copied);
			gp_count(&counters->saved_ns, now - copied < DEFAULT_SWITCH_NS ? now - copied : DEFAULT_SWITCH_NS);
		}
	}
}

// Memory that is pinned after idle is for copies to come.
void gp_hint_pinned(void)
{
	if (!gp_settings.hint_copy)
		return;
	for (int i = 0; i < GP_CONTEXTS; i++)
		if (gp_context[i].open)
			return;
	gp_hint(GP_HINT_COPY, gp_now_ns(), 0, 1);
}

void gp_hint_closed(struct gp_context *c, uint64_t now)
{
	uint64_t copied = __atomic_exchange_n((uint64_t *)&c->copied_ns, 0, __ATOMIC_ACQ_REL);
	struct gp_slot *slot = gp_own_slot(c->gpu);

	if (copied && slot) {
		gp_count(&slot->hint[GP_HINT_COPY].wrong, 1);
		gp_count(&slot->hint[GP_HINT_COPY].waited_ns, now - copied);
		copies_wrong_ns += now - copied;
		copies_wrong++;
		bell++;
		if (asleep)
			gp_futex_wake(&bell, 1, false);
	}
	if (gp_settings.hints) {
		gp_arrivals.bell++;
		gp_futex_wake(&gp_arrivals.bell, 1, false);
	}
}
