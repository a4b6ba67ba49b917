// load.h - shared by load.c, modules.c and libraries.c: code as it is loaded, and what is loaded in its place.
#ifndef GPREEMPT_LOAD_H
#define GPREEMPT_LOAD_H

#include "code.h"
#include "core.h"

typedef struct CUlinkState_st *CUlinkState;

enum { CU_STREAM_CAPTURE_MODE_RELAXED = 2 }; // cuda.h

// Functions of the driver, NULL where it lacks them.
extern struct load_driver {
	CUresult (*cuDeviceGetCount)(int *);
	CUresult (*cuDriverGetVersion)(int *);
	CUresult (*cuLibraryLoadData)(CUlibrary *, const void *, const int *, void *const *, unsigned, const int *,
				      void *const *, unsigned);
	CUresult (*cuLibraryGetModule)(CUmodule *, CUlibrary);
	CUresult (*cuLibraryUnload)(CUlibrary);
	CUresult (*cuParamSetv)(CUfunction, int, void *, unsigned);
	CUresult (*cuParamSetSize)(CUfunction, unsigned);
	CUresult (*cuLinkCreate)(unsigned, const int *, void *const *, CUlinkState *);
	CUresult (*cuLinkAddData)(CUlinkState, int, const void *, size_t, const char *, unsigned, const int *, void *const *);
	CUresult (*cuLinkComplete)(CUlinkState, void **, size_t *);
	CUresult (*cuLinkDestroy)(CUlinkState);
} load_driver;

// Options of the just-in-time compiler, without what is written to: the program may have taken that back.
enum { GP_JIT_OPTIONS = 32 };
struct gp_jit {
	unsigned count;
	int option[GP_JIT_OPTIONS];
	void *value[GP_JIT_OPTIONS];
	char text[16 + GP_JIT_OPTIONS * 24]; // with the driver's version: what decides what its linker makes
};

// load.c
const char *gp_jit_copy(struct gp_jit *, unsigned count, const int *option, void *const *value); // why it can't be
int gp_current_capability(void); // of the current context's GPU; 0: there is none
int gp_common_capability(void);  // of all GPUs; 0: they differ
void gp_load_failed(const char *reason);
// A mapping, or NULL where the original is to be used.
const struct gp_rewritten *gp_rewrite(const void *image, size_t bytes, int sm, const struct gp_jit *);
const void *gp_rewritten_image(const struct gp_rewritten *);
void gp_rewritten_in_use(void); // before the first handle of rewritten code is known to anybody
void gp_rewritten_read(const struct gp_rewritten *); // the driver has a copy of the image
void gp_rewritten_unmap(const struct gp_rewritten *);

enum { GP_BUCKETS = 1024 };
static inline size_t gp_bucket(const void *handle) { return (uintptr_t)handle * 0x9E3779B97F4A7C15ull >> 54; } // 10 bits

// modules.c
void gp_module_hooks(struct gp_hooks *);
void gp_module_remember(CUmodule, const struct gp_rewritten *, bool of_library);
void gp_modules_drop(const struct gp_rewritten *); // those of a library

// libraries.c
void gp_library_hooks(struct gp_hooks *);
// What a module is of that is a library's and that nobody asked for as such; the name is that of a kernel in it.
const struct gp_rewritten *gp_library_of_module(CUmodule, const char *kernel);

#endif
