// domain.h - what the files of block-level preemption share. Rules and lock order: blp.h.
#ifndef GPREEMPT_BLP_DOMAIN_H
#define GPREEMPT_BLP_DOMAIN_H

#include "kernels/guard/guard.h"
#include "preempt/blp/blp.h"
#include "preempt/blp/states.h"
#include "preempt/process/process.h"

#include <sched.h>

// blp_drain_ns is how long a stop waits for running blocks, in time of the GPU (struct patience). Blocks that take longer gain little from
// stops between them, and a block that waits for one that the stop holds back would never end.
// blp_patience_ns is how long a call waits for launches that it only has to come behind. Most kernels take far less. If it was not enough,
// the stream's kernels may wait for the program, and later calls wait for it less and less.
#ifdef GP_TEST // a build for random programs, whose environment says how long (states.c)
extern uint64_t blp_drain_ns, blp_patience_ns, blp_long_ns, blp_tolerance;
extern bool blp_always_full; // launches are queued (preempt/queue.c)
#else
enum { blp_always_full = false };
static const uint64_t blp_drain_ns = 100 * 1000 * 1000, blp_patience_ns = 1000000000;
#endif

enum {
	BLP_DOMAINS = 64,
	BLP_LOG = 4096,           // entries; a power of two
	BLP_ZEROS = 256 << 10,    // bytes that one copy zeroes
	BLP_DEFAULT_PRIORITY = 0, // of default streams; the least that there is
	BLP_BYTES = 4 << 20,      // arguments and attributes of logged launches
	BLP_STREAMS = 256,        // of a domain; launches on further streams cannot be stopped
	BLP_IN_FLIGHT = 128,      // entries of one stream: queued work takes time to drain
	// Threads in flight on one stream; two launches may always be. To skip a block takes an H200 2 ns if it has 1024 threads,
	// and 0.6 ns if it has 256 or fewer.
	BLP_THREADS_IN_FLIGHT = 1 << 27,
	BLP_LEAST_THREADS = 256,   // a smaller block counts as so many
	BLP_MARKER_EVERY = 32,     // entries of a stream
	BLP_MARKERS = 2 * BLP_LOG, // each of another entry, and as many while entries are launched again
	BLP_RECORDS = GPREEMPT_ARENA_BYTES / sizeof(struct gpreempt_record) / 4 * 3, // for launches; the rest is for graphs
	BLP_REGIONS = 8,                                                             // of records, zeroed one at a time
	BLP_REGION = BLP_RECORDS / BLP_REGIONS,
	// The first records of each region belong to no launch: record 0 is the flag, and the others may be frozen with those behind them
	// (blp_put_frozen).
	BLP_APART = 16,
	BLP_IMAGE = BLP_LOG + BLP_APART + 2,
	BLP_GRANULE = 16, // a graph takes a multiple of so many records
	BLP_GRANULES = GPREEMPT_ARENA_BYTES / sizeof(struct gpreempt_record) / 4 / BLP_GRANULE,
	BLP_SPARES = 1 + BLP_STREAMS + BLP_GRANULES * BLP_GRANULE, // Records that no flag stops: beside.c.
	BLP_PARTITION = 8, // SMs: green contexts have a multiple of so many (compute capability 9.0 on), and so many are of one GPC.
	BLP_WIDTHS = 8, // Widths of a domain, ever.
	// Calls that stops add to the queue of a stream before it is to get somewhere, and that host blocks do. The driver's holds about 1000,
	// then calls wait.
	BLP_ADDED = 128,
	BLP_PAST = 256, // Calls past the log in a stream's queue, beyond which nothing is logged there.
	BLP_STEP = 64,  // Calls between two events that tell how far such a queue is.
	BLP_STEPS = 32,
	BLP_LEAST_PATIENCE_NS = 1000000,
	BLP_RECORDED_NS = 20 * 1000, // between two looks whether a context has come to an event behind all of its work
};

// A region of records is zeroed when all records of the next region have been handed out.
_Static_assert((int)BLP_LOG <= (int)BLP_REGION, "launches of a region that is zeroed may be in the log");

struct gp_code;

struct blp_marker {
	CUevent event; // made when first needed
	uint64_t upto;
	int next;
	uint32_t users; // threads that use the event without the lock
};

struct blp_stream {
	CUstream handle; // NULL: free.
	bool blocking;   // It is ordered with the legacy stream.
	enum {
		BLP_NO_THREAD,
		BLP_THREAD_LIVES,
		BLP_THREAD_ENDED
	} thread;             // It stands for that thread's default stream.
	bool behind;          // The thread's own stream has work that the next entry must come behind.
	bool ahead;           // It has entries that the thread's own stream was not put behind.
	bool host_blocked;    // It may wait for the CPU, or nothing is known of its queue.
	uint32_t host_blocks; // Records of the event host block in a row, of which none is known to be over.
	// Calls past the log that the driver has, ever; the last one that host blocks, which may come yet; and the last one that the event
	// host block is known to be behind. While that is an earlier one, only a stream that has nothing left tells that the host block is over.
	uint64_t passed, host_blocks_upto, host_block_behind;
	// Of these calls, those that have left the queue, as far as is known; and those that the last entry came behind.
	uint64_t left, ahead_of_last;
	uint32_t phase; // gp_domain.phase, when its queue was last known
	enum {
		BLP_KNOWN,
		BLP_DOUBTED,
		BLP_DEEP
	} queue; // of a host-blocked stream: why. Launches wait for a while for one that is deep
	struct {
		int first, last;
		uint32_t count;
		uint64_t upto;
	} steps;         // Markers behind such calls, by their number; first: -1: none.
	bool uncuttable; // Its entries are not cut any more (let_run), and it counts as host-blocked until they are over.
	uint32_t passing;     // Calls under way that put work on it past the log.
	uint64_t patience_ns; // How long a call waits for it.
	uint64_t last, done;  // Sequence + 1 of its last entry; all of its entries below done are complete for the log.
	uint64_t completion_unknown; // Entries below this were forgotten: the GPU may not have reached them.
	uint64_t entries, finished;  // Numbers of entries, ever.
	uint64_t threads, threads_finished;
	uint64_t threads_marked;       // those ahead of the last marker
	uint32_t unmarked;             // entries since the last marker
	int first_marker, last_marker; // -1: none
	CUevent host_block, join;      // made when first needed
};

enum blp_kind { BLP_LAUNCH, BLP_GRAPH, BLP_RECORD, BLP_WAIT };

// The legacy stream orders blocking streams also where these have other domains. On which side of that an operation is.
enum blp_side { BLP_NO_SIDE, BLP_LEGACY_SIDE, BLP_BLOCKING_SIDE, BLP_SIDES };

struct blp_twin {                // graph.c
	_Atomic(CUgraphExec) of; // the program's; NULL: free
	CUgraphExec own;
	struct gp_domain *domain;
	uint32_t first, count;    // Records.
	uint32_t *windows;        // Of each of its kernels.
	bool *over;               // Parted: of each of its kernels, whether it is not launched alone any more.
	struct blp_entry *kernel; // The launch of each of its kernels alone.
	bool retired;             // From now on the program's own instance is launched.
	bool loaded;              // The code of its kernels is loaded.
	bool blank;               // The records of the latest launch are not zeroed yet.
	bool parted;        // The latest launch did not drain midway: the rest of it is launched kernel by kernel.
	CUevent zeroed;     // Recorded behind the zeroing of its records.
	CUevent plain;      // Recorded behind the latest launch of the program's own instance.
	bool ran_plain;     // That launch may be in flight.
	CUstream plain_on;  // The stream of that launch; GP_STREAM_PER_THREAD: not known, or destroyed.
	uint32_t recording; // Calls that are about to record the event.
	struct gpreempt_record *image; // Pinned.
	uint16_t stream;               // The stream of the launch in flight, whose entry is the one below upto.
	uint64_t upto;
};

struct blp_narrow_queue { // narrow.c
	uint32_t sms;     // of its green context; 0: there is none
	CUgreenCtx green; // of the primary context
	CUstream stream;
};

// How often an operation's own queue got it.
enum blp_taken { BLP_NEVER, BLP_ONCE, BLP_AGAIN };

// Of the record of an event, whether a wait in the log is for it, and whether an event of d->order stands for it. Of a wait, whether it may be
// for what the driver does not order ahead of its stream anyway.
enum blp_order { BLP_PLAIN, BLP_AWAITED, BLP_ORDERED, BLP_FOREIGN };

// An operation. Fields that do not follow from its stage name the file that writes them in brackets.
struct blp_entry {
	uint8_t kind;
	uint8_t stage; // Enum blp_stage [blp_turn; log.c appends it as BLP_QUEUED]. Beside kind: copy_graphs reads both without the lock.
	uint8_t taken; // Enum blp_taken [states.c; beside.c where an earlier time does not count].
	bool waited;   // A thread waits for it, and not for what comes behind it [await.c].
	bool held;     // It is counted as held back [narrow.c].
	bool beside;   // BLP_LAUNCH: its part that ran narrow is not counted yet [narrow.c].
	uint16_t stream;
	uint64_t ordinal;     // Its number on its stream.
	uint64_t threads;     // Threads of its stream's entries, up to and with this one.
	uint64_t bytes_begin; // The head of the ring of bytes, before this entry took its part.
	CUevent event;        // BLP_RECORD.
	uint8_t order;        // BLP_RECORD, BLP_WAIT: enum blp_order [event.c, relaunch.c, narrow.c].
	uint16_t of;          // BLP_WAIT: the stream of the record that is waited for: its entry is the one below upto.
	uint64_t upto;
	struct blp_twin *twin; // BLP_GRAPH
	uint32_t spare;        // BLP_LAUNCH, unguarded: index of its spare record; 0: none, all of its blocks run
	CUfunction function;   // BLP_LAUNCH from here on
	uint32_t grid[3], block[3], shared_bytes;
	uint32_t record;  // 0: the domain was given up.
	uint32_t cluster; // Blocks of a cluster, which share a number.
	uint32_t on_sm;   // Blocks that an SM has room for, at most.
	uint64_t ran; // Blocks that have run, as the latest stop saw it. 0: while the driver does not have it, its record is zero.
	uint8_t shift; // log2 of the blocks, or clusters, of a window (kernels/guard/guard.h).
	uint32_t attribute_count, argument_bytes;
	char *arguments;
	struct gp_launch_attribute *attributes;
};

// The streams that stop together. A stream has a domain of its own where the program stops it (gpreempt.h).
enum blp_scope { BLP_OF_CONTEXT, BLP_OF_STREAM, BLP_OF_BLOCKING_STREAM };

// A stream of ours beside a stream of the program: relaunch.c.
enum blp_beside {
	BLP_UNUSED,
	BLP_LEADS,       // Launches of a resumption go there; it has no work yet.
	BLP_LEADS_AHEAD, // It goes there, and the stream's own queue is not behind all of that.
	BLP_AHEAD,       // The stream's own queue is not behind its work, and gets the entries that run again.
};

struct gp_domain {
	_Atomic(CUcontext) context;         // NULL: the place is free
	_Atomic(CUcontext) ends;            // the context that it had, while it is taken apart; changed under control
	_Atomic(CUcontext) primary_context; // gp_context.primary_context
	struct gp_gpu *_Atomic gpu;
	enum blp_scope scope;             // [domain.c]
	struct gp_domain *_Atomic before; // of a stream: its domain until then, which may have work of it; NULL: has none
	_Atomic uint64_t generation;      // number of the domain: another for each that has this place
	pthread_mutex_t control;          // held by the thread that stops or resumes; the fields below change under it
	_Atomic uint32_t reasons;         // set of enum gp_blp_reason
	uint32_t drains;                  // streams that there were when the stop began
	struct {
		CUevent event; // a marker's, behind the last launch of the stream; NULL: there is none to drain
		uint64_t upto; // entries below have drained: those below the marker, or, of a late stream, so many of them
		enum {
			BLP_DRAINS,
			BLP_RUNS_ON, // it runs an unguarded launch and is not waited for
			BLP_IS_LATE, // it did not drain in time
		} as;
	} drain[BLP_STREAMS];
	uint64_t flagged_ns;
	uint64_t counted_ns;                // since when the stop lasts that is under way; 0: none is
	uint32_t first_record, last_record; // those that image holds; 0: none
	uint64_t ranged;                    // image holds the records of entries below this sequence

	_Atomic enum blp_state state; // changed by blp_become, under control
	_Atomic uint32_t given_up; // the driver refused a call: nothing is stopped any more, whatever the state [blp_give_up]
	_Atomic CUresult error; // what the driver returned then
	pthread_mutex_t lock;   // of what follows
	pthread_cond_t resumed;
	// Calls under way for which the driver waits with its lock: nothing is submitted under lock, and no window stops the domain (take.c).
	_Atomic uint32_t driver_waits;
	uint32_t giving_way; // threads that wait for their end
	pthread_cond_t driver_left;
	_Atomic uint64_t head, tail; // sequences
	uint64_t bytes_head;
	_Atomic uint32_t oldest_record, next_record; // Launches with records between the two may be in flight.
	_Atomic uint32_t streams;                    // Places ever used; stop_blocks reads it without the lock.
	_Atomic uint32_t busy;                       // Number of streams with entries.
	_Atomic uint32_t host_blocked;               // Number of host-blocked streams and of calls that pass the log.
	_Atomic uint32_t uncuttable;                 // Number of uncuttable streams.
	_Atomic uint32_t recorded; // Number of entries with records, and of others while the driver gets them.
	_Atomic uint32_t passing;  // Launches under way past the log; recorded is 0 then.
	_Atomic bool passed; // Launches went past the log in this phase [set by a launch: launch.c; cleared as logging begins: log.c].
	uint32_t phase;                       // How often logging began behind such launches.
	_Atomic uint32_t crossing[BLP_SIDES]; // Operations under way on each side.
	_Atomic uint32_t forgotten;           // How often entries were forgotten (blp_forget).
	int free_marker;

	struct blp_memory *_Atomic leaves; // takes its memory, if it ends before its context; made ahead, so that it is there
	CUdeviceptr memory, arena, spares; // spares: an arena of records whose flag is never set
	CUstream stream;                   // the library's: non-blocking, of the highest priority
	CUstream zeros;                // of its own for blp_zero: a stop's flag does not wait behind the copies there
	struct gpreempt_record *image; // pinned: the records of the log, by their index in it
	struct gpreempt_record *graph_image; // pinned: of graphs; made when first needed
	uint32_t *frozen;                    // pinned: BLP_LOG times GPREEMPT_FROZEN
	char *zero;                          // pinned: BLP_ZEROS bytes of 0
	CUevent done;
	CUevent order[BLP_LOG]; // of event records that were launched again; made when first needed
	struct {
		CUstream stream;
		CUevent done;
		enum blp_beside use;    // [relaunch.c, beside.c]
		int left;               // Markers on the stream's own queue, of entries that were cut since.
		uint32_t added;         // Calls of ours that have added to the stream's own queue.
		CUevent moved;          // Recorded on that queue ahead of them.
		const void *behind;     // The event of the last marker that this stream was put behind.
		int priority;           // The priority of the program's stream.
	} beside[BLP_STREAMS];          // One for each stream; made when first needed.
	struct gpreempt_record *staged; // Pinned, for each stream.
	struct {                        // narrow.c; under control, but for what is atomic.
		struct blp_narrow_queue queue[BLP_WIDTHS];
		_Atomic uint32_t queues; // How many of these are made.
		struct blp_narrow_queue *_Atomic on; // The log's entries run there while the domain is stopped; NULL: they do not run.
		struct blp_narrow_queue *was; // Launches there have not been seen to have ended.
		_Atomic uint32_t asked;       // SMs that the program leaves it while it is stopped.
		uint64_t driven[BLP_STREAMS]; // Entries of each stream below have been put there.
		uint64_t since_ns;
		CUevent idle; // behind all work that the context had when it was recorded
		bool marked;  // that event was recorded in this stop
		_Atomic enum {
			BLP_USABLE,
			BLP_LINGERS,
			BLP_REFUSED
		} usable; // BLP_LINGERS: the domain never goes on narrow again, and launches that did have not ended.
		CUevent end; // behind the launches of the former width
	} narrow;
	CUevent zeroed[BLP_REGIONS];
	uint8_t granule[BLP_GRANULES]; // 1: taken
	struct blp_entry *log;
	char *bytes;
	struct blp_marker marker[BLP_MARKERS];
	struct blp_stream stream_of[BLP_STREAMS];
	struct blp_stream unplaced; // stands for streams without a place while calls put work on them (blp_begin_pass)
};

extern struct gp_domain *_Atomic blp_domains[BLP_DOMAINS];

// Whether new work does not reach the driver: the domain is stopped, or about to be.
static inline bool blp_is_closed(const struct gp_domain *d) { return d->state >= BLP_CLOSING; }
// Whether the domain is stopped: work is only logged, and is launched when the stop ends. Elsewhere that it is closed is enough.
static inline bool blp_is_stopped(const struct gp_domain *d)
{
	enum blp_state state;
	while ((state = d->state) == BLP_CLOSING)
		sched_yield();
	return state > BLP_CLOSING;
}
static inline bool blp_is_flagged(const struct gp_domain *d) { return d->state >= BLP_FREEZING; } // the flag is set

// blp_changes counts stops and resumptions of all domains, blp_stopped the domains that are closed: states.c. The driver's answer to a
// question is true if neither shows a stop while it was asked.
extern _Atomic uint32_t blp_changes, blp_stopped;

extern _Atomic bool blp_retired; // read under gp_domain.control where a stop begins

extern _Atomic CUresult blp_error; // launches were lost: every later call of the program returns it
extern _Atomic CUresult blp_late;  // the driver refused a launch that was only logged: the next launch returns it

// This thread is inside a driver call under gp_domain.lock.
extern __thread bool blp_inside __attribute__((tls_model("initial-exec")));

// Questions about an entry, a stream and a domain.
static inline struct blp_entry *blp_entry_at(struct gp_domain *d, uint64_t sequence)
{
	return &d->log[sequence % BLP_LOG];
}
static inline uint64_t blp_blocks(const struct blp_entry *e) { return (uint64_t)e->grid[0] * e->grid[1] * e->grid[2]; }
// The driver has it.
static inline bool blp_is_sent(const struct blp_entry *e) { return e->stage == BLP_SENT || e->stage == BLP_UNGUARDED; }
// The same, and a stop reaches it.
static inline bool blp_is_stoppable(const struct blp_entry *e) { return e->stage == BLP_SENT; }
// No stop reaches it, or is to reach it once it is sent again.
static inline bool blp_is_unguarded(const struct blp_entry *e)
{
	return e->stage == BLP_CUT_UNGUARDED || e->stage == BLP_UNGUARDED;
}
// It is complete, also where entries before it are not.
static inline bool blp_is_done(const struct blp_entry *e) { return e->stage == BLP_DONE; }
static inline bool blp_pending(const struct blp_stream *s) { return s->handle && s->last > s->done; }
static inline bool blp_may_be_cut(const struct blp_stream *s) { return blp_pending(s) && !s->uncuttable; }
// A stream that the program destroyed while it was host-blocked keeps its place until the host block is over, under a handle of ours.
static inline bool blp_is_orphan(const struct blp_stream *s) { return s->handle == (CUstream)s; }
// Whether work of two streams is ordered by the rules of the legacy stream.
static inline bool blp_related(const struct blp_stream *s, CUstream handle, bool blocking)
{
	return s->handle == handle || (blocking && s->handle == GP_STREAM_LEGACY) ||
	       (handle == GP_STREAM_LEGACY && s->blocking);
}
static inline bool blp_may_log(const struct blp_stream *s) { return s->handle != GP_STREAM_LEGACY || !gp_capturing(); }
// It has a record, in the ring of launches or in those of graphs.
static inline bool blp_has_record(const struct blp_entry *e)
{
	return e->kind == BLP_GRAPH || (e->kind == BLP_LAUNCH && e->record);
}
// In the ring of launches.
static inline uint32_t blp_record_after(uint32_t record)
{
	record = (record + 1) % BLP_RECORDS;
	return record % BLP_REGION ? record : record + BLP_APART;
}
// A spare record is one that no flag stops.
static inline CUdeviceptr blp_spare(const struct gp_domain *d, uint32_t index)
{
	return d->spares + index * sizeof(struct gpreempt_record);
}
static inline uint32_t blp_spare_of_node(const struct blp_twin *t, uint32_t kernel)
{
	return 1 + BLP_STREAMS + t->first - BLP_RECORDS + kernel;
}
// Some stop may let the domain go on in a part of the SMs. Without a lock.
static inline bool blp_may_narrow(const struct gp_domain *d)
{
	return d->narrow.queues && d->narrow.asked && d->narrow.usable == BLP_USABLE;
}
// Launches of a resumption go beside the stream.
static inline bool blp_leads(const struct gp_domain *d, size_t stream)
{
	return d->beside[stream].use == BLP_LEADS || d->beside[stream].use == BLP_LEADS_AHEAD;
}
// The stream's own queue is not behind all that is beside it.
static inline bool blp_is_ahead(const struct gp_domain *d, size_t stream)
{
	return d->beside[stream].use == BLP_AHEAD || d->beside[stream].use == BLP_LEADS_AHEAD;
}
// The stream that entries of a stream are put on.
static inline CUstream blp_queue_of(const struct gp_domain *d, const struct blp_stream *s)
{
	size_t i = (size_t)(s - d->stream_of);
	struct blp_narrow_queue *narrow = d->narrow.on;
	if (narrow)
		return narrow->stream;
	return blp_leads(d, i) ? d->beside[i].stream : s->handle;
}

// The priority that a stream's launch on a queue is to have of its own; NULL: the queue's. A stream of ours has a higher priority, so that
// what is not a kernel comes first there. A kernel of a higher priority that has no room keeps the last blocks of another grid from
// theirs, also of another MPS client's grid. If those blocks wait for each other, no kernel gets anywhere any more.
static inline const int *blp_priority_on(const struct gp_domain *d, uint32_t stream, CUstream queue)
{
	return queue && queue == d->beside[stream].stream ? &d->beside[stream].priority : NULL;
}

// From here on files stand in layers: each calls only functions of files above it (test/units/layers_test.go).

// context.c
static inline CUresult blp_query(CUevent event)
{
	int mode = gp_relax_captures();
	CUresult result = gp_driver.cuEventQuery(event);
	gp_unrelax_captures(mode);
	return result;
}
bool blp_enter(CUcontext, bool *pushed); // makes a context current, where it is not
void blp_leave(bool pushed);
void blp_give_up(struct gp_domain *, const char *call, CUresult);
// Calls the driver; where that refuses, the domain d is given up, and the function returns false.
#define BLP_TRY(function, ...) \
	do { \
		CUresult result_ = gp_driver.function(__VA_ARGS__); \
		if (result_) { \
			blp_give_up(d, #function, result_); \
			return false; \
		} \
	} while (0)

// pause.c; the first three under gp_domain.lock
// Waits until a stopped domain goes on, also narrow; until an entry of it is complete; until the deadline (0: none); or for less.
void blp_wait_step(struct gp_domain *, uint64_t deadline_ns);
// Waits while the domain is stopped and nothing of it runs, until the deadline. True: it is resumed.
bool blp_wait_turn(struct gp_domain *, uint64_t deadline_ns);
// Waits while the domain is stopped, until the deadline (0: none). False: the deadline has passed.
bool blp_wait_resumed(struct gp_domain *, uint64_t deadline_ns);
bool blp_wanted_stopped(const struct gp_domain *); // by a window; without a lock
uint64_t blp_patience(void);                       // a deadline from now
void blp_pause(uint64_t since_ns); // between two looks. Like the driver, a thread does not sleep in a short wait

// records.c. These writes come through although all channels of the context are taken. False: the driver refused.
void blp_count_channels(void);
bool blp_may_lack_channels(const struct gp_domain *); // half of them may be taken; without a lock
// Zeroes records, on the stream for that. By copies, which wait for no room on an SM: a memset is a kernel with its stream's priority, and
// would do what blp_priority_on says.
CUresult blp_zero(struct gp_domain *, CUdeviceptr at, size_t bytes);
bool blp_set_flag(struct gp_domain *, bool set);
// Freezes records: their launches begin no further block. The flag was set before, or a queued launch could begin meanwhile. No other record
// that may be in use is frozen.
bool blp_freeze(struct gp_domain *, uint32_t first, uint32_t count);
bool blp_freeze_launches(struct gp_domain *, uint32_t from, uint32_t to); // from one on, up to another
// Pinned memory has as many records. The image is that of the records that a stop found in flight (gp_domain.first_record).
bool blp_copy_records(struct gp_domain *, uint32_t first, uint32_t count, struct gpreempt_record *, bool to_device);
bool blp_copy_image(struct gp_domain *, bool to_device);
struct gpreempt_record *blp_record_of(struct gp_domain *, const struct blp_entry *); // as read at the latest stop

// take.c
void blp_take_ends_with_thread(void);
void blp_begin_take(CUcontext); // A take of the calling thread, which keeps work of others off until its end; NULL: of no context.
void blp_end_take(void); // Ends the thread's take, if any, and its driver's wait.
void blp_let_in(void);   // Lets kept-off work in, since the program has asked for a stop.
// An operation waits in the library (this may come several times, also under gp_domain.lock), and goes to the driver; it is over. Calls of
// other threads that take memory, and came later, wait for it.
void blp_begin_late(CUcontext);
void blp_late_enters(void);
void blp_late_ends(void);
extern __thread bool blp_is_late __attribute__((tls_model("initial-exec"))); // the calling thread's is
static inline void blp_enter_late(void)
{
	if (__builtin_expect(blp_is_late, 0))
		blp_late_enters();
}
static inline void blp_end_late(void)
{
	if (__builtin_expect(blp_is_late, 0))
		blp_late_ends();
}
// Waits for such operations that came before the call of the calling thread that takes memory.
void blp_come_behind_late(void);
// The calling thread is about to call a function of the driver's that waits for the context with the driver's lock.
void blp_begin_driver_wait(CUcontext);
// Under gp_domain.lock, before anything is submitted with it held. blp_give_way gives the lock up while a call that began before is
// under way; true: it did, and all is to be looked at anew. A thread that waits for work meanwhile asks the driver instead of marking it.
bool blp_driver_waits(const struct gp_domain *);
bool blp_give_way_slowly(struct gp_domain *);
static inline bool blp_give_way(struct gp_domain *d)
{
	return __builtin_expect(d->driver_waits, 0) && blp_give_way_slowly(d);
}

// markers.c, under gp_domain.lock

// Records an event behind the stream's entries below upto, which the driver has now, unless a marker says when these are complete.
// False: the driver refused.
bool blp_mark(struct gp_domain *, struct blp_stream *, uint64_t upto);
CUevent blp_use_marker(struct gp_domain *, int marker); // without the lock: it is not recorded anew until blp_leave_marker
void blp_leave_marker(struct gp_domain *, int marker);
void blp_drop_markers(struct gp_domain *, struct blp_stream *);
int blp_marker_behind(struct gp_domain *, int first,
		      uint64_t upto); // of a list, the first that is behind entries below upto; -1: none
int blp_free_markers(struct gp_domain *, int first, uint64_t upto); // of a list, those up to there; what is left of it

// widths.c, under gp_domain.control
uint32_t blp_width(const struct gp_domain *); // SMs on which a stopped domain may go on; 0: none
// Counts the blocks of a launch that ran there, so many having run in all by now.
void blp_count_beside(struct gp_domain *, struct blp_entry *, uint64_t ran);
void blp_leave_narrow(struct gp_domain *); // the domain is about to be stopped whole
// Launches that ran narrow did not drain. From here on the domain does not go on narrow, and work behind such a launch on its stream
// waits for that. False: the driver refused.
bool blp_keep_narrow(struct gp_domain *);
bool blp_come_behind_narrow(struct gp_domain *, const struct blp_stream *);
// Whether launches that were cut there may still be in its queue, though they were launched again on their own streams: their records
// must stay frozen. Asks the driver.
bool blp_lingers(struct gp_domain *);
void blp_release_narrow(struct gp_domain *);
struct blp_narrow_queue *blp_widest(struct gp_domain *, uint32_t sms); // of at most so many SMs; NULL: there is none
CUresult blp_make_width(struct gp_domain *, uint32_t sms);             // as gp_blp_set_width; without control
// Records an event behind all that a context has, which is current. False: not now, since something is captured.
bool blp_record_whole(CUcontext, CUevent);

// domain.c
extern _Atomic bool blp_loads_lazily; // the driver loads a kernel's code with its first launch
extern _Atomic uint32_t blp_specials; // streams that ever got domains of their own
static inline bool blp_separated(void) { return blp_specials; }
struct gp_domain *blp_domain_of(CUcontext, CUstream);
struct gp_domain *blp_domain_for(const struct gp_operation *); // NULL: there is none, or not yet
// Whether an operation's stream has not got another domain since. Asked with the domain's lock, or from its count passing.
static inline bool blp_belongs(const struct gp_operation *o, const struct gp_domain *d)
{
	return !blp_separated() || blp_domain_for(o) == d;
}
bool blp_can_stop(struct gp_domain *); // A peer, or the program, may ask for a stop.
void blp_release(struct gp_domain *);  // Gives back the driver's objects.
// Memory of domains that end with their streams, which are not destroyed yet, stays with the context. blp_keep_begin says where the stream
// has got to, without a lock, since that may wait for room in its queue; NULL: another thread ends the domain of this number. Then, under
// gp_domain.control and in the context, the domain gives its memory away.
struct blp_memory *blp_keep_begin(struct gp_domain *, uint64_t generation, CUcontext, CUstream);
void blp_keep_memory(struct gp_domain *, struct blp_memory *);
void blp_free_kept(CUcontext); // as the context ends
// Gives a stream a domain of its own, where it has none.
CUresult blp_make_separate(struct gp_context *, CUcontext, CUstream);
bool blp_is_special(CUcontext, CUstream); // the stream has a domain of its own
void blp_forget_specials(CUcontext);
// Returns a domain that the stream had, with its context and number; NULL: none is left.
struct gp_domain *blp_forget_special(CUstream, CUcontext *, uint64_t *generation);

// crossing.c
// An operation may run in the middle of a launch in another domain. It counts itself before it looks there, and until the driver has it.
// A launch that may be cut looks whether it is to be behind such a one, once it is in the log. So one of the two sees the other: a launch
// that is seen is waited for, and one that sees an operation on its way is not logged.
void blp_begin_crossing(struct gp_operation *, struct gp_domain *);
void blp_end_crossing(struct gp_operation *, struct gp_domain *);
bool blp_is_crossed(const struct gp_operation *, const struct gp_domain *);
// Whether its domain and its side are still the right ones: streams get domains of their own at any time.
bool blp_is_counted(const struct gp_operation *, const struct gp_domain *);
enum blp_side blp_side_of(const struct gp_domain *, CUcontext, CUstream);

// events.c, with the events' lock taken and given back
void blp_event_captured(CUevent); // recorded on a stream that is captured: a stream that waits for it joins the capture
void blp_record_again(struct gp_domain *, CUevent, uint64_t upto, CUstream);
bool blp_wait_again(struct gp_domain *, CUevent, uint64_t upto, CUstream); // false: the event was recorded anew since
// The driver's answer about an event, while that stands for this record; otherwise CUDA_ERROR_NOT_FOUND.
CUresult blp_query_record(struct gp_domain *, CUevent, uint64_t upto);
void blp_forget_events(struct gp_domain *);
struct gp_event_record blp_look_event(CUevent);
bool blp_is_latest_record(CUevent, struct gp_domain *, uint64_t upto);
// Remembers the event's latest record, also one outside the log (the domain is NULL): of an unknown event nothing could be said.
// False: the table is full.
bool blp_remember_event(const struct gp_operation *, struct gp_domain *, uint16_t stream, uint64_t upto, bool host_blocked);

// complete.c, under gp_domain.lock
void blp_complete_to(struct gp_domain *, struct blp_stream *, uint64_t upto);
// Takes what is left of a stream out of the log: event records and waits, which the driver has, and which nothing can cut.
void blp_forget(struct gp_domain *, struct blp_stream *);
// The same of all streams but those that stand for a thread's own, of which the driver does not tell. No launch is in the log.
void blp_forget_all(struct gp_domain *);
// Whether the GPU is known to have reached the stream's entries below upto. The GPU may not have reached an entry that is only complete
// for the log.
static inline bool blp_reached(const struct blp_stream *s, uint64_t upto)
{
	return upto <= s->done && upto > s->completion_unknown;
}
void blp_advance(struct gp_domain *);
// Marks all that the log has of the stream, in a domain that is not stopped. Where launches past the log may have filled the queue,
// nothing of that can be cut, and it is forgotten. False: the driver refused.
bool blp_mark_or_forget(struct gp_domain *, struct blp_stream *);
// Marks a record that a thread waits for before the driver gets more of its stream: the event may stand for another record later. False:
// the driver refused.
bool blp_keep_mark(struct gp_domain *, struct blp_stream *);
// Marks what is ahead before the driver gets an entry of a stream. That entry may wait for the program, and a later marker would come
// behind it: on that stream, or on one that the legacy stream orders with it. driven: up to where the driver has the entries of each
// stream; NULL: all. False: the driver refused.
bool blp_mark_ahead(struct gp_domain *, const struct blp_stream *, enum blp_kind, const uint64_t *driven);
bool blp_has_ended(struct gp_domain *, struct blp_stream *, uint64_t upto); // asks the driver
bool blp_runs_on(struct gp_domain *, struct blp_stream *); // what markers tell of an uncuttable stream's entries; asks the driver
// Asks the driver how far the stream is, by its markers: what it says of the first that is not reached.
CUresult blp_poll(struct gp_domain *, struct blp_stream *);
CUresult blp_poll_queue(struct gp_domain *, struct blp_stream *); // the same, by the queue as a whole

// host_block.c, under gp_domain.lock, where nothing else is said
bool blp_is_host_blocked(struct gp_domain *, struct blp_stream *);             // or one that it is ordered with
bool blp_host_block(struct gp_domain *, struct blp_stream *, CUstream behind); // false: the driver refused
// Host-blocks it up to the next call past the log, without a call of the driver. deep: its queue has many calls.
void blp_doubt(struct gp_domain *, struct blp_stream *, bool deep);
bool blp_is_deep(struct gp_domain *, struct blp_stream *); // whether its queue may have more than BLP_PAST calls; asks the driver
// Waits a while for a host-blocked stream whose queue is deep, and gives up the lock. True: it got somewhere.
bool blp_wait_shallow(struct gp_domain *, struct blp_stream *);
bool blp_host_block_is_over(struct gp_domain *, struct blp_stream *); // asks the driver
// Without the lock, before the stream is destroyed: from here on the event tells whether the host block is over.
void blp_end_host_block(struct gp_domain *, struct blp_stream *);
bool blp_still_uncuttable(struct gp_domain *, struct blp_stream *); // asks the driver
// The event of an uncuttable stream behind its entries below upto.
CUevent blp_uncuttable_end(struct gp_domain *, const struct blp_stream *, uint64_t upto);
void blp_still_host_blocked(struct gp_domain *); // asks the driver
void blp_begin_pass(struct gp_operation *, struct gp_domain *, struct blp_stream *);
// Operations under way whose contexts had no domain yet. While there are any, no stream gets a place in a log: they may be on it.
extern _Atomic uint32_t blp_unmet;
extern struct blp_stream blp_nowhere;                                     // what such operations pass on
void blp_passed(struct gp_operation *);                                   // without the lock
bool blp_is_stream_host_blocked(struct gp_domain *, struct blp_stream *); // asks the driver
bool blp_let_run(struct gp_domain *, struct blp_stream *);
bool blp_is_counted_there(const struct gp_operation *, const struct gp_domain *); // the operation that passes

// streams.c, under gp_domain.lock
bool blp_related_pending(struct gp_domain *, struct blp_stream *);            // and may be cut
struct blp_stream *blp_find_place(struct gp_domain *, CUstream, bool insert); // not for GP_STREAM_PER_THREAD
bool blp_knows_queue(struct gp_domain *, struct blp_stream *);

// thread.c, under gp_domain.lock
struct blp_stream *blp_find_stream(struct gp_domain *, CUstream, bool insert);
// Orders the calling thread's own stream and the one that stands for it: before an entry is logged (false: the driver
// refused), and before work is put on the thread's own stream.
bool blp_leave_own(struct blp_stream *);
void blp_enter_own(struct blp_stream *);
// Without the lock: before a launch on the thread's own stream past the log, while that holds no launch.
void blp_pass_own(struct gp_domain *);

// await.c, under gp_domain.lock
// Marks the stream's entries below upto, which a thread waits for later, before work comes behind them. True: they are complete.
bool blp_expect(struct gp_domain *, struct blp_stream *, uint64_t upto);
// Waits until the stream's entries below upto are complete; with a bound, or where no marker tells, also until they are uncuttable. Gives the
// lock up meanwhile. Does not wait for entries that come later. patience_ns bounds the wait, without the time of stops (0: no bound).
// False: the time was over, or the driver refused.
bool blp_wait_complete(struct gp_domain *, struct blp_stream *, uint64_t upto, uint64_t patience_ns);
// blp_wait_complete for a call that must not wait for ever: after the patience the entries become uncuttable instead. False: the
// driver refused.
bool blp_wait_or_let_run(struct gp_domain *, struct blp_stream *, uint64_t upto);

// log.c, under gp_domain.lock
// Waits for room for one more entry; false: there is none.
bool blp_make_room(struct gp_domain *, struct blp_stream *, uint32_t bytes);
bool blp_has_room(struct gp_domain *, struct blp_stream *, uint32_t bytes); // without a wait
void blp_note_full(void);                                                   // gp_blp_was_full
// NULL: it cannot be logged. A launch past the log is on its way to the driver, or in a queue, or the driver refuses a marker. now:
// the driver gets it at once. Records and waits count in gp_domain.recorded until blp_event_settled.
struct blp_entry *blp_append(struct gp_domain *, struct blp_stream *, enum blp_kind, bool now, uint32_t bytes, char **room);
void blp_unappend(struct gp_domain *, struct blp_stream *);
static inline void blp_event_settled(struct gp_domain *d) { d->recorded--; }
void blp_appended(struct gp_domain *, struct blp_stream *); // after the driver took it
uint64_t blp_threads(const struct blp_entry *);             // as BLP_THREADS_IN_FLIGHT counts them

// fit.c
struct blp_shape {
	bool whole;       // The launch is stopped as a whole, before it begins or not at all.
	uint32_t cluster; // As gp_cluster_of.
	uint32_t on_sm;   // Blocks that an SM has room for, at most.
	bool sound;       // The driver takes a launch of these sizes.
};
// May ask the driver, the first time.
struct blp_shape blp_shape_of(const struct gp_domain *, CUfunction, const struct gp_code *, const uint32_t *grid,
			      const uint32_t *block, uint32_t shared_bytes);
uint32_t blp_windows(uint64_t blocks, uint32_t cluster, uint8_t shift); // number of windows of blocks, which a record counts
// The shift of a launch that is not whole, on so many SMs: by its grid, its clusters, and the blocks that an SM has room for.
uint8_t blp_shift(const struct blp_entry *, uint32_t sms);

// flush.c
// Whether work runs beside a stream that is uncuttable or whose domain is given up. Of a stream that stands for a thread's own: or on it.
// The queue that the driver is asked about, or waits for, may not be behind that: relaunch.c, thread.c.
bool blp_runs_beside(struct gp_domain *, struct blp_stream *); // under gp_domain.lock
// Without the lock: waits for what a context's other domains have that comes before new work of the stream, within a patience.
void blp_flush_but(const struct gp_domain *but, CUcontext, CUstream);
void blp_come_behind(const struct gp_operation *); // gp_blp_come_behind, for its stream
void blp_flush_ahead(CUcontext); // all that is ahead of work on all of its streams, within a patience; NULL: of all contexts

// Around a call of the driver's by which the program waits for a stream, or for all of a context (gp_blp_expect_all). blp_expect notes what
// the driver may take for complete though it was cut, and blp_wait waits for that.
void blp_expect_stream(CUstream, CUcontext current);
CUresult blp_wait_stream(CUstream, CUcontext current);
CUresult blp_wait_all(CUcontext);

// barrier.c
// Without gp_domain.lock: waits for work of the context's other domains that the legacy stream orders before new work of the
// stream. True: new work may wait for the CPU behind that.
bool blp_flush_others(struct gp_domain *, CUcontext, CUstream);
// Without the lock. An operation that is not logged comes behind what the log holds for its stream. A barrier is one that
// can neither be stopped nor repeated.
void blp_pass(struct gp_operation *);
void blp_barrier(struct gp_operation *);
// Waits until the domain goes on, within a patience: a launch that did not wait at the gate, and that the log does not take after all.
void blp_wait_as_at_gate(const struct gp_operation *, struct gp_domain *);
void blp_enter_driver(struct gp_operation *); // without the lock, after the wait for what is ahead

// send.c
CUresult blp_drive(struct gp_domain *, struct blp_entry *);                                   // under gp_domain.lock
CUresult blp_drive_on(struct blp_entry *, CUstream, const int *priority, CUdeviceptr hidden); // priority: blp_priority_on
CUresult blp_drive_given(struct gp_domain *, struct blp_entry *, void **parameters, uint16_t count); // NULL: those of the log
CUresult blp_drive_graph(struct gp_domain *, struct blp_entry *);
CUresult blp_call_driver(CUfunction, const uint32_t *grid, const uint32_t *block, uint32_t shared_bytes, CUstream,
			 const struct gp_launch_attribute *, uint32_t attribute_count, void **parameters, void **extra);
void blp_with_hidden(void **to, void **given, uint16_t count, const CUdeviceptr *hidden);

// launch.c
// Launches a kernel for an operation, which need not be a launch itself. A guarded kernel is logged, another is a barrier.
// False: nothing was done, and the driver's function is to be called.
bool blp_launch(struct gp_operation *, const struct gp_launch *);
bool blp_logs_launch(const struct gp_launch *);                       // it can be stopped
bool blp_can_number(CUfunction, const uint32_t *grid, bool clusters); // false: the guard cannot tell its blocks apart

// graph.c
bool blp_launch_graph(struct gp_operation *);   // False: the graph is a barrier.
void blp_graph_launched(struct gp_operation *); // The program's own instance ran, though it has a twin.
bool blp_graph_is_complete(struct blp_entry *); // Reads the graph's records, and makes them those of its relaunch.
void blp_drop_twins(struct gp_domain *);
// The domain has ended; the driver ends what it has of them with the context. With their lock, from before its end, so that none is made later.
void blp_forget_twins(struct gp_domain *);
void blp_lock_twins(void); // before gp_domain.control
void blp_unlock_twins(void);
void blp_graphs_leave(CUstream); // it is about to be destroyed

// fill.c
bool blp_fill(struct gp_operation *); // carries a memset or copy out by a kernel; false: it could not

// beside.c
// Lets late streams finish what they run, and launches missing blocks beside it. Under gp_domain.control. False: the driver
// refused.
bool blp_let_go(struct gp_domain *);
bool blp_make_beside(struct gp_domain *,
		     uint32_t stream);   // not busy, unless it has work ahead of the stream's own. False: refused
void blp_keep_ahead(struct gp_domain *); // under gp_domain.lock, once the records have told what was cut

// relaunch.c, under gp_domain.lock
bool blp_runs_again(const struct gp_domain *, const struct blp_entry *);
// Whether stops have added enough to the queue of a stream that gets nowhere. The work at its head may wait for the program, and the next
// call might wait for room. So a stop cuts nothing until the stream gets somewhere. Under gp_domain.control.
bool blp_is_held_up(struct gp_domain *);
// Launches the entries that are left in the order of the log. False: a window has opened meanwhile, or the driver refused.
bool blp_relaunch(struct gp_domain *);

// stop.c, under gp_domain.control
bool blp_drained(struct gp_domain *); // waits for the end of a stop, and finds out what was cut. False: the driver refused
void blp_widen(struct gp_domain *);    // stops launches that run narrow
bool blp_unfreeze(struct gp_domain *); // launches that were cut may go on where they were. False: the driver refused

// event.c
// An event is recorded on a stream, or a stream waits for one. True: that is carried out, now or later. False: the driver's
// call follows; then, if the operation is logging, blp_logged, with a lock held in between.
bool blp_record(struct gp_operation *);
bool blp_await(struct gp_operation *);
void blp_awaited(struct gp_operation *); // the driver has the wait
void blp_logged(struct gp_operation *);

// put_off.c, for the watcher of a GPU
enum blp_way { BLP_STOPS, BLP_WAITS, BLP_WAYS };
enum { BLP_LAST = 48 };
struct blp_history {
	uint64_t started_ns; // Of the process that it is about.
	uint32_t since_other, count[BLP_WAYS], lasted_ns[BLP_WAYS][BLP_LAST];
	uint64_t usual_ns[BLP_WAYS], mean_ns[BLP_WAYS]; // of lasted_ns: the mean of the shorter three quarters, and of all
};
struct blp_windows {
	bool wanted;                             // Windows are open that are to be stopped for.
	uint64_t since_ns;                       // 0: no window of a higher level is open.
	uint64_t slots;                          // Whose windows were open since then.
	struct { uint64_t windows, ns; } before; // As the first one's process counts them, when it opened.
	bool counts;                             // For the comparison.
	enum blp_way way;
	struct blp_history history[GP_SLOTS];
};
// At each look. Has the open windows ignored while a stop for them waits, and returns for how many nanoseconds; 0: none waits.
uint64_t blp_put_off(struct blp_windows *, struct gp_gpu *, uint64_t now);

// narrow.c, under gp_domain.control
// Lets a stopped domain go on as far as its width allows, or ends that. True: it is to be called again soon.
bool blp_narrow(struct gp_domain *);

#endif
