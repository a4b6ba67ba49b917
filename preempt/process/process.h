// process.h - what this process has on the GPU: contexts, streams, GPUs, and what was launched before.
#ifndef GPREEMPT_PROCESS_H
#define GPREEMPT_PROCESS_H

#include <pthread.h>
#include <time.h>

#include "preempt/driver/hooks.h"
#include "preempt/driver/cancel.h"
#include "preempt/driver/driver.h"
#include "preempt/driver/environment.h"
#include "preempt/process/thread.h"
#include "preempt/process/window_word.h"
#include "preempt/segment/segment.h"

#define GP_STREAM_GONE ((CUstream)~0ul) // the entry's stream was destroyed: another may take the entry

enum {
	GP_CONTEXTS = 64, // contexts of one process that are watched; further ones run untouched
	GP_GPUS = 32,
	GP_STREAMS = 64, // streams of a context with work in one window; more count as unknown
	GP_GAP_BUCKETS = 16,
	GP_SMS = 512, // more than any GPU has
};

// One stream that had work since the window opened. These count operations. An operation that the driver has not taken yet, since its
// call is under way, has not completed, whatever the driver says of the stream.
struct gp_stream {
	_Atomic(CUstream) handle;
	_Atomic uint64_t submitted; // before the driver is called
	_Atomic uint64_t settled;   // behind that: it has taken the operation, or refused it
	_Atomic uint64_t completed; // at least so many of those settled
	_Atomic(CUevent) event;     // the latest event recorded on it, behind operation event_at
	_Atomic uint64_t event_at;
	_Atomic uint64_t result,
		result_at; // the latest result copy (gpu/objective.h): its number, and its place on the stream
};

// The time that launches are owed which waited at the gate (gpu/gate_share.c).
struct gp_owed {
	uint64_t ns;       // GPU time
	uint64_t at_ns;    // counted until then
	uint64_t until_ns; // launches pass until then
	uint32_t waiting;  // threads
};

struct gp_gpu {
	_Atomic uint32_t known; // 1 once the next two are valid
	uint8_t uuid[16];       // of what processes share: the GPU, or a slice of it (MIG)
	uint8_t whole[16];      // of the GPU, by which RM knows it; another than uuid where this is a slice
	CUdevice device;        // its ordinal
	// Under an MPS server: one TSG for the contexts of all processes. It ends where RM has shown TSGs of this process's own.
	_Atomic bool mps;
	int sms, threads_per_sm, registers_per_sm, shared_per_sm, shared_reserved, blocks_per_sm;
	// Set once, when the agent has attached the segment; NULL before. The address stays when the memory is replaced
	// (gp_gpu_move).
	_Atomic(struct gp_segment *) segment;
	_Atomic uint32_t slot;
	_Atomic uint32_t paged; // 1: each process has pages of its own there, and can only read the rest.
	// The agent keeps these current as peers come and go.
	_Atomic uint32_t lower_peers; // Processes of a lower level (higher number) on this GPU.
	_Atomic uint32_t turn_peers;  // Processes of the same level with which turns are taken.
	_Atomic uint32_t between;     // Processes of levels between this one and the lowest: they watch windows.
	_Atomic uint64_t higher;      // Slots of higher levels: their windows gate this process.
	_Atomic uint64_t lower;       // Slots of lower levels.
	_Atomic uint64_t same;        // Slots of others of this level.
	_Atomic uint64_t ignored; // Slots whose windows gate nobody: they last longer than max_hold, or a stop waits (blp/put_off.c).
	_Atomic uint64_t passed,
		passed_until_ns;    // Of these, by the watcher: slots for whose windows a stop waits, and until when.
	_Atomic uint32_t stoppable; // Processes of lower levels that stop between blocks.
	_Atomic uint32_t forced;    // Windows of higher levels are ignored for a while, for share.min_be.
	// Of opening and closing windows; the launch path never takes it in an open window. The holder may lose its processor: a thread
	// that waits for longer than a moment sleeps, and leaves it one.
	pthread_mutex_t lock;
	uint32_t open_contexts; // Under lock.
	uint64_t busy_since_ns; // Under lock: when the first of them was opened.
	uint64_t busy_ns;    // Under lock: for how long some were open, until then. The slot says it too, for others.
	uint32_t giving_way; // Under lock: threads for which lower levels are to run, although a window is open.
	// The words of the own line in the segment, where other processes may write over them. Changed under lock.
	struct {
		uint64_t window_opened_ns;
		uint32_t busy;
	} told;
	struct gp_owed owed;           // under lock
	_Atomic uint32_t worked;       // work was submitted, so libcuda has finished making the context
	_Atomic uint32_t hold_failed;  // the driver refused a link; the agent tells others
	uint32_t at_gate;              // under lock: threads that wait there, of a client of MPS
	bool probing;                  // under lock: the busy bit asks for a turn although no work is known
	struct gp_stop_counters stops; // the agent copies these into the slot, and the next two
	struct gp_histogram drain_times, stop_times;
	_Atomic(const char *) refused; // the driver's function that refused, so that a domain was given up
	_Atomic uint32_t refusal;      // what it returned
};

struct gp_hold {
	_Atomic uint32_t state;        // GP_HOLD_*, a futex.
	uint32_t was;                  // The state before the driver was asked to end the context.
	uint32_t queued;               // Sequence of the last link queued.
	_Atomic uint32_t chain;        // Sequence of the first link of the chain.
	_Atomic uint32_t moves;        // How often this hold was moved to another SM.
	_Atomic uint32_t first_sm;     // The SM on which most links were seen.
	_Atomic uint16_t seen[GP_SMS]; // How many links each SM had.
	_Atomic uint64_t seen_place;   // The place of the last link that was counted.
	_Atomic uint64_t started_ns;
	_Atomic uint64_t blocked_until_ns; // after max_hold the lower levels get their share up to then
	CUstream stream;
	CUfunction function;
	// Host-mapped. word[0]: links up to this sequence end; word[1]: the beat; word[16]: the chain that expired;
	// word[32]: the SM of the running link; word[48]: the last probe that the host engine fetched.
	volatile uint32_t *word;
	struct { // for the watcher only
		CUstream stream;
		uint32_t sent;   // sequence of the last probe
		uint32_t missed; // steps that a probe asked for in vain, in this chain
		uint32_t chain;  // the chain that the rest is about
		uint64_t sent_ns, begun_ns, stepped_ns;
		uint64_t waited_ns;  // When the first link was last seen not to run; 0: it was not.
		bool beside;         // A window of another process, which is no lower level's, was open then.
		uint32_t stepped_to; // Sequence of the link that took over at the last step.
		uint64_t switches;   // The slot's switches when a first link was last seen to run.
		bool asked;          // A probe asked for the last step.
	} probe;
};
enum { GP_HOLD_BEGUN = 33 }; // index into word: sequence of the link that began last
enum { GP_HOLD_ABSENT, GP_HOLD_IDLE, GP_HOLD_ARMING, GP_HOLD_ARMED, GP_HOLD_FAILED };

// A call that the driver refused, for the core to tell people.
struct gp_refused_call {
	const char *call;
	_Atomic CUresult result; // set after call; 0: there is none
};

// Lines of the cache: words that each launch reads have one of their own, and so have words that each launch writes. While a window is
// open beside lower levels the watcher takes query_lock, and writes what is its own, every 50 us.
struct gp_context {
	// Under it the watcher looks, streams are forgotten, and contexts leave their place and take it: a look is at one context,
	// whose streams and hold are not destroyed meanwhile.
	_Alignas(64) pthread_mutex_t query_lock;
	pthread_mutex_t life_lock; // see gp_context_pin; taken before query_lock
	_Alignas(64) _Atomic(CUcontext) handle;
	// Stays while the context has the place. Agents, hints and waits look at places without a lock, and may find the next
	// context's: what they do then (a hold ends, a hint is in vain) is right for any context.
	_Atomic(struct gp_gpu *) gpu;
	// The driver waits for that context and locks it together with this one: the primary one of a green context.
	_Atomic(CUcontext) primary_context;
	// A thread that raised one of the next two lowers it again, even if another context has the place by then.
	_Atomic uint32_t context_waits; // Threads in a call that waits for the whole context.
	_Atomic uint32_t waits;         // Threads in a call that may block; counted where turns are taken.
	// The handle, while the driver is asked to end the context: no thread finds it, and no context takes its place.
	_Atomic(CUcontext) leaving;
	// Zeroed with all that follows when another context takes the place, but for the streams' counts. No hold until everything submitted has
	// finished.
	_Atomic uint32_t yielded;
	_Atomic uint32_t prepared;        // the library's objects in it have been made, or refused, or are not wanted
	_Atomic uint32_t initialised;     // by the driver: it answered a call that needs that. 0: it may be, or not
	_Atomic uint32_t ending;          // it is being destroyed, and gets no domain any more
	struct gp_domain *_Atomic domain; // of block-level preemption (blp.h); NULL: none
	_Alignas(64) _Atomic uint64_t window; // window_word.h: its state, and how many operations were submitted, ever
	// When the latest work was found to be done; 0: none was. It never goes back.
	_Atomic uint64_t idle_since_ns;
	struct {
		_Atomic uint64_t until_ns;   // a hint keeps the window open at most until then; 0 = none does
		_Atomic uint64_t awaited_ns; // since when work is awaited; 0 = it is not
		_Atomic uint64_t met_ns;     // when it came
	} hint;
	_Atomic uint64_t copied_ns; // When a copy opened the window and was a hint; 0 once a kernel followed (hints/work.c).
	_Alignas(64) struct gp_refused_call hold_refusal;
	struct gp_refused_call blp_refusal;
	struct gp_hold hold;
	// Number of the latest destruction of a stream that had work, which only a wait for the context waits for; 0: none (known.c).
	uint64_t orphaned;
	uint64_t seen_activity;    // watcher only
	uint64_t unfinished_ns;    // watcher only: since when work has been unfinished; 0 = it is not
	struct {                   // watcher only: the driver has finished what it has, and calls are under way
		uint64_t since_ns; // 0: it is not so
		uint64_t activity; // then
	} missing;
	struct { // fill.c
		_Atomic uint32_t ready;
		CUfunction fill, copy, fill_narrow, copy_narrow;
	} fill;
	_Atomic uint32_t gaps[GP_GAP_BUCKETS]; // idle gaps seen, by log2 of microseconds
	// Their counts go on when another context takes the place. So a wait that began before says nothing of work that came later.
	_Alignas(64) struct gp_stream stream[GP_STREAMS];
	struct gp_stream others; // all that found no place there, as if they were one
};

struct gp_settings {
	_Atomic uint32_t level, turns; // a broker may change them
	enum { GP_GATE_OFF, GP_GATE_ON, GP_GATE_UNDER_MPS } gate;
	uint32_t hold, mps;
	uint32_t chain;
	_Atomic uint64_t max_hold_ns; // this too
	_Atomic double own_share;     // and this: what this process gets at least
	uint64_t hold_step_ns;
	uint32_t hold_synchronize; // the hold stays while the program waits for a context
	uint64_t grace_min_ns, grace_max_ns, grace_equals_ns;
	double lower_share; // share.min_be, for lower levels
	uint64_t fair_us;   // the timeslice of a process that takes no turns; 0: none is set
	uint32_t hints;     // 1 once hints are taken
	_Atomic uint32_t hint_copy;
	uint64_t hint_wait_ns;
	double hint_max_cost;
	const void *hold_image, *fill_image;
};

extern struct gp_context gp_context[GP_CONTEXTS];
// Places that were ever taken, the first so many. Places are pages apart: a call of the program walks no others.
extern _Atomic uint32_t gp_context_places;
extern struct gp_gpu gp_gpu[GP_GPUS];
extern struct gp_settings gp_settings;
extern struct gp_kernel_counters gp_kernels; // the agents copy them into their slots
extern _Atomic uint32_t gp_wake;             // futex: a window opened (for the watcher)
void gp_wake_watcher(void);
extern _Atomic uint32_t gp_events; // futex: a context, TSG or channel came or went (for the agents)

extern _Atomic uint32_t gp_contexts_ending; // calls of the program that end contexts

// Whether the process takes part (membership.c).
enum gp_membership {
	GP_JOINED,
	GP_LEAVING, // The program is about to lock it: its submitted work ends, beside others and outside of all turns.
	GP_LOCKED,  // Its work does not run, and it submits none.
	GP_CHECKPOINTED, // It has no channels either, and its device memory is free.
	GP_UNUSABLE,     // The driver could not checkpoint or restore it: it can only end.
};
enum gp_membership_event {
	GP_LOCK_BEGINS,
	GP_LOCK_REFUSED,
	GP_SEEN_RUNNING, // the driver says so, or a call of the program succeeded that leads there
	GP_SEEN_LOCKED,
	GP_SEEN_CHECKPOINTED,
	GP_SEEN_FAILED,
};
extern _Atomic uint32_t gp_membership;
extern _Atomic uint32_t gp_doubts;   // futex: something looks as if another process had changed it
extern _Atomic uint32_t gp_losses;   // of these, because a TSG was lost
extern _Atomic uint32_t gp_rejoined; // how often the process joined again, or may have
enum gp_membership gp_membership_next(enum gp_membership, enum gp_membership_event);
uint64_t gp_membership_question(void); // the number of a question that is about to be asked
void gp_membership_answer(uint64_t number, enum gp_membership_event);
void gp_membership_lock_begins(void);
void gp_membership_lock_ends(bool locked);
void gp_membership_doubt(bool lost); // lost: the driver has freed a TSG, and the program ends no context
static inline bool gp_takes_part(void) { return gp_membership < GP_LOCKED; } // it may have a window, or ask for a turn

// The process exits: its runtime ends contexts in ways that are not seen here, and a question would be an error that a tool reports. Asked first
// once there is a context, initialised or not: later it would be too late to hear of it before those.
bool gp_exiting(void);

// Memory of the process is out: a thread that learns that work is about to come calls gp_recall.
extern _Atomic uint32_t gp_away;
extern _Atomic uint32_t gp_recalled; // the agents take it
void gp_recall(void);

extern _Atomic int64_t gp_clock_ahead_ns; // How far this process's CLOCK_MONOTONIC, in a time namespace, is ahead of the host's. Set before all else.
uint64_t gp_now_ns(void);                    // CLOCK_MONOTONIC of the host, in which processes tell each other times.
struct timespec gp_kernel_time(uint64_t ns); // A time of gp_now_ns as the kernel takes it from this process.
void gp_futex_wake(_Atomic uint32_t *, int count, bool shared);
int gp_futex_wait(_Atomic uint32_t *, uint32_t seen, uint64_t timeout_ns, bool shared);
// Waits on a thread of the program, which is not cancelled there (preempt/driver/cancel.h).
void gp_nap(uint64_t ns); // below a second
// 1: the helper process has ended. A thread that waits for an answer of its waits in vain; it looks again after GP_LOOK_NS at the latest.
enum { GP_LOOK_NS = 100000000 };
extern _Atomic uint32_t gp_helper_gone;
// Rings wake those that wait for what has changed. They do nothing before the segment is attached.
void gp_ring(struct gp_gpu *);
void gp_ring_windows(struct gp_gpu *);
void gp_ring_gate(struct gp_gpu *);
// Waits while a slot's window is open, at most for a time; may return early. forced: also until windows are not heeded. seen is the
// result of gp_gate_seen before the caller looked whether to wait: a later gp_ring_gate ends the wait.
uint32_t gp_gate_seen(struct gp_gpu *, uint32_t slot);
void gp_wait_gate(struct gp_gpu *, uint32_t slot, uint32_t seen, uint64_t timeout_ns, bool forced);
// The words that gp_windows_seen saw. gp_wait_windows then waits until a window of a higher level opens or closes, or until this process
// calls gp_ring_windows.
struct gp_seen {
	uint32_t count;
	_Atomic uint32_t *word[GP_SLOTS + 1];
	uint32_t value[GP_SLOTS + 1];
};
void gp_windows_seen(struct gp_gpu *, struct gp_seen *);
void gp_wait_windows(const struct gp_seen *, uint64_t timeout_ns);
void gp_notify(void); // gp_events

// Bells that the helper hears, in the page that it shares; NULL: there is no helper.
enum gp_helper_bell {
	GP_BELL_EVENTS,   // as gp_events
	GP_BELL_ARRIVALS, // some time after an arrival or an announcement
	GP_BELL_REQUESTS, // a request for the rewriter
	GP_HELPER_BELLS
};
extern _Atomic(_Atomic uint32_t *) gp_helper_bells;
void gp_ring_helper(enum gp_helper_bell);
// Starts a thread of ours, which takes none of the program's signals.
bool gp_thread_start(pthread_t *, void *(*run)(void *), void *argument);

// Windows of higher levels keep this process from the GPU.
static inline bool gp_heeds_windows(const struct gp_gpu *g) { return !g->forced && gp_membership == GP_JOINED; }

// Of ignored slots whose window has closed the next one counts again. There is a segment.
// writers: threads that submit, and the watcher, which adds slots. readers: the same, and threads that stop or resume. pairing: each takes out what
// it saw closed, at once. what breaks: a window that opens in that moment may be stopped for although its stop was to wait.
static inline void gp_forget_closed(struct gp_gpu *g)
{
	uint64_t ignored = g->ignored, closed = ignored & ~gp_windows_open(g->segment, ignored);
	if (closed) // launches share the word
		g->ignored &= ~closed;
}

static inline struct gp_slot *gp_own_slot(struct gp_gpu *g)
{
	struct gp_segment *s = __atomic_load_n((struct gp_segment **)&g->segment, __ATOMIC_ACQUIRE);
	return s ? &gp_view_of(s)->own : NULL;
}
// There is a segment.
static inline struct gp_line *gp_own_line(struct gp_gpu *g)
{
	return &gp_own_slot(g)->line[__atomic_load_n((uint32_t *)&g->slot, __ATOMIC_RELAXED) % GP_LINES];
}
// Whether another process of this level has a window open. Lower levels are off the GPU then.
static inline bool gp_equals_open(struct gp_gpu *g)
{
	struct gp_segment *s = __atomic_load_n((struct gp_segment **)&g->segment, __ATOMIC_ACQUIRE);
	return s && gp_windows_open(s, g->same);
}
static inline void gp_count(_Atomic uint64_t *counter, uint64_t by)
{
	__atomic_fetch_add((uint64_t *)counter, by, __ATOMIC_RELAXED);
}

void gp_count_time(struct gp_histogram *, uint64_t ns);

// log_line.c
// Leaves a line for the log. Any thread of the program may call it at any time but in a signal handler. A text is said once,
// and of a long one the beginning. It does not wait: the core's goroutine writes the line.
void gp_log_line(const char *text);
// The next line to be written, NULL if there is none. written: how many the caller, one thread alone, has written before.
const char *gp_log_next(uint32_t written);
uint32_t gp_log_written(void); // lines, by the helpers so far

// The threads of a block. 0: it has none, or more than an SM of any GPU holds; the driver is to refuse the launch.
static inline uint32_t gp_threads_of(const uint32_t *block)
{
	enum { MOST = 1 << 16 };
	uint64_t row = (uint64_t)block[0] * block[1];
	return row > MOST || row * block[2] > MOST ? 0 : (uint32_t)(row * block[2]);
}

// contexts.c
struct gp_context *gp_find_context(CUcontext);
// The driver is about to be asked to end a context: no thread finds it any more (life_lock and query_lock are held). Behind the call,
// gp_context_left gives its place away, or back to it. False: it has left.
void gp_context_leaves(struct gp_context *);
struct gp_context *gp_find_leaving(CUcontext);
bool gp_context_left(struct gp_context *, bool is); // is: the driver has ended it
CUcontext gp_primary_context(CUcontext);            // gp_context.primary_context, where the context is known
struct gp_context *gp_current_context(void);
static inline CUcontext gp_current_handle(void) // NULL: none
{
	CUcontext handle = NULL;
	return gp_driver.cuCtxGetCurrent(&handle) ? NULL : handle;
}
// Makes the context of a stream current, if another one is. True: current is that one, and gp_leave_owner is to be called.
bool gp_enter_owner(CUstream, CUcontext *current);
void gp_leave_owner(void);
const struct gp_gpu *gp_gpu_of_memory(CUdeviceptr);
// A context became usable. Returns what is known of it; NULL: nothing, it is not watched.
struct gp_context *gp_context_current(CUcontext);
struct gp_gpu *gp_gpu_of_device(CUdevice); // known from then on; NULL: there are more than GP_GPUS
// A pinned context is not destroyed. False: it is gone already.
bool gp_context_pin(struct gp_context *, CUcontext);
bool gp_context_try_pin(struct gp_context *, CUcontext); // the same; also false if another thread has it pinned
void gp_context_unpin(struct gp_context *);

// rm.c
struct gp_tsg {
	int fd;
	uint32_t client, handle, device, subdevice, engine, compute;
	uint32_t resets; // How often libcuda itself scheduled it or set its timeslice.
	uint64_t born_ns;
	uint64_t made_ns;    // When libcuda last did so; before the first time: when it made a channel.
	uint64_t changed_ns; // When libcuda last made, scheduled or set something of it.
	int suspended_on;    // the GPU on which it was taken off the runlist; -1: it was not
	uint32_t channels;   // count
	uint32_t channel[64];
};
void gp_rm_ioctl(int fd, unsigned long request, void *argument);
uint32_t gp_rm_tsgs(struct gp_tsg *out, uint32_t capacity);      // compute TSGs; returns how many exist
void gp_rm_suspended(uint32_t client, uint32_t handle, int gpu); // for suspended_on
int gp_rm_control(int fd, uint32_t client, uint32_t object, uint32_t command, void *parameters, uint32_t size);
// How much memory of a GPU this process has by the driver's account: bytes, contexts with all that belongs to them among it, managed memory
// not. 0: the driver does not say. A control for each TSG up to one on that GPU, and another; of up to 0.6 ms each.
uint64_t gp_rm_memory(const struct gp_gpu *);
// The compute channels of the TSG that has most, as a context that is made now has them: the driver makes as many for each. 0: none was seen.
uint32_t gp_rm_channels(void);
// Whether contexts of this process on a device share the one TSG of an MPS server. The driver's attribute says so of every client; RM may
// show afterwards, once there is a context, that a client has TSGs of its own.
bool gp_under_mps(CUdevice);

// streams.c
struct gp_stream *gp_find_stream(struct gp_context *, CUstream, bool insert);
bool gp_all_complete(struct gp_context *);
// All operations that the word counts were found to be done. False: more were submitted, or another thread was first.
bool gp_idle(struct gp_context *, uint64_t word, uint64_t now);
static inline bool gp_is_open(const struct gp_context *c) { return c->window & GP_WINDOW_OPEN; }
static inline bool gp_is_idle(const struct gp_context *c) { return !(c->window & GP_WINDOW_WORKS); }
static inline uint64_t gp_activity(const struct gp_context *c) { return gp_window_activity(c->window); }
void gp_settled(struct gp_stream *); // the driver has taken an operation, or refused it
void gp_completed(struct gp_context *, struct gp_stream *, uint64_t sequence);
bool gp_query(struct gp_context *); // asks the driver; query_lock is held
void gp_event_recorded(struct gp_context *, struct gp_stream *, CUevent, uint64_t sequence);
void gp_event_forget(CUevent);   // this too
void gp_stream_forget(CUstream); // it is about to be destroyed

// known.c
void gp_stream_made(CUstream);       // a hook (preempt/driver/hooks.h)
void gp_known_stream_ends(CUstream); // it is about to be destroyed
// Streams that were destroyed with work so far; and a context has been waited for since there were so many.
uint64_t gp_known_destructions(void);
void gp_known_synchronized(CUcontext, uint64_t destructions);
// Waits for the present work of all streams of a context, by an event behind it on each, where all of them are known. False: they are
// not, or the driver refused, and nothing was waited for that counts.
bool gp_wait_for_streams(CUcontext);

// copies.c
// The call of a copy has returned that may wait for it. Leaves o->blocking set if the copy is done. o->result: of what was waited for.
void gp_copy_returned(struct gp_operation *o);
// The driver's type of the memory at an address: CU_MEMORYTYPE_*, or one of these.
enum { GP_MEMORY_PAGEABLE = 0, GP_MEMORY_UNKNOWN = 255 }; // memory that it does not know; it cannot be asked
unsigned gp_memory_type(CUdeviceptr);

// captures.c
extern _Atomic uint32_t gp_captures; // under way or about to begin
static inline bool gp_capturing(void) { return __builtin_expect(gp_captures != 0, 0); }
bool gp_may_be_captured(CUstream); // Asks the driver, not to be called for the legacy stream.
// Whether work that is put on the stream now would be, or might be, captured. The legacy stream never is.
static inline bool gp_is_captured(CUstream stream)
{
	return gp_capturing() && stream != GP_STREAM_LEGACY && gp_may_be_captured(stream);
}
// The driver is about to begin a capture: after this no query is under way, and none begins.
void gp_capture_begins(CUstream);
// To synchronize a context, or the legacy stream, ends captures of its streams. True: none is under way, and none begins until
// gp_captures_let_on, nor is the calling thread cancelled. cancel is what to put back then.
bool gp_captures_keep_off(int *cancel);
void gp_captures_let_on(int cancel);
void gp_capture_ended(CUstream); // or did not begin. Does nothing for other streams
// Around the driver's call that destroys a stream or a context, which ends its captures. In between, the driver may give the handle anew, and a
// capture may begin there that goes on.
void gp_captures_end_with(enum gp_thing, const void *handle);
void gp_captures_ended_with(enum gp_thing, const void *handle, bool is); // is: it was destroyed

// first_launch.c
bool gp_is_loaded(const struct gp_context *, const void *handle); // of a kernel
void gp_remember_loaded(const struct gp_context *, const void *handle);
bool gp_name_is_due(const void *kernel); // this is the first question about the kernel
// An entry has a handle, and in its top byte the context's place: addresses of user space have 47 or 48 bits (x86-64, arm64). Two more places:
// kernels whose names were looked at, and those that nodes of graphs got.
enum { GP_LOADED = 4096, GP_LOADED_SHIFT = 56, GP_LOADED_NAMED = 0xFE, GP_LOADED_IN_GRAPHS };
extern _Atomic uint64_t gp_loaded[GP_LOADED];
static inline uint64_t gp_loaded_entry(uint64_t place, const void *handle)
{
	return (uint64_t)(uintptr_t)handle ^ place << GP_LOADED_SHIFT;
}
static inline size_t gp_loaded_at(uint64_t entry) { return entry * 0x9E3779B97F4A7C15ull >> 52; } // 12 bits
// For the launch path: no call where the entry has the first of its places. False says nothing.
static inline bool gp_name_is_known(const void *kernel)
{
	uint64_t entry = gp_loaded_entry(GP_LOADED_NAMED, kernel);
	return __atomic_load_n((uint64_t *)&gp_loaded[gp_loaded_at(entry)], __ATOMIC_RELAXED) == entry;
}
bool gp_graph_is_loaded(const struct gp_context *, CUgraphExec);
void gp_remember_loaded_graph(const struct gp_context *, CUgraphExec);
void gp_graph_kernel(const struct gp_context *, const void *function); // a node of a graph is about to get the kernel
void gp_graph_changes(CUgraphExec);                                    // the instance is about to get kernels of nodes
void gp_forget_loaded(const struct gp_context *); // all entries of a context; NULL: of all contexts
#endif
