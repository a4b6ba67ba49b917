// h200.c - the numbers of the simulated machine; no behaviour.
#include "sim.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

const struct machine machine = {
	.name = "Simulated H200",
	.driver_version = 13000,
	.sms = 132,
	.threads_per_sm = 2048,
	.registers_per_sm = 65536,
	.shared_per_sm = 233472,
	.shared_reserved = 1024,
	.shared_per_block_optin = 232448,
	.shared_per_block = 49152,
	.blocks_per_sm = 32,
	.cc_major = 9,
	.cc_minor = 0,
	.clock_khz = 1980000,
	.memory_clock_khz = 3201000,
	.bus_width_bits = 6144,
	.l2_bytes = 62914560,
	.memory_bytes = 150120824832ull,
	.context_bytes = 512ull << 20,
	.switch_busy_ns = 190000,
	.switch_idle_ns = 20000,
	.load_ns = 20000,
	.look_ns = 200000, // a GPU takes a few us; a thread of ours may lose the CPU between two doorbells
	.timeslice_us = 2048,
	.copy_timeslice_us = 1024,
	.control_ns = 150000,
	.copy_latency_ns = 6000,
	.host_bytes_per_us = 50000,
	.device_bytes_per_us = 2000000,
	.kernel_overhead_ns = 2000,
	.block_ns = 2,
	.green_least = 8,
	.green_multiple = 8,
	.green_ns = 1200000,
	.green_bytes = 5632ull << 10,
	.gpfifo_class = 0xC86F,  // HOPPER_CHANNEL_GPFIFO_A, clc86f.h
	.compute_class = 0xCBC0, // HOPPER_COMPUTE_A, clcbc0.h
	.compute_engine = 1,     // NV2080_ENGINE_TYPE_GRAPHICS, cl2080_notification.h
	.copy_engine = {0xB, 0xC, 0xD},
	.connections = 8,
};

// CUdevice_attribute, cuda.h
static const struct {
	int attribute, value;
} attributes[] = {
	{1, 1024},        // MAX_THREADS_PER_BLOCK
	{2, 1024},        // MAX_BLOCK_DIM_X
	{3, 1024},        // MAX_BLOCK_DIM_Y
	{4, 64},          // MAX_BLOCK_DIM_Z
	{5, 2147483647},  // MAX_GRID_DIM_X
	{6, 65535},       // MAX_GRID_DIM_Y
	{7, 65535},       // MAX_GRID_DIM_Z
	{8, 49152},       // MAX_SHARED_MEMORY_PER_BLOCK
	{9, 65536},       // TOTAL_CONSTANT_MEMORY
	{10, 32},         // WARP_SIZE
	{11, 2147483647}, // MAX_PITCH
	{12, 65536},      // MAX_REGISTERS_PER_BLOCK
	{13, 1980000},    // CLOCK_RATE
	{14, 512},        // TEXTURE_ALIGNMENT
	{15, 1},          // GPU_OVERLAP
	{16, 132},        // MULTIPROCESSOR_COUNT
	{17, 0},          // KERNEL_EXEC_TIMEOUT
	{18, 0},          // INTEGRATED
	{19, 1},          // CAN_MAP_HOST_MEMORY
	{20, 0},          // COMPUTE_MODE
	{31, 1},          // CONCURRENT_KERNELS
	{32, 1},          // ECC_ENABLED
	{33, 1},          // PCI_BUS_ID, plus the device
	{34, 0},          // PCI_DEVICE_ID
	{35, 0},          // TCC_DRIVER
	{36, 3201000},    // MEMORY_CLOCK_RATE
	{37, 6144},       // GLOBAL_MEMORY_BUS_WIDTH
	{38, 62914560},   // L2_CACHE_SIZE
	{39, 2048},       // MAX_THREADS_PER_MULTIPROCESSOR
	{40, 3},          // ASYNC_ENGINE_COUNT
	{41, 1},          // UNIFIED_ADDRESSING
	{50, 0},          // PCI_DOMAIN_ID
	{75, 9},          // COMPUTE_CAPABILITY_MAJOR
	{76, 0},          // COMPUTE_CAPABILITY_MINOR
	{78, 1},          // STREAM_PRIORITIES_SUPPORTED
	{79, 1},          // GLOBAL_L1_CACHE_SUPPORTED
	{80, 1},          // LOCAL_L1_CACHE_SUPPORTED
	{81, 233472},     // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
	{82, 65536},      // MAX_REGISTERS_PER_MULTIPROCESSOR
	{83, 1},          // MANAGED_MEMORY
	{84, 0},          // MULTI_GPU_BOARD
	{88, 1},          // PAGEABLE_MEMORY_ACCESS
	{89, 1},          // CONCURRENT_MANAGED_ACCESS
	{90, 1},          // COMPUTE_PREEMPTION_SUPPORTED
	{91, 1},          // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
	{92, 1},          // CAN_USE_STREAM_MEM_OPS_V1
	{93, 1},          // CAN_USE_64_BIT_STREAM_MEM_OPS_V1
	{94, 1},          // CAN_USE_STREAM_WAIT_VALUE_NOR_V1
	{95, 1},          // COOPERATIVE_LAUNCH
	{97, 232448},     // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
	{99, 1},          // HOST_REGISTER_SUPPORTED
	{102, 1},         // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
	{103, 1},         // HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
	{106, 32},        // MAX_BLOCKS_PER_MULTIPROCESSOR
	{110, 1},         // GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
	{111, 1024},      // RESERVED_SHARED_MEMORY_PER_BLOCK
	{115, 1},         // MEMORY_POOLS_SUPPORTED
	{116, 1},         // GPU_DIRECT_RDMA_SUPPORTED
	{120, 1},         // CLUSTER_LAUNCH
	{122, 1},         // CAN_USE_64_BIT_STREAM_MEM_OPS
	{123, 1},         // CAN_USE_STREAM_WAIT_VALUE_NOR
	{124, 1},         // DMA_BUF_SUPPORTED
	{134, 0},         // HOST_NUMA_ID
	{141, 1},         // HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
};

int sim_driver_version(void)
{
	static _Atomic int version;
	if (!version) {
		const char *e = getenv("SIMCUDA_VERSION");
		version = e && *e ? atoi(e) : machine.driver_version;
	}
	return version;
}

bool sim_lazy(void)
{
	const char *e = getenv("CUDA_MODULE_LOADING");
	return e && strcmp(e, "LAZY") == 0;
}

int sim_connections(void)
{
	const char *e = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
	int n = e ? atoi(e) : 0;
	if (n >= 1 && n <= MOST_CONNECTIONS)
		return n;
	return sim_mps_client() == MPS_SLICED ? 2 : machine.connections; // NVIDIA's documentation of MPS
}

uint32_t sim_queue(void)
{
	static _Atomic uint32_t most;
	if (!most) {
		const char *e = getenv("SIMCUDA_QUEUE");
		most = e && atoi(e) > 0 ? (uint32_t)atoi(e) : UINT32_MAX;
	}
	return most;
}

bool sim_making_waits(void)
{
	static _Atomic int state; // 1 no, 2 yes
	if (!state) {
		const char *e = getenv("SIMCUDA_MAKING_WAITS");
		state = e && *e && strcmp(e, "0") != 0 ? 2 : 1;
	}
	return state == 2;
}

bool sim_late_contexts(void)
{
	const char *e = getenv("SIMCUDA_LATE_CONTEXT");
	return e && *e && strcmp(e, "0") != 0;
}

enum mps_client sim_mps_client(void)
{
	static _Atomic int client = -1;
	if (client < 0) {
		const char *e = getenv("SIMCUDA_MPS");
		if (!e || !*e || strcmp(e, "0") == 0)
			client = MPS_NONE;
		else
			client = strcmp(e, "sliced") == 0 ? MPS_SLICED : MPS_SHARED;
	}
	return client;
}

bool sim_mps(void) { return sim_mps_client() == MPS_SHARED; }

// The value of an environment variable, times unit; where it is not set, otherwise.
static uint64_t setting(_Atomic uint64_t *ns, const char *name, uint64_t unit, uint64_t otherwise)
{
	if (*ns == UINT64_MAX) {
		const char *e = getenv(name);
		*ns = e && *e ? strtoull(e, NULL, 10) * unit : otherwise;
	}
	return *ns;
}

uint64_t sim_memory_bytes(void)
{
	static _Atomic uint64_t bytes = UINT64_MAX;
	uint64_t all = setting(&bytes, "SIMCUDA_MEMORY_MB", 1 << 20, machine.memory_bytes);
	return sim_slices() ? all / (uint64_t)sim_slices() / LARGE * LARGE : all;
}

uint64_t sim_cap_bytes(void)
{
	static _Atomic uint64_t bytes = UINT64_MAX;
	return setting(&bytes, "SIMCUDA_CAP_MB", 1 << 20, 0);
}

bool sim_cap_is_told(void)
{
	const char *e = getenv("SIMCUDA_CAP_MB");
	return e && !strstr(e, ":hidden");
}

uint64_t sim_making_bytes(void)
{
	static _Atomic uint64_t bytes = UINT64_MAX;
	return setting(&bytes, "SIMCUDA_MAKING_MB", 1 << 20, 0);
}

uint64_t sim_code_bytes(void)
{
	static _Atomic uint64_t bytes = UINT64_MAX;
	return setting(&bytes, "SIMCUDA_CODE_MB", 1 << 20, 0);
}

uint64_t sim_context_bytes(void)
{
	static _Atomic uint64_t bytes = UINT64_MAX;
	return setting(&bytes, "SIMCUDA_CONTEXT_MB", 1 << 20, machine.context_bytes);
}

uint64_t sim_block_ns(void)
{
	static _Atomic uint64_t ns = UINT64_MAX;
	return setting(&ns, "SIMCUDA_BLOCK_NS", 1, machine.block_ns);
}

uint64_t sim_look_ns(void)
{
	static _Atomic uint64_t ns = UINT64_MAX;
	return setting(&ns, "SIMCUDA_LOOK_US", 1000, machine.look_ns);
}

uint64_t sim_switch_ns(void)
{
	static _Atomic uint64_t ns = UINT64_MAX;
	return setting(&ns, "SIMCUDA_SWITCH_US", 1000, machine.switch_busy_ns);
}

void sim_doorbell(const struct kernel *k)
{
	static _Atomic uint64_t gap = UINT64_MAX;
	uint64_t ns = setting(&gap, "SIMCUDA_DOORBELL_US", 1000, 0);
	const char *of = ns ? strchr(getenv("SIMCUDA_DOORBELL_US"), ':') : NULL;
	if (of && !(k && strcmp(k->name, of + 1) == 0))
		return;
	sim_take(ns);
}

static double bus_rate[3]; // to the device, from it, each of the two while both go
static pthread_once_t bus_once = PTHREAD_ONCE_INIT;

static void read_bus_rate(void)
{
	const char *e = getenv("SIMCUDA_COPY_GBS");
	char *end;
	int n = 0;
	for (; e && *e && n < 3; n++, e = *end == ',' ? end + 1 : "")
		bus_rate[n] = strtod(e, &end);
	if (n == 1)
		bus_rate[1] = bus_rate[0];
}

double sim_bus_rate(int direction, bool both)
{
	pthread_once(&bus_once, read_bus_rate);
	return both && bus_rate[2] > 0 ? bus_rate[2] : bus_rate[direction];
}

void sim_pin(uint64_t bytes)
{
	static _Atomic uint64_t ms = UINT64_MAX;
	sim_take(bytes * setting(&ms, "SIMCUDA_PIN_MS_PER_GB", 1, 0) / 1000);
}

void sim_create(uint64_t bytes)
{
	static _Atomic uint64_t ms = UINT64_MAX;
	sim_take(bytes * setting(&ms, "SIMCUDA_CREATE_MS_PER_GB", 1, 0) / 1000);
}

uint64_t sim_scrub_ns(uint64_t bytes)
{
	static _Atomic uint64_t ms = UINT64_MAX;
	return bytes * setting(&ms, "SIMCUDA_SCRUB_MS_PER_GB", 1, 0) / 1000;
}

bool sim_contents(void)
{
	static _Atomic int state; // 1 no, 2 yes
	if (!state) {
		const char *e = getenv("SIMCUDA_CONTENTS");
		state = e && strcmp(e, "0") == 0 ? 1 : 2;
	}
	return state == 2;
}

int machine_attribute(int device, int attribute, int *value)
{
	for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
		if (attributes[i].attribute == attribute) {
			*value = attributes[i].value + (attribute == 33 ? sim_part(device).gpu : 0);
			return 0;
		}
	if (attribute < 1 || attribute > 160)
		return -1;
	if (attribute == 133) { // MPS_ENABLED
		*value = sim_mps_client() != MPS_NONE;
		return 0;
	}
	*value = 0; // a feature that the simulated machine lacks
	return 0;
}

// CUDA_VISIBLE_DEVICES names slices, of GPUs that are cut into some: the first one that it names is the one device that there
// is. Without it, and where it is the number of a GPU, that is the first slice. slice < 0: there is none.
static struct part visible_slice(void)
{
	const char *e = getenv("CUDA_VISIBLE_DEVICES");
	char name[64], *end;
	if (!e)
		return (struct part){0, sim_gpus() ? 0 : -1};
	long number = strtol(e, &end, 10);
	if (end != e && (!*end || *end == ','))
		return (struct part){(int)number, number >= 0 && number < sim_gpus() ? 0 : -1};
	size_t length = strcspn(e, ",");
	for (int gpu = 0; gpu < sim_gpus(); gpu++)
		for (int slice = 0; slice < sim_slices(); slice++)
			if (sim_uuid_text(gpu, slice, name, sizeof name) == (int)length && strncasecmp(name, e, length) == 0)
				return (struct part){gpu, slice};
	return (struct part){0, -1};
}

static struct part only;
static pthread_once_t only_once = PTHREAD_ONCE_INIT;
static void find_only(void) { only = visible_slice(); }

struct part sim_part(int device)
{
	if (!sim_slices())
		return (struct part){device, -1};
	pthread_once(&only_once, find_only);
	return only;
}

int sim_devices(void) { return sim_slices() ? sim_part(0).slice >= 0 : sim_gpus(); }
