// model.h - generated programs, and what CUDA promises of them.
//
// A program is a list of operations, each a call (or two) of one host thread. The list's order is one in which the calls may come; threads
// run their own part of it, and are ordered with each other only where one awaits a post of the other. Of each operation there are two
// moments: its call has returned (host), and what it put on its stream is complete (device). The model knows for each moment which others
// are certainly before it. It accepts an operation only if all conflicting ones are certainly before it: so CUDA promises one result. And
// it accepts it only if no call can wait for ever, whatever the order.
#ifndef GENERATOR_MODEL_H
#define GENERATOR_MODEL_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum {
	OPERATIONS = 96, // of a program
	MOMENTS = 2 * OPERATIONS,
	THREADS = 3,
	DEVICES = 2,
	CREATED = 4,                     // streams of a device that the program creates; every second one is blocking
	STREAMS = 1 + THREADS + CREATED, // of a device: legacy, per-thread, created
	EVENTS = 4,                      // of a device
	BUFFERS = 3,                     // of a device; and as many in pinned memory
	ALL_BUFFERS = (DEVICES + 1) * BUFFERS,
	CELLS = 4,        // of a buffer: parts whose words are all the same
	CELL_WORDS = 264, // two blocks on each of 132 SMs
	WORDS = 24,       // that streams and host functions wait for
	GRAPHS = 3,
	MODULES = 2,   // of a device, that come and go
	LAUNCHES = 24, // operations of a graph
};

enum kind {
	KERNEL,
	KERNEL_COPY,
	MEMSET,
	COPY,
	UPLOAD,
	READ,
	HOST_FUNCTION,
	RECORD,
	WAIT_EVENT,
	EVENT_SYNC,
	EVENT_QUERY,
	EVENT_RENEW,
	STREAM_SYNC,
	STREAM_QUERY,
	CONTEXT_SYNC,
	STREAM_RENEW,
	WAIT_VALUE,
	WRITE_VALUE,
	RELEASE,
	FREE,
	FREE_ASYNC,
	POST,
	AWAIT,
	CPU,
	BEGIN,
	END,
	FORK,
	JOIN,
	LAUNCH,
	BUILD,
	CHANGE,
	UPDATE,
	MODULE_RENEW,
	EPISODE,
	PAUSE,
	HINT,
	KINDS
};

// Forms of kinds
// KERNEL; of PLAIN there is no rewritten code; the blocks of those from MARLIN on wait for each other
enum { PARAMETERS, PACKED, EXTENDED, COOPERATIVE, INCREMENT, PLAIN, MARLIN, LAMPORT, BARRIER, KERNEL_FORMS };
enum { BY_32, BY_8, BY_16, BY_ROWS, AT_ONCE, MEMSET_FORMS }; // MEMSET; AT_ONCE: the call without a stream
enum {
	TYPED,
	UNTYPED,
	ROWS,
	SYNCHRONOUS,
	COPY_FORMS
}; // COPY; UPLOAD, from pageable memory, has the first and the last
enum { EMPTY, CHECKS, UPDATES, WAITS, HOST_FORMS }; // HOST_FUNCTION; CPU has CHECKS and UPDATES
enum { ONCE, POLL };                                // EVENT_QUERY, STREAM_QUERY
enum { BY_STREAM, BY_KERNEL }; // WAIT_VALUE; a kernel that spins, then adds 1 to each word of its cells

struct operation {
	uint8_t kind, form, thread, device, variant; // variant: anything that makes no difference to the result
	uint8_t stream, stream2;                     // of its device
	uint8_t buffer, first, count, source, source_first;
	uint8_t event, word, graph;
	uint8_t nodes;     // BUILD: so many kernels, each of a value one higher. CHANGE: which
	uint8_t module;    // of a kernel: 1 + the one that comes and goes; 0: one that stays. MODULE_RENEW: 1 + which
	uint8_t id, other; // number in the program as generated; that of the post
	uint8_t position;
	bool captured;
	bool reads;     // a query reads the cell if it is answered with yes
	bool must;      // a query must be answered with yes
	uint32_t value; // added, set; a pause: microseconds
	uint32_t us;
	uint32_t expected[CELLS];
};

// Features of programs: bits of struct program.features, by name on the command line.
// clang-format off
#define FEATURES(F) F(threads) F(legacy) F(perthread) F(captures) F(host) F(cpu) F(values) F(frees) F(plain) F(cooperative) \
	F(devices) F(copies) F(queries) F(endings) F(pinned) F(contexts) F(globalcapture) F(hints) \
	F(waiting) F(built) F(episodes) F(spins) F(modules)
enum {
#define NUMBER(name) NUMBER_##name,
	FEATURES(NUMBER)
#define BIT(name) WITH_##name = 1 << NUMBER_##name,
	FEATURES(BIT)
	EVERYTHING = -1,
};
// clang-format on

struct program {
	uint64_t seed;
	uint32_t features;
	int threads, devices, count;
	bool about_spins;                // mostly of kernels that spin
	int8_t owner[DEVICES * STREAMS]; // thread, -1: any
	struct operation operation[OPERATIONS];
	uint32_t initial[ALL_BUFFERS * CELLS], final[ALL_BUFFERS * CELLS];
	bool known[ALL_BUFFERS * CELLS];
};

static inline bool device_buffer(int b) { return b < DEVICES * BUFFERS; }
static inline bool blocking_stream(int s) { return s != 0 && (s < 1 + THREADS || (s - 1 - THREADS) % 2); }

// One in spins_in programs has kernels that spin, if that is a feature: what comes behind one waits for as long as the library is
// patient. Where spins_in is 1, half of the programs are about such kernels.
void generate(struct program *, uint64_t seed, uint32_t features, unsigned spins_in);
// Leaves out operations, and those that make no sense without; false: the rest is no program.
bool reduce(struct program *, const bool *without);
void describe(FILE *, const struct program *);
void describe_operation(FILE *, const struct operation *);

#endif
