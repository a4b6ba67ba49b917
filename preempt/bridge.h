// bridge.h - what Go calls of the C core: cgo reads no _Atomic fields, and copies what it takes the address of. Contexts and
// GPUs go by their index.
#ifndef GPREEMPT_BRIDGE_H
#define GPREEMPT_BRIDGE_H

#include "preempt/gpu/objective.h"
#include "preempt/code/code.h"
#include "preempt/gpu/gpu.h"
#include "preempt/memory/memory.h"

// Looks up the driver's functions. Returns one that the driver lacks and that is needed, or NULL.
const char *gp_bridge_resolve(void *lookup);
bool gp_bridge_set_armed(void *armed, uint32_t on); // whether anything wants it
void *gp_bridge_allocate(size_t bytes);             // unlike C.malloc, which ends the process, it fails

void gp_bridge_set_clock(int64_t ahead_ns); // gp_clock_ahead_ns
uint32_t gp_bridge_events(void);
void gp_bridge_wait_events(uint32_t seen, uint64_t timeout_ns);
bool gp_bridge_start_threads(bool hints); // gp_threads_start
const void *gp_bridge_hooks(void);

bool gp_bridge_gpu_known(int gpu);
// 0 bytes, 0 of the GPU's memory: no limit.
void gp_bridge_set_limits(uint64_t max_hold_ns, uint64_t memory_bytes, double memory_part, double share);
void gp_bridge_set_level(uint32_t level, uint32_t turns);
void gp_bridge_set_objective(struct gp_wish own, double min_slot_ns, double max_slot_ns, uint32_t over_steps);
void gp_bridge_tell_objective(bool says, struct gp_wish); // false: nothing
bool gp_bridge_read_objective(struct gp_wish *);
void gp_bridge_gpu_attach(int gpu, void *segment, uint32_t slot, bool paged);
// Puts other memory in the segment's place. owned: this process still has the slot in the memory before.
bool gp_bridge_gpu_move(int gpu, void *memory, uint32_t slot, bool paged, bool owned);
void *gp_bridge_nobodys_memory(void); // a segment that nobody else has; NULL: there is no memory
void gp_bridge_gpu_peers(int gpu, uint32_t lower_peers, uint32_t turn_peers, uint32_t between, uint32_t stoppable,
			 uint64_t lower, uint64_t same, uint64_t higher);
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
const char *gp_bridge_hold_refused(int context, CUresult *result);
const char *gp_bridge_blp_refused(int context, CUresult *result);
bool gp_bridge_is_gone(CUresult);

// Returns a function that the driver lacks and that block-level preemption needs, or NULL.
const char *gp_bridge_start_blp(void *armed);
bool gp_bridge_watch_windows(int gpu); // gp_windows_watch

// Memory that comes and goes. Returns a function that the driver lacks and that this needs, or NULL. Before the program can
// have device memory; gp_memory_settings first.
const char *gp_bridge_start_memory(void *armed, void *substitute); // gp_substitute of exports/exports.h
// Instead of that, in a process whose own memory stays where it is: it is counted, and handles of legacy IPC of processes that swap open
// there too.
void gp_bridge_count_memory(void *substitute);
struct gp_bridge_memory {                   // Of struct gp_memory, now.
	uint64_t resident, swapped, pinned; // All five are of one instant.
	uint64_t wanted, making;            // Calls that wait for room lack wanted, and ask the driver for making.
	uint64_t waiting, asking;
	uint64_t waits, wait_ns, evictions, restores, out_bytes, out_ns, in_bytes, in_ns, failures, taken_bytes, cap,
		cannot_go;
};
void gp_bridge_read_memory(int gpu, struct gp_bridge_memory *);
void gp_bridge_publish_memory(int gpu, uint64_t stays); // stays: of resident, what did not go though it should have
// The driver's figures for the whole GPU, bytes. False: this process has no context there.
bool gp_bridge_memory_free(int gpu, uint64_t *free, uint64_t *total);
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
// Bytes. host 0: half of what is left. asks: see gp_memory_settings.
void gp_bridge_memory_settings(uint64_t reserve, uint64_t host, uint64_t wait_ns, bool asks);
void gp_bridge_memory_allow(int gpu, uint64_t bytes); // see gp_memory.allowance; UINT64_MAX: no bound
uint64_t gp_bridge_arena_pinned(void);
bool gp_bridge_arena_grow(int gpu, uint64_t bytes);
void gp_bridge_arena_cut(bool on);
void gp_bridge_arena_trim(int gpu, uint64_t keep_bytes); // gpu: one on which the process has a context

#endif
