// carry.c - carries out hints: takes the GPU a switch ahead of announced work, and gives it back if none comes.
//
// Any thread puts hints into a mailbox. One thread (gp_hint_run) opens the window and arms the hold at the right time. Work
// that comes finds the window open. The hold ends when the window closes as usual, so it is never released before the work
// is queued.
#define _GNU_SOURCE
#include "hints/carry.h"
#include "preempt/gpu/objective.h"

#include <stdio.h>
#include <string.h>

static const uint64_t MAX_AHEAD_NS = 10ull * 1000000000; // a hint for later is nonsense
static const uint64_t RECENT_NS = 10ull * 1000000000;    // contexts without work for longer get no hold
enum {
	MAILS = 64,
	PENDING = 16,
};

// The mailbox: a bounded queue of many writers. A place is free for position p while its turn is p.

static struct mail {
	_Atomic uint32_t turn;
	uint32_t source;
	uint64_t start_ns, valid_ns;
	double confidence;
	struct gp_context *taken; // the caller carried the hint out, at
	uint64_t taken_ns;
	bool left; // but for the hold, which the watcher arms
} mail[MAILS];
_Atomic uint32_t gp_hint_bell, gp_hint_dropped;
_Atomic uint64_t gp_hint_due_ns;
static _Atomic uint32_t mail_end, asleep, overflowed[GP_HINT_SOURCES];
static uint32_t mail_begin;

// For callers: the set of sources whose hints callers may carry out themselves, how far ahead, and whether one is in force.
static _Atomic uint32_t trusted, in_force;
static _Atomic uint64_t published_lead_ns, watched_lead_ns; // the watcher is there in time for what comes so much later

// Under an MPS server a window is enough: its clients share one TSG, and lower levels stop as it opens. But it saves tens of microseconds there,
// not a switch, which guesses are not worth.
static bool takes_hints(struct gp_context *c, uint32_t source)
{
	if (!c->handle || !c->gpu->segment || (gp_objective_on && gp_lent(c->gpu))) // its next launch is on its way
		return false;
	return c->gpu->mps ? c->gpu->lower_peers && gp_hint_announced(source) : gp_holds(c);
}

// Whether the GPU is another process's. Under an MPS server equals run beside each other, and the window is needed once theirs is closed.
static bool is_taken(const struct gp_gpu *g)
{
	return gp_windows_open(g->segment, g->mps ? g->higher : g->higher | g->same);
}

// A hint may be for work that is due about as soon as a switch takes. The thread that gives it carries it out, if that thread works on
// the GPU: another thread would wake tens of microseconds later, sometimes hundreds. Where there is time for that, the watcher arms the
// hold (gp_hold_look): on an H100 that takes 25 us, for which the caller's request would wait.
// Returns the processes to wake (gp_window_wake), once the hint is in the mailbox.
static uint32_t take_at_once(struct mail *m)
{
	uint64_t now = gp_now_ns();
	uint32_t free = 0;

	if (gp_away || !gp_hint_announced(m->source) || !(trusted & 1u << m->source) || in_force ||
	    !(m->confidence >= GP_LEAST_CONFIDENCE && m->confidence <= 1) ||
	    m->start_ns > now + published_lead_ns + gp_hint_longest_margin_ns ||
	    m->start_ns + m->valid_ns + gp_settings.hint_wait_ns < now)
		return 0;
	struct gp_context *c = gp_current_context();
	if (!c || gp_is_open(c) || !takes_hints(c, m->source) || is_taken(c->gpu) ||
	    !__atomic_compare_exchange_n((uint32_t *)&in_force, &free, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		return 0;
	m->taken = c;
	m->taken_ns = now;
	c->hint.met_ns = 0;
	c->hint.until_ns = m->start_ns + m->valid_ns + gp_settings.hint_wait_ns;
	c->hint.awaited_ns = now;
	uint32_t wakes = gp_window_open(c);
	m->left = m->start_ns >= now + watched_lead_ns;
	if (!m->left && gp_holds(c))
		gp_hold_arm(c);
	return wakes;
}

// A caller that opened the window wakes the watcher, which wakes the thread of gp_hint_run: each wake-up takes microseconds, for which
// the caller's work waits.
static _Atomic uint32_t owed;

void gp_wake_hint_thread(void)
{
	if (owed && __atomic_exchange_n((uint32_t *)&owed, 0, __ATOMIC_ACQ_REL))
		gp_hint_ring();
}

void gp_hint_ring(void)
{
	gp_hint_bell++;
	if (asleep)
		gp_futex_wake(&gp_hint_bell, 1, false);
}

void gp_hint(enum gp_hint_source source, uint64_t start_ns, uint64_t valid_ns, double confidence)
{
	if (!gp_settings.hints || (uint32_t)source >= GP_HINT_SOURCES)
		return;
	if (__builtin_expect(gp_away, 0)) // memory for the work takes longer to come than the GPU
		gp_recall();
	struct mail hint = {.source = source, .start_ns = start_ns, .valid_ns = valid_ns, .confidence = confidence};
	if (valid_ns > gp_hint_most_at_once_ns()) // for any thread that carries it out
		hint.valid_ns = gp_hint_most_at_once_ns();
	if (gp_objective_on && gp_hint_announced(source))
		gp_lend_request(gp_now_ns());
	uint32_t wakes = take_at_once(&hint);
	uint32_t place = mail_end;
	for (;;) {
		int32_t ahead = (int32_t)(mail[place % MAILS].turn - place);
		if (ahead < 0) { // full
			overflowed[source]++;
			if (hint.taken) {
				hint.taken->hint.awaited_ns = hint.taken->hint.until_ns = 0;
				in_force = 0;
				gp_window_wake(hint.taken->gpu, wakes);
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
	m->valid_ns = hint.valid_ns;
	m->confidence = confidence;
	m->taken = hint.taken;
	m->taken_ns = hint.taken_ns;
	m->left = hint.left;
	m->turn = place + 1;
	if (wakes) { // the watcher at least
		owed = 1;
		gp_window_wake(hint.taken->gpu, wakes);
	} else {
		gp_hint_ring();
	}
}

static bool take_mail(struct mail *out)
{
	struct mail *m = &mail[mail_begin % MAILS];
	if (m->turn != mail_begin + 1)
		return false;
	*out = (struct mail){0, m->source, m->start_ns, m->valid_ns, m->confidence, m->taken, m->taken_ns, m->left};
	m->turn = mail_begin + MAILS;
	mail_begin++;
	return true;
}

// From here on, all state belongs to the thread of gp_hint_run.

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
	bool taken; // the hint took the GPU; else the process had it already
} active;

static bool anybody_to_preempt(uint32_t source)
{
	for (int i = 0; i < GP_CONTEXTS; i++)
		if (takes_hints(&gp_context[i], source))
			return true;
	return false;
}

static void drop(uint32_t source, enum gp_hint_dropped why)
{
	GP_HINT_COUNT(source, dropped, 1);
	gp_hint_dropped = why;
}

// Whether the work came for which a hint is in force.
static bool met(void)
{
	for (int i = 0; i < GP_CONTEXTS; i++)
		if (gp_context[i].hint.met_ns)
			return true;
	return false;
}

// Inserts a hint by its time, or drops it.
static void receive(const struct mail *m, uint64_t now)
{
	GP_HINT_COUNT(m->source, given, 1);
	if (m->taken) {
		uint64_t armed_ns = m->taken->hold.started_ns; // by now, or there was a reason not to
		if (!m->left)
			gp_hint_try_watcher();
		else if (armed_ns > m->taken_ns)
			gp_hint_learn_watcher(armed_ns - m->taken_ns);
		memset(&active, 0, sizeof active);
		active.on = active.taken = true;
		active.source = m->source;
		active.began_ns = m->taken_ns;
		active.end_ns = m->start_ns + m->valid_ns + gp_settings.hint_wait_ns;
		return;
	}
	uint64_t start = m->start_ns > now ? m->start_ns : now, end = m->start_ns + m->valid_ns + gp_settings.hint_wait_ns;
	if (!(m->confidence >= GP_LEAST_CONFIDENCE && m->confidence <= 1) || // also not a number
	    m->start_ns > now + MAX_AHEAD_NS || end < now)
		return drop(m->source, GP_DROPPED_DOUBTFUL);
	if (gp_hint_off(m->source))
		return drop(m->source, GP_DROPPED_OFF);
	if (!anybody_to_preempt(m->source))
		return drop(m->source, GP_DROPPED_NOBODY);
	if ((active.on && !met() && start < active.end_ns) || pending_count == PENDING)
		return drop(m->source, GP_DROPPED_OVERLAPS);
	for (int i = 0; i < pending_count; i++)
		if (start < pending[i].end_ns && pending[i].start_ns < end)
			return drop(m->source, GP_DROPPED_OVERLAPS);
	pending[pending_count++] = (struct pending){m->source, now, start, end, false};
}

static uint64_t last_work_ns(struct gp_context *c, uint64_t now)
{
	return gp_window_state(c->window) == GP_OPEN ? now : c->idle_since_ns;
}

// Opens the window of a context and arms its hold. Holds the lock, so that the context is not destroyed meanwhile.
static void hold_for(struct gp_context *c, uint64_t activity, uint64_t now, uint64_t end)
{
	static bool relaxed; // of the thread that carries hints out
	CUcontext popped;
	uint32_t wakes = 0;

	if (!relaxed) // not as the thread begins: the driver may not be initialised yet, and refuses it then
		gp_relax_captures(); // a capture in global mode must not be broken by the hold's launch
	relaxed = true;
	pthread_mutex_lock(&c->query_lock);
	if (!c->handle)
		goto gone;
	c->hint.met_ns = 0;
	c->hint.until_ns = end; // before the look at the window: see close_window
	c->hint.awaited_ns = now;
	// Work that came since the context was found idle may not have seen that it is awaited. No other thread would end the wait.
	if (gp_activity(c) != activity && __atomic_exchange_n((uint64_t *)&c->hint.awaited_ns, 0, __ATOMIC_ACQ_REL)) {
		c->hint.met_ns = now;
		c->hint.until_ns = 0;
	}
	if (!gp_is_open(c)) {
		wakes = gp_window_open(c);
		active.taken = true;
	}
	if (gp_holds(c) && c->hold.state == GP_HOLD_IDLE && !gp_driver.cuCtxPushCurrent(c->handle)) {
		gp_hold_arm(c);
		gp_driver.cuCtxPopCurrent(&popped);
	}
	gp_window_wake(c->gpu, wakes); // the switch need not wait for it
gone:
	pthread_mutex_unlock(&c->query_lock);
}

static void carry_out(const struct pending *p, uint64_t now)
{
	struct gp_context *chosen[GP_GPUS];
	uint64_t activity[GP_GPUS];
	uint64_t latest = 0, ahead = (p->start_ns - p->given_ns) / 2, lead = 2 * gp_hint_lead_ns(GP_HINT_EXPLICIT);
	uint64_t since = p->start_ns - (ahead > lead ? ahead : lead), arrived = gp_last_arrival_ns;
	int count = 0;
	bool busy = false; // work is there already, also where its window is not open yet

	if (p->end_ns <= now) // another's wait lasted for longer than its own, or this thread is so late
		return drop(p->source, GP_DROPPED_OVERLAPS);
	// The work waits for its memory. Holding the GPU until then would only keep others from making room.
	if (gp_away)
		return drop(p->source, GP_DROPPED_AWAY);
	if (!gp_hint_paid(p->source))
		return drop(p->source, gp_hint_off(p->source) ? GP_DROPPED_OFF : GP_DROPPED_UNPAID);
	// On each GPU, the context that had work last. A GPU without recent work is left alone.
	for (int i = 0; i < GP_CONTEXTS; i++)
		if (takes_hints(&gp_context[i], p->source) && last_work_ns(&gp_context[i], now) > latest)
			latest = last_work_ns(&gp_context[i], now);
	for (int g = 0; g < GP_GPUS && gp_gpu[g].known; g++) {
		struct gp_context *best = NULL;
		for (int i = 0; i < GP_CONTEXTS; i++) {
			struct gp_context *c = &gp_context[i];
			if (c->gpu == &gp_gpu[g] && takes_hints(c, p->source) && !is_taken(c->gpu) &&
			    last_work_ns(c, now) + RECENT_NS >= latest &&
			    (!best || last_work_ns(c, now) > last_work_ns(best, now)))
				best = c;
		}
		if (best) {
			uint64_t word = best->window;
			activity[count] = gp_window_activity(word);
			busy |= word & GP_WINDOW_WORKS;
			chosen[count++] = best;
		}
	}
	if (!count)
		return drop(p->source, GP_DROPPED_NOBODY);
	if (busy || (arrived > p->given_ns && arrived >= since)) {
		GP_HINT_COUNT(p->source, late, 1); // the request has noted when the hint was due
		return;
	}
	uint32_t free = 0; // a caller may have carried one out a moment ago: then this one is a duplicate
	if (!__atomic_compare_exchange_n((uint32_t *)&in_force, &free, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		return drop(p->source, GP_DROPPED_OVERLAPS);
	memset(&active, 0, sizeof active);
	active.on = true;
	active.source = p->source;
	active.began_ns = now;
	active.end_ns = p->end_ns;
	for (int i = 0; i < count; i++)
		hold_for(chosen[i], activity[i], now, p->end_ns);
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

// Looks after the hint in force. Returns for how long its source is now off, nanoseconds, or 0.
static uint64_t attend(uint64_t now)
{
	bool came = met();
	if (!came && now < active.end_ns)
		return 0;
	active.on = false;
	uint64_t at = end_wait(), off;
	in_force = 0;
	if (at) {
		uint64_t waited = at > active.began_ns ? at - active.began_ns : 0;
		// A switch costs the same without a hint, so that time is not charged; for take_at_once a little more is not.
		uint64_t lead = gp_hint_lead_ns(active.source) +
				(gp_hint_announced(active.source) ? gp_hint_longest_margin_ns : 0);
		GP_HINT_COUNT(active.source, hit, 1);
		GP_HINT_COUNT(active.source, waited_ns, waited);
		if (active.taken)
			GP_HINT_COUNT(active.source, saved_ns,
				      waited < gp_taking_longest_ns() ? waited : gp_taking_longest_ns());
		off = gp_hint_settle(active.source, true, waited > lead ? waited - lead : 0, now);
	} else {
		GP_HINT_COUNT(active.source, wrong, 1);
		gp_hint_dropped = GP_DROPPED_WRONG;
		uint64_t end = now < active.end_ns ? now : active.end_ns; // this thread may be late
		uint64_t waited = end > active.began_ns ? end - active.began_ns : 0;
		GP_HINT_COUNT(active.source, waited_ns, waited);
		off = gp_hint_settle(active.source, false, waited + gp_taking_longest_ns(), now);
		gp_wake_watcher(); // it closes the window
	}
	return off;
}

static void say_off(uint32_t source)
{
	static const char *const name[] = {GP_HINT_NAMES};
	char line[128]; // a text is said once (log_line.c)
	snprintf(line, sizeof line, "hints were wrong or early too often: source %s is off for a while", name[source]);
	gp_log_line(line);
}

void gp_hint_run(void)
{
	for (;;) {
		uint32_t seen = gp_hint_bell;
		uint64_t now = gp_now_ns(), next = UINT64_MAX;
		bool exact = false; // next is when a guess is to be carried out
		struct mail m;

		gp_hint_refill(now);
		gp_hint_forgive(now, &next);
		for (uint32_t i = 0; i < GP_HINT_SOURCES; i++) {
			uint32_t lost = __atomic_exchange_n((uint32_t *)&overflowed[i], 0, __ATOMIC_RELAXED);
			if (lost) {
				GP_HINT_COUNT(i, given, lost);
				GP_HINT_COUNT(i, dropped, lost);
			}
		}
		uint32_t off = gp_hint_settle_copies(now) ? GP_HINT_COPY :
			       active.on && attend(now)   ? active.source :
							    GP_HINT_SOURCES;
		if (off != GP_HINT_SOURCES) { // again, for when it is on once more
			say_off(off);
			continue;
		}
		for (int i = 0; i < MAILS && take_mail(&m); i++)
			receive(&m, now);
		for (int i = 0; i < pending_count;) {
			bool guessed = !gp_hint_announced(pending[i].source);
			uint64_t lead = gp_hint_lead_ns(pending[i].source), early = gp_hint_early_ns(pending[i].source);
			uint64_t due = pending[i].start_ns > lead ? pending[i].start_ns - lead : 0;
			if (active.on && due < active.end_ns && due <= now) {
				due = met() ? now : active.end_ns; // one hint at a time; the window stays open meanwhile
				pending[i].postponed = true;
			}
			if (due > now + early || active.on) {
				due -= active.on ? 0 : early;
				bool nap = guessed && !active.on && due > now + 2 * gp_hint_nap_ns;
				due -= nap ? gp_hint_nap_ns : 0;
				if (due < next) {
					next = due;
					exact = guessed && !active.on && !nap;
				}
				i++;
				continue;
			}
			if (due > now) {
				now = gp_hint_spin(due, seen);
				if (gp_hint_bell != seen) {
					next = now;
					break;
				}
			} else if (!guessed && due > pending[i].given_ns && !pending[i].postponed) {
				gp_hint_learn_margin(now - due);
			}
			struct pending p = pending[i];
			pending[i] = pending[--pending_count];
			carry_out(&p, now);
		}
		if (active.on && active.end_ns < next)
			next = active.end_ns;
		uint32_t trust = 0;
		for (uint32_t i = 0; i < GP_HINT_SOURCES; i++)
			if (gp_hint_paid(i))
				trust |= 1u << i;
		trusted = trust;
		uint64_t first = UINT64_MAX;
		for (int i = 0; i < pending_count; i++)
			if (pending[i].start_ns - gp_hint_lead_ns(pending[i].source) < first)
				first = pending[i].start_ns - gp_hint_lead_ns(pending[i].source);
		gp_hint_due_ns = pending_count ? first : 0;
		published_lead_ns = gp_hint_lead_ns(GP_HINT_EXPLICIT);
		watched_lead_ns = gp_hint_watched_lead_ns();
		now = gp_now_ns();
		if (next <= now)
			continue;
		asleep = 1;
		gp_futex_wait(&gp_hint_bell, seen, next == UINT64_MAX ? 0 : next - now, false);
		asleep = 0;
		if (exact && gp_hint_bell == seen && next - now > gp_hint_nap_ns / 3)
			gp_hint_learn_wake(gp_now_ns() > next ? gp_now_ns() - next : 0);
	}
}

void gp_hint_start(double max_cost, uint64_t wait_ns, bool copies)
{
	if (gp_settings.hints) // an earlier helper has begun it
		return;
	gp_settings.hint_max_cost = max_cost;
	gp_settings.hint_wait_ns = wait_ns;
	gp_settings.hint_copy = copies;
	gp_hint_accounts_begin(gp_now_ns());
	for (uint32_t i = 0; i < MAILS; i++)
		mail[i].turn = i;
	gp_settings.hints = 1;
}
