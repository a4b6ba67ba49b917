// hooks.h - what the intercepted calls tell the preemption core, and nothing else.
//
// exports/ owns the intercepted symbols and knows no policy; preempt/ owns the policy and knows no
// symbols. They meet in struct gp_hooks: preempt/ fills one in, shim/ hands it to gp_install_hooks() (exports/exports.h),
// and from then on the interceptors call it. While gp_hooks is NULL, and in a forked child, every
// interceptor passes straight through.
#ifndef GPREEMPT_HOOKS_H
#define GPREEMPT_HOOKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "preempt/driver/cuda.h"

// The newest driver all of whose functions that put work on streams are known here.
#define GP_NEWEST_DRIVER 13050

#define GP_CURRENT ((CUcontext)~0ul)         // the context that is current

enum gp_work { GP_KERNEL, GP_GRAPH, GP_COPY, GP_MEMSET, GP_OTHER };

// One operation put on a stream.
struct gp_submission {
	enum gp_work work;
	bool blocking;    // the call returns only when the work is done (cuMemcpyDtoH and the like)
	bool cooperative; // all blocks must be resident at once
	bool cpu;         // may wait for the CPU: a host function, a value
	CUstream stream;  // never NULL: legacy is GP_STREAM_LEGACY, a _ptsz default is GP_STREAM_PER_THREAD
	CUfunction function;       // CUfunction or CUkernel as the caller gave it; with GP_OTHER, of the oldest launches
	uint32_t blocks[3], threads[3], shared_bytes; // GP_KERNEL
	CUgraphExec graph;         // GP_GRAPH
	// GP_MEMSET and GP_COPY of memory that has addresses: rows of width elements. All 0 where a call is of
	// another form. copy_2d, instead of them, is a CUDA_MEMCPY2D (cuda.h).
	struct {
		CUdeviceptr to, from;
		size_t to_pitch, width, height;
		uint32_t value, element_bytes; // value: GP_MEMSET
		const void *copy_2d;
	} memory;
	uint32_t wakes;
	uint64_t token, sequence;  // scratch of the core between before_submit and after_submit
	void *domain, *passing, *twin; // the same
	bool entered;              // the same
};

// One kernel launch, whatever function it came by.
struct gp_launch {
	CUfunction function; // CUfunction or CUkernel as the caller gave it
	uint32_t grid[3], block[3], shared_bytes;
	CUstream stream;     // as in struct gp_submission
	const struct gp_launch_attribute *attributes;
	uint32_t attribute_count;
	bool cooperative;
	bool captured;       // goes into a graph, or might: before_submit was not called
	void **parameters, **extra;
};

// Arguments of a kernel node of a graph.
struct gp_arguments {
	void **parameters, **extra;
	void *memory; // for the caller to free
};

// ASK: the call does not wait, but its success says that the work is done. TAKE: GP_WAIT_CONTEXT, and all work
// submitted before must be over before the call: it waits for just that, or takes away what the work uses.
// TAKE_MEMORY: TAKE of what lies at an address, of which the work of its GPU matters. LOAD: GP_WAIT_CONTEXT if the code
// of a function is not loaded yet.
enum gp_wait { GP_WAIT_STREAM, GP_WAIT_EVENT, GP_WAIT_CONTEXT, GP_ASK_STREAM, GP_ASK_EVENT, GP_TAKE, GP_TAKE_MEMORY, GP_LOAD };

static inline bool gp_waits_for_context(enum gp_wait kind)
{
	return kind == GP_WAIT_CONTEXT || kind == GP_TAKE || kind == GP_TAKE_MEMORY || kind == GP_LOAD;
}

// One load of code: cuModuleLoad*, cuLibraryLoad*.
struct gp_load {
	const void *image;
	const char *path; // instead of the image
	unsigned int options, library_options;
	const int *option, *library_option;
	void *const *value, *const *library_value;
	void *token; // scratch of the core between module_loading and module_loaded
};

struct gp_hooks {
	// Around each operation put on a stream. Not called for a stream that is being captured.
	void (*before_submit)(struct gp_submission *);
	void (*after_submit)(struct gp_submission *, CUresult);
	// An event was recorded on a stream (after the call succeeded, not in capture).
	void (*event_recorded)(CUevent, CUstream);
	// Around a call that blocks the CPU. GP_WAIT_CONTEXT: everything that waits, or may wait, for
	// the whole context: allocations, module loads, graph instantiation. GP_TAKE: a context, GP_CURRENT,
	// or NULL for all. GP_TAKE_MEMORY: an address. GP_LOAD: a function or kernel. before_wait returns true where
	// the wait is over with it: the driver's function is not to be called.
	bool (*before_wait)(enum gp_wait, void *stream_event_context_or_address);
	void (*after_wait)(enum gp_wait, void *stream_or_event, CUresult);
	// Life cycle. context_current: a context became usable on this thread (created, retained or
	// made current); called often, must be cheap. context_destroying: before the driver destroys it.
	void (*context_current)(CUcontext);
	void (*context_destroying)(CUcontext);
	void (*stream_destroying)(CUstream);
	// Before a stream is made with a priority: true where it is to be made with another, which is stored
	// there; stream_created then says what the program asked for. stream_priority: the program asked the
	// driver for a stream's priority, and hears what the hook makes of the answer.
	bool (*stream_creating)(int *priority);
	void (*stream_created)(CUstream, int asked_priority);
	void (*stream_priority)(CUstream, int *priority);
	// After cuGraphInstantiate* and before cuGraphExecDestroy.
	void (*graph_instantiated)(CUgraphExec, CUgraph);
	void (*graph_destroying)(CUgraphExec);
	// After a successful ioctl with type 'F' (NV_IOCTL_MAGIC, nv-ioctl-numbers.h).
	void (*rm_ioctl)(int fd, unsigned long request, void *argument);
	// Before the driver begins to capture a stream, and after it ended, or did not begin. In between
	// the core must not ask the driver about streams: the question would invalidate the capture.
	void (*capture_beginning)(CUstream);
	void (*capture_ended)(void);
	// Code. A module may be loaded from another image than the program gave: from what module_loading
	// returns, if not NULL; module_loaded tells then what came of it, NULL if nothing. It also tells of a module
	// that was loaded as it came: the token is NULL. module_function: a function of a module was asked for. A library may have
	// another one in its place, from its first use on: library_used returns it, or the library itself, and
	// library_of is the inverse.
	const void *(*module_loading)(struct gp_load *);
	void (*module_loaded)(struct gp_load *, CUmodule);
	void (*module_function)(CUmodule);
	void (*module_unloading)(CUmodule);
	void (*library_loaded)(const struct gp_load *, CUlibrary);
	CUlibrary (*library_used)(CUlibrary);
	CUlibrary (*library_of)(CUlibrary);
	void (*library_unloading)(CUlibrary);
	// A module of a library (as library_used returned it), or the function of a kernel, became known.
	void (*library_module)(CUlibrary, CUmodule);
	void (*kernel_function)(CUfunction kernel, CUfunction function);
	// Whether a parameter of a kernel, counted from 0, is none of the program's.
	bool (*parameter_hidden)(CUfunction function_or_kernel, size_t index);
	// Whether code is to be rewritten in this process; and why some of it cannot be.
	bool (*code_wanted)(void);
	void (*code_missed)(const char *reason);
	// The program asked for a function of the driver that is not known here, and may put work on streams, past all hooks.
	// Called before it has it, at most once.
	void (*unknown_function)(const char *name);
	// Pinned memory was made, as before copies (after the call succeeded, not during a capture).
	void (*pinned)(void);

	// The rest is NULL where no kernels are rewritten.

	// Carries a launch out, also a captured one, in place of the driver's function. False: it is to be
	// called with what the caller gave.
	bool (*launch)(struct gp_submission *, const struct gp_launch *, CUresult *);
	// The same for a graph, not captured; false: it is a barrier. An instance is about to be changed.
	bool (*launch_graph)(struct gp_submission *, CUresult *);
	void (*graph_changed)(CUgraphExec);
	// Between before_submit and the driver's call: the stream gets work that is no kernel.
	void (*before_barrier)(struct gp_submission *);
	// Carries out a GP_MEMSET or GP_COPY, in place of before_barrier and the driver's function. False: it could not.
	bool (*fill)(struct gp_submission *, CUresult *);
	// Around the driver's call that records an event on a stream, or makes a stream wait for one, between
	// before_submit and after_submit. True: it is carried out later, the driver's function must not be called,
	// and after_ must not either.
	bool (*before_record)(struct gp_submission *, CUevent);
	void (*after_record)(struct gp_submission *, CUevent, CUresult);
	bool (*before_stream_wait)(struct gp_submission *, CUevent);
	void (*after_stream_wait)(struct gp_submission *, CUevent, CUresult);
	// An event is recorded on a stream that is captured: who waits for it joins the capture.
	void (*event_captured)(CUevent);
	// What the caller of a wait or question is told, given what the driver answered; before after_wait.
	CUresult (*answer)(enum gp_wait, void *stream_or_event, CUresult);
	// Before an event is destroyed; after it became one that other processes see.
	void (*event_destroying)(CUevent);
	void (*event_shared)(CUevent);
	// Completes the arguments of a node's kernel. False: they are complete.
	bool (*complete)(CUfunction, struct gp_arguments *);
};

#endif
