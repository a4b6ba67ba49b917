// engine.h - the compute engine that processes share (engine.c), and what processes have of its device.
#ifndef SIM_ENGINE_H
#define SIM_ENGINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define ENGINE_TSGS 64
#define ENGINE_PROCESSES 64
struct tsg {
	uint32_t used;
	uint32_t process; // Index of the owner.
	uint32_t off;     // Nonzero: off the runlist.
	uint32_t pad;
	uint64_t slice_ns;
	uint64_t ran_ns;                    // Run clock: the time for which this TSG has been running.
	uint64_t work_ns;                   // Run clock when the last kernel with a known end is over.
	uint64_t hold_until;                // CLOCK_MONOTONIC: until then a kernel without a known end runs.
	uint64_t begun_ns, begun_until;     // work_ns and hold_until of the kernels that have been fetched.
	uint64_t methods_ns, methods_until; // The times, by either clock, until which its channels have methods to fetch.
};
struct engine {
	uint64_t at;     // The time that this state describes.
	int32_t current; // The loaded TSG; -1: none.
	int32_t next;    // The TSG that the engine switches to; -1: it does not switch.
	uint64_t switch_end;
	uint64_t granted;   // The time when current got the engine, or became busy again.
	uint64_t contended; // The time since which another TSG has been runnable; 0: none is.
	uint64_t dry;       // The time since which the channels of current have had no methods; 0: they have some.
	uint64_t turned; // The time when the host engine turned to the next TSG, while current's kernels run on; 0: it has not.
	uint64_t switches;
	struct tsg tsg[ENGINE_TSGS];
	uint64_t memory[ENGINE_PROCESSES]; // Bytes of the device that each process has.
	uint64_t copying[2][ENGINE_PROCESSES]; // To the device, and from it: the time until which the process keeps the bus busy.
};
#define ENGINE_LAYOUT 5u
struct shared {                // A file of SIMCUDA_DIR. A living process holds a record lock on the byte of its index.
	_Atomic uint64_t head; // generation << 16 | buffer.
	uint32_t pad[14];
	_Atomic uint32_t bell[ENGINE_TSGS];
	struct engine buffer[2 * ENGINE_PROCESSES]; // Two for each process, one of which may be the head.
};
int engine_attach(int device);                 // Returns 0 or -1. Called once per process and device.
int engine_add(int device, uint64_t slice_ns); // Returns a TSG slot; -1: all are taken.
void engine_remove(int device, int tsg);
void engine_leave(void); // Takes all of this process's TSGs off.
// Brings the state up to now and applies change (may be NULL) to it.
void engine_update(int device, void (*change)(struct engine *, void *), void *argument, struct engine *result);
bool engine_running(const struct engine *, int tsg);
bool engine_turned(const struct engine *, int tsg); // True: the fetched kernels run on, and nothing more is fetched.
uint64_t engine_next(const struct engine *);        // The time of the next transition; UINT64_MAX: none.
uint64_t engine_after(const struct engine *, int tsg, uint64_t run_ns); // The time when the TSG will have run for so much longer.
_Atomic uint32_t *engine_bell(int device, int tsg);
void engine_ring(_Atomic uint32_t *bell);
void engine_sleep(_Atomic uint32_t *bell, uint32_t seen, uint64_t until_ns);
void engine_reap(int device);                                        // Forgets TSGs and memory of dead processes.
bool engine_take_memory(int device, uint64_t bytes, uint64_t total); // False: all processes together would exceed the total.
void engine_give_memory(int device, uint64_t bytes);
uint64_t engine_memory(int device); // The memory that all processes have.
struct bus_users {
	int beside, opposite; // beside: other processes in this direction. opposite: all processes in the other one.
};
struct bus_users engine_bus(int device, int direction, uint64_t until); // This process keeps the bus busy until then.

#endif
