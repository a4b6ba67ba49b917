// main.c - build/order-probe: what the block scheduler and the copy queues do when something cannot be placed. In one process, or as
// clients of an MPS server.
#include <stdlib.h>
#include <string.h>

#include "order.h"

static void section_machine(void)
{
	fact_device();
	fact(text("%d", gpu.sms), "SMs");
	fact(text("%d to %d", gpu.least, gpu.greatest), "priorities of streams, least to greatest");
	fact(text("%u, %u on an SM", gpu.all, resident(SPIN, ORDER_THREADS)), "blocks of the spinner");
}

// What a section's process, and a second one of it, have in their environment.
static void settle(const char *section)
{
	const char *connections = strcmp(section, "copies-1") == 0 ? "1" : "32";
	bool both = strcmp(section, "blocks-both") == 0, spinner = strcmp(section, "blocks-spinner") == 0;
	setenv("CUDA_MODULE_LOADING", "EAGER", 1); // a kernel that is loaded while another one waits would wait for it
	setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections, 1);
	if (strcmp(section, "copies") == 0 || strcmp(section, "channels") == 0)
		unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
	unsetenv("CUDA_MPS_CLIENT_PRIORITY");
	if (both || spinner)
		setenv("CUDA_MPS_CLIENT_PRIORITY", "1", 1);
}

static const struct section sections[] = {
	{"machine", section_machine, 5, "device, driver, how many blocks fit"},
	{"blocks", section_blocks, 15, "does a launch without room keep the last blocks of another grid from theirs"},
	{"blocks-both", section_blocks_both, 15, "the same, both clients with MPS client priority 1 (--mps)"},
	{"blocks-spinner", section_blocks_spinner, 15, "the same, that of the partly placed grid alone (--mps)"},
	{"copies", section_copies, 9, "what waits behind a copy that waits behind a kernel"},
	{"copies-1", section_copies_1, 9, "the same with CUDA_DEVICE_MAX_CONNECTIONS=1"},
	{"copies-32", section_copies_32, 9, "the same with CUDA_DEVICE_MAX_CONNECTIONS=32"},
	{"channels", section_channels, 9, "which streams share a channel, and which copies need none"},
	{"channels-32", section_channels_32, 9, "the same with CUDA_DEVICE_MAX_CONNECTIONS=32"},
};

const struct probe probe = {
	.name = "order-probe",
	.mode = "one process",
	.section = sections,
	.sections = sizeof sections / sizeof *sections,
	.seconds = 80,
	.full = {.seconds = .1, .samples = 20},
	.quick = {.quick = true, .seconds = .02, .samples = 1},
	.settle = settle,
	.begin = hold_begin,
	.neighbour = late_serve,
};
