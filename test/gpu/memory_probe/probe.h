// probe.h - what the parts of memory_probe share. Each section runs in a process of its own, so that one that hangs, or spoils
// its context, costs only itself. It tells its figures and facts to the process that started it, as lines (main.c).
#ifndef MEMORY_PROBE_H
#define MEMORY_PROBE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>

#include "preempt/driver/cuda.h"

#define MIB (1ull << 20)
#define GIB (1ull << 30)

typedef unsigned long long mem_handle; // CUmemGenericAllocationHandle
typedef struct pool *mem_pool;         // CUmemoryPool

struct location { int type, id; };
struct properties { // CUmemAllocationProp
	int type, handle_types;
	struct location location;
	void *security;
	unsigned char compression, rdma;
	unsigned short usage;
	unsigned char reserved[4];
};
_Static_assert(sizeof(struct properties) == 32, "CUmemAllocationProp");
struct access { // CUmemAccessDesc
	struct location location;
	int flags;
};

enum {                      // of cuda.h
	PINNED_MEMORY = 1,  // CUmemAllocationType
	ON_DEVICE = 1,      // CUmemLocationType
	BY_DESCRIPTOR = 1,  // CUmemAllocationHandleType
	READ_AND_WRITE = 3, // CUmemAccess_flags
	DMA_BUF = 1,        // CUmemRangeHandleType
	CAPTURE_GLOBAL = 0, // CUstreamCaptureMode
};

// The driver's functions, by the symbols of their newest ABI. One that it lacks is NULL.
// clang-format off
#define DRIVER(X) \
	X(cuInit, cuInit, (unsigned)) \
	X(cuDriverGetVersion, cuDriverGetVersion, (int *)) \
	X(cuGetErrorName, cuGetErrorName, (CUresult, const char **)) \
	X(cuDeviceGet, cuDeviceGet, (CUdevice *, int)) \
	X(cuDeviceGetName, cuDeviceGetName, (char *, int, CUdevice)) \
	X(cuDeviceGetPCIBusId, cuDeviceGetPCIBusId, (char *, int, CUdevice)) \
	X(cuDeviceGetAttribute, cuDeviceGetAttribute, (int *, int, CUdevice)) \
	X(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, (mem_pool *, CUdevice)) \
	X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice)) \
	X(cuCtxSetCurrent, cuCtxSetCurrent, (CUcontext)) \
	X(cuCtxSynchronize, cuCtxSynchronize, (void)) \
	X(cuModuleLoadData, cuModuleLoadData, (CUmodule *, const void *)) \
	X(cuModuleGetFunction, cuModuleGetFunction, (CUfunction *, CUmodule, const char *)) \
	X(cuLaunchKernel, cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **)) \
	X(cuStreamCreate, cuStreamCreate, (CUstream *, unsigned)) \
	X(cuStreamSynchronize, cuStreamSynchronize, (CUstream)) \
	X(cuStreamQuery, cuStreamQuery, (CUstream)) \
	X(cuStreamBeginCapture, cuStreamBeginCapture_v2, (CUstream, int)) \
	X(cuStreamEndCapture, cuStreamEndCapture, (CUstream, CUgraph *)) \
	X(cuGraphInstantiate, cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long)) \
	X(cuGraphLaunch, cuGraphLaunch, (CUgraphExec, CUstream)) \
	X(cuEventCreate, cuEventCreate, (CUevent *, unsigned)) \
	X(cuEventRecord, cuEventRecord, (CUevent, CUstream)) \
	X(cuEventSynchronize, cuEventSynchronize, (CUevent)) \
	X(cuMemGetInfo, cuMemGetInfo_v2, (size_t *, size_t *)) \
	X(cuMemAlloc, cuMemAlloc_v2, (CUdeviceptr *, size_t)) \
	X(cuMemAllocPitch, cuMemAllocPitch_v2, (CUdeviceptr *, size_t *, size_t, size_t, unsigned)) \
	X(cuMemAllocAsync, cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream)) \
	X(cuMemFreeAsync, cuMemFreeAsync, (CUdeviceptr, CUstream)) \
	X(cuMemFree, cuMemFree_v2, (CUdeviceptr)) \
	X(cuMemHostAlloc, cuMemHostAlloc, (void **, size_t, unsigned)) \
	X(cuMemFreeHost, cuMemFreeHost, (void *)) \
	X(cuMemHostRegister, cuMemHostRegister_v2, (void *, size_t, unsigned)) \
	X(cuMemHostUnregister, cuMemHostUnregister, (void *)) \
	X(cuMemsetD8Async, cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream)) \
	X(cuMemcpyHtoD, cuMemcpyHtoD_v2, (CUdeviceptr, const void *, size_t)) \
	X(cuMemcpyDtoH, cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t)) \
	X(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream)) \
	X(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream)) \
	X(cuMemAddressReserve, cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long)) \
	X(cuMemAddressFree, cuMemAddressFree, (CUdeviceptr, size_t)) \
	X(cuMemCreate, cuMemCreate, (mem_handle *, size_t, const struct properties *, unsigned long long)) \
	X(cuMemRelease, cuMemRelease, (mem_handle)) \
	X(cuMemMap, cuMemMap, (CUdeviceptr, size_t, size_t, mem_handle, unsigned long long)) \
	X(cuMemUnmap, cuMemUnmap, (CUdeviceptr, size_t)) \
	X(cuMemSetAccess, cuMemSetAccess, (CUdeviceptr, size_t, const struct access *, size_t)) \
	X(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity, (size_t *, const struct properties *, int)) \
	X(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, (mem_handle *, void *)) \
	X(cuMemGetAddressRange, cuMemGetAddressRange_v2, (CUdeviceptr *, size_t *, CUdeviceptr)) \
	X(cuMemGetHandleForAddressRange, cuMemGetHandleForAddressRange, (void *, CUdeviceptr, size_t, int, unsigned long long)) \
	X(cuIpcGetMemHandle, cuIpcGetMemHandle, (void *, CUdeviceptr)) \
	X(cuPointerGetAttribute, cuPointerGetAttribute, (void *, int, CUdeviceptr)) \
	X(cuPointerGetAttributes, cuPointerGetAttributes, (unsigned, int *, void **, CUdeviceptr)) \
	X(cuPointerSetAttribute, cuPointerSetAttribute, (const void *, int, CUdeviceptr))
// clang-format on

#define FIELD(field, symbol, parameters) CUresult(*field) parameters;
extern struct driver { DRIVER(FIELD) } cu;

// What a section may use, and how long it measures.
extern struct plan {
	bool quick;        // to see that everything is measured: small sizes, few samples
	double seconds;    // of one figure that is measured for a time
	int samples;       // of one that is measured so many times
	size_t bulk;       // bytes of a large copy in one direction
	unsigned touchers; // threads that touch host memory before it is pinned
} plan;

extern CUdevice device;
extern CUcontext context;
extern CUfunction kernel_work, kernel_chain;

// driver.c
void driver_begin(void); // CUDA, the context, the kernels; ends the process where that fails
const char *error_name(CUresult);
CUresult missing(void *function, CUresult); // see ASK
double now_us(void);
void pause_us(double);
size_t device_free(void); // bytes
void launch_small(CUstream, CUdeviceptr scratch);
__attribute__((noreturn, format(printf, 1, 2))) void give_up(const char *format, ...);

// A call that has to succeed.
#define CHECK(call) \
	do { \
		CUresult result_ = cu.call; \
		if (result_ != CUDA_SUCCESS) \
			give_up("%s:%d: %s: %s", __FILE__, __LINE__, #call, error_name(result_)); \
	} while (0)

// What a call of a function that the driver may lack returns.
#define NO_SUCH_FUNCTION (-1)
#define ASK(name, ...) (cu.name ? cu.name(__VA_ARGS__) : NO_SUCH_FUNCTION)

// report.c: to the process that collects
struct samples {
	double *value;
	size_t count, room;
};
struct summary {
	size_t count;
	double p50, p99, max;
};
void add(struct samples *, double);
struct summary sum_up(struct samples *); // and empties them
__attribute__((format(printf, 3, 4))) void figure(struct summary, const char *unit, const char *name, ...);
__attribute__((format(printf, 2, 3))) void fact(const char *value, const char *name, ...);
__attribute__((format(printf, 1, 2))) const char *text(const char *format, ...); // valid until 8 more are made

// Microseconds that a call took, which has to succeed, among samples.
#define TIMED(samples, call) \
	do { \
		double began_ = now_us(); \
		CHECK(call); \
		add(samples, now_us() - began_); \
	} while (0)

// mapped.c: physical memory at addresses of our own
struct mapped {
	CUdeviceptr address;
	size_t bytes, handle_bytes, count;
	mem_handle *handle;
};
extern const struct properties on_device;
struct access own_access(void);
void mapped_make(struct mapped *, size_t handle_bytes, size_t count); // reserved, created, mapped, accessible
void mapped_back(struct mapped *);                                    // new memory at the same addresses
void mapped_away(struct mapped *);                                    // unmapped, released; addresses stay
void mapped_free(struct mapped *);

// host.c: host memory
int node_of_device(void);       // -1: unknown
int nodes(int *list, int most); // NUMA nodes that have memory
size_t host_available(void);    // bytes that may be used: half of what the machine and the cgroup have left
struct area {
	char *address;
	size_t bytes, piece;
};
void area_make(struct area *, size_t bytes, int node, bool huge); // not touched; node < 0: anywhere
double area_touch(struct area *, unsigned threads);               // us
void area_pin(struct area *, size_t piece, struct samples *us_of_each);
void area_unpin(struct area *, struct samples *us_of_each);
void area_free(struct area *);

// beat.c: something small that is done again and again, and timed
enum { SERIES = 4 };
struct beat {
	const char *kind;
	struct samples series[SERIES];
	pthread_t thread;
	atomic_bool stop, began;
	CUstream stream;
	CUdeviceptr memory;
	char *pinned;
};
// Kinds: "launch", "memset", "alloc", "copies". Comes back when the first was done.
void beat_start(struct beat *, const char *kind);
void beat_stop(struct beat *);
const char *series_name(const char *kind, int series); // NULL: no more

// neighbour.c: a second process that has a beat
void neighbour_start(void);
void neighbour_begin(const char *kind);
void neighbour_end(const char *beside, ...) __attribute__((format(printf, 1, 2))); // tells the figures
int neighbour_main(void);
// The figures of a beat under the name WHO, SERIES, beside ...
void beat_figures(const char *who, const char *kind, const struct summary *, const char *beside);

// The sections.
void section_machine(void);
void section_costs(void);
void section_handles(void);
void section_scrubbing(void);
void section_copies(void);
void section_beside_copies(void);
void section_neighbour(void);
void section_pinning(void);
void section_threads(void);
void section_attributes(void);
void section_rules(void);
void section_graphs(void);

#endif
