// channels.c - which streams share a hardware channel, and which copies need none of those that kernels go through? One stream of some
// priority has a kernel that waits for the host, and a kernel behind it. Then another one gets a write: it is late if it comes behind.
// And with as many such streams as there are channels, which copies come through all the same?
#include <stdlib.h>
#include <string.h>

#include "order.h"

enum { STREAMS = ORDER_WAITERS, BULK = 1 << 20, ROWS = 64, PITCH = 256, GUARD_MS = 300 };
#define PATIENCE_US (20e3 * slowness)

enum way {
	WRITE,
	TO_4,
	TO_4K,
	TO_8K,
	TO_16K,
	TO_32K,
	TO_96K,
	TO_1M,
	ROW,
	ROWS_2,
	ROWS_4,
	ROWS_16,
	ROWS_OF_4,
	ROWS_OF_256,
	HALVES,
	SPREAD,
	FROM_4,
	FROM_ROWS,
	WAYS
};
static const char *const way_name[] = {
	"write value",        "to 4 B",     "to 4 KiB",    "to 8 KiB",        "to 16 KiB",
	"to 32 KiB",          "to 96 KiB",  "to 1 MiB",    "to row",          "to 2 rows",
	"to 4 rows",          "to 16 rows", "to 64 rows",  "to 64 long rows", "to 64 halves of words",
	"to 64 words spread", "from 4 B",   "from 64 rows"};
enum behind { KERNEL, TO_BULK, TO_FEW, FROM_BULK, BEHINDS };
static const char *const behind_name[] = {"kernel", "to 1 MiB", "to 64 B", "from 1 MiB"};

static CUstream slow[STREAMS], urgent;
static CUevent event;
static CUdeviceptr bulk, target, seen;
static char *pinned;

// Rows of so many bytes, so far apart on the host and on the device.
static CUresult rows_apart(bool to_device, size_t width, size_t height, size_t on_host, size_t on_device)
{
	struct gp_copy_2d copy = {
		.from = {.memory_type = CU_MEMORYTYPE_HOST, .host = pinned, .pitch = on_host},
		.to = {.memory_type = CU_MEMORYTYPE_DEVICE, .device = target, .pitch = on_device},
		.width_bytes = width,
		.height = height,
	};
	if (!to_device) {
		struct gp_copy_side from = copy.from;
		copy.from = copy.to;
		copy.to = from;
	}
	return ASK(cuMemcpy2DAsync, &copy, urgent);
}

static CUresult rows(bool to_device, size_t width, size_t height)
{
	return rows_apart(to_device, width, height, PITCH, PITCH);
}

static CUresult act(enum way way)
{
	switch (way) {
	case WRITE: return ASK(cuStreamWriteValue32, urgent, target, 1, 0);
	case TO_4: return cu.cuMemcpyHtoDAsync(target, pinned, 4, urgent);
	case TO_4K: return cu.cuMemcpyHtoDAsync(target, pinned, 4 << 10, urgent);
	case TO_8K: return cu.cuMemcpyHtoDAsync(target, pinned, 8 << 10, urgent);
	case TO_16K: return cu.cuMemcpyHtoDAsync(target, pinned, 16 << 10, urgent);
	case TO_32K: return cu.cuMemcpyHtoDAsync(target, pinned, 32 << 10, urgent);
	case TO_96K: return cu.cuMemcpyHtoDAsync(target, pinned, 96 << 10, urgent);
	case TO_1M: return cu.cuMemcpyHtoDAsync(target, pinned, BULK, urgent);
	case ROW: return rows(true, 4, 1);
	case ROWS_2: return rows(true, 4, 2);
	case ROWS_4: return rows(true, 4, 4);
	case ROWS_16: return rows(true, 4, 16);
	case ROWS_OF_4: return rows(true, 4, ROWS);
	case ROWS_OF_256: return rows(true, PITCH, ROWS);
	case HALVES: return rows_apart(true, 2, ROWS, 4, 4);
	case SPREAD: return rows_apart(true, 4, ROWS, 4, 64);
	case FROM_4: return cu.cuMemcpyDtoHAsync(pinned, target, 4, urgent);
	case FROM_ROWS: return rows(false, 4, ROWS);
	default: return NO_SUCH_FUNCTION;
	}
}

static CUresult put_behind(enum behind behind, CUstream stream)
{
	switch (behind) {
	case TO_BULK: return cu.cuMemcpyHtoDAsync(bulk, pinned, BULK, stream);
	case TO_FEW: return cu.cuMemcpyHtoDAsync(bulk, pinned, 64, stream);
	case FROM_BULK: return cu.cuMemcpyDtoHAsync(pinned, bulk, BULK, stream);
	default: return cu.cuLaunchKernel(kernel[SHORT], 1, 1, 1, 32, 1, 1, 0, stream, (void *[]){&seen}, NULL);
	}
}

// Microseconds from the call until it was done; below 0: it was late.
static double takes(unsigned first, unsigned count, enum behind behind, enum way way)
{
	guard_set(GUARD_MS);
	hold_clear();
	for (unsigned i = first; i < first + count; i++) {
		waiter_launch(slow[i], i - first);
		need(put_behind(behind, slow[i]), behind_name[behind]);
	}
	double began = now_us();
	while (waiters_begun(count) < count && now_us() - began < 10e3 * slowness)
		;
	pause_us(100);
	began = now_us();
	need(act(way), way_name[way]);
	CHECK(cuEventRecord(event, urgent));
	CUresult result;
	double us;
	do {
		us = now_us() - began;
		result = cu.cuEventQuery(event);
	} while (result == CUDA_ERROR_NOT_READY && us < PATIENCE_US);
	bool acted = guard_clear();
	hold_release();
	CHECK(cuCtxSynchronize());
	return result == CUDA_SUCCESS && !acted ? us : -1;
}

static const struct {
	const char *name;
	int urgent, slow; // priorities above the least; 9: the greatest
	bool early;       // the urgent stream is made before the others
} order[] = {{"greatest, early", 9, 0, true},    {"greatest", 9, 0, false},
	     {"above least, early", 1, 0, true}, {"least, early", 0, 0, true},
	     {"both greatest", 9, 9, true},      {"greatest beside above least", 9, 1, true}};

static CUstream above(int steps)
{
	int priority = gpu.least - steps;
	return stream_of(priority < gpu.greatest ? gpu.greatest : priority);
}

// Which of the streams hold up the urgent one: x or 1 for each, in the order in which they were made. 1: it is held up once in two times.
static void map(const char *name, size_t kind)
{
	char shared[STREAMS + 1] = "";
	if (order[kind].early)
		urgent = above(order[kind].urgent);
	for (unsigned i = 0; i < STREAMS; i++)
		slow[i] = above(order[kind].slow);
	if (!order[kind].early)
		urgent = above(order[kind].urgent);
	for (unsigned i = 0; i < STREAMS; i++) {
		int late = 0;
		for (int repeat = 0; repeat < 2; repeat++)
			late += takes(i, 1, KERNEL, WRITE) < 0;
		shared[i] = ".1x"[late];
	}
	fact(shared, "%s: streams that hold up the urgent one, %s", name, order[kind].name);
}

static void forget_streams(void)
{
	for (unsigned i = 0; i < STREAMS; i++)
		CHECK(cuStreamDestroy(slow[i]));
	CHECK(cuStreamDestroy(urgent));
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

// How long each takes where nothing is in its way.
static void alone(const char *name)
{
	enum { TIMES = 101 };
	double us[TIMES];
	for (int way = 0; way < WAYS; way++) {
		int done = 0, times = plan.quick ? 3 : TIMES;
		for (int i = 0; i < times; i++)
			done += (us[i] = takes(0, 0, KERNEL, (enum way)way)) >= 0;
		qsort(us, (size_t)times, sizeof *us, by_value);
		row(name, "streams=0\tbehind=-\turgent=%s\tn=%d\tdone=%d\tp50_us=%.1f\tmax_us=%.1f", way_name[way],
		    times, done, us[times / 2], us[times - 1]);
	}
}

static void ways(const char *name)
{
	static const unsigned widths[] = {8, STREAMS};
	alone(name);
	for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
		for (int behind = 0; behind < BEHINDS; behind++)
			for (int way = 0; way < WAYS; way++) {
				int done = 0, repeats = plan.quick ? 1 : 3;
				double most = 0;
				for (int i = 0; i < repeats && time_for(1); i++) {
					double us = takes(0, widths[w], (enum behind)behind, (enum way)way);
					done += us >= 0;
					most = us > most ? us : most;
				}
				row(name, "streams=%u\tbehind=%s\turgent=%s\tn=%d\tdone=%d\tmax_us=%.0f", widths[w],
				    behind_name[behind], way_name[way], repeats, done, most);
			}
}

static void channels(const char *name)
{
	CHECK(cuMemAlloc(&seen, ORDER_SMS * sizeof(unsigned)));
	CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	CHECK(cuMemAlloc(&bulk, BULK));
	CHECK(cuMemAlloc(&target, BULK));
	CHECK(cuMemHostAlloc((void **)&pinned, BULK, CU_MEMHOSTALLOC_PORTABLE));
	memset(pinned, 0, BULK);
	for (size_t i = 0; i < sizeof order / sizeof *order && time_for(1); i++) {
		map(name, i);
		if (i == 0)
			ways(name);
		forget_streams();
	}
}

void section_channels(void) { channels("channels"); }

void section_channels_32(void) { channels("channels-32"); }
