// run.c - runs generated programs one after another, and compares what they leave with what CUDA promises.
//
//	generator IMAGE [seed N] [programs N] [seconds N] [features NAME,...] [not NAME,...] [without ID,...] [repeat N] [describe]
//		[stop block|queue|narrow] [patience N] [stay N] [room BYTES] [spins N]
//
// IMAGE is test/simcuda/kernels/sim.cubin, which runs on a GPU too. Answers "programs N operations N seconds N differences N stops N"; exits with 1
// after differences, with 3 if a program hangs for patience seconds. It ends with its input, so that its counters can be read until then. "stop" has a thread stop and restore
// streams by gpreempt.h, "narrow" in widths that change at random; "stay" has a process that hangs print its stacks, with gdb, and keeps it for so many seconds.
// "room" makes device memory that is allocated as large as that, if it is smaller. One in "spins" programs has kernels that spin, 64 without it; 0: none.
#define _GNU_SOURCE
#include "model.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../../../../api/gpreempt.h"

#define FUNCTIONS(F) \
	F(cuDeviceGetCount, (int *)) \
	F(cuStreamWriteValue32_v2, (handle, ptr, uint32_t, unsigned)) \
	F(cuEventDestroy_v2, (handle)) \
	F(cuCtxAttach, (handle *, unsigned)) \
	F(cuCtxDetach, (handle)) \
	F(cuMemAllocAsync, (ptr *, size_t, handle)) \
	F(cuMemFreeAsync, (ptr, handle)) \
	F(cuMemcpyDtoDAsync_v2, (ptr, ptr, size_t, handle)) \
	F(cuMemcpyHtoDAsync_v2, (ptr, const void *, size_t, handle)) \
	F(cuMemcpyAsync, (ptr, ptr, size_t, handle)) \
	F(cuMemcpy, (ptr, ptr, size_t)) \
	F(cuMemsetD32_v2, (ptr, unsigned, size_t)) \
	F(cuMemsetD16Async, (ptr, unsigned short, size_t, handle)) \
	F(cuFuncLoad, (handle)) \
	F(cuFuncSetAttribute, (handle, int, int)) \
	F(cuLaunchKernel_ptsz, (LAUNCH_PARAMETERS, void **)) \
	F(cuLaunchKernelEx, (const void *, handle, void **, void **)) \
	F(cuLaunchCooperativeKernel, (LAUNCH_PARAMETERS)) \
	F(cuGraphDestroy, (handle)) \
	F(cuGraphCreate, (handle *, unsigned)) \
	F(cuGraphAddKernelNode_v2, (handle *, handle, const handle *, size_t, const void *)) \
	F(cuGraphExecKernelNodeSetParams_v2, (handle, handle, const void *)) \
	F(cuGraphExecUpdate_v2, (handle, handle, void *)) \
	F(cuMemsetD2D32Async, (ptr, size_t, unsigned, size_t, size_t, handle)) \
	F(cuMemcpy2DAsync_v2, (const void *, handle))

#include "../driver.h"

// Ends the process, as the context is of no use after most errors.
static void refused(const char *call, int result);
#undef OK
#define OK(call) \
	do { \
		int r_ = (call); \
		if (r_ != 0) \
			refused(#call, r_); \
	} while (0)

enum {
	NOT_READY = 600,
	BUFFER_BYTES = CELLS * CELL_WORDS * 4,
	LARGE_SHARED = 120000,
	MAX_DYNAMIC_SHARED = 8,
	REQUIRED_CLUSTER_WIDTH = 11,
	CLUSTER = 4, // blocks
	REPORTS = 5
};

static struct {
	handle context, chain, clustered, increment, marlin, lamport, barrier, add,
		copy;                                  // add, copy: NULL where there is no image of them
	handle module[MODULES], module_chain[MODULES]; // that come and go, and their kernels
	ptr turns;                                     // words by which blocks wait for each other
	// A stream that waits keeps back other work in its hardware channel. The driver puts streams on channels in turn. So
	// programs in which streams wait for the CPU use those made first, and programs that make new ones have others.
	// A thread looks up handles that another makes anew, if only to leave them alone.
	_Atomic(handle) stream[CREATED], passing[CREATED], event[EVENTS];
	handle fork;
} machine[DEVICES];
static int devices;
static char *image;
static _Atomic(ptr) memory[ALL_BUFFERS];
static size_t least_bytes;       // that are allocated
static volatile uint32_t *words; // one in each 16, and behind it one that kernels spin on: 0 once it is written
static handle graph[GRAPHS], executable[GRAPHS], node[GRAPHS][LAUNCHES];

static struct program program;
static uint32_t pageable[OPERATIONS][CELLS * CELL_WORDS];
static _Atomic bool posted[256];
static _Atomic int at[THREADS]; // position of the operation that each thread is in; -1: none
static _Atomic uint64_t differences;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static uint64_t run_number;
static int running, taking_part; // threads; 0 between programs
static __thread int current = -1;
static unsigned patience = 20; // seconds

static uint64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void different(const struct operation *o, const char *what, uint32_t got, uint32_t wanted)
{
	static pthread_mutex_t printing = PTHREAD_MUTEX_INITIALIZER;
	pthread_mutex_lock(&printing);
	if (differences++ < REPORTS) {
		printf("difference: seed %llu: %s: %u instead of %u\n", (unsigned long long)program.seed, what, got,
		       wanted);
		if (o)
			describe_operation(stdout, o);
		fflush(stdout);
	}
	pthread_mutex_unlock(&printing);
}

static __thread const struct operation *inside;

static void refused(const char *call, int result)
{
	printf("error: seed %llu: %s: %d\n", (unsigned long long)program.seed, call, result);
	if (inside)
		describe_operation(stdout, inside);
	fflush(stdout);
	_exit(1);
}

static size_t allocated(size_t bytes) { return bytes > least_bytes ? bytes : least_bytes; }

static void compare(const struct operation *o, const char *what, const volatile uint32_t *cell, uint32_t wanted)
{
	for (int i = 0; i < CELL_WORDS; i++)
		if (cell[i] != wanted) {
			different(o, what, cell[i], wanted);
			return;
		}
}

static volatile uint32_t *pinned(const struct operation *o)
{
	return (volatile uint32_t *)(uintptr_t)memory[o->buffer] + o->first * CELL_WORDS;
}

static void check_cells(const struct operation *o)
{
	for (int c = 0; c < o->count; c++)
		compare(o, "the CPU reads", pinned(o) + c * CELL_WORDS, o->expected[c]);
}

static void update_cells(const struct operation *o)
{
	for (int i = 0; i < o->count * CELL_WORDS; i++)
		pinned(o)[i] = pinned(o)[i] * 3 + o->value;
}

static void pause_us(unsigned us)
{
	struct timespec t = {us / 1000000, us % 1000000 * 1000L};
	nanosleep(&t, NULL);
}

static void host_function(void *argument)
{
	const struct operation *o = argument;
	switch (o->form) {
	case CHECKS: check_cells(o); break;
	case UPDATES: update_cells(o); break;
	case WAITS:
		while (!__atomic_load_n(&words[o->word * 16], __ATOMIC_ACQUIRE))
			pause_us(20);
		break;
	}
}

static void use(int device)
{
	if (current != device) {
		OK(cuCtxSetCurrent(machine[device].context));
		current = device;
	}
}

static _Atomic(handle) *created(int d, int s)
{
	return &(program.features & WITH_endings ? machine[d].passing : machine[d].stream)[s - 1 - THREADS];
}

static void new_stream(_Atomic(handle) *to, unsigned flags)
{
	handle stream;
	OK(cuStreamCreate(&stream, flags));
	*to = stream;
}

static void new_event(_Atomic(handle) *to, unsigned flags)
{
	handle event;
	OK(cuEventCreate(&event, flags));
	*to = event;
}

static void new_memory(int buffer)
{
	ptr data;
	OK(cuMemAlloc_v2(&data, allocated(BUFFER_BYTES)));
	memory[buffer] = data;
}

static handle stream_of(const struct operation *o, int s)
{
	if (s == 0)
		return o->variant & 1 ? (handle)1 : NULL;
	return s <= THREADS ? (handle)2 : *created(o->device, s);
}

static ptr cells(int buffer, int first) { return memory[buffer] + (ptr)first * CELL_WORDS * 4; }

// A word for each way in which blocks of a launch may wait for each other: launches that share one are ordered, as they
// share a cell.
static ptr turn(const struct operation *o, int per_block)
{
	int way = ((o->buffer * CELLS + o->first) * (CELLS + 1) + o->count) * 2 + per_block - 1;
	return machine[o->device].turns + (ptr)(way * KERNEL_FORMS + o->form) * 4;
}

static ptr word_of(const struct operation *o) { return (ptr)(uintptr_t)&words[o->word * 16]; }

// The turn of no block, until the word is written. Then blocks take turns, as those of sim_marlin do.
static const uint32_t NOBODYS_TURN = ~0u;

static ptr spun_word_of(const struct operation *o) { return word_of(o) + 4; }

enum { TURNS = ALL_BUFFERS * CELLS * (CELLS + 1) * 2 * KERNEL_FORMS };

static void kernel(const struct operation *o, handle stream)
{
	bool spins = o->kind == WAIT_VALUE;
	int d = o->device, form = spins ? MARLIN : o->form,
	    per_block = form == COOPERATIVE || form >= MARLIN ? 2 * o->count : 1 + (o->variant >> 1 & 1);
	unsigned blocks = (unsigned)(o->count * CELL_WORDS / per_block), threads = o->variant & 4 ? 1024 : 256;
	unsigned shared = o->variant & 8 && per_block <= 2 && form < COOPERATIVE ? LARGE_SHARED : 0; // one block on an SM
	unsigned x = blocks, y = 1, z = 1;
	ptr data = cells(o->buffer, o->first);
	uint32_t add = o->value, us = o->us;
	uint64_t count = (uint64_t)o->count * CELL_WORDS;
	void *parameters[] = {&data, &per_block, &add, &us}, *incremented[] = {&data, &per_block, &us},
	     *added[] = {&data, &count, &add};
	if (o->variant & 16 && blocks % 12 == 0)
		x = blocks / 12, y = 4, z = 3;
	handle chain = o->module                           ? machine[d].module_chain[o->module - 1] :
		       o->variant & 32 && x % CLUSTER == 0 ? machine[d].clustered :
							     machine[d].chain;
	switch (form) {
	case PACKED: {
		struct {
			ptr data;
			int n;
			uint32_t add, us;
		} packed = {data, per_block, add, us};
		size_t bytes = 20;
		void *extra[] = {(void *)1, &packed, (void *)2, &bytes, NULL};
		OK(cuLaunchKernel(chain, x, y, z, threads, 1, 1, shared, stream, NULL, extra));
		break;
	}
	case EXTENDED: {
		const struct {
			unsigned grid[3], block[3], shared;
			handle stream;
			void *attributes;
			unsigned count;
		} config = {{x, y, z}, {threads, 1, 1}, shared, stream, NULL, 0};
		OK(cuLaunchKernelEx(&config, chain, parameters, NULL));
		break;
	}
	case COOPERATIVE: OK(cuLaunchCooperativeKernel(chain, x, y, z, threads, 1, 1, 0, stream, parameters)); break;
	case INCREMENT:
		OK(cuLaunchKernel(machine[d].increment, x, y, z, threads, 1, 1, shared, stream, incremented, NULL));
		break;
	case MARLIN:
	case LAMPORT:
	case BARRIER: {
		ptr word = spins ? spun_word_of(o) : turn(o, 1);
		void *waiting[] = {&word, &data, &per_block, &us};
		handle f = form == MARLIN  ? machine[d].marlin :
			   form == LAMPORT ? machine[d].lamport :
					     machine[d].barrier;
		OK(cuLaunchKernel(f, x, y, z, threads, 1, 1, 0, stream, waiting, NULL));
		break;
	}
	case PLAIN: OK(cuLaunchKernel(machine[d].add, 1, 1, 1, 32, 1, 1, 0, stream, added, NULL)); break;
	default:
		if (stream == (handle)2 && o->variant & 1)
			OK(cuLaunchKernel_ptsz(chain, x, y, z, threads, 1, 1, shared, NULL, parameters, NULL));
		else
			OK(cuLaunchKernel(chain, x, y, z, threads, 1, 1, shared, stream, parameters, NULL));
	}
}

static void copy_rows(ptr to, ptr from, int rows, handle stream)
{
	struct side {
		size_t x, y;
		int type; // CU_MEMORYTYPE_UNIFIED
		void *host;
		ptr device;
		void *array;
		size_t pitch;
	};
	const struct {
		struct side from, to;
		size_t width, rows;
	} c = {{.type = 4, .device = from, .pitch = CELL_WORDS * 4},
	       {.type = 4, .device = to, .pitch = CELL_WORDS * 4},
	       CELL_WORDS * 4,
	       (size_t)rows};
	OK(cuMemcpy2DAsync_v2(&c, stream));
}

static void copy(const struct operation *o, handle stream)
{
	ptr to = cells(o->buffer, o->first), from = cells(o->source, o->source_first);
	size_t bytes = (size_t)o->count * CELL_WORDS * 4;
	if (o->form == SYNCHRONOUS)
		OK(cuMemcpy(to, from, bytes));
	else if (o->form == ROWS)
		copy_rows(to, from, o->count, stream);
	else if (o->form == UNTYPED || (!device_buffer(o->buffer) && !device_buffer(o->source)))
		OK(cuMemcpyAsync(to, from, bytes, stream));
	else if (!device_buffer(o->buffer))
		OK(cuMemcpyDtoHAsync_v2((void *)(uintptr_t)to, from, bytes, stream));
	else if (!device_buffer(o->source))
		OK(cuMemcpyHtoDAsync_v2(to, (void *)(uintptr_t)from, bytes, stream));
	else
		OK(cuMemcpyDtoDAsync_v2(to, from, bytes, stream));
}

static void set(const struct operation *o, handle stream)
{
	ptr to = cells(o->buffer, o->first);
	size_t n = (size_t)o->count * CELL_WORDS;
	switch (o->form) {
	case BY_8: OK(cuMemsetD8Async(to, (unsigned char)o->value, n * 4, stream)); break;
	case BY_16: OK(cuMemsetD16Async(to, (unsigned short)o->value, n * 2, stream)); break;
	case BY_ROWS: OK(cuMemsetD2D32Async(to, CELL_WORDS * 4, o->value, CELL_WORDS, o->count, stream)); break;
	case AT_ONCE: OK(cuMemsetD32_v2(to, o->value, n)); break;
	default: OK(cuMemsetD32Async(to, o->value, n, stream));
	}
}

static void query(const struct operation *o, handle stream)
{
	handle event = machine[o->device].event[o->event];
	int r;
	// Work may be known to be complete only through other streams. Then a query may say so a moment later, while a stop looks at what
	// it cut.
	uint64_t limit = now_ms() + (o->form == POLL ? patience * 2000ull : o->must ? 1000 : 0);
	while ((r = o->kind == EVENT_QUERY ? cuEventQuery(event) : cuStreamQuery(stream)) == NOT_READY &&
	       (o->form == POLL || o->must) && now_ms() < limit)
		pause_us(20);
	if (r && (r != NOT_READY || o->must))
		different(o, "a query answers", (uint32_t)r, 0);
	if (!r && o->reads)
		compare(o, "after a query", pinned(o), o->expected[0]);
}

static void replace(const struct operation *o, handle made)
{
	if (executable[o->graph]) {
		OK(cuGraphExecDestroy(executable[o->graph]));
		OK(cuGraphDestroy(graph[o->graph]));
	}
	graph[o->graph] = made;
	OK(cuGraphInstantiateWithFlags(&executable[o->graph], made, 0));
}

static void capture_end(const struct operation *o, handle stream)
{
	handle made;
	OK(cuStreamEndCapture(stream, &made));
	replace(o, made);
}

// Kernels one after the other; of CHANGE, the one.
static void build(const struct operation *o)
{
	struct {
		handle function;
		unsigned grid[3], block[3], shared;
		void **parameters, **extra;
		handle kernel, context;
	} p = {machine[o->device].chain,
	       {(unsigned)o->count * CELL_WORDS, 1, 1},
	       {256, 1, 1},
	       0,
	       NULL,
	       NULL,
	       NULL,
	       NULL};
	ptr data = cells(o->buffer, o->first);
	int per_block = 1;
	uint32_t value = o->value, us = o->us;
	void *parameters[] = {&data, &per_block, &value, &us};
	p.parameters = parameters;
	if (o->kind == CHANGE) {
		OK(cuGraphExecKernelNodeSetParams_v2(executable[o->graph], node[o->graph][o->nodes], &p));
		return;
	}
	static int kernels[GRAPHS];
	if (o->kind == BUILD)
		kernels[o->graph] = o->nodes;
	handle made, new[LAUNCHES];
	OK(cuGraphCreate(&made, 0));
	for (int i = 0; i < kernels[o->graph]; i++, value++)
		OK(cuGraphAddKernelNode_v2(&new[i], made, i ? &new[i - 1] : NULL, i > 0, &p));
	if (o->kind == BUILD) {
		replace(o, made);
		memcpy(node[o->graph], new, sizeof new);
	} else {
		uint64_t info[4];
		OK(cuGraphExecUpdate_v2(executable[o->graph], made, info));
		OK(cuGraphDestroy(made));
	}
}

static void branch(const struct operation *o, handle from, handle to)
{
	OK(cuEventRecord(machine[o->device].fork, from));
	OK(cuStreamWaitEvent(to, machine[o->device].fork, 0));
}

// Loads a kernel before there is work: its first launch would wait for the context.
static void load(handle *function, handle module, const char *name)
{
	OK(cuModuleGetFunction(function, module, name));
	OK(cuFuncLoad(*function));
}

static void new_module(int d, int i)
{
	OK(cuModuleLoadData(&machine[d].module[i], image));
	load(&machine[d].module_chain[i], machine[d].module[i], "sim_chain");
	OK(cuFuncSetAttribute(machine[d].module_chain[i], MAX_DYNAMIC_SHARED, LARGE_SHARED));
}

// A context that comes, is used, and goes with work in flight. It may have another user for a while. Some calls destroy NULL.
static void episode(const struct operation *o)
{
	uint32_t have[CELL_WORDS], want = o->value, us = o->us;
	handle context, again, module, chain, stream;
	int per_block = 1;
	bool attached = o->variant & 4;
	ptr data;
	void *parameters[] = {&data, &per_block, &want, &us};
	OK(cuCtxCreate_v2(&context, 0, o->device));
	if (attached)
		OK(cuCtxAttach(&again, 0));
	if (o->variant & 8)
		CHECK(cuCtxDestroy_v2(NULL) && cuStreamDestroy_v2(NULL) && cuEventDestroy_v2(NULL));
	OK(cuModuleLoadData(&module, image));
	load(&chain, module, "sim_chain");
	OK(cuStreamCreate(&stream, o->variant & 1));
	OK(cuMemAlloc_v2(&data, allocated(sizeof have)));
	OK(cuMemsetD32Async(data, o->value, CELL_WORDS, stream));
	for (int i = 0; i < 4; i++) {
		OK(cuLaunchKernel(chain, CELL_WORDS, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL));
		want = want * 3 + want; // what was added is the value before
		if (attached && i == 1)
			OK(cuCtxDetach(context));
	}
	OK(cuStreamSynchronize(stream));
	OK(cuMemcpyDtoH_v2(have, data, sizeof have));
	compare(o, "a context of its own has", have, want);
	for (int i = 0; i < o->variant % 3; i++)
		OK(cuLaunchKernel(chain, CELL_WORDS, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL));
	if (o->variant & 64)
		OK(cuModuleUnload(module));
	OK(cuCtxDestroy_v2(context));
}

// Some calls take any context's stream or event, whichever is current.
static bool foreign(const struct operation *o)
{
	bool event = o->kind == EVENT_SYNC || o->kind == EVENT_QUERY;
	bool stream = o->kind == RECORD || o->kind == WAIT_EVENT || o->kind == STREAM_SYNC || o->kind == STREAM_QUERY;
	return program.devices > 1 && o->variant & 32 && (event || (stream && o->stream > THREADS));
}

static void carry_out(const struct operation *o)
{
	static __thread unsigned ahead;
	int d = o->device;
	use(foreign(o) ? 1 - d : d);
	handle stream = stream_of(o, o->stream), event = machine[d].event[o->event];
	ptr data;
	switch (o->kind) {
	case KERNEL: kernel(o, stream); break;
	case KERNEL_COPY: {
		ptr to = cells(o->buffer, o->first), from = cells(o->source, o->source_first);
		uint64_t bytes = (uint64_t)o->count * CELL_WORDS * 4;
		void *parameters[] = {&to, &from, &bytes};
		OK(cuLaunchKernel(machine[d].copy, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
		break;
	}
	case MEMSET: set(o, stream); break;
	case COPY: copy(o, stream); break;
	case UPLOAD: {
		size_t n = (size_t)o->count * CELL_WORDS;
		for (size_t i = 0; i < n; i++)
			pageable[o->position][i] = o->value;
		if (o->form == SYNCHRONOUS)
			OK(cuMemcpyHtoD_v2(cells(o->buffer, o->first), pageable[o->position], n * 4));
		else
			OK(cuMemcpyHtoDAsync_v2(cells(o->buffer, o->first), pageable[o->position], n * 4, stream));
		break;
	}
	case READ:
		OK(cuMemcpyDtoH_v2(pageable[o->position], cells(o->buffer, o->first), (size_t)o->count * CELL_WORDS * 4));
		for (int c = 0; c < o->count; c++)
			compare(o, "a copy has", pageable[o->position] + c * CELL_WORDS, o->expected[c]);
		break;
	case HOST_FUNCTION: OK(cuLaunchHostFunc(stream, host_function, (void *)o)); break;
	case RECORD: OK(cuEventRecord(event, stream)); break;
	case WAIT_EVENT: OK(cuStreamWaitEvent(stream, event, 0)); break;
	case EVENT_SYNC: OK(cuEventSynchronize(event)); break;
	case EVENT_QUERY:
	case STREAM_QUERY: query(o, stream); break;
	case EVENT_RENEW:
		OK(cuEventDestroy_v2(event));
		new_event(&machine[d].event[o->event], o->variant & 2);
		break;
	case STREAM_SYNC: OK(cuStreamSynchronize(stream)); break;
	case CONTEXT_SYNC: OK(cuCtxSynchronize()); break;
	case STREAM_RENEW:
		OK(cuStreamDestroy_v2(stream));
		new_stream(created(d, o->stream), !blocking_stream(o->stream));
		break;
	case WAIT_VALUE:
		if (o->form == BY_KERNEL)
			kernel(o, stream);
		else
			OK(cuStreamWaitValue32_v2(stream, word_of(o), 1, o->variant % 3));
		break;
	case WRITE_VALUE:
		OK(cuStreamWriteValue32_v2(stream, word_of(o), 1, 0));
		if (program.features & WITH_spins)
			OK(cuStreamWriteValue32_v2(stream, spun_word_of(o), 0, 0));
		break;
	case RELEASE:
		__atomic_store_n(&words[o->word * 16], 1, __ATOMIC_RELEASE);
		__atomic_store_n(&words[o->word * 16 + 1], 0, __ATOMIC_RELEASE);
		break;
	case FREE:
		OK(cuMemFree_v2(memory[o->buffer]));
		new_memory(o->buffer);
		break;
	case FREE_ASYNC:
		OK(cuMemFreeAsync(memory[o->buffer], stream));
		OK(cuMemAllocAsync(&data, allocated(BUFFER_BYTES), stream));
		memory[o->buffer] = data;
		break;
	case POST: posted[o->id] = true; break;
	case AWAIT:
		for (int i = 0; !posted[o->other]; i++)
			pause_us(i < 10 ? 1 : 50);
		break;
	case CPU: (o->form == CHECKS ? check_cells : update_cells)(o); break;
	case BEGIN: OK(cuStreamBeginCapture_v2(stream, o->variant % 3)); break;
	case END: capture_end(o, stream); break;
	case FORK: branch(o, stream, stream_of(o, o->stream2)); break;
	case JOIN: branch(o, stream_of(o, o->stream2), stream); break;
	case BUILD:
	case CHANGE:
	case UPDATE: build(o); break;
	case LAUNCH: OK(cuGraphLaunch(executable[o->graph], stream)); break;
	case MODULE_RENEW:
		OK(cuModuleUnload(machine[d].module[o->module - 1]));
		new_module(d, o->module - 1);
		break;
	case EPISODE: episode(o); break;
	case PAUSE: pause_us(o->value); break;
	case HINT:
		if (gpreempt_hint)
			(void)gpreempt_hint((ahead += 37) % 500, 1);
		break;
	}
}

static _Atomic uint64_t carried_out; // operations, by all threads

static void *thread(void *argument)
{
	int t = (int)(intptr_t)argument;
	pthread_mutex_lock(&lock);
	for (int d = 0; d < devices; d++) { // its stream is made, before the created ones
		use(d);
		OK(cuStreamQuery((handle)2));
	}
	if (--running == 0)
		pthread_cond_broadcast(&changed);
	for (uint64_t seen = 0;;) {
		while (run_number == seen)
			pthread_cond_wait(&changed, &lock);
		seen = run_number;
		if (t >= taking_part)
			continue;
		pthread_mutex_unlock(&lock);
		for (int i = 0; i < program.count; i++)
			if (program.operation[i].thread == t) {
				at[t] = i;
				inside = &program.operation[i];
				carry_out(inside);
				carried_out++;
			}
		inside = NULL;
		at[t] = -1;
		pthread_mutex_lock(&lock);
		if (--running == 0)
			pthread_cond_broadcast(&changed);
	}
	return NULL;
}

static unsigned stay;

static void hang(const char *what)
{
	printf("hang: seed %llu, %s\n", (unsigned long long)program.seed, what);
	for (int t = 0; t < program.threads; t++)
		if (at[t] >= 0)
			describe_operation(stdout, &program.operation[at[t]]);
	fflush(stdout);
	char stacks[160]; // of every thread, where there is a debugger
	snprintf(stacks, sizeof stacks,
		 "env -u LD_PRELOAD -u LD_LIBRARY_PATH gdb -p %d -batch -ex 'thread apply all bt' 2>/dev/null",
		 (int)getpid());
	if (stay && system(stacks) == -1)
		perror("gdb");
	void (*print)(FILE *) = (void (*)(FILE *))dlsym(RTLD_DEFAULT, "simcuda_print");
	for (int look = 0; print && look < 2; look++) { // what is different is under way
		print(stdout);
		usleep(300000);
	}
	fflush(stdout);
	sleep(stay);
	_exit(3);
}

static void prepare(void)
{
	static uint32_t initial[CELLS * CELL_WORDS];
	for (int b = 0; b < ALL_BUFFERS; b++) {
		if (device_buffer(b) && b / BUFFERS >= program.devices)
			continue;
		volatile uint32_t *to = device_buffer(b) ? initial : (volatile uint32_t *)(uintptr_t)memory[b];
		for (int i = 0; i < CELLS * CELL_WORDS; i++)
			to[i] = program.initial[b * CELLS + i / CELL_WORDS];
		if (device_buffer(b)) {
			use(b / BUFFERS);
			OK(cuMemcpyHtoD_v2(memory[b], initial, BUFFER_BYTES));
		}
	}
	for (int w = 0; w < WORDS; w++)
		words[w * 16] = 0, words[w * 16 + 1] = NOBODYS_TURN;
	for (int i = 0; i < 256; i++)
		posted[i] = false;
}

static _Atomic uint64_t progress_ms; // the final waits' beginning, 0: none

static void verify(void)
{
	static uint32_t final[CELLS * CELL_WORDS];
	char what[64];
	for (int d = 0; d < program.devices; d++) {
		use(d);
		OK(cuCtxSynchronize());
	}
	for (int b = 0; b < ALL_BUFFERS; b++) {
		if (device_buffer(b) && b / BUFFERS >= program.devices)
			continue;
		const volatile uint32_t *from = final;
		if (device_buffer(b)) {
			use(b / BUFFERS);
			OK(cuMemcpyDtoH_v2(final, memory[b], BUFFER_BYTES));
		} else {
			from = (const volatile uint32_t *)(uintptr_t)memory[b];
		}
		for (int c = 0; c < CELLS; c++)
			if (program.known[b * CELLS + c]) {
				snprintf(what, sizeof what, "at the end %s%d[%d]",
					 device_buffer(b) ? b / BUFFERS ? "1:m" : "0:m" : "pinned", b % BUFFERS, c);
				compare(NULL, what, from + c * CELL_WORDS, program.final[b * CELLS + c]);
			}
	}
	for (int g = 0; g < GRAPHS; g++)
		if (executable[g]) {
			OK(cuGraphExecDestroy(executable[g]));
			OK(cuGraphDestroy(graph[g]));
			executable[g] = graph[g] = NULL;
		}
}

// Ends the process if the last waits of a program have no end.
static void *watch(void *unused)
{
	for (;;) {
		usleep(200000);
		uint64_t since = progress_ms;
		if (since && now_ms() - since > patience * 1000ull)
			hang("at its end");
	}
	return unused;
}

static void run(void)
{
	struct timespec limit;
	progress_ms = now_ms();
	prepare();
	progress_ms = 0;
	uint64_t before = carried_out;
	clock_gettime(CLOCK_REALTIME, &limit);
	limit.tv_sec += patience;
	pthread_mutex_lock(&lock);
	running = taking_part = program.threads;
	run_number++;
	pthread_cond_broadcast(&changed);
	while (running)
		if (pthread_cond_timedwait(&changed, &lock, &limit)) {
			if (carried_out == before)
				hang("in");
			before = carried_out; // slow, as where memory leaves all the time
			limit.tv_sec += patience;
		}
	taking_part = 0; // who was not needed may wake only now
	pthread_mutex_unlock(&lock);
	progress_ms = now_ms();
	verify();
	progress_ms = 0;
}

static enum gpreempt_level level;
static bool narrows; // stopped streams go on in a width
static _Atomic uint64_t stops;

// Stops and restores streams of the first device at random. The program's own threads never do, so whoever waits for a stopped
// stream is served.
static const int widths[] = {0, 16, 32, 66};
enum { WIDTHS = sizeof widths / sizeof *widths };

// As gpreempt.h says, before any kernel waits for a call that is still to come. False: a stream did not get a width.
static bool make_widths(handle stream)
{
	for (int i = WIDTHS - 1; i >= 0; i--)
		if (gpreempt_stream_set_width(stream, widths[i]))
			return false;
	return true;
}

static void *stop_streams(void *unused)
{
	use(0);
	for (uint64_t i = 1;; i = i * 6364136223846793005u + 1442695040888963407u) {
		handle s = machine[0].stream[i >> 60 & (CREATED - 1)];
		if (narrows && i >> 20 & 1)
			(void)gpreempt_stream_set_width(s, widths[i >> 21 & (WIDTHS - 1)]);
		int r = gpreempt_stream_preempt(s, 0);
		stops += !r;
		pause_us((unsigned)(i >> 40 & (narrows ? 2047 : 511)));
		if (narrows && i >> 23 & 1) {
			(void)gpreempt_stream_set_width(s, widths[i >> 24 & (WIDTHS - 1)]);
			pause_us((unsigned)(i >> 50 & 511));
		}
		if (!r)
			(void)gpreempt_stream_restore(s, 0);
		pause_us((unsigned)(i >> 30 & 1023));
	}
	return unused;
}

static char *read_file(const char *path)
{
	FILE *f = fopen(path, "rb");
	char *bytes = calloc(1, 1 << 20);
	if (!f || !bytes || fread(bytes, 1, 1 << 20, f) == 0) {
		fprintf(stderr, "%s: cannot be read\n", path);
		exit(2);
	}
	fclose(f);
	return bytes;
}

static void start(const char *path)
{
	image = read_file(path);
	find_driver();
	OK(cuInit(0));
	OK(cuDeviceGetCount(&devices));
	devices = devices < DEVICES ? devices : DEVICES;
	for (int d = 0; d < devices; d++) {
		handle module;
		OK(cuDevicePrimaryCtxRetain(&machine[d].context, d));
		use(d);
		OK(cuModuleLoadData(&module, image));
		load(&machine[d].chain, module, "sim_chain");
		load(&machine[d].increment, module, "sim_increment");
		load(&machine[d].marlin, module, "sim_marlin");
		load(&machine[d].lamport, module, "sim_lamport");
		load(&machine[d].barrier, module, "sim_barrier");
		OK(cuMemAlloc_v2(&machine[d].turns, allocated(TURNS * 4)));
		OK(cuMemsetD32_v2(machine[d].turns, 0, TURNS));
		OK(cuFuncSetAttribute(machine[d].chain, MAX_DYNAMIC_SHARED, LARGE_SHARED));
		OK(cuModuleLoadData(&module, image));
		load(&machine[d].clustered, module, "sim_chain");
		OK(cuFuncSetAttribute(machine[d].clustered, MAX_DYNAMIC_SHARED, LARGE_SHARED));
		OK(cuFuncSetAttribute(machine[d].clustered, REQUIRED_CLUSTER_WIDTH, CLUSTER));
		OK(cuFuncSetAttribute(machine[d].increment, MAX_DYNAMIC_SHARED, LARGE_SHARED));
		for (int i = 0; i < MODULES; i++)
			new_module(d, i);
		if (cuModuleLoadData(&module, "simulated image") == 0) { // not on a GPU
			load(&machine[d].add, module, "sim_add");
			load(&machine[d].copy, module, "sim_copy");
		}
		for (int e = 0; e < EVENTS; e++)
			new_event(&machine[d].event[e], 2);
		OK(cuEventCreate(&machine[d].fork, 2));
		for (int b = 0; b < BUFFERS; b++)
			new_memory(d * BUFFERS + b);
		// The first launch of a kernel may wait for the whole context: not within a program.
		for (int form = 0; form < KERNEL_FORMS; form++)
			if (form != PLAIN || machine[d].add)
				kernel(&(struct operation){.kind = KERNEL,
							   .form = (uint8_t)form,
							   .device = (uint8_t)d,
							   .buffer = (uint8_t)(d * BUFFERS),
							   .count = CELLS},
				       NULL);
		OK(cuCtxSynchronize());
	}
	void *p;
	for (int b = DEVICES * BUFFERS; b < ALL_BUFFERS; b++) {
		OK(cuMemHostAlloc(&p, BUFFER_BYTES, 3)); // CU_MEMHOSTALLOC_PORTABLE, DEVICEMAP
		memory[b] = (ptr)(uintptr_t)p;
	}
	OK(cuMemHostAlloc(&p, WORDS * 64, 3));
	words = p;
}

static uint32_t features_of(const char *list)
{
	uint32_t all = 0;
	char copy[256];
	snprintf(copy, sizeof copy, "%s", list);
	for (char *name = strtok(copy, ","); name; name = strtok(NULL, ",")) {
		uint32_t before = all;
#define NAMED(known) \
	if (!strcmp(name, #known)) \
		all |= WITH_##known;
		FEATURES(NAMED)
		if (all == before) {
			fprintf(stderr, "feature %s: must be one of", name);
#define TELL(known) fprintf(stderr, " " #known);
			FEATURES(TELL)
			fprintf(stderr, "\n");
			exit(2);
		}
	}
	return all;
}

int main(int count, char **argument)
{
	uint64_t seed = 1, programs = UINT64_MAX, seconds = 0, repeat = 1;
	uint32_t features = (uint32_t)EVERYTHING;
	unsigned spins_in = 64;
	bool without[256] = {false}, reduced = false, only_describe = false;
	for (int i = 2; i < count; i++) {
		const char *what = argument[i], *value = i + 1 < count ? argument[i + 1] : "";
		if (!strcmp(what, "describe")) {
			only_describe = true;
			continue;
		}
		i++;
		if (!strcmp(what, "seed"))
			seed = strtoull(value, NULL, 0);
		else if (!strcmp(what, "programs"))
			programs = strtoull(value, NULL, 0);
		else if (!strcmp(what, "seconds"))
			seconds = strtoull(value, NULL, 0);
		else if (!strcmp(what, "repeat"))
			repeat = strtoull(value, NULL, 0);
		else if (!strcmp(what, "patience"))
			patience = (unsigned)strtoul(value, NULL, 0);
		else if (!strcmp(what, "stay"))
			stay = (unsigned)strtoul(value, NULL, 0);
		else if (!strcmp(what, "room"))
			least_bytes = strtoull(value, NULL, 0);
		else if (!strcmp(what, "spins"))
			spins_in = (unsigned)strtoul(value, NULL, 0);
		else if (!strcmp(what, "features"))
			features = features_of(value);
		else if (!strcmp(what, "not"))
			features &= ~features_of(value);
		else if (!strcmp(what, "stop") &&
			 (!strcmp(value, "block") || !strcmp(value, "queue") || !strcmp(value, "narrow")))
			level = *value == 'q' ? GPREEMPT_LEVEL_QUEUE : GPREEMPT_LEVEL_BLOCK, narrows = *value == 'n';
		else if (!strcmp(what, "without")) {
			reduced = true;
			for (const char *s = value; *s;) {
				char *end;
				without[strtoul(s, &end, 10) & 255] = true;
				s = *end ? end + 1 : end;
			}
		} else {
			fprintf(stderr, "%s %s: not understood\n", what, value);
			return 2;
		}
	}
	if (count < 2)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (level)
		features &= ~(uint32_t)WITH_endings; // of streams that another thread stops
	if (!only_describe) {
		start(argument[1]);
		if (devices < DEVICES)
			features &= ~(uint32_t)WITH_devices;
		if (!machine[0].add)
			features &= ~(uint32_t)WITH_plain;
	}
	pthread_t made;
	running = only_describe ? 0 : THREADS;
	for (intptr_t t = 0; t < THREADS && !only_describe; t++)
		OK(pthread_create(&made, NULL, thread, (void *)t));
	pthread_mutex_lock(&lock);
	while (running)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
	for (int d = 0; d < devices; d++) { // none if only described
		use(d);
		for (int s = 0; s < CREATED; s++)
			new_stream(&machine[d].stream[s], !blocking_stream(1 + THREADS + s));
		for (int s = 0; s < CREATED; s++)
			new_stream(&machine[d].passing[s], !blocking_stream(1 + THREADS + s));
	}
	OK(pthread_create(&made, NULL, watch, NULL));
	if (level && !only_describe) {
		pthread_t stopper;
		use(0);
		for (int s = 0; s < CREATED; s++)
			if (!gpreempt_stream_enable || gpreempt_stream_enable(machine[0].stream[s], level) ||
			    (narrows && !make_widths(machine[0].stream[s]))) {
				fprintf(stderr, "a stream cannot be stopped, or made narrow\n");
				return 2;
			}
		OK(pthread_create(&stopper, NULL, stop_streams, NULL));
	}
	uint64_t from = now_ms(), ran = 0, operations = 0;
	for (; ran < programs && (!seconds || now_ms() - from < seconds * 1000); seed++) {
		generate(&program, seed, spins_in ? features : features & ~(uint32_t)WITH_spins, spins_in);
		if (reduced && !reduce(&program, without)) {
			printf("not a program\n");
			return 4;
		}
		if (only_describe) {
			describe(stdout, &program);
			ran++;
			continue;
		}
		for (uint64_t r = 0; r < repeat; r++)
			run();
		ran++;
		operations += (uint64_t)program.count;
	}
	printf("programs %llu operations %llu seconds %.1f differences %llu stops %llu\n", (unsigned long long)ran,
	       (unsigned long long)operations, (double)(now_ms() - from) / 1000, (unsigned long long)differences,
	       (unsigned long long)stops);
	fflush(stdout);
	while (getchar() != EOF)
		;
	_exit(differences > 0);
}
