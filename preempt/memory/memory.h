// memory.h - device memory of the program that goes to host memory and comes back, at addresses that never change.
//
// The program's allocations are ranges of addresses of its own; physical memory (cuMemCreate) is mapped there in chunks. An
// eviction copies chunks to pinned host memory (arena.c) and gives their physical memory back to the driver; a restore makes
// new physical memory, maps it at the same addresses, and copies the contents back.
//
// Which thread may do what when, by construction:
// - Every call of the program that uses device memory or changes ranges is made between gp_memory_enter and gp_memory_leave.
// - Evictions and restores run in one thread, the mover's, and only while the gate is closed and everybody is counted out.
//   So the mover and the program's calls never overlap; the mover may change chunks without a lock.
// - The program's threads change ranges under gp_memory_lock, which is never held while the driver waits for work. Questions
//   about addresses (attributes, ranges) take that lock alone, and are answered also while the gate is closed.
// - While the gate is open, all chunks are IN.
#ifndef GPREEMPT_MEMORY_H
#define GPREEMPT_MEMORY_H

#include <pthread.h>

#include "preempt/process/process.h"

// The physical memory of one cuMemCreate. A range is cut into chunks so that a part of it can go, and copies both ways overlap.
// A multiple of the driver's granularity of 2 MiB. Pinning 512 MiB or more in one call may stall every process of the machine.
#define GP_CHUNK_BYTES (256ull << 20)
#define GP_GRANULE (2ull << 20)
// Numbers of ranges (CU_POINTER_ATTRIBUTE_BUFFER_ID) begin here, so that none is a number that the driver gave to other memory.
#define GP_RANGE_IDS (1ull << 48)
// Allocations of up to so many bytes are left to the driver. It puts several of them into 2 MiB, where each of ours would take
// 2 MiB, and makes one in 1 us, where mapping takes 70 us (H200, driver 580).
#define GP_SMALL_BYTES (1ull << 20)

enum gp_chunk_state {
	GP_CHUNK_IN,      // in device memory
	GP_CHUNK_LEAVING, // a copy to the host is under way; the device's contents are valid
	GP_CHUNK_OUT,     // in host memory; handle is 0, nothing is mapped
	GP_CHUNK_COMING,  // mapped again; the host's contents are valid
};

// The most that the contexts of one process take of a GPU, in bytes, and as a part of a small one. A context takes 0.5 to 1 GB (H100,
// H200).
#define GP_CONTEXTS_BYTES (1ull << 30)
#define GP_CONTEXTS_PART 16
static inline uint64_t gp_contexts_most(uint64_t total)
{
	return GP_CONTEXTS_BYTES < total / GP_CONTEXTS_PART ? GP_CONTEXTS_BYTES : total / GP_CONTEXTS_PART;
}

struct gp_chunk {
	CUdeviceptr address;
	size_t bytes;
	unsigned long long handle; // the driver's; 0 while OUT
	_Atomic uint32_t state;    // enum gp_chunk_state
	void **host; // its places in the arena, one for each GP_CHUNK_BYTES begun; NULL: it has none, as while the gate is open
	struct gp_range *range;
};

// Why a range is not evicted: bits, of the rows of pins.h.
enum {
#define PIN(name, sentence) GP_PIN_PLACE_##name,
#include "preempt/memory/pins.h"
	GP_PINS
};
enum gp_pin {
#define PIN(name, sentence) GP_PIN_##name = 1 << GP_PIN_PLACE_##name,
#include "preempt/memory/pins.h"
};

enum gp_range_kind {
	GP_RANGE_ALLOCATED, // cuMemAlloc, cuMemAllocPitch: looks like it in everything that can be asked
	GP_RANGE_MAPPED, // the program mapped a handle of its own cuMemCreate there; one chunk of any size if it may be exported
	GP_RANGE_POOL, // memory of a pool that is kept here
};

struct gp_access { // CUmemAccessDesc, cuda.h
	int location_type, location, flags;
};

struct gp_range {
	CUdeviceptr address;
	size_t asked, bytes; // what the program asked for; rounded up, as mapped
	enum gp_range_kind kind;
	struct gp_gpu *gpu;
	CUcontext context; // in which it was allocated
	uint32_t pins;     // enum gp_pin
	uint64_t id;       // CU_POINTER_ATTRIBUTE_BUFFER_ID
	bool sync_memops;
	struct gp_allocation_properties properties; // with which its chunks are created, also by a restore
	uint32_t accesses;
	struct gp_access access[GP_GPUS];
	bool ending;                  // a thread makes it or frees it; no other thread may free it
	bool doomed;                  // its context is being destroyed
	struct gp_physical *physical; // of the program's handle (own.h); NULL: it has none
	CUevent freed;                // by cuMemFreeAsync, once this event of freed_in has happened; NULL: at any time
	CUcontext freed_in;
	bool asked_about; // a thread asks about that event, and has it to itself meanwhile
	struct gp_range *next_freed;
	struct { // memory of another process, opened by a ticket (ticket.c)
		uint8_t process[16];
		uint64_t number;
		uint32_t opened; // how often it is open; 0: it is our own memory
	} import;
	size_t chunks;
	struct gp_chunk *chunk;
};

// A process's memory on a GPU, in bytes. The first six are the accounts: account.c alone writes and publishes them, as ranges come, go,
// are pinned and move.
struct gp_memory {
	_Atomic uint64_t resident; // device memory of ranges that can be evicted
	_Atomic uint64_t swapped;  // of ranges whose contents are in host memory
	_Atomic uint64_t pinned; // of ranges that cannot be evicted, and what the driver allocated for the program outside of ranges
	_Atomic uint64_t wanted;  // by calls that have waited for room, until they are over: their claims
	_Atomic uint64_t met;     // of that, what is in resident or pinned already: the driver is asked for it
	_Atomic uint64_t managed; // of cuMemAllocManaged, wherever it lies: of interest for the limit alone
	_Atomic uint64_t stays;   // of resident, what did not go though it should have: published as pinned
	_Atomic uint64_t waiting; // threads that wait for room or at the closed gate
	// in_bytes, and what was made for chunks that come: so much of the device's memory has been taken by restores.
	_Atomic uint64_t taken_bytes;
	// 1 + the bytes that may still be allocated before room has to be asked for. The driver may have more, which others
	// wait for or which is kept for higher levels. 0: no bound. The agent sets it, allocations take from it.
	_Atomic uint64_t allowance;
	// The most that the driver lets the process have, where that is less than the GPU has: as its cuMemGetInfo tells, or what the
	// process had when it was refused more beside room. 0: no cap was seen.
	_Atomic uint64_t cap;
	// Ever growing.
	_Atomic uint64_t changes; // of the accounts
	_Atomic uint64_t waits, wait_ns, evictions, restores, out_bytes, out_ns, in_bytes, in_ns, failures;
	// Of what was resident as the latest eviction chose: what cannot go. 0: what can go sufficed, or host memory ended before.
	_Atomic uint64_t cannot_go;
};
extern struct gp_memory gp_memory[GP_GPUS];
// account.c: the accounts, of one instant.
struct gp_accounts { uint64_t resident, swapped, pinned, wanted, met; };
struct gp_accounts gp_memory_accounts(const struct gp_gpu *);
void gp_memory_publish(struct gp_gpu *, uint64_t stays); // by the agent, which may have a new slot
// A call claims so many bytes, and no others any more, until it is over. By room.c
void gp_account_claim(struct gp_gpu *, uint64_t bytes, struct gp_retry *);
void gp_memory_claims_end(void); // those of calls that the calling thread never left, which ends
// Why memory cannot go: enum gp_pin of all ranges, and GP_PIN_DRIVER for what is in none: small allocations, arrays.
#define GP_PIN_DRIVER (1u << GP_PINS)
uint32_t gp_memory_pins(const struct gp_gpu *);
bool gp_memory_unmanaged(const struct gp_gpu *); // sample.c: the driver or the GPU lacks what ranges need
extern _Atomic uint32_t gp_memory_on;            // 1: the mechanism "swap" is used in this process
// 1: what the program has is counted, what it asks of free memory is answered here, and calls that are refused wait for room. So it is where
// memory swaps, and in other processes that take part, whose memory is the driver's: the gate is not used there.
extern _Atomic uint32_t gp_memory_counts;

struct gp_memory_settings {
	_Atomic uint64_t limit_bytes; // memory.limit, or a policy's; 0: none
	_Atomic double limit_part;    // of the GPU's memory; 0: none. The less of the two holds
	uint64_t reserve_bytes;       // memory.reserve_mb: kept free by others than the highest level
	uint64_t host_bytes;          // memory.host_mb: the most that the arena may pin
	uint64_t wait_ns; // memory.wait_ms: how long an allocation of a level above the lowest waits; 0 for ever
	bool asks; // "swap" is among the mechanisms: others may give memory. Else calls wait for none, and free is what the driver says
};
extern struct gp_memory_settings gp_memory_settings;

// gate.c Counts the calling thread in: it may use device memory until gp_memory_leave. Waits while the gate is closed. Nested
// calls pass. Costs one load while swap is not used. Both are called in one function: its frame tells nested calls from one
// that the program left by longjmp. frame: an address in the frame of the caller that is there until gp_memory_leave.
void gp_memory_enter_slowly(const void *frame);
void gp_memory_enter_again(const void *frame); // the same; nested if the thread is counted in, whatever its frame
void gp_memory_leave_slowly(void);
static inline __attribute__((always_inline)) void gp_memory_enter(void)
{
	if (__builtin_expect(gp_memory_on, 0))
		gp_memory_enter_slowly(__builtin_frame_address(0));
}
static inline void gp_memory_leave(void)
{
	if (__builtin_expect(gp_memory_on, 0))
		gp_memory_leave_slowly();
}
void gp_memory_thread_ends(void); // the calling one
bool gp_memory_inside(void);      // the calling thread is counted in
// For a wait that has nothing to do with device memory: the calling thread counts as outside, however deep it is in. Returns
// what gp_memory_step_in gets.
uint32_t gp_memory_step_out(void);
void gp_memory_step_in(uint32_t);
// Closes the gate, and waits until everybody is counted out and no stream is captured. False: not by that time; it is open again.
bool gp_memory_close(uint64_t deadline_ns);
void gp_memory_open(void);
bool gp_memory_closed(void);

// ranges.c: a table of ranges, ordered by address. Under gp_memory_lock, except as said.
extern pthread_mutex_t gp_memory_lock;
struct gp_range *gp_range_at(CUdeviceptr); // the one that an address is in; NULL: none
// A new range, cut into chunks of GP_CHUNK_BYTES, the last of which has the rest; a single chunk may be larger. It has no GPU
// yet. NULL: there is no memory, another range lies there, or no address is behind its end.
struct gp_range *gp_range_new(CUdeviceptr, size_t asked, size_t bytes, enum gp_range_kind, size_t chunks);
void gp_range_drop(struct gp_range *);       // frees it
struct gp_range *gp_range_from(CUdeviceptr); // the first one that ends behind an address; NULL: none
// The ranges of a GPU one after the other, in the order of addresses; NULL: no more. after: NULL for the first.
struct gp_range *gp_range_next(const struct gp_gpu *, const struct gp_range *after);

// substitutes.c: functions in the place of the driver's, see substitutes.h.
void gp_memory_substitute(void (*install)(const char *name, void *function));
void gp_memory_substitute_counted(void (*install)(const char *name, void *function)); // only what counts
void gp_memory_substitute_opening(void (*install)(const char *name, void *function)); // only what handles of others take
// Contexts come and go. Called before anybody works in one, before the driver destroys it, and after the driver has destroyed
// it or refused to.
CUresult gp_memory_prepare(struct gp_context *);
void gp_memory_context_destroying(CUcontext);
void gp_memory_context_destroyed(const struct gp_context *, CUcontext, bool is); // NULL: it had no place

// graph_nodes.c: whether what the memory nodes of a graph have at once fits into memory.limit. False: it does not.
bool gp_memory_graph_fits(CUgraph);

// room.c: what becomes of a call that the driver refuses with CUDA_ERROR_OUT_OF_MEMORY.
// Asks for room for bytes on a GPU and waits until the call may be tried again. The caller is not counted in. False: it may not, and the
// answer is out of memory. That is for one of these reasons: the limit, more than there will ever be, the time is over, nobody to evict, a
// cap.
bool gp_memory_wait_for_room(struct gp_gpu *, uint64_t bytes, struct gp_retry *);
// Such a call is over, whatever became of it: it claims nothing any more.
void gp_memory_call_over(struct gp_retry *);
// The driver has refused so many bytes just now, which the accounts have already; what the call had got before is not given back yet. Called
// before gp_memory_wait_for_room. Looks whether the GPU has room, which tells a cap from a lack of room.
void gp_memory_refused(const struct gp_gpu *, uint64_t bytes, struct gp_retry *);
// The same for a call that the driver itself carried out, so that it is not known how much it needs. g: NULL where the GPU is
// not known either.
bool gp_memory_wait_again(struct gp_retry *, struct gp_gpu *g);
// A substitute returns CUDA_ERROR_OUT_OF_MEMORY for want of other memory than the device's: this call is not made again.
void gp_memory_no_room_helps(void);
// Called by the agent: waiters try again. enough: as much is free as they want. A call that wants more than most bytes waits in vain, and
// returns. most 0: no call is to wait, now or later.
void gp_memory_room_changed(int gpu, uint64_t most, bool enough);
// info.c: the bytes of the GPU that others have and never give. The agent says it as soon as it knows.
void gp_memory_elsewhere(int gpu, uint64_t bytes);
bool gp_memory_is_asked(int gpu);         // a call of the program waits for that
uint64_t gp_memory_limit(uint64_t total); // of a GPU that has so much; 0: none
// How much more the program may have: up to its limit, or to what the GPU has. beside: gp_memory_beside, which may ask the driver; 0
// without a limit.
uint64_t gp_memory_left(const struct gp_gpu *, uint64_t beside);
// device.c: what the driver says of the whole GPU, or of this process where it caps that. False: it cannot be asked.
bool gp_memory_ask_free(const struct gp_gpu *, size_t *free, size_t *total);
// The program has this beside its accounts: pools, what graphs keep, contexts. It may ask the driver.
uint64_t gp_memory_beside(const struct gp_gpu *);
uint64_t gp_memory_managed(const struct gp_gpu *);  // an account of its own; asks nobody
uint64_t gp_graphs_reserved(const struct gp_gpu *); // for memory nodes; asks the driver
uint64_t gp_memory_unlisted(const struct gp_gpu *); // pools, what graphs keep, managed memory
uint64_t gp_memory_total(const struct gp_gpu *);    // what the GPU has, as cuDeviceTotalMem says; UINT64_MAX: not known
// Whether the total of cuMemGetInfo is a cap of this process and not what the GPU has. gp_memory.cap is that from then on.
bool gp_memory_is_cap(const struct gp_gpu *, uint64_t total);

// arena.c: pinned host memory, in pieces of GP_CHUNK_BYTES, near a GPU. Bounded by gp_memory_settings.host_bytes and by what the
// machine and the process's cgroups leave. A context of the GPU is current where more may be pinned, or given back.
void *gp_arena_take(struct gp_gpu *, size_t bytes); // GP_CHUNK_BYTES at most. NULL: no more. Pins if gp_arena_grow did not
void gp_arena_give(void *, size_t bytes);
uint64_t gp_arena_pinned(void);                      // bytes
bool gp_arena_grow(struct gp_gpu *, uint64_t bytes); // pins pieces ahead, until so much is free; by the mover's thread
void gp_arena_trim(uint64_t keep_bytes);             // gives unused pieces back
// While this is on, the two above end soon, with what they have done by then: a piece takes up to 0.1 s.
void gp_arena_cut(bool on);
// is: what was pinned in it is pinned no longer. In between, nothing is placed there.
void gp_arena_context_destroying(CUcontext);
void gp_arena_context_destroyed(CUcontext, bool is);

// host.c: bytes that can be pinned so that the machine and every control group of the process keep a share. prefix: in front
// of all paths, "" but for tests.
uint64_t gp_host_left(const char *prefix);

// Hooks for other houses, which this one does not know. Set before gp_memory_on.
struct gp_memory_others {
	void (*hold_back)(bool on);              // no hold runs in this process while this is on
	bool (*wait_log)(uint64_t deadline_ns);  // gp_blp_wait_empty
	void (*give_way)(struct gp_gpu *, bool); // lower levels may use the GPU meanwhile
};
extern struct gp_memory_others gp_memory_others;

// pools.c: what the driver's pools have of a GPU, in bytes; gives back what they do not use.
uint64_t gp_pools_reserved(const struct gp_gpu *);
void gp_pools_trim(const struct gp_gpu *);

// copy.c. Makes a context of a GPU current that is not destroyed until gp_memory_leave_context. NULL: there is none.
struct gp_context *gp_memory_use_context(const struct gp_gpu *);
// The same without waiting for a thread that has pinned one, for what the library does by itself: only one that the driver is known to have
// initialised. In others all that needs a context may fail, and tools report that.
struct gp_context *gp_memory_try_context(const struct gp_gpu *);
// The driver answered a call of the program's that needs the context to be initialised.
void gp_memory_answered(struct gp_context *, CUresult);
void gp_memory_leave_context(struct gp_context *);

// move.c: moves of one process come one after the other.
enum gp_move_result {
	GP_MOVED,
	GP_MOVE_BUSY, // work or a call did not end in time, or a capture is on: nothing has changed, the gate is open
	GP_MOVE_NO_HOST, // no pinned memory: nothing has changed
	GP_MOVE_NO_ROOM, // restore: the device has no memory; what came back stays, the rest is out, the gate is closed
	GP_MOVE_FAILED, // the driver refused a call; every chunk is whole, in or out; the gate is open only if all are in
};
// drain.c: makes the thread that waits for the process's work, while there are threads.
void gp_memory_make_drain(void);
// Evicts at least bytes of a GPU's memory, or all that can be. The gate stays closed as long as something is out. The process's
// work has drain_ns to end in, from when the host memory is pinned: pinning takes as long as it takes, while the program runs.
// urgent: do not pause while a higher level has a window open, since it is that level which waits.
enum gp_move_result gp_memory_evict(struct gp_gpu *, uint64_t bytes, uint64_t drain_ns, bool urgent);
// An eviction under way is urgent from here on. For the agent, which calls it again as long as a higher level waits.
void gp_memory_hurry(const struct gp_gpu *);
// Brings everything back, or as much as fits in most bytes, and opens the gate of the process once nothing is out on any GPU.
// GP_MOVE_NO_ROOM: some is out still, and gp_memory_grant has not allowed more for a while.
enum gp_move_result gp_memory_restore(struct gp_gpu *, uint64_t most, bool urgent);
// While memory comes back: as much may be made as makes so many bytes in gp_memory.taken_bytes. For the agent, as others leave.
void gp_memory_grant(const struct gp_gpu *, uint64_t upto);
// For a thread that frees, and is not inside. True: the gate is closed, nothing of the process runs, and no move begins until
// gp_memory_let_moves. That opens the gate if nothing is out any more. False: the caller has to be counted in, as for any call.
bool gp_memory_keep_moves_away(void);
void gp_memory_let_moves(void);
void gp_chunk_give_host(struct gp_chunk *); // gives back its places in the arena
// on: closes the gate, which stays closed though all is in, until a call without it. False: work or a call did not end in time.
bool gp_memory_suspend(bool on, uint64_t deadline_ns);

#endif
