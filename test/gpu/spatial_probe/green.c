// green.c - green contexts of each width, and what may be done with their streams.
#include "spatial.h"

const char *green_of(unsigned sms, struct green *found)
{
	enum { MOST = 32 };
	static struct {
		unsigned asked;
		struct green green;
	} made[MOST];
	struct resource group;
	for (int i = 0; i < MOST; i++) {
		if (made[i].asked == sms) {
			*found = made[i].green;
			return NULL;
		}
		if (made[i].asked)
			continue;
		const char *why = green_split(sms, 1, &group);
		if (!why)
			why = green_make(&made[i].green, &group, gpu.low);
		if (why)
			return why;
		made[i].asked = sms;
		*found = made[i].green;
		return NULL;
	}
	return "too many";
}

// ---- what may be done with their streams

static struct lane lane;

static struct work small(unsigned grid)
{
	struct work w = *be_work(1); // BE's arithmetic
	w.grid = grid;
	w.blocks = grid;
	return w;
}

// The SMs of a launch of many blocks on the lane, and the numbers that it sees of them.
static void where(struct lane *l, const char *what)
{
	enum { BLOCKS = 1024 };
	struct work w = small(plan.quick ? 16 : BLOCKS);
	w.records = records_make(w.grid);
	CUresult result = lane_try(l, &w);
	if (result == CUDA_SUCCESS)
		result = cu.cuStreamSynchronize(l->stream);
	fact(error_name(result), "%s: a kernel that was loaded in the primary context", what);
	if (result != CUDA_SUCCESS)
		return;
	struct spatial_record *r = records_read(w.records, w.grid);
	unsigned least = ~0u, most = 0;
	for (unsigned i = 0; i < w.grid; i++) {
		least = r[i].sm < least ? r[i].sm : least;
		most = r[i].sm > most ? r[i].sm : most;
	}
	fact(text("%u, numbers %u to %u", sms_of(r, w.grid), least, most), "%s: SMs", what);
}

// Events of the primary context and of the green one, on its streams.
static void events(const struct green *g)
{
	CUevent primary, own;
	CUcontext current;
	CUstream other = stream_of(gpu.low);
	CHECK(cuEventCreate(&primary, CU_EVENT_DISABLE_TIMING));
	fact(error_name(cu.cuEventRecord(primary, g->stream)),
	     "green: cuEventRecord of the primary's event on its stream");
	fact(error_name(ASK(cuGreenCtxRecordEvent, g->context, primary)),
	     "green: cuGreenCtxRecordEvent of the primary's event");
	fact(error_name(cu.cuStreamWaitEvent(other, primary, 0)), "green: the primary's stream waits for that");
	CUcontext as_context = NULL;
	CUresult result = ASK(cuCtxFromGreenCtx, &as_context, g->context);
	fact(error_name(result), "green: cuCtxFromGreenCtx");
	if (result != CUDA_SUCCESS)
		return;
	CHECK(cuCtxPushCurrent(as_context));
	result = cu.cuEventCreate(&own, CU_EVENT_DISABLE_TIMING);
	CHECK(cuCtxPopCurrent(&current));
	fact(error_name(result), "green: cuEventCreate while it is current");
	if (result != CUDA_SUCCESS)
		return;
	fact(error_name(cu.cuEventRecord(own, g->stream)), "green: cuEventRecord of its own event on its stream");
	fact(error_name(cu.cuStreamWaitEvent(other, own, 0)), "green: the primary's stream waits for that event");
	CHECK(cuEventRecord(primary, other));
	fact(error_name(cu.cuStreamWaitEvent(g->stream, primary, 0)),
	     "green: its stream waits for the primary's event");
	fact(error_name(cu.cuStreamSynchronize(g->stream)), "green: and ends");
}

static double sync_us(struct lane *l)
{
	struct work w = small((unsigned)gpu.sms * 2 * (plan.quick ? 4 : 200)); // 2 ms of the whole GPU
	lane_launch(l, &w);
	double began = now_us();
	CHECK(cuCtxSynchronize());
	fact(lane_has_ended(l, l->last) ? "yes" : "no", "green: cuCtxSynchronize of the primary waits for it");
	CHECK(cuStreamSynchronize(l->stream));
	return now_us() - began;
}

// A graph that was captured on one stream and is launched on another.
static void graph(struct lane *captured, struct lane *launched, const char *what)
{
	enum { BLOCKS = 1024 };
	CUgraph made;
	CUgraphExec exec;
	struct work w = small(plan.quick ? 16 : BLOCKS);
	w.records = records_make(w.grid);
	CUresult result = cu.cuStreamBeginCapture(captured->stream, CAPTURE_GLOBAL);
	if (result == CUDA_SUCCESS) {
		lane_launch(captured, &w);
		CHECK(cuStreamEndCapture(captured->stream, &made));
		CHECK(cuGraphInstantiate(&exec, made, 0));
		result = cu.cuGraphLaunch(exec, launched->stream);
	}
	if (result == CUDA_SUCCESS)
		result = cu.cuStreamSynchronize(launched->stream);
	if (result != CUDA_SUCCESS) {
		fact(error_name(result), "green: a graph, %s", what);
		return;
	}
	struct spatial_record *r = records_read(w.records, w.grid);
	fact(text("%u SMs", sms_of(r, w.grid)), "green: a graph, %s", what);
}

static void cooperative(struct lane *l, unsigned sms)
{
	struct work w = small((unsigned)gpu.sms);
	uint64_t name = l->last + w.blocks;
	unsigned long long bytes = w.bytes, iterations = w.iterations, first = 0, blocks = w.blocks;
	void *parameters[] = {&l->board, &w.records, &w.data, &bytes, &iterations, &first, &blocks, &name};
	CUresult result = ASK(cuLaunchCooperativeKernel, kernel[w.kernel], w.grid * resident(&w), 1, 1, w.threads, 1, 1,
			      0, l->stream, parameters);
	fact(error_name(result), "green %u: a cooperative launch of as many blocks as fit on the whole GPU", sms);
	CHECK(cuCtxSynchronize());
	lane_make(l, l->stream); // its board has other blocks than were launched
}

void section_green(void)
{
	struct green all;
	struct resource groups[4], whole;
	be_prepare();
	if (ASK(cuDeviceGetDevResource, device, &whole, RESOURCE_SM) == CUDA_SUCCESS)
		fact(text("%u, of %u at least, multiples of %u", whole.sms, whole.least, whole.multiple), "green: SMs");
	const char *why = green_of(16, &all);
	if (why) {
		not_measured(why, "green");
		return;
	}
	struct lane plain;
	lane_make(&plain, stream_of(gpu.low));
	lane_make(&lane, all.stream);
	where(&plain, "primary");
	for (unsigned sms = 8; sms <= (unsigned)gpu.sms; sms *= 2) {
		struct green g;
		struct lane l;
		if ((why = green_of(sms, &g))) {
			not_measured(why, text("green %u", sms));
			continue;
		}
		fact(text("%u", g.sms), "green %u: SMs as it says", sms);
		lane_make(&l, g.stream);
		where(&l, text("green %u", sms));
	}
	why = green_split(32, 4, groups);
	for (int i = 0; i < 4 && !why; i++) {
		struct green g;
		struct lane l;
		if ((why = green_make(&g, &groups[i], gpu.low)))
			break;
		lane_make(&l, g.stream);
		where(&l, text("green, group %d of 4 of 32", i));
	}
	if (why)
		not_measured(why, "green, 4 groups of 32");
	fact(text("%.0f us", sync_us(&lane)), "green 16: work of 2 ms of the whole GPU takes");
	graph(&plain, &lane, "captured on the primary's stream, launched on a green one of 16");
	graph(&lane, &plain, "captured on a green stream of 16, launched on the primary's");
	cooperative(&lane, 16);
	events(&all); // last: a wait that never ends costs no other answer
}

// ---- clusters

static const unsigned cluster_sizes[] = {2, 4, 8, 16};

static void cluster_on(struct lane *l, const char *what, unsigned size)
{
	enum { NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14 }; // CU_FUNC_ATTRIBUTE_...
	struct gp_launch_attribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, .value.cluster = {size, 1, 1}};
	struct work w = {
		.kernel = CLUSTER, .threads = 256, .grid = 64 * size, .cluster = size, .iterations = 100, .blocks = 64 * size};
	struct launch launch = {{w.grid, 1, 1}, {w.threads, 1, 1}, 0, l->stream, &attribute, 1};
	int fit = 0;
	cu.cuFuncSetAttribute(kernel[CLUSTER], NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
	CUresult asked = ASK(cuOccupancyMaxActiveClusters, &fit, kernel[CLUSTER], &launch), launched = lane_try(l, &w);
	const char *says = asked == CUDA_SUCCESS ? text("%d fit", fit) : error_name(asked);
	if (launched != CUDA_SUCCESS) {
		fact(text("%s; launch: %s", says, error_name(launched)), "clusters of %u, %s", size, what);
		return;
	}
	double began = now_us();
	while (!lane_has_ended(l, l->last) && now_us() - began < 1e6)
		pause_us(100);
	bool ended = lane_has_ended(l, l->last);
	fact(text("%s; %s", says, ended ? "they end" : "no end in 1 s"), "clusters of %u, %s", size, what);
	if (!ended)
		give_up("clusters of %u, %s, do not end", size, what);
}

// The last section: one that hangs spoils what comes behind it under MPS.
void section_clusters(void)
{
	static const unsigned widths[] = {0, 64, 32, 16, 8};
	for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
		struct green g = {.stream = stream_of(gpu.low)};
		struct lane l;
		char what[32];
		snprintf(what, sizeof what, widths[i] ? "green %u" : "primary", widths[i]);
		const char *why = widths[i] ? green_of(widths[i], &g) : NULL;
		if (why) {
			not_measured(why, text("clusters, %s", what));
			continue;
		}
		lane_make(&l, g.stream);
		for (size_t k = 0; k < sizeof cluster_sizes / sizeof *cluster_sizes; k++)
			cluster_on(&l, what, cluster_sizes[k]);
	}
}
