// A best-effort program whose every block leaves a trace that a second run of it, or another order, would spoil. Says "ready". At each line
// of its input, "<what> <rounds>", it does a piece of work. It answers with a hash of the result, or says which of its checks failed.
// Device memory of the simulated driver can be read by the CPU at any time.
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FUNCTIONS(F) \
	F(cuEventDestroy_v2, (handle)) \
	F(cuMemcpyHtoDAsync_v2, (ptr, const void *, size_t, handle)) \
	F(cuFuncSetAttribute, (handle, int, int)) \
	F(cuLaunchCooperativeKernel, (LAUNCH_PARAMETERS)) \
	F(cuGraphDestroy, (handle)) \
	F(cuGraphCreate, (handle *, unsigned)) \
	F(cuGraphAddKernelNode_v2, (handle *, handle, const handle *, size_t, const void *)) \
	F(cuGraphExecKernelNodeSetParams_v2, (handle, handle, const void *)) \
	F(simcuda_most_urgent_kernel, (void))

#include "driver.h"

enum { BLOCKS = 1320, PER_BLOCK = 2, WORDS = BLOCKS * PER_BLOCK, STREAMS = 4, NON_BLOCKING = 1, NOT_READY = 600 };
static handle context, module, chain_kernel, increment_kernel;
static unsigned kernel_us = 400;

static void chain(handle stream, ptr data, uint32_t add)
{
	int n = PER_BLOCK;
	void *parameters[] = {&data, &n, &add, &kernel_us};
	OK(cuLaunchKernel(chain_kernel, BLOCKS, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL));
}

// The same by the other way to hand over parameters, in a grid of other shape.
static void chain_packed(handle stream, ptr data, uint32_t add)
{
	struct {
		ptr data;
		int n;
		uint32_t add, us;
	} packed = {data, PER_BLOCK, add, kernel_us};
	size_t bytes = 20;
	void *extra[] = {(void *)1, &packed, (void *)2, &bytes, NULL};
	OK(cuLaunchKernel(chain_kernel, BLOCKS / 12, 4, 3, 1024, 1, 1, 0, stream, NULL, extra));
}

static uint32_t next(uint32_t value, uint32_t add) { return value * 3 + add; }

static ptr memory(void)
{
	ptr p;
	OK(cuMemAlloc_v2(&p, WORDS * 4));
	OK(cuMemsetD32Async(p, 1, WORDS, NULL));
	OK(cuStreamSynchronize(NULL));
	return p;
}

static bool all_are(ptr data, uint32_t value)
{
	volatile uint32_t *word = (volatile uint32_t *)(uintptr_t)data;
	for (int i = 0; i < WORDS; i++)
		if (word[i] != value)
			return false;
	return true;
}

static uint32_t hash(ptr data)
{
	static uint32_t words[WORDS];
	uint32_t h = 2166136261u;
	OK(cuMemcpyDtoH_v2(words, data, sizeof words));
	for (int i = 0; i < WORDS; i++)
		h = (h ^ words[i]) * 16777619u;
	return h;
}

// Between chains in blocks: cooperative ones, none of whose blocks may run without the others, and grids of so many blocks
// that these are stopped in windows.
static uint32_t together(unsigned rounds, handle stream)
{
	enum { RESIDENT = 264, MANY = 20000 };
	ptr data = memory(), large;
	uint32_t value = 1, large_value = 1;
	OK(cuMemAlloc_v2(&large, MANY * 4));
	OK(cuMemsetD32Async(large, 1, MANY, NULL));
	OK(cuStreamSynchronize(NULL));
	for (unsigned i = 0; i < rounds; i++) {
		for (unsigned k = 0; k < 4; k++) {
			int of_block = WORDS / RESIDENT, one = 1, per_block = PER_BLOCK;
			unsigned add = i + k;
			void *parameters[] = {&data, &of_block, &add, &kernel_us},
			     *many[] = {&large, &one, &add, &kernel_us}, *plain[] = {&data, &per_block, &add, &kernel_us};
			// As libraries do: as much shared memory is allowed as the next launch needs, and no more.
			unsigned shared = k % 2 ? 100000 : 0;
			OK(cuFuncSetAttribute(chain_kernel, 8, (int)shared));
			OK(cuLaunchKernel(chain_kernel, BLOCKS, 1, 1, 1024, 1, 1, shared, stream, plain, NULL));
			OK(cuLaunchCooperativeKernel(chain_kernel, RESIDENT, 1, 1, 1024, 1, 1, 0, stream, parameters));
			value = next(next(value, add), add);
			OK(cuLaunchKernel(chain_kernel, MANY, 1, 1, 64, 1, 1, 0, stream, many, NULL));
			large_value = next(large_value, add);
		}
		OK(cuStreamSynchronize(stream));
		CHECK(all_are(data, value));
		for (int k = 0; k < MANY; k++)
			CHECK(((volatile uint32_t *)(uintptr_t)large)[k] == large_value);
	}
	uint32_t h = hash(data);
	OK(cuMemFree_v2(large));
	OK(cuMemFree_v2(data));
	return h;
}

// Grids of so many blocks that those of one cluster might get different numbers, of a kernel without clusters and with.
static uint32_t vast(handle stream)
{
	enum { REQUIRED_CLUSTER_WIDTH = 11, MANY = 1 << 22 };
	ptr data;
	int none = 0;
	unsigned add = 1, us = 1;
	void *parameters[] = {&data, &none, &add, &us};
	OK(cuMemAlloc_v2(&data, 4)); // not touched
	for (int width = 0; width <= 2; width += 2) {
		OK(cuFuncSetAttribute(chain_kernel, REQUIRED_CLUSTER_WIDTH, width));
		OK(cuLaunchKernel(chain_kernel, MANY, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
	}
	OK(cuFuncSetAttribute(chain_kernel, REQUIRED_CLUSTER_WIDTH, 0));
	OK(cuStreamSynchronize(stream));
	OK(cuMemFree_v2(data));
	return MANY;
}

// One stream, waited for now and then in different ways.
static uint32_t single(unsigned rounds, handle stream)
{
	ptr data = memory();
	uint32_t value = 1;
	handle event;
	OK(cuEventCreate(&event, 2));
	for (unsigned i = 0; i < rounds; i++) {
		for (unsigned k = 0; k < 8; k++) {
			(k % 2 ? chain : chain_packed)(stream, data, i + k);
			value = next(value, i + k);
		}
		switch (i % 4) {
		case 0:
			OK(cuStreamSynchronize(stream));
			CHECK(all_are(data, value));
			break;
		case 1:
			OK(cuEventRecord(event, stream));
			OK(cuEventSynchronize(event));
			CHECK(all_are(data, value));
			break;
		case 2: OK(cuCtxSynchronize()); CHECK(all_are(data, value));
		}
	}
	OK(cuStreamSynchronize(stream));
	CHECK(all_are(data, value));
	uint32_t h = hash(data);
	OK(cuMemFree_v2(data));
	OK(cuEventDestroy_v2(event));
	return h;
}

// Thousands of small launches, further ahead than what may be in flight.
static uint32_t many(unsigned rounds)
{
	handle stream;
	ptr data = memory();
	int n = PER_BLOCK;
	uint32_t add, us = 1, value = 1;
	void *parameters[] = {&data, &n, &add, &us};
	OK(cuStreamCreate(&stream, NON_BLOCKING));
	for (unsigned i = 0; i < rounds * 1000; i++) {
		add = i;
		OK(cuLaunchKernel(chain_kernel, 8, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
		value = next(value, add);
	}
	OK(cuStreamSynchronize(stream));
	for (int i = 0; i < 8 * PER_BLOCK; i++)
		CHECK(((volatile uint32_t *)(uintptr_t)data)[i] == value);
	return hash(data);
}

// One buffer that is handed from stream to stream by events, one by each stream alone.
static uint32_t several(unsigned rounds, unsigned flags)
{
	handle stream[STREAMS], event[STREAMS];
	ptr own[STREAMS], shared = memory();
	uint32_t h = 0;
	for (int s = 0; s < STREAMS; s++) {
		OK(cuStreamCreate(&stream[s], flags));
		OK(cuEventCreate(&event[s], 2));
		own[s] = memory();
	}
	for (unsigned i = 0; i < rounds; i++) {
		int s = (int)(i * 7 + i / 3) % STREAMS, before = i ? (int)((i - 1) * 7 + (i - 1) / 3) % STREAMS : -1;
		chain(stream[s], own[s], i);
		if (before >= 0)
			OK(cuStreamWaitEvent(stream[s], event[before], 0));
		chain(stream[s], shared, i + 1);
		OK(cuEventRecord(event[s], stream[s]));
		chain(stream[(s + 1) % STREAMS], own[(s + 1) % STREAMS], i + 2);
		if (i % 61 == 60)
			OK(cuEventSynchronize(event[s]));
	}
	OK(cuCtxSynchronize());
	h = hash(shared);
	for (int s = 0; s < STREAMS; s++) {
		h = h * 31 + hash(own[s]);
		OK(cuStreamDestroy_v2(stream[s]));
		OK(cuEventDestroy_v2(event[s]));
	}
	return h;
}

// The legacy stream between two that are ordered with it, and have launches or graphs.
static uint32_t legacy(unsigned rounds, bool by_graphs)
{
	enum { ADD = 5 };
	handle a, b, apart, graph, executable;
	ptr data = memory();
	uint32_t value = 1;
	OK(cuStreamCreate(&a, 0));
	OK(cuStreamCreate(&b, 0));
	OK(cuStreamCreate(&apart, NON_BLOCKING));
	OK(cuStreamBeginCapture_v2(apart, 0));
	chain(apart, data, ADD);
	OK(cuStreamEndCapture(apart, &graph));
	OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	for (unsigned i = 0; i < rounds; i++) {
		handle order[] = {a, NULL, b, NULL};
		for (unsigned k = 0; k < 4; k++) {
			bool as_graph = by_graphs && order[k];
			if (as_graph)
				OK(cuGraphLaunch(executable, order[k]));
			else
				chain(order[k], data, i + k);
			value = next(value, as_graph ? ADD : i + k);
		}
		if (i % 16 == 15) {
			OK(cuStreamSynchronize(NULL));
			CHECK(all_are(data, value));
		}
	}
	OK(cuStreamSynchronize(NULL));
	CHECK(all_are(data, value));
	OK(cuGraphExecDestroy(executable));
	OK(cuGraphDestroy(graph));
	OK(cuStreamDestroy_v2(a));
	OK(cuStreamDestroy_v2(b));
	OK(cuStreamDestroy_v2(apart));
	return hash(data);
}

struct seen {
	ptr data;
	uint32_t value;
	bool right;
};

static void look(void *argument)
{
	struct seen *s = argument;
	s->right = all_are(s->data, s->value);
}

// Work that cannot be stopped behind work that can: copies both ways, memsets, host functions.
static uint32_t behind(unsigned rounds)
{
	handle stream;
	ptr data = memory();
	uint32_t value = 1, *host, h = 2166136261u;
	struct seen seen[2];
	OK(cuMemHostAlloc((void **)&host, WORDS * 4, 0));
	OK(cuStreamCreate(&stream, NON_BLOCKING));
	for (unsigned i = 0; i < rounds; i++) {
		chain(stream, data, i);
		chain(stream, data, i + 1);
		value = next(next(value, i), i + 1);
		OK(cuMemcpyDtoHAsync_v2(host, data, WORDS * 4, stream));
		chain(stream, data, i + 2);
		seen[0] = (struct seen){data, value = next(value, i + 2), false};
		OK(cuLaunchHostFunc(stream, look, &seen[0]));
		chain(stream, data, i + 3);
		seen[1] = (struct seen){data, value = next(value, i + 3), false};
		OK(cuLaunchHostFunc(stream, look, &seen[1]));
		if (i % 5 == 4) {
			OK(cuMemsetD32Async(data, i, WORDS, stream));
			chain(stream, data, i);
			value = next(i, i);
		}
		OK(cuStreamSynchronize(stream));
		CHECK(seen[0].right && seen[1].right && all_are(data, value));
		for (int w = 0; w < WORDS; w++)
			h = (h ^ host[w]) * 16777619u;
		if (i % 7 == 6) {
			OK(cuMemcpyHtoDAsync_v2(data, host, WORDS * 4, stream));
			chain(stream, data, 1);
			value = next(host[0], 1);
		}
	}
	OK(cuStreamDestroy_v2(stream));
	return h * 31 + hash(data);
}

struct handshake { _Atomic bool go; };

static void wait_for_program(void *argument)
{
	struct handshake *h = argument;
	while (!h->go)
		usleep(20);
}

// Queued work waits for the program, which goes on launching.
static uint32_t handshakes(unsigned rounds)
{
	handle stream, beside;
	ptr data = memory(), other = memory(), word;
	OK(cuMemAlloc_v2(&word, 4));
	OK(cuMemsetD32Async(word, 0, 1, NULL));
	OK(cuStreamSynchronize(NULL));
	OK(cuStreamCreate(&stream, NON_BLOCKING));
	OK(cuStreamCreate(&beside, NON_BLOCKING));
	for (unsigned i = 0; i < rounds; i++) {
		struct handshake h = {false};
		chain(stream, data, i);
		OK(cuLaunchHostFunc(stream, wait_for_program, &h));
		chain(stream, data, i + 1);
		chain(beside, other, i);
		OK(cuStreamWaitValue32_v2(beside, word, i + 1, 0));
		for (unsigned k = 0; k < 3; k++) {
			chain(stream, data, i + k);
			chain(beside, other, i + k);
		}
		h.go = true;
		*(volatile uint32_t *)(uintptr_t)word = i + 1;
		OK(cuStreamSynchronize(stream));
	}
	OK(cuStreamSynchronize(beside));
	return hash(data) * 31 + hash(other);
}

// Questions are answered with yes only when it is so.
static uint32_t questions(unsigned rounds)
{
	handle stream, event;
	ptr data = memory();
	uint32_t value = 1;
	int result;
	OK(cuStreamCreate(&stream, NON_BLOCKING));
	OK(cuEventCreate(&event, 2));
	for (unsigned i = 0; i < rounds; i++) {
		for (unsigned k = 0; k < 4; k++) {
			chain(stream, data, i + k);
			value = next(value, i + k);
		}
		if (i % 2) {
			OK(cuEventRecord(event, stream));
			while ((result = cuEventQuery(event)) == NOT_READY)
				usleep(20);
		} else {
			while ((result = cuStreamQuery(stream)) == NOT_READY)
				usleep(20);
		}
		OK(result);
		CHECK(all_are(data, value));
	}
	OK(cuStreamDestroy_v2(stream));
	OK(cuEventDestroy_v2(event));
	return hash(data);
}

static struct {
	handle event;
	_Atomic bool stop;
} asker;

static void *ask(void *none)
{
	int result = 0;
	OK(cuCtxSetCurrent(context));
	while (!asker.stop && (!result || result == NOT_READY))
		result = cuEventQuery(asker.event);
	CHECK(!result || result == NOT_READY);
	return none;
}

// A thread asks about an event all the time, which is recorded behind work and then where there is none.
static uint32_t crossed(unsigned rounds)
{
	handle stream, idle;
	ptr data = memory();
	uint32_t value = 1;
	pthread_t thread;
	OK(cuStreamCreate(&stream, NON_BLOCKING));
	OK(cuStreamCreate(&idle, NON_BLOCKING));
	OK(cuEventCreate(&asker.event, 2));
	asker.stop = false;
	CHECK(!pthread_create(&thread, NULL, ask, NULL));
	for (unsigned i = 0; i < rounds; i++) {
		for (unsigned k = 0; k < 4; k++) {
			chain(stream, data, i + k);
			value = next(value, i + k);
			for (int n = 0; n < 20; n++) {
				OK(cuEventRecord(asker.event, stream));
				OK(cuEventRecord(asker.event, idle));
			}
		}
		OK(cuStreamSynchronize(stream));
		CHECK(all_are(data, value));
	}
	asker.stop = true;
	CHECK(!pthread_join(thread, NULL));
	OK(cuStreamDestroy_v2(stream));
	OK(cuStreamDestroy_v2(idle));
	OK(cuEventDestroy_v2(asker.event));
	return hash(data);
}

// Streams, events and memory that end while work is in flight.
static uint32_t endings(unsigned rounds)
{
	uint32_t h = 0;
	for (unsigned i = 0; i < rounds; i++) {
		handle stream, event;
		ptr data = memory();
		OK(cuStreamCreate(&stream, i % 2));
		OK(cuEventCreate(&event, 2));
		for (unsigned k = 0; k < 4; k++) {
			chain(stream, data, i + k);
			OK(cuEventRecord(event, stream));
		}
		OK(cuEventDestroy_v2(event));
		OK(cuStreamDestroy_v2(stream));
		OK(cuCtxSynchronize()); // the stream may still have work, whatever became of its handle
		h = h * 31 + hash(data);
		OK(cuMemFree_v2(data));
	}
	return h;
}

// A context of its own that ends with work in flight, after what matters was waited for.
static uint32_t contexts(unsigned rounds)
{
	uint32_t h = 0;
	for (unsigned i = 0; i < rounds; i++) {
		handle other, stream, old_kernel = chain_kernel, old_module = module;
		ptr data;
		OK(cuCtxCreate_v2(&other, 0, 0));
		extern char *image;
		OK(cuModuleLoadData(&module, image));
		OK(cuModuleGetFunction(&chain_kernel, module, "sim_chain"));
		OK(cuStreamCreate(&stream, NON_BLOCKING));
		data = memory();
		for (unsigned k = 0; k < 40; k++)
			chain(stream, data, i + k);
		OK(cuStreamSynchronize(stream));
		h = h * 31 + hash(data);
		for (unsigned k = 0; k < 4; k++)
			chain(stream, data, k);
		OK(cuCtxDestroy_v2(other));
		chain_kernel = old_kernel;
		module = old_module;
		OK(cuCtxSetCurrent(context));
	}
	return h;
}

// Events are recorded while another context is current than the stream's.
static uint32_t foreign(unsigned rounds)
{
	static handle other;
	handle event, stream;
	ptr data = memory();
	uint32_t value = 1;
	if (!other)
		OK(cuCtxCreate_v2(&other, 0, 0));
	OK(cuCtxSetCurrent(context));
	OK(cuEventCreate(&event, 2));
	OK(cuStreamCreate(&stream, NON_BLOCKING));
	for (unsigned i = 0; i < rounds; i++) {
		for (unsigned k = 0; k < 8; k++) {
			chain(stream, data, i + k);
			value = next(value, i + k);
		}
		OK(cuCtxSetCurrent(other));
		OK(cuEventRecord(event, stream));
		OK(cuCtxSetCurrent(context));
		OK(cuEventSynchronize(event));
		CHECK(all_are(data, value));
	}
	OK(cuStreamDestroy_v2(stream));
	OK(cuEventDestroy_v2(event));
	return hash(data);
}

// Launches that are captured, and others beside them.
static uint32_t captures(unsigned rounds)
{
	handle stream, other, graph, executable;
	ptr data = memory(), aside = memory();
	OK(cuStreamCreate(&stream, NON_BLOCKING));
	OK(cuStreamCreate(&other, NON_BLOCKING));
	for (unsigned i = 0; i < rounds; i++) {
		chain(stream, data, i);
		chain(other, aside, i);
		OK(cuStreamBeginCapture_v2(stream, i % 3));
		chain(stream, data, i + 1);
		chain_packed(stream, data, i + 2);
		if (i % 2)
			chain(other, aside, i + 1);
		OK(cuStreamEndCapture(stream, &graph));
		OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
		chain(stream, data, i + 3);
		OK(cuGraphLaunch(executable, stream));
		chain(stream, data, i + 4);
		OK(cuGraphLaunch(executable, stream));
	}
	OK(cuCtxSynchronize());
	return hash(data) * 31 + hash(aside);
}

static void linger(void *unused)
{
	(void)unused;
	usleep(300);
}

// Graphs that are replayed, changed, and destroyed in flight; one on two streams by turns, in order all the same.
static uint32_t graphs(unsigned rounds)
{
	struct node {
		handle function;
		unsigned grid[3], block[3], shared;
		void **parameters, **extra;
		handle kernel, context;
	};
	handle stream, beside, graph, built, executable, changed, nodes[3];
	ptr data = memory(), other = memory();
	int n = PER_BLOCK;
	uint32_t add = 5;
	OK(cuStreamCreate(&stream, NON_BLOCKING));
	OK(cuStreamCreate(&beside, NON_BLOCKING));
	void *parameters[] = {&other, &n, &add, &kernel_us};
	struct node p = {chain_kernel, {BLOCKS, 1, 1}, {1024, 1, 1}, 0, parameters, NULL, NULL, NULL};
	OK(cuGraphCreate(&built, 0));
	for (int i = 0; i < 3; i++, add++)
		OK(cuGraphAddKernelNode_v2(&nodes[i], built, i ? &nodes[i - 1] : NULL, i > 0, &p));
	OK(cuGraphInstantiateWithFlags(&changed, built, 0));
	for (unsigned i = 0; i < rounds; i++) {
		if (i % 8 == 0) {
			OK(cuStreamBeginCapture_v2(stream, 0));
			for (unsigned k = 0; k < 3; k++)
				(k % 2 ? chain : chain_packed)(stream, data, i + k);
			OK(cuStreamEndCapture(stream, &graph));
			OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
			OK(cuGraphDestroy(graph));
		}
		OK(cuGraphLaunch(executable, stream));
		chain(stream, data, i);
		OK(cuLaunchHostFunc(beside, linger, NULL));
		OK(cuGraphLaunch(changed, beside));
		OK(cuGraphLaunch(changed, stream));
		OK(cuGraphLaunch(executable, stream));
		if (i == rounds / 2) {
			add = i;
			OK(cuGraphExecKernelNodeSetParams_v2(changed, nodes[1], &p));
		}
		if (i % 8 == 7)
			OK(cuGraphExecDestroy(executable));
	}
	OK(cuStreamSynchronize(stream));
	return hash(data) * 31 + hash(other);
}

char *image;

int main(int count, char **argument)
{
	char line[128], what[32];
	unsigned rounds;
	FILE *file = count > 1 ? fopen(argument[1], "rb") : NULL;
	if (!file)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	image = calloc(1, 1 << 20);
	CHECK(fread(image, 1, 1 << 20, file) > 0);
	find_driver();
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	OK(cuModuleLoadData(&module, image));
	OK(cuModuleGetFunction(&chain_kernel, module, "sim_chain"));
	OK(cuModuleGetFunction(&increment_kernel, module, "sim_increment"));
	printf("ready\n");
	while (fgets(line, sizeof line, stdin)) {
		CHECK(sscanf(line, "%31s %u", what, &rounds) == 2);
		handle stream;
		uint32_t h = 0;
		if (!strcmp(what, "single")) {
			OK(cuStreamCreate(&stream, NON_BLOCKING));
			h = single(rounds, stream);
		} else if (!strcmp(what, "vast")) {
			OK(cuStreamCreate(&stream, NON_BLOCKING));
			h = vast(stream);
		} else if (!strcmp(what, "together")) {
			OK(cuStreamCreate(&stream, NON_BLOCKING));
			h = together(rounds, stream);
		} else if (!strcmp(what, "default")) {
			h = single(rounds, NULL);
		} else if (!strcmp(what, "several")) {
			h = several(rounds, NON_BLOCKING);
		} else if (!strcmp(what, "blocking")) {
			h = several(rounds, 0);
		} else if (!strcmp(what, "legacy")) {
			h = legacy(rounds, false);
		} else if (!strcmp(what, "legacy-graphs")) {
			h = legacy(rounds, true);
		} else if (!strcmp(what, "behind")) {
			h = behind(rounds);
		} else if (!strcmp(what, "questions")) {
			h = questions(rounds);
		} else if (!strcmp(what, "crossed")) {
			h = crossed(rounds);
		} else if (!strcmp(what, "endings")) {
			h = endings(rounds);
		} else if (!strcmp(what, "contexts")) {
			h = contexts(rounds);
		} else if (!strcmp(what, "foreign")) {
			h = foreign(rounds);
		} else if (!strcmp(what, "captures")) {
			h = captures(rounds);
		} else if (!strcmp(what, "many")) {
			h = many(rounds);
		} else if (!strcmp(what, "handshakes")) {
			h = handshakes(rounds);
		} else if (!strcmp(what, "graphs")) {
			h = graphs(rounds);
		} else if (!strcmp(what, "urgent")) {
			printf("urgent %d\n", simcuda_most_urgent_kernel());
			continue;
		} else if (!strcmp(what, "leave")) { // with work in flight
			ptr data = memory();
			OK(cuStreamCreate(&stream, NON_BLOCKING));
			for (unsigned i = 0; i < rounds; i++)
				chain(stream, data, i);
			return 0;
		} else {
			return 2;
		}
		printf("hash %u\n", h);
	}
	return 0;
}
