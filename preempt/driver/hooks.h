// hooks.h - the border between the intercepted calls and the preemption core.
//
// exports/ owns the intercepted symbols and knows no policy; preempt/ owns the policy and knows no symbols. They meet in
// struct gp_hooks: preempt/ fills one in, shim/ hands it to gp_install_hooks() (exports/exports.h), and from then on the
// interceptors call it. Without hooks, and in a forked child, every interceptor passes straight through.
#ifndef GPREEMPT_HOOKS_H
#define GPREEMPT_HOOKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "preempt/driver/cuda.h"

// The newest driver all of whose functions that put work on streams are known here.
#define GP_NEWEST_DRIVER 13050

#define GP_CURRENT ((CUcontext)~0ul)         // the context that is current

enum gp_work {
	GP_KERNEL,
	GP_GRAPH,
	GP_COPY,
	GP_MEMSET,
	GP_RECORD, // of an event
	GP_AWAIT,  // the stream waits for an event
	GP_OTHER,
};

// One kernel launch, whatever function it came by.
struct gp_launch {
	CUfunction function; // CUfunction or CUkernel as the caller gave it
	uint32_t grid[3], block[3], shared_bytes;
	bool cooperative;    // all blocks must be resident at once
	uint32_t attribute_count;
	const struct gp_launch_attribute *attributes;
	void **parameters, **extra;
};

struct gp_context;

// One operation that the program puts on a stream.
struct gp_operation {
	// What it is: filled in by the interceptor.
	enum gp_work work;
	bool blocking;   // the call returns only when the work is done (cuMemcpyDtoH and the like)
	bool cpu;        // the work may wait for the CPU: a host function, a value
	bool joint;      // one of several kernels of one call: the driver launches them
	CUstream stream; // never NULL: legacy is GP_STREAM_LEGACY, a _ptsz default is GP_STREAM_PER_THREAD
	union {
		struct gp_launch launch; // GP_KERNEL. GP_OTHER: its function is that of the oldest launches, or NULL
		CUgraphExec graph;       // GP_GRAPH
		CUevent event;           // GP_RECORD, GP_AWAIT
		// GP_MEMSET and GP_COPY of memory that has addresses: rows of width elements. All 0 for calls of other forms.
		struct {
			CUdeviceptr to, from;
			size_t to_pitch, width, height;
			uint32_t value, element_bytes; // value: GP_MEMSET
			const void *copy_2d;           // instead of all these: a CUDA_MEMCPY2D (cuda.h)
		} memory;
	};
	// What begin finds out, once.
	bool captured;              // it goes into a graph, or might. The rest is unset then
	bool entered;               // the stream's context was made current until the end
	CUcontext handle;           // the current context; NULL: none
	struct gp_context *context; // what is known of it; NULL: nothing
	CUresult result;            // what the program is told, where begin returned false
	// What the core keeps from begin to end.
	bool follows;      // work before it may be unfinished
	bool loads;        // the call may wait for the whole context: it loads code
	uint32_t wakes;    // who is to be woken once the work is on its way
	uint64_t sequence; // on its stream
	void *domain, *passing, *logging, *twin; // preempt/blp
};

// Arguments of a kernel node of a graph.
struct gp_arguments {
	void **parameters, **extra;
	void *memory; // for the caller to free
};

// What a call waits for, or may wait for.
enum gp_wait {
	GP_WAIT_STREAM,
	GP_WAIT_EVENT,
	GP_WAIT_CONTEXT, // the whole context: allocations, module loads, graph instantiation
	GP_PIN,          // the same, and the call pins memory
	GP_ASK_STREAM,   // the call does not wait, but its success says that the work is done
	GP_ASK_EVENT,
	GP_TAKE,         // all work of a context (GP_CURRENT; NULL: of all), or what the work uses goes away
	GP_TAKE_MEMORY,  // the same for memory at an address: work of its GPU matters
	GP_LOAD,         // the whole context, if the code of a function or kernel is not loaded yet
};

static inline bool gp_waits_for_context(enum gp_wait kind)
{
	return kind != GP_WAIT_STREAM && kind != GP_WAIT_EVENT && kind != GP_ASK_STREAM && kind != GP_ASK_EVENT;
}

// What the program is about to destroy.
enum gp_thing { GP_CONTEXT, GP_STREAM, GP_GRAPH_INSTANCE, GP_EVENT };

// One load of code: cuModuleLoad*, cuLibraryLoad*.
struct gp_load {
	const void *image;
	const char *path; // instead of the image
	unsigned int options, library_options;
	const int *option, *library_option;
	void *const *value, *const *library_value;
	void *token; // scratch of the core between module_loading and module_loaded
};

// All of them are set.
struct gp_hooks {
	// Around the driver's function that puts an operation on a stream. begin decides, and may carry the operation out itself.
	// True: the driver's function is to be called with what the caller gave, and end with its result; end returns what the
	// program is told. False: it is over, and the operation's result is what the program is told.
	//
	// A pair, not one function that is handed the driver's: each driver function has parameters of its own, so that one would
	// need a thunk and a struct of arguments for every row of exports/table.h, and one more copy on the launch path.
	bool (*begin)(struct gp_operation *);
	CUresult (*end)(struct gp_operation *, CUresult);
	// The same around a call that waits, or asks whether work is done; after the first one the second one always follows. The
	// object is a stream, event, context, address or function, by the kind of wait. begin_wait: the driver's function is to be
	// called, else CUDA_SUCCESS is its result.
	bool (*begin_wait)(enum gp_wait, void *object);
	CUresult (*end_wait)(enum gp_wait, void *object, CUresult);
	// Life cycle. context_current: a context became usable on this thread (created, retained or made current); called
	// often, must be cheap. ending: before the driver destroys it.
	void (*context_current)(CUcontext);
	void (*ending)(enum gp_thing, void *handle);
	// Before a stream is made with a priority: true where it is to be made with another, which is stored
	// there; stream_created then says what the program asked for. stream_priority: the program asked the
	// driver for a stream's priority, and hears what the hook makes of the answer.
	bool (*stream_creating)(int *priority);
	void (*stream_created)(CUstream, int asked_priority);
	void (*stream_priority)(CUstream, int *priority);
	void (*graph_instantiated)(CUgraphExec, CUgraph); // after cuGraphInstantiate*
	void (*graph_changed)(CUgraphExec);               // before an instance is changed
	void (*event_shared)(CUevent);                    // after other processes may see it
	// After a successful ioctl with type 'F' (NV_IOCTL_MAGIC, nv-ioctl-numbers.h).
	void (*rm_ioctl)(int fd, unsigned long request, void *argument);
	// Before the driver begins to capture a stream, and after it ended, or did not begin; also after a stream was destroyed,
	// captured or not. In between the core must not ask the driver whether streams are done: the question would invalidate
	// the capture.
	void (*capture_beginning)(CUstream);
	void (*capture_ended)(CUstream);
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
	// Completes the arguments of a node's kernel. False: they are complete.
	bool (*complete)(CUfunction, struct gp_arguments *);
};

#endif
