// nvml.c - `gpreempt doctor-probe processes`: which processes use each GPU, as NVIDIA's management library says. It says so at
// once, and again for each byte on its standard input, until that ends. Hidden, and a process of its own, as probe.c.
//
// Where a GPU is cut into slices (MIG), these are listed in its place.
//
//   gpu <UUID>
//   process <UUID> <PID> <bytes, or -> <percent of the SMs' time since the last answer: at most; or ->
//   error <function> <nvmlReturn_t or 0> <text>
//   ready
//
// A PID is one that the driver tells in this process's PID namespace, or the host's: 0, or a number that nobody here has, is of a
// process that cannot be seen.
#define _GNU_SOURCE
#include "nvml.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

// From nvml.h.
typedef int nvmlReturn_t;
typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct {
	unsigned pid;
	unsigned long long usedGpuMemory; // bytes
	unsigned gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t; // of _v2 and _v3
typedef struct {
	unsigned pid;
	unsigned long long timeStamp; // us since 1970
	unsigned smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;
enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_NOT_FOUND = 6,
	NVML_ERROR_INSUFFICIENT_SIZE = 7,
};
static const unsigned long long NVML_VALUE_NOT_AVAILABLE = ~0ull;

enum { MOST_GPUS = 64, MOST_PROCESSES = 1024 };
static const unsigned long long FIRST_US = 2 * 1000 * 1000; // the first answer is about so long

typedef nvmlReturn_t list_function(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *);
typedef nvmlReturn_t utilization_function(nvmlDevice_t, nvmlProcessUtilizationSample_t *, unsigned *, unsigned long long);

static void *library;

static void complain(const char *function, nvmlReturn_t result)
{
	const char *(*describe)(nvmlReturn_t) = dlsym(library, "nvmlErrorString");
	printf("error %s %d %s\n", function, result, describe ? describe(result) : "unknown error");
}

static void *symbol(const char *name)
{
	void *found = dlsym(library, name);
	if (!found)
		printf("error dlsym 0 libnvidia-ml.so.1 has no %s\n", name);
	return found;
}

// CALL is true if the function exists and succeeded.
#define CALL(name, types, ...) \
	({ \
		nvmlReturn_t(*function) types = symbol(#name); \
		nvmlReturn_t result = function ? function(__VA_ARGS__) : -1; \
		if (function && result != NVML_SUCCESS) \
			complain(#name, result); \
		result == NVML_SUCCESS; \
	})

static struct gpu {
	nvmlDevice_t device;
	char uuid[96];
	unsigned long long seen_us; // the last sample of utilization
} gpus[MOST_GPUS];
static unsigned known;
static utilization_function *utilization;
static list_function *processes;
static nvmlProcessInfo_t list[2 * MOST_PROCESSES]; // some drivers of release 535 have longer entries
static nvmlProcessUtilizationSample_t samples[4 * MOST_PROCESSES];

static void add(nvmlDevice_t device)
{
	struct gpu *g = &gpus[known];
	if (known == MOST_GPUS ||
	    !CALL(nvmlDeviceGetUUID, (nvmlDevice_t, char *, unsigned), device, g->uuid, sizeof g->uuid))
		return;
	g->device = device;
	known++;
}

// add_slices returns 0 where the GPU is whole. Drivers that know nothing of slices (before release 450) lack the functions.
static int add_slices(nvmlDevice_t device)
{
	nvmlReturn_t (*mode)(nvmlDevice_t, unsigned *, unsigned *) = dlsym(library, "nvmlDeviceGetMigMode");
	nvmlReturn_t (*most)(nvmlDevice_t, unsigned *) = dlsym(library, "nvmlDeviceGetMaxMigDeviceCount");
	nvmlReturn_t (*get)(nvmlDevice_t, unsigned, nvmlDevice_t *) =
		dlsym(library, "nvmlDeviceGetMigDeviceHandleByIndex");
	unsigned current, pending, count;
	nvmlDevice_t slice;
	if (!mode || !most || !get || mode(device, &current, &pending) != NVML_SUCCESS || !current ||
	    most(device, &count) != NVML_SUCCESS)
		return 0;
	for (unsigned i = 0; i < count; i++) {
		if (get(device, i, &slice) == NVML_SUCCESS)
			add(slice);
	}
	return 1;
}

static int open_library(void)
{
	unsigned count;
	library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		printf("error dlopen 0 %s\n", dlerror());
		return 0;
	}
	utilization = (utilization_function *)dlsym(library, "nvmlDeviceGetProcessUtilization");
	processes = (list_function *)dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3");
	if (!processes)
		processes = (list_function *)symbol("nvmlDeviceGetComputeRunningProcesses_v2");
	if (!processes || !CALL(nvmlInit_v2, (void)) || !CALL(nvmlDeviceGetCount_v2, (unsigned *), &count))
		return 0;
	for (unsigned i = 0; i < count; i++) {
		nvmlDevice_t device;
		if (CALL(nvmlDeviceGetHandleByIndex_v2, (unsigned, nvmlDevice_t *), i, &device) && !add_slices(device))
			add(device);
	}
	return 1;
}

// sample asks for what processes did since the last question. It returns how many samples there are, -1 if that is not to be had.
static int sample(struct gpu *g)
{
	struct timeval now;
	unsigned count = sizeof samples / sizeof *samples;
	if (!utilization)
		return -1;
	if (!g->seen_us) {
		gettimeofday(&now, NULL);
		g->seen_us = (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_usec - FIRST_US;
	}
	nvmlReturn_t result = utilization(g->device, samples, &count, g->seen_us);
	if (result == NVML_ERROR_NOT_FOUND) // of a time in which nothing ran
		return 0;
	if (result != NVML_SUCCESS)
		return -1;
	for (unsigned i = 0; i < count; i++) {
		if (samples[i].timeStamp > g->seen_us)
			g->seen_us = samples[i].timeStamp;
	}
	return (int)count;
}

static void tell_process(const struct gpu *g, const nvmlProcessInfo_t *p, int sampled)
{
	unsigned most = 0;
	printf("process %s %u ", g->uuid, p->pid);
	if (p->usedGpuMemory == NVML_VALUE_NOT_AVAILABLE)
		printf("- ");
	else
		printf("%llu ", p->usedGpuMemory);
	for (int i = 0; i < sampled; i++) {
		if (samples[i].pid == p->pid && samples[i].smUtil > most)
			most = samples[i].smUtil;
	}
	if (sampled < 0)
		printf("-\n");
	else
		printf("%u\n", most);
}

static void tell_gpu(struct gpu *g)
{
	unsigned count = MOST_PROCESSES;
	nvmlReturn_t result = processes(g->device, &count, list);
	printf("gpu %s\n", g->uuid);
	if (result != NVML_SUCCESS) {
		complain("nvmlDeviceGetComputeRunningProcesses", result);
		return;
	}
	int sampled = sample(g);
	for (unsigned i = 0; i < count && i < MOST_PROCESSES; i++)
		tell_process(g, &list[i], sampled);
}

void probe_processes(void)
{
	char byte;
	int opened = open_library();
	do {
		for (unsigned i = 0; opened && i < known; i++)
			tell_gpu(&gpus[i]);
		printf("ready\n");
		fflush(stdout);
	} while (opened && read(STDIN_FILENO, &byte, 1) > 0);
}
