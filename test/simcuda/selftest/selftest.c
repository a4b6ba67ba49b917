// selftest.c - the simulated driver's promises, checked by real processes. usage: selftest NAME; prints "simulated: NAME ok" or the first
// failure, and exits 0 or 1.
#define _GNU_SOURCE
#include "../../../kernels/fill.h"
#include "../../../kernels/guard/guard.h"
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long ptr;
typedef void *handle;
int cuInit(unsigned);
int cuDriverGetVersion(int *);
int cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);
int cuDevicePrimaryCtxRetain(handle *, int);
int cuDevicePrimaryCtxRelease_v2(int);
int cuCtxSetCurrent(handle);
int cuCtxSynchronize(void);
int cuDeviceGetDevResource(int, void *, int);
int cuDevResourceGenerateDesc(handle *, void *, unsigned);
int cuGreenCtxCreate(handle *, handle, int, unsigned);
int cuStreamCreate(handle *, unsigned);
int cuStreamCreateWithPriority(handle *, unsigned, int);
int cuStreamDestroy_v2(handle);
int cuStreamSynchronize(handle);
int cuStreamQuery(handle);
int cuStreamWaitEvent(handle, handle, unsigned);
int cuStreamBeginCapture_v2(handle, int);
int cuStreamEndCapture(handle, handle *);
int cuEventCreate(handle *, unsigned);
int cuEventRecord(handle, handle);
int cuEventQuery(handle);
int cuEventSynchronize(handle);
int cuEventElapsedTime(float *, handle, handle);
int cuMemAlloc_v2(ptr *, size_t);
int cuMemFree_v2(ptr);
int cuMemHostAlloc(void **, size_t, unsigned);
int cuMemcpyHtoDAsync_v2(ptr, const void *, size_t, handle);
int cuMemcpyDtoH_v2(void *, ptr, size_t);
int cuMemcpyDtoHAsync_v2(void *, ptr, size_t, handle);
struct copy_2d { // CUDA_MEMCPY2D
	struct {
		size_t x, y;
		int type;
		void *host;
		ptr device;
		void *array;
		size_t pitch;
	} from, to;
	size_t width, rows;
};
int cuMemcpy2DAsync_v2(const struct copy_2d *, handle);
int cuMemsetD32_v2(ptr, unsigned, size_t);
int cuModuleLoadData(handle *, const void *);
int cuModuleGetFunction(handle *, handle, const char *);
int cuLaunchKernel(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **);
int cuLaunchHostFunc(handle, void (*)(void *), void *);
int cuStreamWaitValue32_v2(handle, ptr, uint32_t, unsigned);
int cuGraphInstantiateWithFlags(handle *, handle, unsigned long long);
int cuGraphLaunch(handle, handle);
int cuGraphGetNodes(handle, handle *, size_t *);
struct kernel_node {
	handle func;
	unsigned grid[3], block[3], shared;
	void **parameters, **extra;
	handle kern, context;
};
int cuGraphCreate(handle *, unsigned);
int cuGraphAddKernelNode_v2(handle *, handle, const handle *, size_t, const struct kernel_node *);
int cuGraphAddEmptyNode(handle *, handle, const handle *, size_t);
int cuGraphKernelNodeGetParams_v2(handle, struct kernel_node *);
int cuGraphKernelNodeSetParams_v2(handle, const struct kernel_node *);
int cuGraphKernelNodeGetAttribute(handle, int, void *);
int cuGraphExecKernelNodeSetParams_v2(handle, handle, const struct kernel_node *);
int cuGraphExecUpdate_v2(handle, handle, void *);
int cuLaunchCooperativeKernel(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle,
			      void **);
int cuMemcpyHtoD_v2(ptr, const void *, size_t);
int cuStreamWriteValue32_v2(handle, ptr, uint32_t, unsigned);
int cuModuleLoad(handle *, const char *);
int cuModuleLoadFatBinary(handle *, const void *);
int cuModuleUnload(handle);
int cuModuleGetGlobal_v2(ptr *, size_t *, handle, const char *);
int cuModuleGetFunctionCount(unsigned *, handle);
int cuFuncGetParamInfo(handle, size_t, size_t *, size_t *);
int cuFuncGetModule(handle *, handle);
int cuFuncGetName(const char **, handle);
int cuLibraryLoadData(handle *, const void *, int *, void **, unsigned, int *, void **, unsigned);
int cuLibraryLoadFromFile(handle *, const char *, int *, void **, unsigned, int *, void **, unsigned);
int cuLibraryUnload(handle);
int cuLibraryGetKernel(handle *, handle, const char *);
int cuLibraryGetKernelCount(unsigned *, handle);
int cuLibraryEnumerateKernels(handle *, unsigned, handle);
int cuLibraryGetModule(handle *, handle);
int cuLibraryGetGlobal(ptr *, size_t *, handle, const char *);
int cuKernelGetFunction(handle *, handle);
int cuKernelGetName(const char **, handle);
int cuKernelGetLibrary(handle *, handle);
int cuKernelGetParamInfo(handle, size_t, size_t *, size_t *);
int cuLinkCreate_v2(unsigned, int *, void **, handle *);
int cuLinkAddData_v2(handle, int, const void *, size_t, const char *, unsigned, int *, void **);
int cuLinkComplete(handle, void **, size_t *);
int cuLinkDestroy(handle);

// ---- the RM side, watched as a preloaded library would watch it: we are in front of the driver's ioctl
static int control_file = -1;
static uint32_t compute_client, compute_tsg, subdevice, subdevice_client, channels[8], compute_objects, wrapped;
static int channel_count;
struct alloc {
	uint32_t root, parent, new, class;
	uint64_t params;
};
struct control {
	uint32_t client, object, cmd, flags;
	uint64_t params;
	uint32_t size, status;
};

static int (*driver_ioctl)(int, unsigned long, ...);
#include <dlfcn.h>
#include <stdarg.h>
int ioctl(int fd, unsigned long request, ...)
{
	va_list ap;
	va_start(ap, request);
	void *argument = va_arg(ap, void *);
	va_end(ap);
	if (!driver_ioctl)
		driver_ioctl = (int (*)(int, unsigned long, ...))dlsym(RTLD_NEXT, "ioctl");
	int r = driver_ioctl(fd, request, argument);
	uint32_t number = request & 0xff;
	struct alloc *a = argument;
	if (((request >> 8) & 0xff) == 'F' && number == 211) {
		wrapped++;
		number = *(uint32_t *)argument;
		a = *(struct alloc **)((char *)argument + 8);
	}
	if (((request >> 8) & 0xff) == 'F' && number == 0x2B) {
		control_file = fd;
		if (a->class == 0xA06C && ((uint32_t *)a->params)[3] == 1) {
			compute_client = a->root;
			compute_tsg = a->new;
			channel_count = 0;
		} else if (a->class == 0xC86F && a->parent == compute_tsg && channel_count < 8) {
			channels[channel_count++] = a->new;
		} else if (a->class == 0xCBC0) {
			compute_objects++;
		} else if (a->class == 0x2080) {
			subdevice_client = a->root;
			subdevice = a->new;
		}
	}
	return r;
}

static uint32_t control(uint32_t client, uint32_t object, uint32_t cmd, void *params, uint32_t size)
{
	struct control c = {client, object, cmd, 0, (uint64_t)params, size, 0xffffffff};
	CHECK(ioctl(control_file, 0xC020462AUL, &c) == 0);
	return c.status;
}

static void timeslice(uint64_t us) { OK(control(compute_client, compute_tsg, 0xa06c0103, &us, 8)); }

// ---- helpers

static handle context, module;

static uint64_t now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000;
}

static void start(void)
{
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	OK(cuModuleLoadData(&module, "simulated image"));
	if (getenv("SELFTEST_GREEN")) { // from now on launches of the context are placed on SMs
		unsigned char all[144];
		handle set, green;
		OK(cuDeviceGetDevResource(0, all, 1));
		OK(cuDevResourceGenerateDesc(&set, all, 1));
		OK(cuGreenCtxCreate(&green, set, 0, 1));
	}
}

static handle function(const char *name)
{
	handle f;
	OK(cuModuleGetFunction(&f, module, name));
	return f;
}

static void spin(handle stream, uint64_t us)
{
	void *parameters[] = {&us};
	OK(cuLaunchKernel(function("sim_spin_us"), 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
}

static void add(handle stream, ptr data, uint64_t n, uint32_t value)
{
	void *parameters[] = {&data, &n, &value};
	OK(cuLaunchKernel(function("sim_add"), 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
}

static void hold(handle stream, uint32_t *words, uint32_t sequence, uint64_t limit_ns)
{
	uint32_t *word = &words[0], *expired = &words[2], *place = &words[4];
	uint64_t lease_ns = limit_ns;
	void *parameters[] = {&word, &sequence, &sequence, &limit_ns, &lease_ns, &expired, &place};
	OK(cuLaunchKernel(function("gpreempt_hold"), 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
}

static uint32_t *host_words(void)
{
	void *p;
	OK(cuMemHostAlloc(&p, 4096, 0));
	memset(p, 0, 4096);
	return p;
}

static uint64_t request_us(handle stream)
{ // one 40 us kernel, until it is done
	uint64_t from = now_us();
	spin(stream, 40);
	OK(cuStreamSynchronize(stream));
	return now_us() - from;
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

static uint64_t median_request_us(handle stream, int n)
{
	uint64_t t[64];
	for (int i = 0; i < n; i++) {
		struct timespec gap = {0, 3000000};
		nanosleep(&gap, NULL);
		t[i] = request_us(stream);
	}
	qsort(t, (size_t)n, sizeof *t, by_value);
	return t[n / 2];
}

static void until(_Atomic uint32_t *word, uint32_t value)
{
	for (uint64_t give_up = now_us() + 60000000; atomic_load(word) < value;) {
		CHECK(now_us() < give_up);
		struct timespec t = {0, 200000};
		nanosleep(&t, NULL);
	}
}

// A best-effort process: kernels of 5 ms, four queued, until killed. shared[0]: kernels completed.
// It starts when *go is set; to be called before this process uses the driver.
static pid_t best_effort(uint64_t slice_us, _Atomic uint32_t *shared, _Atomic uint32_t *go)
{
	fflush(NULL);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid)
		return pid;
	if (go)
		until(go, 1);
	start();
	if (slice_us)
		timeslice(slice_us);
	handle stream, done[4];
	OK(cuStreamCreate(&stream, 1));
	for (int i = 0; i < 4; i++)
		OK(cuEventCreate(&done[i], 2));
	for (unsigned i = 0;; i++) {
		if (i >= 4) {
			OK(cuEventSynchronize(done[i % 4]));
			atomic_fetch_add(shared, 1);
		}
		spin(stream, 5000);
		OK(cuEventRecord(done[i % 4], stream));
	}
}

static _Atomic uint32_t *shared_words(void)
{
	void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(p != MAP_FAILED);
	return p;
}

static void end(pid_t pid)
{
	CHECK(kill(pid, SIGKILL) == 0);
	CHECK(waitpid(pid, NULL, 0) == pid);
}

// ---- tests

static void bump(void *p) { atomic_fetch_add((_Atomic uint32_t *)p, 1); }

static void ordering(void)
{
	start();
	handle a, b, blocking;
	OK(cuStreamCreate(&a, 1));
	OK(cuStreamCreate(&b, 1));
	OK(cuStreamCreate(&blocking, 0));
	ptr data;
	uint32_t source[256], result[256];
	OK(cuMemAlloc_v2(&data, sizeof source));
	for (int i = 0; i < 256; i++)
		source[i] = (uint32_t)i;
	// one stream: copy, add, add, copy back
	OK(cuMemcpyHtoDAsync_v2(data, source, sizeof source, a));
	memset(source, 0xff, sizeof source); // pageable: already staged
	add(a, data, 256, 5);
	add(a, data, 256, 6);
	OK(cuStreamSynchronize(a));
	OK(cuMemcpyDtoH_v2(result, data, sizeof result));
	for (int i = 0; i < 256; i++)
		CHECK(result[i] == (uint32_t)i + 11);
	// an event between non-blocking streams
	handle e;
	OK(cuEventCreate(&e, 0));
	spin(a, 5000);
	OK(cuEventRecord(e, a));
	TIMED(cuEventQuery(e) == 600);
	OK(cuStreamWaitEvent(b, e, 0));
	add(b, data, 1, 1);
	TIMED(cuStreamQuery(b) == 600);
	OK(cuStreamSynchronize(b));
	OK(cuEventQuery(e));
	// the legacy stream waits for blocking streams, and they for it; non-blocking ones do not care
	uint64_t from = now_us();
	spin(blocking, 5000);
	spin(NULL, 5000);
	spin(blocking, 5000);
	spin(a, 1000);
	OK(cuStreamSynchronize(a));
	TIMED(now_us() - from < 12000);
	TIMED(cuStreamQuery(NULL) == 600);
	OK(cuStreamSynchronize(blocking));
	CHECK(now_us() - from >= 15000);
	// streams overlap
	from = now_us();
	spin(a, 20000);
	spin(b, 20000);
	OK(cuCtxSynchronize());
	CHECK(now_us() - from >= 20000);
	TIMED(now_us() - from < 35000);
	// a free waits for every stream
	spin(b, 10000);
	from = now_us();
	OK(cuMemFree_v2(data));
	TIMED(now_us() - from >= 9000);
	// host functions come in order, and a kernel behind one waits
	_Atomic uint32_t calls = 0;
	OK(cuLaunchHostFunc(a, bump, &calls));
	OK(cuLaunchHostFunc(a, bump, &calls));
	OK(cuStreamSynchronize(a));
	CHECK(calls == 2);
	// a wait value
	uint32_t *words = host_words();
	OK(cuStreamWaitValue32_v2(a, (ptr)words, 7, 0));
	spin(a, 10);
	OK(cuStreamSynchronize(b));
	CHECK(cuStreamQuery(a) == 600);
	atomic_store((_Atomic uint32_t *)words, 7);
	OK(cuStreamSynchronize(a));
	// no call crashes on a handle that is none
	CHECK(cuStreamSynchronize((handle)0x1234560) == 400);
	CHECK(cuEventQuery((handle)0x1234560) == 400);
	CHECK(cuLaunchKernel((handle)0x1234560, 1, 1, 1, 1, 1, 1, 0, a, NULL, NULL) == 400);
	CHECK(cuMemFree_v2(0x1234560) == 1);
	CHECK(cuCtxSetCurrent((handle)0x1234560) == 201);
	OK(cuStreamDestroy_v2(a));
	CHECK(cuStreamDestroy_v2(a) == 400);
	OK(cuDevicePrimaryCtxRelease_v2(0));
}

static void events(void)
{
	start();
	handle s, from, to;
	OK(cuStreamCreate(&s, 1));
	OK(cuEventCreate(&from, 0));
	OK(cuEventCreate(&to, 0));
	OK(cuEventQuery(to)); // never recorded
	OK(cuEventRecord(from, s));
	spin(s, 10000);
	OK(cuEventRecord(to, s));
	float ms = 0;
	TIMED(cuEventElapsedTime(&ms, from, to) == 600);
	OK(cuEventSynchronize(to));
	OK(cuEventElapsedTime(&ms, from, to));
	TIMED(ms >= 9.9 && ms < 30);
}

static void capture(void)
{
	start();
	handle s, side, fork_event, join_event, graph, exec;
	OK(cuStreamCreate(&s, 1));
	OK(cuStreamCreate(&side, 1));
	OK(cuEventCreate(&fork_event, 2));
	OK(cuEventCreate(&join_event, 2));
	ptr data, other;
	OK(cuMemAlloc_v2(&data, 4));
	OK(cuMemAlloc_v2(&other, 4));
	OK(cuMemsetD32_v2(data, 0, 1));
	OK(cuMemsetD32_v2(other, 0, 1));
	OK(cuCtxSynchronize()); // s does not wait for these
	OK(cuStreamBeginCapture_v2(s, 0));
	add(s, data, 1, 1);
	OK(cuEventRecord(fork_event, s));
	OK(cuStreamWaitEvent(side, fork_event, 0));
	add(side, other, 1, 10);
	OK(cuEventRecord(join_event, side));
	CHECK(cuEventQuery(join_event) == 907);
	OK(cuStreamWaitEvent(s, join_event, 0));
	OK(cuStreamEndCapture(s, &graph));
	size_t n = 0;
	OK(cuGraphGetNodes(graph, NULL, &n));
	CHECK(n == 2);
	uint32_t value;
	OK(cuMemcpyDtoH_v2(&value, data, 4));
	CHECK(value == 0); // captured, not run
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	for (int i = 0; i < 3; i++)
		OK(cuGraphLaunch(exec, s));
	OK(cuStreamSynchronize(s));
	OK(cuMemcpyDtoH_v2(&value, data, 4));
	CHECK(value == 3);
	OK(cuMemcpyDtoH_v2(&value, other, 4));
	CHECK(value == 30);
	// what capture forbids
	OK(cuStreamBeginCapture_v2(s, 0));
	CHECK(cuStreamSynchronize(s) == 900);
	CHECK(cuStreamEndCapture(s, &graph) == 901);
	OK(cuStreamBeginCapture_v2(s, 0));
	CHECK(cuMemAlloc_v2(&data, 4) == 900);
	CHECK(cuStreamEndCapture(s, &graph) == 901);
	OK(cuStreamBeginCapture_v2(s, 2));
	OK(cuMemAlloc_v2(&data, 4));
	OK(cuEventRecord(fork_event, s));
	OK(cuStreamWaitEvent(side, fork_event, 0));
	CHECK(cuStreamEndCapture(s, &graph) == 904);
	OK(cuStreamSynchronize(s));
	OK(cuStreamSynchronize(side));
}

static void controls(void)
{
	start();
	CHECK(compute_tsg && channel_count == 8 && compute_objects == 8 && subdevice);
	CHECK(!getenv("SIMCUDA_WRAP211") == !wrapped);
	uint64_t us = 0;
	OK(control(compute_client, compute_tsg, 0xa06c0104, &us, 8));
	CHECK(us == 2048);
	timeslice(1);
	OK(control(compute_client, compute_tsg, 0xa06c0104, &us, 8));
	CHECK(us == 1);
	CHECK(control(compute_client, compute_tsg, 0xa06c0103, &us, 4) == 0x3a);
	CHECK(control(0xdead, compute_tsg, 0xa06c0103, &us, 8) == 0x23);
	CHECK(control(compute_client, 0xdead, 0xa06c0103, &us, 8) == 0x33);
	uint8_t gid[268] = {0};
	gid[4] = 2;
	OK(control(subdevice_client, subdevice, 0x2080014a, gid, 268));
	CHECK(*(uint32_t *)(gid + 8) == 16 && gid[12] == 0x51);
	// with all its channels disabled a TSG does not run
	uint32_t disable[134] = {1, 8};
	for (int i = 0; i < 8; i++) {
		disable[6 + i] = compute_client;
		disable[70 + i] = channels[i];
	}
	OK(control(subdevice_client, subdevice, 0x2080110b, disable, 536));
	spin(NULL, 10);
	struct timespec t = {0, 20000000};
	nanosleep(&t, NULL); // time in which it must not run
	CHECK(cuStreamQuery(NULL) == 600);
	disable[0] = 0;
	OK(control(subdevice_client, subdevice, 0x2080110b, disable, 536));
	OK(cuStreamSynchronize(NULL));
}

static void refused(void)
{
	setenv("SIMCUDA_REFUSE_CONTROL", "1", 1);
	start();
	uint64_t us = 1;
	CHECK(control(compute_client, compute_tsg, 0xa06c0103, &us, 8) == 0x1b);
	CHECK(control(compute_client, compute_tsg, 0xa06c0105, &us, 8) == 0x1b);
	TIMED(request_us(NULL) < 20000);
}

static void wrap(void)
{
	setenv("SIMCUDA_WRAP211", "1", 1);
	controls();
}

static void slicing(void)
{
	_Atomic uint32_t *shared = shared_words();
	pid_t usual = best_effort(0, &shared[0], NULL);
	pid_t short_slice = best_effort(1, &shared[1], &shared[2]);
	until(&shared[0], 2);
	start();
	handle s;
	OK(cuStreamCreate(&s, 1));
	uint64_t by_default = median_request_us(s, 15);
	end(usual);
	uint64_t alone = median_request_us(s, 15);
	shared[2] = 1;
	until(&shared[1], 2);
	uint64_t beside = median_request_us(s, 15);
	uint32_t before = shared[1];
	until(&shared[1], before + 2); // and it goes on by itself
	end(short_slice);
	printf("simulated: request alone %llu us, beside best effort %llu us, beside best effort with 1 us timeslices "
	       "%llu us\n",
	       (unsigned long long)alone, (unsigned long long)by_default, (unsigned long long)beside);
	TIMED(by_default >= 2048);
	TIMED(beside >= 230 && beside < by_default * 2 / 3);
	TIMED(alone < beside);
}

static void two_short(void)
{ // two TSGs with timeslices below the load cost stop each other
	_Atomic uint32_t *shared = shared_words();
	pid_t a = best_effort(1, &shared[0], NULL);
	pid_t b = best_effort(1, &shared[1], NULL);
	struct timespec t = {0, 500000000};
	nanosleep(&t, NULL);
	uint32_t before = shared[0] + shared[1];
	nanosleep(&t, NULL);
	TIMED(shared[0] + shared[1] <= before + 1);
	end(a);
	until(&shared[1], shared[1] + 10);
	end(b);
}

static void shares(void)
{ // 2048 us each, less a switch of 190 us a turn: 0.458 each
	_Atomic uint32_t *shared = shared_words();
	pid_t be[2];
	for (int i = 0; i < 2; i++)
		be[i] = best_effort(0, &shared[i], NULL);
	for (int i = 0; i < 2; i++)
		until(&shared[i], 2);
	uint32_t before[2] = {shared[0], shared[1]};
	uint64_t from = now_us();
	until(&shared[0], before[0] + 60);
	double us = (double)(now_us() - from);
	for (int i = 0; i < 2; i++) {
		double share = (shared[i] - before[i]) * 5000 / us;
		printf("simulated: share %.3f\n", share);
		TIMED(share > 0.38 && share < 0.48);
		end(be[i]);
	}
}

static void holding(void)
{
	_Atomic uint32_t *shared = shared_words();
	pid_t be = best_effort(1, &shared[0], NULL);
	until(&shared[0], 2);
	start();
	uint32_t *words = host_words();
	handle s, side;
	OK(cuStreamCreate(&s, 1));
	OK(cuStreamCreate(&side, 1));
	hold(side, words, 1, 2000000000);
	hold(side, words, 1, 2000000000);
	request_us(s); // the switch
	uint32_t before = shared[0];
	uint64_t from = now_us();
	for (int i = 0; i < 50; i++)
		request_us(s);
	uint64_t held = now_us() - from;
	struct timespec gap = {0, 50000000};
	nanosleep(&gap, NULL);          // ten kernels' time
	TIMED(shared[0] <= before + 1); // one may have been over but not yet counted
	TIMED(cuStreamQuery(side) == 600);
	atomic_store((_Atomic uint32_t *)words, 1);
	OK(cuStreamSynchronize(side));
	TIMED(words[2] == 0);
	from = now_us();
	for (int i = 0; i < 50; i++)
		request_us(s);
	uint64_t unheld = now_us() - from;
	printf("simulated: 50 requests held %llu us, not held %llu us\n", (unsigned long long)held,
	       (unsigned long long)unheld);
	TIMED(unheld >= 50 * (190 + 40)); // a switch each
	// a hold without a release ends by its limit, and the one behind it at once
	from = now_us();
	hold(side, words, 2, 30000000);
	hold(side, words, 2, 30000000);
	OK(cuStreamSynchronize(side));
	TIMED(now_us() - from >= 30000 && now_us() - from < 55000);
	CHECK(words[2] == 2);
	before = shared[0];
	until(&shared[0], before + 2);
	end(be);
}

// ---- the host engine turns from a TSG whose channels have no methods, though its kernels run on

struct turning {
	pid_t be;
	uint32_t *words;
	handle s, side;
	uint32_t sequence;
};

enum { LIMIT_MS = 300 };

static struct turning beside_best_effort(void)
{
	_Atomic uint32_t *shared = shared_words();
	struct turning t = {.be = best_effort(1, &shared[0], NULL)};
	until(&shared[0], 2);
	start();
	timeslice(10000000);
	t.words = host_words();
	OK(cuStreamCreate(&t.s, 1));
	OK(cuStreamCreate(&t.side, 1));
	request_us(t.s);
	return t;
}

static void release(struct turning *t)
{
	atomic_store((_Atomic uint32_t *)t->words, t->sequence);
	OK(cuStreamSynchronize(t->side));
	TIMED(t->words[2] != t->sequence); // by us, not by the limit
}

static void pause_ms(long ms)
{
	struct timespec t = {0, ms * 1000000};
	nanosleep(&t, NULL);
}

// Holds in as many launches or, in one graph, as many nodes; then a request, a while later.
static uint64_t held_request_us(struct turning *t, int links, bool graph)
{
	handle captured, exec;
	t->sequence++;
	if (graph)
		OK(cuStreamBeginCapture_v2(t->side, 0));
	for (int i = 0; i < links; i++)
		hold(t->side, t->words, t->sequence, LIMIT_MS * 1000000ull);
	if (graph) {
		OK(cuStreamEndCapture(t->side, &captured));
		OK(cuGraphInstantiateWithFlags(&exec, captured, 0));
		OK(cuGraphLaunch(exec, t->side));
	}
	pause_ms(5);
	return request_us(t->s);
}

static void turning(void)
{
	struct turning t = beside_best_effort();
	// a chain of two holds the engine for the whole hold, and requests within it are quick
	TIMED(held_request_us(&t, 2, false) < 50000);
	TIMED(request_us(t.s) < 50000);
	release(&t);
	// of a single kernel, or one graph of two, nothing is left to fetch: the request waits for the limit
	TIMED(held_request_us(&t, 1, false) > (LIMIT_MS - 50) * 1000);
	TIMED(t.words[2] == t.sequence);
	OK(cuStreamSynchronize(t.side));
	uint64_t graph = held_request_us(&t, 2, true);
	TIMED(graph > (LIMIT_MS - 50) * 1000);
	TIMED(t.words[2] == t.sequence);
	OK(cuStreamSynchronize(t.side));
	// or for its own timeslice, whichever is over first
	timeslice(40000);
	uint64_t slice = held_request_us(&t, 1, false);
	TIMED(slice > 30000 && slice < (LIMIT_MS - 50) * 1000);
	release(&t);
	// or until the process releases the kernel
	timeslice(10000000);
	t.sequence++;
	hold(t.side, t.words, t.sequence, 10000000000ull);
	pause_ms(5);
	spin(t.s, 40);
	pause_ms(50);
	TIMED(cuStreamQuery(t.s) == 600);
	release(&t);
	OK(cuStreamSynchronize(t.s));
	// a kernel with an end does it too; work queued behind it is fetched in time
	spin(t.side, 100000);
	pause_ms(5);
	TIMED(request_us(t.s) > 70000);
	OK(cuStreamSynchronize(t.side));
	spin(t.side, 50000);
	spin(t.side, 50000);
	pause_ms(5);
	TIMED(request_us(t.s) < 30000);
	OK(cuStreamSynchronize(t.side));
	// the engine that turned away writes no value either, and does when no TSG is left to turn to
	t.sequence++;
	hold(t.side, t.words, t.sequence, 10000000000ull);
	pause_ms(5);
	OK(cuStreamWriteValue32_v2(t.s, (ptr)(uintptr_t)&t.words[8], 7, 0));
	pause_ms(5);
	TIMED(t.words[8] != 7); // where the engine had turned before the write
	end(t.be);
	release(&t);
	OK(cuStreamSynchronize(t.s));
	CHECK(t.words[8] == 7);
	// no TSG to turn to
	TIMED(held_request_us(&t, 1, false) < 50000);
	release(&t);
}

static void doorbells(void)
{ // the engine looks between the doorbells of a chain
	setenv("SIMCUDA_DOORBELL_US", "5000", 1);
	struct turning t = beside_best_effort();
	TIMED(held_request_us(&t, 2, false) > (LIMIT_MS - 50) * 1000);
	OK(cuStreamSynchronize(t.side));
	end(t.be);
}

// ---- some calls keep the context's lock while they wait for its work

static ptr freed;
static handle behind, fresh;
static _Atomic uint32_t calling;

static void *free_memory(void *unused)
{
	OK(cuCtxSetCurrent(context));
	atomic_store(&calling, 1);
	OK(cuMemFree_v2(freed));
	return unused;
}

static void *synchronize(void *unused)
{
	OK(cuCtxSetCurrent(context));
	atomic_store(&calling, 1);
	OK(cuCtxSynchronize());
	return unused;
}

static void *load_module(void *unused)
{
	handle m;
	OK(cuCtxSetCurrent(context));
	atomic_store(&calling, 1);
	OK(cuModuleLoadData(&m, "simulated image"));
	return unused;
}

static void *launch_first(void *unused)
{
	uint64_t us = 10;
	void *parameters[] = {&us};
	OK(cuCtxSetCurrent(context));
	atomic_store(&calling, 1);
	OK(cuLaunchKernel(fresh, 1, 1, 1, 1, 1, 1, 0, behind, parameters, NULL));
	return unused;
}

static _Atomic uint32_t launched;

static void *launch_beside(void *stream)
{
	OK(cuCtxSetCurrent(context));
	spin(stream, 10);
	atomic_store(&launched, 1);
	return NULL;
}

// Whether a launch waits while another thread's call waits for work, which ends when we want it to.
static bool keeps_waiting(void *(*call)(void *), uint32_t *word, handle busy, handle s)
{
	pthread_t caller, launcher;
	*word = 0;
	OK(cuStreamWaitValue32_v2(busy, (ptr)word, 1, 0));
	atomic_store(&calling, 0);
	atomic_store(&launched, 0);
	CHECK(pthread_create(&caller, NULL, call, NULL) == 0);
	until(&calling, 1);
	pause_ms(50); // the call gets to where it waits
	CHECK(pthread_create(&launcher, NULL, launch_beside, s) == 0);
	for (uint64_t give_up = now_us() + 200000; !atomic_load(&launched) && now_us() < give_up;)
		pause_ms(1);
	bool kept = !atomic_load(&launched);
	atomic_store((_Atomic uint32_t *)word, 1);
	CHECK(pthread_join(caller, NULL) == 0 && pthread_join(launcher, NULL) == 0);
	OK(cuCtxSynchronize());
	return kept;
}

static void locks(void)
{
	setenv("CUDA_MODULE_LOADING", "LAZY", 1);
	start();
	uint32_t *word = host_words();
	handle busy, s, m;
	OK(cuStreamCreate(&busy, 1));
	OK(cuStreamCreate(&s, 1));
	OK(cuStreamCreate(&behind, 1));
	OK(cuMemAlloc_v2(&freed, 64));
	OK(cuModuleLoadData(&m, "simulated image"));
	OK(cuModuleGetFunction(&fresh, m, "sim_spin_us"));
	spin(s, 10); // loads the kernel that this test launches
	TIMED(keeps_waiting(free_memory, word, busy, s));
	TIMED(keeps_waiting(load_module, word, busy, s));
	TIMED(keeps_waiting(launch_first, word, busy, s));
	TIMED(!keeps_waiting(launch_first, word, busy, s)); // no longer the first
	TIMED(!keeps_waiting(synchronize, word, busy, s));
}

// ---- streams share channels

static handle waits_for(uint32_t *word, handle s)
{
	OK(cuStreamWaitValue32_v2(s, (ptr)word, 1, 0));
	return s;
}

static bool ends(handle s, unsigned within_us)
{
	spin(s, 10);
	for (uint64_t give_up = now_us() + within_us; now_us() < give_up;)
		if (cuStreamQuery(s) == 0)
			return true;
	return false;
}

// A kernel on the stream ends while others are blocked; a loaded machine has time for it.
static bool passes(handle s) { return ends(s, 30000000); }

static bool blocked(handle s) { return !ends(s, 50000); }

// Whether the stream's present work ends.
static bool comes(handle s)
{
	for (uint64_t give_up = now_us() + 50000; now_us() < give_up;)
		if (cuStreamQuery(s) == 0)
			return true;
	return false;
}

static handle new_stream(void)
{
	handle s;
	OK(cuStreamCreate(&s, 1));
	return s;
}

// So many rows of four bytes from the host, with nothing between them there.
static void copy_rows(ptr to, uint32_t *from, size_t rows, handle s)
{
	struct copy_2d copy = {.from = {.type = 1, .host = from, .pitch = 4},
			       .to = {.type = 2, .device = to, .pitch = 8},
			       .width = 4,
			       .rows = rows};
	OK(cuMemcpy2DAsync_v2(&copy, s));
}

static void connections(int n)
{
	enum { BULK = 32 << 10 };
	uint32_t *word = host_words(), *bulk;
	handle s[33], high, graph, exec;
	ptr memory;
	for (int i = 0; i < 33; i++)
		s[i] = new_stream();
	OK(cuStreamCreateWithPriority(&high, 1, -5));
	OK(cuMemAlloc_v2(&memory, BULK));
	OK(cuMemHostAlloc((void **)&bulk, BULK, 0));
	// a stream that waits for a value keeps others from being fetched with one channel only
	waits_for(word, s[0]);
	for (int i = 1; i < 33; i++)
		CHECK(n > 1 ? passes(s[i]) : blocked(s[i]));
	CHECK(n > 1 ? passes(high) : blocked(high));
	atomic_store((_Atomic uint32_t *)word, 1);
	OK(cuCtxSynchronize());
	// a kernel that runs has no channel; kernels that wait for those before them on their streams have one each
	for (int i = 0; i < n; i++)
		spin(s[i], 400000);
	CHECK(passes(s[n]));
	for (int i = 1; i < n; i++)
		spin(s[i], 10);
	CHECK(passes(s[n]));
	spin(s[0], 10);
	TIMED(blocked(s[n]));
	OK(cuCtxSynchronize());
	// nor do the nodes of a graph, which are fetched at once
	OK(cuStreamBeginCapture_v2(s[0], 0));
	spin(s[0], 100000);
	spin(s[0], 10);
	OK(cuStreamEndCapture(s[0], &graph));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	OK(cuGraphLaunch(exec, s[0]));
	CHECK(passes(s[n]));
	OK(cuCtxSynchronize());
	// as many as there are channels stop every stream, whatever its priority, but for what copy engines do
	*word = 0;
	for (int i = 0; i < n; i++)
		waits_for(word, s[i]);
	CHECK(blocked(s[n]) && blocked(NULL) && blocked(high));
	handle one = new_stream(), few = new_stream(), large = new_stream(), rows = new_stream(), back = new_stream();
	OK(cuMemcpyHtoDAsync_v2(memory, bulk, 4, one));
	CHECK(!comes(one));
	copy_rows(memory, bulk, 63, few);
	CHECK(!comes(few));
	OK(cuMemcpyHtoDAsync_v2(memory, bulk, BULK, large));
	OK(cuStreamSynchronize(large));
	copy_rows(memory, bulk, 64, rows);
	OK(cuStreamSynchronize(rows));
	OK(cuMemcpyDtoHAsync_v2(bulk, memory, 4, back));
	OK(cuStreamSynchronize(back));
	atomic_store((_Atomic uint32_t *)word, 1);
	OK(cuCtxSynchronize());
}

static void connections_default(void)
{
	start();
	connections(8);
}

static void connections_one(void)
{
	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
	start();
	connections(1);
}

static void connections_most(void)
{
	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
	start();
	connections(32);
}

static void killed(void)
{ // kill -9 at any instruction must not stop the others
	_Atomic uint32_t *shared = shared_words();
	start();
	handle s;
	OK(cuStreamCreate(&s, 1));
	OK(cuCtxSynchronize());
	for (int i = 0; i < 12; i++) {
		// fork + exec: a process that used the driver cannot hand it to a child
		shared[0] = 0;
		int ready[2];
		CHECK(pipe(ready) == 0);
		pid_t pid = fork();
		if (!pid) {
			dup2(ready[1], 1);
			execl("/proc/self/exe", "selftest", "busy", NULL);
			_exit(1);
		}
		close(ready[1]);
		char c;
		CHECK(read(ready[0], &c, 1) == 1);
		close(ready[0]);
		uint64_t from = now_us();
		while (now_us() - from < (uint64_t)(200 * i))
			request_us(s);
		end(pid);
		request_us(s);
		TIMED(request_us(s) < 100000);
	}
}

static void busy(void)
{
	start();
	timeslice(1);
	for (int i = 0;; i++) {
		spin(NULL, 5000);
		if (i == 0)
			CHECK(write(1, "r", 1) == 1);
		if (i >= 4)
			OK(cuStreamSynchronize(NULL));
	}
}

static void stopped(void)
{ // SIGSTOP of a process with 1 us timeslices: the others take over
	_Atomic uint32_t *shared = shared_words();
	pid_t be = best_effort(1, &shared[0], NULL);
	until(&shared[0], 2);
	start();
	handle s;
	OK(cuStreamCreate(&s, 1));
	for (int i = 0; i < 10; i++) {
		CHECK(kill(be, SIGSTOP) == 0);
		for (int k = 0; k < 5; k++)
			TIMED(request_us(s) < 100000);
		CHECK(kill(be, SIGCONT) == 0);
		until(&shared[0], shared[0] + 1);
	}
	end(be);
}

static void forked(void)
{
	start();
	spin(NULL, 10);
	fflush(NULL);
	pid_t pid = fork();
	if (!pid)
		_exit(cuInit(0) == 3 && cuCtxSynchronize() == 3 ? 0 : 1);
	int status;
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	OK(cuCtxSynchronize());
}

static void lookup(void)
{
	start();
	struct {
		const char *name;
		int version;
		uint64_t flags;
		const char *symbol;
		int status;
	} cases[] = {
		{"cuLaunchKernel", 13000, 0, "cuLaunchKernel", 0},
		{"cuLaunchKernel", 13000, 2, "cuLaunchKernel_ptsz", 0},
		{"cuMemcpyHtoD", 13000, 2, "cuMemcpyHtoD_v2_ptds", 0},
		{"cuMemAlloc", 13000, 0, "cuMemAlloc_v2", 0},
		{"cuCtxCreate", 13000, 0, "cuCtxCreate_v4", 0},
		{"cuCtxCreate", 12000, 0, "cuCtxCreate_v2", 0},
		{"cuStreamGetCaptureInfo", 12000, 0, "cuStreamGetCaptureInfo_v2", 0},
		{"cuStreamGetCaptureInfo", 13000, 2, "cuStreamGetCaptureInfo_v3_ptsz", 0},
		{"cuGraphInstantiate", 13000, 0, "cuGraphInstantiateWithFlags", 0},
		{"cuGetProcAddress", 13000, 0, "cuGetProcAddress_v2", 0},
		{"cuLaunchKernelEx", 11000, 0, NULL, 2},
		{"cuNoSuchThing", 13000, 0, NULL, 1},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		void *p = &p;
		int status = -1;
		OK(cuGetProcAddress_v2(cases[i].name, &p, cases[i].version, cases[i].flags, &status));
		void *want = cases[i].symbol ? dlsym(RTLD_DEFAULT, cases[i].symbol) : NULL;
		if (p != want || status != cases[i].status || (cases[i].symbol && !want)) {
			fprintf(stderr, "simulated: %s at %d: status %d, not %s\n", cases[i].name, cases[i].version,
				status, cases[i].symbol);
			exit(1);
		}
	}
}

struct attributes {
	int order, where[4];
	unsigned flags;
};
struct copy_3d {
	struct {
		int type;
		ptr address;
		size_t row, layer;
		int hint[2];
	} from, to;
	size_t width, height, depth;
	int order;
	unsigned flags;
};

static void *newer(const char *name, int version)
{ // what a driver of that version has
	void *p = NULL;
	int status = 0;
	OK(cuGetProcAddress_v2(name, &p, version, 0, &status));
	CHECK((p != NULL) == (status == 0));
	return p;
}

static void versions(void)
{
	int version;
	setenv("SIMCUDA_VERSION", "13020", 1);
	start();
	OK(cuDriverGetVersion(&version));
	CHECK(version == 13020);
	CHECK(newer("cuLaunchHostFunc", 13000) == dlsym(RTLD_DEFAULT, "cuLaunchHostFunc"));
	CHECK(newer("cuLaunchHostFunc", 13010) == dlsym(RTLD_DEFAULT, "cuLaunchHostFunc_v2"));
	CHECK(!newer("cuStreamBeginRecaptureToGraph", 99000)); // of 13.3
	CHECK(newer("cuStreamBeginCaptureToCig", 13020));
	int (*copy)(ptr, ptr, size_t, const struct attributes *, handle) = newer("cuMemcpyWithAttributesAsync", 13020);
	int (*copy_3d)(const struct copy_3d *, unsigned long long, handle) = newer("cuMemcpy3DWithAttributesAsync", 13020);
	int (*host)(handle, void (*)(void *), void *, unsigned) = newer("cuLaunchHostFunc", 13020);
	handle s;
	OK(cuStreamCreate(&s, 1));
	ptr a, b;
	OK(cuMemAlloc_v2(&a, 1024));
	OK(cuMemAlloc_v2(&b, 1024));
	OK(cuMemsetD32_v2(a, 7, 256));
	OK(cuMemsetD32_v2(b, 0, 256));
	OK(cuCtxSynchronize()); // what follows is on a stream that does not wait for these
	struct attributes attributes = {.order = 1};
	spin(s, 5000);
	OK(copy(b, a, 64, &attributes, s));
	CHECK(cuStreamQuery(s) == 600);
	attributes.order = 2; // over when the call returns
	OK(copy(b + 64, a, 64, &attributes, s));
	CHECK(cuStreamQuery(s) == 0);
	CHECK(copy(b, a, 64, NULL, s) == 1);
	// two layers of two rows of 8 bytes
	struct copy_3d c = {
		.from = {1, a, 32, 4, {0}}, .to = {1, b + 256, 16, 2, {0}}, .width = 8, .height = 2, .depth = 2, .order = 1};
	OK(copy_3d(&c, 0, s));
	_Atomic uint32_t calls = 0;
	OK(host(s, bump, &calls, 1));
	CHECK(host(s, bump, &calls, 2) == 1);
	OK(cuStreamSynchronize(s));
	CHECK(calls == 1);
	uint32_t v[256];
	OK(cuMemcpyDtoH_v2(v, b, sizeof v));
	for (unsigned i = 0; i < 256; i++)
		CHECK(v[i] == (i < 32 || (i >= 64 && i < 80 && i % 4 < 2) ? 7 : 0));
}

static void recaptured(void)
{ // a graph captured anew, which drivers have from 13.3 on
	setenv("SIMCUDA_VERSION", "13030", 1);
	start();
	int (*again)(handle, int, handle, void *, void *) = newer("cuStreamBeginRecaptureToGraph", 13030);
	handle s, graph, same, exec;
	ptr data;
	uint32_t value;
	OK(cuStreamCreate(&s, 1));
	OK(cuMemAlloc_v2(&data, 4));
	OK(cuMemsetD32_v2(data, 0, 1));
	OK(cuCtxSynchronize()); // s does not wait for it
	OK(cuStreamBeginCapture_v2(s, 0));
	add(s, data, 1, 1);
	OK(cuStreamEndCapture(s, &graph));
	OK(again(s, 0, graph, NULL, NULL));
	add(s, data, 1, 5);
	OK(cuStreamEndCapture(s, &same));
	CHECK(same == graph);
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	OK(cuGraphLaunch(exec, s));
	OK(cuStreamSynchronize(s));
	OK(cuMemcpyDtoH_v2(&value, data, 4));
	CHECK(value == 5);
	OK(again(s, 0, graph, NULL, NULL)); // other nodes
	CHECK(cuStreamEndCapture(s, &same) == 901);
}

// ---- images, of the folder that IMAGES names: kernels/sim.cu

static char *image(const char *name, size_t *bytes)
{
	char path[512];
	snprintf(path, sizeof path, "%s/%s", getenv("IMAGES"), name);
	FILE *f = fopen(path, "r");
	CHECK(f);
	fseek(f, 0, SEEK_END);
	size_t n = (size_t)ftell(f);
	rewind(f);
	char *p = malloc(n);
	CHECK(fread(p, 1, n, f) == n);
	fclose(f);
	if (bytes)
		*bytes = n;
	return p;
}

static void parameter_is(handle f, size_t index, size_t offset, size_t size)
{
	size_t o = 0, s = 0;
	OK(cuFuncGetParamInfo(f, index, &o, &s));
	CHECK(o == offset && s == size);
	o = s = 0;
	OK(cuKernelGetParamInfo(f, index, &o, &s));
	CHECK(o == offset && s == size);
}

static void describes(handle m, bool guarded)
{ // what every image of sim.cu says
	handle increment, chain, other;
	unsigned n;
	OK(cuModuleGetFunctionCount(&n, m));
	CHECK(n == 6);
	OK(cuModuleGetFunction(&increment, m, "sim_increment"));
	OK(cuModuleGetFunction(&chain, m, "sim_chain"));
	OK(cuModuleGetFunction(&other, m, "sim_unknown"));
	CHECK(cuModuleGetFunction(&other, m, "sim_add") == 500);
	parameter_is(increment, 0, 0, 8);
	parameter_is(increment, 1, 8, 4);
	parameter_is(increment, 2, 12, 4);
	parameter_is(chain, 3, 16, 4);
	size_t offset;
	if (guarded) {
		parameter_is(increment, 3, 16, 8);
		parameter_is(chain, 4, 24, 8);
		parameter_is(other, 1, 8, 8);
	} else {
		CHECK(cuFuncGetParamInfo(increment, 3, &offset, NULL) == 1);
		CHECK(cuFuncGetParamInfo(chain, 4, &offset, NULL) == 1);
	}
	CHECK(cuFuncGetParamInfo(increment, 4, &offset, NULL) == 1);
}

static void images(void)
{
	start();
	size_t bytes;
	char *cubin = image("sim.cubin", &bytes), *guarded = image("guarded.cubin", NULL);
	char *fatbin = image("sim.fatbin", NULL), *guarded_fatbin = image("guarded.fatbin", NULL);
	struct {
		uint32_t magic, version;
		const void *data, *more;
	} wrapper = {0x466243b1, 1, guarded_fatbin, NULL};
	handle m;
	OK(cuModuleLoadData(&m, cubin));
	describes(m, false);
	OK(cuModuleUnload(m));
	OK(cuModuleLoadData(&m, guarded));
	describes(m, true);
	OK(cuModuleUnload(m));
	OK(cuModuleLoadData(&m, fatbin));
	describes(m, false);
	OK(cuModuleUnload(m));
	OK(cuModuleLoadFatBinary(&m, &wrapper));
	describes(m, true);
	OK(cuModuleUnload(m));
	char path[512];
	snprintf(path, sizeof path, "%s/sim.fatbin", getenv("IMAGES"));
	OK(cuModuleLoad(&m, path));
	describes(m, false);
	CHECK(cuModuleLoad(&m, "/nonexistent") == 301);
	// other images are not read
	OK(cuModuleLoadData(&m, ".version 9.0"));
	handle f;
	OK(cuModuleGetFunction(&f, m, "sim_add"));
	CHECK(cuModuleGetFunction(&f, m, "no_such_kernel") == 500);

	// parameters in a buffer have to be as many bytes as the image says
	OK(cuModuleLoadData(&m, cubin));
	OK(cuModuleGetFunction(&f, m, "sim_chain"));
	ptr data;
	OK(cuMemAlloc_v2(&data, 4096));
	OK(cuMemsetD32_v2(data, 5, 1024));
	struct {
		ptr data;
		int n;
		unsigned add, us;
	} buffer = {data, 4, 7, 10};
	size_t size = 20;
	void *extra[] = {(void *)1, &buffer, (void *)2, &size, NULL};
	OK(cuLaunchKernel(f, 2, 1, 1, 32, 1, 1, 0, NULL, NULL, extra));
	size = 16;
	CHECK(cuLaunchKernel(f, 2, 1, 1, 32, 1, 1, 0, NULL, NULL, extra) == 1);
	size = 28;
	CHECK(cuLaunchKernel(f, 2, 1, 1, 32, 1, 1, 0, NULL, NULL, extra) == 1);
	void *missing[] = {&buffer.data, &buffer.n, &buffer.add, NULL};
	CHECK(cuLaunchKernel(f, 2, 1, 1, 32, 1, 1, 0, NULL, missing, NULL) == 1);
	unsigned result[9];
	OK(cuMemcpyDtoH_v2(result, data, sizeof result));
	for (int i = 0; i < 9; i++)
		CHECK(result[i] == (i < 8 ? 5 * 3 + 7 : 5));

	// damaged ones are refused, and never followed outside: a fatbin says how long its cubin is
	struct {
		uint32_t magic;
		uint16_t version, header_bytes;
		uint64_t bytes;
		uint16_t kind, entry_version;
		uint32_t entry_header_bytes;
		uint64_t stored;
		uint32_t unused[3], sm;
		uint64_t more[4];
	} header = {0xba55ed50, 1, 16, 64 + bytes, 2, 1, 64, bytes, {0}, 90, {0}};
	_Static_assert(sizeof header == 80, "a fatbin's header and an entry's");
	unsigned refused = 0;
	for (size_t at = 16; at < sizeof header + bytes; at += at < 200 ? 1 : 3) {
		char *damaged = malloc(sizeof header + bytes); // of that length: for tools that look behind the end
		memcpy(damaged, &header, sizeof header);
		memcpy(damaged + sizeof header, cubin, bytes);
		damaged[at] ^= (char)0xa5;
		handle broken = NULL;
		refused += cuModuleLoadData(&broken, damaged) != 0;
		if (broken)
			OK(cuModuleUnload(broken));
		free(damaged);
	}
	CHECK(refused > 20);
}

static void libraries(void)
{
	start();
	char *guarded = image("guarded.cubin", NULL);
	handle l, k, f, again, m, from, kernels[8] = {NULL};
	OK(cuLibraryLoadData(&l, guarded, NULL, NULL, 0, NULL, NULL, 0));
	free(guarded); // the driver has a copy
	unsigned n;
	OK(cuLibraryGetKernelCount(&n, l));
	CHECK(n == 6);
	OK(cuLibraryEnumerateKernels(kernels, 8, l));
	OK(cuLibraryGetKernel(&k, l, "sim_increment"));
	unsigned found = 0;
	for (unsigned i = 0; i < n; i++)
		found += kernels[i] == k;
	CHECK(found == 1 && !kernels[n]);
	const char *name;
	OK(cuKernelGetName(&name, k));
	CHECK(strcmp(name, "sim_increment") == 0);
	parameter_is(k, 3, 16, 8);
	OK(cuKernelGetLibrary(&from, k));
	CHECK(from == l);
	OK(cuLibraryGetModule(&m, l));
	OK(cuKernelGetFunction(&f, k));
	OK(cuModuleGetFunction(&again, m, "sim_increment"));
	CHECK(f == again && f != k);
	OK(cuFuncGetModule(&from, f));
	CHECK(from == m);
	// a variable is one for a module, and for a library its module's
	ptr a, b, c;
	size_t bytes;
	OK(cuLibraryGetGlobal(&a, &bytes, l, "sim_counter"));
	CHECK(bytes == 8);
	OK(cuModuleGetGlobal_v2(&b, &bytes, m, "sim_counter"));
	CHECK(a == b);
	uint64_t value;
	OK(cuMemcpyDtoH_v2(&value, a, 8));
	CHECK(value == 7);
	CHECK(cuLibraryGetGlobal(&c, &bytes, l, "no_such_variable") == 500);
	char path[512];
	snprintf(path, sizeof path, "%s/sim.cubin", getenv("IMAGES"));
	handle second;
	OK(cuLibraryLoadFromFile(&second, path, NULL, NULL, 0, NULL, NULL, 0));
	OK(cuLibraryGetGlobal(&c, NULL, second, "sim_counter"));
	CHECK(c != a);
	// by kernel and by function
	ptr data;
	OK(cuMemAlloc_v2(&data, 4096));
	OK(cuMemsetD32_v2(data, 0, 1024));
	int per_block = 2;
	unsigned us = 10;
	ptr record = 0;
	void *parameters[] = {&data, &per_block, &us, &record};
	OK(cuLaunchKernel(k, 3, 2, 1, 32, 1, 1, 0, NULL, parameters, NULL));
	OK(cuLaunchKernel(f, 3, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
	unsigned result[13];
	OK(cuMemcpyDtoH_v2(result, data, sizeof result));
	for (unsigned i = 0; i < 13; i++)
		CHECK(result[i] == (i < 6 ? 2 : i < 12 ? 1 : 0));
	OK(cuLibraryUnload(l));
	CHECK(cuLibraryGetModule(&m, l) == 400);
	CHECK(cuLaunchKernel(k, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL) == 400);

	// the linker
	const char ptx[] = ".version 9.0\n.visible .entry sim_chain(\n)\n.entry sim_unknown ()",
		   other[] = ".entry nothing()";
	handle link;
	void *made;
	OK(cuLinkCreate_v2(0, NULL, NULL, &link));
	CHECK(cuLinkAddData_v2(link, 1, ptx, sizeof ptx, NULL, 0, NULL, NULL) == 221);
	setenv("SIMCUDA_CUBIN", path, 1);
	CHECK(cuLinkAddData_v2(link, 1, other, sizeof other, NULL, 0, NULL, NULL) == 218);
	OK(cuLinkAddData_v2(link, 1, ptx, sizeof ptx, NULL, 0, NULL, NULL));
	OK(cuLinkComplete(link, &made, &bytes));
	size_t expected;
	char *cubin = image("sim.cubin", &expected);
	CHECK(bytes == expected && memcmp(made, cubin, bytes) == 0);
	OK(cuModuleLoadData(&m, made));
	describes(m, false);
	OK(cuLinkDestroy(link));
	CHECK(cuLinkDestroy(link) == 400);
}

// ---- guarded kernels: the record protocol

struct guarded {
	handle stream, control, increment, chain;
	ptr arena, data;
};

#define BLOCKS 20000u // waves of 2112 blocks of 64 threads, for 16 registers a thread, on 132 SMs
#define PER_BLOCK 2u

static struct guarded prepare(void)
{
	start();
	struct guarded g;
	handle m;
	OK(cuModuleLoadData(&m, image("guarded.cubin", NULL)));
	OK(cuModuleGetFunction(&g.increment, m, "sim_increment"));
	OK(cuModuleGetFunction(&g.chain, m, "sim_chain"));
	OK(cuStreamCreate(&g.stream, 1));
	OK(cuStreamCreate(&g.control, 1));
	OK(cuMemAlloc_v2(&g.arena, 2 * GPREEMPT_ARENA_BYTES));
	g.arena = (g.arena + GPREEMPT_ARENA_BYTES - 1) & ~(ptr)(GPREEMPT_ARENA_BYTES - 1);
	OK(cuMemsetD32_v2(g.arena, 0, GPREEMPT_ARENA_BYTES / 4));
	OK(cuMemAlloc_v2(&g.data, BLOCKS * PER_BLOCK * 4));
	OK(cuMemsetD32_v2(g.data, 0, BLOCKS * PER_BLOCK));
	OK(cuCtxSynchronize());
	return g;
}

static ptr record_at(const struct guarded *g, unsigned index)
{
	return index ? g->arena + index * sizeof(struct gpreempt_record) : 0;
}

static void launch_shifted(const struct guarded *g, bool chain, unsigned argument, unsigned us, unsigned record,
			   unsigned shift)
{
	int per_block = PER_BLOCK;
	ptr hidden = record_at(g, record) | shift, data = g->data;
	void *increment[] = {&data, &per_block, &us, &hidden}, *multiply[] = {&data, &per_block, &argument, &us, &hidden};
	OK(cuLaunchKernel(chain ? g->chain : g->increment, BLOCKS / 200, 100, 2, 64, 1, 1, 0, g->stream,
			  chain ? multiply : increment, NULL));
}

static void launch(const struct guarded *g, bool chain, unsigned argument, unsigned us, unsigned record)
{
	launch_shifted(g, chain, argument, us, record, 0);
}

// Stops launches that have begun.
static void freeze(const struct guarded *g, unsigned record)
{
	OK(cuStreamWriteValue32_v2(g->control, record_at(g, record) + offsetof(struct gpreempt_record, state),
				   GPREEMPT_FROZEN, 0));
	OK(cuStreamSynchronize(g->control));
}

static void flag(const struct guarded *g, uint32_t value)
{
	OK(cuStreamWriteValue32_v2(g->control, g->arena, value, 0));
	OK(cuStreamSynchronize(g->control));
}

static struct gpreempt_record record_of(const struct guarded *g, unsigned index)
{
	struct gpreempt_record r;
	OK(cuMemcpyDtoH_v2(&r, record_at(g, index), sizeof r));
	return r;
}

static void set_record(const struct guarded *g, unsigned index, unsigned long long value)
{
	struct gpreempt_record r = {.count = (unsigned)value, .done = (unsigned)value};
	OK(cuMemcpyHtoD_v2(record_at(g, index), &r, sizeof r));
}

static unsigned value_at(const struct guarded *g, uint64_t index)
{
	unsigned v;
	OK(cuMemcpyDtoH_v2(&v, g->data + 4 * index, 4));
	return v;
}

// Waits until a launch has begun a block.
static void begun(const struct guarded *g, unsigned record)
{
	for (uint64_t give_up = now_us() + 60000000; *(volatile unsigned *)record_at(g, record) == 0;)
		CHECK(now_us() < give_up);
}

static void guarded(void)
{
	struct guarded g = prepare();
	// without a record, and with one that is never stopped
	launch(&g, false, 0, 1000, 0);
	launch(&g, false, 0, 1000, 1);
	OK(cuStreamSynchronize(g.stream));
	struct gpreempt_record r = record_of(&g, 1);
	CHECK(r.state == GPREEMPT_OPEN && r.count == BLOCKS && r.done == 0);
	CHECK(value_at(&g, 0) == 2 && value_at(&g, BLOCKS * PER_BLOCK - 1) == 2);

	// stopped midway: ends early, what begins behind it runs no block
	uint64_t from = now_us();
	launch(&g, false, 0, 1500000, 2);
	launch(&g, true, 5, 100000, 3);
	launch(&g, false, 0, 100000, 4);
	begun(&g, 2);
	flag(&g, 1);
	freeze(&g, 2);
	OK(cuStreamSynchronize(g.stream));
	TIMED(now_us() - from < 1500000);
	CHECK(record_of(&g, 2).state == GPREEMPT_FROZEN);
	unsigned cut = record_of(&g, 2).count;
	CHECK(cut > 0);
	TIMED(cut < BLOCKS);
	for (unsigned i = 3; i < 5; i++)
		CHECK(record_of(&g, i).state == GPREEMPT_FROZEN && record_of(&g, i).count == 0);
	CHECK(value_at(&g, 0) == 3 && value_at(&g, cut * PER_BLOCK - 1) == 3 && value_at(&g, cut * PER_BLOCK) == 2);

	// goes on, is stopped again, goes on
	flag(&g, 0);
	set_record(&g, 2, cut);
	launch(&g, false, 0, 1500000, 2);
	for (uint64_t give_up = now_us() + 60000000; *(volatile unsigned *)record_at(&g, 2) == cut;)
		CHECK(now_us() < give_up);
	flag(&g, 1);
	freeze(&g, 2);
	OK(cuStreamSynchronize(g.stream));
	r = record_of(&g, 2);
	CHECK(r.state == GPREEMPT_FROZEN && r.done == cut && r.count > cut);
	unsigned second = r.count;
	TIMED(second < BLOCKS);
	// without the flag being taken away nothing begins
	set_record(&g, 2, second);
	launch(&g, false, 0, 1500000, 2);
	OK(cuStreamSynchronize(g.stream));
	CHECK(record_of(&g, 2).state == GPREEMPT_FROZEN && record_of(&g, 2).count == second);
	flag(&g, 0);
	for (unsigned i = 2; i < 5; i++)
		set_record(&g, i, i == 2 ? second : 0);
	launch(&g, false, 0, 20000, 2);
	launch(&g, true, 5, 10000, 3);
	launch(&g, false, 0, 10000, 4);
	OK(cuStreamSynchronize(g.stream));
	CHECK(record_of(&g, 2).state == GPREEMPT_OPEN && record_of(&g, 2).count == BLOCKS);
	unsigned *all = malloc(BLOCKS * PER_BLOCK * 4);
	OK(cuMemcpyDtoH_v2(all, g.data, BLOCKS * PER_BLOCK * 4));
	for (unsigned i = 0; i < BLOCKS * PER_BLOCK; i++)
		CHECK(all[i] == (2 + 1) * 3 + 5 + 1);

	// all blocks done in an earlier launch: nothing runs again
	set_record(&g, 4, GPREEMPT_MOST);
	launch(&g, false, 0, 10000, 4);
	OK(cuStreamSynchronize(g.stream));
	CHECK(value_at(&g, 7) == 15 && record_of(&g, 4).state == 0);

	// windows of 512 blocks are cut between two of them, one window not at all
	OK(cuMemsetD32_v2(g.data, 0, BLOCKS * PER_BLOCK));
	OK(cuCtxSynchronize());
	launch_shifted(&g, false, 0, 1500000, 5, 9);
	begun(&g, 5);
	freeze(&g, 5);
	OK(cuStreamSynchronize(g.stream));
	r = record_of(&g, 5);
	CHECK(r.state == GPREEMPT_FROZEN && r.count > 0);
	TIMED(r.count < BLOCKS >> 9);
	CHECK(value_at(&g, (r.count << 9) * PER_BLOCK - 1) == 1 && value_at(&g, (r.count << 9) * PER_BLOCK) == 0);
	set_record(&g, 5, r.count);
	launch_shifted(&g, false, 0, 10000, 5, 9);
	launch_shifted(&g, false, 0, 100000, 6, GPREEMPT_WHOLE);
	begun(&g, 6);
	freeze(&g, 6);
	launch_shifted(&g, false, 0, 10000, 6, GPREEMPT_WHOLE); // frozen: but all of its one window ran
	OK(cuStreamSynchronize(g.stream));
	CHECK(record_of(&g, 6).state == GPREEMPT_FROZEN && record_of(&g, 6).count == 1);
	OK(cuMemcpyDtoH_v2(all, g.data, BLOCKS * PER_BLOCK * 4));
	for (unsigned i = 0; i < BLOCKS * PER_BLOCK; i++)
		CHECK(all[i] == 3);
	// a record in memory that is not allocated is a fault
	g.arena = GPREEMPT_ARENA_BYTES; // so low there is no memory of a program
	launch(&g, false, 0, 10, 1);
	CHECK(cuStreamSynchronize(g.stream) == 700);
}

// The blocks of these wait for each other, in three ways. Their results tell whether every block ran once.
static handle waiting_kernel(const char *name)
{
	handle m, f;
	OK(cuModuleLoadData(&m, image("guarded.cubin", NULL)));
	OK(cuModuleGetFunction(&f, m, name));
	return f;
}

static void launch_waiting(const struct guarded *g, handle f, unsigned blocks, ptr word, handle stream, unsigned record,
			   unsigned shift)
{
	int per_block = 1;
	unsigned us = 100;
	ptr hidden = record_at(g, record) | shift, data = g->data;
	void *parameters[] = {&word, &data, &per_block, &us, &hidden};
	OK(cuLaunchKernel(f, blocks, 1, 1, 64, 1, 1, 0, stream, parameters, NULL));
}

static void waiting(void)
{
	enum { GRID = 132 };
	setenv("SIMCUDA_BLOCK_NS", "500000",
	       1); // so that a stop comes between the beginnings of two blocks, also where this loses the CPU
	struct guarded g = prepare();
	ptr word = g.data + 4 * BLOCKS;
	const struct {
		const char *name;
		unsigned each;
	} kernels[] = {{"sim_marlin", 1}, {"sim_lamport", 1}, {"sim_barrier", 2}};
	for (unsigned k = 0; k < 3; k++) {
		handle f = waiting_kernel(kernels[k].name);
		unsigned record = 1 + k;
		OK(cuMemsetD32_v2(g.data, 0, BLOCKS));
		OK(cuMemsetD32_v2(word, 0, 1));
		OK(cuCtxSynchronize());
		launch_waiting(&g, f, GRID, word, g.stream, 0, 0);
		launch_waiting(&g, f, GRID, word, g.stream, 0, 0);
		OK(cuStreamSynchronize(g.stream));
		CHECK(value_at(&g, 0) == 2 * kernels[k].each && value_at(&g, GRID - 1) == 2 * kernels[k].each);
		// cut in the middle it does not end: its blocks wait for those that exited
		struct gpreempt_record r;
		unsigned runs = 2;
		for (uint64_t give_up = now_us() + 60000000;; runs++) {
			launch_waiting(&g, f, GRID, word, g.stream, record, 0);
			begun(&g, record);
			freeze(&g, record);
			r = record_of(&g, record);
			CHECK(r.state == GPREEMPT_FROZEN && r.count > 0);
			if (r.count < GRID)
				break;
			CHECK(now_us() < give_up); // a busy machine froze it too late
			OK(cuStreamSynchronize(g.stream));
			set_record(&g, record, 0);
		}
		struct timespec t = {0, 100000000};
		nanosleep(&t, NULL);
		CHECK(cuStreamQuery(g.stream) == 600);
		// but with those beside it
		set_record(&g, record + 8, r.count);
		launch_waiting(&g, f, GRID, word, g.control, record + 8, 0);
		OK(cuStreamSynchronize(g.control));
		OK(cuStreamSynchronize(g.stream));
		for (unsigned i = 0; i < GRID; i++)
			CHECK(value_at(&g, i) == (runs + 1) * kernels[k].each);
		// in one window it is stopped as a whole or not at all
		launch_waiting(&g, f, GRID, word, g.stream, record + 16, GPREEMPT_WHOLE);
		begun(&g, record + 16);
		freeze(&g, record + 16);
		OK(cuStreamSynchronize(g.stream));
		CHECK(value_at(&g, GRID - 1) == (runs + 2) * kernels[k].each);
	}
}

static void fills(void)
{ // kernels/fill.cu, with and without a record
	struct guarded g = prepare();
	handle m, set, copy, narrow, by_name;
	OK(cuModuleLoadData(&m, image("fill.fatbin", NULL)));
	OK(cuModuleGetFunction(&set, m, "gpreempt_fill"));
	OK(cuModuleGetFunction(&copy, m, "gpreempt_copy"));
	OK(cuModuleGetFunction(&narrow, m, "gpreempt_fill_narrow"));
	by_name = function("gpreempt_copy_narrow"); // not read, so not guarded
	parameter_is(copy, 7, 56, 8);
	ptr to = g.data + 4, other = g.data + 40000, pitch = 0, width = 20001, height = 1, record = 0, none = 0;
	ptr segments = (width + 15 + FILL_SEGMENT - 1) / FILL_SEGMENT, warps = FILL_THREADS / 32;
	unsigned value = 0x5a5a5a5a, blocks = (unsigned)((segments + warps - 1) / warps);
	void *setting[] = {&to, &pitch, &width, &height, &segments, &value, &record};
	OK(cuLaunchKernel(set, blocks, 1, 1, FILL_THREADS, 1, 1, 0, g.stream, setting, NULL));
	ptr copy_to = other + 3;
	void *copying[] = {&copy_to, &pitch, &width, &height, &segments, &to, &pitch, &record};
	record = record_at(&g, 1);
	OK(cuLaunchKernel(copy, blocks, 1, 1, FILL_THREADS, 1, 1, 0, g.stream, copying, NULL));
	unsigned count = 3, unit = 4;
	ptr rows = 5, small = 32, narrow_to = g.data + 80000, again = g.data + 90000;
	value = 7;
	void *narrow_setting[] = {&narrow_to, &small, &rows, &count, &unit, &value, &none};
	OK(cuLaunchKernel(narrow, 1, 1, 1, FILL_THREADS, 1, 1, 0, g.stream, narrow_setting, NULL));
	void *narrow_copying[] = {&again, &small, &rows, &count, &unit, &narrow_to, &small};
	OK(cuLaunchKernel(by_name, 1, 1, 1, FILL_THREADS, 1, 1, 0, g.stream, narrow_copying, NULL));
	// stopped before it begins
	flag(&g, 1);
	OK(cuStreamSynchronize(g.stream));
	CHECK(record_of(&g, 1).count == blocks || record_of(&g, 1).state == GPREEMPT_FROZEN);
	OK(cuMemsetD32_v2(record_at(&g, 2), 0, 4));
	OK(cuCtxSynchronize());
	record = record_at(&g, 2);
	value = 0;
	OK(cuLaunchKernel(set, blocks, 1, 1, FILL_THREADS, 1, 1, 0, g.stream, setting, NULL));
	OK(cuStreamSynchronize(g.stream));
	CHECK(record_of(&g, 2).state == GPREEMPT_FROZEN);
	flag(&g, 0);
	if (record_of(&g, 1).state == GPREEMPT_FROZEN) {
		set_record(&g, 1, 0);
		record = record_at(&g, 1);
		OK(cuLaunchKernel(copy, blocks, 1, 1, FILL_THREADS, 1, 1, 0, g.stream, copying, NULL));
		OK(cuStreamSynchronize(g.stream));
	}
	unsigned char *all = malloc(BLOCKS * PER_BLOCK * 4);
	OK(cuMemcpyDtoH_v2(all, g.data, BLOCKS * PER_BLOCK * 4));
	for (unsigned i = 0; i < 80000; i++)
		CHECK(all[i] == ((i >= 4 && i < 4 + width) || (i >= 40003 && i < 40003 + width) ? 0x5a : 0));
	for (unsigned i = 0; i < 5 * 32; i++)
		for (unsigned at = 80000; at <= 90000; at += 10000)
			CHECK(all[at + i] == (i % 32 < 12 && i % 4 == 0 ? 7 : 0));
	// outside of allocated memory
	width = 1u << 20;
	record = 0;
	OK(cuLaunchKernel(set, blocks, 1, 1, FILL_THREADS, 1, 1, 0, g.stream, setting, NULL));
	CHECK(cuStreamSynchronize(g.stream) == 700);
}

static void graphs(void)
{ // nodes of guarded kernels get records of their own
	struct guarded g = prepare();
	int per_block = PER_BLOCK;
	unsigned us = 1000, add = 5;
	ptr hidden = 0;
	void *increment[] = {&g.data, &per_block, &us, &hidden}, *chain[] = {&g.data, &per_block, &add, &us, &hidden};
	struct kernel_node p = {.func = g.increment, .grid = {BLOCKS, 1, 1}, .block = {64, 1, 1}, .parameters = increment},
			   q;
	handle graph, nodes[3], exec;
	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphAddKernelNode_v2(&nodes[0], graph, NULL, 0, &p));
	OK(cuGraphAddEmptyNode(&nodes[1], graph, nodes, 1));
	p.func = g.chain;
	p.parameters = chain;
	OK(cuGraphAddKernelNode_v2(&nodes[2], graph, nodes, 2, &p));
	CHECK(cuGraphAddKernelNode_v2(&nodes[2], graph, &graph, 1, &p) == 1);
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	CHECK(cuGraphKernelNodeGetParams_v2(nodes[1], &q) == 400);
	OK(cuGraphKernelNodeGetParams_v2(nodes[2], &q));
	CHECK(q.func == g.chain && q.grid[0] == BLOCKS && *(unsigned *)q.parameters[2] == 5 &&
	      *(ptr *)q.parameters[4] == 0);
	for (unsigned i = 0; i < 2; i++) {
		OK(cuGraphKernelNodeGetParams_v2(nodes[2 * i], &q));
		ptr record = record_at(&g, i + 1);
		void *parameters[5];
		for (int k = 0; k < 4; k++)
			parameters[k] = q.parameters[k];
		parameters[i ? 4 : 3] = &record;
		q.parameters = parameters;
		OK(cuGraphExecKernelNodeSetParams_v2(exec, nodes[2 * i], &q));
	}
	OK(cuGraphLaunch(exec, g.stream));
	OK(cuStreamSynchronize(g.stream));
	CHECK(record_of(&g, 1).count == BLOCKS && record_of(&g, 2).count == BLOCKS && value_at(&g, 9) == 8);
	// the graph itself is unchanged, and another instance has no records
	OK(cuGraphExecUpdate_v2(exec, graph, (uint64_t[3]){0}));
	for (unsigned i = 1; i < 3; i++)
		set_record(&g, i, 0);
	OK(cuGraphLaunch(exec, g.stream));
	OK(cuStreamSynchronize(g.stream));
	CHECK(record_of(&g, 1).state == 0 && record_of(&g, 2).state == 0 && value_at(&g, 9) == 9 * 3 + 5);
	add = 6;
	OK(cuGraphKernelNodeSetParams_v2(nodes[2], &p));
	OK(cuGraphExecUpdate_v2(exec, graph, (uint64_t[3]){0}));
	OK(cuGraphLaunch(exec, g.stream));
	OK(cuStreamSynchronize(g.stream));
	CHECK(value_at(&g, 9) == 33 * 3 + 6);
	OK(cuGraphAddEmptyNode(&nodes[1], graph, NULL, 0));
	CHECK(cuGraphExecUpdate_v2(exec, graph, (uint64_t[3]){0}) == 910);
	// cooperative launches: none that is too large, none that could be cut
	int cooperative[16];
	OK(cuGraphKernelNodeGetAttribute(nodes[0], 2, cooperative));
	CHECK(!cooperative[0]);
	CHECK(cuLaunchCooperativeKernel(g.increment, BLOCKS, 1, 1, 64, 1, 1, 0, g.stream, increment) == 720);
	OK(cuLaunchCooperativeKernel(g.increment, 264, 1, 1, 64, 1, 1, 0, g.stream, increment));
	hidden = record_at(&g, 1);
	CHECK(cuLaunchCooperativeKernel(g.increment, 264, 1, 1, 64, 1, 1, 0, g.stream, increment) == 1);
	hidden |= GPREEMPT_WHOLE;
	OK(cuLaunchCooperativeKernel(g.increment, 264, 1, 1, 64, 1, 1, 0, g.stream, increment));
	set_record(&g, 1, 0);
	OK(cuStreamSynchronize(g.stream));
	CHECK(value_at(&g, 9) == 107);
}

static void mps(void)
{ // kernels of processes run side by side, each at its share
	setenv("SIMCUDA_MPS", "1", 1);
	_Atomic uint32_t *shared = shared_words(), *go = shared + 16;
	pid_t other = best_effort(0, shared, go);
	start();
	uint64_t from = now_us();
	spin(NULL, 100000);
	OK(cuStreamSynchronize(NULL));
	uint64_t alone = now_us() - from;
	CHECK(alone >= 100000);
	atomic_store(go, 1);
	until(shared, 1);
	uint32_t before = atomic_load(shared);
	from = now_us();
	spin(NULL, 100000);
	OK(cuStreamSynchronize(NULL));
	uint64_t beside = now_us() - from;
	// 100 ms of ours leave as much to the other: 20 kernels of 5 ms, if it never comes late
	uint32_t ran = atomic_load(shared) - before;
	TIMED(beside >= 140000 && ran >= 8 && ran <= (beside - 100000) / 5000 + 5);
	end(other);
}

static uint64_t cpu_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000;
}

static void idle(void)
{ // neither an idle context nor a running kernel costs CPU time
	start();
	request_us(NULL);
	uint64_t before = cpu_us();
	struct timespec t = {0, 300000000};
	nanosleep(&t, NULL);
	TIMED(cpu_us() - before < 5000);
	before = cpu_us();
	spin(NULL, 300000);
	OK(cuStreamSynchronize(NULL));
	TIMED(cpu_us() - before < 5000);
}

static const struct test tests[] = {
	{"ordering", ordering},
	{"events", events},
	{"capture", capture},
	{"controls", controls},
	{"refused", refused},
	{"wrap", wrap},
	{"slicing", slicing},
	{"shares", shares},
	{"two_short", two_short},
	{"holding", holding},
	{"turning", turning},
	{"doorbells", doorbells},
	{"locks", locks},
	{"connections", connections_default},
	{"connections_1", connections_one},
	{"connections_32", connections_most},
	{"killed", killed},
	{"images", images},
	{"libraries", libraries},
	{"guarded", guarded},
	{"waiting", waiting},
	{"fills", fills},
	{"graphs", graphs},
	{"mps", mps},
	{"stopped", stopped},
	{"forked", forked},
	{"lookup", lookup},
	{"versions", versions},
	{"recaptured", recaptured},
	{"busy", busy},
	{"idle", idle},
};

int main(int argc, char **argv) { return run_test(argc, argv, tests, sizeof tests / sizeof *tests); }
