// code.h - code that was rewritten as it was loaded: which kernels have a guard, and where their hidden
// parameter is (block-level preemption, BLP).
#ifndef GPREEMPT_CODE_H
#define GPREEMPT_CODE_H

#include "preempt/driver/hooks.h"

// The parameters of a guarded kernel. Never freed or changed: kernels with the same parameters share one.
struct gp_code {
	bool guarded;
	bool whole;          // its launches are not parted: see gp_code_keep_whole
	uint16_t parameters; // without the hidden one
	uint32_t hidden;     // offset of the hidden parameter in the parameter buffer
	uint32_t bytes;      // of the parameter buffer: hidden + 8
	struct { uint16_t offset, size; } parameter[];
};

// gp_code_of says what is known of a CUfunction or CUkernel as it is launched; NULL: it has no guard, and is launched
// as it came. Lock-free once it is known; the first call for a handle asks the driver.
const struct gp_code *gp_code_of(CUfunction);

// Changes as handles become unknown.
extern _Atomic uint32_t gp_code_generation;

// gp_code_forget makes all handles unknown again. Called before any of them ends.
void gp_code_forget(void);

// gp_code_keep_whole makes gp_code_of say from now on that launches of the kernel are to be stopped as a whole: its blocks
// wait for later ones.
void gp_code_keep_whole(CUfunction);

// gp_code_let_pass sets the hidden parameter of a function to be launched by cuLaunch, cuLaunchGrid and
// cuLaunchGridAsync, whose parameters are set beforehand, so that every block passes.
void gp_code_let_pass(CUfunction);

// Whether code that is loaded in this process is to be rewritten.
enum { GP_BLP_OFF, GP_BLP_ON, GP_BLP_UNDER_MPS };
void gp_blp_set(uint32_t when);
bool gp_blp_wanted(void);
bool gp_blp_unwant(void); // from here on none is; false: none was

// What became of an image, as it stands in the cache on disk (patch/cache writes and checks it). Offsets count from
// the start, texts end with a 0.
struct gp_rewritten {
	char magic[8];
	uint32_t checksum, kernels;
	uint64_t bytes; // of all this
	uint64_t image, image_bytes; // 0 bytes: nothing has a guard, the original is to be used
	uint8_t key[32];
	struct gp_rewritten_kernel { // by name
		uint32_t name;
		uint32_t reason;     // why it has no guard; 0: it has one
		uint32_t layout;     // offset of u16 {offset, size} for each parameter
		uint16_t parameters; // without the hidden one
		uint16_t hidden;
		uint16_t refusal; // enum gp_refusal, where there is a reason
		uint16_t pad;
	} kernel[];
};

// rewrite.c, modules.c, libraries.c
extern _Atomic uint32_t gp_rewritten; // images in use, ever
void gp_code_start(_Atomic uint32_t *armed); // before code is loaded

// Hooks (preempt/driver/hooks.h).
const void *gp_module_loading(struct gp_load *);
void gp_module_loaded(struct gp_load *, CUmodule);
void gp_module_function(CUmodule);
void gp_module_unloading(CUmodule);
void gp_library_loaded(const struct gp_load *, CUlibrary);
CUlibrary gp_library_used(CUlibrary);
CUlibrary gp_library_of(CUlibrary);
void gp_library_unloading(CUlibrary);
void gp_library_module(CUlibrary, CUmodule);
void gp_kernel_function(CUfunction kernel, CUfunction function);
bool gp_code_parameter_hidden(CUfunction, size_t index);
void gp_load_failed(const char *reason); // code is not rewritten

void gp_code_context_destroying(CUcontext);
// What was loaded as a module or library; NULL if not by us, or as it came. The name is that of a kernel in it.
const struct gp_rewritten *gp_rewritten_module(CUmodule, const char *kernel);
const struct gp_rewritten *gp_rewritten_library(CUlibrary);
const struct gp_rewritten_kernel *gp_rewritten_find(const struct gp_rewritten *, const char *kernel);

// What loads ask of the rewriter, which is Go, and runs on threads of its own: no thread of the program is to
// become one of Go's.
struct gp_request {
	enum { GP_REQUEST_COPY, GP_REQUEST_REWRITE } what;
	const void *image;    // cubin, fatbin, its wrapper, or PTX
	uint64_t image_bytes; // 0: unknown
	const char *path;     // COPY: of a file, instead of the image
	uint32_t sm;
	const char *options; // what else decides what the driver's linker makes of PTX
	bool linked;         // image is what it made; key is what stood in the answer LINK
	uint8_t key[32];

	enum { GP_ANSWER_FAILED, GP_ANSWER_DONE, GP_ANSWER_LINK } answer;
	void *memory; // DONE: mapped, for the caller to unmap. LINK: what to compile
	uint64_t bytes;
	bool fatbin; // LINK: not text
	bool cached; // DONE: from the cache
	char reason[128]; // FAILED

	_Atomic uint32_t answered;
	struct gp_request *next;
};
// request.c
void gp_request(struct gp_request *);             // returns when it is answered
struct gp_request *gp_request_next(void);         // waits for one
void gp_request_answer(struct gp_request *, int answer);

#endif
