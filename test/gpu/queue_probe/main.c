// main.c - build/queue-probe: the cost of one submitter that hands a program's work to the driver, few operations at a time. It uses the
// driver alone, in one process or as a client of an MPS server.
#include <stdlib.h>
#include <string.h>

#include "queue.h"

static CUfunction work, empty, telling;
static CUdeviceptr out;
static unsigned sms;
static double iterations_of_us; // of bench_work, with a block on each SM

__asm__(".section .rodata\n"
	".balign 16\n"
	"bench_image: .incbin \"kernels/bench.fatbin\"\n"
	".previous");
extern const char bench_image[];

static const double lengths_us[] = {0, 2, 5, 10, 50};

// The ways that are compared.
static const struct case_of {
	const char *name;
	enum way way;
	enum word word;
	unsigned in_flight, mark_every;
	double nap_us;
} cases[] = {
	{"direct", DIRECT, BY_MARK, 1, 1, 0},
	{"32 in flight, a mark each, spins", SPINS, BY_MARK, 32, 1, 0},
	{"32 in flight, a mark for 8, naps of 5 us", NAPS, BY_MARK, 32, 8, 5},
	{"128 in flight, a mark for 32, naps of 50 us", NAPS, BY_MARK, 128, 32, 50},
	{"32 in flight, kernels tell, naps of 5 us", NAPS, BY_KERNEL, 32, 8, 5},
	{"128 in flight, kernels tell, naps of 50 us", NAPS, BY_KERNEL, 128, 32, 50},
};
enum { CASES = sizeof cases / sizeof *cases, STREAMS = 64 };

static struct operation kernel_of(double us, unsigned stream)
{
	return (struct operation){.function = us > 0 ? work : empty,
				  .telling = telling,
				  .blocks = us > 0 ? sms : 1,
				  .out = out,
				  .iterations = (unsigned long long)(us * iterations_of_us),
				  .stream = stream};
}

// Microseconds that so many operations take, one after the other, on so many streams by turns.
static double take(struct operation *o, unsigned count, unsigned on)
{
	double began = now_us();
	for (unsigned i = 0; i < count; i++) {
		o->stream = i % on;
		queue_append(o);
	}
	queue_drain();
	return now_us() - began;
}

static void begin(void)
{
	sms = (unsigned)device_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
	work = function_of(bench_image, "bench_work");
	empty = function_of(bench_image, "bench_empty");
	telling = function_of(bench_image, "bench_work_telling");
	CHECK(cuMemAlloc(&out, sms * sizeof(float)));
	queue_open(STREAMS);
	enum { ITERATIONS = 20000, RUNS = 5 };
	iterations_of_us = 1;
	struct operation o = kernel_of(ITERATIONS, 0);
	struct samples times = {0};
	for (int i = 0; i < RUNS; i++)
		add(&times, take(&o, 1, 1));
	iterations_of_us = ITERATIONS / sum_up(&times).p50;
}

static void settle(const char *section) { setenv("CUDA_MODULE_LOADING", "EAGER", 1); }

// All cases in turns, so that what the machine does meanwhile happens to each. A figure is of one operation.
static void compare(struct operation *o, unsigned count, unsigned on, unsigned scale, const char *what)
{
	struct samples whole[CASES] = {0}, appending[CASES] = {0};
	double watched[CASES] = {0}, lasted[CASES] = {0};
	for (int round = 0; round < plan.samples && time_for(.5); round++)
		for (int k = 0; k < CASES; k++) {
			const struct case_of *c = &cases[k];
			queue_set(c->way, c->word, c->in_flight < 2 * scale && scale > 1 ? 2 : c->in_flight / scale,
				  c->mark_every < scale ? 1 : c->mark_every / scale, c->nap_us);
			double seconds = queue_watcher_seconds(), began = now_us();
			for (unsigned i = 0; i < count; i++) {
				o->stream = i % on;
				queue_append(o);
			}
			add(&appending[k], (now_us() - began) / count);
			queue_drain();
			double took = now_us() - began;
			add(&whole[k], took / count);
			watched[k] += queue_watcher_seconds() - seconds;
			lasted[k] += took / 1e6;
			queue_set(DIRECT, BY_MARK, 1, 1, 0);
		}
	for (int k = 0; k < CASES; k++) {
		struct summary all = sum_up(&whole[k]), program = sum_up(&appending[k]);
		row("queue", "what=%s\tway=%s\tn=%zu\tus=%.2f\tus_max=%.2f\tprogram_us=%.2f\twatcher=%.2f", what,
		    cases[k].name, all.count, all.p50, all.max, program.p50, lasted[k] > 0 ? watched[k] / lasted[k] : 0);
	}
}

static unsigned so_many(void) { return plan.quick ? 100 : 2000; }

static void section_kernels(void)
{
	for (size_t i = 0; i < sizeof lengths_us / sizeof *lengths_us; i++) {
		struct operation o = kernel_of(lengths_us[i], 0);
		compare(&o, so_many(), 1, 1, text("kernels of %g us", lengths_us[i]));
	}
}

static void section_streams(void)
{
	for (unsigned on = 8; on <= STREAMS; on *= 8) {
		struct operation o = kernel_of(5, 0);
		o.blocks = 1;
		compare(&o, so_many(), on, 1, text("kernels of 5 us and one block on %u streams", on));
	}
}

// A graph counts as the operations that it has, but two are always let pass.
static void section_graphs(void)
{
	for (unsigned nodes = 20; nodes <= 500; nodes *= 5) {
		CUstream stream = stream_of(0);
		CUgraph graph;
		struct operation o = kernel_of(2, 0);
		void *parameters[] = {&o.out, &o.iterations};
		CHECK(cuStreamBeginCapture(stream, CAPTURE_GLOBAL));
		for (unsigned i = 0; i < nodes; i++)
			CHECK(cuLaunchKernel(o.function, o.blocks, 1, 1, 256, 1, 1, 0, stream, parameters, NULL));
		CHECK(cuStreamEndCapture(stream, &graph));
		o = (struct operation){0};
		CHECK(cuGraphInstantiate(&o.graph, graph, 0));
		compare(&o, plan.quick ? 10 : 100, 1, nodes, text("graphs of %u kernels of 2 us", nodes));
	}
}

// A program that has rested hands over more than the driver may have at once: the watcher sleeps, and has to be woken.
static void section_wakes(void)
{
	for (size_t i = 0; i < sizeof lengths_us / sizeof *lengths_us; i++) {
		struct operation o = kernel_of(lengths_us[i], 0);
		struct samples times[CASES] = {0};
		for (int round = 0; round < 5 * plan.samples && time_for(.5); round++)
			for (int k = 0; k < CASES; k++) {
				queue_set(cases[k].way, cases[k].word, cases[k].in_flight, cases[k].mark_every,
					  cases[k].nap_us);
				pause_us(300); // longer than any nap
				add(&times[k], take(&o, 96, 1));
				queue_set(DIRECT, BY_MARK, 1, 1, 0);
			}
		for (int k = 0; k < CASES; k++)
			figure(sum_up(&times[k]), "us", "96 kernels of %g us after a rest, %s", lengths_us[i],
			       cases[k].name);
	}
}

static const struct section sections[] = {
	{"machine", fact_device, 5, "device, driver"},
	{"kernels", section_kernels, 30, "kernels of 0 to 50 us on one stream"},
	{"streams", section_streams, 20, "kernels on 8 and 64 streams"},
	{"graphs", section_graphs, 20, "graphs of 20 to 500 kernels"},
	{"wakes", section_wakes, 20, "a program that has rested, and leaves work for a watcher that sleeps"},
};

const struct probe probe = {
	.name = "queue-probe",
	.mode = "one process",
	.section = sections,
	.sections = sizeof sections / sizeof *sections,
	.seconds = 100,
	.full = {.seconds = .1, .samples = 15},
	.quick = {.quick = true, .seconds = .02, .samples = 1},
	.settle = settle,
	.begin = begin,
};
