// hold.c - what holds places on the SMs, and streams: a spinner that fills the GPU and whose blocks wait for each other, waiters of one
// block, the words that end them, and a guard that does so in time.
#include <pthread.h>
#include <string.h>

#include "order.h"

CUfunction kernel[KERNELS];
struct gpu gpu;

static const char *const names[KERNELS] = {
	[SPIN] = "order_spin", [WAIT] = "order_wait", [SHORT] = "order_short", [SHORT_SHARED] = "order_short_shared"};
static struct order_words *words;
static CUdeviceptr arrived;
static CUstream service;

__asm__(".section .rodata\n"
	".balign 16\n"
	"order_image: .incbin \"test/gpu/order_probe/kernels/order.cubin\"\n"
	".previous");
extern const char order_image[];

unsigned resident(enum kernel which, unsigned threads)
{
	int blocks = 0;
	CHECK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel[which], (int)threads, 0));
	return blocks > 0 ? (unsigned)blocks : 1;
}

void hold_begin(void)
{
	for (int i = 0; i < KERNELS; i++)
		kernel[i] = function_of(order_image, names[i]);
	gpu.sms = device_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
	CHECK(cuCtxGetStreamPriorityRange(&gpu.least, &gpu.greatest));
	gpu.all = (unsigned)gpu.sms * resident(SPIN, ORDER_THREADS);
	if (gpu.all > ORDER_BLOCKS)
		give_up("%u blocks of the spinner fit, more than %d", gpu.all, ORDER_BLOCKS);
	CHECK(cuMemHostAlloc((void **)&words, sizeof *words, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
	CHECK(cuMemAlloc(&arrived, sizeof(unsigned)));
	service = stream_of(gpu.greatest);
}

void hold_clear(void)
{
	memset(words, 0, sizeof *words);
	CHECK(cuMemsetD8Async(arrived, 0, sizeof(unsigned), service));
	CHECK(cuStreamSynchronize(service));
}

static uint32_t look(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

static void say(uint32_t *word) { __atomic_store_n(word, 1, __ATOMIC_RELEASE); }

void hold_release(void) { say(&words->release); }

void hold_abort(void) { say(&words->abort); }

void waiter_launch(CUstream stream, unsigned number)
{
	void *parameters[] = {&words, &number};
	CHECK(cuLaunchKernel(kernel[WAIT], 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
}

unsigned waiters_begun(unsigned of)
{
	unsigned begun = 0;
	for (unsigned i = 0; i < of; i++)
		begun += look(&words->begun[i]) != 0;
	return begun;
}

unsigned waiter_sm(unsigned number) { return look(&words->begun[number]) - 1; }

void spinner_launch(CUstream stream, const int *priority)
{
	void *parameters[] = {&words, &arrived, &gpu.all};
	struct gp_launch_attribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PRIORITY,
						.value.priority = priority ? *priority : 0};
	struct launch launch = {{gpu.all, 1, 1}, {ORDER_THREADS, 1, 1}, 0, stream, &attribute, priority != NULL};
	if (priority)
		CHECK(cuLaunchKernelEx(&launch, kernel[SPIN], parameters, NULL));
	else
		CHECK(cuLaunchKernel(kernel[SPIN], gpu.all, 1, 1, ORDER_THREADS, 1, 1, 0, stream, parameters, NULL));
}

unsigned spinner_arrived(void)
{
	unsigned count = 0;
	for (unsigned i = 0; i < gpu.all; i++)
		count += look(&words->arrived[i]);
	return count;
}

// ---- the guard: a thread, since a call of ours may wait for what only we can end

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // over the next two: the guard never ends a later case
static double ends_us;                                   // 0: no case goes on
static bool acted;

static void *watch(void *unused)
{
	for (;; pause_us(1000)) {
		pthread_mutex_lock(&lock);
		if (ends_us > 0 && now_us() > ends_us) {
			hold_abort();
			acted = true;
			ends_us = 0;
		}
		pthread_mutex_unlock(&lock);
	}
	return NULL;
}

void guard_set(double ms)
{
	static pthread_t thread;
	if (!thread && pthread_create(&thread, NULL, watch, NULL))
		give_up("no thread");
	pthread_mutex_lock(&lock);
	ends_us = now_us() + ms * 1000 * slowness;
	acted = false;
	pthread_mutex_unlock(&lock);
}

bool guard_clear(void)
{
	pthread_mutex_lock(&lock);
	ends_us = 0;
	bool did = acted;
	pthread_mutex_unlock(&lock);
	return did;
}

void need(CUresult result, const char *what)
{
	if (result != CUDA_SUCCESS)
		give_up("%s: %s", what, error_name(result));
}
