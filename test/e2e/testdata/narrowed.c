// narrowed.c - what outlasts a stop of what runs narrow is overtaken by nothing (order.h says how that is seen).
#define _GNU_SOURCE
#include "order.h"

enum { FEW = 64, LONG_US = 1000000, CUT_US = 60000, SHORT_US = 100 };

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

// A graph, and a kernel behind it.
static void late_graph(unsigned rounds)
{
	handle stream = stream_of(NON_BLOCKING), graph, instance;
	struct chained b = buffer();
	OK(cuStreamBeginCapture_v2(stream, RELAXED));
	launch_few(&b, stream, 1, LONG_US);
	launch_few(&b, stream, 2, SHORT_US);
	OK(cuStreamEndCapture(stream, &graph));
	OK(cuGraphInstantiateWithFlags(&instance, graph, 0));
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

int main(int argc, char **argv)
{
	static const struct task tasks[] = {
		{"plain", plain}, {"late-graph", late_graph}, {"late-wait", late_wait}, {"late-legacy", late_legacy}};
	return serve(argc, argv, tasks, sizeof tasks / sizeof *tasks);
}
