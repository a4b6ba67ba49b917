// late.c - the launch that comes when there is no room: a few blocks, a cluster, or blocks on the SMs of a green context. It is this
// process's own, or under MPS a second one's, which is another client.
#include <stdlib.h>
#include <string.h>

#include "order.h"

enum { MOST_SET = 96 << 10 }; // bytes
const char *const priority_name[PRIORITIES] = {"least", "above least", "greatest", "green's own"};
const struct late_kind late_kind[LATE_KINDS] = {
	[LATE_NONE] = {.name = "none"}, // S alone must end
	{"1 x 256", ALL, SHORT, 256, 0, 1, 0},
	{"cluster", ALL, SHORT, 256, 8, 8, 0},
	{"cluster 1K", ALL, SHORT_SHARED, 256, 8, 8, 0},
	{"1 x 512", ALL, SHORT, 512, 0, 1, 0},
	{"1 x 1024", ALL, SHORT, 1024, 0, 1, 0},
	{"fit", FIRST_16, SHORT, 256, 0, 0, 1},
	{"fit", LAST_16, SHORT, 256, 0, 0, 1},
	{"fit", FIRST_64, SHORT, 256, 0, 0, 1},
	{"fit", LAST_64, SHORT, 256, 0, 0, 1},
	{"10 x fit", FIRST_16, SHORT, 256, 0, 0, 10},
	{"10 x fit", LAST_16, SHORT, 256, 0, 0, 10},
	{"10 x fit", FIRST_64, SHORT, 256, 0, 0, 10},
	{"10 x fit", LAST_64, SHORT, 256, 0, 0, 10},
	{"cluster", FIRST_16, SHORT, 256, 8, 8, 0},
	{"cluster", LAST_16, SHORT, 256, 8, 8, 0},
	{"1 x 512", FIRST_16, SHORT, 512, 0, 1, 0},
	{"1 x 512", FIRST_64, SHORT, 512, 0, 1, 0},
	{"1 x 512", GREEN_ALL, SHORT, 512, 0, 1, 0},
	{"1 x 512 as least", ALL, SHORT, 512, 0, 1, 0, true},
	{"1 x 512 as least", GREEN_ALL, SHORT, 512, 0, 1, 0, true},
	{"1 x 512 in a graph", ALL, SHORT, 512, 0, 1, 0, .graph = true},
	{"memset 1K", ALL, .memset = 1 << 10},
	{"memset 96K", ALL, .memset = 96 << 10},
};

static struct place { // where launches go
	const char *name;
	unsigned sms; // 0: all
	bool last;    // group of the split, or the first one
	const char *why;
	struct green green;
	CUcontext context; // the green context as one
	CUstream stream[PRIORITIES];
	unsigned fit;            // blocks at once
	CUdeviceptr seen;        // a word for each SM: a block was there
	CUgraphExec graph;       // of the kind that is launched so
	uint32_t has[ORDER_SMS]; // the same, read back
} place[PLACES] = {{.name = "all"},
		   {.name = "first 16", .sms = 16},
		   {.name = "last 16", .sms = 16, .last = true},
		   {.name = "first 64", .sms = 64},
		   {.name = "last 64", .sms = 64, .last = true},
		   {.name = "green, all", .sms = ORDER_SMS}};
static CUstream tiny;
static char refused[LATE_KINDS][PRIORITIES][96]; // why; "": it is not

const char *where_name(enum where where) { return place[where].name; }

static int level(enum priority priority)
{
	int above = gpu.least > gpu.greatest ? gpu.least - 1 : gpu.least;
	return priority == GREATEST ? gpu.greatest : priority == ABOVE_LEAST ? above : gpu.least;
}

// ---- in the process that launches it

static const char *place_green(struct place *p)
{
	enum { MOST = 64 };
	struct resource group[MOST];
	unsigned groups;
	bool whole = p->sms == ORDER_SMS;
	const char *why = whole ? green_whole(group) : green_most(p->sms, &groups);
	if (why)
		return why;
	if (whole)
		groups = 1;
	if (groups > MOST)
		return text("%u groups", groups);
	if (!whole && (why = green_split(p->sms, groups, group)))
		return why;
	if ((why = green_make(&p->green, &group[p->last ? groups - 1 : 0], level(LEAST))))
		return why;
	p->stream[LEAST] = p->green.stream;
	for (int k = ABOVE_LEAST; k <= GREATEST; k++)
		CHECK(cuGreenCtxStreamCreate(&p->stream[k], p->green.context, CU_STREAM_NON_BLOCKING,
					     level((enum priority)k)));
	if (ASK(cuCtxFromGreenCtx, &p->context, p->green.context) != CUDA_SUCCESS)
		p->context = NULL;
	return NULL;
}

static void place_make(struct place *p)
{
	CHECK(cuMemAlloc(&p->seen, MOST_SET));
	CHECK(cuMemsetD8Async(p->seen, 0, MOST_SET, tiny));
	CHECK(cuStreamSynchronize(tiny));
	if (p->sms)
		p->why = place_green(p);
	for (int k = LEAST; !p->sms && k <= GREATEST; k++)
		p->stream[k] = stream_of(level((enum priority)k));
	p->why = p->why ? strdup(p->why) : NULL;
	p->fit = (p->sms ? p->green.sms : (unsigned)gpu.sms) * resident(SHORT, 256);
}

// The default stream of a green context is that of the current one while that is the green one.
static void enter(const struct place *p, enum priority priority)
{
	if (priority == OWN)
		CHECK(cuCtxPushCurrent(p->context));
}

static void leave(enum priority priority)
{
	CUcontext popped;
	if (priority == OWN)
		CHECK(cuCtxPopCurrent(&popped));
}

// The node has the priority of the stream that it was captured from.
static CUresult make_graph(const struct late_kind *k, struct place *p)
{
	enum { USE_NODE_PRIORITY = 8 }; // CUgraphInstantiate_flags
	void *parameters[] = {&p->seen};
	CUgraph graph;
	CHECK(cuStreamBeginCapture(p->stream[LEAST], CAPTURE_GLOBAL));
	CHECK(cuLaunchKernel(kernel[k->kernel], k->grid, 1, 1, k->threads, 1, 1, 0, p->stream[LEAST], parameters, NULL));
	CHECK(cuStreamEndCapture(p->stream[LEAST], &graph));
	return ASK(cuGraphInstantiate, &p->graph, graph, USE_NODE_PRIORITY);
}

static CUresult launch(const struct late_kind *k, struct place *p, enum priority priority)
{
	if (k->memset)
		return cu.cuMemsetD8Async(p->seen, 0, k->memset, p->stream[priority]);
	if (k->graph) {
		CUresult made = p->graph ? CUDA_SUCCESS : make_graph(k, p);
		return made ? made : cu.cuGraphLaunch(p->graph, p->stream[priority]);
	}
	struct gp_launch_attribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
						.value.cluster = {k->cluster, 1, 1}};
	if (k->as_least)
		attribute = (struct gp_launch_attribute){.id = CU_LAUNCH_ATTRIBUTE_PRIORITY, .value.priority = gpu.least};
	unsigned grid = k->waves ? k->waves * p->fit : k->grid;
	bool with = k->cluster || k->as_least;
	struct launch launch = {{grid, 1, 1}, {k->threads, 1, 1}, 0, p->stream[priority], &attribute, with};
	void *parameters[] = {&p->seen};
	enter(p, priority);
	CUresult result = with ? ASK(cuLaunchKernelEx, &launch, kernel[k->kernel], parameters, NULL) :
				 cu.cuLaunchKernel(kernel[k->kernel], grid, 1, 1, k->threads, 1, 1, 0,
						   p->stream[priority], parameters, NULL);
	leave(priority);
	return result;
}

static bool place_done(const struct place *p, enum priority priority)
{
	enter(p, priority);
	CUresult result = cu.cuStreamQuery(p->stream[priority]);
	leave(priority);
	if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY)
		give_up("the late launch: %s", error_name(result));
	return result == CUDA_SUCCESS;
}

static void place_finish(const struct place *p, enum priority priority)
{
	enter(p, priority);
	CHECK(cuStreamSynchronize(p->stream[priority]));
	leave(priority);
}

// The last launch, which is what there is to wait for.
static struct place *last_place;
static enum priority last_priority;

static void local_launch(int kind, enum priority priority)
{
	last_place = kind == LATE_NONE ? NULL : &place[late_kind[kind].where];
	last_priority = priority;
	CUresult result = last_place ? launch(&late_kind[kind], last_place, priority) : CUDA_SUCCESS;
	if (result != CUDA_SUCCESS)
		give_up("launch of %s on %s: %s", late_kind[kind].name, last_place->name, error_name(result));
}

static bool local_done(void) { return !last_place || place_done(last_place, last_priority); }

static bool tiny_ends(double until_us)
{
	void *parameters[] = {&place[ALL].seen};
	CHECK(cuLaunchKernel(kernel[SHORT], 1, 1, 1, 32, 1, 1, 0, tiny, parameters, NULL));
	CUresult result;
	while ((result = cu.cuStreamQuery(tiny)) == CUDA_ERROR_NOT_READY && now_us() < until_us)
		;
	return result == CUDA_SUCCESS;
}

static unsigned local_tiny(void)
{
	double until_us = now_us() + 10e3;
	unsigned ended = 0;
	for (int i = 0; i < TINY; i++)
		ended += tiny_ends(until_us);
	return ended;
}

static void local_finish(void)
{
	if (last_place)
		place_finish(last_place, last_priority);
	CHECK(cuStreamSynchronize(tiny));
}

static const char *try_once(int kind, enum priority priority)
{
	const struct late_kind *k = &late_kind[kind];
	struct place *p = &place[k->where];
	if (p->why)
		return p->why;
	if (priority == OWN && !p->context)
		return p->sms ? "not here: cuCtxFromGreenCtx" : "no green context";
	CUresult result = launch(k, p, priority);
	if (result != CUDA_SUCCESS)
		return error_name(result);
	place_finish(p, priority);
	return "";
}

// Every launch once, so that no code is loaded later, and where each place is.
static void local_begin(void)
{
	const struct late_kind fill = {.kernel = SHORT, .threads = 256, .waves = 10};
	tiny = stream_of(gpu.greatest);
	for (int i = 0; i < PLACES; i++)
		place_make(&place[i]);
	for (int i = 1; i < LATE_KINDS; i++)
		for (int k = 0; k < PRIORITIES; k++)
			snprintf(refused[i][k], sizeof refused[i][k], "%s", try_once(i, (enum priority)k));
	local_tiny();
	CHECK(cuStreamSynchronize(tiny));
	for (int i = 0; i < PLACES; i++) {
		struct place *p = &place[i];
		if (p->why)
			continue;
		CHECK(cuMemsetD8Async(p->seen, 0, sizeof p->has, tiny));
		CHECK(cuStreamSynchronize(tiny));
		if (launch(&fill, p, LEAST) != CUDA_SUCCESS)
			give_up("%s: no launch", p->name);
		place_finish(p, LEAST);
		CHECK(cuMemcpyDtoH(p->has, p->seen, sizeof p->has));
	}
}

static bool local_has(int kind, unsigned sm) { return sm < ORDER_SMS && place[late_kind[kind].where].has[sm]; }

static const char *priority_of(CUstream stream)
{
	int priority;
	CUresult result = ASK(cuStreamGetPriority, stream, &priority);
	return result == CUDA_SUCCESS ? text("%d", priority) : error_name(result);
}

const char *own_priorities(void)
{
	const struct place *p = &place[FIRST_16];
	static CUstream zero;
	if (!zero)
		zero = stream_of(0);
	const char *range = text("%d to %d, default stream %s, created with 0: %s", gpu.least, gpu.greatest,
				 priority_of(NULL), priority_of(zero));
	if (!p->stream[LEAST])
		return range;
	return text("%s, green with %d: %s, with %d: %s", range, level(LEAST), priority_of(p->stream[LEAST]),
		    level(GREATEST), priority_of(p->stream[GREATEST]));
}

const char *own_client_priority(void)
{
	const char *priority = getenv("CUDA_MPS_CLIENT_PRIORITY");
	return priority ? priority : "0";
}

// ---- in a second process

static struct second second;

static void answer(const char *order)
{
	int kind, priority;
	unsigned sm;
	if (sscanf(order, "can %d %d", &kind, &priority) == 2) {
		printf("%s\n", refused[kind][priority]);
	} else if (sscanf(order, "launch %d %d", &kind, &priority) == 2) {
		local_launch(kind, (enum priority)priority);
		printf("launched\n");
	} else if (sscanf(order, "has %d %u", &kind, &sm) == 2) {
		printf("%d\n", local_has(kind, sm));
	} else if (strcmp(order, "tiny\n") == 0) {
		printf("%u\n", local_tiny());
	} else if (strcmp(order, "done\n") == 0) {
		printf("%d\n", local_done());
	} else if (strcmp(order, "priorities\n") == 0) {
		printf("%s\n", own_priorities());
	} else if (strcmp(order, "client\n") == 0) {
		printf("%s\n", own_client_priority());
	} else {
		local_finish();
		printf("finished\n");
	}
}

void late_serve(void)
{
	char line[64];
	local_begin();
	printf("ready\n");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		answer(line);
		fflush(stdout);
	}
	local_finish();
}

void late_begin(char *const settings[])
{
	if (!under_mps) {
		local_begin();
		return;
	}
	second_start(&second, settings);
	second_answer(&second);
}

// What the other process answers.
#define ASK_SECOND(...) (second_order(&second, __VA_ARGS__), second_answer(&second))

const char *late_can(int kind, enum priority priority)
{
	if (kind == LATE_NONE)
		return priority == LEAST ? NULL : "nothing is launched";
	const char *why = under_mps ? ASK_SECOND("can %d %d", kind, priority) : refused[kind][priority];
	return *why ? text("%s", why) : NULL;
}

void late_launch(int kind, enum priority priority)
{
	if (under_mps)
		ASK_SECOND("launch %d %d", kind, priority);
	else
		local_launch(kind, priority);
}

unsigned late_tiny(void) { return under_mps ? (unsigned)atoi(ASK_SECOND("tiny")) : local_tiny(); }

bool late_done(void) { return under_mps ? atoi(ASK_SECOND("done")) : local_done(); }

void late_finish(void)
{
	if (under_mps)
		ASK_SECOND("finish");
	else
		local_finish();
}

bool late_has(int kind, unsigned sm)
{
	return under_mps ? atoi(ASK_SECOND("has %d %u", kind, sm)) : local_has(kind, sm);
}

const char *late_priorities(void) { return under_mps ? ASK_SECOND("priorities") : own_priorities(); }

const char *late_client_priority(void) { return under_mps ? ASK_SECOND("client") : own_client_priority(); }

void late_end(void)
{
	if (under_mps)
		second_end(&second);
}
