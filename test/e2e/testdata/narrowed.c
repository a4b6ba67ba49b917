// narrowed.c - what runs narrow, and what outlasts a stop of that, is overtaken by nothing (order.h says how that is seen).
#define _GNU_SOURCE
#define MORE_FUNCTIONS(F) \
	F(cuMemcpyDtoDAsync_v2, (ptr, ptr, size_t, handle)) \
	F(cuLaunchKernelEx, (const struct launch_config *, handle, void **, void **))
#include "order.h"

enum { FEW = 64, LONG_US = 1000000, CUT_US = 200000, SHORT_US = 100 };

// All blocks have room at once.
static void launch_few(struct chained *b, handle stream, unsigned add, unsigned us)
{
	unsigned n = 1;
	void *parameters[] = {&b->data, &n, &add, &us};
	OK(cuLaunchKernel(chain, FEW, 1, 1, 256, 1, 1, 0, stream, parameters, NULL));
	b->want = b->want * 3 + add;
}

static void check(struct chained *b)
{
	OK(cuCtxSynchronize());
	OK(cuMemcpyDtoH_v2(b->have, b->data, FEW * 4));
	for (int i = 0; i < FEW; i++)
		if (b->have[i] != b->want) {
			printf("block %d has %u, must have %u\n", i, b->have[i], b->want);
			exit(1);
		}
}

// A graph of a long kernel and a short one.
static handle two_kernels(struct chained *b, handle stream)
{
	handle graph, instance;
	OK(cuStreamBeginCapture_v2(stream, RELAXED));
	launch_few(b, stream, 1, LONG_US);
	launch_few(b, stream, 2, SHORT_US);
	OK(cuStreamEndCapture(stream, &graph));
	OK(cuGraphInstantiateWithFlags(&instance, graph, 0));
	return instance;
}

// A graph, and a kernel behind it.
static void late_graph(unsigned rounds)
{
	handle stream = stream_of(NON_BLOCKING);
	struct chained b = buffer();
	handle instance = two_kernels(&b, stream);
	b.want = 0;
	for (unsigned r = 0; r < rounds; r++) {
		launch(&b, stream, r, CUT_US);
		OK(cuGraphLaunch(instance, stream));
		b.want = (b.want * 3 + 1) * 3 + 2;
		launch_few(&b, stream, 3, SHORT_US);
		until_stopped();
		check(&b);
	}
}

// Like until_stopped; true: the stop came too early or too late, and is wanted once more.
static bool once_more(void)
{
	char line[64];
	printf("until stopped\n");
	CHECK(fgets(line, sizeof line, stdin));
	return strcmp(line, "once more\n") == 0;
}

// A graph is stopped late, in its first kernel, and once more behind a kernel that is cut.
static void parted(unsigned rounds)
{
	handle stream = stream_of(NON_BLOCKING);
	struct chained b = buffer();
	handle instance = two_kernels(&b, stream);
	b.want = 0;
	bool again;
	for (unsigned i = 0; i < 2 * rounds; i++)
		do {
			if (i % 2)
				launch(&b, stream, i, CUT_US);
			OK(cuGraphLaunch(instance, stream));
			b.want = (b.want * 3 + 1) * 3 + 2;
			again = once_more();
			check(&b);
		} while (again);
}

// A kernel on one stream, and one on another stream behind an event.
static void late_wait(unsigned rounds)
{
	handle one = stream_of(NON_BLOCKING), other = stream_of(NON_BLOCKING), event = new_event();
	struct chained b = buffer();
	for (unsigned r = 0; r < rounds; r++) {
		launch(&b, one, r, CUT_US);
		launch_few(&b, one, r + 1, LONG_US);
		OK(cuEventRecord(event, one));
		OK(cuStreamWaitEvent(other, event, 0));
		launch_few(&b, other, r + 2, SHORT_US);
		until_stopped();
		check(&b);
	}
}

// The same by the legacy stream.
static void late_legacy(unsigned rounds)
{
	handle one = stream_of(0), other = stream_of(0);
	struct chained b = buffer();
	for (unsigned r = 0; r < rounds; r++) {
		launch(&b, one, r, CUT_US);
		launch_few(&b, one, r + 1, LONG_US);
		launch_few(&b, NULL, r + 2, SHORT_US);
		launch_few(&b, other, r + 3, SHORT_US);
		until_stopped();
		check(&b);
	}
}

// All blocks have room at once on all SMs, and not in the width.
enum { AT_ONCE = 600 };

static void launch_at_once(struct chained *b, handle stream, unsigned add)
{
	unsigned n = 1, us = SHORT_US;
	void *parameters[] = {&b->data, &n, &add, &us};
	OK(cuLaunchKernel(chain, AT_ONCE, 1, 1, 256, 1, 1, 0, stream, parameters, NULL));
	b->want = b->want * 3 + add;
}

// The blocks wait for each other.
static void launch_dependent(struct chained *b, handle stream)
{
	ptr turn = b->data + (BLOCKS - 1) * 4; // 0 again at its end
	unsigned n = 1, us = SHORT_US;
	void *parameters[] = {&turn, &b->data, &n, &us};
	OK(cuLaunchKernel(waits, AT_ONCE, 1, 1, 256, 1, 1, 0, stream, parameters, NULL));
	b->want++;
}

static bool all_are(const struct chained *b, uint32_t want)
{
	const volatile uint32_t *at = (const volatile uint32_t *)(uintptr_t)b->data; // the simulated driver's device memory
	unsigned n = 0;
	for (int i = 0; i < AT_ONCE; i++)
		n += at[i] == want;
	return n == AT_ONCE;
}

static void check_all(struct chained *b)
{
	OK(cuMemcpyDtoH_v2(b->have, b->data, AT_ONCE * 4));
	for (int i = 0; i < AT_ONCE; i++)
		if (b->have[i] != b->want) {
			printf("block %d has %u, must have %u\n", i, b->have[i], b->want);
			exit(1);
		}
}

// A graph of so many kernels, of which one, counted from 1, has blocks that wait for each other (0: none). upto gets what the ones before make.
static handle graph_on(handle stream, struct chained *b, unsigned kernels, unsigned dependent, uint32_t *upto)
{
	handle graph, instance;
	OK(cuStreamBeginCapture_v2(stream, RELAXED));
	for (unsigned i = 1; i <= kernels; i++) {
		if (i == dependent)
			*upto = b->want;
		if (i == dependent)
			launch_dependent(b, stream);
		else
			launch_at_once(b, stream, i);
	}
	OK(cuStreamEndCapture(stream, &graph));
	OK(cuGraphInstantiateWithFlags(&instance, graph, 0));
	return instance;
}

// Behind a kernel that is stopped: two graphs with a dependent kernel each, what comes behind the first of them, and then a long graph
// of others. Narrow, what has room ahead of such a kernel runs, and the long graph does, and nothing else. Without dependent kernels all runs.
static void graphs(unsigned dependent)
{
	enum {
		KERNELS = 5,
		MANY = 40,
		STREAMS = 4,
		AHEAD_US = 400000
	}; // that kernel has 8 waves, which a stop waits for
	handle stream[STREAMS], instance[3], first = stream_of(NON_BLOCKING), event = new_event();
	struct chained b[STREAMS], ahead = buffer();
	uint32_t upto[3] = {0}, none;
	for (int i = 0; i < STREAMS; i++) {
		stream[i] = stream_of(NON_BLOCKING);
		b[i] = buffer();
	}
	for (int i = 0; i < 2; i++)
		instance[i] = graph_on(stream[i], &b[i], KERNELS, dependent, &upto[i]);
	instance[2] = graph_on(stream[2], &b[2], MANY, 0, &none);
	launch(&ahead, first, 1, AHEAD_US);
	OK(cuEventRecord(event, first));
	for (int i = 0; i < STREAMS; i++)
		OK(cuStreamWaitEvent(stream[i], event, 0));
	OK(cuGraphLaunch(instance[0], stream[0]));
	OK(cuGraphLaunch(instance[1], stream[1]));
	launch_at_once(&b[0], stream[0], 7);
	OK(cuEventRecord(event, stream[0]));
	OK(cuStreamWaitEvent(stream[3], event, 0));
	launch_at_once(&b[3], stream[3], 8);
	OK(cuGraphLaunch(instance[2], stream[2]));
	until_stopped();
	for (int i = 0; i < STREAMS; i++)
		while (!all_are(&b[i], !dependent || i == 2 ? b[i].want : i == 3 ? 0 : upto[i]) || !all_are(&ahead, 1))
			usleep(100);
	until_stopped();
	OK(cuCtxSynchronize());
	for (int i = 0; i < STREAMS; i++)
		check_all(&b[i]);
}

static void launch_graph(handle instance, handle stream, struct chained *b, unsigned kernels)
{
	OK(cuGraphLaunch(instance, stream));
	for (unsigned i = 1; i <= kernels; i++)
		b->want = b->want * 3 + i;
}

// While a window is open, before which nothing was launched: graphs, kernels, copies, memsets and events, on two streams behind each other.
static void inside(unsigned rounds)
{
	enum { KERNELS = 3, OTHERS = 20 }; // of these some are held back until others have ended
	handle one = stream_of(NON_BLOCKING), other = stream_of(NON_BLOCKING), there = new_event(), back = new_event();
	struct chained b = buffer(), copied = buffer(), set = buffer();
	uint32_t none;
	handle first = graph_on(one, &b, KERNELS, 0, &none), second = graph_on(other, &b, OTHERS, 0, &none);
	b.want = 0;
	until_stopped();
	for (unsigned r = 1; r <= rounds; r++) {
		launch_graph(first, one, &b, KERNELS);
		launch_at_once(&b, one, r);
		OK(cuMemcpyDtoDAsync_v2(copied.data, b.data, AT_ONCE * 4, one));
		copied.want = b.want;
		OK(cuEventRecord(there, one));
		OK(cuStreamWaitEvent(other, there, 0));
		launch_graph(second, other, &b, OTHERS);
		OK(cuMemsetD32Async(set.data, set.want = b.want, AT_ONCE, other));
		OK(cuEventRecord(back, other));
		OK(cuStreamWaitEvent(one, back, 0));
	}
	while (!all_are(&b, b.want) || !all_are(&copied, copied.want) || !all_are(&set, set.want))
		usleep(100);
	until_stopped();
	OK(cuCtxSynchronize());
	check_all(&b);
	check_all(&copied);
	check_all(&set);
}

// A capture that is under way while a window is open, which leaves SMs, and another window behind it.
static void captured(unsigned rounds)
{
	handle one = stream_of(NON_BLOCKING), other = stream_of(NON_BLOCKING), graph, instance;
	struct chained ahead = buffer(), b = buffer();
	for (unsigned r = 1; r <= rounds; r++) {
		launch(&ahead, one, r, CUT_US);
		OK(cuStreamBeginCapture_v2(other, RELAXED));
		launch_at_once(&b, other, r);
		until_stopped();
		OK(cuStreamEndCapture(other, &graph));
		OK(cuGraphInstantiateWithFlags(&instance, graph, 0));
		launch(&ahead, one, r, CUT_US);
		until_stopped();
		OK(cuGraphLaunch(instance, other));
		OK(cuCtxSynchronize());
		check_all(&ahead);
		check_all(&b);
	}
}

// In a window, launches with an attribute because of which they cannot be stopped.
static void unstoppable(unsigned rounds)
{
	struct chained b = buffer();
	unsigned n = 1, add = 1, us = SHORT_US;
	void *parameters[] = {&b.data, &n, &add, &us};
	struct launch_attribute event = {LAUNCH_COMPLETION_EVENT, {0}, {0}};
	struct launch_config config = {{AT_ONCE, 1, 1}, {256, 1, 1}, 0, stream_of(NON_BLOCKING), &event, 1};
	for (unsigned r = 0; r < rounds; r++) {
		until_stopped();
		OK(cuLaunchKernelEx(&config, chain, parameters, NULL));
		b.want = b.want * 3 + add;
		printf("launched\n");
	}
	OK(cuCtxSynchronize());
	check_all(&b);
}

// Kernels that are held back in a window.
static void held(unsigned rounds)
{
	handle stream = stream_of(NON_BLOCKING);
	struct chained b = buffer();
	for (unsigned r = 0; r < rounds; r++) {
		launch_dependent(&b, stream);
		while (!all_are(&b, b.want))
			usleep(100);
	}
	OK(cuStreamSynchronize(stream));
	check_all(&b);
}

// At each line, "harmful US" or "harmless US", one of two kernels, which takes so long alone.
static void hurting(unsigned unused)
{
	(void)unused;
	handle module, increment, stream = stream_of(NON_BLOCKING), event = new_event();
	struct chained b[2] = {buffer(), buffer()};
	char line[64];
	OK(cuModuleLoad(&module, image));
	OK(cuModuleGetFunction(&increment, module, "sim_increment"));
	while (fgets(line, sizeof line, stdin) && strcmp(line, "end\n")) {
		char kind[16];
		unsigned n = 1, us;
		CHECK(sscanf(line, "%15s %u", kind, &us) == 2);
		bool harmful = !strcmp(kind, "harmful");
		void *parameters[] = {&b[1].data, &n, &us};
		if (harmful) {
			OK(cuLaunchKernel(increment, BLOCKS, 1, 1, 256, 1, 1, 0, stream, parameters, NULL));
			b[1].want++;
		} else {
			launch(&b[0], stream, 1, us);
		}
		OK(cuEventRecord(event, stream));
		printf("launched\n");
		until_reached(event);
		printf("ended\n");
	}
	for (int i = 0; i < 2; i++)
		copy(&b[i], stream);
	OK(cuCtxSynchronize());
	CHECK(right(&b[0]) && right(&b[1]));
}

// So many kernels of different functions follow each other all the time until a line comes. Each fills the GPU for a while alone.
static void steady(unsigned functions)
{
	enum { MOST = 16, FILL = 132 * 8, TAKES_US = 500, ROUNDS = 2 };
	handle function[MOST], event[ROUNDS] = {new_event(), new_event()}, module, stream = stream_of(NON_BLOCKING);
	struct chained b = buffer();
	struct pollfd input = {.fd = 0, .events = POLLIN};
	char line[64];
	CHECK(functions <= MOST);
	for (unsigned i = 0; i < functions; i++) {
		OK(cuModuleLoad(&module, image));
		OK(cuModuleGetFunction(&function[i], module, "sim_chain"));
	}
	printf("works\n");
	for (unsigned r = 0; poll(&input, 1, 0) == 0; r++) {
		if (r >= ROUNDS)
			OK(cuEventSynchronize(event[r % ROUNDS]));
		for (unsigned add = 0; add < functions; add++) {
			unsigned n = 1, us = TAKES_US;
			void *parameters[] = {&b.data, &n, &add, &us};
			OK(cuLaunchKernel(function[add], FILL, 1, 1, 256, 1, 1, 0, stream, parameters, NULL));
			b.want = b.want * 3 + add;
		}
		OK(cuEventRecord(event[r % ROUNDS], stream));
	}
	CHECK(fgets(line, sizeof line, stdin));
	copy(&b, stream);
	OK(cuCtxSynchronize());
	for (int i = 0; i < FILL; i++)
		CHECK(b.have[i] == b.want);
}

// A stream waits for the program. The program lets it go when another one is done, of which it learns when the stop has ended.
static void waiting(unsigned rounds)
{
	handle one = stream_of(NON_BLOCKING), other = stream_of(NON_BLOCKING);
	struct chained b = buffer();
	for (unsigned r = 0; r < rounds; r++) {
		released = false;
		OK(cuLaunchHostFunc(one, host_wait, NULL));
		until_stopped();
		launch_few(&b, other, r, SHORT_US);
		OK(cuStreamSynchronize(other));
		released = true;
		check(&b);
	}
}

int main(int argc, char **argv)
{
	static const struct task tasks[] = {
		{"plain", plain},         {"late-graph", late_graph},   {"parted", parted},
		{"late-wait", late_wait}, {"late-legacy", late_legacy}, {"graphs", graphs},
		{"inside", inside},       {"hurting", hurting},         {"captured", captured},
		{"held", held},           {"unstoppable", unstoppable}, {"steady", steady},
		{"waiting", waiting}};
	return serve(argc, argv, tasks, sizeof tasks / sizeof *tasks);
}
