// nvtx.h - NVTX as its headers are in a program that uses them: nvtx3/nvtxDetail/nvtxInit.h.
#ifndef TEST_NVTX_H
#define TEST_NVTX_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

typedef int nvtx_initialize_fn(const void *(*)(uint32_t));

struct nvtx_attributes {
	uint16_t version, size;
	uint32_t rest[7];
	int32_t kind;
	const void *message;
};

// NULL: no tool wants to hear of it.
__attribute__((unused)) static int (*nvtx_push)(const char *);
__attribute__((unused)) static int (*nvtx_pop)(void);
__attribute__((unused)) static uint64_t (*nvtx_start)(const char *);
__attribute__((unused)) static void (*nvtx_end)(uint64_t);
__attribute__((unused)) static int (*nvtx_domain_push)(void *, const void *);
__attribute__((unused)) static int (*nvtx_domain_pop)(void *);
__attribute__((unused)) static void *(*nvtx_register)(void *, const char *);

static int nvtx_table(int module, void ****table, unsigned *size)
{
	static void **core[16], **core2[16];
	core[5] = (void **)&nvtx_start, core[7] = (void **)&nvtx_end;
	core[9] = (void **)&nvtx_push, core[11] = (void **)&nvtx_pop;
	core2[4] = (void **)&nvtx_domain_push, core2[5] = (void **)&nvtx_domain_pop;
	core2[10] = (void **)&nvtx_register;
	*table = module == 1 ? core : core2;
	*size = 16;
	return module == 1 || module == 5;
}

static const void *nvtx_export_table(uint32_t id)
{
	static const struct {
		size_t size;
		int (*get)(int, void ****, unsigned *);
	} callbacks = {16, nvtx_table};
	return id == 1 ? &callbacks : NULL;
}

// Loads the tool at the first call. False: there is none.
static bool nvtx_load(void)
{
	static bool loaded;
	if (!loaded) {
		const char *path = getenv("NVTX_INJECTION64_PATH");
		void *tool = path ? dlopen(path, RTLD_LAZY) : NULL;
		nvtx_initialize_fn *initialize =
			tool ? (nvtx_initialize_fn *)dlsym(tool, "InitializeInjectionNvtx2") : NULL;
		loaded = initialize && initialize(nvtx_export_table);
	}
	return loaded;
}

#endif
