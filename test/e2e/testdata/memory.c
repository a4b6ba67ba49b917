// A program that uses device memory in each way there is, and knows what every byte of it must be. It obeys the lines of its
// input and answers each with one line; at the end of its input it exits 0. Buffers are numbers, in the order of allocation.
//
//	alloc HOW BYTES      buffer N result R       HOW: a row of ways
//	free N               result R
//	free_at_once N       result R                it waits for no work before
//	same N M             same S                  1: both begin at one address
//	fill N SEED          result R                each word gets a value of its own, by copies from the host
//	step N ROUNDS        result R                each round is a kernel: every word becomes three times itself and some
//	check N              wrong W                 offset of the first wrong byte, -1 = none; read by copies to the host
//	check all            wrong W of M            W of M buffers are wrong
//	attributes N OFFSET  what the driver says about an address, an answer and a result for each question
//	info                 free F total T          cuMemGetInfo
//	start KIND BYTES     started K               a thread that works on buffers of its own all the time; KIND: a row of kinds
//	status               wrong W error E least L total T    of these threads; L: rounds of the one with the fewest
//	stop                 the same, after their end
//	device N, us N       later commands are for that GPU; later kernels take so long (us)
//	long N               launched R              a kernel on buffer N that nobody waits for
//	blocked N            launched R              the same, behind a wait for a word in device memory
//	duplicate N M        result R                M becomes a copy of N, behind such a wait on the default stream
//	copied N M           result R                the same, behind a kernel
//	unblock              result R                which this command writes
//	capture N, captured  result R                a capture of a kernel on buffer N begins, ends and is replayed
//	wait                 result R                cuCtxSynchronize
//	leave                result R                the device's context ends
//	peers                result R                devices 0 and 1 may use each other's memory, by cuCtxEnablePeerAccess
//	register N           result R                SYNC_MEMOPS of buffer N is set
//	dmabuf N             result R                a descriptor of buffer N for devices on the bus is made
//	handle N             handle HEX result R     a legacy IPC handle of buffer N
//	open HEX             buffer N result R       of another process
//	endpoint WAY N       result R                buffer N is bound to a logical endpoint, by its handle or its address
//	descriptor N         descriptor D result R   a shareable handle of buffer N, which may be imported as /proc/PID/fd/D
//	adopt PID D BYTES    buffer N result R       by another process
//	hint US              result R                gpreempt_hint: work comes in so many microseconds
//	expect N SEED        result 0                what another process filled buffer N with
//	pinned BYTES         result R                host memory is pinned, and given back
//	acquire, acquired    acquiring, result R     another thread waits for a frame of an EGL stream, which is given (simulated driver)
//	freeing N, freed     freeing, result R       buffer N is freed by another thread
//
// An argument names the image of the kernels; the simulated driver needs none.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { unsigned char bytes[64]; } ipc_handle;

#define FUNCTIONS(F) \
	F(cuInit, (unsigned)) \
	F(cuDeviceGetCount, (int *)) \
	F(cuDeviceGetDefaultMemPool, (handle *, int)) \
	F(cuDevicePrimaryCtxRetain, (handle *, int)) \
	F(cuDevicePrimaryCtxRelease_v2, (int)) \
	F(cuCtxSetCurrent, (handle)) \
	F(cuCtxSynchronize, (void)) \
	F(cuCtxCreate_v2, (handle *, unsigned, int)) \
	F(cuCtxDestroy_v2, (handle)) \
	F(cuStreamCreate, (handle *, unsigned)) \
	F(cuStreamDestroy_v2, (handle)) \
	F(cuStreamSynchronize, (handle)) \
	F(cuStreamSynchronize_ptsz, (handle)) \
	F(cuStreamWaitEvent, (handle, handle, unsigned)) \
	F(cuEventCreate, (handle *, unsigned)) \
	F(cuEventDestroy_v2, (handle)) \
	F(cuEventRecord, (handle, handle)) \
	F(cuEventSynchronize, (handle)) \
	F(cuMemAlloc_v2, (ptr *, size_t)) \
	F(cuMemAllocPitch_v2, (ptr *, size_t *, size_t, size_t, unsigned)) \
	F(cuMemAllocManaged, (ptr *, size_t, unsigned)) \
	F(cuMemFree_v2, (ptr)) \
	F(cuMemAllocAsync, (ptr *, size_t, handle)) \
	F(cuMemAllocFromPoolAsync, (ptr *, size_t, handle, handle)) \
	F(cuMemFreeAsync, (ptr, handle)) \
	F(cuMemPoolCreate, (handle *, const void *)) \
	F(cuMemPoolDestroy, (handle)) \
	F(cuMemAddressReserve, (ptr *, size_t, size_t, ptr, unsigned long long)) \
	F(cuMemAddressFree, (ptr, size_t)) \
	F(cuMemCreate, (unsigned long long *, size_t, const void *, unsigned long long)) \
	F(cuMemRelease, (unsigned long long)) \
	F(cuMemMap, (ptr, size_t, size_t, unsigned long long, unsigned long long)) \
	F(cuMemUnmap, (ptr, size_t)) \
	F(cuMemSetAccess, (ptr, size_t, const void *, size_t)) \
	F(cuMemGetHandleForAddressRange, (void *, ptr, size_t, int, unsigned long long)) \
	F(cuMemExportToShareableHandle, (void *, unsigned long long, int, unsigned long long)) \
	F(cuMemImportFromShareableHandle, (unsigned long long *, void *, int)) \
	F(cuCtxEnablePeerAccess, (handle, unsigned)) \
	F(cuIpcGetMemHandle, (ipc_handle *, ptr)) \
	F(cuIpcOpenMemHandle_v2, (ptr *, ipc_handle, unsigned)) \
	F(cuIpcCloseMemHandle, (ptr)) \
	F(cuPointerSetAttribute, (const void *, int, ptr)) \
	F(cuLogicalEndpointBindMem, (unsigned, int, unsigned long long, unsigned long long, unsigned long long, \
				     unsigned long long, unsigned long long)) \
	F(cuLogicalEndpointBindAddr, (unsigned, int, unsigned long long, void *, unsigned long long, unsigned long long)) \
	F(cuMemRetainAllocationHandle, (unsigned long long *, void *)) \
	F(cuMemGetAddressRange_v2, (ptr *, size_t *, ptr)) \
	F(cuPointerGetAttribute, (void *, int, ptr)) \
	F(cuMemGetInfo_v2, (size_t *, size_t *)) \
	F(cuMemHostAlloc, (void **, size_t, unsigned)) \
	F(cuMemFreeHost, (void *)) \
	F(cuMemcpy, (ptr, ptr, size_t)) \
	F(cuMemcpyDtoH_v2, (void *, ptr, size_t)) \
	F(cuMemcpyHtoD_v2, (ptr, const void *, size_t)) \
	F(cuMemcpyDtoHAsync_v2, (void *, ptr, size_t, handle)) \
	F(cuMemcpyHtoDAsync_v2, (ptr, const void *, size_t, handle)) \
	F(cuMemcpyDtoDAsync_v2, (ptr, ptr, size_t, handle)) \
	F(cuMemsetD32Async, (ptr, unsigned, size_t, handle)) \
	F(cuStreamWaitValue32_v2, (handle, ptr, uint32_t, unsigned)) \
	F(cuStreamWriteValue32_v2, (handle, ptr, uint32_t, unsigned)) \
	F(cuModuleLoadData, (handle *, const void *)) \
	F(cuModuleGetFunction, (handle *, handle, const char *)) \
	F(cuLaunchKernel, \
	  (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **)) \
	F(cuLaunchKernel_ptsz, \
	  (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **)) \
	F(cuStreamBeginCapture_v2, (handle, int)) \
	F(cuStreamEndCapture, (handle, handle *)) \
	F(cuGraphInstantiateWithFlags, (handle *, handle, unsigned long long)) \
	F(cuGraphLaunch, (handle, handle)) \
	F(cuGraphExecDestroy, (handle)) \
	F(cuGraphDestroy, (handle))

#include "driver.h"

#include "memory_buffers.h"
#include "memory_threads.h"

static struct buffer buffers[BUFFERS];
static int buffer_count;
static handle stream, beside;
static ptr flag;
static uint32_t unblocked;

static void check_all(void)
{
	int wrong = 0, all = 0;
	for (int i = 0; i < buffer_count; i++)
		if (buffers[i].way) {
			OK(cuCtxSetCurrent(gpus[buffers[i].device].context));
			all++;
			wrong += wrong_at(&buffers[i]) >= 0;
		}
	OK(cuCtxSetCurrent(gpus[device].context));
	printf("wrong %d of %d\n", wrong, all);
}

// Answers are printed as offsets and kinds, so that they can be compared between processes.
static void attributes(const struct buffer *b, size_t offset)
{
	enum { CONTEXT = 1, DEVICE_POINTER = 3, BUFFER_ID = 7, RANGE_START = 11, POOL = 17, BASE = 19, LAST = 19 };
	unsigned long long value, h;
	ptr start = 0;
	size_t bytes = 0;
	for (int i = 1; i <= LAST; i++) {
		value = 0;
		int r = cuPointerGetAttribute(&value, i, b->at + offset);
		if (i == CONTEXT)
			value = value == (uintptr_t)gpus[b->device].context;
		else if (i == DEVICE_POINTER || i == RANGE_START || i == BASE)
			value -= value ? b->at : 0;
		else if (i == BUFFER_ID || i == POOL)
			value = value != 0;
		printf("%d:%llu:%d ", i, value, r);
	}
	int r = cuMemGetAddressRange_v2(&start, &bytes, b->at + offset);
	printf("range:%llu+%zu:%d ", start - b->at, bytes, r);
	r = cuMemRetainAllocationHandle(&h, (void *)(b->at + offset));
	if (!r)
		OK(cuMemRelease(h));
	printf("retain:%d\n", r);
}

static void info(void)
{
	size_t free, total;
	OK(cuMemGetInfo_v2(&free, &total));
	printf("free %zu total %zu\n", free, total);
}

static void say_buffer(struct buffer b, int result)
{
	b.way = result ? NULL : b.way;
	buffers[buffer_count] = b;
	printf("buffer %d result %d\n", buffer_count++, result);
}

static void tell_handle(const struct buffer *b)
{
	ipc_handle h = {{0}};
	int r = cuIpcGetMemHandle(&h, b->at);
	printf("handle ");
	for (size_t i = 0; i < sizeof h; i++)
		printf("%02x", h.bytes[i]);
	printf(" result %d\n", r);
}

static void open_handle(const char *hex)
{
	struct buffer b = {.way = &opened, .device = device, .factor = 1};
	ipc_handle h;
	for (size_t i = 0; i < sizeof h; i++)
		sscanf(hex + 2 * i, "%2hhx", &h.bytes[i]);
	int r = cuIpcOpenMemHandle_v2(&b.at, h, 1);
	if (!r)
		OK(cuMemGetAddressRange_v2(NULL, &b.bytes, b.at));
	say_buffer(b, r);
}

static void tell_descriptor(const struct buffer *b)
{
	unsigned long long h;
	int descriptor = -1, r = cuMemRetainAllocationHandle(&h, (void *)b->at);
	if (!r) {
		r = cuMemExportToShareableHandle(&descriptor, h, 1, 0);
		OK(cuMemRelease(h));
	}
	printf("descriptor %d result %d\n", descriptor, r);
}

static void adopt(int pid, int descriptor, size_t bytes)
{
	struct buffer b = {.way = &ways[MAPPED], .device = device, .factor = 1};
	unsigned long long h;
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, descriptor);
	int file = open(path, O_RDWR), r = cuMemImportFromShareableHandle(&h, (void *)(intptr_t)file, 1);
	close(file);
	r = r ? r : reserve_pieces(&b, bytes, 1);
	say_buffer(b, r ? r : map_behind(&b, h));
}

static pthread_t freeing;

static void *release_beside(void *b)
{
	OK(cuCtxSetCurrent(gpus[device].context));
	return (void *)(intptr_t)release(b);
}

static int end_of(pthread_t thread)
{
	void *result;
	pthread_join(thread, &result);
	return (int)(intptr_t)result;
}

static pthread_t acquiring;

static void *acquire_frame(void *context)
{
	int (*acquire)(handle *, handle *, handle *, unsigned) =
		(int (*)(handle *, handle *, handle *, unsigned))dlsym(RTLD_DEFAULT, "cuEGLStreamConsumerAcquireFrame");
	handle connection = NULL, frame;
	OK(cuCtxSetCurrent(context));
	return (void *)(intptr_t)(acquire ? acquire(&connection, &frame, &beside, ~0u) : -1);
}

// Returns once the driver waits.
static int begin_acquire(void)
{
	void (*await)(unsigned) = (void (*)(unsigned))dlsym(RTLD_DEFAULT, "simcuda_await_consumers");
	if (!await || pthread_create(&acquiring, NULL, acquire_frame, gpus[device].context))
		return -1;
	await(1);
	return 0;
}

static int end_acquire(void)
{
	((void (*)(void))dlsym(RTLD_DEFAULT, "simcuda_give_frame"))();
	return end_of(acquiring);
}

static int pin(size_t bytes)
{
	void *host;
	int r = cuMemHostAlloc(&host, bytes, 0);
	return r ? r : cuMemFreeHost(host);
}

static int give_descriptor(const struct buffer *b)
{
	int file, r = cuMemGetHandleForAddressRange(&file, b->at, b->bytes / 4096 * 4096, 1, 0);
	return r ? r : close(file);
}

static int bind_to_endpoint(const char *way, const struct buffer *b)
{
	unsigned long long h;
	if (strcmp(way, "handle"))
		return cuLogicalEndpointBindAddr(1, device, 0, (void *)b->at, b->bytes, 0);
	int r = cuMemRetainAllocationHandle(&h, (void *)b->at);
	if (!r) {
		r = cuLogicalEndpointBindMem(1, device, 0, h, 0, b->bytes, 0);
		OK(cuMemRelease(h));
	}
	return r;
}

static int register_memory(const struct buffer *b)
{
	enum { SYNC_MEMOPS = 6 };
	unsigned yes = 1;
	return cuPointerSetAttribute(&yes, SYNC_MEMOPS, b->at);
}

static int make_peers(void)
{
	int r = 0;
	for (int i = 0; !r && i < 2; i++) {
		OK(cuCtxSetCurrent(gpus[i].context));
		r = cuCtxEnablePeerAccess(gpus[!i].context, 0);
	}
	OK(cuCtxSetCurrent(gpus[device].context));
	return r;
}

static void allocate_buffer(const char *how, size_t bytes)
{
	const struct way *way = way_named(how);
	struct buffer b;
	if (!way || buffer_count == BUFFERS) {
		printf("no way %s\n", how);
		return;
	}
	int r = allocate(&b, way, device, bytes);
	say_buffer(b, r);
}

static int step_often(struct buffer *b, unsigned rounds)
{
	int r = 0;
	for (unsigned i = 0; !r && i < rounds; i++)
		r = step(b, stream, i);
	return r ? r : cuStreamSynchronize(stream);
}

// A wait that only a call of the program ends.
static int block(handle where)
{
	if (!flag) {
		OK(cuMemAlloc_v2(&flag, 4));
		OK(cuMemsetD32Async(flag, 0, 1, beside));
		OK(cuStreamSynchronize(beside));
	}
	return cuStreamWaitValue32_v2(where, flag, unblocked + 1, 0);
}

static int step_behind_wait(struct buffer *b)
{
	int r = block(stream);
	return r ? r : step(b, stream, 3);
}

// Returns before it is done, as copies within the device do.
static int duplicate(const struct buffer *from, struct buffer *to, int r)
{
	to->seed = from->seed, to->factor = from->factor, to->addend = from->addend;
	return r ? r : cuMemcpy(to->at, from->at, to->bytes);
}

static int capture(struct buffer *b)
{
	int r = cuStreamBeginCapture_v2(stream, 0);
	return r ? r : step(b, stream, 9);
}

static int replay_captured(void)
{
	handle graph, executable;
	int r = cuStreamEndCapture(stream, &graph);
	r = r ? r : cuGraphInstantiateWithFlags(&executable, graph, 0);
	r = r ? r : cuGraphLaunch(executable, stream);
	r = r ? r : cuStreamSynchronize(stream);
	r = r ? r : cuGraphExecDestroy(executable);
	return r ? r : cuGraphDestroy(graph);
}

static void use_device(int wanted)
{
	struct gpu *g = &gpus[wanted];
	handle module;
	device = wanted;
	if (!g->context) {
		OK(cuDevicePrimaryCtxRetain(&g->context, wanted));
		OK(cuCtxSetCurrent(g->context));
		OK(cuModuleLoadData(&module, image));
		OK(cuModuleGetFunction(&g->chain, module, "sim_chain"));
	}
	OK(cuCtxSetCurrent(g->context));
	OK(cuStreamCreate(&stream, NON_BLOCKING));
	OK(cuStreamCreate(&beside, NON_BLOCKING));
}

static int leave_device(void)
{
	gpus[device].context = NULL;
	return cuDevicePrimaryCtxRelease_v2(device);
}

static struct buffer *buffer_of(unsigned n)
{
	if (n < (unsigned)buffer_count && buffers[n].way)
		return &buffers[n];
	fprintf(stderr, "no buffer %u\n", n);
	_Exit(1);
}

// Commands about work, and about who else uses memory. False: it is none of these.
static bool obey_other(const char *line)
{
	char hex[160], word[32];
	unsigned n, m;
	size_t bytes;
	if (sscanf(line, "long %u", &n) == 1)
		printf("launched %d\n", step(buffer_of(n), stream, 5));
	else if (sscanf(line, "blocked %u", &n) == 1)
		printf("launched %d\n", step_behind_wait(buffer_of(n)));
	else if (sscanf(line, "duplicate %u %u", &n, &m) == 2)
		printf("result %d\n", duplicate(buffer_of(n), buffer_of(m), block(NULL)));
	else if (sscanf(line, "copied %u %u", &n, &m) == 2)
		printf("result %d\n", duplicate(buffer_of(n), buffer_of(m), step(buffer_of(n), NULL, 5)));
	else if (!strcmp(line, "unblock\n"))
		printf("result %d\n", cuStreamWriteValue32_v2(beside, flag, ++unblocked, 0));
	else if (sscanf(line, "capture %u", &n) == 1)
		printf("result %d\n", capture(buffer_of(n)));
	else if (!strcmp(line, "captured\n"))
		printf("result %d\n", replay_captured());
	else if (!strcmp(line, "wait\n"))
		printf("result %d\n", cuCtxSynchronize());
	else if (!strcmp(line, "leave\n"))
		printf("result %d\n", leave_device());
	else if (!strcmp(line, "peers\n"))
		printf("result %d\n", make_peers());
	else if (sscanf(line, "register %u", &n) == 1)
		printf("result %d\n", register_memory(buffer_of(n)));
	else if (sscanf(line, "dmabuf %u", &n) == 1)
		printf("result %d\n", give_descriptor(buffer_of(n)));
	else if (sscanf(line, "endpoint %31s %u", word, &n) == 2)
		printf("result %d\n", bind_to_endpoint(word, buffer_of(n)));
	else if (sscanf(line, "handle %u", &n) == 1)
		tell_handle(buffer_of(n));
	else if (sscanf(line, "open %159s", hex) == 1 && strlen(hex) == 2 * sizeof(ipc_handle))
		open_handle(hex);
	else if (sscanf(line, "descriptor %u", &n) == 1)
		tell_descriptor(buffer_of(n));
	else if (sscanf(line, "freeing %u", &n) == 1)
		printf("freeing %d\n", pthread_create(&freeing, NULL, release_beside, buffer_of(n)));
	else if (!strcmp(line, "freed\n"))
		printf("result %d\n", end_of(freeing));
	else if (!strcmp(line, "acquire\n"))
		printf("acquiring %d\n", begin_acquire());
	else if (!strcmp(line, "acquired\n"))
		printf("result %d\n", end_acquire());
	else if (sscanf(line, "pinned %zu", &bytes) == 1)
		printf("result %d\n", pin(bytes));
	else if (sscanf(line, "adopt %u %u %zu", &n, &m, &bytes) == 3)
		adopt((int)n, (int)m, bytes);
	else
		return false;
	return true;
}

// A handler that was registered before the library had anything to register. A line of the input says when the program may end.
static bool lingers;
static void linger(void)
{
	char line[256];
	if (!lingers)
		return;
	printf("exiting\n");
	while (fgets(line, sizeof line, stdin))
		;
}

static void obey(const char *line)
{
	char word[32];
	unsigned n, m;
	size_t bytes;
	if (sscanf(line, "alloc %31s %zu", word, &bytes) == 2) {
		allocate_buffer(word, bytes);
	} else if (sscanf(line, "free %u", &n) == 1) {
		int r = cuStreamSynchronize(stream);
		printf("result %d\n", r ? r : release(buffer_of(n)));
	} else if (sscanf(line, "free_at_once %u", &n) == 1) {
		printf("result %d\n", release(buffer_of(n)));
	} else if (sscanf(line, "same %u %u", &n, &m) == 2) {
		printf("same %d\n", buffer_of(n)->at == buffer_of(m)->at);
	} else if (sscanf(line, "fill %u %u", &n, &m) == 2) {
		printf("result %d\n", fill(buffer_of(n), m));
	} else if (sscanf(line, "step %u %u", &n, &m) == 2) {
		printf("result %d\n", step_often(buffer_of(n), m));
	} else if (sscanf(line, "check %u", &n) == 1) {
		printf("wrong %lld\n", wrong_at(buffer_of(n)));
	} else if (!strcmp(line, "check all\n")) {
		check_all();
	} else if (sscanf(line, "attributes %u %zu", &n, &bytes) == 2) {
		attributes(buffer_of(n), bytes);
	} else if (!strcmp(line, "info\n")) {
		info();
	} else if (sscanf(line, "hint %zu", &bytes) == 1) {
		int (*hint)(int64_t, double) = (int (*)(int64_t, double))dlsym(RTLD_DEFAULT, "gpreempt_hint");
		printf("result %d\n", hint ? hint((int64_t)bytes, 1) : -2);
	} else if (sscanf(line, "start %31s %zu", word, &bytes) == 2) {
		start(word, bytes);
	} else if (!strcmp(line, "status\n")) {
		status();
	} else if (!strcmp(line, "stop\n")) {
		stop();
	} else if (sscanf(line, "device %u", &n) == 1 && n < DEVICES) {
		use_device((int)n);
		printf("device %u\n", n);
	} else if (sscanf(line, "us %u", &n) == 1) {
		kernel_us = n;
		printf("us %u\n", n);
	} else if (sscanf(line, "expect %u %u", &n, &m) == 2) {
		newly_filled(buffer_of(n), m);
		printf("result 0\n");
	} else if (!strcmp(line, "exit\n")) {
		lingers = true;
		exit(0);
	} else if (!obey_other(line)) {
		printf("unknown command\n");
	}
}

static void read_image(const char *path)
{
	FILE *file = fopen(path, "rb");
	char *text = calloc(1, 1 << 20);
	if (!file || !text || !fread(text, 1, 1 << 20, file)) {
		fprintf(stderr, "cannot read %s\n", path);
		_Exit(1);
	}
	fclose(file);
	image = text;
}

// As a CUDA runtime does: the primary context is current before the driver has initialised it.
static void initialise_later(void)
{
	handle context;
	char line[256];
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	printf("current\n");
	if (!fgets(line, sizeof line, stdin) || strcmp(line, "initialise\n"))
		_Exit(1);
	((void (*)(void))dlsym(RTLD_DEFAULT, "simcuda_initialise"))();
	size_t free, total; // before any other call that says which context is current
	OK(cuMemGetInfo_v2(&free, &total));
	printf("free %zu\n", free);
	if (!fgets(line, sizeof line, stdin) || strcmp(line, "go on\n"))
		_Exit(1);
}

int main(int count, char **argument)
{
	char line[256];
	setvbuf(stdout, NULL, _IOLBF, 0);
	atexit(linger);
	image = "simulated image";
	every_byte = getenv("TEST_EVERY_BYTE");
	if (count > 1)
		read_image(argument[1]);
	find_driver();
	OK(cuInit(0));
	if (getenv("SIMCUDA_LATE_CONTEXT"))
		initialise_later();
	use_device(0);
	while (fgets(line, sizeof line, stdin))
		obey(line);
	return 0;
}
