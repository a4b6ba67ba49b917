// code.h - code that loads rewrite (block-level preemption, BLP): which kernels have a guard, and where their hidden parameter is.
#ifndef GPREEMPT_CODE_H
#define GPREEMPT_CODE_H

#include "preempt/driver/hooks.h"

// The parameters of a guarded kernel. Never freed or changed: kernels with the same parameters share one.
struct gp_code {
	bool guarded;
	bool whole;          // Its launches are not parted: see gp_code_keep_whole.
	bool independent;    // Its blocks do not wait for each other, as far as its code tells (patch.Kernel).
	uint16_t parameters; // How many, without the hidden one.
	uint32_t hidden;     // Offset of the hidden parameter in the parameter buffer.
	uint32_t bytes;      // Length of the parameter buffer: hidden + 8.
	struct { uint16_t offset, size; } parameter[];
};

// gp_code_of returns the guarded form of a CUfunction or CUkernel that is to be launched; NULL: it has no guard, and is launched as it
// came. Lock-free once the handle is known; the first call for one asks the driver.
const struct gp_code *gp_code_of(CUfunction);

// Whether the code of a CUfunction or CUkernel is known to be loaded in a context, which is one bit. Lock-free. gp_code_load loads it into
// the current one, where the driver may wait for all of that; false: it refused. loading is called before and after. gp_code_learn_loaded
// asks the driver about a CUfunction in the current one, without such a wait.
bool gp_code_is_loaded(CUfunction, uint64_t context);
bool gp_code_load(CUfunction, uint64_t context);
bool gp_code_learn_loaded(CUfunction, uint64_t context);
// Around functions of the driver's that load code in the current context, where the core calls them itself.
extern void (*gp_code_loading)(bool begins);

// Changes as handles become unknown.
extern _Atomic uint32_t gp_code_generation;

// gp_code_forget makes all handles unknown again. Called before any of them ends.
void gp_code_forget(void);

// gp_code_keep_whole makes gp_code_of say from now on that launches of the kernel are to be stopped as a whole: its blocks
// wait for later ones.
void gp_code_keep_whole(CUfunction);

// gp_code_let_pass sets the hidden parameter of a function so that every block passes. It is for cuLaunch, cuLaunchGrid and
// cuLaunchGridAsync, whose parameters are set beforehand.
void gp_code_let_pass(CUfunction);

// Whether code that is loaded in this process is to be rewritten.
enum { GP_BLP_OFF, GP_BLP_ON, GP_BLP_UNDER_MPS };
void gp_blp_set(uint32_t when);
bool gp_blp_wanted(void);
bool gp_blp_unwant(void); // from here on none is; false: none was

void gp_code_start(_Atomic uint32_t *armed); // before code is loaded; armed: see gp_rewritten_in_use
extern _Atomic uint32_t gp_images_rewritten; // rewritten images in use, ever

// Hooks (preempt/driver/hooks.h), and what they are made of.
const void *gp_module_loading(struct gp_load *);
void gp_module_loaded(struct gp_load *, CUmodule);
void gp_module_put_off(struct gp_load *); // instead: no module was loaded, and the caller will ask again
void gp_module_function(CUmodule);
void gp_module_unloading(CUmodule);
// A module that the program loaded into the context. gp_module_take forgets it before it is unloaded; false: it is not known, or another
// thread has taken it.
bool gp_module_is_known(CUmodule, CUcontext);
bool gp_module_take(CUmodule, CUcontext);
void gp_library_loaded(const struct gp_load *, CUlibrary);
CUlibrary gp_library_used(CUlibrary);
CUlibrary gp_library_of(CUlibrary);
void gp_library_unloading(CUlibrary);
// The same for a library. Its substitute is to be unloaded first.
struct gp_substitute {
	CUlibrary library; // NULL: there is none
	const struct gp_rewritten *image;
};
bool gp_library_is_known(CUlibrary);
bool gp_library_take(CUlibrary, struct gp_substitute *);
void gp_substitute_unload(const struct gp_substitute *);
void gp_library_module(CUlibrary, CUmodule);
void gp_kernel_function(CUfunction kernel, CUfunction function);
bool gp_code_parameter_hidden(CUfunction, size_t index);
void gp_load_failed(const char *reason); // code is not rewritten

void gp_code_context_destroying(CUcontext);

#endif
