// memory.h - what the parts of memory_probe share.
#ifndef MEMORY_H
#define MEMORY_H

#include <pthread.h>
#include <stdatomic.h>

#include "test/gpu/probe/probe.h"

extern struct amounts {
	size_t bulk;       // bytes of a large copy in one direction
	unsigned touchers; // threads that touch host memory before it is pinned
} amounts;

extern CUfunction kernel_work, kernel_chain;
void launch_small(CUstream, CUdeviceptr scratch); // one block of some microseconds

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
void neighbour_serve(void);
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
