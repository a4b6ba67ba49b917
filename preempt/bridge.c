// bridge.c - see bridge.h.
#define _GNU_SOURCE
#include "preempt/bridge.h"
#include "hints/bridge.h"
#include "preempt/blp/blp.h"
#include "preempt/code/request.h"
#include "preempt/preempt.h"

#include <pthread.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

const char *gp_bridge_resolve(void *lookup)
{
	gp_environment_read();
	return gp_driver_resolve((void *(*)(const char *))lookup);
}

static struct gp_bridge_layer layer;

const struct gp_bridge_layer *gp_bridge_begin(const struct gp_bridge_layer *l)
{
	layer = *l;
	return &layer;
}

static bool moves, counts, stops, hinted; // begun by the first helper: later ones find it begun

// One bit of the word; rewritten code has another (code/rewrite.c).
bool gp_bridge_set_armed_here(uint32_t on)
{
	if (on)
		return __atomic_or_fetch((uint32_t *)layer.armed, 1, __ATOMIC_SEQ_CST);
	return __atomic_and_fetch((uint32_t *)layer.armed, ~1u, __ATOMIC_SEQ_CST);
}

void gp_bridge_install(bool sockets)
{
	if (sockets)
		layer.install_sockets(gp_socket_hooks_table());
	layer.install(&gp_core_hooks);
}

long gp_bridge_say(const char *text, size_t bytes) { return layer.say(text, bytes); }

long gp_bridge_write(const char *text, size_t bytes)
{
	ssize_t written = write(STDERR_FILENO, text, bytes);
	return written < 0 ? (long)bytes : written;
}

void gp_bridge_settings(const struct gp_bridge_settings_told *t)
{
	static bool told; // launches read these: a later helper changes none
	struct gp_settings *s = &gp_settings;
	if (told)
		return;
	told = true;
	s->gate = t->gate;
	s->hold = t->hold;
	s->mps = t->mps;
	s->chain = t->chain;
	s->hold_synchronize = t->hold_synchronize;
	s->hold_step_ns = t->hold_step_ns;
	s->grace_min_ns = t->grace_min_ns;
	s->grace_max_ns = t->grace_max_ns;
	s->grace_equals_ns = t->grace_equals_ns;
	s->fair_us = t->fair_us;
	s->lower_share = t->lower_share;
}

bool gp_bridge_image(uint32_t which, uint32_t offset, const void *part, uint32_t bytes, uint32_t total)
{
	static uint8_t *memory[2];
	uint8_t **of = &memory[which % 2];
	if (which == GP_IMAGE_HOLD ? gp_settings.hold_image : gp_settings.fill_image)
		return true; // an earlier helper's, of the same file
	if (offset == 0)
		*of = malloc(total);
	if (!*of || offset > total || bytes > total - offset)
		return false;
	memcpy(*of + offset, part, bytes);
	if (offset + bytes == total)
		*(which == GP_IMAGE_HOLD ? &gp_settings.hold_image : &gp_settings.fill_image) = *of;
	return true;
}

void gp_bridge_set_clock(int64_t ahead_ns) { gp_clock_ahead_ns = ahead_ns; }

bool gp_bridge_start_threads(bool hints, bool suspends) { return gp_threads_start(hints, suspends); }

void gp_bridge_start_wanted(void) { gp_threads_start_wanted(); }

int gp_bridge_runlist_set(int gpu, uint32_t client, uint32_t handle, bool on)
{
	return on || gp_guard_start() ? gp_runlist_set(gpu, client, handle, on) : -1;
}

bool gp_bridge_gpu_known(int i) { return gp_gpu[i].known; }

void gp_bridge_set_limits(uint64_t max_hold_ns, uint64_t memory_bytes, double memory_part, double share)
{
	gp_settings.max_hold_ns = max_hold_ns;
	gp_settings.own_share = share;
	gp_memory_settings.limit_bytes = memory_bytes;
	gp_memory_settings.limit_part = memory_part;
}

void gp_bridge_set_level(uint32_t level, uint32_t turns)
{
	gp_settings.turns = turns;
	gp_settings.level = level;
	gp_objective_allow(level < GP_LEVELS - 1);
}

void gp_bridge_set_objective(const struct gp_wish *own, uint32_t over_steps, double min_slot_ns, double max_slot_ns)
{
	static bool begun; // the program may have set another one since
	if (!begun)
		gp_objective_begin(own, min_slot_ns, max_slot_ns, over_steps);
	begun = true;
}

void gp_bridge_tell_objective(bool says, const struct gp_wish *told) { gp_objective_tell(says ? told : NULL); }

bool gp_bridge_read_objective(struct gp_wish *wish) { return gp_objective_read(wish); }

void gp_bridge_gpu_attach(int i, void *segment, uint32_t slot, bool paged)
{
	gp_gpu[i].slot = slot;
	gp_gpu[i].paged = paged;
	gp_gpu[i].segment = segment;
	gp_gpu_attached(&gp_gpu[i]);
	gp_notify(); // the thread of gp_blp_watch waits for the segment
}

bool gp_bridge_gpu_move(int i, void *memory, uint32_t slot, bool paged, bool owned)
{
	return gp_gpu_move(&gp_gpu[i], memory, slot, paged, owned);
}

void *gp_bridge_nobodys_memory(void)
{
	struct gp_view *view = mmap(NULL, sizeof *view, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (view == MAP_FAILED)
		return NULL;
	void *shared = &view->pad0; // its page is the header's once more
	if (mremap(view, 0, GP_PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, shared) != MAP_FAILED)
		return view;
	munmap(view, sizeof *view);
	return NULL;
}

void gp_bridge_gpu_peers(int i, const struct gp_bridge_peers *p)
{
	bool news = gp_gpu[i].higher != p->higher;
	gp_gpu[i].stoppable = p->stoppable;
	gp_gpu[i].lower = p->lower;
	gp_gpu[i].same = p->same;
	gp_gpu[i].higher = p->higher;
	gp_gpu[i].between = p->between;
	gp_gpu[i].ignored &= p->higher;
	gp_gpu[i].turn_peers = p->turn_peers;
	gp_gpu[i].lower_peers = p->lower_peers;
	if (news) // the watcher of windows looks at it too
		gp_ring_windows(&gp_gpu[i]);
}

void gp_bridge_gpu_id(int i, uint8_t ids[32])
{
	memcpy(ids, gp_gpu[i].uuid, 16);
	memcpy(ids + 16, gp_gpu[i].whole, 16);
}

uint64_t gp_bridge_gpu_switch_ns(int i, uint64_t told_ns)
{
	gp_switch_told(&gp_gpu[i], told_ns);
	return gp_switch_learnt(&gp_gpu[i]);
}

uint64_t gp_bridge_gpu_busy_ns(int i) { return gp_gpu_busy_ns(&gp_gpu[i]); }

void gp_bridge_gpu_probe(int i, bool on) { gp_gpu_probe(&gp_gpu[i], on); }

const char *gp_bridge_gpu_refused(int i, uint32_t *result)
{
	*result = gp_gpu[i].refusal;
	return gp_gpu[i].refused;
}

uint32_t gp_bridge_membership(void) { return gp_membership; }

uint32_t gp_bridge_rejoined(void) { return gp_rejoined; }

uint64_t gp_bridge_gpu_waits_behind(int i) { return gp_waits_behind(&gp_gpu[i]); }

void gp_bridge_doubt(void) { gp_membership_doubt(false); }

bool gp_bridge_gpu_worked(int i) { return gp_gpu[i].worked; }

bool gp_bridge_gpu_hold_failed(int i) { return gp_gpu[i].hold_failed; }

bool gp_bridge_gpu_mps(int i) { return gp_gpu[i].mps; }

// Of the images of gp_kernels, which come first: a reader that sees an image counted sees its result (gp_rewrite).
// Writers: threads that load code count an image last; the agent writes the slot. Readers: the agent, and whoever looks at the slot, from the
// first word on. Pairing: the agent reads the first word before the others, and stores it after them. Without that a slot has an image
// whose kernels it lacks.
static void copy_counters(_Atomic uint64_t *to, const _Atomic uint64_t *from, size_t bytes)
{
	uint64_t first = from[0];
	for (size_t i = 1; i < bytes / sizeof *to; i++)
		to[i] = from[i];
	to[0] = first;
}

void gp_bridge_gpu_count_blp(int i)
{
	struct gp_slot *slot = gp_own_slot(&gp_gpu[i]);
	if (!slot)
		return;
	copy_counters(&slot->kernels.images, &gp_kernels.images, sizeof gp_kernels);
	copy_counters(&slot->stop.launches, &gp_gpu[i].stops.launches, sizeof slot->stop);
	copy_counters(&slot->times.drains.sum_ns, &gp_gpu[i].drain_times.sum_ns, sizeof slot->times.drains);
	copy_counters(&slot->times.stops.sum_ns, &gp_gpu[i].stop_times.sum_ns, sizeof slot->times.stops);
}

void gp_bridge_gpu_rescind(int i) { gp_gpu_rescind(&gp_gpu[i]); }

bool gp_bridge_gpu_busy(int gpu)
{
	for (int i = 0; i < GP_CONTEXTS; i++)
		if (gp_context[i].handle && gp_context[i].gpu == &gp_gpu[gpu] && gp_is_open(&gp_context[i]))
			return true;
	return false;
}

static const char *take(struct gp_refused_call *r, CUresult *result)
{
	*result = __atomic_exchange_n((CUresult *)&r->result, 0, __ATOMIC_ACQUIRE);
	return *result ? r->call : NULL;
}

uint64_t gp_bridge_refusals(void)
{
	uint64_t bits = 0;
	_Static_assert(GP_CONTEXTS <= 64, "a bit each");
	for (int i = 0; i < GP_CONTEXTS; i++)
		bits |= (uint64_t)(gp_context[i].hold_refusal.result || gp_context[i].blp_refusal.result) << i;
	return bits;
}

const char *gp_bridge_hold_refused(int i, CUresult *result) { return take(&gp_context[i].hold_refusal, result); }

const char *gp_bridge_blp_refused(int i, CUresult *result) { return take(&gp_context[i].blp_refusal, result); }

bool gp_bridge_is_gone(CUresult result) { return gp_blp_is_gone(result); }

const char *gp_bridge_start_blp_here(void)
{
	const char *missing = gp_driver_lacks_for_blp();
	if (missing)
		return missing;
	if (!stops) {
		gp_code_start(layer.armed);
		gp_blp_start();
		stops = true;
	}
	return NULL;
}

bool gp_bridge_watch_windows(int gpu) { return gp_windows_watch(&gp_gpu[gpu]); }

const char *gp_bridge_start_memory_here(void)
{
	const char *missing = moves  ? NULL :
			      counts ? "swap, which an earlier helper has not begun," :
				       gp_swap_start(layer.armed, layer.substitute);
	moves = !missing;
	return missing;
}

void gp_bridge_count_memory_here(void)
{
	if (!counts && !moves)
		gp_memory_count(layer.substitute);
	counts = true;
}

void gp_bridge_start_hints(uint32_t sources)
{
	if (!hinted)
		gp_hints_begin(sources);
	hinted = true;
}

void gp_bridge_read_memory(int gpu, struct gp_bridge_memory *to)
{
	const struct gp_memory *m = &gp_memory[gpu];
	struct gp_accounts a = gp_memory_accounts(&gp_gpu[gpu]);
	*to = (struct gp_bridge_memory){.resident = a.resident,
					.swapped = a.swapped,
					.pinned = a.pinned,
					.wanted = a.wanted - a.met,
					.making = a.met,
					.waiting = m->waiting,
					.asking = gp_memory_is_asked(gpu),
					.waits = m->waits,
					.wait_ns = m->wait_ns,
					.evictions = m->evictions,
					.restores = m->restores,
					.out_bytes = m->out_bytes,
					.out_ns = m->out_ns,
					.in_bytes = m->in_bytes,
					.in_ns = m->in_ns,
					.taken_bytes = m->taken_bytes,
					.failures = m->failures,
					.cannot_go = m->cannot_go,
					.cap = m->cap,
					.arena_pinned = gp_arena_pinned()};
}

void gp_bridge_publish_memory(int gpu, uint64_t stays) { gp_memory_publish(&gp_gpu[gpu], stays); }

bool gp_bridge_memory_free_here(int gpu, uint64_t free_and_total[2])
{
	size_t free_bytes, total_bytes;
	struct gp_context *c = gp_exiting() ? NULL : gp_memory_try_context(&gp_gpu[gpu]);
	if (!c)
		return false;
	bool known = !gp_driver.cuMemGetInfo(&free_bytes, &total_bytes);
	gp_memory_leave_context(c);
	if (!known)
		return false;
	free_and_total[0] = free_bytes;
	free_and_total[1] = total_bytes;
	return true;
}

uint64_t gp_bridge_memory_pools(int gpu) { return gp_pools_reserved(&gp_gpu[gpu]); }

uint64_t gp_bridge_memory_total(int gpu)
{
	size_t bytes;
	bool known = gp_driver.cuDeviceTotalMem && !gp_driver.cuDeviceTotalMem(&bytes, gp_gpu[gpu].device);
	return known ? bytes : 0;
}

bool gp_bridge_memory_is_cap(int gpu, uint64_t total) { return gp_memory_is_cap(&gp_gpu[gpu], total); }

uint32_t gp_bridge_memory_pins(int gpu) { return gp_memory_pins(&gp_gpu[gpu]); }

bool gp_bridge_memory_unmanaged(int gpu) { return gp_memory_unmanaged(&gp_gpu[gpu]); }

int gp_bridge_memory_evict(int gpu, uint64_t bytes, uint64_t drain_ns, bool urgent)
{
	return (int)gp_memory_evict(&gp_gpu[gpu], bytes, drain_ns, urgent);
}

int gp_bridge_memory_restore(int gpu, uint64_t most, bool urgent)
{
	return (int)gp_memory_restore(&gp_gpu[gpu], most, urgent);
}

void gp_bridge_memory_hurry(int gpu) { gp_memory_hurry(&gp_gpu[gpu]); }

void gp_bridge_memory_grant(int gpu, uint64_t upto) { gp_memory_grant(&gp_gpu[gpu], upto); }

bool gp_bridge_memory_suspend(bool on, uint64_t timeout_ns) { return gp_memory_suspend(on, gp_now_ns() + timeout_ns); }

void gp_bridge_ring(int gpu) { gp_ring(&gp_gpu[gpu]); }

void gp_bridge_away(bool on) { gp_away = on; }

bool gp_bridge_recalled(void) { return __atomic_exchange_n((uint32_t *)&gp_recalled, 0, __ATOMIC_ACQ_REL); }

void gp_bridge_memory_settings(uint64_t reserve, uint64_t host, uint64_t wait_ns, bool asks)
{
	gp_memory_settings.asks = asks;
	gp_memory_settings.reserve_bytes = reserve;
	if (!gp_memory_settings.host_bytes) // half of what is left is less for a later helper, by what is pinned
		gp_memory_settings.host_bytes = host;
	gp_memory_settings.wait_ns = wait_ns;
}

void gp_bridge_memory_room_changed(int gpu, uint64_t most, bool enough) { gp_memory_room_changed(gpu, most, enough); }

void gp_bridge_memory_allow(int gpu, uint64_t bytes) { gp_memory[gpu].allowance = bytes + 1; }

void gp_bridge_arena_cut(bool on) { gp_arena_cut(on); }

bool gp_bridge_arena_grow(int gpu, uint64_t bytes)
{
	struct gp_context *c = gp_memory_try_context(&gp_gpu[gpu]);
	if (!c)
		return false;
	int mode = gp_relax_captures();
	bool grown = gp_arena_grow(&gp_gpu[gpu], bytes);
	gp_unrelax_captures(mode);
	gp_memory_leave_context(c);
	return grown;
}

void gp_bridge_arena_trim(int gpu, uint64_t keep_bytes)
{
	struct gp_context *c = gp_exiting() ? NULL : gp_memory_try_context(&gp_gpu[gpu]);
	if (!c)
		return;
	int mode = gp_relax_captures();
	gp_arena_trim(keep_bytes);
	gp_unrelax_captures(mode);
	gp_memory_leave_context(c);
}

uint64_t gp_bridge_request_take(struct gp_bridge_request *to)
{
	struct gp_request *r = gp_request_take();
	if (!r)
		return 0;
	*to = (struct gp_bridge_request){.request = (uintptr_t)r,
					 .image = (uintptr_t)r->image,
					 .linked = (uintptr_t)r->linked,
					 .linked_bytes = r->linked_bytes,
					 .options = (uintptr_t)r->options,
					 .what = r->what,
					 .sm = r->sm,
					 .picked_form = r->picked.form,
					 .picked_bytes = r->picked.bytes};
	memcpy(to->key, r->key, sizeof to->key);
	if (r->path) {
		to->has_path = 1;
		strncpy(to->path, r->path, sizeof to->path - 1);
	}
	if (r->picked.form)
		to->image = (uintptr_t)r->picked.memory;
	return to->request;
}

int64_t gp_bridge_read(uint64_t from, void *to, uint64_t bytes)
{
	struct iovec here = {to, bytes}, there = {(void *)(uintptr_t)from, bytes};
	ssize_t n = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
	return n < 0 ? -errno : n;
}

void gp_bridge_request_answer(const struct gp_bridge_answer *a)
{
	struct gp_request *r = (struct gp_request *)(uintptr_t)a->request;
	if (a->picked)
		r->picked =
			(struct gp_picked){(enum gp_form)a->picked_form, (void *)(uintptr_t)a->picked, a->picked_bytes};
	r->rewritten = (const struct gp_rewritten *)(uintptr_t)a->rewritten;
	r->cached = a->cached;
	memcpy(r->key, a->key, sizeof r->key);
	memcpy(r->reason, a->reason, sizeof r->reason);
	r->reason[sizeof r->reason - 1] = 0;
	gp_request_answer(r, (int)a->answer);
}

// No helper decides any more. The process has no peers and no segment, its calls wait for no answer, and its memory comes back.
void gp_bridge_alone(bool quiet)
{
	enum { AGAIN_NS = 5000000 };
	const struct gp_bridge_peers nobody = {0};
	gp_bridge_set_armed_here(0);
	if (quiet) {
		gp_arena_cut(false); // else memory would stay on the GPU
		gp_away = false;
		gp_requests_fail();
		while (gp_runlist_look(UINT64_MAX) &&
		       !gp_exiting()) // else the next helper would go on renewing what it knows nothing of
			gp_nap(AGAIN_NS);
		gp_runlist_fair(); // two processes with short ones would stop each other dead
	}
	for (int i = 0; i < GP_GPUS && gp_gpu[i].known; i++) {
		if (!gp_gpu[i].segment)
			continue;
		gp_bridge_gpu_peers(i, &nobody);
		gp_bridge_gpu_probe(i, false);
		void *memory = gp_bridge_nobodys_memory();
		if (memory)
			gp_bridge_gpu_move(i, memory, 0, false, true);
		gp_bridge_gpu_rescind(i);
		gp_memory_elsewhere(i, 0);
		gp_bridge_memory_room_changed(i, 0, false);
		gp_bridge_memory_allow(i, UINT64_MAX - 1);
	}
}

bool gp_bridge_memory_returns(void)
{
	bool all = true;
	for (int i = 0; i < GP_GPUS && gp_gpu[i].known; i++)
		if (gp_memory[i].swapped) {
			gp_bridge_memory_grant(i, UINT64_MAX);
			gp_bridge_memory_restore(i, UINT64_MAX, true);
			all = all && !gp_memory[i].swapped;
		}
	return all;
}
