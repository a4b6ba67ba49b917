// domain.h - what the files of block-level preemption share. Rules and lock order: blp.h.
#ifndef GPREEMPT_BLP_DOMAIN_H
#define GPREEMPT_BLP_DOMAIN_H

#include "kernels/guard/guard.h"
#include "preempt/blp/blp.h"
#include "preempt/process/process.h"

enum {
	BLP_DOMAINS = 64,
	BLP_LOG = 4096,             // entries; a power of two
	BLP_BYTES = 4 << 20,        // arguments and attributes of logged launches
	BLP_STREAMS = 256,          // of a domain; launches on others are not covered
	BLP_IN_FLIGHT = 128,        // entries of one stream: what is queued takes time to drain
	// Threads of one stream, but for two launches: a block that is skipped takes an H200 2 ns where it has 1024 threads,
	// and with 256 or less 0.6 ns.
	BLP_THREADS_IN_FLIGHT = 1 << 27,
	BLP_LEAST_THREADS = 256, // of a block, in that count
	BLP_MARKER_EVERY = 32,      // entries of a stream
	BLP_MARKERS = 256,
	BLP_RECORDS = GPREEMPT_ARENA_BYTES / sizeof(struct gpreempt_record) / 4 * 3, // for launches; the rest is for graphs
	BLP_REGIONS = 8,            // of records, zeroed one at a time
	BLP_REGION = BLP_RECORDS / BLP_REGIONS,
	BLP_GRANULE = 16,           // records of a graph come in so many
	BLP_GRANULES = GPREEMPT_ARENA_BYTES / sizeof(struct gpreempt_record) / 4 / BLP_GRANULE,
	BLP_SPARES = 1 + BLP_STREAMS + BLP_GRANULES * BLP_GRANULE, // records beyond the flag's reach: beside.c
	BLP_SPECIAL = 64,           // streams with a domain of their own
	// How long a call of the program waits for what it only has to come behind: most kernels take less by far. A stream for
	// which that was not enough, since its kernels wait for the program, is waited for less and less.
	BLP_PATIENCE_NS = 1000000000,
	BLP_LEAST_PATIENCE_NS = 1000000,
};

// A region is zeroed when all of the next one has been handed out.
_Static_assert((int)BLP_LOG <= (int)BLP_REGION, "launches of a region that is zeroed may be in the log");

struct gp_code;

struct blp_marker {
	CUevent event;
	uint64_t upto;
	int next;
};

struct blp_stream {
	CUstream handle;         // NULL: free
	bool blocking;           // ordered with the legacy stream
	enum { BLP_NO_THREAD, BLP_THREAD_LIVES, BLP_THREAD_ENDED } thread; // in place of that thread's default stream
	bool behind;             // that one has something that the next entry comes behind
	bool tainted;            // what it waits for may wait for the CPU: taint is recorded behind that
	bool firm;               // tainted, and its entries are not cut any more: the program did not have to wait for them
	bool draining;           // drain is recorded
	uint32_t passing;        // calls under way that put work on it which the log does not hold
	uint64_t patience_ns;    // how long a call waits for it
	uint64_t last, done;     // sequence + 1: of the last entry; all of its entries below are complete
	uint64_t entries, finished; // counts
	uint64_t threads, threads_finished;
	uint32_t unmarked;       // entries since the last marker
	int first_marker, last_marker; // -1: none
	CUevent drain, taint, join; // made when first needed
};

enum blp_kind { BLP_LAUNCH, BLP_GRAPH, BLP_RECORD, BLP_WAIT };

struct blp_twin { // graph.c
	_Atomic(CUgraphExec) of; // the program's; NULL: free
	CUgraphExec own;
	struct gp_domain *domain;
	uint32_t first, count;   // records
	uint32_t *windows;       // of each of its kernels
	struct blp_entry *kernel; // BLP_LAUNCH, of those that may be parted; the others have no arguments
	bool retired;            // from now on the program's own is launched
	CUevent plain;           // behind the latest launch of the program's own,
	bool ran_plain;          // which may not be over
	struct gpreempt_record *image; // pinned
	uint16_t stream;         // of the launch in flight: its entry is the one below upto
	uint64_t upto;
};

struct blp_entry {
	uint8_t kind;
	bool driven;   // handed to the driver since it was last found incomplete
	bool accepted; // by the driver, once
	bool complete; // though others before it may not be
	bool counted;  // was cut before
	uint16_t stream;
	uint64_t ordinal;     // of its stream
	uint64_t threads;     // of its stream up to here
	uint64_t bytes_begin; // of the ring of bytes, before this entry took its part
	CUevent event;        // BLP_RECORD
	bool awaited;         // BLP_RECORD: a wait in the log is for it
	uint16_t of;          // BLP_WAIT: the stream whose entry below upto records what is waited for
	uint64_t upto;
	struct blp_twin *twin; // BLP_GRAPH
	bool fresh;           // BLP_GRAPH: its records are those of an earlier launch. BLP_RECORD: d->order stands for it
	bool bare;            // no stop reaches it, or it has begun as a whole: what it still does is the driver's business
	uint32_t spare;       // BLP_LAUNCH, bare: its record among the spare ones; 0: none, all of its blocks run
	CUfunction function;  // BLP_LAUNCH from here on
	uint32_t grid[3], block[3], shared_bytes;
	uint32_t record;      // 0: the domain was given up
	uint32_t cluster;     // blocks that share a number
	uint8_t shift;        // ../kernels/guard/guard.h
	uint32_t attribute_count, argument_bytes;
	char *arguments;
	struct gp_launch_attribute *attributes;
};

struct gp_domain {
	_Atomic(CUcontext) context;   // NULL: the place is free
	struct gp_gpu *_Atomic gpu;
	bool separate;                // of one stream, which the program stops
	_Atomic uint64_t made;        // different for each that has the place
	pthread_mutex_t control;      // who stops and resumes
	_Atomic uint32_t reasons;     // enum gp_blp_reason, changed under control, as is what follows
	bool stopped, flagged, quiet, drained; // quiet: no block runs, but of late streams; drained: what was cut is known
	bool late[BLP_STREAMS];       // did not drain in time
	bool runs_on[BLP_STREAMS];    // are not waited for: what they run is bare
	uint64_t flagged_ns;
	uint32_t first_record, last_record; // in the image; 0: none
	uint64_t ranged;              // entries below this sequence have theirs there

	_Atomic uint32_t epoch;       // odd while stopped or about to be; changed under control
	_Atomic uint32_t given_up;    // a driver's error: everything passes
	_Atomic CUresult error;       // for what could not be launched again
	pthread_mutex_t lock;         // what follows
	pthread_cond_t resumed;
	_Atomic uint64_t head, tail;  // sequences
	uint64_t bytes_head;
	_Atomic uint32_t oldest_record, next_record; // those from the first on may be in flight
	uint32_t streams;             // places ever used
	_Atomic uint32_t tainted;     // streams, and calls that put something on one past the log
	_Atomic uint32_t firm;        // streams; see blp_let_run
	_Atomic uint32_t recorded;    // entries with records
	int free_marker;

	CUdeviceptr memory, arena, spares; // spares: an arena whose flag is never set
	CUstream stream;              // of ours: non-blocking, of the highest priority
	struct gpreempt_record *image; // pinned: the records of the log, by their index in it
	struct gpreempt_record *graph_image; // pinned: of graphs; made when first needed
	uint32_t *word;               // pinned: 0, then BLP_LOG times 1
	CUevent done;
	CUevent order[BLP_LOG];       // made when first needed, for the entry of a record
	struct { CUstream stream; CUevent done; } beside[BLP_STREAMS]; // likewise
	struct gpreempt_record *staged; // pinned, for each stream
	CUevent zeroed[BLP_REGIONS];
	bool zeroing[BLP_REGIONS];
	uint8_t granule[BLP_GRANULES]; // 1: taken
	struct blp_entry *log;
	char *bytes;
	struct blp_marker marker[BLP_MARKERS];
	struct blp_stream stream_of[BLP_STREAMS];
};

extern struct gp_domain *_Atomic blp_domains[BLP_DOMAINS];

// Changed at every stop and resumption of any domain, and how many are stopped: an answer of the driver is what it
// seems if neither shows a stop while it was asked.
extern _Atomic uint32_t blp_changes, blp_stopped;

extern _Atomic bool blp_retired; // read under gp_domain.control where a stop begins

extern _Atomic CUresult blp_error; // the program must hear of: launches were lost
extern _Atomic CUresult blp_late;  // of a launch that was only logged, and refused by the driver later: for the next one to return

// Set while this thread is inside a call of the driver's under gp_domain.lock.
extern __thread bool blp_inside __attribute__((tls_model("initial-exec")));

// domain.c
bool blp_enter(CUcontext, bool *pushed); // makes a context current, where it is not
void blp_leave(bool pushed);
struct gp_domain *blp_domain_of(CUcontext, CUstream);
void blp_give_up(struct gp_domain *, const char *call, CUresult);
bool blp_can_stop(struct gp_domain *); // somebody lives who may want it
void blp_release(struct gp_domain *); // gives back what the driver gave
// Gives a stream a domain of its own, where it has none.
CUresult blp_make_separate(struct gp_context *, CUcontext, CUstream);
bool blp_is_special(CUcontext, CUstream); // a place is kept for it, though it may have no domain yet
void blp_forget_specials(CUcontext);
struct gp_domain *blp_forget_special(CUstream, CUcontext *); // the domain that it had; NULL: none, or no more
bool blp_separated(void); // there are streams with domains of their own

static inline CUresult blp_query(CUevent event)
{
	int mode = gp_relax_captures();
	CUresult result = gp_driver.cuEventQuery(event);
	gp_unrelax_captures(mode);
	return result;
}

// log.c, all under gp_domain.lock
static inline struct blp_entry *blp_entry_at(struct gp_domain *d, uint64_t sequence)
{
	return &d->log[sequence % BLP_LOG];
}
static inline uint64_t blp_blocks(const struct blp_entry *e) { return (uint64_t)e->grid[0] * e->grid[1] * e->grid[2]; }
uint64_t blp_threads(const struct blp_entry *); // as BLP_THREADS_IN_FLIGHT counts them
static inline bool blp_pending(const struct blp_stream *s) { return s->handle && s->last > s->done; }
static inline bool blp_may_be_cut(const struct blp_stream *s) { return blp_pending(s) && !s->firm; }
// A stream that the program has destroyed, and whose taint is still of interest, has a handle that is none of the driver's.
static inline bool blp_is_orphan(const struct blp_stream *s) { return s->handle == (CUstream)s; }
// Whether work of two streams is ordered by the rules of the legacy stream.
static inline bool blp_related(const struct blp_stream *s, CUstream handle, bool blocking)
{
	return s->handle == handle || (blocking && s->handle == GP_STREAM_LEGACY) || (handle == GP_STREAM_LEGACY && s->blocking);
}
bool blp_related_pending(struct gp_domain *, struct blp_stream *); // and may be cut
static inline bool blp_may_log(const struct blp_stream *s) { return s->handle != GP_STREAM_LEGACY || !gp_capturing(); }
struct blp_stream *blp_find_stream(struct gp_domain *, CUstream, bool insert);
void blp_complete_to(struct gp_domain *, struct blp_stream *, uint64_t upto);
void blp_advance(struct gp_domain *);
void blp_mark(struct gp_domain *, struct blp_stream *, uint64_t upto); // what the driver has now
void blp_drop_markers(struct gp_domain *, struct blp_stream *);
bool blp_has_ended(struct gp_domain *, struct blp_stream *, uint64_t upto); // asks the driver
// Waits until the stream's entries below upto are complete, or will not be cut; the lock is given up meanwhile. It waits for
// nothing that comes behind them, and never longer than the patience, in which the domain is not stopped (0: whatever it
// takes). False: it was over, or the driver refused.
bool blp_wait_complete(struct gp_domain *, struct blp_stream *, uint64_t upto, uint64_t patience_ns);
// Waits while the domain is stopped, until the deadline (0: none); false: it has passed.
bool blp_wait_resumed(struct gp_domain *, uint64_t deadline_ns);
uint64_t blp_patience(void); // a deadline from now
// Room for one more entry, which may be waited for; false: there is none.
bool blp_make_room(struct gp_domain *, struct blp_stream *, uint32_t bytes);
bool blp_has_room(struct gp_domain *, struct blp_stream *, uint32_t bytes); // without a wait
struct blp_entry *blp_append(struct gp_domain *, struct blp_stream *, enum blp_kind, uint32_t bytes, char **room);
void blp_unappend(struct gp_domain *, struct blp_stream *);
void blp_appended(struct gp_domain *, struct blp_stream *); // after the driver took it

// launch.c
uint32_t blp_windows(uint64_t blocks, uint32_t cluster, uint8_t shift); // what a record counts
uint8_t blp_shift(uint64_t blocks, bool whole);
bool blp_can_number(CUfunction, const uint32_t *grid, bool clusters); // false: the guard cannot tell its blocks apart
CUresult blp_drive(struct gp_domain *, struct blp_entry *); // under gp_domain.lock
CUresult blp_drive_on(struct blp_entry *, CUstream, CUdeviceptr hidden);
void blp_pack(const struct gp_code *, void **parameters, void **extra, char *to);

// fit.c; may ask the driver, the first time
bool blp_fits(const struct gp_gpu *, CUfunction, const uint32_t *grid, const uint32_t *block, uint32_t shared_bytes);

// barrier.c, under gp_domain.lock but for the first
// Work of other domains of the context that the rules of the legacy stream put before new work of the stream is waited for.
// True: new work may wait for the CPU behind some of that.
bool blp_flush_others(struct gp_domain *, CUcontext, CUstream);
// blp_wait_complete for a call that must not wait for ever: when it has waited long enough, the entries are not cut any
// more. False: the driver refused.
bool blp_wait_or_let_run(struct gp_domain *, struct blp_stream *, uint64_t upto);
bool blp_is_tainted(struct gp_domain *, struct blp_stream *); // or one that it is ordered with
bool blp_taint(struct gp_domain *, struct blp_stream *, CUstream behind); // false: the driver refused
void blp_still_tainted(struct gp_domain *);                   // asks the driver
void blp_begin_pass(struct gp_submission *, struct gp_domain *, struct blp_stream *);
void blp_enter_driver(struct gp_submission *); // without the lock: after what it comes behind was waited for

// thread.c, under gp_domain.lock
struct blp_stream *blp_thread_stream(struct gp_domain *, bool insert); // of the calling thread's per-thread default stream
// The calling thread puts something into the log (false: it can't be), or on its own stream behind what the log holds.
bool blp_leave_own(struct blp_stream *);
void blp_enter_own(struct blp_stream *);
void blp_pass_own(struct gp_domain *); // without the lock, and nothing is in the log

// graph.c
CUresult blp_drive_graph(struct gp_domain *, struct blp_entry *);
bool blp_graph_is_complete(struct blp_entry *); // by its image, which becomes that of its relaunch
void blp_drop_twins(struct gp_domain *);

// stop.c
bool blp_wanted_stopped(struct gp_domain *);
struct gpreempt_record *blp_record_of(struct gp_domain *, const struct blp_entry *); // as it was read at the stop

// beside.c
// What late streams run goes on, and what is behind it will. Under gp_domain.control. True for the streams that have to be
// waited for all the same. False: the driver refused.
bool blp_let_go(struct gp_domain *, bool *waits);
CUdeviceptr blp_spare(struct gp_domain *, uint32_t index);

// event.c
void blp_record_again(struct gp_domain *, CUevent, uint64_t upto, CUstream);
bool blp_wait_again(struct gp_domain *, CUevent, uint64_t upto, CUstream); // false: it says something else by now
void blp_forget_events(struct gp_domain *);

#endif
