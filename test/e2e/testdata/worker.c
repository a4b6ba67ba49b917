// worker.c - a CUDA program under test: it obeys the lines of its standard input, answers each with one
// line, and exits 0 at the end of them. It finds the driver as frameworks do, by dlopen and dlsym.
#define _GNU_SOURCE
#include "nvtx.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long ptr;
typedef void *handle;

#define DRIVER(F) \
	F(cuInit, (unsigned)) \
	F(cuDevicePrimaryCtxRetain, (handle *, int)) \
	F(cuCtxSetCurrent, (handle)) \
	F(cuCtxCreate_v2, (handle *, unsigned, int)) \
	F(cuCtxDestroy_v2, (handle)) \
	F(cuMemsetD32Async, (ptr, unsigned, size_t, handle)) \
	F(cuCtxSynchronize, (void)) \
	F(cuStreamCreate, (handle *, unsigned)) \
	F(cuStreamSynchronize, (handle)) \
	F(cuStreamDestroy_v2, (handle)) \
	F(cuStreamQuery, (handle)) \
	F(cuStreamBeginCapture_v2, (handle, int)) \
	F(cuStreamEndCapture, (handle, handle *)) \
	F(cuEventCreate, (handle *, unsigned)) \
	F(cuEventRecord, (handle, handle)) \
	F(cuEventSynchronize, (handle)) \
	F(cuMemAlloc_v2, (ptr *, size_t)) \
	F(cuMemFree_v2, (ptr)) \
	F(cuMemHostAlloc, (void **, size_t, unsigned)) \
	F(cuMemFreeHost, (void *)) \
	F(cuMemcpyDtoH_v2, (void *, ptr, size_t)) \
	F(cuMemcpyHtoD_v2, (ptr, const void *, size_t)) \
	F(cuMemsetD32_v2, (ptr, unsigned, size_t)) \
	F(cuModuleLoadData, (handle *, const void *)) \
	F(cuModuleUnload, (handle)) \
	F(cuModuleGetFunction, (handle *, handle, const char *)) \
	F(cuLaunchKernel, \
	  (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **)) \
	F(cuLaunchCooperativeKernel, \
	  (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **)) \
	F(cuGraphInstantiateWithFlags, (handle *, handle, unsigned long long)) \
	F(cuGraphLaunch, (handle, handle)) \
	F(cuGraphGetNodes, (handle, handle *, size_t *))

#define DECLARE(name, parameters) static int(*name) parameters;
DRIVER(DECLARE)
static uint64_t (*simcuda_timeslice_ns)(int);        // ../../simcuda/driver/rm.c
static uint32_t (*simcuda_calls_behind_holds)(void); // ../../simcuda/driver/calls.c
static uint32_t (*simcuda_cooperative_beside_holds)(void);
static uint32_t (*simcuda_holds_launched)(void); // ../../simcuda/driver/launches.c

#define OK(call) \
	do { \
		int r_ = (call); \
		if (r_ != 0) { \
			fprintf(stderr, "worker: line %d: %s returned %d\n", __LINE__, #call, r_); \
			_exit(1); \
		} \
	} while (0)

enum { WORDS = 64 };
static handle context, module, stream, done, spin_kernel, add_kernel;
static ptr data;
static atomic_uint kernels; // completed by the best-effort thread
static atomic_bool stop;

static uint64_t now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000;
}

static void *symbol(void *library, const char *name)
{
	void *p = dlsym(library, name);
	if (!p) {
		fprintf(stderr, "worker: no %s: %s\n", name, dlerror());
		_exit(1);
	}
	return p;
}

static void start(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library) {
		fprintf(stderr, "worker: %s\n", dlerror());
		_exit(1);
	}
#define FIND(name, parameters) name = (int(*) parameters)symbol(library, #name);
	DRIVER(FIND)
	simcuda_timeslice_ns = (uint64_t (*)(int))symbol(library, "simcuda_timeslice_ns");
	simcuda_calls_behind_holds = (uint32_t (*)(void))symbol(library, "simcuda_calls_behind_holds");
	simcuda_cooperative_beside_holds = (uint32_t (*)(void))symbol(library, "simcuda_cooperative_beside_holds");
	simcuda_holds_launched = (uint32_t (*)(void))symbol(library, "simcuda_holds_launched");
	OK(cuInit(0));
	const char *device = getenv("WORKER_DEVICE");
	OK(cuDevicePrimaryCtxRetain(&context, device ? atoi(device) : 0));
	OK(cuCtxSetCurrent(context));
	OK(cuModuleLoadData(&module, "simulated image"));
	OK(cuModuleGetFunction(&spin_kernel, module, "sim_spin_us"));
	OK(cuModuleGetFunction(&add_kernel, module, "sim_add"));
	OK(cuStreamCreate(&stream, 1));
	OK(cuEventCreate(&done, 2));
	OK(cuMemAlloc_v2(&data, WORDS * 4));
	OK(cuMemsetD32_v2(data, 0, WORDS));
	OK(cuStreamSynchronize(NULL)); // the stream does not wait for it
}

static void spin(handle s, uint64_t us)
{
	void *parameters[] = {&us};
	OK(cuLaunchKernel(spin_kernel, 1, 1, 1, 1, 1, 1, 0, s, parameters, NULL));
}

static void add(uint32_t value)
{
	uint64_t n = WORDS;
	void *parameters[] = {&data, &n, &value};
	OK(cuLaunchKernel(add_kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
}

static void wait_by(const char *how)
{
	uint32_t word;
	if (strcmp(how, "stream") == 0) {
		OK(cuStreamSynchronize(stream));
	} else if (strcmp(how, "context") == 0) {
		OK(cuCtxSynchronize());
	} else if (strcmp(how, "event") == 0) {
		OK(cuEventRecord(done, stream));
		OK(cuEventSynchronize(done));
	} else {
		OK(cuStreamSynchronize(stream));
		OK(cuMemcpyDtoH_v2(&word, data, 4));
	}
}

static uint32_t hash(void)
{
	uint32_t words[WORDS], h = 2166136261u;
	OK(cuMemcpyDtoH_v2(words, data, sizeof words));
	for (int i = 0; i < WORDS; i++)
		h = (h ^ words[i]) * 16777619u;
	return h;
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

// Requests of n kernels each, the last one computing; every kernel is waited for, and the host pauses behind it.
static void latency_critical(unsigned requests, unsigned n, unsigned us, unsigned gap_us, const char *how, unsigned pause_us)
{
	uint64_t *t = calloc(requests, sizeof *t);
	for (unsigned i = 0; i < requests; i++) {
		struct timespec gap = {0, gap_us * 1000L};
		nanosleep(&gap, NULL);
		uint64_t from = now_us();
		for (unsigned k = 0; k < n; k++) {
			if (k == n - 1)
				add(i + 1);
			else
				spin(stream, us);
			wait_by(how);
			if (pause_us)
				usleep(pause_us);
		}
		t[i] = now_us() - from;
	}
	qsort(t, requests, sizeof *t, by_value);
	printf("p50_us %llu max_us %llu hash %u\n", (unsigned long long)t[requests / 2],
	       (unsigned long long)t[requests - 1], hash());
	free(t);
}

static void *best_effort(void *unused)
{
	handle own, event[2];
	OK(cuCtxSetCurrent(context));
	OK(cuStreamCreate(&own, 1));
	for (int i = 0; i < 2; i++)
		OK(cuEventCreate(&event[i], 2));
	for (unsigned i = 0; !stop; i++) {
		if (i >= 2) {
			OK(cuEventSynchronize(event[i % 2]));
			kernels++;
		}
		spin(own, 5000);
		OK(cuEventRecord(event[i % 2], own));
	}
	OK(cuStreamSynchronize(own));
	return unused;
}

// Calls that wait for the whole context, in the middle of a request. Answers how many of them met a hold.
static void context_wide(const char *what)
{
	ptr memory;
	handle other;
	OK(cuMemAlloc_v2(&memory, 4096));
	OK(cuModuleLoadData(&other, "simulated image"));
	spin(stream, 50);
	OK(cuStreamSynchronize(stream));
	uint32_t before = simcuda_calls_behind_holds();
	if (strcmp(what, "synchronize") == 0)
		OK(cuCtxSynchronize());
	else if (strcmp(what, "free") == 0)
		OK(cuMemFree_v2(memory));
	else if (strcmp(what, "load") == 0)
		OK(cuModuleLoadData(&other, "simulated image"));
	else
		OK(cuModuleUnload(other));
	printf("behind holds %u\n", simcuda_calls_behind_holds() - before);
}

static atomic_bool calling;
static atomic_uint calls;

// Does again and again what waits for the whole context.
static void *call_often(void *what)
{
	handle own, code, kernel;
	ptr memory;
	uint64_t us = 10;
	void *parameters[] = {&us};
	OK(cuCtxSetCurrent(context));
	OK(cuStreamCreate(&own, 1));
	for (; calling; calls++) {
		struct timespec gap = {0, rand() % 700 * 1000L};
		bool load = strcmp(what, "load") == 0, launch = strcmp(what, "launch") == 0,
		     release = strcmp(what, "free") == 0;
		if (launch) {
			OK(cuModuleLoadData(&code, "simulated image"));
			OK(cuModuleGetFunction(&kernel, code, "sim_spin_us"));
		} else if (release) {
			OK(cuMemAlloc_v2(&memory, 4096));
		}
		nanosleep(&gap, NULL);
		if (release)
			OK(cuMemFree_v2(memory));
		else if (load)
			OK(cuModuleLoadData(&code, "simulated image"));
		else if (launch)
			OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, own, parameters, NULL));
		else
			OK(cuCtxSynchronize());
		if (launch)
			OK(cuStreamSynchronize(own));
		if (load || launch)
			OK(cuModuleUnload(code));
	}
	OK(cuStreamDestroy_v2(own));
	return NULL;
}

// Requests while another thread calls what waits for the context, most of it with its lock: "free", "load", "launch" (the first of
// a kernel) or "synchronize".
static void beside_calls(const char *what, unsigned requests)
{
	pthread_t thread;
	uint32_t before = simcuda_calls_behind_holds();
	calls = 0;
	calling = true;
	OK(pthread_create(&thread, NULL, call_often, (void *)what));
	for (unsigned i = 0; i < requests; i++) {
		struct timespec gap = {0, 1500000};
		nanosleep(&gap, NULL);
		for (int k = 0; k < 3; k++) {
			spin(stream, 40);
			OK(cuStreamSynchronize(stream));
		}
	}
	calling = false;
	OK(pthread_join(thread, NULL));
	printf("calls %u behind holds %u\n", calls, simcuda_calls_behind_holds() - before);
}

static void capture(unsigned n)
{
	handle graph, executable;
	size_t nodes = 0;
	spin(stream, 50); // opens the window
	OK(cuStreamSynchronize(stream));
	OK(cuStreamBeginCapture_v2(stream, 0)); // global: the strictest mode
	for (unsigned i = 0; i < n; i++)
		add(1);
	OK(cuStreamEndCapture(stream, &graph));
	OK(cuGraphGetNodes(graph, NULL, &nodes));
	OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	uint32_t before, after;
	OK(cuMemcpyDtoH_v2(&before, data, 4));
	for (int i = 0; i < 3; i++)
		OK(cuGraphLaunch(executable, stream));
	OK(cuStreamSynchronize(stream));
	OK(cuMemcpyDtoH_v2(&after, data, 4));
	printf("nodes %zu added %u\n", nodes, after - before);
}

// Kernels whose blocks must all be resident, with two of 1024 threads on each SM: all that there is.
static void cooperative(unsigned n, const char *how)
{
	enum { SMS = 132 };
	uint64_t us = 40;
	void *parameters[] = {&us};
	uint32_t before = simcuda_cooperative_beside_holds();
	for (unsigned i = 0; i < n; i++) {
		OK(cuLaunchCooperativeKernel(spin_kernel, 2 * SMS, 1, 1, 1024, 1, 1, 0, stream, parameters));
		if (strcmp(how, "each") == 0)
			OK(cuStreamSynchronize(stream));
	}
	OK(cuStreamSynchronize(stream));
	printf("done %u beside holds %u\n", n, simcuda_cooperative_beside_holds() - before);
}

// The timeslices in force of all compute TSGs.
static void timeslices(void)
{
	uint64_t ns;
	printf("timeslices_us");
	for (int i = 0; (ns = simcuda_timeslice_ns(i)) != 0; i++)
		printf(" %llu", (unsigned long long)ns / 1000);
	printf("\n");
}

static void second_context(void)
{
	handle other;
	OK(cuCtxCreate_v2(&other, 0, 0));
	OK(cuCtxSetCurrent(context));
	timeslices();
}

// Memory of a context that has a window open is freed while another one is current; answers how long that took.
static void free_of_other(void)
{
	handle other, own;
	ptr memory;
	OK(cuCtxCreate_v2(&other, 0, 0));
	OK(cuMemAlloc_v2(&memory, 4096));
	OK(cuStreamCreate(&own, 1));
	struct timespec pause = {0, 300000000}; // until its hold is made
	nanosleep(&pause, NULL);
	OK(cuMemsetD32Async(memory, 1, 1024, own));
	OK(cuStreamSynchronize(own));
	OK(cuMemsetD32Async(memory, 2, 1024, own)); // the first one was a first use
	OK(cuStreamSynchronize(own));
	OK(cuCtxSetCurrent(context));
	uint64_t from = now_us();
	OK(cuMemFree_v2(memory));
	printf("took_us %llu\n", (unsigned long long)(now_us() - from));
}

static atomic_bool freed;

static void *free_slowly(void *memory)
{
	OK(cuCtxSetCurrent(context));
	OK(cuMemFree_v2((ptr)(uintptr_t)memory));
	freed = true;
	return NULL;
}

static handle replaced; // context, and what is in it
static handle replaced_stream;
static ptr replaced_memory;

// A context is destroyed, and another one made, while another thread is in a call that may wait for the first one.
static void replace_context(void)
{
	handle other;
	ptr memory;
	pthread_t thread;
	struct timespec pause = {0, 100000000};
	OK(cuCtxCreate_v2(&other, 0, 0));
	OK(cuCtxSetCurrent(context));
	OK(cuMemAlloc_v2(&memory, 4096));
	spin(stream, 3000000);
	OK(pthread_create(&thread, NULL, free_slowly, (void *)(uintptr_t)memory));
	nanosleep(&pause, NULL);
	OK(cuCtxDestroy_v2(other));
	OK(cuCtxCreate_v2(&replaced, 0, 0));
	bool beside = !freed;
	OK(cuMemAlloc_v2(&replaced_memory, 4096));
	OK(cuStreamCreate(&replaced_stream, 1));
	OK(pthread_join(thread, NULL));
	printf("beside %d\n", beside);
}

static void work_in_replaced(void)
{
	OK(cuCtxSetCurrent(replaced));
	OK(cuMemsetD32Async(replaced_memory, 1, 1024, replaced_stream));
	OK(cuStreamSynchronize(replaced_stream));
	printf("done 1\n");
}

// Contexts that end right after their work, with a hold each.
static void contexts(unsigned rounds)
{
	for (unsigned i = 0; i < rounds; i++) {
		handle other, own;
		ptr memory;
		struct timespec pause = {0, 1000000};
		OK(cuCtxCreate_v2(&other, 0, 0));
		OK(cuMemAlloc_v2(&memory, 4096));
		OK(cuStreamCreate(&own, 1));
		for (unsigned k = 0; k < 6; k++) {
			OK(cuMemsetD32Async(memory, k, 1024, own));
			OK(cuStreamSynchronize(own));
			nanosleep(&pause, NULL);
		}
		OK(cuMemsetD32Async(memory, 1, 1024, own));
		if (i % 2) { // about when the window closes
			OK(cuStreamSynchronize(own));
			pause.tv_nsec = 300000 + i * 20000;
			nanosleep(&pause, NULL);
		}
		OK(cuCtxDestroy_v2(other));
	}
	OK(cuCtxSetCurrent(context));
	printf("done %u\n", rounds);
}

// Kernels of modules that come and go, at addresses that were others' before; answers how long the slowest launch took.
static void reload(unsigned rounds)
{
	uint64_t slowest = 0, us = 50;
	void *parameters[] = {&us};
	unsigned again = 0;
	handle module, function, last = NULL;
	for (unsigned i = 0; i < rounds; i++) {
		OK(cuModuleLoadData(&module, "simulated image"));
		OK(cuModuleGetFunction(&function, module, "sim_spin_us"));
		again += function == last;
		last = function;
		spin(stream, 50); // a hold
		OK(cuStreamSynchronize(stream));
		uint64_t from = now_us();
		OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
		if (now_us() - from > slowest)
			slowest = now_us() - from;
		OK(cuStreamSynchronize(stream));
		OK(cuModuleUnload(module));
	}
	printf("again %u slowest_us %llu\n", again, (unsigned long long)slowest);
}

// The GPUs of a set have work, so that there is a hold on each; then memory of one is freed while the context of another is current.
static void hold_on(unsigned set, unsigned current, unsigned freed)
{
	enum { PIECES = 1000 }; // made before any hold, which an allocation would release too
	static struct {
		handle context, code, kernel, stream;
		ptr memory[PIECES];
		int left;
	} gpu[2];
	uint64_t us = 50;
	void *parameters[] = {&us};
	for (int i = 0; i < 2; i++) {
		if (!(set & 1u << i))
			continue;
		if (!gpu[i].context) {
			OK(cuDevicePrimaryCtxRetain(&gpu[i].context, i));
			OK(cuCtxSetCurrent(gpu[i].context));
			OK(cuModuleLoadData(&gpu[i].code, "simulated image"));
			OK(cuModuleGetFunction(&gpu[i].kernel, gpu[i].code, "sim_spin_us"));
			OK(cuStreamCreate(&gpu[i].stream, 1));
			while (gpu[i].left < PIECES)
				OK(cuMemAlloc_v2(&gpu[i].memory[gpu[i].left++], 4096));
		}
	}
	for (int i = 0; i < 2; i++) {
		if (!(set & 1u << i))
			continue;
		OK(cuCtxSetCurrent(gpu[i].context));
		OK(cuLaunchKernel(gpu[i].kernel, 1, 1, 1, 1, 1, 1, 0, gpu[i].stream, parameters, NULL));
		OK(cuStreamSynchronize(gpu[i].stream));
	}
	if (freed && gpu[freed - 1].left) {
		OK(cuCtxSetCurrent(gpu[current].context));
		OK(cuMemFree_v2(gpu[freed - 1].memory[--gpu[freed - 1].left]));
	}
	OK(cuCtxSetCurrent(context));
	printf("freed %u\n", freed);
}

// Two contexts of this process have work at a time.
static void both(unsigned n)
{
	handle other, code, kernel, beside;
	uint64_t us = 2000;
	void *parameters[] = {&us};
	OK(cuCtxCreate_v2(&other, 0, 0));
	OK(cuModuleLoadData(&code, "simulated image"));
	OK(cuModuleGetFunction(&kernel, code, "sim_spin_us"));
	OK(cuStreamCreate(&beside, 1));
	for (unsigned i = 0; i < n; i++) {
		OK(cuCtxSetCurrent(other));
		OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, beside, parameters, NULL));
		OK(cuCtxSetCurrent(context));
		spin(stream, us);
	}
	OK(cuStreamSynchronize(stream));
	OK(cuCtxSetCurrent(other));
	OK(cuStreamSynchronize(beside));
	OK(cuCtxSetCurrent(context));
	printf("both %u\n", n);
}

// Requests of one kernel, each announced ahead_us before. Answers how many hints were listened to. Also for how many this thread armed the
// hold at once, and for how many only as the work came.
static void hinted(unsigned requests, unsigned ahead_us, unsigned gap_us)
{
	int (*hint)(int64_t, double) = (int (*)(int64_t, double))dlsym(RTLD_DEFAULT, "gpreempt_hint");
	unsigned listened = 0, at_once = 0, late = 0;
	for (unsigned i = 0; i < requests; i++) {
		usleep(gap_us);
		uint32_t before = simcuda_holds_launched();
		listened += hint && hint(ahead_us, 1) == 0;
		uint32_t by_then = simcuda_holds_launched();
		at_once += by_then > before;
		usleep(ahead_us);
		spin(stream, 40);
		late += simcuda_holds_launched() > by_then;
		wait_by("stream");
	}
	printf("listened %u at once %u late %u\n", listened, at_once, late);
}

// Hints that nothing follows, and hints without sense; answers how many were listened to.
static void only_hints(unsigned count, unsigned gap_us, const char *kind)
{
	int (*hint)(int64_t, double) = (int (*)(int64_t, double))dlsym(RTLD_DEFAULT, "gpreempt_hint");
	unsigned listened = 0;
	for (unsigned i = 0; hint && i < count; i++) {
		if (strcmp(kind, "wrong") == 0)
			listened += hint(300, 1) == 0;
		else if (strcmp(kind, "far") == 0)
			listened += hint(INT64_MAX - i, 1) == 0;
		else if (strcmp(kind, "later") == 0)
			listened += hint(20000, 1) == 0;
		else if (strcmp(kind, "doubtful") == 0)
			listened += hint(300, 0.1) == 0;
		else if (i % 4 == 0)
			listened += hint(-1 - (int64_t)i, 1) == 0;
		else if (i % 4 == 1)
			listened += hint(300, 0.0 / 0.0 * (i + 1)) == 0;
		else if (i % 4 == 2)
			listened += hint(INT64_MIN, 1) == 0;
		else
			listened += hint(300, 1e300) == 0;
		if (gap_us)
			usleep(gap_us);
	}
	printf("listened %u\n", listened);
}

// A copy to the GPU, what follows later if anything does.
static void copy_first(unsigned requests, unsigned us, bool kernel)
{
	uint32_t words[WORDS] = {0};
	for (unsigned i = 0; i < requests; i++) {
		usleep(3000);
		OK(cuMemcpyHtoD_v2(data, words, sizeof words));
		if (us)
			usleep(us);
		if (kernel) {
			spin(stream, 40);
			wait_by("stream");
		}
	}
	printf("copied %u\n", requests);
}

// Pinned memory for a request, what comes after it.
static void pin_first(unsigned requests)
{
	void *memory;
	for (unsigned i = 0; i < requests; i++) {
		usleep(5000);
		OK(cuMemHostAlloc(&memory, 4096, 0));
		usleep(300);
		spin(stream, 40);
		wait_by("stream");
		OK(cuMemFreeHost(memory));
	}
	printf("pinned %u\n", requests);
}

// Requests at the ticks of a clock, as exactly as the scheduler allows.
static void periodic(unsigned requests, unsigned period_us)
{
	struct timespec next;
	clock_gettime(CLOCK_MONOTONIC, &next);
	for (unsigned i = 0; i < requests; i++) {
		next.tv_nsec += period_us * 1000L;
		next.tv_sec += next.tv_nsec / 1000000000;
		next.tv_nsec %= 1000000000;
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL);
		spin(stream, 40);
		wait_by("stream");
	}
	printf("requests %u\n", requests);
}

// Requests of one kernel, 1 ms after a range of that name began.
// Work comes up to so long after its range begins, each time another while; 0: none comes.
static void ranges(unsigned requests, const char *name, bool in_domain, unsigned gap_us, unsigned least_us, unsigned most_us)
{
	bool loaded = nvtx_load();
	struct nvtx_attributes attributes = {.version = 3, .size = sizeof attributes, .kind = 3};
	for (unsigned i = 0; i < requests; i++) {
		usleep(gap_us);
		if (in_domain && nvtx_domain_push) {
			attributes.message = nvtx_register(NULL, name);
			nvtx_domain_push(NULL, &attributes);
		} else if (nvtx_push) {
			nvtx_push(name);
		}
		if (most_us) {
			usleep(least_us + (most_us - least_us) / 8 * (i * 5 % 8));
			spin(stream, 40);
			wait_by("stream");
		}
		if (nvtx_pop)
			nvtx_pop();
	}
	printf("loaded %d\n", loaded);
}

// Short work on one stream after another, then a long kernel on one more, which is left running for a while.
static handle long_stream;
static void streams(unsigned n, unsigned us)
{
	for (unsigned i = 0; i < n; i++) {
		OK(cuStreamCreate(&long_stream, 1));
		spin(long_stream, 10);
		OK(cuStreamSynchronize(long_stream));
		OK(cuStreamDestroy_v2(long_stream));
	}
	OK(cuStreamCreate(&long_stream, 1));
	spin(long_stream, us);
	struct timespec pause = {0, 20000000}; // longer than any grace
	nanosleep(&pause, NULL);
	printf("running %d\n", cuStreamQuery(long_stream) != 0);
}

static void run_child(void)
{
	int status = -1;
	pid_t pid = fork();
	if (pid == 0) {
		execl("/bin/true", "true", (char *)NULL);
		_exit(127);
	}
	if (pid > 0)
		waitpid(pid, &status, 0);
	printf("status %d\n", status);
}

// From here on the address space does not grow.
static void starve(void)
{
	unsigned long pages = 0;
	struct rlimit limit;
	FILE *file = fopen("/proc/self/statm", "r");
	if (!file || fscanf(file, "%lu", &pages) != 1 || fclose(file) || getrlimit(RLIMIT_AS, &limit))
		exit(1);
	limit.rlim_cur = pages * 4096;
	OK(setrlimit(RLIMIT_AS, &limit));
	printf("starved %d\n", mmap(NULL, 1 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED);
}

int main(void)
{
	char line[128], word[32];
	pthread_t thread;
	bool running = false;
	unsigned a, b, c, d, pause_us;
	setvbuf(stdout, NULL, _IOLBF, 0);
	start();
	while (fgets(line, sizeof line, stdin)) {
		pause_us = 0; // may be left out
		if (sscanf(line, "lc %u %u %u %u %31s %u", &a, &b, &c, &d, word, &pause_us) >= 5) {
			latency_critical(a, b, c, d, word, pause_us);
		} else if (strcmp(line, "be\n") == 0) {
			running = pthread_create(&thread, NULL, best_effort, NULL) == 0;
			printf("running %d\n", running);
		} else if (strcmp(line, "count\n") == 0) {
			printf("count %u\n", kernels);
		} else if (sscanf(line, "wide %31s", word) == 1) {
			context_wide(word);
		} else if (sscanf(line, "beside %31s %u", word, &a) == 2) {
			beside_calls(word, a);
		} else if (sscanf(line, "capture %u", &a) == 1) {
			capture(a);
		} else if (sscanf(line, "streams %u %u", &a, &b) == 2) {
			streams(a, b);
		} else if (strcmp(line, "wait\n") == 0) {
			OK(cuStreamSynchronize(long_stream));
			printf("done 1\n");
		} else if (sscanf(line, "cooperative %u %31s", &a, word) == 2) {
			cooperative(a, word);
		} else if (strcmp(line, "timeslices\n") == 0) {
			timeslices();
		} else if (strcmp(line, "free_other\n") == 0) {
			free_of_other();
		} else if (strcmp(line, "replace\n") == 0) {
			replace_context();
		} else if (strcmp(line, "replaced\n") == 0) {
			work_in_replaced();
		} else if (sscanf(line, "contexts %u", &a) == 1) {
			contexts(a);
		} else if (sscanf(line, "reload %u", &a) == 1) {
			reload(a);
		} else if (sscanf(line, "both %u", &a) == 1) {
			both(a);
		} else if (strcmp(line, "context\n") == 0) {
			second_context();
		} else if (sscanf(line, "hinted %u %u %u", &a, &b, &c) == 3) {
			hinted(a, b, c);
		} else if (sscanf(line, "hold_on %u %u %u", &a, &b, &c) == 3) {
			hold_on(a, b, c);
		} else if (sscanf(line, "hints %u %u %31s", &a, &b, word) == 3) {
			only_hints(a, b, word);
		} else if (sscanf(line, "copy %u %u %u", &a, &b, &c) == 3) {
			copy_first(a, b, c);
		} else if (sscanf(line, "pin %u", &a) == 1) {
			pin_first(a);
		} else if (sscanf(line, "periodic %u %u", &a, &b) == 2) {
			periodic(a, b);
		} else if (sscanf(line, "ranges %u %31s %u", &a, word, &b) == 3) {
			ranges(a, word, b, 10000, 1000, 1000);
		} else if (sscanf(line, "late %u %u %u", &a, &b, &c) == 3) {
			ranges(a, "request", false, b, 0, c);
		} else if (sscanf(line, "allocate %u", &a) == 1) {
			ptr memory;
			printf("result %d\n", cuMemAlloc_v2(&memory, (size_t)a << 20));
		} else if (strcmp(line, "starve\n") == 0) {
			starve();
		} else if (strcmp(line, "child\n") == 0) {
			run_child();
		} else if (strcmp(line, "crash\n") == 0) {
			*(volatile int *)8 = 1;
		} else {
			printf("unknown command\n");
		}
	}
	if (running) {
		stop = true;
		pthread_join(thread, NULL);
	}
	printf("count %u\n", kernels);
	return 0;
}
