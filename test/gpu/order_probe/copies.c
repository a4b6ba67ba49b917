// copies.c - which copies wait behind a copy that waits behind a kernel? Streams of the least priority each have a kernel that waits for
// the host, and a copy behind it. Then a stream of the greatest priority gets one thing to do: is it done while the kernels wait?
#include <string.h>

#include "order.h"

enum { STREAMS = ORDER_WAITERS, BULK = 1 << 20, SMALL = 4 << 10, GUARD_MS = 300, LATE_REPEATS = 3 };
#define PATIENCE_US (50e3 * slowness)

// What lies behind the kernels. A copy to pageable memory is left out: its call returns when it is done.
enum behind { NOTHING, TO_64, TO_1M, TO_64_PAGEABLE, FROM_64, FROM_1M, KERNEL, EVENT_WAIT, BEHINDS };
static const char *const behind_name[] = {"nothing",   "to 64 B",   "to 1 MB", "to 64 B page",
					  "from 64 B", "from 1 MB", "kernel",  "wait"};
// What is asked of the urgent stream, with an event behind it; or a kernel that ends at once, of it or of another stream: the urgent
// one with the least priority as the launch's attribute, one of the least priority, that of a green context of all SMs.
enum action { EVENT, WRITE, TO_DEVICE, FROM_DEVICE, MEMSET, WITHIN, LAUNCH, AS_LEAST, OF_LEAST, OF_GREEN, ACTIONS };
static const char *const action_name[] = {"event",           "write value",    "to device", "from device",
					  "memset",          "within",         "kernel",    "kernel as least",
					  "kernel of least", "kernel of green"};
static const unsigned widths[] = {1, 8, STREAMS};
enum { WIDTHS = sizeof widths / sizeof *widths };

static struct cell { // a case
	unsigned streams;
	enum behind behind;
	enum action action;
	int repeats, done, guarded;
	unsigned begun;         // the fewest kernels that had begun
	double call_us;         // the longest that the calls took: those for the urgent stream
	double behind_us;       // and those for one of the other streams
	struct samples took_us; // from the urgent stream's first call to the event
} cell[WIDTHS * BEHINDS * ACTIONS];

static CUstream slow[STREAMS], urgent, least;
static struct green green;
static CUevent event, held;           // held: behind the first of the kernels
static CUdeviceptr bulk, small, seen; // small: twice SMALL
static char *pinned, *pinned_small;
static char pageable[64];

static CUresult put_behind(enum behind behind, CUstream stream)
{
	switch (behind) {
	case TO_64: return cu.cuMemcpyHtoDAsync(bulk, pinned, 64, stream);
	case TO_1M: return cu.cuMemcpyHtoDAsync(bulk, pinned, BULK, stream);
	case TO_64_PAGEABLE: return cu.cuMemcpyHtoDAsync(bulk, pageable, sizeof pageable, stream);
	case FROM_64: return cu.cuMemcpyDtoHAsync(pinned, bulk, 64, stream);
	case FROM_1M: return cu.cuMemcpyDtoHAsync(pinned, bulk, BULK, stream);
	case KERNEL: return cu.cuLaunchKernel(kernel[SHORT], 1, 1, 1, 32, 1, 1, 0, stream, (void *[]){&seen}, NULL);
	case EVENT_WAIT: // for the first of the kernels, on the others' streams
		return stream == slow[0] ? cu.cuEventRecord(held, stream) : cu.cuStreamWaitEvent(stream, held, 0);
	default: return CUDA_SUCCESS;
	}
}

static CUstream stream_for(enum action action)
{
	return action == OF_LEAST ? least : action == OF_GREEN ? green.stream : urgent;
}

static CUresult launch(enum action action)
{
	struct gp_launch_attribute priority = {.id = CU_LAUNCH_ATTRIBUTE_PRIORITY, .value.priority = gpu.least};
	struct launch launch = {{1, 1, 1}, {32, 1, 1}, 0, stream_for(action), &priority, action == AS_LEAST};
	return action == OF_GREEN && !green.sms ? NO_SUCH_FUNCTION :
						  ASK(cuLaunchKernelEx, &launch, kernel[SHORT], (void *[]){&seen}, NULL);
}

static CUresult act(enum action action)
{
	switch (action) {
	case WRITE: return ASK(cuStreamWriteValue32, urgent, small, 1, 0);
	case TO_DEVICE: return cu.cuMemcpyHtoDAsync(small, pinned_small, SMALL, urgent);
	case FROM_DEVICE: return cu.cuMemcpyDtoHAsync(pinned_small, small, SMALL, urgent);
	case MEMSET: return cu.cuMemsetD8Async(small, 0, SMALL, urgent);
	case WITHIN: return ASK(cuMemcpyDtoDAsync, small + SMALL, small, SMALL, urgent);
	case LAUNCH:
	case AS_LEAST:
	case OF_LEAST:
	case OF_GREEN: return launch(action);
	default: return CUDA_SUCCESS;
	}
}

static void make(void)
{
	for (int i = 0; i < STREAMS; i++)
		slow[i] = stream_of(gpu.least);
	urgent = stream_of(gpu.greatest);
	least = stream_of(gpu.least);
	struct resource all;
	if (!green_whole(&all))
		(void)green_make(&green, &all, gpu.least);
	CHECK(cuMemAlloc(&seen, ORDER_SMS * sizeof(unsigned)));
	CHECK(cuEventCreate(&held, CU_EVENT_DISABLE_TIMING));
	CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	CHECK(cuMemAlloc(&bulk, BULK));
	CHECK(cuMemAlloc(&small, 2 * SMALL));
	CHECK(cuMemHostAlloc((void **)&pinned, BULK, CU_MEMHOSTALLOC_PORTABLE));
	CHECK(cuMemHostAlloc((void **)&pinned_small, SMALL, CU_MEMHOSTALLOC_PORTABLE));
	memset(pinned, 0, BULK);
	memset(pinned_small, 0, SMALL);
}

// Everything once where nothing waits. Says what the driver refuses.
static void try_all(const char *name, bool refused[ACTIONS])
{
	hold_clear();
	hold_release();
	for (unsigned i = 0; i < STREAMS; i++)
		waiter_launch(slow[i], i);
	for (int i = 0; i < BEHINDS; i++)
		need(put_behind((enum behind)i, slow[0]), behind_name[i]);
	CHECK(cuCtxSynchronize());
	for (int i = 0; i < ACTIONS; i++) {
		CUresult result = act((enum action)i);
		refused[i] = result != CUDA_SUCCESS;
		if (refused[i])
			not_measured(error_name(result), text("%s: %s", name, action_name[i]));
		if (refused[i])
			continue;
		CHECK(cuEventRecord(event, stream_for((enum action)i)));
		CHECK(cuStreamSynchronize(stream_for((enum action)i)));
	}
}

// The kernels have begun, as many as will: where streams share a channel, some may wait behind a copy.
static unsigned hold_up(struct cell *c)
{
	hold_clear();
	for (unsigned i = 0; i < c->streams; i++) {
		waiter_launch(slow[i], i);
		double began = now_us();
		need(put_behind(c->behind, slow[i]), behind_name[c->behind]);
		double us = now_us() - began;
		c->behind_us = us > c->behind_us ? us : c->behind_us;
	}
	double began = now_us();
	while (waiters_begun(c->streams) < c->streams && now_us() - began < 10e3)
		;
	pause_us(200); // the copies are where they wait
	return waiters_begun(c->streams);
}

static void repeat(struct cell *c)
{
	guard_set(GUARD_MS);
	unsigned begun = hold_up(c);
	double began = now_us();
	need(act(c->action), action_name[c->action]);
	CHECK(cuEventRecord(event, stream_for(c->action)));
	double call_us = now_us() - began, us = call_us;
	CUresult result;
	while ((result = cu.cuEventQuery(event)) == CUDA_ERROR_NOT_READY && us < PATIENCE_US)
		us = now_us() - began;
	us = now_us() - began;
	bool acted = guard_clear(); // what is done then is done because the kernels ended
	hold_release();
	CHECK(cuCtxSynchronize());
	bool done = result == CUDA_SUCCESS && !acted;
	if (done)
		add(&c->took_us, us);
	c->done += done;
	c->guarded += acted;
	c->begun = c->repeats && c->begun < begun ? c->begun : begun;
	c->call_us = call_us > c->call_us ? call_us : c->call_us;
	c->repeats++;
}

static void tell(struct cell *c, const char *name)
{
	struct summary took = sum_up(&c->took_us);
	row(name,
	    "streams=%u\tbehind=%s\turgent=%s\tn=%d\tdone=%d\tlate=%d\tbegun=%u\tguard=%d\tp50_us=%s\tmax_us=%s\tcall_"
	    "us=%.0f\t"
	    "behind_us=%.0f",
	    c->streams, behind_name[c->behind], action_name[c->action], c->repeats, c->done, c->repeats - c->done,
	    c->begun, c->guarded, took.count ? text("%.0f", took.p50) : "-", took.count ? text("%.0f", took.max) : "-",
	    c->call_us, c->behind_us);
}

static void copies(const char *name)
{
	int cells = 0, asked = 0, late = 0;
	bool refused[ACTIONS];
	make();
	fact(own_priorities(), "%s: priorities", name);
	try_all(name, refused);
	for (int w = 0; w < WIDTHS; w++)
		for (int behind = 0; behind < BEHINDS; behind++)
			for (int action = 0; action < ACTIONS; action++)
				if (!refused[action])
					cell[cells++] = (struct cell){.streams = widths[w],
								      .behind = (enum behind)behind,
								      .action = (enum action)action};
	for (int round = 0; round < plan.samples; round++)
		for (int i = 0; i < cells && time_for(1); i++)
			if (cell[i].done == cell[i].repeats || cell[i].repeats < LATE_REPEATS)
				repeat(&cell[i]);
	for (int i = 0; i < cells && cell[i].repeats; i++) {
		asked++;
		late += cell[i].done < cell[i].repeats;
		tell(&cell[i], name);
	}
	fact(text("%d of %d", late, asked), "%s: cases in which something urgent waited for the kernels", name);
	if (asked < cells)
		not_measured(text("%d: no time", cells - asked), text("%s: cases that were not asked", name));
}

void section_copies(void) { copies("copies"); }

void section_copies_1(void) { copies("copies-1"); }

void section_copies_32(void) { copies("copies-32"); }
