// segment.h - the memory that the processes of one user share for one GPU.
//
// It has no name: members pass it on through sockets <directory>/gpreempt-<uid>/<gpu uuid>.seg.<slot>, sealed so that no process can
// truncate it (segment/memory.go). The file <gpu uuid>.seg beside them, mode 0600 in a 0700 directory, holds the first 64 bytes, which
// say which memory is in force, and the locks. segment/layout.go mirrors this layout and a test holds the two together. Everything here
// may have been written by a broken or hostile peer:
// readers validate, and nothing read from it is used as an index or a pointer unchecked.
//
// Owner of a slot: the process that holds a POSIX record lock on byte slot_index of the file. The kernel drops the lock when the process
// dies, at whatever instruction, in whatever PID namespace.
#ifndef GPREEMPT_SEGMENT_H
#define GPREEMPT_SEGMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "configs/rows.h"

#define GP_SEGMENT_MAGIC 0x31544d4545525047ull // "GPREEMT1", little endian
#define GP_SEGMENT_VERSION 15u
#define GP_SLOTS 64u
#define GP_LEVELS 8u    // 0 = highest (lc), 7 = lowest (be)
#define GP_HINT_ROOM 7u // enum gp_hint_source, and room for more
#define GP_REFUSALS 8u  // enum gp_refusal, and room for more
#define GP_TIME_BUCKETS 24u
#define GP_FIRST_BUCKET 17u // its upper bound is 1 s / 2^17, 7.6 us
// Bytes of a page of its own: the most that any kernel of the architecture has.
#ifdef __x86_64__
#define GP_PAGE 4096u
#else
#define GP_PAGE 65536u
#endif
#define GP_LINES_AT 1984u
#define GP_LINES 32u

// The fate of the hints of one source.
struct gp_hint_counters {
	_Atomic uint64_t given;
	_Atomic uint64_t hit;   // Work came while the GPU was being kept for it.
	_Atomic uint64_t late;  // Work was there before the hint was carried out.
	_Atomic uint64_t wrong; // No work came in time.
	_Atomic uint64_t dropped; // Not carried out: senseless, a duplicate, switched off, or no process to take the GPU from.
	_Atomic uint64_t saved_ns;  // Time of context switches that went on before the work came.
	_Atomic uint64_t waited_ns; // GPU time kept before work came, or in vain.
	_Atomic uint64_t times_off; // How often the source was switched off for costing too much.
};

enum gp_refusal {         // Why a kernel is not rewritten.
	GP_REFUSED_FORM,  // Its code, attributes or relocations are of an unknown form.
	GP_REFUSED_ROOM,  // No room for one more parameter, or for the guard's registers.
	GP_REFUSED_PEERS, // Its blocks wait for one another.
	GP_REFUSED_SM,    // There is no guard for its architecture.
	GP_REFUSED_IMAGE, // The image that holds it can't be read or loaded as a rewritten one; counted once an image.
	GP_REFUSED_RUNTIME, // Its code was loaded unseen, as CUDA runtimes before 12.0 do.
};

// The fate of the kernels of the modules that were loaded for block-level preemption.
struct gp_kernel_counters {
	_Atomic uint64_t images;  // modules and libraries
	_Atomic uint64_t cached;  // of these: found in the cache on disk
	_Atomic uint64_t load_ns; // that loads waited for the rewriting
	_Atomic uint64_t seen;
	_Atomic uint64_t guarded; // rewritten
	_Atomic uint64_t refused[GP_REFUSALS];
};

// Block-level preemption on this GPU.
struct gp_stop_counters {
	_Atomic uint64_t launches;  // that can be stopped between blocks
	_Atomic uint64_t uncovered; // launches that cannot
	_Atomic uint64_t barriers;  // operations that waited until what can be stopped was done
	_Atomic uint64_t stops;
	_Atomic uint64_t cuts;           // Launches that were stopped midway, or before they began.
	_Atomic uint64_t resumed_blocks; // Blocks that a stop kept from running, and that ran later.
	_Atomic uint64_t drain_ns;       // Time from stops until no block ran any more.
	_Atomic uint64_t drain_max_ns;
	_Atomic uint64_t given_up; // Domains that pass everything after an error, and mistakes of ours after which none is stopped.
	_Atomic uint64_t beside;        // Launches whose blocks waited for others that a stop had kept from beginning.
	_Atomic uint64_t narrowed;      // Launches that went on, while their stream was stopped, in its width.
	_Atomic uint64_t narrow_blocks; // Blocks that ran there.
	_Atomic uint64_t narrow_ns;     // For how long streams went on there.
	// Launches that were held back meanwhile:
	_Atomic uint64_t held_together; // Their blocks run together (cooperative, large clusters, others that may wait), and have no room at once.
	_Atomic uint64_t held_behind;  // The driver had work ahead of them, or may have had.
	_Atomic uint64_t held_refused; // The driver refused them there.
};

enum gp_objective_state {
	GP_OBJECTIVE_NONE,         // there is no objective, or too few steps were seen yet
	GP_OBJECTIVE_LENDS,        // lower levels get what it leaves
	GP_OBJECTIVE_UNATTAINABLE, // steps without lent time take longer: strict priority
	GP_OBJECTIVE_STEPLESS,     // no step's end was found: strict priority
	GP_OBJECTIVE_LATE,         // slots ended late: strict priority for a minute
	GP_OBJECTIVE_RESTS,        // few steps follow each other without a rest: strict priority
	GP_OBJECTIVE_RANKS, // it waits for other GPUs, and the objective is relative to steps alone: strict priority
	GP_OBJECTIVE_STATES,
};

enum gp_slot_cut {        // Why a slot that was lent ended early.
	GP_CUT_REQUEST,   // A request arrived.
	GP_CUT_IDLE,      // Lower levels had no work.
	GP_CUT_CAPTURE,   // The program began to capture a graph.
	GP_CUT_UNDRAINED, // The work under way did not end: nothing was lent.
	GP_CUT_CHANGED,   // The process has no objective any more.
	GP_SLOT_CUTS,
};

// A latency-critical process's objective, and how steps and slots went.
struct gp_objective_counters {
	_Atomic uint64_t wanted;       // the objective in force, see configs/objective_word.go; 0: none
	_Atomic uint64_t state;        // enum gp_objective_state
	_Atomic uint64_t objective_ns; // for the mean time of a step
	_Atomic uint64_t mean_ns;      // of the latest steps
	_Atomic uint64_t unlent_ns;    // of a usual step without the time that was lent in it
	_Atomic uint64_t theta_ppm;    // the trim (law.h)
	_Atomic uint64_t credit_ns;    // two's complement: negative is debt
	// Ever growing.
	_Atomic uint64_t steps, step_ns;
	_Atomic uint64_t means, over; // means over objective.over_steps steps, and those above the objective
	_Atomic uint64_t requests, late_requests;
	_Atomic uint64_t slots, lent_ns;
	_Atomic uint64_t cut[GP_SLOT_CUTS];
};

// How long something took each time. Bucket i counts times up to 2^i / 2^GP_FIRST_BUCKET seconds that no bucket before it counts,
// the last one all that are longer. gp_count_time writes it.
struct gp_histogram {
	_Atomic uint64_t sum_ns;
	_Atomic uint64_t buckets[GP_TIME_BUCKETS];
};

// Writers: the watcher, the thread that stops blocks, and a thread that waits for that, each when something ends. Launches do not write
// it.
struct gp_slot_times {
	struct gp_histogram windows; // From opening to closing.
	struct gp_histogram switches; // From the launch of a hold that takes the GPU from a lower level until it ran, as the watcher saw it.
	struct gp_histogram drains; // From a stop until no block ran any more.
	struct gp_histogram stops;  // From a stop until the launches that it cut were launched again.
};

enum gp_memory_state {     // The state of a process's memory on a GPU.
	GP_MEMORY_RUNNING, // All that it allocated is there, and it may use it.
	GP_MEMORY_LEAVING, // Its gate is closed, and memory goes to the host.
	GP_MEMORY_OUT,     // Some is in host memory; it does not run.
	GP_MEMORY_COMING,  // Memory comes back.
	GP_MEMORY_STUCK, // Memory did not go: work did not end in time, or a call failed. Others pass the process over for a while.
	GP_MEMORY_SUSPENDED, // Memory is out, as people asked, until they ask otherwise.
};

// Device memory on this GPU. How much is in bytes.
struct gp_memory_counters {
	_Atomic uint64_t resident; // In device memory, and can go.
	_Atomic uint64_t swapped;  // In host memory.
	_Atomic uint64_t pinned;   // In device memory, and cannot go.
	_Atomic uint64_t pins;     // The reasons: bit set, enum gp_pin of preempt/memory/memory.h, and GP_PIN_DRIVER.
	_Atomic uint64_t wanted;   // For calls that have waited for room, until they are over.
	_Atomic uint64_t claimed;  // Its memory, in or out, and the memory that those calls have yet to get.
	_Atomic uint64_t waiting;  // Threads that wait for room or for memory that is out.
	_Atomic uint64_t host;     // Page-locked host memory.
	_Atomic uint64_t reserve;  // Memory that it leaves free for the highest level.
	_Atomic uint64_t other;    // In use, as the driver says, and in no slot's resident or pinned.
	_Atomic uint64_t state;    // enum gp_memory_state.
	_Atomic uint64_t state_since_ns;
	_Atomic uint64_t idle_since_ns;   // the GPU has had no work of it; 0: it has
	_Atomic uint64_t idle_after_ns;   // it goes by itself once it is idle for so long; 0: it does not
	_Atomic uint64_t wanted_since_ns; // it waits for memory: for room, or for what is out; 0: it does not
	_Atomic uint64_t out_rate;        // learnt, bytes a second; 0: not yet
	_Atomic uint64_t in_rate;
	_Atomic uint64_t swap_ns;    // learnt: the time that a memory turn of it takes to swap
	_Atomic uint64_t quantum_ns; // of its memory turns; 0: it takes none
	// Ever growing.
	_Atomic uint64_t waits; // calls that waited, for room or for what was out
	_Atomic uint64_t wait_ns;
	_Atomic uint64_t evictions;
	_Atomic uint64_t restores;
	_Atomic uint64_t out_bytes;
	_Atomic uint64_t out_ns;
	_Atomic uint64_t in_bytes;
	_Atomic uint64_t in_ns;
	_Atomic uint64_t failures; // evictions and restores that did not come to their end
	_Atomic uint64_t turns;    // memory turns
	_Atomic uint64_t turn_ns;
	_Atomic uint64_t turns_seized; // Memory turns taken from an owner that did not hand them on.
	_Atomic uint64_t cap; // The most that the driver lets it have, where that is less than the GPU has; 0: no cap was seen.
	_Atomic uint64_t answered; // enum gp_asked_answer in bits 0-7, and of the request (asked) bits 8-63.
};

enum gp_asked { // by people
	GP_ASKED_NOTHING,
	GP_ASKED_OUT,     // memory goes out now; it comes back when a call needs it
	GP_ASKED_IN,      // and comes back now
	GP_ASKED_SUSPEND, // it goes out and stays out, and nothing runs
	GP_ASKED_RESUME,  // until then
};

enum gp_asked_answer {
	GP_ANSWER_DONE,
	GP_ANSWER_BUSY,    // work or a call did not end in time
	GP_ANSWER_NO_HOST, // no host memory for it
	GP_ANSWER_NO_ROOM, // the device has no memory: it comes back when it has
	GP_ANSWER_FAILED,  // the driver refused a call
	GP_ANSWER_NOTHING, // there is nothing that can go
};

// Futexes that count what others wait for.
struct gp_rings {
	_Atomic uint32_t gate;    // closed windows
	_Atomic uint32_t windows; // opened and closed windows while a process is stoppable
	_Atomic uint32_t bell;    // changes of membership, turn or demand
};

enum gp_busy {
	GP_IDLE,
	GP_WORKS, // it has, or wants to run, work
	GP_ASKS,  // it wants a turn, and no work of it is known
};

// The words that launches of others look at, and where they wait: one cache line.
struct gp_line {
	_Atomic uint64_t window_opened_ns; // 0 while no window is open
	_Atomic uint32_t busy;             // enum gp_busy
	struct gp_rings rings;             // of the slot's owner, where each process has pages of its own
	_Atomic uint64_t lent_until_ns; // lower levels have the GPU until then, as its objective allows; 0: they do not
	_Atomic uint32_t credit_us;     // that it may lend
	uint8_t pad[28];
};

// Two pages, each of which only the slot's owner writes, but for what people write: asked, objective_asked and objective_said. The first
// is what others decide by.
struct gp_slot {
	_Atomic uint64_t started_ns; // CLOCK_MONOTONIC of the host, as all times are: at registration
	_Atomic uint64_t heartbeat_ns;
	_Atomic uint32_t timeslice_us; // In force; 0 = the driver's default.
	_Atomic uint32_t mechanisms;   // Bit set, see configs/mechanisms.go.
	_Atomic uint32_t fallbacks;    // Bit set, see GP_FALLBACK_*.
	_Atomic uint32_t suspended;    // 1 while its channels are disabled.
	// A hash that the processes of a job have in common, which may wait for each other on several GPUs. 0 until mechanisms is known.
	_Atomic uint64_t job;
	// Of a process of the lowest level: for how long it had work and the GPU was its own, and the time until which that is counted.
	// The GPU is its own in its turn while no window of a higher level is open.
	_Atomic uint64_t ran_ns;
	_Atomic uint64_t ran_at_ns;
	// A request of people, written by the command line: enum gp_asked in bits 0-7, a sequence in bits 8-15, and in bits 16-63
	// whom it is for, GP_ASKED_OF(started_ns). So the slot's next owner never obeys it.
	_Atomic uint64_t asked;
	// counters, only ever growing while the slot is owned
	_Atomic uint64_t windows;        // LC windows opened.
	_Atomic uint64_t window_ns;      // Time with a window open.
	_Atomic uint64_t windows_cut;    // Windows that outlived max_hold.
	_Atomic uint64_t switches;       // Windows that opened while a lower level had work.
	_Atomic uint64_t holds;          // Holds launched.
	_Atomic uint64_t hold_ns;        // Time holds were on.
	_Atomic uint64_t holds_released; // Holds released early for a wait on the whole context.
	_Atomic uint64_t holds_collided; // Times that holds made room for kernels that need every SM.
	_Atomic uint64_t holds_expired;  // Holds that ended by their own limit.
	_Atomic uint64_t holds_stalled;  // Times that the host engine was found with another TSG while a hold ran.
	_Atomic uint64_t gate_waits;     // Submissions that waited for a higher level's window.
	_Atomic uint64_t gate_ns;
	_Atomic uint64_t turns; // turns on the GPU taken
	_Atomic uint64_t turn_ns;
	_Atomic uint64_t turns_seized; // taken from an owner that did not hand it on
	_Atomic uint64_t boosts;       // times the timeslice was raised for min_be_share
	_Atomic uint64_t timeslice_sets;
	_Atomic uint64_t busy_ns;   // Time with unfinished work (kept while peers of the same level live).
	_Atomic uint64_t capped_ns; // Time kept off the GPU by share.max and share.max_be.
	_Atomic uint32_t switch_us; // The time of a switch away from a lower level on this GPU, as this process learnt it; 0: not yet.
	_Atomic uint32_t capped; // 1: share.max or share.max_be keeps it off the GPU, and it gets no turn.
	// An objective that people ask for, in the form of gp_objective_counters.wanted, 0 for the process's own; a request for it, in
	// the form of asked; and the last request that the process obeyed. Writers: command lines, the objective before the request.
	// Reader: the process, in the other order, so a request never stands for an older objective. Of several at once each may find the
	// objective of a later one in force.
	_Atomic uint64_t objective_said, objective_asked, objective_answered;
	struct gp_memory_counters memory;
	uint8_t pad1[GP_LINES_AT - 512];
	// One of them is the slot's, by its number: hot lines at one place in each page would share one set of the L1 cache.
	struct gp_line line[GP_LINES];
	uint8_t pad2[GP_PAGE - GP_LINES_AT - GP_LINES * 64];

	// The second page: what people look at.
	char name[32];       // of the program, NUL-terminated
	_Atomic int32_t pid; // in the owner's PID namespace
	uint8_t pad3[28];
	struct gp_kernel_counters kernels; // of the process, the same on each of its GPUs
	struct gp_stop_counters stop;
	_Atomic uint32_t uncounted; // 1: launches are not counted, since no process needs to know of them: busy says nothing
	_Atomic uint32_t hints_off;                 // bit set of sources that are switched off now
	_Atomic uint64_t hint_spun_ns;              // time that hints made a processor spin
	struct gp_hint_counters hint[GP_HINT_ROOM]; // by source
	uint8_t pad4[72];
	struct gp_slot_times times;
	struct gp_objective_counters objective;
	uint8_t pad5[GP_PAGE - 1632 - sizeof(struct gp_objective_counters)];
};

#define GP_ASKED_OF(started_ns) ((started_ns) >> 10 & 0xffffffffffffu)

struct gp_segment {
	// identity: written once, before the file gets its name
	uint64_t magic;
	uint32_t version;
	uint32_t size;
	uint32_t slots;
	uint32_t slot_size;
	uint8_t gpu_uuid[16];
	uint8_t id[16]; // of this memory, random
	uint8_t pad0[8];
	struct gp_rings rings; // of all, where they share one memory; else the broker's
	uint8_t pad1[52];
	_Atomic uint64_t members; // bit i: slot i is in use; verify with the record lock
	_Atomic uint64_t turn;    // slot + 1 in bits 0-7 (0 = none), bit 8: seized, bits 16-: sequence
	_Atomic uint64_t turn_since_ns;
	_Atomic uint64_t memory_turn; // as turn: whose memory is in, of those that do not fit together
	_Atomic uint64_t memory_turn_since_ns;
	// Of the broker; 0 where there is none.
	uint64_t generation;
	_Atomic uint64_t broker_heartbeat_ns;
	_Atomic uint32_t others; // processes that have work on the GPU and are no members, or keep to no turns
	uint8_t pad2[4];
	_Atomic uint32_t level[GP_SLOTS];  // of the slots' owners
	_Atomic uint64_t client[GP_SLOTS]; // their ids, given by the broker
	uint8_t pad3[GP_PAGE - 192 - GP_SLOTS * 12];
	struct gp_slot slot[GP_SLOTS];
};

_Static_assert(GP_HINT_SOURCES <= GP_HINT_ROOM, "room for sources of hints");
_Static_assert(sizeof(struct gp_line) == 64, "a line of the cache");
_Static_assert(sizeof(struct gp_slot) == 2 * GP_PAGE, "slot layout");
_Static_assert(sizeof(struct gp_segment) == GP_PAGE + 2 * GP_PAGE * GP_SLOTS, "segment layout");

// A process's mapping of it, at one address for as long as the process lives. The memory there may be replaced, also by one of the other
// kind. All that the process writes is behind the segment, where it can be written whatever is there.
struct gp_view {
	struct gp_segment segment;
	uint8_t pad0[64];
	struct gp_rings shared; // the segment's, where all share one memory; else unused
	uint8_t pad1[GP_PAGE - 76];
	struct gp_slot own; // this process's slot
};

_Static_assert(__builtin_offsetof(struct gp_segment, rings) == 64, "the view has the header again");
_Static_assert(sizeof(struct gp_view) == sizeof(struct gp_segment) + 3 * GP_PAGE, "view layout");

static inline struct gp_view *gp_view_of(struct gp_segment *s) { return (struct gp_view *)s; }

static inline struct gp_line *gp_line_of(struct gp_segment *s, uint32_t slot)
{
	return &s->slot[slot].line[slot % GP_LINES];
}

// Which of the slots have a window open.
static inline uint64_t gp_windows_open(struct gp_segment *s, uint64_t slots)
{
	uint64_t open = 0;
	for (; slots; slots &= slots - 1) {
		uint32_t slot = (uint32_t)__builtin_ctzll(slots);
		if (gp_line_of(s, slot)->window_opened_ns)
			open |= 1ull << slot;
	}
	return open;
}

// Whether one of the slots says that it has work, and no maximum keeps it off the GPU. A slot that lies about that gets less itself.
static inline bool gp_any_busy(struct gp_segment *s, uint64_t slots)
{
	for (; slots; slots &= slots - 1) {
		uint32_t slot = (uint32_t)__builtin_ctzll(slots);
		if (gp_line_of(s, slot)->busy && !s->slot[slot].capped)
			return true;
	}
	return false;
}

// Whether one of the slots does not count its launches, and may have work.
static inline bool gp_any_uncounted(struct gp_segment *s, uint64_t slots)
{
	for (; slots; slots &= slots - 1)
		if (s->slot[__builtin_ctzll(slots)].uncounted)
			return true;
	return false;
}

#endif
