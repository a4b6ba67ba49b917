// costs.c - what calls, widths and changes of width cost.
#include <stdlib.h>

#include "spatial.h"

static int times(int many) { return plan.quick ? 3 : many; }

// ---- calls

static struct work tiny(void)
{
	struct work w = {.kernel = FMA, .threads = 256, .grid = 16, .iterations = 1, .blocks = 16};
	return w;
}

// Two launches, the second with other shared memory or on another stream than the first, and until both have ended.
static void pairs(struct lane *a, struct lane *b, struct work one, struct work other, const char *what)
{
	struct samples s = {0}, cpu = {0};
	for (int i = 0; i < times(1000); i++) {
		double began = now_us();
		lane_launch(a, &one);
		lane_launch(b, &other);
		add(&cpu, now_us() - began);
		CHECK(cuStreamSynchronize(a->stream));
		CHECK(cuStreamSynchronize(b->stream));
		add(&s, now_us() - began);
	}
	figure(sum_up(&cpu), "us", "two launches, %s: the calls", what);
	figure(sum_up(&s), "us", "two launches, %s: until they have ended", what);
}

static void queries(void)
{
	struct samples occupancy = {0}, set = {0}, create = {0}, destroy = {0};
	struct work w = tiny();
	int blocks;
	for (int i = 0; i < times(1000); i++) {
		TIMED(&occupancy, cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel[w.kernel], 256,
									      (size_t)(i % 64) << 10));
		w.shared = (unsigned)(i % 64) << 10;
		TIMED(&set, cuFuncSetAttribute(kernel[w.kernel], CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
					       (int)w.shared));
	}
	for (int i = 0; i < times(100); i++) {
		CUstream stream;
		TIMED(&create, cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, gpu.low));
		TIMED(&destroy, cuStreamDestroy(stream));
	}
	figure(sum_up(&occupancy), "us", "cuOccupancyMaxActiveBlocksPerMultiprocessor");
	figure(sum_up(&set), "us", "cuFuncSetAttribute of MAX_DYNAMIC_SHARED_SIZE_BYTES");
	figure(sum_up(&create), "us", "cuStreamCreateWithPriority");
	figure(sum_up(&destroy), "us", "cuStreamDestroy");
}

// Makes and destroys green contexts; how much memory one takes, and how many there can be.
static void green_contexts(void)
{
	enum { MOST = 16 };
	struct green made[MOST];
	struct samples split = {0}, make = {0}, stream = {0}, destroy = {0};
	struct resource group;
	size_t before = device_free();
	int count = 0;
	const char *why = NULL;
	for (; count < times(MOST); count++) {
		double began = now_us();
		if ((why = green_split(16, 1, &group)))
			break;
		add(&split, now_us() - began);
		began = now_us();
		if ((why = green_make(&made[count], &group, gpu.low)))
			break;
		add(&make, now_us() - began);
	}
	if (why)
		not_measured(why, text("green context %d", count + 1));
	if (!count)
		return;
	fact(text("%.2f MiB", (double)(before - device_free()) / (double)MIB / count),
	     "memory of a green context of 16 SMs");
	for (int i = 0; i < count; i++) {
		CUstream more;
		TIMED(&stream, cuGreenCtxStreamCreate(&more, made[i].context, CU_STREAM_NON_BLOCKING, gpu.low));
		CHECK(cuStreamDestroy(more));
		CHECK(cuStreamDestroy(made[i].stream));
		TIMED(&destroy, cuGreenCtxDestroy(made[i].context));
	}
	figure(sum_up(&split), "us", "cuDevSmResourceSplitByCount and what it is made of");
	figure(sum_up(&make), "us", "cuGreenCtxCreate with a stream");
	figure(sum_up(&stream), "us", "cuGreenCtxStreamCreate");
	figure(sum_up(&destroy), "us", "cuGreenCtxDestroy");
}

void section_costs(void)
{
	struct lane plain, other, narrow;
	struct green green;
	struct work w = tiny(), padded = tiny();
	lane_make(&plain, stream_of(gpu.low));
	lane_make(&other, stream_of(gpu.low));
	queries();
	padded.shared = 120 << 10;
	use_shared(&padded);
	pairs(&plain, &plain, w, w, "one stream");
	pairs(&plain, &plain, w, padded, "one stream, the second with 120 KB of shared memory");
	pairs(&plain, &plain, padded, padded, "one stream, both with 120 KB of shared memory");
	pairs(&plain, &other, w, w, "two streams");
	const char *why = green_of(16, &green);
	if (!why) {
		lane_make(&narrow, green.stream);
		pairs(&narrow, &narrow, w, w, "one stream of a green context");
		pairs(&plain, &narrow, w, w, "a stream of the primary and one of a green context");
	}
	green_contexts();
}

// ---- a width that blocks read

static double ns_a_block(enum kernel k, unsigned threads, unsigned blocks, CUdeviceptr width)
{
	CUstream stream = NULL;
	CUdeviceptr data = width + 64;
	void *parameters[] = {&width, &data};
	double least = 0;
	for (int i = 0; i < times(20); i++) {
		double began = now_us();
		CHECK(cuLaunchKernel(kernel[k], blocks, 1, 1, threads, 1, 1, 0, stream, parameters, NULL));
		CHECK(cuStreamSynchronize(stream));
		double took = now_us() - began;
		least = i == 0 || took < least ? took : least;
	}
	return least * 1000 / blocks;
}

// Blocks of work with and without asking for the width: a second launch's share of time more.
static void gate_of_work(double us)
{
	struct lane l;
	struct work w = *be_work(1);
	lane_make(&l, stream_of(gpu.low));
	w.iterations = (uint64_t)((double)w.iterations * us / 10 + .5);
	w.grid *= plan.quick ? 2 : (unsigned)(3000 / us);
	w.blocks = w.grid;
	double took[2] = {0};
	for (int i = 0; i < times(10) * 2; i++) {
		w.kernel = i % 2 ? FMA_GATED : FMA;
		double began = now_us();
		lane_launch(&l, &w);
		CHECK(cuStreamSynchronize(l.stream));
		double one = now_us() - began;
		took[i % 2] = i < 2 || one < took[i % 2] ? one : took[i % 2];
	}
	row("gate", "blocks=%.0f us, %u threads\tplain_us=%.1f\tgated_us=%.1f\tgated_x=%.4f", us, w.threads, took[0],
	    took[1], took[1] / took[0]);
}

void section_gate(void)
{
	static const struct {
		enum kernel kernel;
		const char *name;
	} gates[] = {{UNGATED, "none"}, {GATE_EACH, "each thread asks"}, {GATE_ONE, "one asks for all"}};
	static const unsigned threads[] = {32, 256, 1024};
	unsigned blocks = plan.quick ? 1 << 10 : 1 << 19;
	CUdeviceptr width = zeroed(128);
	for (int t = 0; t < 3; t++)
		for (int g = 0; g < 3; g++)
			for (uint32_t open = 0; open < 2; open++) {
				uint32_t value = open ? UINT32_MAX : 0;
				CHECK(cuMemcpyHtoD(width, &value, sizeof value));
				if (gates[g].kernel == UNGATED && open)
					continue;
				row("empty", "threads=%u\tgate=%s\tblocks=%s\tns_a_block=%.3f", threads[t], gates[g].name,
				    gates[g].kernel == UNGATED ? "run" :
				    open                       ? "pass" :
								 "exit",
				    ns_a_block(gates[g].kernel, threads[t], blocks, width));
			}
	gate_of_work(1);
	gate_of_work(3);
	gate_of_work(10);
}

// ---- changes of width

// A launch of blocks that read a width, of a ms where all SMs do it, since blocks that exit take time, too.
struct side {
	struct lane lane;
	struct work work;
};

static double until(bool (*there)(const struct lane *, uint64_t), const struct side *s, double since)
{
	while (!there(&s->lane, s->lane.last))
		if (now_us() - since > 2e6)
			give_up("a change of width takes more than 2 s");
	return now_us() - since;
}

// From one side, which runs, to the other: the blocks that wait exit, those that run end, the other is launched.
static void change(struct side *from, struct side *to, struct samples *drained, struct samples *begun)
{
	double began = now_us();
	lane_gate(&from->lane, 0);
	add(drained, until(lane_has_ended, from, began));
	lane_launch(&to->lane, &to->work);
	add(begun, until(lane_has_begun, to, began));
	lane_gate(&from->lane, UINT32_MAX);
}

static void there_and_back(struct side *wide, struct side *narrow, const char *what, double us)
{
	struct samples drained[2] = {{0}}, begun[2] = {{0}};
	lane_launch(&wide->lane, &wide->work);
	for (int i = 0; i < times(100) * 2; i++) {
		struct side *from = i % 2 ? narrow : wide, *to = i % 2 ? wide : narrow;
		spin_us(100 + 37 * (i % 8));
		change(from, to, &drained[i % 2], &begun[i % 2]);
	}
	struct side *last = wide; // an even number of changes
	lane_gate(&last->lane, 0);
	lane_wait(&last->lane, last->lane.last);
	lane_gate(&last->lane, UINT32_MAX);
	figure(sum_up(&drained[0]), "us", "from wide to %s, blocks of %.0f us: stopped", what, us);
	figure(sum_up(&begun[0]), "us", "from wide to %s, blocks of %.0f us: goes on", what, us);
	figure(sum_up(&drained[1]), "us", "from %s to wide, blocks of %.0f us: stopped", what, us);
	figure(sum_up(&begun[1]), "us", "from %s to wide, blocks of %.0f us: goes on", what, us);
}

static struct side side_of(CUstream stream, double us)
{
	struct side s = {.work = *be_work(1)};
	lane_make(&s.lane, stream);
	s.work.kernel = FMA_GATED;
	s.work.iterations = (uint64_t)((double)s.work.iterations * us / 10 + .5);
	s.work.grid *= plan.quick ? 20 : (unsigned)(1000 / us);
	s.work.blocks = s.work.grid;
	return s;
}

void section_switch(void)
{
	static const double lengths[] = {10, 100};
	static const unsigned widths[] = {16, 64, 112};
	for (size_t k = 0; k < 2; k++) {
		struct side wide = side_of(stream_of(gpu.low), lengths[k]),
			    capped = side_of(stream_of(gpu.low), lengths[k]), same = wide;
		lane_make(&same.lane, stream_of(gpu.low));
		there_and_back(&wide, &same, "as wide", lengths[k]);
		capped.work.shared = padding(&capped.work, 1);
		use_shared(&capped.work);
		there_and_back(&wide, &capped, "1 block an SM", lengths[k]);
		for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
			struct green g;
			const char *why = green_of(widths[i], &g);
			if (why) {
				not_measured(why, text("a change to %u SMs", widths[i]));
				continue;
			}
			struct side narrow = side_of(g.stream, lengths[k]);
			there_and_back(&wide, &narrow, text("%u SMs", widths[i]), lengths[k]);
		}
	}
}
