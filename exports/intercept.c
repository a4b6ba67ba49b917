// intercept.c - the exported driver functions, expanded from table.h.
//
// While gp_armed is zero, work and waits cost one load and a branch more than without the library. The rest is out of line.
#include "exports/layer.h"
#include "preempt/driver/cancel.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Where the library takes part, a call that began to end something is not left by pthread_cancel: that would never have ended.
enum { UNCHANGED = -1 };
static int cancel_off(void) { return gp_current_hooks() ? gp_cancel_off() : UNCHANGED; }
static void cancel_on(int before)
{
	if (before != UNCHANGED)
		gp_cancel_on(before);
}

static inline bool armed(void) { return atomic_load_explicit(&gp_armed, memory_order_relaxed) != 0; }

#define DEFAULT_STREAM(stream) __attribute__((unused)) const CUstream default_stream = stream
#define STREAM(handle) ((CUstream)(handle) ? (CUstream)(handle) : default_stream)
#define ADDRESS(of) ((void *)(uintptr_t)(of))

#define ROW(kind, ...) ROW_##kind(__VA_ARGS__)
#define CALLED(name, params)
#define ROW_OWN(...)

// The exported function. While the core wants to hear of work, it calls armed_NAME.
#define ENTRY(name, params, args) \
	CUresult name params \
	{ \
		if (likely(!armed())) \
			return REAL(name) args; \
		return armed_##name args; \
	}

#define ROW_SUBMIT(name, null, params, args, ...) \
	static OUTLINED CUresult armed_##name params \
	{ \
		const struct gp_hooks *hooks = gp_current_hooks(); \
		DEFAULT_STREAM(null); \
		if (!hooks) \
			return REAL(name) args; \
		return WITH_ROOM(hooks, GP_CURRENT_DEVICE, ({ \
					 struct gp_operation operation = {__VA_ARGS__, GP_NOTHING_FOUND}; \
					 retry_.bytes = operation.allocates; \
					 hooks->begin(&operation) ? hooks->end(&operation, REAL(name) args) : \
								    operation.result; \
				 })); \
	} \
	ENTRY(name, params, args)

#define ROW_WAIT(name, null, params, args, kind, object) \
	static OUTLINED CUresult armed_##name params \
	{ \
		const struct gp_hooks *hooks = gp_current_hooks(); \
		DEFAULT_STREAM(null); \
		if (!hooks) \
			return REAL(name) args; \
		/* what a call that pins lacks is host memory */ \
		return WITH_ROOM((kind) == GP_PIN ? NULL : hooks, GP_CURRENT_DEVICE, \
				 hooks->end_wait(kind, object, \
						 hooks->begin_wait(kind, object) ? REAL(name) args : CUDA_SUCCESS)); \
	} \
	ENTRY(name, params, args)

#define ROW_PASS(name, null, params, args, ...) \
	CUresult name params { return REAL(name) args; }

// A call that may look what is at addresses of device memory, made while there is something.
#define USING_MEMORY(call) \
	({ \
		const struct gp_hooks *using_ = gp_current_hooks(); \
		if (using_) \
			using_->memory_used(__builtin_frame_address(0)); \
		CUresult used_ = call; \
		if (using_) \
			using_->memory_done(); \
		used_; \
	})

#define ROW_USE(name, null, params, args, ...) \
	CUresult name params { return USING_MEMORY(REAL(name) args); }

#define ROW_EVENT_DESTROY(name, null, params, args, event) \
	CUresult name params \
	{ \
		const struct gp_hooks *hooks = gp_current_hooks(); \
		int cancel = cancel_off(); \
		if (hooks) \
			hooks->ending(GP_EVENT, event); \
		CUresult result = REAL(name) args; \
		if (hooks) \
			hooks->ended(GP_EVENT, event, result == CUDA_SUCCESS); \
		cancel_on(cancel); \
		return result; \
	}

#define ROW_EVENT_SHARED(name, null, params, args, event) \
	CUresult name params \
	{ \
		struct gp_call call = gp_call_begin(GP_WAIT_CONTEXT, NULL); \
		CUresult result = gp_call_end(call, REAL(name) args); \
		if (call.hooks && result == CUDA_SUCCESS) \
			call.hooks->event_shared(event); \
		return result; \
	}

// Kernel nodes of graphs.

// The driver gets this instead of the caller's parameters.
struct completed {
	union {
		struct gp_kernel_node kernel;
		struct gp_graph_node node;
	} copy;
	void *memory;
};

static bool completes(struct gp_kernel_node *node, CUfunction function, void **memory)
{
	const struct gp_hooks *hooks = gp_current_hooks();
	struct gp_arguments arguments = {.parameters = node->parameters, .extra = node->extra};
	if (!hooks || !function)
		return false;
	hooks->node_given(function);
	if (!hooks->complete(function, &arguments))
		return false;
	node->parameters = arguments.parameters;
	node->extra = arguments.extra;
	*memory = arguments.memory;
	return true;
}

static bool complete_v1(struct completed *c, const void *given)
{
	memcpy(&c->copy.kernel, given, offsetof(struct gp_kernel_node, kernel));
	return completes(&c->copy.kernel, c->copy.kernel.function, &c->memory);
}

static bool complete_v2(struct completed *c, const void *given)
{
	struct gp_kernel_node *k = &c->copy.kernel;
	*k = *(const struct gp_kernel_node *)given;
	return completes(k, k->function ? k->function : k->kernel, &c->memory);
}

static bool complete_any(struct completed *c, const void *given)
{
	c->copy.node = *(const struct gp_graph_node *)given;
	struct gp_kernel_node *k = &c->copy.node.of.kernel;
	return c->copy.node.type == CU_GRAPH_NODE_TYPE_KERNEL &&
	       completes(k, k->function ? k->function : k->kernel, &c->memory);
}

#define ROW_NODE(name, null, params, args, complete, instance) \
	CUresult name params \
	{ \
		struct completed completed = {.memory = NULL}; \
		const struct gp_hooks *hooks = gp_current_hooks(); \
		if (hooks && nodeParams && complete(&completed, nodeParams)) \
			nodeParams = &completed.copy; \
		if (hooks && (instance)) \
			hooks->graph_changing(instance); \
		CUresult result = USING_MEMORY(REAL(name) args); \
		free(completed.memory); \
		return result; \
	}

// The two functions below fill in the other answers of an instantiation that this library refuses.
static void refuse_instantiation(struct gp_instantiation *p)
{
	if (p) {
		p->error_node = NULL;
		p->result = CUDA_GRAPH_INSTANTIATE_ERROR;
	}
}

static void say_nothing(void **error_node, char *log, size_t bytes)
{
	if (error_node)
		*error_node = NULL;
	if (log && bytes)
		*log = 0;
}

#define ROW_INSTANTIATE(name, null, params, args, instance, graph, refuse) \
	CUresult name params \
	{ \
		struct gp_call call = gp_call_begin(GP_WAIT_CONTEXT, NULL); \
		if (call.hooks && !call.hooks->graph_fits(graph)) { \
			refuse; \
			return gp_call_end(call, CUDA_ERROR_OUT_OF_MEMORY); \
		} \
		CUresult result = \
			gp_call_end(call, USING_MEMORY(WITH_ROOM(call.hooks, GP_CURRENT_DEVICE, REAL(name) args))); \
		if (call.hooks && result == CUDA_SUCCESS && instance) \
			call.hooks->graph_instantiated(*instance, graph); \
		return result; \
	}

#define ROW_CHANGE(name, null, params, args, instance) \
	CUresult name params \
	{ \
		struct gp_call call = gp_call_begin(GP_WAIT_CONTEXT, NULL); \
		if (call.hooks) \
			call.hooks->graph_changing(instance); \
		return gp_call_end(call, USING_MEMORY(WITH_ROOM(call.hooks, GP_CURRENT_DEVICE, REAL(name) args))); \
	}

// Of a context that was detached: it has other users. Otherwise the driver has taken it from the thread.
static bool is_current(const void *context)
{
	CUcontext current = NULL;
	return REAL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current == context;
}

#define ROW_DESTROY(name, null, params, args, thing, handle) \
	CUresult name params \
	{ \
		int cancel = cancel_off(); \
		struct gp_call call = gp_call_begin(GP_WAIT_CONTEXT, NULL); \
		if (call.hooks) \
			call.hooks->ending(thing, handle); \
		CUresult result = gp_call_end(call, REAL(name) args); \
		if (call.hooks) \
			call.hooks->ended(thing, handle, \
					  result == CUDA_SUCCESS && \
						  !(ROW_OF_##name == ROW_OF_cuCtxDetach && is_current(handle))); \
		cancel_on(cancel); \
		return result; \
	}

#define ROW_CHECKPOINT(name, null, params, args, of, step) \
	CUresult name params \
	{ \
		const struct gp_hooks *hooks = gp_current_hooks(); \
		int cancel = 0; /* a thread that ended in the call would leave the process leaving for ever */ \
		if (hooks && (of) != getpid()) \
			hooks = NULL; \
		if (hooks) { \
			cancel = gp_cancel_off(); \
			hooks->checkpoint_begins(step); \
		} \
		CUresult result = REAL(name) args; \
		if (hooks) { \
			hooks->checkpoint_ended(step, result); \
			gp_cancel_on(cancel); \
		} \
		return result; \
	}

#define ROW_CAPTURE_BEGIN(name, null, params, args, on) \
	CUresult name params \
	{ \
		DEFAULT_STREAM(null); \
		const struct gp_hooks *hooks = gp_current_hooks(); \
		if (hooks) \
			hooks->capture_beginning(on); \
		CUresult result = REAL(name) args; \
		if (hooks && result != CUDA_SUCCESS) \
			hooks->capture_ended(on); \
		return result; \
	}

// Some errors end a capture too, so this asks the driver. The legacy stream is never captured, and a query of it is forbidden.
static bool is_captured(CUstream stream)
{
	int status = CU_STREAM_CAPTURE_STATUS_NONE;
	return stream == GP_STREAM_LEGACY || REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS ||
	       status != CU_STREAM_CAPTURE_STATUS_NONE;
}

#define ROW_CAPTURE_END(name, null, params, args, on) \
	CUresult name params \
	{ \
		DEFAULT_STREAM(null); \
		CUresult result = REAL(name) args; \
		const struct gp_hooks *hooks = gp_current_hooks(); \
		if (hooks && (result == CUDA_SUCCESS || !is_captured(on))) \
			hooks->capture_ended(on); \
		return result; \
	}

// The driver counts how often a primary context was retained, and ends it with the last release, which names only the device.
// The context and the count are kept here too, so that the core hears of its end.

enum { MAX_DEVICES = 64 };

static struct {
	_Atomic(CUcontext) context;
	_Atomic int retained;
} primary[MAX_DEVICES];

static bool known_device(CUdevice device) { return device >= 0 && device < MAX_DEVICES; }

// A primary context takes its memory when it is first made current.
static CUdevice device_of(CUcontext context)
{
	for (CUdevice i = 0; context && i < MAX_DEVICES; i++)
		if (atomic_load(&primary[i].context) == context)
			return i;
	return GP_CURRENT_DEVICE;
}

#define ROW_CONTEXT(name, null, params, args, context, device) \
	CUresult name params \
	{ \
		gp_start(); \
		const struct gp_hooks *hooks = gp_current_hooks(); \
		CUresult result = WITH_ROOM(hooks, device, REAL(name) args); \
		if (hooks && result == CUDA_SUCCESS && (context)) \
			hooks->context_current(context); \
		return result; \
	}

#define ROW_STREAM_CREATE(name, null, params, args, stream, flags, asked) \
	CUresult name params \
	{ \
		int given = asked; \
		struct gp_call call = gp_call_begin(GP_WAIT_CONTEXT, NULL); \
		bool other = call.hooks && call.hooks->stream_creating(&given); \
		CUresult result = \
			gp_call_end(call, WITH_ROOM(call.hooks, GP_CURRENT_DEVICE, \
						    other ? REAL(cuStreamCreateWithPriority)(stream, flags, given) : \
							    REAL(name) args)); \
		if (result == CUDA_SUCCESS && (stream)) \
			gp_note_stream(*(stream)); \
		if (other && result == CUDA_SUCCESS && (stream)) \
			call.hooks->stream_created(*(stream), asked); \
		return result; \
	}

#include "exports/table.h"

// The context that the driver has for it ends with it.
CUresult cuGreenCtxDestroy(void *green)
{
	CUcontext context = NULL;
	int cancel = cancel_off();
	const struct gp_hooks *hooks = gp_current_hooks();
	bool known = hooks && REAL(cuCtxFromGreenCtx)(&context, green) == CUDA_SUCCESS && context;
	if (known)
		hooks->ending(GP_CONTEXT, context);
	struct gp_call call = gp_call_begin(GP_TAKE, NULL);
	CUresult result = gp_call_end(call, REAL(cuGreenCtxDestroy)(green));
	if (known)
		hooks->ended(GP_CONTEXT, context, result == CUDA_SUCCESS);
	cancel_on(cancel);
	return result;
}

CUresult cuGreenCtxStreamCreate(CUstream *stream, void *context, unsigned int flags, int priority)
{
	struct gp_call call = gp_call_begin(GP_WAIT_CONTEXT, NULL);
	CUresult result = gp_call_end(call, WITH_ROOM(call.hooks, GP_CURRENT_DEVICE,
						      REAL(cuGreenCtxStreamCreate)(stream, context, flags, priority)));
	gp_note_stream(NULL); // its context is not the current one
	return result;
}

CUresult cuInit(unsigned int flags)
{
	gp_start();
	return REAL(cuInit)(flags);
}

// cuLaunchKernelEx.

static bool is_cooperative(const struct gp_launch_config *config)
{
	if (config->attribute_count > GP_LAUNCH_ATTRIBUTES)
		return false;
	for (unsigned int i = 0; config->attributes && i < config->attribute_count; i++)
		if (config->attributes[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
			return config->attributes[i].value.cooperative != 0;
	return false;
}

static CUresult launch_ex(const struct gp_hooks *hooks, typeof(&cuLaunchKernelEx) real, CUstream default_stream,
			  const struct gp_launch_config *config, CUfunction f, void **params, void **extra)
{
	struct gp_operation operation = {
		GP_LAUNCH_ON(STREAM(config->stream)),
		.launch =
			{
				.function = f,
				.grid = {config->grid[0], config->grid[1], config->grid[2]},
				.block = {config->block[0], config->block[1], config->block[2]},
				.shared_bytes = config->shared_bytes,
				.cooperative = is_cooperative(config),
				.attributes = config->attributes,
				.attribute_count = config->attributes ? config->attribute_count : 0,
				.parameters = params,
				.extra = extra,
				.unused = 0,
			},
		GP_NOTHING_FOUND,
	};
	return hooks->begin(&operation) ? hooks->end(&operation, real(config, f, params, extra)) : operation.result;
}

static OUTLINED CUresult armed_launch_ex(typeof(&cuLaunchKernelEx) real, CUstream default_stream,
					 const struct gp_launch_config *config, CUfunction f, void **params, void **extra)
{
	const struct gp_hooks *hooks = gp_current_hooks();
	if (!hooks || !config)
		return real(config, f, params, extra);
	return WITH_ROOM(hooks, GP_CURRENT_DEVICE, launch_ex(hooks, real, default_stream, config, f, params, extra));
}

CUresult cuLaunchKernelEx(const void *config, CUfunction f, void **params, void **extra)
{
	if (likely(!armed()))
		return REAL(cuLaunchKernelEx)(config, f, params, extra);
	return armed_launch_ex(REAL(cuLaunchKernelEx), GP_STREAM_LEGACY, config, f, params, extra);
}

CUresult cuLaunchKernelEx_ptsz(const void *config, CUfunction f, void **params, void **extra)
{
	if (likely(!armed()))
		return REAL(cuLaunchKernelEx_ptsz)(config, f, params, extra);
	return armed_launch_ex(REAL(cuLaunchKernelEx_ptsz), GP_STREAM_PER_THREAD, config, f, params, extra);
}

// One launch on several devices: an operation for each.

static COLD CUresult armed_multi_device(struct gp_launch_params *list, unsigned int count, unsigned int flags)
{
	DEFAULT_STREAM(GP_STREAM_LEGACY);
	const struct gp_hooks *hooks = gp_current_hooks();
	if (!hooks || !list || count > MAX_DEVICES)
		return REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
	struct gp_operation operations[MAX_DEVICES];
	struct gp_launch_params complete[MAX_DEVICES];
	void *memory[MAX_DEVICES] = {NULL};
	for (unsigned int i = 0; i < count; i++) {
		const struct gp_launch_params *p = &list[i];
		operations[i] = (struct gp_operation){
			.work = GP_KERNEL,
			.joint = true,
			.stream = STREAM(p->stream),
			.launch =
				{
					.function = p->function,
					.grid = {p->grid[0], p->grid[1], p->grid[2]},
					.block = {p->block[0], p->block[1], p->block[2]},
					.shared_bytes = p->shared_bytes,
					.cooperative = true,
					.parameters = p->parameters,
				},
		};
		hooks->begin(&operations[i]);
		struct gp_arguments arguments = {.parameters = p->parameters};
		complete[i] = *p;
		if (hooks->complete(p->function, &arguments)) {
			complete[i].parameters = arguments.parameters;
			memory[i] = arguments.memory;
		}
	}
	CUresult result = REAL(cuLaunchCooperativeKernelMultiDevice)(complete, count, flags);
	for (unsigned int i = 0; i < count; i++) {
		free(memory[i]);
		hooks->end(&operations[i], result);
	}
	return result;
}

CUresult cuLaunchCooperativeKernelMultiDevice(void *list, unsigned int count, unsigned int flags)
{
	if (likely(!armed()))
		return REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
	return armed_multi_device(list, count, flags);
}

// Streams.

static CUresult stream_priority(typeof(&cuStreamGetPriority) real, CUstream stream, int *priority)
{
	CUresult result = real(stream, priority);
	const struct gp_hooks *hooks = gp_current_hooks();
	if (hooks && result == CUDA_SUCCESS && priority)
		hooks->stream_priority(stream, priority);
	return result;
}

CUresult cuStreamGetPriority(CUstream stream, int *priority)
{
	return stream_priority(REAL(cuStreamGetPriority), stream, priority);
}

CUresult cuStreamGetPriority_ptsz(CUstream stream, int *priority)
{
	return stream_priority(REAL(cuStreamGetPriority_ptsz), stream, priority);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	gp_start();
	const struct gp_hooks *hooks = gp_current_hooks();
	CUresult result = WITH_ROOM(hooks, device, REAL(cuDevicePrimaryCtxRetain)(context, device));
	if (!hooks || result != CUDA_SUCCESS || !context || !known_device(device))
		return result;
	atomic_store(&primary[device].context, *context);
	atomic_fetch_add(&primary[device].retained, 1);
	hooks->context_current(*context);
	return result;
}

// Others may have retained it, unseen by us.
static bool is_inactive(CUdevice device)
{
	unsigned int flags;
	int active = 1;
	return REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) == CUDA_SUCCESS && !active;
}

// Calls the driver's release or reset. The last release ends the context.
static CUresult end_primary(CUresult (*real)(CUdevice), CUdevice device, bool release)
{
	if (!known_device(device))
		return real(device);
	int cancel = cancel_off();
	CUcontext context = atomic_load(&primary[device].context);
	bool ends = context && (!release || atomic_load(&primary[device].retained) <= 1);
	struct gp_call call = ends ? gp_call_begin(GP_WAIT_CONTEXT, NULL) : (struct gp_call){.hooks = NULL};
	if (call.hooks)
		call.hooks->ending(GP_CONTEXT, context);
	CUresult result = gp_call_end(call, real(device));
	if (call.hooks)
		call.hooks->ended(GP_CONTEXT, context, result == CUDA_SUCCESS && (!release || is_inactive(device)));
	if (release && result == CUDA_SUCCESS && atomic_load(&primary[device].retained) > 0)
		atomic_fetch_sub(&primary[device].retained, 1);
	cancel_on(cancel);
	return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
	return end_primary(REAL(cuDevicePrimaryCtxRelease), device, true);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	return end_primary(REAL(cuDevicePrimaryCtxRelease_v2), device, true);
}

CUresult cuDevicePrimaryCtxReset(CUdevice device) { return end_primary(REAL(cuDevicePrimaryCtxReset), device, false); }

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	return end_primary(REAL(cuDevicePrimaryCtxReset_v2), device, false);
}
