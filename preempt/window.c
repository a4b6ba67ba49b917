// window.c - what happens at every operation that an application puts on a stream.
//
// A context is open from its first submission after idle until everything submitted has finished and
// nothing came for a grace period. Submitters open; the watcher (Go calls gp_watch) closes. A submitter
// first counts its activity, then looks whether the window is open; the closer first closes, then looks
// at the activity again: whichever comes second sees the other.
#define _GNU_SOURCE
#include "core.h"

#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct gp_context gp_context[GP_CONTEXTS];
struct gp_gpu gp_gpu[GP_GPUS];
struct gp_settings gp_settings;
struct gp_driver gp_driver;
_Atomic uint32_t gp_wake, gp_events;

enum {
	LOWEST_LEVEL = GP_LEVELS - 1,
	CUDA_SUCCESS_ = 0, // cuda.h
	CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
	CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR = 39,
	CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 81,
	CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR = 82,
	CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR = 106,
	CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK = 111,
	CU_DEVICE_ATTRIBUTE_MPS_ENABLED = 133,
	CU_STREAM_CAPTURE_MODE_RELAXED = 2,
};

static const uint64_t POLL_NS = 50 * 1000;           // how often the watcher asks about unfinished work
static const uint64_t TURN_GRACE_NS = 2 * 1000 * 1000; // idle time after which a turn is handed on: a hand-over costs about 1 ms
static const uint64_t TURN_POLL_NS = 500 * 1000;
static const uint64_t ALONE_POLL_NS = 10 * 1000 * 1000;
static const uint64_t SWITCH_COST_NS = 200 * 1000;    // a context switch on an H200
static const uint64_t SWITCH_WEIGHT = 25;             // a switch in a request hurts this much more than BE time lost

uint64_t gp_now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

void gp_futex_wake(_Atomic uint32_t *word, int count, bool shared)
{
	syscall(SYS_futex, word, FUTEX_WAKE | (shared ? 0 : FUTEX_PRIVATE_FLAG), count, NULL, NULL, 0);
}

int gp_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns, bool shared)
{
	struct timespec t = {(time_t)(timeout_ns / 1000000000ull), (long)(timeout_ns % 1000000000ull)};
	return (int)syscall(SYS_futex, word, FUTEX_WAIT | (shared ? 0 : FUTEX_PRIVATE_FLAG), seen,
			    timeout_ns ? &t : NULL, NULL, 0);
}

void gp_ring(struct gp_segment *s)
{
	s->bell++;
	gp_futex_wake(&s->bell, INT_MAX, true);
}

void gp_notify(void)
{
	gp_events++;
	gp_futex_wake(&gp_events, INT_MAX, false);
}

static struct gp_context *find_context(CUcontext handle)
{
	for (int i = 0; i < GP_CONTEXTS; i++) {
		CUcontext h = __atomic_load_n((CUcontext *)&gp_context[i].handle, __ATOMIC_ACQUIRE);
		if (h == handle)
			return handle ? &gp_context[i] : NULL;
		if (!h && i == GP_CONTEXTS - 1)
			break;
	}
	return NULL;
}

struct gp_context *gp_current_context(void)
{
	CUcontext handle = NULL;
	if (gp_driver.cuCtxGetCurrent(&handle) || !handle)
		return NULL;
	return find_context(handle);
}

static void publish(struct gp_gpu *g, uint64_t now)
{
	struct gp_segment *s = g->segment;
	struct gp_slot *slot = gp_own_slot(g);
	uint64_t bit = 1ull << g->slot;

	if (!s)
		return;
	if (g->lower_peers) {
		slot->window_opened_ns = now;
		gp_count(&slot->windows, 1);
		if (s->busy & g->lower)
			gp_count(&slot->switches, 1);
		s->open |= bit;
	}
	if (!(s->busy & bit)) {
		s->busy |= bit;
		if (g->turn_peers)
			gp_ring(s);
	}
	if (g->between && g->lower_peers)
		gp_ring(s);
}

static void unpublish(struct gp_gpu *g, uint64_t now)
{
	struct gp_segment *s = g->segment;
	struct gp_slot *slot = gp_own_slot(g);
	uint64_t bit = 1ull << g->slot;

	if (!s)
		return;
	if (s->open & bit) {
		s->open &= ~bit;
		gp_count(&slot->window_ns, now - slot->window_opened_ns);
		slot->window_opened_ns = 0;
		s->gate++;
		if (s->gate_waiters)
			gp_futex_wake(&s->gate, INT_MAX, true);
	}
	if (!g->probing)
		s->busy &= ~bit;
	if (g->turn_peers || g->between)
		gp_ring(s);
}

static void open_window(struct gp_context *c)
{
	struct gp_gpu *g = c->gpu;

	pthread_spin_lock(&g->lock);
	if (c->open) {
		pthread_spin_unlock(&g->lock);
		return;
	}
	uint64_t now = gp_now_ns();
	c->opened_ns = now;
	if (g->open_contexts++ == 0)
		publish(g, now);
	c->open = 1;
	pthread_spin_unlock(&g->lock);
	gp_wake++;
	gp_futex_wake(&gp_wake, 1, false);
}

void gp_gpu_probe(struct gp_gpu *g, bool on)
{
	struct gp_segment *s = g->segment;
	uint64_t bit = 1ull << g->slot;

	pthread_spin_lock(&g->lock);
	g->probing = on;
	if (on)
		s->busy |= bit;
	else if (!g->open_contexts)
		s->busy &= ~bit;
	pthread_spin_unlock(&g->lock);
}

void gp_gpu_attached(struct gp_gpu *g)
{
	pthread_spin_lock(&g->lock);
	if (g->open_contexts)
		publish(g, gp_now_ns());
	pthread_spin_unlock(&g->lock);
}

// False if work came in the meantime.
static bool close_window(struct gp_context *c)
{
	struct gp_gpu *g = c->gpu;

	pthread_spin_lock(&g->lock);
	c->open = 0;
	if (c->activity != c->seen_activity || !c->idle_since_ns || c->hint.until_ns > gp_now_ns()) {
		c->open = 1;
		pthread_spin_unlock(&g->lock);
		return false;
	}
	gp_hold_release(c); // before anybody can open the next window
	if (--g->open_contexts == 0)
		unpublish(g, gp_now_ns());
	if (gp_own_slot(g))
		gp_count(&gp_own_slot(g)->busy_ns, gp_now_ns() - c->opened_ns);
	pthread_spin_unlock(&g->lock);
	gp_hint_closed(c, gp_now_ns());
	return true;
}

// For a hint: before any work.
void gp_window_open(struct gp_context *c) { open_window(c); }

static struct gp_stream *find_stream(struct gp_context *c, CUstream handle, bool insert)
{
	for (int i = 0; i < GP_STREAMS; i++) {
		struct gp_stream *s = &c->stream[i];
		CUstream h = __atomic_load_n((CUstream *)&s->handle, __ATOMIC_ACQUIRE);
		if (h == handle)
			return s;
		if (h)
			continue;
		if (!insert)
			return NULL;
		if (__atomic_compare_exchange_n((CUstream *)&s->handle, &h, handle, false, __ATOMIC_ACQ_REL,
						__ATOMIC_ACQUIRE) ||
		    h == handle)
			return s;
	}
	return NULL;
}

static bool all_complete(struct gp_context *c)
{
	if (c->overflow)
		return false;
	for (int i = 0; i < GP_STREAMS; i++) {
		struct gp_stream *s = &c->stream[i];
		if (!s->handle)
			break;
		if (s->completed < s->submitted)
			return false;
	}
	return true;
}

// The context has been idle since now, unless more than activity was submitted. A submitter first counts its
// activity and then takes the mark away, so one of the two sees the other.
static bool idle(struct gp_context *c, uint64_t activity, uint64_t now)
{
	c->idle_since_ns = now;
	if (c->activity == activity)
		return true;
	c->idle_since_ns = 0;
	return false;
}

static void completed(struct gp_context *c, struct gp_stream *s, uint64_t sequence)
{
	uint64_t activity = c->activity;
	if (s->completed < sequence)
		s->completed = sequence;
	if (all_complete(c) && !c->idle_since_ns)
		idle(c, activity, gp_now_ns());
}

static void note_gap(struct gp_context *c, uint64_t gap_ns)
{
	uint64_t us = gap_ns / 1000;
	int bucket = us ? 64 - __builtin_clzll(us) : 0;
	if (bucket >= GP_GAP_BUCKETS)
		bucket = GP_GAP_BUCKETS - 1;
	if (++c->gaps[bucket] == 1024) // forget slowly: behaviour changes
		for (int i = 0; i < GP_GAP_BUCKETS; i++)
			c->gaps[i] /= 2;
}

// How long to wait for more after the last work finished. Closing early costs the next submission of a
// request a context switch; closing late costs the lower levels the GPU. The gaps seen decide.
static uint64_t grace(struct gp_context *c)
{
	if (gp_settings.level == LOWEST_LEVEL || !c->gpu->lower_peers)
		return TURN_GRACE_NS;
	uint64_t best = gp_settings.grace_max_ns, best_cost = UINT64_MAX;
	uint32_t samples = 0;
	for (int i = 0; i < GP_GAP_BUCKETS; i++)
		samples += c->gaps[i];
	if (samples < 8)
		return best;
	for (int t = 0; t < GP_GAP_BUCKETS; t++) {
		uint64_t limit = 1000ull << t, cost = 0;
		if (limit < gp_settings.grace_min_ns)
			limit = gp_settings.grace_min_ns;
		if (limit > gp_settings.grace_max_ns)
			limit = gp_settings.grace_max_ns;
		for (int i = 0; i < GP_GAP_BUCKETS; i++) {
			uint64_t gap = (1000ull << i) * 3 / 4; // middle of the bucket
			cost += c->gaps[i] * (gap < limit ? gap : limit + SWITCH_COST_NS * SWITCH_WEIGHT);
		}
		if (cost < best_cost) {
			best_cost = cost;
			best = limit;
		}
	}
	return best;
}

static void gate(struct gp_gpu *g)
{
	struct gp_segment *s = g->segment;
	struct gp_slot *slot = gp_own_slot(g);
	uint64_t began = gp_now_ns(), now = began, blocking;

	gp_count(&slot->gate_waits, 1);
	while ((blocking = s->open & g->higher & ~g->ignored)) {
		if (now - began > gp_settings.max_hold_ns) {
			g->ignored |= blocking; // the agent looks at these again
			break;
		}
		uint32_t seen = s->gate;
		s->gate_waiters++;
		if (s->open & g->higher & ~g->ignored)
			gp_futex_wait(&s->gate, seen, gp_settings.max_hold_ns - (now - began) + 1, true);
		s->gate_waiters--;
		now = gp_now_ns();
	}
	gp_count(&slot->gate_ns, now - began);
}

static bool gates(const struct gp_gpu *g)
{
	return gp_settings.gate == GP_GATE_ON || (gp_settings.gate == GP_GATE_UNDER_MPS && g->mps);
}

static bool holds(struct gp_context *c)
{
	return gp_settings.hold && !c->gpu->mps && c->gpu->lower_peers && gp_hold_usable(c);
}

// Kernels and graph instances that were launched before. The first launch of one may load its code, for which
// the driver waits for the whole context.
static _Atomic(void *) loaded[4096];
enum { LOADED = sizeof loaded / sizeof *loaded, PROBES = 16 };

static size_t loaded_at(const void *handle) { return (uintptr_t)handle * 0x9E3779B97F4A7C15ull >> 52; } // 12 bits

static bool is_loaded(const void *handle)
{
	for (size_t i = loaded_at(handle), n = 0; n < PROBES; n++, i = (i + 1) % LOADED) {
		void *found = __atomic_load_n((void **)&loaded[i], __ATOMIC_RELAXED);
		if (found == handle)
			return true;
		if (!found)
			return false;
	}
	return true; // so full that it is not worth knowing
}

static void remember_loaded(void *handle)
{
	for (size_t i = loaded_at(handle), n = 0; n < PROBES; n++, i = (i + 1) % LOADED) {
		void *empty = NULL;
		if (__atomic_compare_exchange_n((void **)&loaded[i], &empty, handle, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED) ||
		    empty == handle)
			return;
	}
}

static void forget_loaded(CUgraphExec exec)
{
	for (size_t i = loaded_at(exec), n = 0; n < PROBES; n++, i = (i + 1) % LOADED)
		if (loaded[i] == (void *)exec)
			loaded[i] = NULL; // may end another's probe early: its next launch counts as a first one
	gp_graph_destroying(exec);
}

// In the token, beside the context.
static const uint64_t FOLLOWS = 1; // work before this submission may be unfinished
static const uint64_t LOADS = 2;   // the call may wait for the whole context

static void before_submit(struct gp_submission *s)
{
	struct gp_context *c = gp_current_context();
	s->token = 0;
	if (!c)
		return;
	struct gp_gpu *g = c->gpu;
	struct gp_segment *segment = g->segment; // NULL before the agent has attached
	if (gates(g) && segment && (segment->open & g->higher & ~g->ignored))
		gate(g);
	s->token = (uintptr_t)c | (all_complete(c) ? 0 : FOLLOWS);
	struct gp_stream *stream = find_stream(c, s->stream, true);
	if (stream)
		stream->submitted++;
	else
		c->overflow = 1;
	c->activity++;
	if (!c->open || c->hint.awaited_ns || c->copied_ns)
		gp_hint_work(c, s);
	uint64_t idle_since = c->idle_since_ns;
	if (idle_since) {
		note_gap(c, gp_now_ns() - idle_since);
		c->idle_since_ns = 0;
	}
	// The hold goes first: behind a kernel it would come too late to keep the engine.
	if (!c->open)
		open_window(c);
	if (!holds(c))
		return;
	if ((s->work == GP_KERNEL && !is_loaded(s->function)) || (s->work == GP_GRAPH && !is_loaded(s->graph))) {
		s->token |= LOADS;
		c->context_waits++;
		gp_hold_release(c);
		return;
	}
	if (s->work != GP_COPY || gp_settings.hint_copy) // a copy announces kernels: the switch overlaps it
		gp_hold_arm(c);
}

static void after_submit(struct gp_submission *s, CUresult result)
{
	struct gp_context *c = (struct gp_context *)(uintptr_t)(s->token & ~(FOLLOWS | LOADS));
	if (!c)
		return;
	if (result == CUDA_SUCCESS_ && !c->gpu->worked)
		c->gpu->worked = 1;
	if (s->token & LOADS) {
		c->context_waits--;
		if (result == CUDA_SUCCESS_)
			remember_loaded(s->work == GP_KERNEL ? (void *)s->function : (void *)s->graph);
		if (holds(c))
			gp_hold_arm(c);
	}
	if (c->hold.state == GP_HOLD_ARMED && s->work <= GP_GRAPH) {
		enum gp_fit fit = s->work == GP_KERNEL ? gp_hold_fit(c, s) : gp_graph_fit(s->graph);
		bool follows = s->token & FOLLOWS;
		// A link that made room would sit down between this kernel and those before it; with nothing
		// before it, it cannot.
		if (fit != GP_FITS && !follows && s->work == GP_KERNEL)
			gp_hold_step(c);
		else if (fit == GP_BLOCKED)
			gp_hold_yield(c);
	}
	if (s->blocking && result == CUDA_SUCCESS_) {
		struct gp_stream *stream = find_stream(c, s->stream, false);
		if (stream)
			completed(c, stream, stream->submitted);
	}
}

static void event_recorded(CUevent event, CUstream handle)
{
	struct gp_context *c = gp_current_context();
	struct gp_stream *stream = c ? find_stream(c, handle, false) : NULL;
	if (!stream)
		return;
	stream->event_at = stream->submitted;
	stream->event = event;
}

// What the calling thread waits for, between before_wait and after_wait.
static __thread struct {
	struct gp_context *context;
	struct gp_stream *stream;
	uint64_t sequence;
} waiting __attribute__((tls_model("initial-exec")));

// Calls that are counted as waiting: in processes that take turns.
static bool waits(enum gp_wait kind)
{
	return gp_settings.turns && kind != GP_ASK_STREAM && kind != GP_ASK_EVENT;
}

static void before_wait(enum gp_wait kind, void *what)
{
	struct gp_context *c = gp_current_context();
	waiting.context = c;
	waiting.stream = NULL;
	if (!c)
		return;
	if (waits(kind)) { // perhaps for work of the driver's own, which nobody counts: that is demand for a turn too
		c->waits++;
		if (!c->open && c->gpu->turn_peers)
			open_window(c);
	}
	if (kind == GP_WAIT_CONTEXT) {
		c->context_waits++;
		if (c->hold.state == GP_HOLD_ARMED) {
			gp_hold_release(c);
			gp_count(&gp_own_slot(c->gpu)->holds_released, 1);
		}
		return;
	}
	if (kind == GP_WAIT_STREAM || kind == GP_ASK_STREAM) {
		waiting.stream = find_stream(c, what, false);
		waiting.sequence = waiting.stream ? waiting.stream->submitted : 0;
	} else {
		for (int i = 0; i < GP_STREAMS && c->stream[i].handle; i++)
			if (c->stream[i].event == (CUevent)what) {
				waiting.stream = &c->stream[i];
				waiting.sequence = c->stream[i].event_at;
				break;
			}
	}
}

static void after_wait(enum gp_wait kind, void *what, CUresult result)
{
	struct gp_context *c = waiting.context;
	(void)what;
	if (!c)
		return;
	waiting.context = NULL;
	if (waits(kind))
		c->waits--;
	if (kind == GP_WAIT_CONTEXT) {
		c->context_waits--;
		if (c->open && holds(c))
			gp_hold_arm(c);
		return;
	}
	if (waiting.stream && result == CUDA_SUCCESS_)
		completed(c, waiting.stream, waiting.sequence);
	if ((!c->yielded && c->hold.state != GP_HOLD_ARMED) || !all_complete(c))
		return;
	if (c->yielded) {
		c->yielded = 0;
		if (c->open && holds(c))
			gp_hold_arm(c);
	} else {
		gp_hold_settle(c);
	}
}

static struct gp_gpu *gpu_of(CUdevice device)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	uint8_t uuid[16];
	struct gp_gpu *found = NULL;

	if (gp_driver.cuDeviceGetUuid(uuid, device))
		return NULL;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < GP_GPUS && !found; i++) {
		struct gp_gpu *g = &gp_gpu[i];
		if (g->known) {
			if (!memcmp(g->uuid, uuid, sizeof uuid))
				found = g;
			continue;
		}
		memcpy(g->uuid, uuid, sizeof uuid);
		pthread_spin_init(&g->lock, PTHREAD_PROCESS_PRIVATE);
		gp_driver.cuDeviceGetAttribute(&g->sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
		gp_driver.cuDeviceGetAttribute(&g->threads_per_sm, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device);
		gp_driver.cuDeviceGetAttribute(&g->registers_per_sm, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, device);
		gp_driver.cuDeviceGetAttribute(&g->shared_per_sm, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, device);
		gp_driver.cuDeviceGetAttribute(&g->shared_reserved, CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, device);
		gp_driver.cuDeviceGetAttribute(&g->blocks_per_sm, CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, device);
		gp_driver.cuDeviceGetAttribute(&g->mps, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, device); // stays 0 where unknown
		g->known = 1;
		found = g;
	}
	pthread_mutex_unlock(&lock);
	return found;
}

static void context_current(CUcontext handle)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	CUdevice device;
	CUcontext popped;

	if (!handle || find_context(handle))
		return;
	if (gp_driver.cuCtxPushCurrent(handle))
		return;
	CUresult result = gp_driver.cuCtxGetDevice(&device);
	gp_driver.cuCtxPopCurrent(&popped);
	if (result)
		return;
	struct gp_gpu *g = gpu_of(device);
	if (!g)
		return;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < GP_CONTEXTS && !find_context(handle); i++) {
		struct gp_context *c = &gp_context[i];
		if (c->handle)
			continue;
		memset(c, 0, sizeof *c);
		pthread_mutex_init(&c->query_lock, NULL);
		c->gpu = g;
		c->handle = handle;
	}
	pthread_mutex_unlock(&lock);
	gp_notify();
}

static void forget(struct gp_context *c)
{
	pthread_mutex_lock(&c->query_lock);
	gp_hold_release(c);
	c->hold.state = GP_HOLD_ABSENT;
	c->hint.until_ns = c->hint.awaited_ns = 0;
	pthread_spin_lock(&c->gpu->lock);
	if (c->open && --c->gpu->open_contexts == 0)
		unpublish(c->gpu, gp_now_ns());
	c->open = 0;
	pthread_spin_unlock(&c->gpu->lock);
	c->handle = NULL;
	pthread_mutex_unlock(&c->query_lock);
}

static void context_destroying(CUcontext handle)
{
	struct gp_context *c = find_context(handle);
	if (!c)
		return;
	forget(c);
	gp_notify();
}

static void stream_destroying(CUstream handle)
{
	// A stream may be destroyed with work unfinished, which then can't be asked about any more: it
	// counts as complete, and the entry becomes one of the legacy stream.
	for (int i = 0; i < GP_CONTEXTS; i++) {
		struct gp_context *c = &gp_context[i];
		if (!c->handle)
			continue;
		pthread_mutex_lock(&c->query_lock);
		struct gp_stream *s = find_stream(c, handle, false);
		if (s) {
			s->completed = s->submitted;
			s->event = NULL;
			s->handle = GP_STREAM_LEGACY;
		}
		pthread_mutex_unlock(&c->query_lock);
	}
}

static _Atomic uint32_t captures;

// The driver answers a question about a captured stream, or about the legacy stream during a capture,
// by invalidating the capture. After this no query is under way and none begins.
static void capture_beginning(void)
{
	captures++;
	for (int i = 0; i < GP_CONTEXTS && gp_context[i].handle; i++) {
		pthread_mutex_lock(&gp_context[i].query_lock);
		pthread_mutex_unlock(&gp_context[i].query_lock);
	}
}

static void capture_ended(void) { captures--; }

// Asks the driver about streams that the application has not waited for.
static bool query(struct gp_context *c)
{
	bool complete = !c->overflow;
	CUcontext popped;

	pthread_mutex_lock(&c->query_lock);
	if (captures) {
		complete = all_complete(c);
	} else if (c->handle && !gp_driver.cuCtxPushCurrent(c->handle)) {
		for (int i = 0; i < GP_STREAMS && c->stream[i].handle; i++) {
			struct gp_stream *s = &c->stream[i];
			uint64_t sequence = s->submitted;
			if (s->completed >= sequence)
				continue;
			// A per-thread default stream has no handle that another thread could ask about; the
			// legacy stream is complete only when it is.
			CUstream asked = s->handle == GP_STREAM_PER_THREAD ? GP_STREAM_LEGACY : s->handle;
			if (gp_driver.cuStreamQuery(asked) == CUDA_SUCCESS_)
				s->completed = sequence;
			else
				complete = false;
		}
		if (c->overflow && gp_driver.cuStreamQuery(GP_STREAM_LEGACY) == CUDA_SUCCESS_)
			complete = true;
		gp_driver.cuCtxPopCurrent(&popped);
	}
	pthread_mutex_unlock(&c->query_lock);
	return complete;
}

static uint64_t watch(struct gp_context *c, uint64_t now)
{
	bool lower = c->gpu->lower_peers;
	uint64_t poll = lower ? POLL_NS : c->gpu->turn_peers ? TURN_POLL_NS : ALONE_POLL_NS;
	uint64_t activity = c->activity;
	struct gp_hold *h = &c->hold;

	uint64_t started = h->started_ns; // may be later than now
	if (h->state == GP_HOLD_ARMED && now > started && now - started > gp_settings.max_hold_ns) {
		gp_hold_release(c);
		double share = gp_settings.lower_share;
		h->blocked_until_ns = now + (uint64_t)((double)gp_settings.max_hold_ns * share / (1 - share));
		gp_count(&gp_own_slot(c->gpu)->windows_cut, 1);
	}
	if (c->hint.until_ns > now) // work is announced
		return POLL_NS;
	bool quiet = activity == c->seen_activity;
	c->seen_activity = activity;
	if (c->waits) {
		c->idle_since_ns = 0;
		return poll;
	}
	uint64_t idle_since = c->idle_since_ns;
	if (!idle_since) {
		if (!quiet || !query(c) || !idle(c, activity, now))
			return poll;
		idle_since = now;
	}
	uint64_t wait = grace(c), passed = now > idle_since ? now - idle_since : 0;
	if (passed < wait)
		return wait - passed;
	if (!close_window(c))
		return poll;
	c->overflow = 0;
	c->yielded = 0;
	return 0;
}

uint64_t gp_watch(void)
{
	static __thread bool relaxed;
	uint64_t now = gp_now_ns(), next = 0;

	if (!relaxed) { // a capture in global mode must not be broken by our queries
		int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
		gp_driver.cuThreadExchangeStreamCaptureMode(&mode);
		relaxed = true;
	}
	for (int i = 0; i < GP_CONTEXTS; i++) {
		struct gp_context *c = &gp_context[i];
		if (!c->handle || !c->open)
			continue;
		uint64_t wait = watch(c, now);
		if (wait && (!next || wait < next))
			next = wait;
	}
	return next;
}

void gp_gpu_rescind(struct gp_gpu *g)
{
	struct gp_segment *s = g->segment;
	if (!s)
		return;
	pthread_spin_lock(&g->lock);
	if (!g->lower_peers && s->open & 1ull << g->slot) {
		struct gp_slot *slot = gp_own_slot(g);
		s->open &= ~(1ull << g->slot);
		gp_count(&slot->window_ns, gp_now_ns() - slot->window_opened_ns);
		slot->window_opened_ns = 0;
		s->gate++;
		gp_futex_wake(&s->gate, INT_MAX, true);
	}
	pthread_spin_unlock(&g->lock);
	for (int i = 0; i < GP_CONTEXTS && !g->lower_peers; i++)
		if (gp_context[i].handle && gp_context[i].gpu == g)
			gp_hold_release(&gp_context[i]);
}

static const struct gp_hooks hooks = {
	.before_submit = before_submit,
	.after_submit = after_submit,
	.event_recorded = event_recorded,
	.before_wait = before_wait,
	.after_wait = after_wait,
	.context_current = context_current,
	.context_destroying = context_destroying,
	.stream_destroying = stream_destroying,
	.graph_instantiated = gp_graph_instantiated,
	.graph_destroying = forget_loaded,
	.capture_beginning = capture_beginning,
	.capture_ended = capture_ended,
	.rm_ioctl = gp_rm_ioctl,
	.pinned = gp_hint_pinned,
};

const struct gp_hooks *gp_core_hooks(void) { return &hooks; }
