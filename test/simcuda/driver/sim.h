// sim.h - what the parts of the simulated driver share, file by file: each calls only such that come before it. ../README.md says what each
// is for. engine.h comes behind h200.c, executor.h with executor.c.
//
// Locks: sim_lock, one per process, protects all but the machine data, the engine, and RM objects. Under it a thread takes only locks of
// single files (update_lock of engine.c, in_use of vmm.c). It does not call the program back. The engine is lock-free between processes.
// rm.c has a lock of its own, which it never holds while a call leaves the library.
#ifndef SIM_H
#define SIM_H

#include "gpus.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))

// Between these two a thread acts as the device: the thread sanitizer ignores what it reads and writes, as it cannot see what a
// GPU does. The pairs nest.
#ifdef __SANITIZE_THREAD__
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);
static inline void device_acts(void)
{
	AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
	AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
}
static inline void device_acted(void)
{
	AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
	AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
}
#else
static inline void device_acts(void) {}
static inline void device_acted(void) {}
#endif

// ---- cuda.h, as far as needed
typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUfunc_st *CUfunction;
typedef struct CUmod_st *CUmodule;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUgraphNode_st *CUgraphNode;

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_DEINITIALIZED = 4,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_INVALID_IMAGE = 200,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
	CUDA_ERROR_INVALID_PTX = 218,
	CUDA_ERROR_JIT_COMPILER_NOT_FOUND = 221,
	CUDA_ERROR_FILE_NOT_FOUND = 301,
	CUDA_ERROR_INVALID_HANDLE = 400,
	CUDA_ERROR_ILLEGAL_STATE = 401,
	CUDA_ERROR_NOT_FOUND = 500,
	CUDA_ERROR_NOT_READY = 600,
	CUDA_ERROR_ILLEGAL_ADDRESS = 700,
	CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
	CUDA_ERROR_PEER_ACCESS_NOT_ENABLED = 705,
	CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE = 708,
	CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
	CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
	CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
	CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE = 720,
	CUDA_ERROR_NOT_SUPPORTED = 801,
	CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
	CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
	CUDA_ERROR_STREAM_CAPTURE_MERGE = 902,
	CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
	CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904,
	CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905,
	CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
	CUDA_ERROR_CAPTURED_EVENT = 907,
	CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
	CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE = 910,
	CUDA_ERROR_INVALID_CLUSTER_SIZE = 912,
	CUDA_ERROR_STREAM_DETACHED = 917,
};

#define STREAM_LEGACY ((CUstream)1)     // CU_STREAM_LEGACY
#define STREAM_PER_THREAD ((CUstream)2) // CU_STREAM_PER_THREAD

// ---- time (clock.c)
uint64_t now_ns(void);      // The time by CLOCK_MONOTONIC.
void sim_take(uint64_t ns); // Sleeps for so long.

// ---- machine data (h200.c)
struct machine {
	const char *name;
	int driver_version;
	int sms;
	int threads_per_sm;
	int registers_per_sm;
	int shared_per_sm, shared_reserved, shared_per_block_optin, shared_per_block;
	int blocks_per_sm;
	int cc_major, cc_minor;
	int clock_khz, memory_clock_khz, bus_width_bits, l2_bytes;
	uint64_t memory_bytes;
	uint64_t context_bytes;  // Device memory that a context takes.
	uint64_t switch_busy_ns; // The time to leave a TSG in the middle of a kernel.
	uint64_t switch_idle_ns; // The time to leave a TSG that has no methods.
	uint64_t load_ns;        // A timeslice shorter than this gives no run time at all.
	uint64_t look_ns;        // The engine turns away from a loaded TSG that has had no methods for so long.
	uint64_t timeslice_us, copy_timeslice_us;
	uint64_t control_ns; // The time of one RM control, which is synchronous.
	uint64_t copy_latency_ns;
	uint64_t host_bytes_per_us, device_bytes_per_us;
	uint64_t kernel_overhead_ns;     // Added to every kernel's duration.
	uint64_t block_ns;               // The time between the beginnings of two blocks.
	int green_least, green_multiple; // SMs of a green context: at least, a multiple of.
	uint64_t green_ns, green_bytes;  // The time to make a green context, and its part of the device's memory.
	uint32_t gpfifo_class, compute_class;
	uint32_t compute_engine;
	uint32_t copy_engine[3];
	int connections; // Channels of a compute TSG, which its streams share.
};
extern const struct machine machine;
int machine_attribute(int device, int attribute, int *value); // 0, or -1 if unknown.
int sim_devices(void);
int sim_driver_version(void);
uint64_t sim_memory_bytes(void);  // The memory of a device.
uint64_t sim_context_bytes(void); // Device memory that a context takes.
uint64_t sim_code_bytes(void);    // And once it has loaded a kernel.
uint64_t sim_making_bytes(void);  // Memory that must be free for a stream or an event to be made.
uint64_t sim_cap_bytes(void);     // SIMCUDA_CAP_MB: the most that this process may have of a device; 0: no cap.
bool sim_cap_is_told(void);       // True: cuMemGetInfo tells the cap.
// Bytes per ns to the device (direction 0) or from it (1); both: while copies go both ways. 0: no rate is set.
double sim_bus_rate(int direction, bool both);
bool sim_contents(void);               // Whether copies, memsets and bench_mix change memory.
void sim_pin(uint64_t bytes);          // Sleeps as long as page-locking takes.
void sim_create(uint64_t bytes);       // Sleeps as long as cuMemCreate takes.
uint64_t sim_scrub_ns(uint64_t bytes); // The time to scrub so many bytes.
int sim_connections(void);             // CUDA_DEVICE_MAX_CONNECTIONS
uint32_t sim_queue(void);              // Operations of a stream that may be queued (SIMCUDA_QUEUE).
bool sim_making_waits(void);  // A call that makes an event, a stream or a graph instance waits as one that submits.
bool sim_late_contexts(void); // Primary contexts are initialised later than they are made (simcuda_initialise).
enum mps_client {
	MPS_NONE,
	MPS_SHARED, // Clients of a server share its TSG.
	MPS_SLICED, // Each client keeps a TSG of its own: MPS v3 without context-share.
};
enum mps_client sim_mps_client(void);
bool sim_mps(void);              // Whether processes share the TSG of an MPS server.
uint64_t sim_look_ns(void);      // machine.look_ns, unless a test sets another time.
uint64_t sim_switch_ns(void);    // machine.switch_busy_ns, unless a test sets another time.
uint64_t sim_block_ns(void);     // The time between the beginnings of two blocks that wait for each other.
struct part { int gpu, slice; }; // slice: -1 where the GPU is whole.
struct part sim_part(int device);
bool sim_lazy(void); // True: the first launch loads the code.
struct kernel;
void sim_doorbell(const struct kernel *); // After a launch: sleeps for SIMCUDA_DOORBELL_US. NULL: a graph was launched.

// ---- RM (rm.c)
struct rm_context;
int rm_open(void);         // Makes the client, devices and subdevices.
void rm_close(void);       // Frees what rm_open made, and the file.
bool rm_closes_only(void); // SIMCUDA_CLOSES_ONLY: a checkpoint frees by closing the file alone.
struct rm_context *rm_context_create(int device, int tsg); // Allocates the TSG, its channels and objects.
void rm_context_destroy(struct rm_context *);
void rm_forked(void);

// ---- exported functions, and the calls that fail or kill (faults.c)
CUresult sim_called(const char *name); // The error that SIMCUDA_FAIL wants the call to return before it does anything.
bool faults_understood(void);          // False: SIMCUDA_FAIL or SIMCUDA_KILL names what does not exist; said on stderr.
extern const char *const exported_first[] __asm__("__start_sim_exported") __attribute__((visibility("hidden")));
extern const char *const exported_end[] __asm__("__stop_sim_exported") __attribute__((visibility("hidden")));

bool call_begins(const char *name); // checkpoint.c: waits while the process is locked. Returns call_ends' argument.
void call_ends(bool counted);
void checkpoint_forked(void);

void trace_line(const char *what, const char *name, uint64_t bytes); // trace.c

// Defines an exported function. The body follows.
#define CALL(name, parameters, arguments) \
	static CUresult name##_body parameters; \
	static const char *const name##_row __attribute__((section("sim_exported"), used)) = #name; \
	API CUresult name parameters; \
	API CUresult name parameters \
	{ \
		trace_line("begin", name##_row, 0); \
		bool counted_ = call_begins(name##_row); \
		CUresult returned = sim_called(name##_row); \
		returned = returned ? returned : name##_body arguments; \
		call_ends(counted_); \
		trace_line("end", name##_row, 0); \
		return returned; \
	} \
	static CUresult name##_body parameters

// Defines two exported functions with the same body, which follows: for name a NULL stream is the legacy one, for name<suffix>
// the one of the calling thread. The stream parameter is called s.
#define DUAL(name, suffix, parameters, arguments) \
	static CUresult name##_common parameters; \
	CALL(name, parameters, arguments) \
	{ \
		s = s ? s : STREAM_LEGACY; \
		return name##_common arguments; \
	} \
	CALL(name##suffix, parameters, arguments) \
	{ \
		s = s ? s : STREAM_PER_THREAD; \
		return name##_common arguments; \
	} \
	static CUresult name##_common parameters

// ---- what a process keeps (process.c); with sim_lock held
extern pthread_mutex_t sim_lock;
extern pthread_cond_t sim_done; // Signalled when something completed.
extern _Atomic bool sim_initialized;
extern bool sim_forked;
extern bool sim_dead; // Forked or exiting: executors park.
extern struct CUctx_st *sim_contexts;
enum handle_kind {
	H_NONE,
	H_CONTEXT,
	H_STREAM,
	H_EVENT,
	H_MODULE,
	H_LIBRARY,
	H_FUNCTION,
	H_KERNEL,
	H_GRAPH,
	H_EXEC,
	H_NODE,
	H_LINK,
	H_POOL,
	H_ARRAY,
	H_GREEN
};
void handle_add(void *, enum handle_kind);
void handle_remove(void *);
bool handle_is(const void *, enum handle_kind);
struct CUctx_st *context_current(void); // NULL: none.
// The contexts of a thread. The top one may have ended.
bool context_stack_full(void);
void context_push(struct CUctx_st *);
struct CUctx_st *context_top(void); // NULL: the stack is empty.
struct CUctx_st *context_pop(void);
CUresult enter(struct CUctx_st **current); // Takes sim_lock if it returns CUDA_SUCCESS; current may be NULL.
CUresult enter_handle(const void *, enum handle_kind, const void *out); // enter, with a handle; out must not be NULL.
CUresult leave(CUresult);                                               // Releases sim_lock.
void sim_unlock(void);                                                  // Only leave and sim_unlock give up sim_lock.
void sim_wait(pthread_cond_t *);                                        // With sim_lock held.
// With sim_lock held; threads hear of it when the lock is free.
void tell_executor(_Atomic uint32_t *bell);
void tell_done(void); // Wakes the threads in wait_done: work or a call is over.

// ---- pauses that tests ask for (pauses.c)
void pause_gpu(void);              // By an executor, with sim_lock held. It gives the lock up meanwhile.
void pause_answer(void);           // By a call that finds an event not reached, without sim_lock.
CUresult pause_answered(CUresult); // By a query that has its answer, without sim_lock.
void pause_launch(void); // By the launch of a kernel, or a wait for an event, before it is queued, without sim_lock.
void pause_record(void); // By the record of an event, before it is queued, without sim_lock.

// ---- what a device has of memory (device_memory.c); sim_lock held
#define LARGE (2ull << 20) // As on a GPU: such an allocation has pages of 2 MiB of its own. Smaller ones share pages.
uint64_t memory_pages(uint64_t bytes);          // The bytes of the pages that an allocation takes.
bool memory_charge(int device, uint64_t bytes); // False: beyond what the device has.
uint64_t memory_taken(int device);              // by this process, with its contexts
void memory_info(int device, size_t *free_bytes, size_t *total);
bool memory_to_make(int device); // Whether a stream or an event can be made (SIMCUDA_MAKING_MB).
void memory_discharge(int device, uint64_t bytes);
void memory_freed(int device, uint64_t bytes); // Discharges the memory once it is scrubbed.
void memory_away(void);                        // Gives back what the process has, or takes it again.
bool memory_back(void);                        // False: a device has less.
uint64_t memory_next_id(void);                 // The id of an allocation or mapping.

// ---- virtual memory management (vmm.c); sim_lock held
struct physical;
struct mapping {
	uint64_t address, bytes, id;
	struct physical *physical;
	uint8_t access[9]; // CUmemAccess_flags of each device, and of the host.
};
struct mapping *virtual_mapping(uint64_t address); // NULL: nothing is mapped there.
int virtual_device(const struct mapping *);        // -1: host memory.
unsigned virtual_handle_types(const struct mapping *);
bool virtual_rdma(const struct mapping *);
bool virtual_reserved(uint64_t address, uint64_t bytes); // True: the range lies in one reservation.
bool virtual_accessible(uint64_t address, uint64_t bytes, int device);
// Between these two no mapping changes. The first is called with sim_lock, the second without it, soon after.
void virtual_hold(void);
void virtual_let_go(void);
void virtual_change_begin(void); // With sim_lock held. Keeps all threads from between those two, until the change ends.
void virtual_change_end(void);
bool virtual_whole(uint64_t address, uint64_t bytes); // True: all of it is mapped.

// ---- pools (pools.c); sim_lock held
struct pool;
struct pool *pool_current(int device);              // NULL: no host memory.
bool pool_reached(const struct pool *, int device); // True: that device may use the pool's memory.
bool pool_take(struct pool *, uint64_t bytes);      // False: beyond what the device or the pool has.
void pool_take_back(struct pool *, uint64_t bytes);
struct pool *pool_of_graphs(int device, uint64_t bytes); // It has so much more. Nobody is charged. NULL: no host memory.
void pools_synchronized(void);                           // Pools give back what is above their threshold.

// ---- memory (memory.c); sim_lock held
enum memory_kind { MEMORY_DEVICE, MEMORY_HOST, MEMORY_REGISTERED, MEMORY_MANAGED, MEMORY_IMPORTED };
struct block { // Memory that cuMemAlloc and its like gave, or that is registered.
	uint64_t address, bytes;
	enum memory_kind kind;
	int device;
	struct CUctx_st *owner; // The context that was current.
	struct pool *pool;      // The pool that it came from; NULL: none.
	uint64_t id;            // No two blocks have the same id.
	bool sync_memops;
	bool exported; // Its pages are in file.
	int file;
	uint64_t owner_id; // imported: its id in the process that it comes from.
	unsigned opened;   // imported: how often it is open.
};
bool memory_add(uint64_t address, uint64_t bytes, enum memory_kind kind);
uint64_t memory_allocate(uint64_t bytes, enum memory_kind kind, struct pool *); // 0: out of memory.
bool memory_remove(uint64_t address, enum memory_kind kind);                    // False: not the start of one.
bool memory_export(struct block *);                                             // False: no host memory.
uint64_t memory_import(const struct block *, int file);                         // 0: no host memory.
struct block *memory_imported(uint64_t owner_id);
bool memory_known(uint64_t address, enum memory_kind kind);
bool memory_pinned(uint64_t address); // True: the device reaches this memory directly.
bool memory_is_device(uint64_t address);
struct block *memory_block(uint64_t address); // The block that the address lies in; NULL: none, or memory that cuMemMap put there.
void memory_owner_ends(const struct CUctx_st *owner); // Frees all blocks that it owns.
bool address_known(uint64_t address, uint64_t bytes); // When an operation is submitted: the range is allocated or reserved.
bool address_valid(uint64_t address, uint64_t bytes); // When an operation is carried out: memory_user can access the range.
bool address_copied(uint64_t address, uint64_t bytes); // When a copy is carried out, which needs no peers.
extern __thread const struct CUctx_st *memory_user;    // The context whose operations the calling thread carries out.

// ---- what kernels do, by name (kernels.c)
#define KERNEL_PARAMETERS 8
enum progress { WAITS, PROCEEDS, ENDS, FAULTS };
struct place {                  // A running block of a kernel whose blocks wait for each other.
	uint64_t number, until; // until: the run clock's time until which the block is at work.
	uint64_t target;        // The block's wait, in the kernel's own terms; 0 at first.
};
struct kernel {
	const char *name;
	int parameters;
	uint8_t size[KERNEL_PARAMETERS];
	int registers, shared_bytes, local_bytes;
	uint64_t (*duration_ns)(const uint64_t *argument, uint64_t blocks); // NULL: the kernel ends when over() says so.
	bool (*over)(const uint64_t *argument, uint64_t ran_ns);
	uint64_t (*limit_ns)(const uint64_t *argument);
	bool (*finish)(const uint64_t *argument); // The effect of all blocks together; false: illegal address.
	bool (*block)(const uint64_t *argument, uint64_t number); // Instead of finish: the effect of one block.
	// or: a step of a block that waits for others
	enum progress (*proceed)(const uint64_t *argument, uint64_t blocks, struct place *);
};
const struct kernel *kernel_find(const char *name);
const struct kernel *kernel_at(int index); // NULL: the index is behind the last kernel.
extern const struct kernel kernel_unknown; // Stands for any other kernel: it does nothing, for a while.
bool kernel_stands(const struct kernel *, const uint64_t *argument); // True: it is a hold that has no order to end yet.
int kernel_blocks_per_sm(const struct kernel *, uint64_t threads, uint64_t shared_bytes);

// ---- what images say (image.c)
struct parameter { uint16_t offset, size; };
struct definition { // A kernel.
	char *name;
	const struct kernel *kernel;
	int parameters;
	struct parameter *parameter;
	uint32_t bytes; // The size of the parameters.
	bool guarded;   // The last parameter is the hidden one, kernels/guard/guard.h.
};
struct variable {
	char *name;
	uint64_t bytes;
	void *initial; // NULL: zeros.
};
struct image {
	bool read; // False: this form is not read, and the image has all kernels of kernels.c.
	int definitions, variables;
	struct definition *definition;
	struct variable *variable;
};
// The text of a fatbin's PTX, where the machine has no cubin in it; NULL: it is compressed, or there is none.
const char *fatbin_ptx(const void *fatbin, uint64_t *bytes);
struct image *image_read(const void *, uint64_t bytes, CUresult *error); // bytes 0: the length is not known.
void image_free(struct image *);
char *image_file(const char *path, uint64_t *bytes); // NULL: the file is empty, or cannot be read.

// ---- sets of SMs (sms.c)
struct sm_set { uint64_t bit[3]; };     // No bit: all SMs.
unsigned sms_in(const struct sm_set *); // The number of SMs in the set.
struct sm_set sms_from(const struct sm_set *, unsigned first, unsigned count);
bool sms_make(struct CUctx_st *); // From now on the context's launches are placed on SMs. False: no host memory.
void sms_free(struct CUctx_st *);

// ---- operations and streams (queues.c)
enum op_kind { OP_MARK, OP_KERNEL, OP_COPY, OP_MEMSET, OP_HOST, OP_WAIT_VALUE, OP_WRITE_VALUE, OP_FREE };
struct work { // The work of an operation, or of a graph node.
	enum op_kind kind;
	const struct kernel *kernel;
	void *function; // The CUfunction of the launch.
	uint32_t grid[3], block[3], shared_bytes;
	uint64_t argument[KERNEL_PARAMETERS];
	bool guarded, cooperative;
	bool aside;                // mark: it needs no channel.
	struct sm_set sms;         // kernel: the SMs that it may use.
	uint32_t cluster;          // kernel: blocks of a cluster.
	int priority;              // kernel: a priority of its own.
	bool prioritized;          // kernel: its own priority counts, and not its stream's.
	uint64_t hidden;           // Guarded kernel: the address of its record; 0: none.
	uint64_t dst, src, bytes;  // Copy, memset, free.
	void *staged;              // copy: private source, freed with the operation.
	uint32_t value, flags;     // Memset pattern, wait or write value.
	int width;                 // Memset
	bool host;                 // copy: it goes over the bus.
	bool inlined;              // copy: through a channel of the compute engine.
	bool from_device;          // copy: its direction, if it goes over the bus.
	bool known_dst, known_src; // copy: the driver knew this side as its memory when the copy was submitted.
	void (*callback)(void *);
	void *user;
};
struct op {
	int refs;
	bool done, started, chained;
	bool awaited;       // Threads wait until it is done.
	bool with_previous; // Fetched with the operation before it: both are nodes of one graph.
	bool queued;        // In its channel, and not fetched yet.
	uint64_t number;    // Its place in the order of submission.
	bool blocked;       // It waits for more than kernels before it in its stream.
	uint64_t rung_ns;   // The time when its doorbell rang or, if later, when it stopped being blocked.
	struct work work;
	uint64_t end_ns;      // copy: the time when it is over.
	double rate, carried; // Copy over a bus with a rate: bytes per ns, and the bytes carried until carried_ns.
	uint64_t carried_ns, moved;
	uint64_t start_run, end_run; // kernel: its times by the run clock.
	uint64_t next_block;         // Kernel with a record: the first block that has not been handed out.
	uint64_t wave_from, wave_to; // The blocks that run.
	uint64_t wave_end, wave_ns;  // The time until which they run, by the run clock, and the time of each wave.
	struct place *place;         // Kernel whose blocks wait for each other: the blocks that run.
	uint64_t places, next_begin_run;
	struct op *placed_next; // Kernel that is placed on SMs: the next one by urgency.
	bool placed, begun;     // begun: blocks of it have been handed out, or none will be.
	uint64_t running;       // The number of blocks that run.
	int priority;           // The priority of its stream.
	uint64_t started_ns, done_ns;
	struct op **dep;
	int deps;
	bool handed, returned;                      // Host function: given to its thread, and returned.
	struct op *next, *channel_next, *host_next; // The next one of its stream, its channel, the host functions.
};
struct CUstream_st {
	struct CUctx_st *ctx;
	struct CUstream_st *next; // The next one in its context.
	uint64_t id;
	unsigned flags; // 1: non-blocking.
	int priority;
	int channel, in_channel;     // The channel that its operations are in, and how many are there.
	struct CUgreenCtx_st *green; // NULL: the stream has all SMs.
	struct sm_set sms;
	bool detached; // Its green context was destroyed.
	bool destroyed, legacy;
	struct op *head, *tail, *last; // last: the latest submitted operation, kept until another one replaces it.
	uint32_t length;               // The number of operations from head to tail.
	uint32_t awaited;              // Threads that wait for the queue to be shorter.
	uint64_t end_run;              // The run clock at the end of the last kernel; valid while chain.
	bool chain;
	struct capture *capture;
	uint64_t capture_sequence, capture_joined;
};
struct CUgreenCtx_st {
	struct CUctx_st *ctx, *as_context; // as_context: the context that cuCtxFromGreenCtx gives.
	struct sm_set sms;
	struct CUstream_st *own; // Orders events behind and ahead of the green context's streams.
};
static inline void stream_of_green(struct CUstream_st *s, struct CUgreenCtx_st *g)
{
	s->green = g;
	s->sms = g->sms;
}
#define PRIORITIES 6        // From 0, the lowest, to -5.
#define MOST_CONNECTIONS 32 // The most that CUDA_DEVICE_MAX_CONNECTIONS can ask for.
struct channel { // Operations of the streams that share it, in the order of submission, which is that of fetching.
	struct op *head, *tail;
	uint64_t closed; // Number of the first operation that waits for more than kernels; UINT64_MAX: none does.
};
struct CUctx_st {
	struct CUctx_st *next;
	int device, tsg;
	unsigned flags;
	uint64_t id, code_bytes; // of its memory, for code
	unsigned attached;       // cuCtxAttach
	bool primary, destroyed;
	bool late;           // Not initialised yet: a call that needs an initialised one fails (sim_late_contexts).
	struct CUctx_st *of; // Not NULL: this is a green context of that one (cuCtxFromGreenCtx), and has no more than green.
	struct CUgreenCtx_st *green;
	struct sms *sms; // Not NULL: launches are placed on SMs (sms.c).
	CUresult error;  // Sticky
	struct CUstream_st *streams, *legacy;
	struct CUstream_st *recorder; // The stream of context_mark; NULL: none was asked for.
	struct CUstream_st *gate;     // The stream of context_await; NULL: none was asked for.
	struct channel channel[MOST_CONNECTIONS];
	int next_channel; // The channel where the search for an empty one begins.
	uint64_t next_number;
	bool locked; // A call keeps all submissions of the context waiting (calls.c).
	struct rm_context *rm;
	_Atomic uint32_t *bell;
	pthread_t executor, host_thread;
	struct op *host_queue;
	uint32_t peers; // Bit n: its work may use cuMemAlloc memory of device n.
	pthread_cond_t host_work;
	bool stop;
	int threads;
};
static inline struct channel *channel_of(const struct CUstream_st *s) { return &s->ctx->channel[s->channel]; }
struct CUstream_st *stream_new(struct CUctx_st *, unsigned flags, int priority);
struct op *stream_submit(struct CUstream_st *, const struct work *, struct op *after); // Returns a reference.
void stream_submit_many(struct CUstream_st *, const struct work *, int n);
void op_unref(struct op *);
struct op *op_ref(struct op *);
void op_wait(struct op *);            // With sim_lock held; consumes the reference.
void context_wait(struct CUctx_st *); // With sim_lock held.
struct op *context_mark(struct CUctx_st *); // With sim_lock held. Comes behind all that the context has; orders nothing behind it.
// sim_lock held. All that the context gets from here on comes behind the operation, on whichever stream. One that gets nothing has nothing.
void context_await(struct CUctx_st *, struct op *);
CUresult stream_resolve(struct CUctx_st *, CUstream, struct CUstream_st **);
CUresult enter_stream(CUstream, struct CUstream_st **); // enter, with the stream.

// ---- the lock of a context (calls.c); all with sim_lock held
enum call {
	CALL_SUBMIT,
	CALL_SYNCHRONIZE,
	CALL_FREE,
	CALL_FREE_HOST,
	CALL_UNREGISTER,
	CALL_LOAD,
	CALL_UNLOAD,
	CALL_FIRST_LAUNCH,
	CALL_GREEN // A green context is made.
};
void wait_done(void); // With sim_lock held: waits until work or a call may be over. A cancelled thread leaves no lock behind.
void call_wait(struct CUctx_st *, enum call);               // Waits as this call does.
void call_cooperative(const struct CUctx_st *);             // A cooperative launch is submitted.
CUresult enter_submission(CUstream, struct CUstream_st **); // enter_stream, for a call that gives the stream something to do.

// ---- graphs (nodes.c); sim_lock held
struct graph_memory { // Of a memory node.
	enum graph_memory_node { GRAPH_NO_MEMORY, GRAPH_ALLOCATES, GRAPH_FREES } is;
	int device;
	uint64_t at, bytes;
};
struct CUgraphNode_st {
	struct work work;
	CUgraphNode next;
	struct graph_memory memory;
	CUgraph child; // Node that is a graph: a copy of that graph; else NULL.
	void *parameters[KERNEL_PARAMETERS + 1];
};
struct CUgraph_st {
	CUgraphNode first, last;
	int nodes;
};
CUgraph graph_new(void);
void graph_free(CUgraph);
CUgraph graph_copy(CUgraph);
CUresult graph_add_node(CUgraphNode *out, CUgraph, const CUgraphNode *on, size_t count, const struct work *);

// ---- memory nodes of graphs (graph_memory.c); sim_lock held
CUresult graph_memory_of(struct graph_memory *, int device, uint64_t bytes);
uint64_t graph_memory_needs(const CUgraphNode *, int count, int device); // The most that the nodes, in order, have at once.
bool graph_memory_take(const uint64_t *needs);                           // Of each device. False: beyond what one has.
void graph_set_work(CUgraphNode, const struct work *);
bool graph_replace(CUgraph to, CUgraph from); // Replaces only the nodes' parameters. False: the nodes differ in more.
CUgraphNode graph_append(CUgraph, const struct work *);

// ---- capture (capture.c); sim_lock held
struct CUevent_st {
	unsigned flags;
	struct op *op; // The latest record; NULL: never recorded.
	struct capture *capture;
	struct CUstream_st *capture_stream;
	uint64_t capture_id, capture_sequence;
};
struct capture {
	CUgraph graph;
	struct CUstream_st *origin;
	struct CUctx_st *ctx;
	struct capture *next;
	uint64_t id;
	int mode;
	pthread_t thread;
	bool invalid;
	CUgraph into; // The graph that is captured anew; NULL: a new one.
};
CUresult capture_node(struct CUstream_st *, const struct work *);
CUresult capture_memory(struct CUstream_st *, struct graph_memory);
CUresult put(struct CUstream_st *, const struct work *, struct op **); // Submits, or captures.
CUresult enter_unsafe(struct CUctx_st **);    // enter, for a call that is illegal while something captures.
CUresult capture_unsafe(struct CUctx_st *);   // For a call that is illegal while something captures.
CUresult capture_query(struct CUstream_st *); // For a call that is illegal on a capturing stream.
bool capture_in_context(struct CUctx_st *, bool blocking_only);
void capture_invalidate(struct CUctx_st *, bool blocking_only);
CUresult capture_record(struct CUevent_st *, struct CUstream_st *);
CUresult capture_wait(struct CUstream_st *, struct CUevent_st *);

// ---- the threads of a context (executor.c)
int context_start(struct CUctx_st *);
void context_stop(struct CUctx_st *);

// ---- functions (modules.c)
struct CUfunc_st { // Also a CUkernel.
	const struct definition *definition;
	struct CUmod_st *module;
	struct CUfunc_st *next;
	uint64_t loaded; // Bit CUctx_st.id % 64: its code is in that context.
	int attribute[32];
};
bool is_function(const void *);
void function_load(CUfunction, struct CUctx_st *); // Unless it is loaded; may wait for the context.

// ---- launches (launches.c); sim_lock held
// Makes the work that a launch of the function is.
CUresult launch_work(struct work *, CUfunction, const unsigned grid[3], const unsigned block[3], unsigned shared,
		     bool cooperative, const struct sm_set *, void **parameters, void **extra);
#define LAUNCH_ATTRIBUTE_COOPERATIVE 2       // CU_LAUNCH_ATTRIBUTE_COOPERATIVE
#define LAUNCH_ATTRIBUTE_PRIORITY 8          // CU_LAUNCH_ATTRIBUTE_PRIORITY
#define LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION 4 // CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION

// ---- arrays (arrays.c); sim_lock held
void arrays_owner_ends(const struct CUctx_st *); // Frees its arrays.

// ---- MPS (mps.c)
void mps_connect(void); // As the driver is initialised.

// ---- devices (devices.c)
CUresult check_device(CUdevice, const void *out); // Takes no lock; out must not be NULL.

#endif
