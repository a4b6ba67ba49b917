// own.h - what the files that make and change ranges share.
#ifndef GPREEMPT_MEMORY_OWN_H
#define GPREEMPT_MEMORY_OWN_H

#include "preempt/memory/memory.h"

#define SUBSTITUTE(name, parameters) CUresult gp_##name parameters;
#include "preempt/memory/substitutes.h"

static inline struct gp_memory *gp_memory_of(const struct gp_gpu *gpu) { return &gp_memory[gpu - gp_gpu]; }

// The GPU of a CUmemLocation. NULL: it is none, or not known.
static inline struct gp_gpu *gp_gpu_at(int type, int device)
{
	for (int i = 0; type == CU_MEM_LOCATION_TYPE_DEVICE && i < GP_GPUS && gp_gpu[i].known; i++)
		if (gp_gpu[i].device == device)
			return &gp_gpu[i];
	return NULL;
}

// Gives something of ours back to the driver, and tries once more if the driver refuses: nobody else would.
#define GP_GIVE_BACK(call) \
	do { \
		if (call) \
			call; \
	} while (0)

// account.c: what the program has of a GPU, in bytes.
// Adds to an account of gp_memory what the driver is asked for next; what the call has claimed for it is met. False: the program would
// have more than gp_memory_left.
bool gp_account_take(struct gp_gpu *, _Atomic uint64_t *account, uint64_t bytes, struct gp_retry *);
void gp_account_untake(_Atomic uint64_t *account, uint64_t bytes, struct gp_retry *); // the driver refused
void gp_account_give(_Atomic uint64_t *account, uint64_t bytes);
void gp_account_move(_Atomic uint64_t *from, _Atomic uint64_t *to, uint64_t bytes);
uint64_t gp_account_own(const struct gp_gpu *); // the sum
// Allocations that are the driver's own stay counted as pinned until they are freed.
void gp_native_made(const struct gp_context *, CUdeviceptr, size_t bytes);
bool gp_native_free(CUdeviceptr, CUresult *);         // false: it is not counted, and not freed
CUresult gp_native_free_async(CUdeviceptr, CUstream); // also frees what was not counted
void gp_native_context_destroying(CUcontext);
void gp_native_context_destroyed(CUcontext, bool is);
// The same for memory that the driver makes otherwise: bounded by the limit alone. False: it would have more than that.
bool gp_account_within(struct gp_gpu *, _Atomic uint64_t *account, uint64_t bytes);

// counted.c: memory that is the driver's, and counted.
CUresult gp_counted_create(unsigned long long *handle, size_t bytes, const struct gp_allocation_properties *,
			   unsigned long long flags, struct gp_retry *, struct gp_gpu **lacking);
CUresult gp_counted_release(unsigned long long handle);
void gp_counted_retained(CUdeviceptr address, unsigned long long handle);
void gp_counted_mapped(CUdeviceptr, unsigned long long handle);
void gp_counted_unmapped(CUdeviceptr, size_t bytes);
bool gp_memory_is_beyond(const struct gp_gpu *, uint64_t more); // with so many bytes the program has more than its limit
CUresult gp_counted_free(CUdeviceptr);                          // managed memory, or what is not counted
void gp_counted_context_destroying(CUcontext);
void gp_counted_context_destroyed(CUcontext, bool is);

// From now on the range is not evicted, and the log says so. The caller is counted in, and has gp_memory_lock. A range that
// ends stays in its account: the thread that ends it has already found out which one that is. Of a range whose memory is the
// program's handle, gp_range_pin pins the handle.
void gp_account_pin(struct gp_range *, enum gp_pin);

void gp_pin_say(enum gp_pin); // in the log, once for each

// chunks.c: physical memory at addresses of its own. The caller is counted in, or frees and keeps moves away
// (gp_memory_keep_moves_away), and has no lock. Both do all or nothing.
CUresult gp_chunks_allocate(struct gp_context *, size_t asked, CUdeviceptr *, struct gp_retry *);
CUresult gp_chunks_free(struct gp_range *);
void gp_chunks_empty(struct gp_range *, size_t count,
		     size_t bytes);       // gives the first count chunks back, of which so many bytes are mapped
void gp_chunks_forget(struct gp_range *); // gives back its record and its addresses; nothing is mapped there
// Whether the driver has so many bytes, as far as that can be told without taking them. The current context says on which GPU.
CUresult gp_chunks_fit(size_t bytes, const struct gp_allocation_properties *, const struct gp_retry *);
uint64_t gp_chunks_out(const struct gp_range *); // bytes that are out

// Takes a range of cuMemAlloc for the calling thread to free: its ending is set. False: none begins there, or another thread
// frees it; *r is the one that the address is in, or NULL.
bool gp_range_claim(CUdeviceptr, struct gp_range **r);
// Frees a claimed range that no work uses any more, and accounts for it. whatever: also where the driver refuses, since what
// was mapped there has ended with its context (cuDevicePrimaryCtxReset).
CUresult gp_range_end(struct gp_range *, bool whatever);

// free_async.c: frees what cuMemFreeAsync has let go and no work uses any more; wait: all of it, when it is so far. The caller
// is counted in. True: some was freed.
bool gp_freed_look(bool wait);
void gp_freed_context_destroying(CUcontext);

// The handle of legacy IPC for memory of cuMemAlloc.
struct gp_ticket {
	uint64_t magic;
	uint8_t process[16]; // random
	uint64_t number;     // of the range there
	uint64_t asked, bytes;
	uint8_t gpu[16]; // its UUID
};
_Static_assert(sizeof(struct gp_ticket) == sizeof(struct gp_ipc_handle), "CUipcMemHandle");
// ticket.c: a descriptor of a chunk for another process; -1: there is none (any more). Called by the thread that serves.
int gp_ticket_export(uint64_t number, size_t chunk);
// ticket_socket.c
const uint8_t *gp_ticket_process(void); // what this process is called in tickets; NULL: nobody can serve them
bool gp_ticket_is_own(const uint8_t process[16]);
int gp_ticket_connect(const struct gp_ticket *); // connects to the process that gave it; -1: it does not answer
int gp_ticket_receive(int socket);               // the next chunk's descriptor; -1: there is none

// peers.c: fills in who has access to memory that is allocated in a context.
void gp_peers_of(const struct gp_context *, struct gp_range *);
void gp_peers_context_destroyed(const struct gp_context *); // it has its place still
// Waits for all work that may use the range, as cuMemFree does. current: the context that is.
CUresult gp_peers_synchronize(const struct gp_range *, CUcontext current);

// sample.c: a little memory that never moves, about which the driver is asked instead of memory that does.
// Of cuMemAlloc: as ranges, it has 2 MiB of its own, and takes nothing of those that small allocations of the program share. Not a multiple
// of the granularity: the bytes asked for and the bytes mapped differ.
#define GP_SAMPLE_BYTES ((size_t)3 << 19)
// Called for a context that nobody works in yet.
CUresult gp_sample_make(struct gp_context *);
bool gp_sample_properties(const struct gp_gpu *, struct gp_allocation_properties *); // false: no range can be made there
CUdeviceptr gp_sample_of(const struct gp_range *); // a sample of the same kind and context; 0: there is none
void gp_sample_context_destroyed(const struct gp_context *);

// ask.c: from now on the library's own questions about addresses are answered as the program's.
void gp_ask_start(void);

// handles.c: memory that the program made by cuMemCreate.
struct gp_physical {
	unsigned long long number; // which the program holds
	size_t bytes;
	struct gp_allocation_properties properties;
	struct gp_gpu *gpu;
	uint32_t references; // of the program
	uint32_t mappings;
	uint32_t pins;             // enum gp_pin, of all its mappings
	_Atomic uint64_t *account; // the account of gp_memory in which its bytes are
	struct gp_range *range; // its only mapping, if that is the whole of it; then the driver's handles are there, not here
	size_t chunks;
	unsigned long long chunk[]; // the driver's handles
};
// Under gp_memory_lock, but for the last two.
struct gp_physical *gp_physical_of(unsigned long long number); // NULL: a handle of the driver, or of nothing any more
unsigned long long gp_physical_handle(const struct gp_physical *, size_t chunk);
size_t gp_physical_chunk_bytes(const struct gp_physical *, size_t chunk);
void gp_physical_pin(struct gp_physical *, enum gp_pin);
void gp_range_pin(struct gp_range *, enum gp_pin); // as gp_account_pin, or gp_physical_pin
// Moves its bytes to the account that is right now. True: nobody has it any more, and the caller has to end it.
bool gp_physical_settle(struct gp_physical *);
void gp_physical_end(struct gp_physical *);
bool gp_physical_is_number(unsigned long long handle); // ours; without the lock

#endif
