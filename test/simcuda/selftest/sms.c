// sms.c - the simulated driver's promises about SMs: which blocks have room together, and green contexts, whose streams have a part of
// the SMs. usage: sms NAME; prints "simulated: NAME ok" or the first failure, and exits 0 or 1.
//
// A block of a kernel here takes tens of ms, so that a thread that comes late changes little. A check that holds only while something else
// still runs is TIMED, too.
#define _GNU_SOURCE
#include "../../../kernels/guard/guard.h"
#include "check.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

typedef unsigned long long ptr;
typedef void *handle;
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(handle *, int);
int cuCtxSetCurrent(handle);
int cuCtxGetCurrent(handle *);
int cuCtxPushCurrent_v2(handle);
int cuCtxPopCurrent_v2(handle *);
int cuCtxDestroy_v2(handle);
int cuCtxSynchronize(void);
int cuStreamCreate(handle *, unsigned);
int cuStreamCreateWithPriority(handle *, unsigned, int);
int cuStreamDestroy_v2(handle);
int cuStreamSynchronize(handle);
int cuStreamQuery(handle);
int cuStreamGetCtx(handle, handle *);
int cuStreamWaitEvent(handle, handle, unsigned);
int cuStreamWriteValue32_v2(handle, ptr, uint32_t, unsigned);
int cuStreamBeginCapture_v2(handle, int);
int cuStreamEndCapture(handle, handle *);
int cuGraphInstantiateWithFlags(handle *, handle, unsigned long long);
int cuGraphLaunch(handle, handle);
int cuEventCreate(handle *, unsigned);
int cuEventRecord(handle, handle);
int cuEventQuery(handle);
int cuEventSynchronize(handle);
int cuEventElapsedTime(float *, handle, handle);
int cuMemAlloc_v2(ptr *, size_t);
int cuMemGetInfo_v2(size_t *, size_t *);
int cuMemsetD32_v2(ptr, unsigned, size_t);
int cuMemcpyDtoH_v2(void *, ptr, size_t);
int cuMemcpyHtoD_v2(ptr, const void *, size_t);
int cuModuleLoad(handle *, const char *);
int cuModuleLoadData(handle *, const void *);
int cuModuleGetFunction(handle *, handle, const char *);
int cuLaunchKernel(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **);
int cuLaunchCooperativeKernel(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle,
			      void **);
struct attribute { int id, pad, value[16]; };
struct config {
	unsigned grid[3], block[3], shared;
	handle stream;
	const struct attribute *attributes;
	unsigned count;
};
int cuLaunchKernelEx(const struct config *, handle, void **, void **);
struct resource { // CUdevResource
	int type;
	unsigned char padding[92];
	unsigned sms, least, multiple;
	unsigned char more[36];
};
int cuDeviceGetDevResource(int, struct resource *, int);
int cuDevSmResourceSplitByCount(struct resource *, unsigned *, const struct resource *, struct resource *, unsigned,
				unsigned);
int cuDevResourceGenerateDesc(handle *, struct resource *, unsigned);
int cuGreenCtxCreate(handle *, handle, int, unsigned);
int cuGreenCtxDestroy(handle);
int cuGreenCtxStreamCreate(handle *, handle, unsigned, int);
int cuGreenCtxGetDevResource(handle, struct resource *, int);
int cuGreenCtxRecordEvent(handle, handle);
int cuGreenCtxWaitEvent(handle, handle);
int cuStreamGetGreenCtx(handle, handle *);
int cuCtxFromGreenCtx(handle *, handle);
int cuCtxGetDevResource(handle, struct resource *, int);

enum {
	SM = 1,
	NON_BLOCKING = 1,
	DEFAULT_STREAM = 1,
	NOT_READY = 600,
	INVALID = 1,
	TOO_LARGE = 720,
	CLUSTER = 912,
	DETACHED = 917
};

static handle context, module;

static void start(void)
{
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	OK(cuModuleLoadData(&module, "simulated image"));
}

static handle function(const char *name)
{
	handle f;
	OK(cuModuleGetFunction(&f, module, name));
	return f;
}

static handle green_of(unsigned sms)
{
	struct resource all, part;
	unsigned groups = 1;
	handle set, green;
	OK(cuDeviceGetDevResource(0, &all, SM));
	OK(cuDevSmResourceSplitByCount(&part, &groups, &all, NULL, 0, sms));
	OK(cuDevResourceGenerateDesc(&set, &part, 1));
	OK(cuGreenCtxCreate(&green, set, 0, DEFAULT_STREAM));
	return green;
}

static handle stream_of(handle green, int priority)
{
	handle s;
	OK(green ? cuGreenCtxStreamCreate(&s, green, NON_BLOCKING, priority) :
		   cuStreamCreateWithPriority(&s, NON_BLOCKING, priority));
	return s;
}

static void pause_ms(unsigned ms)
{
	struct timespec t = {0, (long)ms * 1000000};
	nanosleep(&t, NULL);
}

// 264 of its blocks, of 1024 threads, take ms on the whole machine: two on each SM.
static void work(handle stream, unsigned blocks, unsigned threads, unsigned ms)
{
	ptr data = 0;
	uint64_t ns = ms * 1000000ull;
	void *parameters[] = {&data, &ns};
	OK(cuLaunchKernel(function("bench_work"), blocks, 1, 1, threads, 1, 1, 0, stream, parameters, NULL));
}

// How long that takes from now on, in ms.
static double took(handle stream, unsigned blocks, unsigned threads, unsigned ms)
{
	handle from, to;
	float took;
	OK(cuEventCreate(&from, 0));
	OK(cuEventCreate(&to, 0));
	OK(cuEventRecord(from, stream));
	work(stream, blocks, threads, ms);
	OK(cuEventRecord(to, stream));
	OK(cuEventSynchronize(to));
	OK(cuEventElapsedTime(&took, from, to));
	return (double)took;
}

#define TAKES(ms, time) \
	do { \
		double took_ = (time); \
		TIMED(took_ > (ms) - 1 && took_ < (ms) + 9); \
	} while (0)

static void green(void)
{ // what may be done with green contexts and their streams
	start();
	size_t before, after, all_bytes;
	struct resource r;
	OK(cuMemGetInfo_v2(&before, &all_bytes));
	handle g = green_of(20), s = stream_of(g, -3), plain = stream_of(NULL, 0), found, as, current, event, own;
	OK(cuMemGetInfo_v2(&after, &all_bytes));
	CHECK(before - after >= 5 << 20 && before - after <= 6 << 20);
	OK(cuGreenCtxGetDevResource(g, &r, SM));
	CHECK(r.sms == 24 && r.least == 8 && r.multiple == 8);
	REFUSED(INVALID, cuGreenCtxStreamCreate(&found, g, 0, 0));
	OK(cuStreamGetGreenCtx(s, &found));
	CHECK(found == g);
	OK(cuStreamGetGreenCtx(plain, &found));
	CHECK(!found);
	// as a context
	OK(cuCtxFromGreenCtx(&as, g));
	CHECK(as != context);
	OK(cuStreamGetCtx(s, &found));
	CHECK(found == as);
	OK(cuCtxGetDevResource(as, &r, SM));
	CHECK(r.sms == 24);
	OK(cuCtxGetDevResource(context, &r, SM));
	CHECK(r.sms == 132);
	OK(cuCtxPushCurrent_v2(as));
	OK(cuCtxGetCurrent(&current));
	CHECK(current == as);
	OK(cuStreamGetGreenCtx(NULL, &found));
	CHECK(found == g);
	OK(cuStreamGetCtx(NULL, &found));
	CHECK(found == as);
	OK(cuEventCreate(&own, 2));
	OK(cuStreamCreate(&found, NON_BLOCKING));
	OK(cuCtxPopCurrent_v2(&current));
	CHECK(cuCtxDestroy_v2(as) != 0);
	TAKES(20, took(found, 24, 1024, 20));
	TAKES(3 * 20, took(found, 3 * 24, 1024, 20)); // 48 at once, two of which on an SM take twice as long
	// the primary waits for it, and events go between them
	OK(cuEventCreate(&event, 2));
	work(s, 264, 1024, 20);
	OK(cuEventRecord(event, s));
	TIMED(cuEventQuery(event) == NOT_READY);
	OK(cuCtxSynchronize());
	OK(cuEventQuery(event));
	work(s, 264, 1024, 20);
	work(stream_of(g, 0), 264, 1024, 40);
	OK(cuGreenCtxRecordEvent(g, event));
	OK(cuStreamWaitEvent(plain, event, 0));
	work(plain, 1, 32, 1);
	OK(cuEventRecord(own, plain));
	OK(cuStreamSynchronize(s));
	TIMED(cuEventQuery(own) == NOT_READY); // of both streams
	OK(cuGreenCtxWaitEvent(g, own));
	OK(cuStreamSynchronize(s));
	OK(cuEventQuery(own));
	// its streams end with it
	OK(cuGreenCtxDestroy(g));
	REFUSED(DETACHED, cuStreamQuery(s));
	OK(cuStreamDestroy_v2(s));
	OK(cuMemGetInfo_v2(&after, &all_bytes));
	CHECK(after == before);
	TAKES(20, took(plain, 264, 1024, 20));
}

static void split(void)
{ // sets of SMs
	start();
	struct resource all, part[16], left;
	handle set, g;
	unsigned groups = 16;
	OK(cuDeviceGetDevResource(0, &all, SM));
	CHECK(all.sms == 132 && all.least == 8 && all.multiple == 8);
	OK(cuDevSmResourceSplitByCount(NULL, &groups, &all, NULL, 0, 8));
	CHECK(groups == 16);
	groups = 2;
	OK(cuDevSmResourceSplitByCount(part, &groups, &all, &left, 0, 49));
	CHECK(groups == 2 && part[0].sms == 56 && part[1].sms == 56 && left.sms == 20);
	groups = 16;
	OK(cuDevSmResourceSplitByCount(part + 2, &groups, &left, NULL, 1, 19));
	CHECK(groups == 1 && part[2].sms == 20);
	groups = 1;
	REFUSED(INVALID, cuDevSmResourceSplitByCount(part, &groups, &left, NULL, 0, 17));
	REFUSED(INVALID, cuDevSmResourceSplitByCount(part, &groups, &all, NULL, 0, 0));
	OK(cuDevResourceGenerateDesc(&set, part, 3));
	REFUSED(INVALID, cuGreenCtxCreate(&g, set, 0, 0));
	OK(cuGreenCtxCreate(&g, set, 0, DEFAULT_STREAM));
	OK(cuGreenCtxGetDevResource(g, &all, SM));
	CHECK(all.sms == 132);
	// two groups of one split have no SM in common
	handle beside[2];
	for (int i = 0; i < 2; i++) {
		OK(cuDevResourceGenerateDesc(&set, &part[i], 1));
		OK(cuGreenCtxCreate(&g, set, 0, DEFAULT_STREAM));
		beside[i] = stream_of(g, 0);
	}
	work(beside[0], 56, 1024, 60);
	TAKES(60, took(beside[1], 56, 1024, 60));
	OK(cuStreamSynchronize(beside[0]));
	TAKES(2 * 60, took(beside[0], 112, 1024, 60));
}

// Requests beside work that has so many SMs.
static void room(void)
{
	start();
	handle narrow = stream_of(green_of(64), 0), wide = stream_of(NULL, 0), urgent = stream_of(NULL, -5);
	work(narrow, 128, 1024, 400);
	pause_ms(5);
	TAKES(20, took(urgent, 16, 512, 20));       // leaves room
	TAKES(20, took(urgent, 66, 1024, 20));      // of half of the SMs
	TAKES(2 * 20, took(urgent, 132, 1024, 20)); // one on each SM, if it can: two on half of them get half as much done
	TAKES(2 * 20, took(urgent, 264, 1024, 20)); // 136 at once
	TIMED(cuStreamQuery(narrow) == NOT_READY);
	OK(cuStreamSynchronize(narrow));
	work(wide, 264, 1024, 100);
	pause_ms(5);
	TIMED(took(urgent, 16, 512, 20) > 80); // there is none before the end of a block
	OK(cuStreamSynchronize(wide));
	work(wide, 132, 1024, 100);
	pause_ms(5);
	TAKES(20, took(urgent, 132, 1024, 20)); // beside another block there is
}

static void urgent(void)
{ // of what waits for room, the most urgent goes first, then what came first
	start();
	green_of(8);
	handle first = stream_of(NULL, 0), later = stream_of(NULL, 0), last = stream_of(NULL, -5);
	work(first, 264, 1024, 60);
	pause_ms(5);
	work(later, 264, 1024, 60);
	pause_ms(5);
	work(last, 264, 1024, 60);
	OK(cuStreamSynchronize(first));
	TIMED(cuStreamQuery(last) == NOT_READY);
	OK(cuStreamSynchronize(last));
	TIMED(cuStreamQuery(later) == NOT_READY);
	OK(cuStreamSynchronize(later));
	// small work behind a launch that has no room waits, though it had some
	work(first, 132 * 3, 512, 60);
	pause_ms(5);
	work(later, 264, 1024, 60);
	pause_ms(5);
	TIMED(took(stream_of(NULL, 0), 1, 32, 1) > 50);
	OK(cuCtxSynchronize());
}

static void narrow(void)
{ // the part of the SMs that a green context has
	start();
	handle g = green_of(64), s = stream_of(g, 0), plain = stream_of(NULL, 0), f = function("sim_barrier");
	TAKES(3 * 20, took(s, 264, 1024, 20)); // 128 at once
	TAKES(20, took(s, 64, 1024, 20));
	TAKES(2 * 20, took(s, 128, 1024, 20)); // two on an SM, where the machine has one
	TAKES(20, took(s, 16, 32, 20));
	// what must be there at once is refused where it would not fit
	ptr word, data;
	OK(cuMemAlloc_v2(&word, 4));
	OK(cuMemAlloc_v2(&data, 4 * 264));
	OK(cuMemsetD32_v2(word, 0, 1));
	int per_block = 1;
	unsigned us = 1000;
	void *parameters[] = {&word, &data, &per_block, &us};
	REFUSED(TOO_LARGE, cuLaunchCooperativeKernel(f, 264, 1, 1, 1024, 1, 1, 0, s, parameters));
	OK(cuLaunchCooperativeKernel(f, 128, 1, 1, 1024, 1, 1, 0, s, parameters));
	OK(cuCtxSynchronize());
	OK(cuMemsetD32_v2(word, 0, 1));
	OK(cuLaunchCooperativeKernel(f, 264, 1, 1, 1024, 1, 1, 0, plain, parameters));
	OK(cuCtxSynchronize());
	struct attribute cluster = {.id = 4, .value = {16, 1, 1}};
	struct config c = {{264, 1, 1}, {64, 1, 1}, 0, s, &cluster, 1};
	uint64_t spin = 1;
	void *spins[] = {&spin};
	REFUSED(CLUSTER, cuLaunchKernelEx(&c, function("sim_spin_us"), spins, NULL));
	c.stream = plain;
	OK(cuLaunchKernelEx(&c, function("sim_spin_us"), spins, NULL));
	// a launch of 129 that is not cooperative is taken, and hangs: its blocks wait for one that has no room
	OK(cuMemsetD32_v2(word, 0, 1));
	OK(cuCtxSynchronize());
	OK(cuLaunchKernel(f, 129, 1, 1, 1024, 1, 1, 0, s, parameters, NULL));
	pause_ms(50);
	TIMED(cuStreamQuery(s) == NOT_READY);
}

static handle captured_on(handle s)
{
	handle graph, exec;
	OK(cuStreamBeginCapture_v2(s, 0));
	work(s, 264, 1024, 20);
	OK(cuStreamEndCapture(s, &graph));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	return exec;
}

static double graph_took(handle exec, handle stream)
{
	handle from, to;
	float took;
	OK(cuEventCreate(&from, 0));
	OK(cuEventCreate(&to, 0));
	OK(cuEventRecord(from, stream));
	OK(cuGraphLaunch(exec, stream));
	OK(cuEventRecord(to, stream));
	OK(cuEventSynchronize(to));
	OK(cuEventElapsedTime(&took, from, to));
	return (double)took;
}

static void graphs(void)
{ // a graph has the SMs of the stream on which it was captured
	start();
	handle s = stream_of(green_of(64), 0), plain = stream_of(NULL, 0);
	handle of_narrow = captured_on(s), of_plain = captured_on(plain);
	TAKES(3 * 20, graph_took(of_narrow, plain));
	TAKES(3 * 20, graph_took(of_narrow, s));
	TAKES(20, graph_took(of_plain, s));
}

static void cut(void)
{ // a launch that is cut on the whole machine goes on in a part of it, and back, and no block runs twice
	enum { BLOCKS = 264 * 8, PER_BLOCK = 1, LAUNCHES = 3 };
	start();
	char path[512];
	handle m, f, s[LAUNCHES] = {stream_of(NULL, 0), stream_of(green_of(64), 0), stream_of(NULL, 0)};
	handle control = stream_of(NULL, -5);
	snprintf(path, sizeof path, "%s/guarded.cubin", getenv("IMAGES"));
	OK(cuModuleLoad(&m, path));
	OK(cuModuleGetFunction(&f, m, "sim_increment"));
	ptr arena, data;
	OK(cuMemAlloc_v2(&arena, 2 * GPREEMPT_ARENA_BYTES));
	arena = (arena + GPREEMPT_ARENA_BYTES - 1) & ~(ptr)(GPREEMPT_ARENA_BYTES - 1);
	OK(cuMemsetD32_v2(arena, 0, GPREEMPT_ARENA_BYTES / 4));
	OK(cuMemAlloc_v2(&data, 4 * BLOCKS));
	OK(cuMemsetD32_v2(data, 0, BLOCKS));
	OK(cuCtxSynchronize());
	int per_block = PER_BLOCK;
	unsigned us = 8 * 40000; // a wave of the whole machine takes 40 ms
	unsigned done = 0;
	for (unsigned i = 0; i < LAUNCHES; i++) {
		struct gpreempt_record r = {.done = done};
		ptr hidden = arena + (1 + i) * sizeof r;
		void *parameters[] = {&data, &per_block, &us, &hidden};
		OK(cuMemcpyHtoD_v2(hidden, &r, sizeof r));
		OK(cuLaunchKernel(f, BLOCKS, 1, 1, 1024, 1, 1, 0, s[i], parameters, NULL));
		if (i < LAUNCHES - 1) {
			pause_ms(60);
			OK(cuStreamWriteValue32_v2(control, hidden + offsetof(struct gpreempt_record, state),
						   GPREEMPT_FROZEN, 0));
		}
		OK(cuStreamSynchronize(s[i]));
		OK(cuMemcpyDtoH_v2(&r, hidden, sizeof r));
		TIMED(i == LAUNCHES - 1 || r.count < BLOCKS);
		CHECK(r.count > done && (i == LAUNCHES - 1 || (r.count - done) % (i == 1 ? 128 : 264) == 0)); // whole waves
		done = r.count;
	}
	CHECK(done == BLOCKS);
	unsigned ran[BLOCKS];
	OK(cuMemcpyDtoH_v2(ran, data, sizeof ran));
	for (unsigned i = 0; i < BLOCKS; i++)
		CHECK(ran[i] == 1);
}

static void placed(void)
{ // threads, registers and shared memory limit what runs together, beside other launches too
	start();
	handle a = stream_of(NULL, 0), b = stream_of(NULL, 0);
	work(a, 264, 1024, 60);
	pause_ms(5);
	TAKES(60, took(b, 264, 1024, 60)); // without a green context all run together
	OK(cuCtxSynchronize());
	green_of(8);
	work(a, 264, 1024, 60);
	pause_ms(5);
	TIMED(took(b, 264, 1024, 60) > 100);
	OK(cuCtxSynchronize());
	uint64_t us = 60000;
	void *spins[] = {&us};
	OK(cuLaunchKernel(function("sim_spin_us"), 264, 1, 1, 1024, 1, 1, 0, a, spins, NULL)); // of half of the registers
	pause_ms(5);
	TIMED(took(b, 1, 32, 1) > 50);
	// 32 blocks fit an SM, of whatever size; one with 114 KB of shared memory leaves room for one more
	enum { MOST_SHARED = 49152 };
	ptr data = 0;
	uint64_t ns = 60000000;
	void *parameters[] = {&data, &ns};
	work(a, 132 * 32, 32, 4);
	pause_ms(5);
	TIMED(took(b, 1, 32, 1) > 50);
	OK(cuCtxSynchronize());
	OK(cuLaunchKernel(function("bench_work"), 132 * 4, 1, 1, 32, 1, 1, MOST_SHARED, a, parameters, NULL));
	pause_ms(5);
	TAKES(20, took(b, 264, 512, 20)); // which need none
	handle from, to;
	float took_ms;
	OK(cuEventCreate(&from, 0));
	OK(cuEventCreate(&to, 0));
	OK(cuEventRecord(from, b));
	ns = 1000000;
	OK(cuLaunchKernel(function("bench_work"), 1, 1, 1, 32, 1, 1, MOST_SHARED, b, parameters, NULL));
	OK(cuEventRecord(to, b));
	OK(cuEventSynchronize(to));
	OK(cuEventElapsedTime(&took_ms, from, to));
	TIMED(took_ms > 20);
}

static const struct test tests[] = {
	{"green", green},   {"split", split},   {"room", room}, {"urgent", urgent},
	{"narrow", narrow}, {"graphs", graphs}, {"cut", cut},   {"placed", placed},
};

int main(int argc, char **argv) { return run_test(argc, argv, tests, sizeof tests / sizeof *tests); }
