// bridge.h - what Go calls of the C core: cgo reads no _Atomic fields, and copies what it takes the address of. Contexts and
// GPUs go by their index.
#ifndef GPREEMPT_BRIDGE_H
#define GPREEMPT_BRIDGE_H

#include "hints/socket_hooks.h"
#include "preempt/driver/hooks.h"
#include "preempt/gpu/objective.h"
#include "preempt/code/code.h"
#include "preempt/gpu/gpu.h"
#include "preempt/memory/memory.h"

// Looks up the driver's functions. Returns one that the driver lacks and that is needed, or NULL.
const char *gp_bridge_resolve(void *lookup);

// The interception layer gives this to the core, once, before all else.
struct gp_bridge_layer {
	void *armed; // _Atomic uint32_t: nonzero while submissions must be reported
	void (*substitute)(const char *name, void *function); // the function stands for the driver's
	void (*install)(const struct gp_hooks *);             // calls of the program come to these
	void (*install_sockets)(const struct gp_socket_hooks *);
	long (*say)(const char *text, size_t bytes); // gp_say
	const void *build;                           // identifies the library's file
	size_t build_bytes;
};
// Returns its copy.
const struct gp_bridge_layer *gp_bridge_begin(const struct gp_bridge_layer *);
bool gp_bridge_set_armed_here(uint32_t on); // whether anything wants it
void gp_bridge_install(bool sockets);
void gp_bridge_start_hints(uint32_t sources); // gp_hints_begin, once
void gp_bridge_alone(bool quiet);             // the helper has ended: what it has decided ends. quiet: its calls, too
bool gp_bridge_memory_returns(void);          // and memory of this process that is out comes back; false: not all could
long gp_bridge_say(const char *text, size_t bytes);
long gp_bridge_write(const char *text, size_t bytes); // may wait for ever

struct gp_bridge_settings_told {
	uint32_t gate, hold, mps, chain, hold_synchronize;
	uint64_t hold_step_ns, grace_min_ns, grace_max_ns, grace_equals_ns, fair_us;
	double lower_share;
};
void gp_bridge_settings(const struct gp_bridge_settings_told *);
enum { GP_IMAGE_HOLD, GP_IMAGE_FILL };
bool gp_bridge_image(uint32_t which, uint32_t offset, const void *part, uint32_t bytes,
		     uint32_t total); // in parts, the first first

void gp_bridge_set_clock(int64_t ahead_ns);              // gp_clock_ahead_ns
bool gp_bridge_start_threads(bool hints, bool suspends); // gp_threads_start
void gp_bridge_start_wanted(void);                       // gp_threads_start_wanted
// gp_runlist_set; -1 also where no thread can be started that puts the TSG back if the agent stands still.
int gp_bridge_runlist_set(int gpu, uint32_t client, uint32_t handle, bool on);

bool gp_bridge_gpu_known(int gpu);
// 0 bytes, 0 of the GPU's memory: no limit.
void gp_bridge_set_limits(uint64_t max_hold_ns, uint64_t memory_bytes, double memory_part, double share);
void gp_bridge_set_level(uint32_t level, uint32_t turns);
void gp_bridge_set_objective(const struct gp_wish *own, uint32_t over_steps, double min_slot_ns, double max_slot_ns);
void gp_bridge_tell_objective(bool says, const struct gp_wish *); // false: nothing
bool gp_bridge_read_objective(struct gp_wish *);
void gp_bridge_gpu_attach(int gpu, void *segment, uint32_t slot, bool paged);
// Puts other memory in the segment's place. owned: this process still has the slot in the memory before.
bool gp_bridge_gpu_move(int gpu, void *memory, uint32_t slot, bool paged, bool owned);
void *gp_bridge_nobodys_memory(void); // a segment that nobody else has; NULL: there is no memory
struct gp_bridge_peers {
	uint32_t lower_peers, turn_peers, between, stoppable;
	uint64_t lower, same, higher;
};
void gp_bridge_gpu_peers(int gpu, const struct gp_bridge_peers *);
void gp_bridge_gpu_id(int gpu, uint8_t ids[32]); // UUID of what is shared, then of the whole GPU
uint64_t gp_bridge_gpu_switch_ns(int gpu, uint64_t told_ns); // takes what others say (0: nothing), returns what is learnt (0: nothing)
uint64_t gp_bridge_gpu_busy_ns(int gpu);
void gp_bridge_gpu_probe(int gpu, bool on);
const char *gp_bridge_gpu_refused(int gpu, uint32_t *result);
uint32_t gp_bridge_membership(void);
uint32_t gp_bridge_rejoined(void);
uint64_t gp_bridge_gpu_waits_behind(int gpu);
void gp_bridge_doubt(void);
bool gp_bridge_gpu_worked(int gpu);
bool gp_bridge_gpu_hold_failed(int gpu); // a hold could not be launched
bool gp_bridge_gpu_mps(int gpu);
void gp_bridge_gpu_count_blp(int gpu);
void gp_bridge_gpu_rescind(int gpu);
bool gp_bridge_gpu_busy(int gpu); // a context on it has its window open

// The driver's function that refused a part of the hold in a context, or of the stops of kernels there. Told once; NULL: none did.
uint64_t gp_bridge_refusals(void); // a bit for each context with a refusal that was not told
const char *gp_bridge_hold_refused(int context, CUresult *result);
const char *gp_bridge_blp_refused(int context, CUresult *result);
bool gp_bridge_is_gone(CUresult);

// Returns a function that the driver lacks and that block-level preemption needs, or NULL.
const char *gp_bridge_start_blp_here(void);
bool gp_bridge_watch_windows(int gpu); // gp_windows_watch

// Memory that comes and goes. Returns a function that the driver lacks and that this needs, or NULL. Before the program can
// have device memory; gp_memory_settings first.
const char *gp_bridge_start_memory_here(void);
// Instead of that, in a process whose own memory stays where it is: it is counted, and handles of legacy IPC of processes that swap open
// there too.
void gp_bridge_count_memory_here(void);
struct gp_bridge_memory {                   // Of struct gp_memory, now.
	uint64_t resident, swapped, pinned; // All five are of one instant.
	uint64_t wanted, making;            // Calls that wait for room lack wanted, and ask the driver for making.
	uint64_t waiting, asking;
	uint64_t waits, wait_ns, evictions, restores, out_bytes, out_ns, in_bytes, in_ns, failures, taken_bytes, cap,
		cannot_go, arena_pinned;
};
void gp_bridge_read_memory(int gpu, struct gp_bridge_memory *);
void gp_bridge_publish_memory(int gpu, uint64_t stays); // stays: of resident, what did not go though it should have
// The driver's figures for the whole GPU, bytes. False: this process has no context there.
bool gp_bridge_memory_free_here(int gpu, uint64_t free_and_total[2]);
uint64_t gp_bridge_memory_pools(int gpu); // what this process's pools have
uint32_t gp_bridge_memory_pins(int gpu);
bool gp_bridge_memory_unmanaged(int gpu);
bool gp_bridge_memory_is_cap(int gpu, uint64_t total);
uint64_t gp_bridge_memory_total(int gpu); // of the whole GPU, without a context; 0: unknown
// enum gp_move_result. They block the calling thread for as long as that takes; one move at a time.
int gp_bridge_memory_evict(int gpu, uint64_t bytes, uint64_t drain_ns, bool urgent);
int gp_bridge_memory_restore(int gpu, uint64_t most, bool urgent);
void gp_bridge_memory_hurry(int gpu); // an eviction under way
void gp_bridge_memory_grant(int gpu, uint64_t upto);
bool gp_bridge_memory_suspend(bool on, uint64_t timeout_ns);
// Waiters try again; enough: as much is free as they want. A waiter for more than most gives up. most 0: all give up.
void gp_bridge_memory_room_changed(int gpu, uint64_t most, bool enough);
void gp_bridge_ring(int gpu);  // the bell of its segment
void gp_bridge_away(bool);     // memory is out: a hint brings it back
bool gp_bridge_recalled(void); // told once: a hint came meanwhile
// Bytes. asks: see gp_memory_settings.
void gp_bridge_memory_settings(uint64_t reserve, uint64_t host, uint64_t wait_ns, bool asks);
void gp_bridge_memory_allow(int gpu, uint64_t bytes); // see gp_memory.allowance; UINT64_MAX: no bound
bool gp_bridge_arena_grow(int gpu, uint64_t bytes);
void gp_bridge_arena_cut(bool on);
void gp_bridge_arena_trim(int gpu, uint64_t keep_bytes); // gpu: one on which the process has a context

// A request of the program's threads for the rewriter. Addresses are the program's.
struct gp_bridge_request {
	uint64_t request, image, linked, linked_bytes, picked_bytes, options;
	uint32_t what, sm, picked_form, has_path;
	uint8_t key[32];
	char path[4096];
};
uint64_t gp_bridge_request_take(struct gp_bridge_request *);     // 0: there is none
int64_t gp_bridge_read(uint64_t from, void *to, uint64_t bytes); // of the program's memory; how many there were, or -errno
struct gp_bridge_answer {
	uint64_t request;
	uint64_t picked, picked_bytes, rewritten; // mappings in the program; 0: none, or as before
	uint32_t answer, picked_form, cached;
	uint8_t key[32];
	char reason[128];
};
void gp_bridge_request_answer(const struct gp_bridge_answer *);

#endif
