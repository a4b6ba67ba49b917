// account.c - what the program has of each GPU's memory, in bytes: ranges, and what the driver allocates for it.
//
// Writers: threads of the process, under lock. Readers: agents of other processes, which decide by the published words and read them one by
// one. Pairing: a process lacks the bytes by which claimed exceeds resident and pinned. A call that has waited for room counts in claimed
// from its wait to its end, whether an account has its bytes or not. So claimed stays the same when an account takes them, and when the
// driver refuses and they are given back. Without that this breaks: a reader counts the bytes both as lacking and as there, or as neither.
#define _GNU_SOURCE
#include "preempt/memory/own.h"
#include "preempt/process/thread.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

// Of the accounts, and of what is published of them. One account alone is read without it.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

// Claims of the thread's calls. A call that never returns, since the thread ends in it, claims nothing any more.
GP_OF_THREAD struct claims { uint64_t wanted[GP_GPUS], met[GP_GPUS]; } claims;

static struct gp_gpu *gpu_of(const _Atomic uint64_t *account)
{
	return &gp_gpu[((uintptr_t)account - (uintptr_t)gp_memory) / sizeof *gp_memory];
}

// Under the lock. While the process is checkpointed it has no device memory: the driver has freed that until it restores the process.
static struct gp_accounts read_accounts(const struct gp_gpu *gpu)
{
	const struct gp_memory *m = gp_memory_of(gpu);
	bool freed = gp_membership == GP_CHECKPOINTED;
	return (struct gp_accounts){freed ? 0 : m->resident, m->swapped, freed ? 0 : m->pinned, m->wanted, m->met};
}

uint64_t gp_account_own(const struct gp_gpu *gpu)
{
	struct gp_accounts a = gp_memory_accounts(gpu);
	return a.resident + a.swapped + a.pinned;
}

struct gp_accounts gp_memory_accounts(const struct gp_gpu *gpu)
{
	pthread_mutex_lock(&lock);
	struct gp_accounts a = read_accounts(gpu);
	pthread_mutex_unlock(&lock);
	return a;
}

// Tells the agents of others at once: what they cannot account for they take for memory of other programs. Under the lock.
static void publish(struct gp_gpu *gpu)
{
	struct gp_accounts a = read_accounts(gpu);
	struct gp_slot *slot = gp_own_slot(gpu);
	gp_memory_of(gpu)->changes++;
	if (!slot)
		return;
	uint64_t stays = gp_memory_of(gpu)->stays, own = a.resident + a.swapped + a.pinned;
	stays = stays < a.resident ? stays : a.resident;
	atomic_store_explicit(&slot->memory.resident, a.resident - stays, memory_order_relaxed);
	atomic_store_explicit(&slot->memory.swapped, a.swapped, memory_order_relaxed);
	atomic_store_explicit(&slot->memory.pinned, a.pinned + stays, memory_order_relaxed);
	atomic_store_explicit(&slot->memory.wanted, a.wanted, memory_order_relaxed);
	atomic_store_explicit(&slot->memory.claimed, own + a.wanted - a.met, memory_order_relaxed);
}

void gp_memory_publish(struct gp_gpu *gpu, uint64_t stays)
{
	pthread_mutex_lock(&lock);
	gp_memory_of(gpu)->stays = stays;
	publish(gpu);
	pthread_mutex_unlock(&lock);
}

// Under the lock, as the next two.
static void add_to_claims(struct gp_gpu *gpu, uint64_t wanted, uint64_t met)
{
	struct gp_memory *m = gp_memory_of(gpu);
	struct claims *mine = GP_MINE(claims);
	m->wanted += wanted;
	mine->wanted[gpu - gp_gpu] += wanted;
	m->met += met;
	mine->met[gpu - gp_gpu] += met;
}

static void set_met(struct gp_retry *r, uint64_t bytes)
{
	add_to_claims(r->gpu, 0, bytes - r->met);
	r->met = bytes;
}

static void end_claim(struct gp_retry *r)
{
	set_met(r, 0);
	add_to_claims(r->gpu, 0 - r->claim, 0);
	r->claim = 0;
}

void gp_account_claim(struct gp_gpu *gpu, uint64_t bytes, struct gp_retry *r)
{
	struct gp_gpu *was = r->gpu ? r->gpu : gpu;
	GP_MINE(claims); // the first time, a thread may have to wait for that
	pthread_mutex_lock(&lock);
	if (r->claim)
		end_claim(r);
	r->gpu = gpu;
	r->claim = bytes;
	add_to_claims(gpu, bytes, 0);
	publish(gpu);
	if (was != gpu)
		publish(was);
	pthread_mutex_unlock(&lock);
}

void gp_memory_call_over(struct gp_retry *r)
{
	if (!r->claim)
		return;
	pthread_mutex_lock(&lock);
	end_claim(r);
	publish(r->gpu);
	pthread_mutex_unlock(&lock);
}

void gp_memory_claims_end(void)
{
	struct claims *mine = GP_MINE(claims);
	for (int i = 0; i < GP_GPUS; i++) {
		if (!mine->wanted[i] && !mine->met[i])
			continue;
		pthread_mutex_lock(&lock);
		add_to_claims(&gp_gpu[i], 0 - mine->wanted[i], 0 - mine->met[i]);
		publish(&gp_gpu[i]);
		pthread_mutex_unlock(&lock);
	}
}

// In a process whose memory stays the driver decides: the words of others are untrusted, and keep none from it.
static bool take_allowance(struct gp_gpu *gpu, uint64_t bytes)
{
	if (!gp_memory_on)
		return true;
	uint64_t *allowance = (uint64_t *)&gp_memory_of(gpu)->allowance;
	uint64_t left = __atomic_load_n(allowance, __ATOMIC_RELAXED);
	do {
		if (!left)
			return true;
		if (bytes > left - 1)
			return false;
	} while (!__atomic_compare_exchange_n(allowance, &left, left - bytes, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
	return true;
}

// More than there can ever be is not taken, not even for an instant: others decide by what is published.
bool gp_account_take(struct gp_gpu *gpu, _Atomic uint64_t *account, uint64_t bytes, struct gp_retry *r)
{
	uint64_t beside = gp_memory_limit(gp_memory_total(gpu)) ? gp_memory_beside(gpu) : 0; // may ask the driver
	pthread_mutex_lock(&lock);
	bool fits = bytes <= gp_memory_left(gpu, beside) && take_allowance(gpu, bytes);
	if (fits) {
		*account += bytes;
		if (r->claim && r->gpu == gpu)
			set_met(r, bytes < r->claim ? bytes : r->claim);
		publish(gpu);
	}
	pthread_mutex_unlock(&lock);
	return fits;
}

bool gp_account_within(struct gp_gpu *gpu, _Atomic uint64_t *account, uint64_t bytes)
{
	uint64_t limit = gp_memory_limit(gp_memory_total(gpu)), beside = limit ? gp_memory_beside(gpu) : 0;
	pthread_mutex_lock(&lock);
	struct gp_accounts a = read_accounts(gpu);
	uint64_t all = a.resident + a.swapped + a.pinned + beside + gp_memory_managed(gpu);
	bool fits = !limit || (bytes <= limit && all <= limit - bytes);
	if (fits) {
		*account += bytes;
		publish(gpu);
	}
	pthread_mutex_unlock(&lock);
	return fits;
}

void gp_account_untake(_Atomic uint64_t *account, uint64_t bytes, struct gp_retry *r)
{
	pthread_mutex_lock(&lock);
	*account -= bytes;
	if (r->met)
		set_met(r, 0);
	publish(gpu_of(account));
	pthread_mutex_unlock(&lock);
}

void gp_account_give(_Atomic uint64_t *account, uint64_t bytes)
{
	pthread_mutex_lock(&lock);
	*account -= bytes;
	publish(gpu_of(account));
	pthread_mutex_unlock(&lock);
}

void gp_account_move(_Atomic uint64_t *from, _Atomic uint64_t *to, uint64_t bytes)
{
	if (from == to)
		return;
	pthread_mutex_lock(&lock);
	*to += bytes;
	*from -= bytes;
	publish(gpu_of(to));
	pthread_mutex_unlock(&lock);
}

void gp_pin_say(enum gp_pin pin)
{
	static const char *const sentence[GP_PINS] = {
#define PIN(name, sentence) sentence,
#include "preempt/memory/pins.h"
	};
	char text[160];
	const char *why = sentence[__builtin_ctz(pin)];
	if (!why)
		return;
	snprintf(text, sizeof text, "some memory of this process stays on the GPU from here on: %s", why);
	gp_log_line(text);
}

void gp_account_pin(struct gp_range *r, enum gp_pin pin)
{
	struct gp_memory *m = gp_memory_of(r->gpu);
	if (r->ending)
		return;
	gp_pin_say(pin);
	if (!r->pins)
		gp_account_move(&m->resident, &m->pinned, r->bytes);
	r->pins |= pin;
}

uint32_t gp_memory_pins(const struct gp_gpu *gpu)
{
	uint64_t bytes = 0;
	uint32_t pins = 0;
	pthread_mutex_lock(&gp_memory_lock);
	for (struct gp_range *r = NULL; (r = gp_range_next(gpu, r));) {
		bytes += r->pins ? r->bytes : 0;
		pins |= r->pins;
	}
	pthread_mutex_unlock(&gp_memory_lock);
	return gp_memory_of(gpu)->pinned > bytes ? pins | GP_PIN_DRIVER : pins;
}

// Allocations of the driver: an open hash table by address, since cuMemFree names nothing else.

struct native {
	CUdeviceptr address; // 0: free
	size_t bytes;
	CUcontext context;
	struct gp_gpu *gpu;
	bool leaving; // the driver is asked to end the context, and may give the address anew
};

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER; // before that of the accounts
static struct {
	struct native *at;
	size_t count, room; // room: a power of two
} table;

static size_t place_of(CUdeviceptr address) { return (address >> 8) * 0x9E3779B97F4A7C15ull >> 20 & (table.room - 1); }

static size_t next(size_t place) { return (place + 1) & (table.room - 1); }

static void put(struct native n)
{
	size_t place = place_of(n.address);
	while (table.at[place].address)
		place = next(place);
	table.at[place] = n;
	table.count++;
}

static bool make_room(void)
{
	if (table.count < table.room / 2)
		return true;
	struct native *old = table.at;
	size_t old_room = table.room, room = old_room ? 2 * old_room : 1024;
	struct native *at = calloc(room, sizeof *at);
	if (!at)
		return false;
	table.at = at;
	table.room = room;
	table.count = 0;
	for (size_t i = 0; i < old_room; i++)
		if (old[i].address)
			put(old[i]);
	free(old);
	return true;
}

// Takes an entry out. Entries behind it that a search would not find any more are put in again.
static void take_out(size_t place)
{
	table.at[place].address = 0;
	table.count--;
	for (place = next(place); table.at[place].address; place = next(place)) {
		struct native n = table.at[place];
		table.at[place].address = 0;
		table.count--;
		put(n);
	}
}

// Of two at an address, that of a context which may have ended is none.
static bool take_address(CUdeviceptr address, struct native *found)
{
	pthread_mutex_lock(&table_lock);
	size_t at = table.room;
	for (size_t place = table.room ? place_of(address) : 0; address && table.room && table.at[place].address;
	     place = next(place))
		if (table.at[place].address == address && (at == table.room || table.at[at].leaving))
			at = place;
	bool is = at < table.room;
	if (is) {
		*found = table.at[at];
		take_out(at);
	}
	pthread_mutex_unlock(&table_lock);
	return is;
}

static void keep(struct native n)
{
	pthread_mutex_lock(&table_lock);
	bool kept = make_room();
	if (kept)
		put(n);
	pthread_mutex_unlock(&table_lock);
	if (!kept) // not counted is better than counted for ever
		gp_account_give(&gp_memory_of(n.gpu)->pinned, n.bytes);
}

void gp_native_made(const struct gp_context *c, CUdeviceptr address, size_t bytes)
{
	keep((struct native){address, bytes, c->handle, c->gpu, false});
}

static void freed(struct native n, CUresult result)
{
	if (result)
		keep(n);
	else
		gp_account_give(&gp_memory_of(n.gpu)->pinned, n.bytes);
}

// It is taken out of the table before the driver frees it: then the address may be another allocation's.
bool gp_native_free(CUdeviceptr address, CUresult *result)
{
	struct native n;
	if (!take_address(address, &n))
		return false;
	freed(n, *result = gp_driver.cuMemFree(address));
	return true;
}

CUresult gp_native_free_async(CUdeviceptr address, CUstream stream)
{
	struct native n;
	bool counted = take_address(address, &n);
	CUresult result = gp_driver.cuMemFreeAsync(address, stream);
	if (counted)
		freed(n, result);
	return result;
}

void gp_native_context_destroying(CUcontext context)
{
	pthread_mutex_lock(&table_lock);
	for (size_t place = 0; place < table.room; place++)
		table.at[place].leaving |= table.at[place].address && table.at[place].context == context;
	pthread_mutex_unlock(&table_lock);
}

void gp_native_context_destroyed(CUcontext context, bool is)
{
	pthread_mutex_lock(&table_lock);
	for (size_t place = 0; place < table.room;) {
		struct native *n = &table.at[place], was = *n;
		bool leaves = n->address && n->leaving && n->context == context;
		if (leaves && is) {
			take_out(place); // another allocation may have the place now
			gp_account_give(&gp_memory_of(was.gpu)->pinned, was.bytes);
		} else {
			n->leaving &= !leaves;
			place++;
		}
	}
	pthread_mutex_unlock(&table_lock);
}
