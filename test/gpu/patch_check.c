// Runs kernels of an original cubin and of the same cubin rewritten, on a GPU, and compares what they leave bit by bit. The rewritten ones
// run with no record, with a record and no stop, and stopped before they begin. They are also stopped and resumed at random moments, by
// single blocks, by windows and as a whole.
//
//	patch_check ORIGINAL GUARDED [ROUNDS] [more rewritten cubins or fatbins, which only have to load]
#include <cuda.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "guard.h"

// clang-format off
#define DRIVER(X)                                                                                                      \
	X(cuInit) X(cuDeviceGet) X(cuDeviceGetName) X(cuDeviceGetAttribute) X(cuDevicePrimaryCtxRetain)                 \
	X(cuCtxSetCurrent) X(cuModuleLoadData) X(cuModuleGetFunction) X(cuLaunchKernelEx) X(cuMemAlloc) X(cuMemFree)    \
	X(cuMemcpyHtoD) X(cuMemcpyDtoH) X(cuMemcpyHtoDAsync) X(cuMemcpy2DAsync) X(cuMemsetD8) X(cuStreamCreate) X(cuStreamSynchronize)     \
	X(cuCtxSynchronize) X(cuEventCreate) X(cuEventRecord) X(cuEventElapsedTime) X(cuEventSynchronize)               \
	X(cuGetErrorName) X(cuFuncSetAttribute) X(cuModuleUnload) X(cuMemHostAlloc)               \
	X(cuLibraryLoadData) X(cuLibraryUnload)
// clang-format on

#define STRING_(x) #x
#define STRING(x) STRING_(x)
#define DECLARE(name) static __typeof__(name) *p_##name;
DRIVER(DECLARE)

static int failures;

static void fail(const char *format, ...)
{
	va_list list;
	va_start(list, format);
	printf("FAIL ");
	vprintf(format, list);
	printf("\n");
	va_end(list);
	failures++;
}

#define CHECK(call) \
	do { \
		CUresult result_ = p_##call; \
		if (result_ != CUDA_SUCCESS) { \
			const char *name_ = "?"; \
			p_cuGetErrorName(result_, &name_); \
			printf("FAIL %s:%d %s: %s\n", __FILE__, __LINE__, #call, name_); \
			exit(1); \
		} \
	} while (0)

// The parameters' sizes are those in patch_check.cu.
struct test {
	const char *name;
	unsigned grid[3], block, shared, cluster, extra_bytes;
	bool hopper;
};

static const struct test tests[] = {
	{"in_place", {20000, 1, 1}, 256, 0, 0, 0, false},
	{"in_place", {37, 61, 9}, 128, 0, 0, 0, false},
	{"in_place", {3, 1, 1}, 32, 0, 0, 0, false},
	{"atomics", {20000, 1, 1}, 256, 0, 0, 0, false},
	{"shared_memory", {10000, 1, 1}, 512, 4096, 0, 0, false},
	{"functions", {10000, 1, 1}, 96, 0, 0, 0, false},
	{"look_back", {4000, 1, 1}, 1024, 0, 0, 0, false},
	{"tickets", {20000, 1, 1}, 64, 0, 0, 0, false},
	{"parameters_4095", {10000, 1, 1}, 128, 0, 0, 4075, false},
	{"parameters_4096", {10000, 1, 1}, 128, 0, 0, 4076, false},
	{"parameters_32752", {10000, 1, 1}, 128, 0, 0, 32732, false},
	{"full_block", {10000, 1, 1}, 1024, 0, 0, 0, false},
	{"clusters", {100, 100, 1}, 256, 0, 4, 0, true},
	{"launched_in_clusters", {20000, 1, 1}, 64, 0, 8, 0, true},
	{"launched_in_clusters", {20000, 1, 1}, 64, 0, 0, 0, true},
};

static const unsigned shifts[] = {0, 4, 9, GPREEMPT_WHOLE};

enum { SHIFTS = sizeof(shifts) / sizeof(*shifts) };

enum { BINS = 4096, SPIN_NS = 20000, MOST_RECORDS = 256 };

static CUstream work, control;
static CUdeviceptr arena, record_at, data, bins;
static unsigned *before, *expected, *after; // data and bins
static unsigned *one, *zero, *frozen;       // page-locked
static size_t words;
static unsigned char extra[32768];

static size_t threads_of(const struct test *t) { return (size_t)t->grid[0] * t->grid[1] * t->grid[2] * t->block; }

// The units that the record counts: blocks or, since sm_90, clusters.
static unsigned long long units_of(const struct test *t)
{
	unsigned long long blocks = (unsigned long long)t->grid[0] * t->grid[1] * t->grid[2];
	return t->cluster ? blocks / t->cluster : blocks;
}

static unsigned long long windows_of(const struct test *t, unsigned shift)
{
	return (units_of(t) + (1ull << shift) - 1) >> shift;
}

static void launch(const struct test *t, CUfunction function, bool guarded, CUdeviceptr record, unsigned spin_ns, bool buffer)
{
	CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, .value.clusterDim = {t->cluster, 1, 1}};
	CUlaunchConfig config = {.gridDimX = t->grid[0],
				 .gridDimY = t->grid[1],
				 .gridDimZ = t->grid[2],
				 .blockDimX = t->block,
				 .blockDimY = 1,
				 .blockDimZ = 1,
				 .sharedMemBytes = t->shared,
				 .hStream = work};
	if (t->cluster && strcmp(t->name, "clusters") != 0) {
		config.attrs = &attribute;
		config.numAttrs = 1;
	}
	void *parameters[6] = {&data, &bins, &spin_ns};
	int count = 3;
	if (t->extra_bytes)
		parameters[count++] = extra;
	if (guarded)
		parameters[count++] = &record;
	if (!buffer) {
		CHECK(cuLaunchKernelEx(&config, function, parameters, NULL));
		return;
	}
	static unsigned char packed[32768];
	size_t size = 20;
	memcpy(packed, &data, 8);
	memcpy(packed + 8, &bins, 8);
	memcpy(packed + 16, &spin_ns, 4);
	memcpy(packed + size, extra, t->extra_bytes);
	size += t->extra_bytes;
	if (guarded) {
		size = (size + 7) & ~(size_t)7;
		memcpy(packed + size, &record, 8);
		size += 8;
	}
	void *options[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
	CHECK(cuLaunchKernelEx(&config, function, NULL, options));
}

static void set_data(void)
{
	CHECK(cuMemcpyHtoD(data, before, words * 4));
	CHECK(cuMemsetD8(bins, 0, BINS * 4));
	CHECK(cuCtxSynchronize()); // the streams here do not wait for the one of these
}

static void get_data(unsigned *to)
{
	CHECK(cuMemcpyDtoH(to, data, words * 4));
	CHECK(cuMemcpyDtoH(to + words, bins, BINS * 4));
}

static bool compare(const struct test *t, const char *what)
{
	get_data(after);
	for (size_t i = 0; i < words + BINS; i++) {
		if (after[i] != expected[i]) {
			fail("%s: %s: word %zu is %u, expected %u", t->name, what, i, after[i], expected[i]);
			return false;
		}
	}
	return true;
}

static void set_stop(unsigned *value, CUstream stream) { CHECK(cuMemcpyHtoDAsync(arena, value, 4, stream)); }

// Sets the stop flag for launches that have not begun, then freezes the launches of so many records from record_at on.
static void stop_all(unsigned records)
{
	set_stop(one, control);
	CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_HOST,
			      .srcHost = frozen,
			      .srcPitch = sizeof(*frozen),
			      .dstMemoryType = CU_MEMORYTYPE_DEVICE,
			      .dstPitch = sizeof(struct gpreempt_record),
			      .dstDevice = record_at + offsetof(struct gpreempt_record, state),
			      .WidthInBytes = sizeof(*frozen),
			      .Height = records};
	CHECK(cuMemcpy2DAsync(&rows, control));
}

static void set_record(CUdeviceptr at, struct gpreempt_record r)
{
	CHECK(cuMemcpyHtoD(at, &r, sizeof(r)));
	CHECK(cuCtxSynchronize());
}

static struct gpreempt_record get_record(CUdeviceptr at)
{
	struct gpreempt_record r;
	CHECK(cuMemcpyDtoH(&r, at, sizeof(r)));
	return r;
}

static void wait_us(unsigned us)
{
	struct timespec t = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
	nanosleep(&t, NULL);
}

// Launches until nothing is left, with a stop at a random moment of each launch but the last few.
static int interrupted_run(const struct test *t, CUfunction guarded, unsigned shift, unsigned length_us, int *midway)
{
	struct gpreempt_record r = {0};
	int launches = 0;
	for (;; launches++) {
		set_record(record_at, r);
		set_stop(zero, control);
		CHECK(cuStreamSynchronize(control));
		launch(t, guarded, true, record_at + shift, SPIN_NS, false);
		if (launches < 8) {
			wait_us((unsigned)rand() % (length_us + 20));
			stop_all(1);
		}
		CHECK(cuStreamSynchronize(work));
		CHECK(cuStreamSynchronize(control));
		r = get_record(record_at);
		if (r.count > windows_of(t, shift) || r.count < r.done)
			fail("%s: shift %u: cut at %u of %llu, %u before", t->name, shift, r.count,
			     windows_of(t, shift), r.done);
		if (r.count == windows_of(t, shift))
			return launches + 1;
		if (r.state != GPREEMPT_FROZEN)
			fail("%s: shift %u: %u of %llu, but not frozen", t->name, shift, r.count, windows_of(t, shift));
		*midway += r.count > r.done;
		r.state = 0;
		r.done = r.count;
	}
}

static void allocate(const struct test *t)
{
	words = threads_of(t);
	before = malloc(words * 4);
	expected = malloc((words + BINS) * 4);
	after = malloc((words + BINS) * 4);
	for (size_t i = 0; i < words; i++)
		before[i] = (unsigned)(i * 2654435761u >> 7);
	CHECK(cuMemAlloc(&data, words * 4));
	set_stop(zero, control);
	CHECK(cuStreamSynchronize(control));
}

static void release(void)
{
	CHECK(cuMemFree(data));
	free(before);
	free(expected);
	free(after);
}

static float time_us(const struct test *t, CUfunction function, bool guarded, CUdeviceptr record, unsigned spin_ns, int times)
{
	CUevent start, end;
	CHECK(cuEventCreate(&start, 0));
	CHECK(cuEventCreate(&end, 0));
	float best = 1e9f;
	for (int i = 0; i < times; i++) {
		float ms;
		CHECK(cuMemsetD8(bins, 0, BINS * 4));
		CHECK(cuCtxSynchronize());
		if (record)
			set_record(record_at, (struct gpreempt_record){0});
		CHECK(cuEventRecord(start, work));
		launch(t, function, guarded, record, spin_ns, false);
		CHECK(cuEventRecord(end, work));
		CHECK(cuEventSynchronize(end));
		CHECK(cuEventElapsedTime(&ms, start, end));
		best = ms < best ? ms : best;
	}
	return best * 1000;
}

// Two launches in one stream, stopped at random moments: while the first is cut, the second begins no block.
static void run_queued(CUmodule original, CUmodule rewritten, int rounds)
{
	static const struct test queued[2] = {{"in_place", {20000, 1, 1}, 256, 0, 0, 0, false},
					      {"functions", {20000, 1, 1}, 256, 0, 0, 0, false}};
	CUfunction plain[2], guarded[2];
	CUdeviceptr at[2] = {record_at, record_at + 5 * sizeof(struct gpreempt_record)};
	int failed = failures, skipped = 0, launches = 0;
	unsigned length_us = 0;
	allocate(&queued[0]);
	set_data();
	for (int k = 0; k < 2; k++) {
		CHECK(cuModuleGetFunction(&plain[k], original, queued[k].name));
		CHECK(cuModuleGetFunction(&guarded[k], rewritten, queued[k].name));
		launch(&queued[k], plain[k], false, 0, 0, false);
	}
	CHECK(cuStreamSynchronize(work));
	get_data(expected);
	for (int k = 0; k < 2; k++)
		length_us += (unsigned)time_us(&queued[k], plain[k], false, 0, SPIN_NS, 2);

	for (int i = 0; i < rounds && failures == failed; i++) {
		struct gpreempt_record r[2] = {{0}, {0}};
		bool left[2] = {true, true};
		set_data();
		for (int stops = 0; left[0] || left[1]; stops++) {
			unsigned begun = r[1].done;
			set_stop(zero, control);
			CHECK(cuStreamSynchronize(control));
			for (int k = 0; k < 2; k++)
				set_record(at[k], r[k]);
			for (int k = 0; k < 2; k++) {
				if (left[k]) {
					launch(&queued[k], guarded[k], true, at[k], SPIN_NS, false);
					launches++;
				}
			}
			if (stops < 8) {
				wait_us((unsigned)rand() % (length_us + 20));
				stop_all(6);
			}
			CHECK(cuStreamSynchronize(work));
			CHECK(cuStreamSynchronize(control));
			for (int k = 0; k < 2; k++) {
				if (!left[k])
					continue;
				r[k] = get_record(at[k]);
				left[k] = r[k].count < units_of(&queued[k]);
				r[k].state = 0;
				r[k].done = r[k].count;
			}
			if (left[0] && r[0].done < units_of(&queued[0])) {
				skipped++;
				if (!left[1] || r[1].done != begun)
					fail("queued: the second of two launches began though the first was cut at %u",
					     r[0].done);
			}
		}
		compare(&queued[1], "queued, stopped and resumed");
	}
	if (skipped == 0)
		fail("queued: the first of two launches never stopped in %d", launches);
	printf("%s queued: %d launches, %d times the second was skipped\n", failures == failed ? "ok  " : "FAIL",
	       launches, skipped);
	release();
}

static void run(const struct test *t, CUmodule original, CUmodule rewritten, int rounds)
{
	CUfunction plain, guarded;
	CHECK(cuModuleGetFunction(&plain, original, t->name));
	CHECK(cuModuleGetFunction(&guarded, rewritten, t->name));
	if (t->cluster > 1 && strcmp(t->name, "clusters") != 0) {
		CHECK(cuFuncSetAttribute(plain, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1));
		CHECK(cuFuncSetAttribute(guarded, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1));
	}
	int failed = failures;
	allocate(t);
	set_data();
	launch(t, plain, false, 0, 0, false);
	CHECK(cuStreamSynchronize(work));
	get_data(expected);
	unsigned length_us = (unsigned)time_us(t, plain, false, 0, SPIN_NS, 2);

	for (int buffer = 0; buffer < 2; buffer++) {
		set_data();
		launch(t, guarded, true, 0, 0, buffer);
		CHECK(cuStreamSynchronize(work));
		compare(t, buffer ? "no record, extra" : "no record");

		for (int i = 0; i < SHIFTS; i++) {
			set_data();
			set_record(record_at, (struct gpreempt_record){0});
			launch(t, guarded, true, record_at + shifts[i], 0, buffer);
			CHECK(cuStreamSynchronize(work));
			compare(t, buffer ? "no stop, extra" : "no stop");
			struct gpreempt_record r = get_record(record_at);
			if (r.state != GPREEMPT_OPEN || r.count != windows_of(t, shifts[i]))
				fail("%s: shift %u: state %#x, count %u after %llu blocks or clusters", t->name,
				     shifts[i], r.state, r.count, units_of(t));
		}
	}

	for (int i = 0; i < 2 * SHIFTS; i++) { // by the flag, by the record
		set_data();
		set_record(record_at, (struct gpreempt_record){.state = i % 2 ? GPREEMPT_FROZEN : 0});
		set_stop(i % 2 ? zero : one, work);
		launch(t, guarded, true, record_at + shifts[i / 2], 0, false);
		CHECK(cuStreamSynchronize(work));
		get_data(after);
		struct gpreempt_record r = get_record(record_at);
		if (r.state != GPREEMPT_FROZEN || r.count || memcmp(after, before, words * 4) != 0)
			fail("%s: shift %u: stopped before it began, state %#x, count %u", t->name, shifts[i / 2],
			     r.state, r.count);
	}

	int midway = 0, launches = 0;
	for (int i = 0; i < rounds && failures == failed; i++) {
		set_data();
		launches += interrupted_run(t, guarded, shifts[i % SHIFTS], length_us, &midway);
		compare(t, "stopped and resumed");
	}
	if (midway == 0 && units_of(t) > 2000)
		fail("%s: never stopped midway in %d launches", t->name, launches);
	printf("%s %s %ux%ux%u: %d launches, %d stopped midway\n", failures == failed ? "ok  " : "FAIL", t->name,
	       t->grid[0], t->grid[1], t->grid[2], launches, midway);
	release();
}

static void *read_file(const char *path)
{
	FILE *file = fopen(path, "rb");
	if (!file) {
		perror(path);
		exit(1);
	}
	fseek(file, 0, SEEK_END);
	long size = ftell(file);
	rewind(file);
	void *image = aligned_alloc(64, ((size_t)size + 63) & ~(size_t)63);
	if (!image || fread(image, 1, (size_t)size, file) != (size_t)size) {
		fprintf(stderr, "%s: cannot read\n", path);
		exit(1);
	}
	fclose(file);
	return image;
}

// One line of the table: how long the original kernel takes, the guarded one without a record, and the guarded one with a record.
static void cost(CUmodule original, CUmodule rewritten, const char *kernel, unsigned grid, unsigned block,
		 unsigned argument, const char *what, size_t bytes)
{
	CUfunction plain, guarded;
	struct test t = {kernel, {grid, 1, 1}, block, 0, 0, 0, false};
	CHECK(cuModuleGetFunction(&plain, original, kernel));
	CHECK(cuModuleGetFunction(&guarded, rewritten, kernel));
	float us[] = {time_us(&t, plain, false, 0, argument, 20), time_us(&t, guarded, true, 0, argument, 20),
		      time_us(&t, guarded, true, record_at, argument, 20),
		      time_us(&t, guarded, true, record_at + 9, argument, 20),
		      time_us(&t, guarded, true, record_at + 11, argument, 20)};
	printf("cost %7u blocks of %4u, %-8s", grid, block, what);
	for (int i = 0; i < 5; i++) {
		static const char *const names[] = {"original", "without record", "with record", "windows of 512",
						    "of 2048"};
		printf("%s %s %.1f us", i ? "," : "", names[i], us[i]);
		if (i)
			printf(" (%+.1f %%)", (us[i] / us[0] - 1) * 100);
		if (bytes)
			printf(" %.0f GB/s", bytes / us[i] / 1000);
	}
	printf("\n");
}

static void costs(CUmodule original, CUmodule rewritten)
{
	const unsigned blocks[] = {32, 256, 1024}, grids[] = {132, 1 << 20}, times_us[] = {1, 3, 10};
	for (int g = 0; g < 2; g++)
		for (int b = 0; b < 3; b++)
			cost(original, rewritten, "empty", grids[g], blocks[b], 0, "empty", 0);
	int clock_khz;
	CHECK(cuDeviceGetAttribute(&clock_khz, CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 0));
	for (int b = 1; b < 3; b++) {
		for (int i = 0; i < 3; i++) {
			char what[16];
			snprintf(what, sizeof(what), "%u us", times_us[i]);
			cost(original, rewritten, "busy", 1 << 17, blocks[b], times_us[i] * (unsigned)clock_khz / 1000,
			     what, 0);
		}
	}
	const size_t size = 1 << 30;
	CUdeviceptr all_bins = bins;
	CHECK(cuMemAlloc(&data, size));
	CHECK(cuMemAlloc(&bins, size));
	CHECK(cuMemsetD8(data, 1, size));
	for (int b = 1; b < 3; b++)
		cost(original, rewritten, "copy", (unsigned)(size / 16 / blocks[b]), blocks[b], 0, "copy", 2 * size);
	CHECK(cuMemFree(data));
	CHECK(cuMemFree(bins));
	bins = all_bins;
}

// How long a stop takes to reach blocks that follow each other at once: from the call to the last block's begin. The grids fill the GPU
// many times over. Also how long a queued launch behind takes to exit.
static void stops(CUmodule rewritten)
{
	CUfunction guarded;
	struct test t = {"busy", {1 << 17, 1, 1}, 1024, 0, 0, 0, false};
	struct timespec from, to;
	int clock_khz;
	CHECK(cuDeviceGetAttribute(&clock_khz, CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 0));
	CHECK(cuModuleGetFunction(&guarded, rewritten, t.name));
	for (unsigned shift = 0; shift <= 11; shift += 11) {
		for (unsigned records = 1; records <= MOST_RECORDS; records *= 16) {
			long best = 1000000000, sum = 0, calls = 0;
			for (int i = 0; i < 20; i++) {
				set_record(record_at, (struct gpreempt_record){0});
				set_stop(zero, control);
				CHECK(cuStreamSynchronize(control));
				launch(&t, guarded, true, record_at + shift, 10 * (unsigned)clock_khz / 1000, false);
				wait_us(200 + (unsigned)i);
				clock_gettime(CLOCK_MONOTONIC, &from);
				stop_all(records);
				clock_gettime(CLOCK_MONOTONIC, &to);
				calls += (to.tv_sec - from.tv_sec) * 1000000000 + to.tv_nsec - from.tv_nsec;
				CHECK(cuStreamSynchronize(work));
				clock_gettime(CLOCK_MONOTONIC, &to);
				long ns = (to.tv_sec - from.tv_sec) * 1000000000 + to.tv_nsec - from.tv_nsec;
				best = ns < best ? ns : best;
				sum += ns;
			}
			printf("stop of blocks of 10 us, shift %2u, %3u records: until the launch has ended %.1f us "
			       "mean, %.1f us least; the calls take %.1f us\n",
			       shift, records, sum / 20e3, best / 1e3, calls / 20e3);
		}
	}
}

static void hung(int signal)
{
	(void)signal;
	static const char text[] = "FAIL hung\n";
	(void)!write(1, text, sizeof(text) - 1);
	_exit(1);
}

static void start(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (!driver) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
#define LOOK_UP(name) \
	if (!(p_##name = (__typeof__(p_##name))dlsym(driver, STRING(name)))) { \
		fprintf(stderr, "no %s\n", STRING(name)); \
		exit(1); \
	}
	DRIVER(LOOK_UP)
	CUdevice device;
	CUcontext context;
	char name[128];
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&device, 0));
	CHECK(cuDeviceGetName(name, sizeof(name), device));
	CHECK(cuDevicePrimaryCtxRetain(&context, device));
	CHECK(cuCtxSetCurrent(context));
	CHECK(cuStreamCreate(&work, CU_STREAM_NON_BLOCKING));
	CHECK(cuStreamCreate(&control, CU_STREAM_NON_BLOCKING));
	CHECK(cuMemAlloc(&arena, 2 * GPREEMPT_ARENA_BYTES));
	arena = (arena + GPREEMPT_ARENA_BYTES - 1) & ~(CUdeviceptr)(GPREEMPT_ARENA_BYTES - 1);
	record_at = arena + 77 * sizeof(struct gpreempt_record);
	CHECK(cuMemAlloc(&bins, BINS * 4));
	CHECK(cuMemHostAlloc((void **)&one, 4, 0));
	CHECK(cuMemHostAlloc((void **)&zero, 4, 0));
	CHECK(cuMemHostAlloc((void **)&frozen, MOST_RECORDS * sizeof(*frozen), 0));
	for (int i = 0; i < MOST_RECORDS; i++)
		frozen[i] = GPREEMPT_FROZEN;
	*one = 1;
	*zero = 0;
	for (size_t i = 0; i < sizeof(extra); i++)
		extra[i] = (unsigned char)(i * 37 >> 3);
	printf("%s\n", name);
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: patch_check ORIGINAL GUARDED [ROUNDS] [LOAD ...]\n");
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	int rounds = argc > 3 ? atoi(argv[3]) : 20;
	start();
	signal(SIGALRM, hung);
	int major;
	CHECK(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
	CUmodule original, rewritten;
	CHECK(cuModuleLoadData(&original, read_file(argv[1])));
	CHECK(cuModuleLoadData(&rewritten, read_file(argv[2])));
	for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
		alarm(60);
		if (tests[i].hopper && major < 9)
			continue; // has no clusters
		run(&tests[i], original, rewritten, rounds);
	}
	alarm(60);
	run_queued(original, rewritten, rounds);
	set_stop(zero, control);
	CHECK(cuStreamSynchronize(control));
	costs(original, rewritten);
	alarm(60);
	stops(rewritten);
	for (int i = 4; i < argc; i++) {
		CUlibrary library;
		void *image = read_file(argv[i]);
		CHECK(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
		CUmodule module;
		CUresult result = p_cuModuleLoadData(&module, image);
		if (result == CUDA_SUCCESS)
			CHECK(cuModuleUnload(module));
		else
			fail("%s: does not load: %d", argv[i], result);
		CHECK(cuLibraryUnload(library));
		free(image);
	}
	printf("%d more files loaded\n", argc > 4 ? argc - 4 : 0);
	printf(failures ? "FAILED\n" : "PASSED\n");
	return failures != 0;
}
