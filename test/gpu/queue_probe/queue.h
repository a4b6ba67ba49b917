// queue.h - the queue under test: operations that a program appends, and one submitter that hands them to the driver, a few at a time.
#ifndef QUEUE_PROBE_H
#define QUEUE_PROBE_H

#include "test/gpu/probe/probe.h"

enum { QUEUE_STREAMS = 64, QUEUE_ROOM = 4096, QUEUE_ENTRY_BYTES = 256 };

// How operations get to the driver.
enum way {
	DIRECT, // The program calls the driver.
	SPINS,  // By the queue. Its watcher never sleeps.
	NAPS,   // The watcher sleeps for nap_us between two looks. With no work left it sleeps until it is woken.
};

// How the host learns how far a stream is.
enum word {
	BY_MARK, // The stream writes a word behind operations.
	BY_KERNEL, // A kernel's first block writes that it has begun. Marks stand behind graphs, and the last kernels of streams.
};

struct operation {
	CUfunction function; // NULL: the graph
	CUfunction telling;  // the same, but it writes that it has begun; NULL: there is none
	CUgraphExec graph;
	unsigned blocks;
	CUdeviceptr out;
	unsigned long long iterations;
	unsigned stream; // index
};

void queue_open(unsigned streams); // up to QUEUE_STREAMS; once
// No work may be left. in_flight: operations that the driver has at once, at most; mark_every: so many of a stream get one mark.
void queue_set(enum way, enum word, unsigned in_flight, unsigned mark_every, double nap_us);
void queue_append(const struct operation *);
void queue_drain(void);             // until all operations are complete; gives up where one is lost
double queue_watcher_seconds(void); // of a processor, ever

#endif
