// process.h - what this process has on the GPU: contexts, streams, GPUs, and what was launched before.
#ifndef GPREEMPT_PROCESS_H
#define GPREEMPT_PROCESS_H

#include <pthread.h>

#include "preempt/driver/hooks.h"
#include "preempt/driver/driver.h"
#include "preempt/segment/segment.h"

#define GP_STREAM_GONE ((CUstream)~0ul) // an entry whose stream was destroyed: free for another

enum {
	GP_CONTEXTS = 64,  // contexts of one process that are looked after; others run untouched
	GP_GPUS = 32,
	GP_STREAMS = 64,   // streams of a context with work in one window; more count as unknown
	GP_GAP_BUCKETS = 16,
	GP_SMS = 512,         // more than any GPU has
};

// One stream that had work since the window opened. A sequence counts operations.
struct gp_stream {
	_Atomic(CUstream) handle;
	_Atomic uint64_t submitted;
	_Atomic uint64_t completed;
	_Atomic(CUevent) event; // the latest event recorded on it, and where
	_Atomic uint64_t event_at;
};

struct gp_gpu {
	_Atomic uint32_t known; // 1 once uuid is valid
	uint8_t uuid[16];
	CUdevice device; // its ordinal
	int mps; // contexts are shared through an MPS server: one TSG for all processes
	int sms, threads_per_sm, registers_per_sm, shared_per_sm, shared_reserved, blocks_per_sm;
	// Set once, by the agent, when it has attached the segment; NULL before. Other memory may come in its place
	// (gp_gpu_move).
	_Atomic(struct gp_segment *) segment;
	uint32_t slot;
	// Kept by the agent as peers come and go.
	_Atomic uint32_t lower_peers; // processes of a lower level (higher number) on this GPU
	_Atomic uint32_t turn_peers;  // processes of the same level with which turns are taken
	_Atomic uint32_t between;     // processes of levels between this one and the lowest: they watch windows
	_Atomic uint64_t higher;      // slots of higher levels: their windows gate this process
	_Atomic uint64_t lower;       // slots of lower levels
	_Atomic uint64_t same;        // slots of others of this level
	_Atomic uint64_t ignored;     // slots whose window outlived the bound and gates no more
	_Atomic uint32_t stoppable;   // processes of lower levels that stop when a window opens
	_Atomic uint32_t forced;      // higher levels' windows are passed over for a while: this process's share
	pthread_spinlock_t lock;      // opening and closing of windows; never taken while one is open
	uint32_t open_contexts;       // under lock
	uint64_t busy_since_ns;       // under lock: when the first of them was opened
	_Atomic uint32_t worked;      // something was submitted: the context is whole
	bool probing;                 // under lock: busy is set to get a turn, whatever is known of work
	struct gp_stop_counters stops; // the agent copies them into the slot
	_Atomic(const char *) refused; // the driver's function that made a domain be given up
	_Atomic uint32_t refusal;      // what it returned
};

struct gp_hold {
	_Atomic uint32_t state; // GP_HOLD_*, a futex
	uint32_t queued;        // sequence of the last link queued
	_Atomic uint32_t chain; // sequence of the first link of the chain
	_Atomic uint32_t moves; // of this hold to another SM
	_Atomic uint32_t first_sm; // where links were seen most
	uint16_t seen[GP_SMS];
	uint64_t seen_place;
	_Atomic uint64_t started_ns;
	_Atomic uint64_t blocked_until_ns; // max_hold was reached: the lower levels' share first
	CUstream stream;
	CUfunction function;
	// Host-mapped. word[0]: links up to this sequence end; word[1]: the beat; word[16]: chain that expired;
	// word[32]: where the running link is; word[48]: the last probe that the host engine fetched.
	volatile uint32_t *word;
	struct { // watcher only
		CUstream stream;
		uint32_t sent, missed; // sequence of the last probe; steps in this chain that a probe asked for in vain
		uint32_t chain;        // that the rest is about
		uint64_t sent_ns, begun_ns, stepped_ns;
		uint32_t stepped_to;   // sequence of the link that took over at the last step
		bool asked;            // the last step was a probe's
	} probe;
};
enum { GP_HOLD_BEGUN = 33 }; // index into word: sequence of the link that began to run last
enum { GP_HOLD_ABSENT, GP_HOLD_IDLE, GP_HOLD_ARMING, GP_HOLD_ARMED, GP_HOLD_FAILED };

struct gp_context {
	_Atomic(CUcontext) handle;
	struct gp_gpu *gpu;
	pthread_mutex_t query_lock; // keeps the watcher's queries off streams that are being destroyed
	pthread_mutex_t life_lock;  // see gp_context_pin; taken before query_lock
	// Who raised them lowers them, though another context may have the place by then.
	_Atomic uint32_t context_waits; // threads inside a call that waits for the whole context
	_Atomic uint32_t waits;     // threads inside a call that may block, where turns are taken
	_Atomic uint32_t open; // from here on zeroed when another context gets the place
	_Atomic uint64_t activity;  // operations submitted, ever
	_Atomic uint64_t idle_since_ns; // 0 while work may be unfinished
	uint64_t seen_activity;     // watcher only
	uint64_t unfinished_ns;     // watcher only: since when work has been unfinished; 0 = it is not
	_Atomic uint32_t yielded;   // no hold until everything submitted has finished
	_Atomic uint32_t overflow;  // more streams than GP_STREAMS, or one that can't be queried
	_Atomic uint32_t prepared;  // 0 new, 1 hold made or not wanted
	_Atomic uint32_t blp_prepared; // 0 new, 1 domain made or not wanted
	_Atomic uint32_t ending;    // is to get no domain any more
	struct gp_domain *_Atomic domain; // of block-level preemption (blp.h); NULL: none
	struct gp_hold hold;
	struct { // fill.c
		_Atomic uint32_t ready;
		CUfunction fill, copy, fill_narrow, copy_narrow;
	} fill;
	struct {
		_Atomic uint64_t until_ns;   // a hint keeps the window open at most until then; 0 = none does
		_Atomic uint64_t awaited_ns; // since when work is awaited; 0 = it is not
		_Atomic uint64_t met_ns;     // when it came
	} hint;
	_Atomic uint64_t copied_ns; // when a copy opened the window; 0 once a kernel followed
	uint32_t gaps[GP_GAP_BUCKETS]; // idle gaps seen, by log2 of microseconds
	struct gp_stream stream[GP_STREAMS];
};

struct gp_settings {
	uint32_t level;
	enum { GP_GATE_OFF, GP_GATE_ON, GP_GATE_UNDER_MPS } gate;
	uint32_t hold, turns, mps;
	uint32_t chain;
	uint64_t max_hold_ns;
	uint64_t hold_step_ns;
	uint64_t grace_min_ns, grace_max_ns;
	double lower_share; // min_be_share
	uint32_t hints;     // 1 once hints are taken
	_Atomic uint32_t hint_copy;
	uint64_t hint_wait_ns;
	double hint_max_cost, hint_min_confidence;
	const void *hold_image, *fill_image;
};

extern struct gp_context gp_context[GP_CONTEXTS];
extern struct gp_gpu gp_gpu[GP_GPUS];
extern struct gp_settings gp_settings;
extern struct gp_kernel_counters gp_kernels; // the agents copy them into their slots
extern _Atomic uint32_t gp_wake;   // futex: a window opened (for the watcher)
extern _Atomic uint32_t gp_events; // futex: a context, TSG or channel came or went (for the agents)

uint64_t gp_now_ns(void); // CLOCK_MONOTONIC
void gp_futex_wake(_Atomic uint32_t *, int count, bool shared);
int gp_futex_wait(_Atomic uint32_t *, uint32_t seen, uint64_t timeout_ns, bool shared);
void gp_ring(struct gp_segment *);
void gp_ring_windows(struct gp_segment *);
void gp_notify(void); // gp_events

static inline struct gp_slot *gp_own_slot(struct gp_gpu *g)
{
	struct gp_segment *s = __atomic_load_n((struct gp_segment **)&g->segment, __ATOMIC_ACQUIRE);
	return s ? &s->slot[g->slot] : NULL;
}
// Whether another process of this level has a window open: the lower ones are off the GPU already.
static inline bool gp_equals_open(struct gp_gpu *g)
{
	struct gp_segment *s = __atomic_load_n((struct gp_segment **)&g->segment, __ATOMIC_ACQUIRE);
	return s && s->open & g->same;
}
static inline void gp_count(_Atomic uint64_t *counter, uint64_t by)
{
	__atomic_fetch_add((uint64_t *)counter, by, __ATOMIC_RELAXED);
}

// contexts.c
struct gp_context *gp_find_context(CUcontext);
struct gp_context *gp_current_context(void);
bool gp_enter_owner(CUstream); // true: the stream's context, which was not current, is until gp_leave_owner
void gp_leave_owner(void);
const struct gp_gpu *gp_gpu_of_memory(CUdeviceptr);
void gp_context_current(CUcontext);
// While a context is pinned it is not destroyed. False if it is gone already.
bool gp_context_pin(struct gp_context *, CUcontext);
void gp_context_unpin(struct gp_context *);

// streams.c
struct gp_stream *gp_find_stream(struct gp_context *, CUstream, bool insert);
bool gp_all_complete(struct gp_context *);
bool gp_idle(struct gp_context *, uint64_t activity, uint64_t now);
void gp_completed(struct gp_context *, struct gp_stream *, uint64_t sequence);
bool gp_query(struct gp_context *); // asks the driver
void gp_event_recorded(CUevent, CUstream);
void gp_stream_forget(CUstream); // it is about to be destroyed
// The driver is about to begin a capture: after this no query is under way, and none begins.
void gp_capture_began(void);
void gp_capture_ended(void);
bool gp_capturing(void); // or about to

// first_launch.c
bool gp_is_loaded(const struct gp_context *, const void *handle);
void gp_remember_loaded(const struct gp_context *, const void *handle);
void gp_forget_graph(CUgraphExec); // an instance is about to be destroyed
void gp_forget_loaded(const struct gp_context *); // all of a context; NULL: of all contexts
#endif
