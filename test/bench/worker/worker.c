// The worker processes of gpreempt-bench in C: plain programs that use the CUDA driver API as any application does.
// They live in the command's own file and run from a constructor, before the Go runtime of the command would start: the
// process that is measured holds nothing but the worker, the driver and, where it is preloaded, the library.
//
//   gpreempt-bench bench-worker <info|calibrate|lc|be|launch|idle|streams|hold|copies> [--option value]...
//
// ../PROTOCOL.md says how it is spoken to. The module with the kernels is read from file descriptor 3 (not for info).
// Every worker is bounded by --limit seconds.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

// From cuda.h.
typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUfunc_st *CUfunction;
typedef struct CUevent_st *CUevent;
typedef struct CUmod_st *CUmodule;
enum { CU_CTX_SCHED_AUTO = 0, CU_CTX_SCHED_SPIN = 1 };
enum { CU_STREAM_NON_BLOCKING = 1, CU_EVENT_DISABLE_TIMING = 2 };
enum {
	CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
	CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
};
enum { CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8 };

#define DRIVER_FUNCTIONS(F) \
	F(cuInit, (unsigned)) \
	F(cuDriverGetVersion, (int *)) \
	F(cuDeviceGet, (CUdevice *, int)) \
	F(cuDeviceGetCount, (int *)) \
	F(cuDeviceGetName, (char *, int, CUdevice)) \
	F(cuDeviceGetAttribute, (int *, int, CUdevice)) \
	F(cuDevicePrimaryCtxSetFlags_v2, (CUdevice, unsigned)) \
	F(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice)) \
	F(cuCtxSetCurrent, (CUcontext)) \
	F(cuCtxGetCurrent, (CUcontext *)) \
	F(cuCtxSynchronize, (void)) \
	F(cuModuleLoadData, (CUmodule *, const void *)) \
	F(cuModuleGetFunction, (CUfunction *, CUmodule, const char *)) \
	F(cuFuncSetAttribute, (CUfunction, int, int)) \
	F(cuDeviceTotalMem_v2, (size_t *, CUdevice)) \
	F(cuMemAlloc_v2, (CUdeviceptr *, size_t)) \
	F(cuMemFree_v2, (CUdeviceptr)) \
	F(cuMemHostAlloc, (void **, size_t, unsigned)) \
	F(cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream)) \
	F(cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream)) \
	F(cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream)) \
	F(cuMemcpyHtoD_v2, (CUdeviceptr, const void *, size_t)) \
	F(cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t)) \
	F(cuCtxGetStreamPriorityRange, (int *, int *)) \
	F(cuStreamCreate, (CUstream *, unsigned)) \
	F(cuStreamCreateWithPriority, (CUstream *, unsigned, int)) \
	F(cuStreamSynchronize, (CUstream)) \
	F(cuEventCreate, (CUevent *, unsigned)) \
	F(cuEventRecord, (CUevent, CUstream)) \
	F(cuEventSynchronize, (CUevent)) \
	F(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, \
			   void **, void **)) \
	F(cuLaunchCooperativeKernel, \
	  (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **))

#define DECLARE(name, parameters) static CUresult(*name) parameters;
DRIVER_FUNCTIONS(DECLARE)

static void __attribute__((noreturn, format(printf, 1, 2))) fail(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	fprintf(stderr, "bench-worker: ");
	vfprintf(stderr, format, arguments);
	fprintf(stderr, "\n");
	va_end(arguments);
	exit(1);
}

#define CHECK(call) \
	do { \
		CUresult result_ = (call); \
		if (result_) \
			fail("%s: CUDA error %d", #call, (int)result_); \
	} while (0)

static uint64_t now_ns(clockid_t clock)
{
	struct timespec time;
	clock_gettime(clock, &time);
	return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static uint64_t monotonic_ns(void) { return now_ns(CLOCK_MONOTONIC); }

static void sleep_ns(uint64_t ns)
{
	struct timespec time = {ns / 1000000000, ns % 1000000000};
	while (nanosleep(&time, &time) && errno == EINTR)
		;
}

enum { MODULE_FILE = 3 };

static char *order_line;
static _Atomic bool stopped;   // a start was followed by a stop, or by the end of the orders
static bool stops_by_order;    // the work began with start, not with run
static pthread_t order_reader; // of the stop

// Standard output goes out line by line.
static void answer(const char *text) { puts(text); }

// A part of an answer: what comes before the list, its name last.
static void print_list(const char *opening, const uint64_t *values, size_t count)
{
	printf("%s:[", opening);
	for (size_t i = 0; i < count; i++)
		printf("%s%llu", i ? "," : "", (unsigned long long)values[i]);
	printf("]");
}

// The next order, or NULL where there are no more.
static char *next_order(void)
{
	static size_t size;
	ssize_t length = getline(&order_line, &size, stdin);
	if (length <= 0)
		return NULL;
	if (order_line[length - 1] == '\n')
		order_line[length - 1] = 0;
	return order_line;
}

static void *read_stop(void *unused)
{
	const char *order = next_order();
	if (order && strcmp(order, "stop"))
		fail("order %.40s: expected stop", order);
	stopped = true;
	return unused;
}

// Says that everything is set up, and waits for the order to begin: run, or start, which a stop ends.
static void await_begin(void)
{
	answer("{}");
	const char *order = next_order();
	if (!order)
		exit(0);
	if (!strcmp(order, "run"))
		return;
	if (strcmp(order, "start"))
		fail("order %.40s: expected run or start", order);
	stops_by_order = true;
	int failure = pthread_create(&order_reader, NULL, read_stop, NULL);
	if (failure)
		fail("start a thread: %s", strerror(failure));
}

// Answers start: the work is under way.
static void under_way(void)
{
	if (stops_by_order)
		answer("{}");
}

// Waits for the stop where the work ended by itself before.
static void await_stop(void)
{
	if (stops_by_order)
		pthread_join(order_reader, NULL);
}

static int argument_count;
static char **arguments;

// The value of an option, the last where it is given several times, or NULL.
static const char *option(const char *name)
{
	const char *value = NULL;
	for (int i = 3; i + 1 < argument_count; i += 2)
		if (!strcmp(arguments[i] + 2, name))
			value = arguments[i + 1];
	return value;
}

static uint64_t number(const char *name, uint64_t otherwise)
{
	const char *text = option(name);
	if (!text)
		return otherwise;
	char *end;
	uint64_t value = strtoull(text, &end, 10);
	if (end == text || *end)
		fail("--%s %s: not a number", name, text);
	return value;
}

static CUdevice device;
static CUstream stream;
static CUmodule module;
static CUdeviceptr memory; // one float per block
static int multiprocessors;

static void load_driver(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library)
		fail("load the CUDA driver: %s", dlerror());
#define LOOK_UP(name, parameters) \
	*(void **)&name = dlsym(library, #name); \
	if (!name) \
		fail("the CUDA driver lacks " #name);
	DRIVER_FUNCTIONS(LOOK_UP)
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&device, 0));
	CHECK(cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
}

static void set_up(unsigned scheduling)
{
	static char image[4 << 20];
	FILE *file = fdopen(MODULE_FILE, "rb");
	size_t size = file ? fread(image, 1, sizeof image, file) : 0;
	if (size == 0 || size == sizeof image)
		fail("read the module from file descriptor %d: %zu bytes", MODULE_FILE, size);
	fclose(file);
	load_driver();
	CHECK(cuDevicePrimaryCtxSetFlags_v2(device, scheduling));
	CUcontext context;
	CHECK(cuDevicePrimaryCtxRetain(&context, device));
	CHECK(cuCtxSetCurrent(context));
	CHECK(cuModuleLoadData(&module, image));
	CHECK(cuMemAlloc_v2(&memory, 1 << 20));
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
}

static CUfunction function(const char *name)
{
	CUfunction found;
	CHECK(cuModuleGetFunction(&found, module, name));
	return found;
}

// The kernel that a worker launches again and again, as the options describe it.
struct work {
	CUfunction function;
	unsigned blocks, threads, shared_bytes;
	uint64_t iterations;
	bool cooperative;
};

static struct work work_from_options(void)
{
	struct work work = {
		.blocks = number("blocks", multiprocessors),
		.threads = number("threads", 1024),
		.shared_bytes = number("shared", 0),
		.iterations = number("iterations", 0),
		.cooperative = number("cooperative", 0),
	};
	if (work.blocks == 0 || work.blocks > (1 << 20) / sizeof(float))
		fail("--blocks %u: out of range", work.blocks);
	work.function = function(work.shared_bytes   ? "bench_work_shared" :
				 number("uneven", 0) ? "bench_work_uneven" :
						       "bench_work");
	if (work.shared_bytes)
		CHECK(cuFuncSetAttribute(work.function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, work.shared_bytes));
	return work;
}

static inline void launch(struct work *work)
{
	void *parameters[] = {&memory, &work->iterations};
	if (work->cooperative)
		CHECK(cuLaunchCooperativeKernel(work->function, work->blocks, 1, 1, work->threads, 1, 1,
						work->shared_bytes, stream, parameters));
	else
		CHECK(cuLaunchKernel(work->function, work->blocks, 1, 1, work->threads, 1, 1, work->shared_bytes,
				     stream, parameters, NULL));
}

static void command_info(void)
{
	char name[256];
	int version, shared, devices;
	size_t bytes;
	load_driver();
	CHECK(cuDeviceGetName(name, sizeof name, device));
	CHECK(cuDriverGetVersion(&version));
	CHECK(cuDeviceGetCount(&devices));
	CHECK(cuDeviceGetAttribute(&shared, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device));
	CHECK(cuDeviceTotalMem_v2(&bytes, device));
	for (char *c = name; *c; c++)
		if (*c == '"' || *c == '\\' || (unsigned char)*c < ' ')
			*c = '_';
	printf("{\"name\":\"%s\",\"devices\":%d,\"cuda\":%d,\"multiprocessors\":%d,\"shared_bytes\":%d,\"memory_"
	       "bytes\":%zu}\n",
	       name, devices, version, multiprocessors, shared, bytes);
}

// The least time of several runs of `count` launches back to back.
static uint64_t batch_ns(struct work *work, int count)
{
	uint64_t least = UINT64_MAX;
	for (int run = 0; run < 5; run++) {
		uint64_t start = monotonic_ns();
		for (int i = 0; i < count; i++)
			launch(work);
		CHECK(cuStreamSynchronize(stream));
		uint64_t taken = monotonic_ns() - start;
		if (taken < least)
			least = taken;
	}
	return least;
}

// Finds the iterations for a kernel of --us microseconds. The cost that every launch has drops out: the time of an iteration is the
// difference between two kernels.
static void command_calibrate(void)
{
	enum { MOST_DOUBLINGS = 6 };
	set_up(CU_CTX_SCHED_SPIN);
	struct work work = work_from_options();
	uint64_t wanted_ns = number("us", 100) * 1000;
	await_begin();
	work.iterations = 1000;
	for (;;) { // also brings the clocks up
		uint64_t start = monotonic_ns();
		launch(&work);
		CHECK(cuStreamSynchronize(stream));
		if (monotonic_ns() - start > 1000000)
			break;
		work.iterations *= 2;
	}
	for (uint64_t start = monotonic_ns(); monotonic_ns() - start < 200000000;) {
		launch(&work);
		CHECK(cuStreamSynchronize(stream));
	}
	uint64_t many = work.iterations, long_ns, short_ns;
	for (int doublings = 0;; doublings++) { // beside other programs a short kernel may take as long as a longer one
		work.iterations = many;
		long_ns = batch_ns(&work, 4);
		work.iterations = many / 4;
		short_ns = batch_ns(&work, 4);
		if (long_ns > short_ns)
			break;
		if (doublings == MOST_DOUBLINGS)
			fail("calibrate: a kernel of %llu iterations took no longer than one of %llu",
			     (unsigned long long)many, (unsigned long long)work.iterations);
		many *= 2;
	}
	double ns_each = (double)(long_ns - short_ns) / 4 / (many - many / 4);
	uint64_t iterations = wanted_ns / ns_each;
	printf("{\"iterations\":%llu}\n", (unsigned long long)(iterations ? iterations : 1));
}

// Uniform around the mean, from least on; the same sequence in every run.
static uint64_t jittered(uint64_t mean, uint64_t least, uint32_t *state)
{
	*state = *state * 1664525u + 1013904223u;
	return least + (2 * (mean - least) * (*state >> 8) >> 24);
}

// Before a request its data is prepared for --prepare-us, with --hint 1 announced at the start; the request
// and its latency begin afterwards.
//
// Requests one after another: a gap, --kernels launches, each or all of them synchronised.
static void command_lc(void)
{
	set_up(CU_CTX_SCHED_SPIN);
	struct work work = work_from_options();
	uint64_t kernels = number("kernels", 1), gap_ns = number("gap-us", 3000) * 1000;
	uint64_t requests = number("requests", 600), warm_up = number("warm-up", 20);
	uint64_t seconds = number("seconds", 10);
	uint64_t prepare_us = number("prepare-us", 0);
	int (*hint)(int64_t, double) =
		number("hint", 0) ? dlsym(RTLD_DEFAULT, "gpreempt_hint") : NULL; // the library's (gpreempt.h)
	bool each = number("sync-each", 0), context = number("sync-context", 0);
	uint64_t least_ns = number("gap-least-us", gap_ns / 1000) * 1000;
	if (least_ns > gap_ns)
		fail("--gap-least-us %llu: above --gap-us", (unsigned long long)least_ns / 1000);
	uint32_t random = 1;
	uint64_t *latency_ns = calloc(requests, sizeof *latency_ns);
	if (!latency_ns)
		fail("no memory for %llu requests", (unsigned long long)requests);
	await_begin();
	under_way();

	uint64_t began = monotonic_ns(), start = began, done = 0;
	uint64_t last = began + seconds * 1000000000;
	for (uint64_t i = 0; i < warm_up + requests && (!stopped || !done); i++) { // one counts, however soon stop comes
		// Warm-up requests are never counted: a slow one may use up no more than half of the time.
		if (i < warm_up && (stopped || monotonic_ns() > began + seconds * 500000000))
			i = warm_up;
		if (i == warm_up)
			start = monotonic_ns();
		sleep_ns(jittered(gap_ns, least_ns, &random));
		if (hint)
			hint(prepare_us, 1);
		for (uint64_t from = monotonic_ns(); prepare_us && monotonic_ns() - from < prepare_us * 1000;)
			;
		uint64_t arrived = monotonic_ns();
		for (uint64_t k = 0; k < kernels; k++) {
			launch(&work);
			if (each || k + 1 == kernels)
				CHECK(context ? cuCtxSynchronize() : cuStreamSynchronize(stream));
		}
		uint64_t end = monotonic_ns();
		if (i >= warm_up)
			latency_ns[done++] = end - arrived;
		if (end > last)
			break;
	}
	uint64_t end = monotonic_ns();
	await_stop();

	printf("{\"start_ns\":%llu,\"end_ns\":%llu", (unsigned long long)start, (unsigned long long)end);
	print_list(",\"latencies_ns\"", latency_ns, done);
	printf("}\n");
}

// Kernels back to back, --depth of them in flight, until stop or for --seconds. Reports when how
// many had completed.
static void command_be(void)
{
	enum { MAX_DEPTH = 64, SAMPLES = 1 << 16 };
	static uint64_t sample_ns[SAMPLES], sample_count[SAMPLES];
	set_up(CU_CTX_SCHED_AUTO);
	struct work work = work_from_options();
	uint64_t depth = number("depth", 4), seconds = number("seconds", 60), streams = number("streams", 1);
	if (depth < 1 || depth > MAX_DEPTH)
		fail("--depth %llu: 1 to %d", (unsigned long long)depth, MAX_DEPTH);
	if (streams < 1 || streams > depth)
		fail("--streams %llu: 1 to the depth of %llu", (unsigned long long)streams, (unsigned long long)depth);
	CUevent event[MAX_DEPTH];
	CUstream each[MAX_DEPTH] = {stream};
	for (uint64_t i = 0; i < depth; i++)
		CHECK(cuEventCreate(&event[i], CU_EVENT_DISABLE_TIMING));
	for (uint64_t i = 1; i < streams; i++)
		CHECK(cuStreamCreate(&each[i], CU_STREAM_NON_BLOCKING));

	await_begin();

	uint64_t start = monotonic_ns(), launched = 0, completed = 0;
	size_t samples = 0;
	bool said = false;
	while (!stopped && monotonic_ns() - start < seconds * 1000000000) {
		stream = each[launched % streams];
		launch(&work);
		CHECK(cuEventRecord(event[launched++ % depth], stream));
		if (launched < depth)
			continue;
		CHECK(cuEventSynchronize(event[completed++ % depth]));
		uint64_t now = monotonic_ns();
		if (samples == 0 || (now - sample_ns[samples - 1] >= 1000000 && samples < SAMPLES)) {
			sample_ns[samples] = now;
			sample_count[samples++] = completed;
		}
		if (!said && completed >= 2 * depth) {
			under_way();
			said = true;
		}
	}
	for (uint64_t i = 0; i < streams; i++)
		CHECK(cuStreamSynchronize(each[i]));
	await_stop();

	print_list("{\"times_ns\"", sample_ns, samples);
	print_list(",\"counts\"", sample_count, samples);
	printf("}\n");
}

static double launch_round_ns(CUfunction empty)
{
	enum { LAUNCHES = 200 }; // the driver's queue takes as many without waiting for the GPU
	uint64_t start = monotonic_ns();
	for (int i = 0; i < LAUNCHES; i++)
		CHECK(cuLaunchKernel(empty, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
	uint64_t end = monotonic_ns();
	CHECK(cuStreamSynchronize(stream));
	return (double)(end - start) / LAUNCHES;
}

// The CPU time of a launch: the least of many rounds. With --objective 1 each round has a pair with an objective, and
// more_ns compares the least of both: in one process addresses are the same.
static void command_launch(void)
{
	double least_ns[2] = {INFINITY, INFINITY}; // without an objective, and with one
	set_up(CU_CTX_SCHED_SPIN);
	CUfunction empty = function("bench_empty");
	uint64_t rounds = number("rounds", 100);
	int (*objective)(double, double, double) = NULL;
	if (number("objective", 0) && !(*(void **)&objective = dlsym(RTLD_DEFAULT, "gpreempt_objective")))
		fail("--objective: the library is not preloaded");
	await_begin();
	for (int64_t round = -10; round < (int64_t)rounds; round++)
		for (int turn = 0; turn <= !!objective; turn++) {
			bool with = objective && turn != (round & 1); // which is first takes turns
			if (objective && objective(with ? 2 : 0, 0, 0))
				fail("gpreempt_objective: refused");
			double ns = launch_round_ns(empty);
			if (round >= 0)
				least_ns[with] = fmin(least_ns[with], ns);
		}
	printf("{\"least_ns\":%.2f,\"more_ns\":%.2f}\n", least_ns[0], objective ? least_ns[1] - least_ns[0] : 0);
}

// A process with a context and nothing to do.
static void command_idle(void)
{
	set_up(CU_CTX_SCHED_AUTO);
	struct work work = work_from_options();
	work.iterations = 1;
	launch(&work);
	CHECK(cuStreamSynchronize(stream));
	await_begin();
	sleep_ns(1000000000); // what set-up left to background threads is over
	uint64_t cpu = now_ns(CLOCK_PROCESS_CPUTIME_ID), wall = monotonic_ns();
	sleep_ns(5000000000);
	cpu = now_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu;
	wall = monotonic_ns() - wall;
	unsigned long long resident_kb = 0;
	char line[256];
	FILE *status = fopen("/proc/self/status", "r");
	while (status && fgets(line, sizeof line, status))
		sscanf(line, "VmRSS: %llu", &resident_kb);
	printf("{\"cpu_ns\":%llu,\"wall_ns\":%llu,\"rss_kb\":%llu}\n", (unsigned long long)cpu,
	       (unsigned long long)wall, resident_kb);
}

#include "streams.h"
#include "memory.h"

static const struct {
	const char *name;
	void (*run)(void);
} commands[] = {
	{"info", command_info},       {"calibrate", command_calibrate}, {"lc", command_lc},
	{"be", command_be},           {"idle", command_idle},           {"launch", command_launch},
	{"streams", command_streams}, {"hold", command_hold},           {"copies", command_copies},
};

static void __attribute__((constructor)) bench_worker(int count, char **values)
{
	if (count < 3 || strcmp(values[1], "bench-worker"))
		return;
	setvbuf(stdout, NULL, _IOLBF, 1 << 16);
	argument_count = count;
	arguments = values;
	for (int i = 3; i < count; i += 2)
		if (strncmp(values[i], "--", 2) || i + 1 == count)
			fail("%s: expected --option value", values[i]);
	prctl(PR_SET_NAME, values[2]); // tells LC from BE in gpreempt top
	alarm(number("limit", 60));
	const char *order = next_order();
	if (!order)
		exit(0);
	if (strcmp(order, "init"))
		fail("order %.40s: expected init", order);
	for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
		if (!strcmp(values[2], commands[i].name)) {
			commands[i].run();
			exit(0);
		}
	fail("%s: no such worker", values[2]);
}
