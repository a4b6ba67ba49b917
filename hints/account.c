// account.c - charges each hint source for the GPU time that it costs the lower levels, and bounds that.
#define _GNU_SOURCE
#include "hints/carry.h"

static const uint64_t REFILL_NS = 100 * 1000000; // a source that took too much waits for this much credit
static const uint64_t FIRST_BACKOFF_NS = 1000000000, LAST_BACKOFF_NS = 64ull * 1000000000;

static struct {
	double credit_ns; // GPU time that it may cost
	double rate;      // of hits, recent ones weigh more
	uint64_t off_until_ns, backoff_ns;
} account[GP_HINT_SOURCES];
static double credit_ns; // of all sources together
static uint64_t credited_ns;

// The launch path and the watcher count copies; they are charged here.
static _Atomic uint32_t copies_hit, copies_wrong;
static _Atomic uint64_t copies_wrong_ns;

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

// Credit and debt are limited to what a second gives.
static double full_account_ns(void) { return gp_settings.hint_max_cost * 1e9; }

// One wrong hint must not use up the credit of many others. With hints.linger_us, which is half of it at most, it stays below the limit
// of a hold.
uint64_t gp_hint_most_at_once_ns(void)
{
	uint64_t paid = (uint64_t)(full_account_ns() / 8), held = gp_settings.max_hold_ns / 4;
	return paid < held ? paid : held;
}

void gp_hint_refill(uint64_t now)
{
	double most = full_account_ns(), more = gp_settings.hint_max_cost * (double)(now - credited_ns);
	gp_hint_earn_spinning(now - credited_ns);
	credited_ns = now;
	credit_ns = credit_ns + more < most ? credit_ns + more : most;
	for (int i = 0; i < (int)GP_HINT_SOURCES; i++)
		account[i].credit_ns = account[i].credit_ns + more < most ? account[i].credit_ns + more : most;
}

// Counts what became of a hint. Switches its source off if that costs too much or is mostly wrong. Returns for how long, in
// nanoseconds, or 0.
uint64_t gp_hint_settle(uint32_t source, bool hit, uint64_t cost_ns, uint64_t now)
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
	} else if (gp_settings.hint_max_cost > 0) { // useful but too expensive
		double debt_ns = -account[source].credit_ns / gp_settings.hint_max_cost;
		off = debt_ns < (double)LAST_BACKOFF_NS ? (uint64_t)debt_ns + REFILL_NS : LAST_BACKOFF_NS;
	}
	account[source].off_until_ns = now + off;
	GP_HINT_COUNT(source, times_off, 1);
	publish_off(source, true);
	return off;
}

// A source that was off gets another chance, of two or three wrong hints.
void gp_hint_forgive(uint64_t now, uint64_t *next_ns)
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

uint64_t gp_hint_settle_copies(uint64_t now)
{
	uint32_t hits = __atomic_exchange_n((uint32_t *)&copies_hit, 0, __ATOMIC_RELAXED);
	uint32_t wrongs = __atomic_exchange_n((uint32_t *)&copies_wrong, 0, __ATOMIC_RELAXED);
	uint64_t cost_ns = __atomic_exchange_n((uint64_t *)&copies_wrong_ns, 0, __ATOMIC_RELAXED), off = 0;

	for (; hits && !account[GP_HINT_COPY].off_until_ns; hits--)
		gp_hint_settle(GP_HINT_COPY, true, 0, now);
	uint64_t most_ns = gp_hint_most_at_once_ns(), each_ns = wrongs ? cost_ns / wrongs : 0;
	for (uint32_t i = 0; i < wrongs && !account[GP_HINT_COPY].off_until_ns; i++)
		off = gp_hint_settle(GP_HINT_COPY, false, each_ns < most_ns ? each_ns : most_ns, now);
	return off;
}

bool gp_hint_off(uint32_t source) { return account[source].off_until_ns; }

bool gp_hint_paid(uint32_t source) { return account[source].credit_ns > 0 && credit_ns > 0 && !gp_hint_off(source); }

void gp_hint_copy_hit(void) { copies_hit++; }

void gp_hint_copy_wrong(uint64_t waited_ns)
{
	copies_wrong_ns += waited_ns;
	copies_wrong++;
	gp_hint_ring();
}

void gp_hint_accounts_begin(uint64_t now)
{
	credited_ns = now;
	credit_ns = gp_settings.hint_max_cost * 0.5e9;
	for (uint32_t i = 0; i < GP_HINT_SOURCES; i++) {
		account[i].credit_ns = credit_ns;
		account[i].rate = 1;
		account[i].backoff_ns = FIRST_BACKOFF_NS;
	}
}
