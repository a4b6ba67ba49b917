// rewrite.h - shared by the files of this folder: code of the program's loads, and the code in its place.
//
// Each file calls only those before it: request.c and handles.c, rewrite.c, modules.c, libraries.c, kernels.c.
#ifndef GPREEMPT_REWRITE_H
#define GPREEMPT_REWRITE_H

#include "preempt/code/code.h"
#include "preempt/code/request.h"
#include "preempt/process/process.h"

// Options of the just-in-time compiler, without what is written to: the program may have taken that back.
enum { GP_JIT_OPTIONS = 32 };
struct gp_jit {
	unsigned count;
	int option[GP_JIT_OPTIONS];
	void *value[GP_JIT_OPTIONS];
	char text[16 + GP_JIT_OPTIONS * 24]; // with the driver's version: all that decides the linker's result
};

// rewrite.c
const char *gp_jit_copy(struct gp_jit *, unsigned count, const int *option, void *const *value); // why it can't be
int gp_current_capability(void); // of the current context's GPU; 0: there is none
int gp_common_capability(void);  // of all GPUs; 0: they differ
// Rewrites the code that a request names: an image, a file, or a part of one that was picked before, for a GPU. Unmaps the picked part.
// Returns a mapping, or NULL where the original is to be used.
const struct gp_rewritten *gp_rewrite(struct gp_request *, const struct gp_jit *);
// A rewritten kernel by its name; NULL: the image has none of that name.
const struct gp_rewritten_kernel *gp_rewritten_find(const struct gp_rewritten *, const char *kernel);
const void *gp_rewritten_image(const struct gp_rewritten *);
void gp_rewritten_in_use(void);                      // before the first handle of rewritten code is known to anybody
void gp_rewritten_read(const struct gp_rewritten *); // the driver has a copy of the image
void gp_rewritten_unmap(const struct gp_rewritten *);
void gp_rewritten_uncount(const struct gp_rewritten *); // it is rewritten again, and counts then

enum { GP_BUCKETS = 1024 };
static inline size_t gp_bucket(const void *handle)
{
	return (uintptr_t)handle * 0x9E3779B97F4A7C15ull >> 54;
} // 10 bits

// modules.c
void gp_module_remember(CUmodule, const struct gp_rewritten *, bool of_library);
void gp_modules_drop(const struct gp_rewritten *);        // those of a library
const struct gp_rewritten *gp_rewritten_module(CUmodule); // NULL: it is not known, or was loaded as it came

// libraries.c
const struct gp_rewritten *gp_rewritten_library(CUlibrary); // NULL: it is not one that takes another's place
// The rewritten image behind a library's implicit module, which the program has not asked for yet; the name is that of a kernel in it.
const struct gp_rewritten *gp_library_of_module(CUmodule, const char *kernel);

#endif
