// spatial.h - what the parts of spatial_probe share. Latency-critical (LC) work is done by the process of a section, best-effort (BE)
// work by a thread of the same process, or under an MPS server by a second one.
#ifndef SPATIAL_PROBE_H
#define SPATIAL_PROBE_H

#include <stdatomic.h>

#include "kernels/spatial.h"
#include "test/gpu/probe/probe.h"

// work.c: kernels, launches, and how long they take
enum kernel {
	SPIN,
	FMA,
	FMA_GATED,
	STREAM,
	STREAM_SLEEPS,
	SHARED,
	REGISTERS,
	TENSOR,
	WAITS,
	CLUSTER,
	UNGATED,
	GATE_EACH,
	GATE_ONE,
	KERNELS
};
extern CUfunction kernel[KERNELS];
extern struct gpu {
	int sms, shared_per_sm, shared_per_block, registers_per_sm, threads_per_sm;
	int low, high; // priorities of streams
} gpu;
void work_begin(void);

struct work { // a launch
	enum kernel kernel;
	unsigned threads, shared; // of a block; bytes of dynamic shared memory
	unsigned grid, cluster;   // cluster: blocks of one, 0: none
	CUdeviceptr data;
	size_t bytes;
	uint64_t iterations, first, blocks; // see kernels/spatial.cu
	CUdeviceptr records;
};
struct lane { // a stream, the board of its launches, and the name of the last one
	CUstream stream;
	CUdeviceptr board;
	struct spatial_said *said;
	uint64_t last;
};
void lane_make(struct lane *, CUstream);
CUresult lane_try(struct lane *, const struct work *);
void lane_launch(struct lane *, const struct work *);
bool lane_has_begun(const struct lane *, uint64_t name);
bool lane_has_ended(const struct lane *, uint64_t name);
void lane_wait(struct lane *, uint64_t name); // ends the process where the stream has an error
void lane_gate(struct lane *, uint32_t width);
void lane_sleep(struct lane *, double us);
void spin_us(double);                                 // without giving the processor away
unsigned resident(const struct work *);               // blocks on an SM
unsigned padding(const struct work *, unsigned most); // bytes of shared memory with which no more fit there
void use_shared(const struct work *);                 // allows it so much
CUdeviceptr zeroed(size_t bytes);
// Iterations with which `grid` blocks take us, launched again and again, or in_one launch of many times as many.
uint64_t iterations_for(struct work, double us, bool in_one);

// Where and when blocks ran.
CUdeviceptr records_make(unsigned count);
struct spatial_record *records_read(CUdeviceptr, unsigned count); // of the heap
unsigned sms_of(const struct spatial_record *, unsigned count);
unsigned most_at_once(const struct spatial_record *, unsigned count); // blocks on one SM

// green.c
const char *green_of(unsigned sms, struct green *); // of low priority, made once for each number of SMs; NULL, or why not

// lc.c: requests
enum { LC_KINDS = 8 };
extern const char *const lc_name[LC_KINDS];
void lc_begin(void);
const struct work *lc_work(int kind); // NULL: a graph
void lc_request(int kind, bool urgent);
bool lc_is_long(int kind);

// be.c: what goes on beside them
enum { BE_KINDS = 7 };
extern const char *const be_name[BE_KINDS];
enum how { FREE, CAP, PERSISTENT, WINDOW, GREEN, SLEEP };
struct be_plan {
	int kind;
	enum how how;
	double width; // CAP: a part of the resident blocks, 0: one; PERSISTENT, GREEN: SMs; WINDOW: waves; SLEEP: us
	double us;    // of a block
};
void be_prepare(void);                        // in the process that does it
const struct work *be_work(int kind);         // blocks of 10 us
void be_use(char *const settings[]);          // under MPS: a second process that has these, in place of the one before
void be_leave(void);                          // it ends
const char *be_begin(const struct be_plan *); // NULL: it runs, else why not
double be_blocks(double *when_us);            // that have ended
void be_end(void);
const char *be_sees(void); // SMs of the device, as the other process is told
void be_serve(void);

// The sections.
void section_machine(void);
void section_shapes(void);
void section_placement(void);
void section_green(void);
void section_costs(void);
void section_gate(void);
void section_switch(void);
void section_scaling(void);
void section_beside(void);
void section_cap(void);
void section_width(void);
void section_persistent(void);
void section_windows(void);
void section_throttle(void);
void section_rivals(void);
void section_clusters(void);

#endif
