// sim.h - what the parts of the simulated driver share, file by file: each calls only such that come before it. ../README.md says
// what each is for. engine.h comes behind h200.c, executor.h with executor.c.
//
// Locks: sim_lock, one per process, protects all but the machine data, the engine, and RM objects. Under it only locks of single
// files are taken (update_lock of engine.c, in_use of vmm.c), and the program is not called back. The engine is lock-free between
// processes. rm.c has a lock of its own, which it never holds while a call leaves the library.
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
uint64_t now_ns(void);      // of CLOCK_MONOTONIC
void sim_take(uint64_t ns); // takes so long

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
	uint64_t context_bytes;  // device memory that a context takes
	uint64_t switch_busy_ns; // leaving a TSG in the middle of a kernel
	uint64_t switch_idle_ns; // leaving a TSG that has no methods
	uint64_t load_ns;        // a timeslice shorter than this gives no run time at all
	uint64_t look_ns;        // the engine turns away from a loaded TSG that has had no methods for so long
	uint64_t timeslice_us, copy_timeslice_us;
	uint64_t control_ns; // one RM control, synchronous
	uint64_t copy_latency_ns;
	uint64_t host_bytes_per_us, device_bytes_per_us;
	uint64_t kernel_overhead_ns;     // added to every kernel's duration
	uint64_t block_ns;               // between the beginnings of two blocks
	int green_least, green_multiple; // SMs of a green context
	uint64_t green_ns, green_bytes;  // what one takes to make, and of the device's memory
	uint32_t gpfifo_class, compute_class;
	uint32_t compute_engine;
	uint32_t copy_engine[3];
	int connections; // channels of a compute TSG, which its streams share
};
extern const struct machine machine;
int machine_attribute(int device, int attribute, int *value); // 0, or -1 if unknown
int sim_devices(void);
int sim_driver_version(void);
uint64_t sim_memory_bytes(void);  // of a device
uint64_t sim_context_bytes(void); // device memory that a context takes
uint64_t sim_making_bytes(void);  // that must be free for a stream or an event to be made
uint64_t sim_cap_bytes(void);     // SIMCUDA_CAP_MB: what this process may have of a device; 0: no cap
bool sim_cap_is_told(void);       // by cuMemGetInfo
// Bytes per ns to the device (direction 0) or from it (1); both: while copies go both ways. 0: no rate is set.
double sim_bus_rate(int direction, bool both);
bool sim_contents(void);               // whether copies, memsets and bench_mix change memory
void sim_pin(uint64_t bytes);          // sleeps as long as page-locking takes
void sim_create(uint64_t bytes);       // sleeps as long as cuMemCreate takes
uint64_t sim_scrub_ns(uint64_t bytes); // how long it takes to scrub so many bytes
int sim_connections(void);             // CUDA_DEVICE_MAX_CONNECTIONS
uint32_t sim_queue(void);              // operations of a stream that may be queued (SIMCUDA_QUEUE)
bool sim_making_waits(void);  // A call that makes an event, a stream or a graph instance waits as one that submits.
bool sim_late_contexts(void); // Primary contexts are initialised later than they are made (simcuda_initialise).
enum mps_client {
	MPS_NONE,
	MPS_SHARED, // clients of a server share its TSG
	MPS_SLICED, // each client keeps a TSG of its own: MPS v3 without context-share
};
enum mps_client sim_mps_client(void);
bool sim_mps(void);              // whether processes share the TSG of an MPS server
bool sim_shared_sms(void);       // whether those compete for the SMs
uint64_t sim_look_ns(void);      // as machine.look_ns, or as a test wants it
uint64_t sim_switch_ns(void);    // as machine.switch_busy_ns, or as a test wants it
uint64_t sim_block_ns(void);     // between the beginnings of two blocks that wait for each other
struct part { int gpu, slice; }; // slice: -1 where the GPU is whole
struct part sim_part(int device);
bool sim_lazy(void); // code is loaded by the first launch
struct kernel;
void sim_doorbell(const struct kernel *); // after a launch: sleeps for SIMCUDA_DOORBELL_US; NULL: a graph was launched

// ---- RM (rm.c)
struct rm_context;
int rm_open(void);         // client, devices, subdevices
void rm_close(void);       // frees all that, and the file
bool rm_closes_only(void); // SIMCUDA_CLOSES_ONLY: a checkpoint frees by closing the file alone
struct rm_context *rm_context_create(int device, int tsg); // allocates the TSG, its channels and objects
void rm_context_destroy(struct rm_context *);
void rm_forked(void);

// ---- exported functions, and the calls that fail or kill (faults.c)
CUresult sim_called(const char *name); // what SIMCUDA_FAIL wants the call to return before it does anything
bool faults_understood(void);          // false: SIMCUDA_FAIL or SIMCUDA_KILL names what does not exist; said on stderr
extern const char *const exported_first[] __asm__("__start_sim_exported") __attribute__((visibility("hidden")));
extern const char *const exported_end[] __asm__("__stop_sim_exported") __attribute__((visibility("hidden")));

bool call_begins(const char *name); // checkpoint.c: waits while the process is locked; for call_ends
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
extern pthread_cond_t sim_done; // something completed
extern _Atomic bool sim_initialized;
extern bool sim_forked;
extern bool sim_dead; // forked or exiting: executors park
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
struct CUctx_st *context_current(void); // NULL = none
// The contexts of a thread. The top one may have ended.
bool context_stack_full(void);
void context_push(struct CUctx_st *);
struct CUctx_st *context_top(void); // NULL = there is none
struct CUctx_st *context_pop(void);
CUresult enter(struct CUctx_st **current); // takes sim_lock if it returns CUDA_SUCCESS; current may be NULL
CUresult enter_handle(const void *, enum handle_kind, const void *out); // enter, with a handle; out must not be NULL
CUresult leave(CUresult);                                               // releases it
void sim_unlock(void);                                                  // sim_lock is given up by these two alone
void sim_wait(pthread_cond_t *);                                        // with sim_lock
// With sim_lock held; threads hear of it when the lock is free.
void tell_executor(_Atomic uint32_t *bell);
void tell_done(void); // to those in wait_done: work or a call is over

// ---- pauses that tests ask for (pauses.c)
void pause_gpu(void);              // by an executor, with sim_lock held, which is given up meanwhile
void pause_answer(void);           // by a call that says that an event is not reached, without sim_lock
CUresult pause_answered(CUresult); // by a call that has its answer to a question, without sim_lock
void pause_launch(void); // by the launch of a kernel, or a wait for an event, that is not queued yet, without sim_lock
void pause_record(void); // by the record of an event, the same

// ---- what a device has of memory (device_memory.c); sim_lock held
#define LARGE (2ull << 20) // as on a GPU: such an allocation has pages of 2 MiB of its own; smaller ones share them
uint64_t memory_pages(uint64_t bytes);          // the bytes of the pages that it takes
bool memory_charge(int device, uint64_t bytes); // false: beyond what the device has
void memory_info(int device, size_t *free_bytes, size_t *total);
bool memory_to_make(int device); // whether a stream or an event can be made (SIMCUDA_MAKING_MB)
void memory_discharge(int device, uint64_t bytes);
void memory_freed(int device, uint64_t bytes); // discharges the memory once it is scrubbed
void memory_away(void);                        // gives back what the process has, or takes it again
bool memory_back(void);                        // false: a device has less
uint64_t memory_next_id(void);                 // of an allocation or mapping

// ---- virtual memory management (vmm.c); sim_lock held
struct physical;
struct mapping {
	uint64_t address, bytes, id;
	struct physical *physical;
	uint8_t access[9]; // CUmemAccess_flags of each device, and of the host
};
struct mapping *virtual_mapping(uint64_t address); // NULL = nothing is mapped there
int virtual_device(const struct mapping *);        // -1: host memory
unsigned virtual_handle_types(const struct mapping *);
bool virtual_rdma(const struct mapping *);
bool virtual_reserved(uint64_t address, uint64_t bytes); // in one reservation
bool virtual_accessible(uint64_t address, uint64_t bytes, int device);
// Between these two no mapping changes. The first is called with sim_lock, the second without it, soon after.
void virtual_hold(void);
void virtual_let_go(void);
void virtual_change_begin(void); // with sim_lock; keeps everybody from between those two, until the change ends
void virtual_change_end(void);
bool virtual_whole(uint64_t address, uint64_t bytes); // all of it is mapped

// ---- pools (pools.c); sim_lock held
struct pool;
struct pool *pool_current(int device);              // NULL = no host memory
bool pool_reached(const struct pool *, int device); // that device may use its memory
bool pool_take(struct pool *, uint64_t bytes);      // false: beyond what the device or the pool has
void pool_take_back(struct pool *, uint64_t bytes);
void pools_synchronized(void); // pools give back what is above their threshold

// ---- memory (memory.c); sim_lock held
enum memory_kind { MEMORY_DEVICE, MEMORY_HOST, MEMORY_REGISTERED, MEMORY_MANAGED, MEMORY_IMPORTED };
struct block { // what cuMemAlloc and its like gave, or what is registered
	uint64_t address, bytes;
	enum memory_kind kind;
	int device;
	struct CUctx_st *owner; // the context that was current
	struct pool *pool;      // it came from; NULL = none
	uint64_t id;            // never given twice
	bool sync_memops;
	bool exported; // its pages are in file
	int file;
	uint64_t owner_id; // imported: its id in the process that it comes from
	unsigned opened;   // imported: how often it is open
};
bool memory_add(uint64_t address, uint64_t bytes, enum memory_kind kind);
uint64_t memory_allocate(uint64_t bytes, enum memory_kind kind, struct pool *); // 0 = out of memory
bool memory_remove(uint64_t address, enum memory_kind kind);                    // false: not the start of one
bool memory_export(struct block *);                                             // false: no host memory
uint64_t memory_import(const struct block *, int file);                         // 0 = no host memory
struct block *memory_imported(uint64_t owner_id);
bool memory_known(uint64_t address, enum memory_kind kind);
bool memory_pinned(uint64_t address); // memory that the device reaches directly
bool memory_is_device(uint64_t address);
struct block *memory_block(uint64_t address);         // what it lies in; NULL = none, or memory that cuMemMap put there
void memory_owner_ends(const struct CUctx_st *owner); // frees all that it owns
bool address_known(uint64_t address, uint64_t bytes); // as an operation is submitted: it is allocated or reserved
bool address_valid(uint64_t address, uint64_t bytes); // as an operation is carried out: memory_user can access it
bool address_copied(uint64_t address, uint64_t bytes); // the same of a copy, which needs no peers
extern __thread const struct CUctx_st *memory_user;    // the context whose operations the calling thread carries out

// ---- what kernels do, by name (kernels.c)
#define KERNEL_PARAMETERS 8
enum progress { WAITS, PROCEEDS, ENDS, FAULTS };
struct place {                  // a running block of a kernel whose blocks wait for each other
	uint64_t number, until; // until: run clock; the block is at work until then
	uint64_t target;        // what the block waits for, in the kernel's own terms; 0 at first
};
struct kernel {
	const char *name;
	int parameters;
	uint8_t size[KERNEL_PARAMETERS];
	int registers, shared_bytes, local_bytes;
	uint64_t (*duration_ns)(const uint64_t *argument, uint64_t blocks); // NULL: ends when over() says
	bool (*over)(const uint64_t *argument, uint64_t ran_ns);
	uint64_t (*limit_ns)(const uint64_t *argument);
	bool (*finish)(const uint64_t *argument); // the effect of all blocks together; false: illegal address
	bool (*block)(const uint64_t *argument, uint64_t number); // or: the effect of one block
	// or: a step of a block that waits for others
	enum progress (*proceed)(const uint64_t *argument, uint64_t blocks, struct place *);
};
const struct kernel *kernel_find(const char *name);
const struct kernel *kernel_at(int index);                           // NULL behind the last
extern const struct kernel kernel_unknown;                           // any other kernel: it does nothing, for a while
bool kernel_stands(const struct kernel *, const uint64_t *argument); // whether it is a hold that nobody has told to end
int kernel_blocks_per_sm(const struct kernel *, uint64_t threads, uint64_t shared_bytes);

// ---- what images say (image.c)
struct parameter { uint16_t offset, size; };
struct definition { // a kernel
	char *name;
	const struct kernel *kernel;
	int parameters;
	struct parameter *parameter;
	uint32_t bytes; // of the parameters
	bool guarded;   // the last parameter is the hidden one, kernels/guard/guard.h
};
struct variable {
	char *name;
	uint64_t bytes;
	void *initial; // NULL: zeros
};
struct image {
	bool read; // false: the form is not one that is read; the image has all kernels of kernels.c
	int definitions, variables;
	struct definition *definition;
	struct variable *variable;
};
// The text of a fatbin's PTX, where the machine has no cubin in it; NULL: it is compressed, or there is none.
const char *fatbin_ptx(const void *fatbin, uint64_t *bytes);
struct image *image_read(const void *, uint64_t bytes, CUresult *error); // bytes = 0: the length is not known
void image_free(struct image *);
char *image_file(const char *path, uint64_t *bytes); // NULL: it is empty, or cannot be read

// ---- sets of SMs (sms.c)
struct sm_set { uint64_t bit[3]; };     // no bit: all SMs
unsigned sms_in(const struct sm_set *); // how many
struct sm_set sms_from(const struct sm_set *, unsigned first, unsigned count);
bool sms_make(struct CUctx_st *); // from now on its launches are placed on SMs; false: no host memory
void sms_free(struct CUctx_st *);

// ---- operations and streams (queues.c)
enum op_kind { OP_MARK, OP_KERNEL, OP_COPY, OP_MEMSET, OP_HOST, OP_WAIT_VALUE, OP_WRITE_VALUE, OP_FREE };
struct work { // what an operation does; also a graph node
	enum op_kind kind;
	const struct kernel *kernel;
	void *function; // CUfunction as given
	uint32_t grid[3], block[3], shared_bytes;
	uint64_t argument[KERNEL_PARAMETERS];
	bool guarded, cooperative;
	bool aside;                // mark: it needs no channel
	struct sm_set sms;         // kernel: those that it may use
	uint32_t cluster;          // kernel: blocks of a cluster
	int priority;              // kernel: of its own
	bool prioritized;          // kernel: that counts, and not its stream's
	uint64_t hidden;           // of a guarded kernel: address of its record, 0 = none
	uint64_t dst, src, bytes;  // copy, memset, free
	void *staged;              // copy: private source, freed with the operation
	uint32_t value, flags;     // memset pattern, wait or write value
	int width;                 // memset
	bool host;                 // copy: it goes over the bus
	bool inlined;              // copy: through a channel of the compute engine
	bool from_device;          // copy: its direction, if it goes over the bus
	bool known_dst, known_src; // copy: the driver knew these as its memory when the copy was submitted
	void (*callback)(void *);
	void *user;
};
struct op {
	int refs;
	bool done, started, chained;
	bool awaited;       // threads wait until it is done
	bool with_previous; // fetched with the operation before it: nodes of one graph
	bool queued;        // in its channel, not fetched yet
	uint64_t number;    // in the order of submission
	bool blocked;       // waits for more than kernels before it in its stream
	uint64_t rung_ns;   // when its doorbell rang or, if later, when it stopped being blocked
	struct work work;
	uint64_t end_ns;      // copy: when it is over
	double rate, carried; // copy over a bus with a rate: bytes per ns, and the bytes carried until carried_ns
	uint64_t carried_ns, moved;
	uint64_t start_run, end_run; // kernel: run clock
	uint64_t next_block;         // of a kernel with a record: the first that has not been handed out
	uint64_t wave_from, wave_to; // the blocks that run
	uint64_t wave_end, wave_ns;  // until when, run clock, and how long each wave takes
	struct place *place;         // of a kernel whose blocks wait for each other: those that run
	uint64_t places, next_begin_run;
	struct op *placed_next; // of a kernel that is placed on SMs: the next one by urgency
	bool placed, begun;     // begun: blocks of it have been handed out, or none is to be
	uint64_t running;       // blocks
	int priority;           // its stream's
	uint64_t started_ns, done_ns;
	struct op **dep;
	int deps;
	bool handed, returned;                      // host function: given to its thread, came back
	struct op *next, *channel_next, *host_next; // in its stream, in its channel, in the queue of host functions
};
struct CUstream_st {
	struct CUctx_st *ctx;
	struct CUstream_st *next; // in its context
	uint64_t id;
	unsigned flags; // 1 = non-blocking
	int priority;
	int channel, in_channel;     // how many of its operations are in one, and in which
	struct CUgreenCtx_st *green; // NULL: the stream has all SMs
	struct sm_set sms;
	bool detached; // its green context was destroyed
	bool destroyed, legacy;
	struct op *head, *tail, *last; // last: latest submitted, kept until replaced
	uint32_t length;               // from head to tail
	uint32_t awaited;              // threads that wait for it to be shorter
	uint64_t end_run;              // run clock at the end of the last kernel, valid while chain
	bool chain;
	struct capture *capture;
	uint64_t capture_sequence, capture_joined;
};
struct CUgreenCtx_st {
	struct CUctx_st *ctx, *as_context; // as_context: what cuCtxFromGreenCtx gives
	struct sm_set sms;
	struct CUstream_st *own; // orders events behind and ahead of its streams
};
static inline void stream_of_green(struct CUstream_st *s, struct CUgreenCtx_st *g)
{
	s->green = g;
	s->sms = g->sms;
}
#define PRIORITIES 6        // 0, the lowest, to -5
#define MOST_CONNECTIONS 32 // of CUDA_DEVICE_MAX_CONNECTIONS
struct channel {            // what streams that share it submitted, in order; fetched in order
	struct op *head, *tail;
	uint64_t closed; // number of the first operation that waits for more than kernels, UINT64_MAX = none does
};
struct CUctx_st {
	struct CUctx_st *next;
	int device, tsg;
	unsigned flags;
	uint64_t id;
	unsigned attached; // cuCtxAttach
	bool primary, destroyed;
	bool late;           // not initialised yet: what needs one fails (sim_late_contexts)
	struct CUctx_st *of; // not NULL: this is a green context of that one (cuCtxFromGreenCtx), and has no more than green
	struct CUgreenCtx_st *green;
	struct sms *sms; // not NULL: launches are placed on SMs (sms.c)
	CUresult error;  // sticky
	struct CUstream_st *streams, *legacy;
	struct CUstream_st *recorder; // of context_mark; NULL: none was asked for
	struct CUstream_st *gate;     // of context_await; NULL: none was asked for
	struct channel channel[MOST_CONNECTIONS];
	int next_channel; // where an empty one is looked for
	uint64_t next_number;
	bool locked; // a call keeps all submissions of the context waiting (calls.c)
	struct rm_context *rm;
	_Atomic uint32_t *bell;
	pthread_t executor, host_thread;
	struct op *host_queue;
	uint32_t peers; // bit n: its work may use cuMemAlloc memory of device n
	pthread_cond_t host_work;
	bool stop;
	int threads;
};
static inline struct channel *channel_of(const struct CUstream_st *s) { return &s->ctx->channel[s->channel]; }
struct CUstream_st *stream_new(struct CUctx_st *, unsigned flags, int priority);
struct op *stream_submit(struct CUstream_st *, const struct work *, struct op *after); // returns a reference
void stream_submit_many(struct CUstream_st *, const struct work *, int n);
void op_unref(struct op *);
struct op *op_ref(struct op *);
void op_wait(struct op *);                  // sim_lock held; consumes the reference
void context_wait(struct CUctx_st *);       // sim_lock held
struct op *context_mark(struct CUctx_st *); // sim_lock held; comes behind all that the context has, and nothing behind it
// sim_lock held. All that the context gets from here on comes behind the operation, on whichever stream. One that gets nothing has nothing.
void context_await(struct CUctx_st *, struct op *);
CUresult stream_resolve(struct CUctx_st *, CUstream, struct CUstream_st **);
CUresult enter_stream(CUstream, struct CUstream_st **); // enter, with the stream

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
	CALL_GREEN // a green context is made
};
void wait_done(void); // until work or a call may be over; sim_lock held. A thread that is cancelled meanwhile leaves no lock behind
void call_wait(struct CUctx_st *, enum call);               // waits as this call does
void call_cooperative(const struct CUctx_st *);             // a cooperative launch is submitted
CUresult enter_submission(CUstream, struct CUstream_st **); // enter_stream, for what gives the stream something to do

// ---- graphs (nodes.c); sim_lock held
struct CUgraphNode_st {
	struct work work;
	CUgraphNode next;
	CUgraph child; // of a node that is a graph: a copy of that graph; else NULL
	void *parameters[KERNEL_PARAMETERS + 1];
};
struct CUgraph_st {
	CUgraphNode first, last;
	int nodes;
};
CUgraph graph_new(void);
void graph_free(CUgraph);
CUgraph graph_copy(CUgraph);
void graph_set_work(CUgraphNode, const struct work *);
bool graph_replace(CUgraph to, CUgraph from); // only the nodes' parameters; false: the nodes differ in more
CUgraphNode graph_append(CUgraph, const struct work *);

// ---- capture (capture.c); sim_lock held
struct CUevent_st {
	unsigned flags;
	struct op *op; // latest record, NULL = never recorded
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
	CUgraph into; // the graph that is captured anew, NULL = a new one
};
CUresult capture_node(struct CUstream_st *, const struct work *);
CUresult put(struct CUstream_st *, const struct work *, struct op **); // submit, or capture
CUresult enter_unsafe(struct CUctx_st **);    // enter, for a call that is illegal while something captures
CUresult capture_unsafe(struct CUctx_st *);   // a call that is illegal while something captures
CUresult capture_query(struct CUstream_st *); // a call that is illegal on a capturing stream
bool capture_in_context(struct CUctx_st *, bool blocking_only);
void capture_invalidate(struct CUctx_st *, bool blocking_only);
CUresult capture_record(struct CUevent_st *, struct CUstream_st *);
CUresult capture_wait(struct CUstream_st *, struct CUevent_st *);

// ---- the threads of a context (executor.c)
int context_start(struct CUctx_st *);
void context_stop(struct CUctx_st *);

// ---- functions (modules.c)
struct CUfunc_st { // also a CUkernel
	const struct definition *definition;
	struct CUmod_st *module;
	struct CUfunc_st *next;
	uint64_t loaded; // bit CUctx_st.id % 64: its code is in that context
	int attribute[32];
};
bool is_function(const void *);
void function_load(CUfunction, struct CUctx_st *); // unless it is loaded; may wait for the context

// ---- launches (launches.c); sim_lock held
// Makes the work that a launch of the function is.
CUresult launch_work(struct work *, CUfunction, const unsigned grid[3], const unsigned block[3], unsigned shared,
		     bool cooperative, const struct sm_set *, void **parameters, void **extra);
#define LAUNCH_ATTRIBUTE_COOPERATIVE 2       // CU_LAUNCH_ATTRIBUTE_COOPERATIVE
#define LAUNCH_ATTRIBUTE_PRIORITY 8          // CU_LAUNCH_ATTRIBUTE_PRIORITY
#define LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION 4 // CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION

// ---- arrays (arrays.c); sim_lock held
void arrays_owner_ends(const struct CUctx_st *); // frees its arrays

// ---- MPS (mps.c)
void mps_connect(void); // as the driver is initialised

// ---- devices (devices.c)
CUresult check_device(CUdevice, const void *out); // takes no lock; out must not be NULL

#endif
