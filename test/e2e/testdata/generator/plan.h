// plan.h - the part of a program that is known to be right.
#ifndef GENERATOR_PLAN_H
#define GENERATOR_PLAN_H

#include "model.h"

typedef struct { // of moments
	uint64_t bits[MOMENTS / 64];
} set;

enum { // what may be in conflict: cells, then handles
	PLACE_BUFFER = ALL_BUFFERS * CELLS,
	PLACE_STREAM = PLACE_BUFFER + ALL_BUFFERS,
	PLACE_EVENT = PLACE_STREAM + DEVICES * STREAMS,
	PLACE_GRAPH = PLACE_EVENT + DEVICES * EVENTS,
	PLACE_MODULE = PLACE_GRAPH + GRAPHS,
	PLACES = PLACE_MODULE + DEVICES * MODULES,
	ACCESSES = 8 * LAUNCHES,
};

struct access {
	int16_t place;
	bool write, host; // host: by the call
};

struct accesses {
	int count;
	struct access list[ACCESSES];
};

struct graph {
	int count, device;
	bool built; // node by node, not captured
	uint8_t buffer_generation[ALL_BUFFERS];
	struct operation operation[LAUNCHES];
};

struct word {
	int waiter, writer; // positions, -1: none yet
};

struct plan {
	int threads, devices, count;
	uint32_t features;
	int8_t owner[DEVICES * STREAMS];
	struct operation operation[OPERATIONS];
	int16_t position[256];             // by id
	set before[MOMENTS], may[MOMENTS]; // what is certainly, what may be before it
	set taken[OPERATIONS];             // of waits for events: what they rely on
	int last[THREADS];
	int16_t writer[PLACES]; // last
	set readers[PLACES];    // since then
	uint32_t value[ALL_BUFFERS * CELLS];
	bool known[ALL_BUFFERS * CELLS];
	uint8_t generation[DEVICES * STREAMS], generation_of[OPERATIONS];
	uint8_t event_generation[DEVICES * EVENTS], event_generation_of[OPERATIONS];
	uint8_t buffer_generation[ALL_BUFFERS];
	uint8_t graph_generation[GRAPHS], graph_generation_of[OPERATIONS];
	int8_t capture_of[OPERATIONS], stream_captured[DEVICES * STREAMS];
	bool joined[DEVICES * STREAMS];
	int captures, capturing[THREADS], capture_mode[THREADS], capture_stream[THREADS], captured_operations[THREADS];
	uint8_t capture_generations[THREADS][ALL_BUFFERS];
	struct graph graph[GRAPHS];
	struct word word[WORDS];
	set pending, host_functions; // waits that nobody has ended yet; host functions
	int open[THREADS], waiting_functions;
	struct plan *scratch;
};

enum verdict {
	ACCEPTED,
	SENSELESS, // not here
	RACES,     // with the moments missing, which are not certainly before it
};

void plan_begin(struct plan *, const struct program *);
enum verdict plan_add(struct plan *, struct operation *, set *missing);
bool plan_whole(const struct plan *);
int plan_first(const set *);
bool plan_knows(const struct plan *, int thread, int moment); // the thread's calls from now on are behind it
bool may_wait(const struct operation *);
bool synchronous(const struct operation *);

#endif
