// take.c - calls for which the driver waits for a context with its lock: those that take memory, and loads of code.
//
// Calls that take memory keep work of others off until they are over (gp_blp_keep_off): below.
//
// A thread that submits meanwhile waits in the driver, for that lock. If it held a domain's lock, it would also keep off questions about
// streams, which the driver answers at once. With such an answer a thread may let go what the call waits for.
// Writers: the thread of such a call, which counts itself in the context's domains (driver_waits), each under its lock, until the
// driver's function has returned. Readers: threads that are to submit with that lock held; they look with the lock, and wait without it.
// Pairing: both hold the lock. So a thread submits before the call is counted, or finds it there. Without this a call and a submission
// with the lock held wait for each other. A thread that waits in the driver without a lock needs none of this.
//
// Such calls may follow each other without end. A call lets those ahead that wait when it comes.
#define _GNU_SOURCE
#include "preempt/blp/domain.h"
#include "preempt/code/code.h"

// Work that another thread puts there meanwhile waits for the call, and not the call for that work: it may wait for the calling thread.
// Here a call that takes memory waits for the log first. So work is kept off from then on until the driver's function has returned; it
// has got no count and no lock yet. No thread waits longer for it than in the driver: the call waits for what was there. A stop that the
// program asked for is the exception. The program may want the work done before it ends the stop, for which the call waits: meanwhile
// nothing is kept off. Nor is anything by calls that begin later: a thread of the program may always have one under way.
struct take {
	struct take *next;
	CUcontext context; // gp_context.primary_context; NULL: none is under way that takes memory
	uint64_t number;
	uint64_t waits;                   // domains in which the calling thread is counted: one bit for each place
	uint64_t generation[BLP_DOMAINS]; // numbers of these domains
};
_Static_assert(BLP_DOMAINS <= 64, "a bit for each domain");
static struct {
	pthread_mutex_t lock; // of what follows; no other is taken under it
	pthread_cond_t changed;
	struct take *first; // under way
	uint64_t numbers;   // ever
	struct late *late;
} takes = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
GP_OF_THREAD struct take take;

// Operations that wait in the library for what is ahead of them. The driver would have them by now. So a call that takes memory, and came
// later, does not overtake them: it would wait, with the driver's lock, for what may wait for them. They may wait for the end of a stop,
// and in another context. So nothing waits for them while the program has a stream stopped: it may want the call done first. Once the
// driver has been called it may wait for room in a queue, but mostly takes no time.
enum { LATE_NS = 10 * 1000 * 1000 };
struct late {
	struct late *next;
	CUcontext context;           // gp_context.primary_context
	uint64_t came;               // as there had been so many calls, or more
	_Atomic uint64_t entered_ns; // the driver's function is called since then; 0: not yet
};
GP_OF_THREAD struct late late;
__thread bool blp_is_late;

// A window is to stop the domain, and close_gate has put that off, or has not come yet.
static bool is_awaited(const struct gp_domain *d) { return !blp_is_closed(d) && blp_wanted_stopped(d); }

// d->lock is held.
static void leave(struct gp_domain *d)
{
	if (--d->driver_waits)
		return;
	pthread_cond_broadcast(&d->driver_left);
	if (is_awaited(d))
		gp_ring_windows(d->gpu);
}

static void leave_driver(struct take *t)
{
	for (; t->waits; t->waits &= t->waits - 1) {
		int i = __builtin_ctzll(t->waits);
		struct gp_domain *d = blp_domains[i];
		pthread_mutex_lock(&d->lock);
		if (d->generation == t->generation[i] && d->driver_waits)
			leave(d);
		pthread_mutex_unlock(&d->lock);
	}
}

static void end_take(struct take *t)
{
	leave_driver(t);
	if (!t->context)
		return;
	pthread_mutex_lock(&takes.lock);
	struct take **at = &takes.first;
	while (*at != t)
		at = &(*at)->next;
	*at = t->next;
	t->context = NULL;
	gp_blp_takes--;
	pthread_cond_broadcast(&takes.changed);
	pthread_mutex_unlock(&takes.lock);
}

void blp_take_ends_with_thread(void)
{
	end_take(GP_MINE(take));
	blp_end_late();
}

// One that is under way is over: the program left it by longjmp, or a profiler is called back in it.
void blp_begin_take(CUcontext context)
{
	struct take *mine = GP_MINE(take);
	end_take(mine);
	if (!context || !gp_thread_is_heard())
		return;
	pthread_mutex_lock(&takes.lock);
	mine->next = takes.first;
	mine->context = context;
	mine->number = ++takes.numbers;
	takes.first = mine;
	gp_blp_takes++;
	pthread_mutex_unlock(&takes.lock);
}

void blp_end_take(void) { end_take(GP_MINE(take)); }

static bool is_own(const struct gp_domain *d)
{
	struct take *mine = GP_MINE(take);
	for (uint64_t left = mine->waits; left; left &= left - 1)
		if (blp_domains[__builtin_ctzll(left)] == d)
			return true;
	return false;
}

// Programs ask about a kernel by one handle and launch it by another. So no launch tells that the code of the first one is loaded.
bool gp_blp_may_load(CUcontext current, CUfunction function)
{
	const struct gp_context *c = gp_find_context(current);
	uint64_t context = c ? 1ull << (c - gp_context) : 0;
	return c && blp_loads_lazily && !gp_code_is_loaded(function, context) && !gp_code_learn_loaded(function, context);
}

bool gp_blp_is_nested(void)
{
	const struct take *mine = GP_MINE(take);
	return blp_inside || mine->waits || mine->context;
}

bool blp_driver_waits(const struct gp_domain *d) { return d->driver_waits && !is_own(d); }

bool blp_give_way_slowly(struct gp_domain *d)
{
	uint64_t generation = d->generation;
	if (!blp_driver_waits(d))
		return false;
	d->giving_way++;
	while (d->driver_waits && d->generation == generation)
		gp_wait_changed(&d->driver_left, &d->lock, NULL);
	if (!--d->giving_way)
		pthread_cond_broadcast(&d->driver_left);
	return true;
}

// Counts a call in a domain. Work that is to be submitted, and a window's stop, wait for the end of such calls and come first. The call
// is not counted during such a stop. One that the program asked for is not waited for: its end may come behind the call. Nor is it known
// that a window's stop comes soon. False: to be tried again. d->lock is held.
enum { AWAITED_NS = 10 * 1000 * 1000 };
static bool enter(struct gp_domain *d, uint64_t since_ns)
{
	if (d->giving_way || (is_awaited(d) && gp_now_ns() - since_ns < AWAITED_NS))
		return false;
	d->driver_waits++; // before the state is read: close_gate
	if (d->state < BLP_CLOSING || d->reasons & ~(uint32_t)GP_BLP_WINDOW || d->given_up)
		return true;
	leave(d);
	return false;
}

// Counts the calling thread's call in all domains of a context. False: in one of them it cannot be yet.
static bool enter_all(CUcontext whole, uint64_t since_ns)
{
	struct take *mine = GP_MINE(take);
	bool entered = true;
	for (int i = 0; i < BLP_DOMAINS && blp_domains[i] && entered; i++) {
		struct gp_domain *d = blp_domains[i];
		if (!d->context || d->primary_context != whole)
			continue;
		pthread_mutex_lock(&d->lock);
		if (d->context && d->primary_context == whole && (entered = enter(d, since_ns))) {
			mine->waits |= 1ull << i;
			mine->generation[i] = d->generation;
		}
		pthread_mutex_unlock(&d->lock);
	}
	return entered;
}

// In all domains or in none while it waits: the end of one's stop may wait for calls that are counted in another one.
void blp_begin_driver_wait(CUcontext whole)
{
	struct take *mine = GP_MINE(take);
	uint64_t since = gp_now_ns();
	leave_driver(mine);
	if (!whole || blp_inside || !gp_thread_is_heard())
		return;
	while (!enter_all(whole, since)) {
		leave_driver(mine);
		blp_pause(since);
	}
}

void gp_blp_loading(bool begins)
{
	struct take *mine = GP_MINE(take);
	end_take(mine);
	if (begins && blp_domains[0])
		blp_begin_driver_wait(gp_primary_context(gp_current_handle()));
}

void blp_begin_late(CUcontext context)
{
	struct late *l = GP_MINE(late);
	l->entered_ns = 0;
	if (blp_is_late)
		return;
	if (!gp_thread_is_heard())
		return;
	CUcontext whole = gp_primary_context(context);
	pthread_mutex_lock(&takes.lock);
	l->context = whole;
	l->next = takes.late;
	takes.late = l;
	blp_is_late = true;
	pthread_mutex_unlock(&takes.lock);
}

void blp_late_enters(void)
{
	struct late *l = GP_MINE(late);
	if (l->entered_ns)
		return;
	l->entered_ns = gp_now_ns();
	if (!gp_blp_takes)
		return;
	pthread_mutex_lock(&takes.lock);
	pthread_cond_broadcast(&takes.changed);
	pthread_mutex_unlock(&takes.lock);
}

void blp_late_ends(void)
{
	struct late *l = GP_MINE(late);
	blp_is_late = false;
	pthread_mutex_lock(&takes.lock);
	struct late **at = &takes.late;
	while (*at != l)
		at = &(*at)->next;
	*at = l->next;
	if (gp_blp_takes)
		pthread_cond_broadcast(&takes.changed);
	pthread_mutex_unlock(&takes.lock);
}

static bool asked_to_stop(CUcontext context)
{
	for (int i = 0; i < BLP_DOMAINS && blp_domains[i]; i++)
		if (blp_domains[i]->primary_context == context && blp_domains[i]->reasons & ~(uint32_t)GP_BLP_WINDOW)
			return true;
	return false;
}

// takes.lock is held.
static bool keeps_off(CUcontext context, uint64_t came)
{
	struct take *mine = GP_MINE(take);
	for (const struct take *t = takes.first; t; t = t->next)
		if (t != mine && t->context == context && t->number <= came)
			return !asked_to_stop(context);
	return false;
}

bool gp_blp_keeps_off(const struct gp_operation *o)
{
	struct late *l = GP_MINE(late);
	pthread_mutex_lock(&takes.lock);
	l->came = takes.numbers;
	bool off = o->handle && !blp_inside && keeps_off(gp_primary_context(o->handle), takes.numbers);
	pthread_mutex_unlock(&takes.lock);
	return off;
}

void gp_blp_keep_off(const struct gp_operation *o)
{
	CUcontext whole = gp_primary_context(o->handle);
	pthread_mutex_lock(&takes.lock);
	for (uint64_t came = takes.numbers; keeps_off(whole, came);)
		gp_wait_changed(&takes.changed, &takes.lock, NULL);
	pthread_mutex_unlock(&takes.lock);
}

// Whether the calling thread's call is to wait. until_ns: no longer than this; UINT64_MAX: without a bound. takes.lock is held.
static bool overtakes(uint64_t *until_ns)
{
	const struct late *own = GP_MINE(late);
	const struct take *mine = GP_MINE(take);
	uint64_t now = gp_now_ns();
	*until_ns = 0;
	for (int i = 0; i < BLP_DOMAINS && blp_domains[i]; i++)
		if (blp_domains[i]->context && blp_domains[i]->reasons & ~(uint32_t)GP_BLP_WINDOW)
			return false;
	for (const struct late *l = takes.late; l; l = l->next) {
		uint64_t until = l->entered_ns ? l->entered_ns + LATE_NS : UINT64_MAX;
		if (l != own && l->context == mine->context && l->came < mine->number && until > now && until > *until_ns)
			*until_ns = until;
	}
	return *until_ns;
}

void blp_come_behind_late(void)
{
	struct take *mine = GP_MINE(take);
	uint64_t until;
	pthread_mutex_lock(&takes.lock);
	while (mine->context && overtakes(&until)) {
		if (until == UINT64_MAX) {
			gp_wait_changed(&takes.changed, &takes.lock, NULL);
			continue;
		}
		pthread_mutex_unlock(&takes.lock);
		gp_nap(20 * 1000);
		pthread_mutex_lock(&takes.lock);
	}
	pthread_mutex_unlock(&takes.lock);
}

// A kept-off thread looks at the reasons with takes.lock. This comes after they have changed, and wakes the threads that did not see
// that.
void blp_let_in(void)
{
	if (!gp_blp_takes)
		return;
	pthread_mutex_lock(&takes.lock);
	pthread_cond_broadcast(&takes.changed);
	pthread_mutex_unlock(&takes.lock);
}
