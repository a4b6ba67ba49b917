// green.c - green contexts: a part of the SMs for the streams of one, which share the memory and the kernels of the primary context.
#include "probe.h"

enum { DEFAULT_STREAM = 1 }; // CU_GREEN_CTX_DEFAULT_STREAM

// Asks for a step, or returns why it cannot be done.
#define STEP(name, ...) \
	do { \
		if (!cu.name) \
			return "not here: " #name; \
		CUresult result_ = cu.name(__VA_ARGS__); \
		if (result_ != CUDA_SUCCESS) \
			return text("%s: %s", #name, error_name(result_)); \
	} while (0)

const char *green_most(unsigned sms, unsigned *groups)
{
	struct resource all;
	STEP(cuDeviceGetDevResource, device, &all, RESOURCE_SM);
	STEP(cuDevSmResourceSplitByCount, NULL, groups, &all, NULL, 0, sms);
	return NULL;
}

const char *green_split(unsigned sms, unsigned groups, struct resource *group)
{
	struct resource all;
	unsigned made = groups;
	STEP(cuDeviceGetDevResource, device, &all, RESOURCE_SM);
	STEP(cuDevSmResourceSplitByCount, group, &made, &all, NULL, 0, sms);
	return made == groups ? NULL : text("%u groups instead of %u", made, groups);
}

const char *green_whole(struct resource *all)
{
	STEP(cuDeviceGetDevResource, device, all, RESOURCE_SM);
	return NULL;
}

const char *green_make(struct green *g, const struct resource *group, int priority)
{
	resource_set set;
	struct resource own = *group;
	STEP(cuDevResourceGenerateDesc, &set, &own, 1);
	STEP(cuGreenCtxCreate, &g->context, set, device, DEFAULT_STREAM);
	STEP(cuGreenCtxStreamCreate, &g->stream, g->context, CU_STREAM_NON_BLOCKING, priority);
	g->sms = group->sms;
	return NULL;
}
