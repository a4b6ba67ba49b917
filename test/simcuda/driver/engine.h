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
	uint32_t process; // index of the owner
	uint32_t off;     // nonzero: off the runlist
	uint32_t pad;
	uint64_t slice_ns;
	uint64_t ran_ns;                    // run clock: how long this TSG has been running
	uint64_t work_ns;                   // run clock when the last kernel with a known end is over
	uint64_t hold_until;                // CLOCK_MONOTONIC; until then a kernel without a known end runs
	uint64_t begun_ns, begun_until;     // the same two, of the kernels that have been fetched
	uint64_t methods_ns, methods_until; // until when, by either clock, its channels have methods to fetch
};
struct engine {
	uint64_t at;     // the time that this state describes
	int32_t current; // loaded TSG, -1 = none
	int32_t next;    // switching to, -1 = not switching
	uint64_t switch_end;
	uint64_t granted;   // when current got the engine, or became busy again
	uint64_t contended; // since when another TSG has been runnable, 0 = none is
	uint64_t dry;       // since when the channels of current have had no methods, 0 = they have
	uint64_t turned; // when the host engine turned from current, whose kernels run on, to the next; 0 = it has not
	uint64_t switches;
	struct tsg tsg[ENGINE_TSGS];
	uint64_t memory[ENGINE_PROCESSES];     // bytes of the device that each process has
	uint64_t copying[2][ENGINE_PROCESSES]; // to the device, from it: until when the process keeps the bus busy
};
#define ENGINE_SMS 132
struct residence { // what the blocks of a context take of an SM (sms.c packs it), and until when by CLOCK_MONOTONIC
	_Atomic uint64_t taken, until;
};
#define ENGINE_LAYOUT 4u
struct shared {                // a file of SIMCUDA_DIR; a living process holds a record lock on the byte of its index
	_Atomic uint64_t head; // generation << 16 | buffer
	uint32_t pad[14];
	_Atomic uint32_t bell[ENGINE_TSGS];
	struct engine buffer[2 * ENGINE_PROCESSES]; // two for each process, one of which may be the head
	struct residence residence[ENGINE_TSGS][ENGINE_SMS];
};
int engine_attach(int device);                 // 0 or -1; once per process and device
int engine_add(int device, uint64_t slice_ns); // a TSG slot, -1 = full
void engine_remove(int device, int tsg);
void engine_leave(void); // take all of this process's TSGs off
// Brings the state up to now and applies change (may be NULL) to it.
void engine_update(int device, void (*change)(struct engine *, void *), void *argument, struct engine *result);
bool engine_running(const struct engine *, int tsg);
bool engine_turned(const struct engine *, int tsg); // what was fetched runs on, nothing more is fetched
uint64_t engine_next(const struct engine *);        // time of the next transition, UINT64_MAX = none
uint64_t engine_after(const struct engine *, int tsg, uint64_t run_ns); // when the TSG will have run for so much longer
struct residence *engine_residence(int device, int tsg);                // one for each SM. Who has the TSG writes them
_Atomic uint32_t *engine_bell(int device, int tsg);
void engine_ring(_Atomic uint32_t *bell);
void engine_sleep(_Atomic uint32_t *bell, uint32_t seen, uint64_t until_ns);
void engine_reap(int device);                                        // forget TSGs and memory of dead processes
bool engine_take_memory(int device, uint64_t bytes, uint64_t total); // false: all processes together would exceed the total
void engine_give_memory(int device, uint64_t bytes);
uint64_t engine_memory(int device); // what all processes have
struct bus_users {
	int beside, opposite; // other processes in this direction; all processes in the other one
};
struct bus_users engine_bus(int device, int direction, uint64_t until); // says that this process keeps the bus busy until then

#endif
