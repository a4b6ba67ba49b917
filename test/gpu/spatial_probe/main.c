// main.c - build/spatial-probe: what best-effort work beside latency-critical requests costs either, by how it is limited. Between
// streams of one process, or as clients of an MPS server.
#include <stdlib.h>

#include "spatial.h"

void section_machine(void)
{
	fact_device();
	fact(text("%d", gpu.sms), "SMs");
	fact(text("%d", gpu.threads_per_sm), "threads on an SM");
	fact(text("%d", gpu.registers_per_sm), "registers of an SM");
	fact(text("%d of a block, %d of an SM", gpu.shared_per_block, gpu.shared_per_sm), "shared memory in bytes");
	fact(text("%d to %d", gpu.low, gpu.high), "priorities of streams, low to high");
}

// Streams must not wait for each other because they share a channel; MPS would give a process two.
static void prepare(void) { setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8", 0); }

static const struct section sections[] = {
	{"machine", section_machine, 10, "device, driver, what an SM has"},
	{"shapes", section_shapes, 20, "each kind of work alone: SMs that it takes, blocks that fit, its time"},
	{"placement", section_placement, 20, "SMs of a second kernel's blocks, capped residency, use of freed places"},
	{"green", section_green, 20, "green contexts: which SMs, and what may be done with their streams"},
	{"costs", section_costs, 20, "occupancy queries, streams, green contexts, launches in turn"},
	{"gate", section_gate, 20, "a width that each block reads"},
	{"switch", section_switch, 20, "changes of width: stopped, and going on"},
	{"scaling", section_scaling, 20, "best-effort work alone on 8 SMs and more"},
	{"beside", section_beside, 70, "matrix: priority, none, length of blocks"},
	{"cap", section_cap, 40, "matrix: resident blocks an SM, by padded shared memory"},
	{"width", section_width, 80, "matrix: green contexts of 16 to 112 SMs"},
	{"throttle", section_throttle, 20, "matrix: blocks that stream and then sleep"},
	{"rivals", section_rivals, 75, "matrix: MPS client priority and active thread percentage (--mps)"},
	{"persistent", section_persistent, 65, "matrix: blocks in flight, a grid that goes round"},
	{"windows", section_windows, 65, "matrix: the grid in windows"},
	{"clusters", section_clusters, 15, "clusters on few SMs: whether they end"},
};

const struct probe probe = {
	.name = "spatial-probe",
	.mode = "streams",
	.section = sections,
	.sections = sizeof sections / sizeof *sections,
	.seconds = 260,
	.full = {.seconds = .3, .samples = 1000},
	.quick = {.quick = true, .seconds = .02, .samples = 3},
	.prepare = prepare,
	.begin = work_begin,
	.neighbour = be_serve,
};
