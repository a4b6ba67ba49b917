// blocks.c - a CUDA program whose results show every block that was lost, run twice or run out of order: rounds of random work
// on several streams, each compared with the same done by the CPU. Runs until its standard input ends.
//	blocks IMAGE [SEED]    IMAGE: ../../simcuda/kernels/sim.cubin or sim.fatbin
// Prints "rounds N" and exits 0, or says on standard error what differs and exits 1.
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FUNCTIONS(F) \
	F(cuMemcpyHtoDAsync_v2, (ptr, const void *, size_t, handle)) \
	F(cuMemcpyDtoDAsync_v2, (ptr, ptr, size_t, handle)) \
	F(cuLibraryLoadFromFile, (handle *, const char *, int *, void **, unsigned, int *, void **, unsigned)) \
	F(cuLibraryGetKernel, (handle *, handle, const char *))

#include "driver.h"

enum {
	STREAMS = 4,   // the last one is the legacy stream, the one before it blocks with that
	BLOCKS = 6000, // a few waves of 2112 on an H200
	THREADS = 64,
	PER_BLOCK = 2,
	WORDS = BLOCKS * PER_BLOCK,
	ADD = 5, // of launches in graphs
};

// Each buffer belongs to the stream that used it last; events hand it on. The CPU's expectation is of the time after all submitted work.
static struct buffer {
	ptr at;
	uint32_t expected[WORDS];
	handle graph; // adds 1, multiplies, adds 1
} buffer[STREAMS];
static handle stream[STREAMS], used[STREAMS]; // event: the last use of the buffer of that index
static int owner[STREAMS];                    // of a stream: its buffer
static handle increment[2], chain[2];         // CUfunction, CUkernel
static uint32_t *pinned[STREAMS];
static unsigned called[STREAMS], calls[STREAMS];

static unsigned one_of(unsigned n) { return (unsigned)(random() % n); }

static void launch(int s, struct buffer *b, bool multiply, unsigned add, unsigned us, int how)
{
	int per_block = PER_BLOCK;
	// In a grid of two dimensions, which a block's number has to follow.
	unsigned columns = how & 4 ? BLOCKS / 20 : BLOCKS, rows = how & 4 ? 20 : 1;
	handle f = (multiply ? chain : increment)[how & 1];
	void *of_increment[] = {&b->at, &per_block, &us}, *of_chain[] = {&b->at, &per_block, &add, &us};
	struct {
		ptr at;
		int n;
		unsigned us;
	} increment_buffer = {b->at, per_block, us};
	struct {
		ptr at;
		int n;
		unsigned add, us;
	} chain_buffer = {b->at, per_block, add, us};
	size_t bytes = multiply ? 20 : 16;
	void *extra[] = {(void *)1, multiply ? (void *)&chain_buffer : &increment_buffer, (void *)2, &bytes, NULL};
	bool packed = how & 2;
	OK(cuLaunchKernel(f, columns, rows, 1, THREADS, 1, 1, 0, stream[s],
			  packed   ? NULL :
			  multiply ? of_chain :
				     of_increment,
			  packed ? extra : NULL));
}

static void expect(struct buffer *b, bool multiply, unsigned add)
{
	for (int i = 0; i < WORDS; i++)
		b->expected[i] = multiply ? b->expected[i] * 3 + add : b->expected[i] + 1;
}

static void capture(struct buffer *b)
{
	handle graph;
	OK(cuStreamBeginCapture_v2(stream[0], 2)); // relaxed
	launch(0, b, false, 0, 200, 0);
	launch(0, b, true, ADD, 200, 1);
	launch(0, b, false, 0, 200, 2);
	OK(cuStreamEndCapture(stream[0], &graph));
	OK(cuGraphInstantiateWithFlags(&b->graph, graph, 0));
}

static void start(const char *image)
{
	handle context, module, library;
	find_driver();
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	OK(cuModuleLoad(&module, image));
	OK(cuLibraryLoadFromFile(&library, image, NULL, NULL, 0, NULL, NULL, 0));
	OK(cuModuleGetFunction(&increment[0], module, "sim_increment"));
	OK(cuModuleGetFunction(&chain[0], module, "sim_chain"));
	OK(cuLibraryGetKernel(&increment[1], library, "sim_increment"));
	OK(cuLibraryGetKernel(&chain[1], library, "sim_chain"));
	for (int s = 0; s < STREAMS; s++) {
		if (s < STREAMS - 1)
			OK(cuStreamCreate(&stream[s], s < STREAMS - 2));
		OK(cuEventCreate(&used[s], 2));
		OK(cuMemAlloc_v2(&buffer[s].at, WORDS * 4));
		OK(cuMemcpyHtoD_v2(buffer[s].at, buffer[s].expected, WORDS * 4));
		OK(cuMemHostAlloc((void **)&pinned[s], WORDS * 4, 0));
		owner[s] = s;
		capture(&buffer[s]);
	}
}

static void call(void *count) { ++*(volatile unsigned *)count; }

// Streams s and t exchange their buffers.
static void exchange(int s, int t)
{
	int a = owner[s], b = owner[t];
	OK(cuEventRecord(used[a], stream[s]));
	OK(cuEventRecord(used[b], stream[t]));
	OK(cuStreamWaitEvent(stream[s], used[b], 0));
	OK(cuStreamWaitEvent(stream[t], used[a], 0));
	owner[s] = b;
	owner[t] = a;
}

static void differs(const char *what, int s, int i, uint32_t is)
{
	fprintf(stderr, "blocks: %s: stream %d: word %d, of block %d, is %u, not %u\n", what, s, i, i / PER_BLOCK, is,
		buffer[owner[s]].expected[i]);
	_exit(1);
}

static void compare(const char *what, int s, const uint32_t *is, int from, int words)
{
	for (int i = from; i < from + words; i++)
		if (is[i] != buffer[owner[s]].expected[i])
			differs(what, s, i, is[i]);
}

static void answered(int result)
{                                           // cuStreamQuery, cuEventQuery
	if (result != 0 && result != 600) { // CUDA_ERROR_NOT_READY
		fprintf(stderr, "blocks: a question was answered with %d\n", result);
		_exit(1);
	}
}

static void operation(void)
{
	int s = (int)one_of(STREAMS);
	struct buffer *b = &buffer[owner[s]];
	unsigned part = WORDS / 4, value = one_of(1000);
	ptr memory;
	switch (one_of(20)) {
	default:
		launch(s, b, false, 0, 100 + one_of(1500), (int)one_of(8));
		expect(b, false, 0);
		break;
	case 7:
	case 8:
	case 9:
	case 10:
		launch(s, b, true, value, 100 + one_of(1500), (int)one_of(8));
		expect(b, true, value);
		break;
	case 11:
	case 12: exchange(s, (s + 1) % STREAMS); break;
	case 13:
		OK(cuMemsetD32Async(b->at + 4 * part, value, part, stream[s]));
		for (unsigned i = part; i < 2 * part; i++)
			b->expected[i] = value;
		break;
	case 14:
		OK(cuMemcpyDtoDAsync_v2(b->at + 8 * part, b->at, 4 * part, stream[s]));
		memcpy(b->expected + 2 * part, b->expected, 4 * part);
		break;
	case 15:
		OK(cuGraphLaunch(b->graph, stream[s]));
		expect(b, false, 0);
		expect(b, true, ADD);
		expect(b, false, 0);
		break;
	case 16: // to pinned memory, and from there into another part
		OK(cuMemcpyDtoHAsync_v2(pinned[s], b->at, 4 * part, stream[s]));
		OK(cuMemcpyHtoDAsync_v2(b->at + 12 * part, pinned[s], 4 * part, stream[s]));
		memcpy(b->expected + 3 * part, b->expected, 4 * part);
		break;
	case 17:
		OK(cuLaunchHostFunc(stream[s], call, &called[s]));
		calls[s]++;
		break;
	case 18: // what a wait for a stream or an event promises
		if (one_of(2)) {
			OK(cuStreamSynchronize(stream[s]));
		} else {
			OK(cuEventRecord(used[owner[s]], stream[s]));
			answered(cuEventQuery(used[owner[s]]));
			OK(cuEventSynchronize(used[owner[s]]));
			OK(cuEventQuery(used[owner[s]]));
		}
		OK(cuMemcpyDtoHAsync_v2(pinned[s], b->at, WORDS * 4, stream[s]));
		answered(cuStreamQuery(stream[s]));
		OK(cuStreamSynchronize(stream[s]));
		OK(cuStreamQuery(stream[s]));
		compare("after a wait", s, pinned[s], 0, WORDS);
		break;
	case 19:
		OK(cuMemAlloc_v2(&memory, 4096));
		OK(cuMemFree_v2(memory));
		break;
	}
}

int main(int argc, char **argv)
{
	static uint32_t is[WORDS];
	struct pollfd end = {.fd = 0, .events = POLLIN};
	unsigned rounds = 0;
	if (argc < 2) {
		fprintf(stderr, "usage: blocks IMAGE [SEED]\n");
		return 2;
	}
	srandom(argc > 2 ? (unsigned)atoi(argv[2]) : 1);
	start(argv[1]);
	do {
		for (int i = 0; i < 40; i++)
			operation();
		if (one_of(2))
			OK(cuCtxSynchronize());
		else
			for (int s = 0; s < STREAMS; s++)
				OK(cuStreamSynchronize(stream[s]));
		for (int s = 0; s < STREAMS; s++) {
			OK(cuMemcpyDtoH_v2(is, buffer[owner[s]].at, sizeof is));
			compare("after a round", s, is, 0, WORDS);
			if (called[s] != calls[s]) {
				fprintf(stderr, "blocks: stream %d: %u host functions of %u ran\n", s, called[s], calls[s]);
				return 1;
			}
		}
		rounds++;
	} while (poll(&end, 1, 0) == 0);
	printf("rounds %u\n", rounds);
	return 0;
}
