// probe.h - the frame of memory_probe, which asks the driver and the machine, and not the library. A program is a list of sections. Each
// runs in a process of its own, so that one that hangs, or spoils its context, costs only itself. It tells its figures, facts and rows to the
// process that started it, as lines (report.c).
#ifndef PROBE_H
#define PROBE_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

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

enum {                      // Values of cuda.h.
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
	X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice)) \
	X(cuCtxSetCurrent, cuCtxSetCurrent, (CUcontext)) \
	X(cuCtxSynchronize, cuCtxSynchronize, (void)) \
	X(cuModuleLoadData, cuModuleLoadData, (CUmodule *, const void *)) \
	X(cuModuleGetFunction, cuModuleGetFunction, (CUfunction *, CUmodule, const char *)) \
	X(cuLaunchKernel, cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **)) \
	X(cuStreamCreate, cuStreamCreate, (CUstream *, unsigned)) \
	X(cuStreamCreateWithPriority, cuStreamCreateWithPriority, (CUstream *, unsigned, int)) \
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

// How thoroughly is measured.
struct plan {
	bool quick;     // A run that shows only that everything is measured: small sizes, few samples.
	double seconds; // The time of a figure that is measured for a time.
	int samples;    // The number of samples of other figures.
};
extern struct plan plan;
extern bool under_mps;  // The program uses the GPU through a server of our own.
extern double slowness; // Bounds on time are so many times as long.

// The parts of a program.
struct section {
	const char *name;
	void (*run)(void);
	double seconds; // The seconds that it may take.
	const char *about;
};
extern const struct probe {
	const char *name, *mode; // mode: the name of the mode without an MPS server.
	const struct section *section;
	int sections;
	double seconds; // The seconds that all sections may take, unless --seconds says otherwise.
	struct plan full, quick;
	void (*prepare)(void); // Called once the plan is known.
	void (*settle)(const char *section); // Called in a section's process before it uses the GPU. Sets its environment. May be NULL.
	void (*begin)(void);                 // Called in each process that uses the GPU, once the context is current.
	void (*neighbour)(void); // The work of the second process, after begin.
} probe;

extern CUdevice device;
extern CUcontext context;

// driver.c
void driver_begin(void); // Initialises CUDA and the context. Ends the process where that fails.
const char *error_name(CUresult);
double now_us(void);
void pause_us(double);
size_t device_free(void);         // In bytes.
CUstream stream_of(int priority); // A stream that waits for no other.
CUfunction function_of(const void *image, const char *name);
__attribute__((noreturn, format(printf, 1, 2))) void give_up(const char *format, ...);

// A call that has to succeed.
#define CHECK(call) \
	do { \
		CUresult result_ = cu.call; \
		if (result_ != CUDA_SUCCESS) \
			give_up("%s:%d: %s: %s", __FILE__, __LINE__, #call, error_name(result_)); \
	} while (0)

// The result of a call of a function that the driver lacks.
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
struct summary sum_up(struct samples *); // Empties the samples, too.
__attribute__((format(printf, 3, 4))) void figure(struct summary, const char *unit, const char *name, ...);
__attribute__((format(printf, 2, 3))) void fact(const char *value, const char *name, ...);
__attribute__((format(printf, 2, 3))) void row(const char *table, const char *format, ...); // NAME=VALUE, with tabs between.
__attribute__((format(printf, 1, 2))) const char *text(const char *format, ...); // Valid until 8 more are made.

// Microseconds that a call took, which has to succeed, among samples.
#define TIMED(samples, call) \
	do { \
		double began_ = now_us(); \
		CHECK(call); \
		add(samples, now_us() - began_); \
	} while (0)

// collect.c: in the process that collects
void take_line(char *line);
struct ending { const char *section, *text; };
void write_json(FILE *, const char *mode, double seconds, const struct ending *, int endings);
void write_table(const struct ending *, int endings);

// mps.c: a server of our own
void start_mps(void);
void stop_mps(void);

// second.c: a second process, which takes orders and answers them, a line each
struct second {
	pid_t pid;
	FILE *orders, *answers;
};
void second_start(struct second *, char *const settings[]); // settings: added to our environment in the second process, or NULL.
__attribute__((format(printf, 2, 3))) void second_order(struct second *, const char *format, ...);
const char *second_answer(struct second *); // The answer without its end of line. Valid until the next answer.

#endif
