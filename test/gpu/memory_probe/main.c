// main.c - build/memory-probe: what the driver and the machine do to memory that comes and goes.
#include "memory.h"

struct amounts amounts;
CUfunction kernel_work, kernel_chain;

// The second one's kernels are for sm_90, and known to the simulated driver, too.
__asm__(".section .rodata\n"
	".balign 16\n"
	"bench_image: .incbin \"kernels/bench.fatbin\"\n"
	".balign 16\n"
	"chain_image: .incbin \"test/simcuda/kernels/sim.cubin\"\n"
	".quad 0\n"
	".previous");
extern const char bench_image[], chain_image[];

void launch_small(CUstream stream, CUdeviceptr scratch)
{
	unsigned long long iterations = 500;
	void *parameters[] = {&scratch, &iterations};
	CHECK(cuLaunchKernel(kernel_work, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
}

static void prepare(void)
{
	size_t room = host_available() / 3; // both ways, and one of them once more
	amounts = plan.quick ? (struct amounts){8 * MIB, 2} : (struct amounts){4 * GIB, 8};
	if (amounts.bulk > room)
		amounts.bulk = room / (2 * MIB) * (2 * MIB);
}

static void begin(void)
{
	kernel_work = function_of(bench_image, "bench_work");
	kernel_chain = function_of(chain_image, "sim_chain");
}

static const struct section sections[] = {
	{"machine", section_machine, 10, "device, driver, sizes"},
	{"costs", section_costs, 10, "calls that are made often while nothing happens"},
	{"attributes", section_attributes, 15, "what the driver says of memory of each kind; pitches"},
	{"rules", section_rules, 15, "which calls on mapped memory the driver takes"},
	{"graphs", section_graphs, 15, "a graph whose memory was mapped again"},
	{"handles", section_handles, 45, "create, map, access, unmap, release, by size; cuMemAlloc, cuMemFree"},
	{"scrubbing", section_scrubbing, 30, "how long released memory cannot be had"},
	{"threads", section_threads, 15, "moving memory while another thread launches"},
	{"copies", section_copies, 75, "pinned copies by chunk, in flight, and NUMA node"},
	{"beside-copies", section_beside_copies, 60, "small copies of the same and another process beside a bulk"},
	{"neighbour", section_neighbour, 45, "a second process beside calls that move memory"},
	{"pinning", section_pinning, 60, "page-locking by piece, threads and pages; a second process beside it"},
};

const struct probe probe = {
	.name = "memory-probe",
	.mode = "time-sliced",
	.section = sections,
	.sections = sizeof sections / sizeof *sections,
	.seconds = 225,
	.full = {.seconds = .3, .samples = 2000},
	.quick = {.quick = true, .seconds = .02, .samples = 20},
	.prepare = prepare,
	.begin = begin,
	.neighbour = neighbour_serve,
};
