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

#define GP_CURRENT ((CUcontext)~0ul) // the context that is current

enum gp_work {
	GP_KERNEL,
	GP_GRAPH,
	GP_COPY,
	GP_MEMSET,
	GP_RECORD, // of an event
	GP_AWAIT,  // the stream waits for an event
	GP_OTHER,
	GP_FRAME, // as GP_OTHER, and the call itself waits for a frame of another program
};

// One kernel launch, by any function of the driver.
struct gp_launch {
	CUfunction function; // CUfunction or CUkernel as the caller gave it
	uint32_t grid[3], block[3], shared_bytes;
	bool cooperative; // all blocks must be resident at once
	uint32_t attribute_count;
	const struct gp_launch_attribute *attributes;
	void **parameters, **extra;
	uint64_t unused; // 0. As large as the rest of gp_operation's union (GP_LAUNCH_ON)
};

struct gp_context;

// One operation that the program puts on a stream.
struct gp_operation {
	// What it is: filled in by the interceptor.
	enum gp_work work;
	bool blocking; // the call may wait for the work (cuMemcpyDtoH and the like); once it has returned: the work is done
	bool cpu;      // the work may wait for the CPU: a host function, a value
	size_t allocates; // bytes of device memory; 0: none, or not known
	bool joint;       // one of several kernels of one call: the driver launches them
	CUstream stream;  // never NULL: legacy is GP_STREAM_LEGACY, a _ptsz default is GP_STREAM_PER_THREAD
	union {
		struct gp_launch launch; // GP_KERNEL. GP_OTHER: its function is that of the oldest launches, or NULL
		CUgraphExec graph;       // GP_GRAPH
		struct {                 // GP_RECORD, GP_AWAIT
			CUevent event;
			CUcontext whole;        // on all streams of a context, or
			CUgreenCtx whole_green; // of a green context
		};
		// GP_MEMSET and GP_COPY of memory that has addresses: rows of width elements. All 0 for calls of other forms.
		struct {
			CUdeviceptr to, from;
			size_t to_pitch, width, height;
			uint32_t value, element_bytes; // value: of GP_MEMSET.
			const void *copy_2d;           // Instead of all these: a CUDA_MEMCPY2D (cuda.h).
			const void *copy_3d;           // Or a CUDA_MEMCPY3D of a call that may wait.
			const void *host;              // Or the source, in the host's memory, of a call that may wait.
			size_t to_host;                // Bytes copied to the host's memory; 0: none, or unknown.
		} memory;
	};
	// Facts that begin finds out, once.
	bool captured;              // The operation goes into a graph, or might; the rest is not set then.
	bool entered;               // The stream's context was made current, until the end.
	bool counted;               // The thread may use device memory until the end (preempt/memory).
	bool taken;                 // The driver has taken it, though begin carried it out.
	bool cancellable;           // The thread can be cancelled again behind the operation (preempt/blp/operation.c).
	CUcontext handle;           // The current context; NULL: there is none.
	struct gp_context *context; // Its place; NULL: it has none.
	CUresult result;            // The program's result, if begin returned false.
	// Facts that the core keeps from begin to end.
	bool follows;                            // There may be unfinished work ahead of it.
	bool loads;                              // The call may wait for the whole context: it loads code.
	uint16_t crossing;                       // Of preempt/blp: enum blp_side.
	uint32_t wakes;                          // The processes to wake once the work is on its way (gp_window_wake).
	struct gp_stream *place;                 // The place of its stream.
	uint64_t sequence;                       // Operations that the driver has taken on that stream, with this one.
	void *domain, *passing, *logging, *twin; // Of preempt/blp.
	uint64_t generation;                     // Number of that domain, where it is passing.
	uint64_t asked; // Where the process seems to be locked: the number of a question (process/membership.c); 0: it does not.
};
// A launch on a stream names all members with these two: gcc clears members that are not named. For a struct of this size it uses `rep stos`,
// which takes 15 ns, as long as all else here (TestLaunchesClearNothing).
#define GP_LAUNCH_ON(queue) \
	.work = GP_KERNEL, .blocking = false, .cpu = false, .allocates = 0, .joint = false, .stream = (queue)
// Members that the interceptor leaves to begin.
#define GP_NOTHING_FOUND \
	.captured = false, .entered = false, .counted = false, .handle = NULL, .context = NULL, \
	.result = CUDA_SUCCESS, .follows = false, .loads = false, .crossing = 0, .wakes = 0, .place = NULL, \
	.sequence = 0, .domain = NULL, .passing = NULL, .logging = NULL, .twin = NULL, .generation = 0, \
	.taken = false, .cancellable = false, .asked = 0

// The arguments of a kernel node of a graph.
struct gp_arguments {
	void **parameters, **extra;
	void *memory; // for the caller to free
};

// The object that a call waits for, or may wait for.
enum gp_wait {
	GP_WAIT_STREAM,
	GP_WAIT_EVENT,
	GP_WAIT_ALL,     // All work of a context (GP_CURRENT: the current one), for the program.
	GP_WAIT_CONTEXT, // The whole context: allocations, module loads, graph instantiation.
	GP_PIN,          // The same, and the call pins memory.
	GP_ASK_STREAM,   // The call does not wait, but its success says that the work is done.
	GP_ASK_EVENT,
	GP_TAKE, // All work of a context (GP_CURRENT; NULL: all contexts), for which it waits or whose resources it frees.
	GP_TAKE_MEMORY, // The same for all work of the GPU that the memory at an address belongs to.
	GP_LOAD,        // The whole context, if the code of a function or kernel is not loaded yet.
	GP_TAKE_ARRAY,  // GP_TAKE for all contexts; the driver waits for that of the array.
};

static inline bool gp_waits_for_context(enum gp_wait kind)
{
	return kind != GP_WAIT_STREAM && kind != GP_WAIT_EVENT && kind != GP_ASK_STREAM && kind != GP_ASK_EVENT;
}

struct gp_gpu;

// A call that the driver refused with CUDA_ERROR_OUT_OF_MEMORY, from its first refusal on. Zero before that.
struct gp_retry {
	uint64_t began_ns;
	struct gp_gpu *gpu; // On this GPU it has a claim:
	uint64_t claim;     // bytes that it has waited for. Others leave it these until it is over.
	uint64_t met;       // Part of the claim: the accounts of memory have it, and the driver is asked for it.
	uint64_t bytes;     // Of device memory that it asks for; 0: not known.
	uint32_t refused;   // Refusals although there was the room that it needs by our reckoning.
	uint32_t capped;    // How often in a row the driver refused it at a cap.
	bool at_cap;        // The driver refused it last for another reason than a lack of room.
	bool roomy;         // there was, when it was made last
	bool all;           // and that was all that there can be
};
#define GP_CURRENT_DEVICE (-1) // that of the current context

// Things that the program may destroy.
enum gp_thing { GP_CONTEXT, GP_STREAM, GP_GRAPH_INSTANCE, GP_EVENT };

// cuCheckpointProcessLock, Checkpoint, Restore and Unlock.
enum gp_checkpoint { GP_CHECKPOINT_LOCK, GP_CHECKPOINT_SAVE, GP_CHECKPOINT_RESTORE, GP_CHECKPOINT_UNLOCK };

// One load of code: cuModuleLoad*, cuLibraryLoad*.
struct gp_load {
	const void *image;
	const char *path; // instead of the image
	unsigned int options, library_options;
	const int *option, *library_option;
	void *const *value, *const *library_value;
	void *token; // scratch of the core between module_loading and module_loaded
};

// No hook is NULL.
struct gp_hooks {
	// Around the driver's function that puts an operation on a stream. begin may carry the operation out itself. If it returns true,
	// the interceptor calls the driver's function with the caller's arguments, and then end, which returns the program's result. If
	// it returns false, all is done, and operation->result is the program's result.
	//
	// This is a pair and not one function that gets the driver's function as an argument: every driver function has parameters
	// of its own. One function would need a thunk and a struct of arguments for each row of exports/table.h. It would copy the
	// arguments once more on the launch path.
	bool (*begin)(struct gp_operation *);
	CUresult (*end)(struct gp_operation *, CUresult);
	// The same around a call that waits or asks whether work is done. The kind of wait says what the object is: a stream, event,
	// context, address or function. If begin_wait returns false, the driver's function is not called: the wait is over, with
	// CUDA_SUCCESS. end_wait always follows, and returns the program's result.
	bool (*begin_wait)(enum gp_wait, void *object);
	CUresult (*end_wait)(enum gp_wait, void *object, CUresult);
	// A context became usable on this thread: it was created, retained or made current. Called often, so it must be cheap.
	void (*context_current)(CUcontext);
	void (*ending)(enum gp_thing, void *handle); // before the driver destroys it
	// After the driver was asked to destroy it. is: it was destroyed. It was not where the driver refused, or where a context still
	// has users (cuCtxDetach, a primary context): what was known before is known again.
	void (*ended)(enum gp_thing, void *handle, bool is);
	// stream_creating: before a stream is created. True: it gets the priority that is stored there, and stream_created tells what
	// the program asked for. stream_priority: the driver told the program a stream's priority, which the hook may change.
	bool (*stream_creating)(int *priority);
	void (*stream_created)(CUstream, int asked_priority);
	void (*stream_priority)(CUstream, int *priority);
	// A stream was made in the current context. NULL: one was that nothing is known of.
	void (*stream_made)(CUstream);
	bool (*graph_fits)(CUgraph); // Before cuGraphInstantiate*. False: the program is out of memory.
	void (*graph_instantiated)(CUgraphExec, CUgraph); // After cuGraphInstantiate*.
	void (*node_given)(CUfunction);                   // Before a node of a graph gets the kernel.
	void (*graph_changing)(CUgraphExec);              // Before an instance is changed, and behind node_given.
	void (*event_shared)(CUevent);                    // After other processes may see it.
	// After a successful ioctl with type 'F' (NV_IOCTL_MAGIC, nv-ioctl-numbers.h).
	void (*rm_ioctl)(int fd, unsigned long request, void *argument);
	// Before the driver begins to capture a stream; and after the capture ended, or could not begin. The end of a stream ends its capture,
	// too. In between, the core must not ask the driver whether streams are done: the query would invalidate the capture.
	void (*capture_beginning)(CUstream);
	void (*capture_ended)(CUstream);
	// Code. If module_loading returns an image, the interceptor loads the module from it instead of the program's. module_loaded then
	// gets the module, or NULL if the driver refused. Otherwise module_loaded gets the module that was loaded as given, with a NULL
	// token. module_function: the program looked up a function of a module. library_used: the program uses a library; the driver is
	// asked about the one that is returned, which may be another one. library_of is the inverse.
	const void *(*module_loading)(struct gp_load *);
	void (*module_loaded)(struct gp_load *, CUmodule);
	void (*module_function)(CUmodule);
	// unload: the program unloads it. True: the core does that, and has the result. Otherwise unloading comes before the driver's call.
	bool (*module_unload)(CUmodule, CUresult *);
	void (*module_unloading)(CUmodule);
	void (*library_loaded)(const struct gp_load *, CUlibrary);
	CUlibrary (*library_used)(CUlibrary);
	CUlibrary (*library_of)(CUlibrary);
	bool (*library_unload)(CUlibrary, CUresult *);
	void (*library_unloading)(CUlibrary);
	// A module of a library (as library_used returned it), or the function of a kernel, became known.
	void (*library_module)(CUlibrary, CUmodule);
	void (*kernel_function)(CUfunction kernel, CUfunction function);
	// Whether a parameter of a kernel, counted from 0, was added by the rewriting.
	bool (*parameter_hidden)(CUfunction function_or_kernel, size_t index);
	// Around a function of the driver's that loads code in the current context, or may.
	void (*code_loading)(bool begins);
	void (*clusters_changed)(void); // After the program set the size of a kernel's clusters.
	bool (*code_wanted)(void);      // Whether code is to be rewritten in this process.
	// The program looks up a function of the driver that is not intercepted and may put work on streams. Called before the
	// program gets it, at most once.
	void (*unknown_function)(const char *name);
	// Around a call that names device memory, but puts no work on a stream and does not wait for one. frame: an address in the
	// caller's frame.
	void (*memory_used)(const void *frame);
	void (*memory_done)(void);
	// The driver refused a call with CUDA_ERROR_OUT_OF_MEMORY. Waits for room on the device. True: the call is to be made again.
	bool (*refused_memory)(struct gp_retry *, CUdevice);
	void (*call_over)(struct gp_retry *); // which has waited for room
	// Around a call by which the program locks, checkpoints, restores or unlocks its own process.
	void (*checkpoint_begins)(enum gp_checkpoint);
	void (*checkpoint_ended)(enum gp_checkpoint, CUresult);
	// Completes the arguments of a kernel for a node of a graph, or of a launch on several devices. False: they are complete already.
	bool (*complete)(CUfunction, struct gp_arguments *);
};

#endif
