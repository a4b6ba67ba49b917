// lc.c - latency-critical requests: a kernel of some shape, or a graph of many, on a stream of normal or of high priority.
#include "spatial.h"

static const struct kind {
	const char *name;
	enum kernel kernel;
	unsigned blocks, per_sm, threads; // blocks, or so many on each two SMs
} kinds[LC_KINDS - 1] = {
	{"few", FMA, 16, 0, 512},      // leaves SMs
	{"half", FMA, 0, 1, 1024},     // one wave of half of the SMs
	{"even", FMA, 0, 2, 1024},     // leaves half of the threads of each SM
	{"full", FMA, 0, 4, 1024},     // leaves no room
	{"stream", STREAM, 0, 8, 512}, // bound by memory
	{"tensor", TENSOR, 0, 2, 256}, // leaves room on each SM, not in its tensor cores
	{"waits", WAITS, 0, 2, 256},   // issues little
};
const char *const lc_name[LC_KINDS] = {"few", "half", "even", "full", "stream", "tensor", "waits", "chain"};
#define KERNEL_US 40

// What the chain consists of, again and again: 50 kernels of 10 to 40 us, as in a ResNet-50 of batch 1.
static const struct link {
	enum kernel kernel;
	unsigned blocks, threads;
	double us;
} links[] = {
	{TENSOR, 28, 256, 20}, {TENSOR, 98, 256, 10}, {STREAM, 64, 256, 12}, {TENSOR, 49, 128, 40}, {FMA, 16, 256, 18},
};
enum { LINKS = sizeof links / sizeof *links, TIMES = 10, URGENCIES = 2 };

static struct work works[LC_KINDS - 1], link_works[LINKS];
static struct lane lanes[URGENCIES];
static CUgraphExec chain[URGENCIES];

static CUdeviceptr memory;
static size_t memory_bytes(void) { return plan.quick ? 16 * MIB : GIB; }

static struct work work_of(enum kernel k, unsigned grid, unsigned threads, double us)
{
	struct work w = {
		.kernel = k, .threads = threads, .grid = grid, .data = memory, .bytes = memory_bytes(), .blocks = grid};
	w.iterations = iterations_for(w, us, false);
	return w;
}

static void capture(CUgraphExec *exec, struct lane *l)
{
	CUgraph graph;
	CHECK(cuStreamBeginCapture(l->stream, CAPTURE_GLOBAL));
	for (int i = 0; i < TIMES * LINKS; i++)
		lane_launch(l, &link_works[i % LINKS]);
	CHECK(cuStreamEndCapture(l->stream, &graph));
	CHECK(cuGraphInstantiate(exec, graph, 0));
}

void lc_begin(void)
{
	memory = zeroed(memory_bytes());
	for (int i = 0; i < LC_KINDS - 1; i++) {
		const struct kind *k = &kinds[i];
		works[i] = work_of(k->kernel, k->blocks ? k->blocks : k->per_sm * (unsigned)gpu.sms / 2, k->threads,
				   KERNEL_US);
	}
	for (int i = 0; i < LINKS; i++)
		link_works[i] = work_of(links[i].kernel, links[i].blocks, links[i].threads, links[i].us);
	for (int i = 0; i < URGENCIES; i++) {
		lane_make(&lanes[i], stream_of(i ? gpu.high : gpu.low));
		capture(&chain[i], &lanes[i]);
		for (int kind = 0; kind < LC_KINDS; kind++)
			lc_request(kind, i); // loads what is loaded late
	}
}

const struct work *lc_work(int kind) { return kind < LC_KINDS - 1 ? &works[kind] : NULL; }

bool lc_is_long(int kind) { return !lc_work(kind); }

void lc_request(int kind, bool urgent)
{
	struct lane *l = &lanes[urgent];
	if (lc_work(kind)) {
		lane_launch(l, lc_work(kind));
		works[kind].first += works[kind].blocks; // other memory than is in the cache
	} else
		CHECK(cuGraphLaunch(chain[urgent], l->stream));
	CHECK(cuStreamSynchronize(l->stream));
}
