// intercept.c - the exported driver functions, expanded from table.h.
//
// A submission or a wait costs one load and a branch while gp_armed is zero; what happens otherwise is out of
// line. Every wrapper returns what the driver returned.
#include "exports/layer.h"

#include <stdlib.h>
#include <string.h>

static inline bool armed(void) {
	return atomic_load_explicit(&gp_armed, memory_order_relaxed) != 0;
}

#define CALL(hooks, hook, ...) \
	do { \
		if ((hooks)->hook) \
			(hooks)->hook(__VA_ARGS__); \
	} while (0)

// Captures under way, by the stream on which each began.

#define MAX_CAPTURES 64
static _Atomic(CUstream) capture_origin[MAX_CAPTURES];
static _Atomic uint32_t captures;

static void capture_began(CUstream stream) {
	for (int i = 0; i < MAX_CAPTURES; i++) {
		CUstream empty = NULL;
		if (atomic_compare_exchange_strong(&capture_origin[i], &empty, stream))
			break;
	}
	atomic_fetch_add(&captures, 1); // where there is no place for it, for good: its end will not be seen
}

static void capture_ended(CUstream stream) {
	for (int i = 0; i < MAX_CAPTURES; i++) {
		CUstream origin = stream;
		if (atomic_compare_exchange_strong(&capture_origin[i], &origin, NULL)) {
			atomic_fetch_sub(&captures, 1);
			const struct gp_hooks *hooks = gp_hooks();
			if (hooks)
				CALL(hooks, capture_ended);
			return;
		}
	}
}

static inline bool capturing_anywhere(void) {
	return atomic_load_explicit(&captures, memory_order_relaxed) != 0;
}

// Whether work put on the stream now would be, or might be, captured. The legacy stream never is; it may not even be asked
// about while another stream captures: the query would invalidate that capture.
static bool captured(CUstream stream) {
	if (likely(!capturing_anywhere()) || stream == GP_STREAM_LEGACY)
		return false;
	int status = CU_STREAM_CAPTURE_STATUS_NONE;
	return REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static bool before_wait(const struct gp_hooks *hooks, enum gp_wait kind, void *object) {
	return hooks->before_wait && hooks->before_wait(kind, object);
}

static void after_wait(const struct gp_hooks *hooks, enum gp_wait kind, void *object, CUresult result) {
	CALL(hooks, after_wait, kind, object, result);
}

#define DEFAULT_STREAM(stream) __attribute__((unused)) const CUstream default_stream = stream
#define STREAM(handle) ((CUstream)(handle) ? (CUstream)(handle) : default_stream)
#define ADDRESS(of) ((void *)(uintptr_t)(of))

#define ROW(kind, ...) ROW_##kind(__VA_ARGS__)
#define CALLED(name, params)
#define ROW_OWN(...)

// The exported function; armed_ is what it does while the core wants to know.
#define ENTRY(name, params, args) \
	CUresult name params { \
		if (likely(!armed())) \
			return REAL(name) args; \
		return armed_##name args; \
	}

#define ROW_SUBMIT(name, null, params, args, ...) \
	static COLD CUresult armed_##name params { \
		const struct gp_hooks *hooks = gp_hooks(); \
		DEFAULT_STREAM(null); \
		struct gp_submission submission = {__VA_ARGS__}; \
		if (!hooks || captured(submission.stream)) \
			return REAL(name) args; \
		CALL(hooks, before_submit, &submission); \
		CUresult result; \
		bool addressed = submission.memory.height || submission.memory.copy_2d; \
		if (!addressed || !hooks->fill || !hooks->fill(&submission, &result)) { \
			CALL(hooks, before_barrier, &submission); \
			result = REAL(name) args; \
		} \
		CALL(hooks, after_submit, &submission, result); \
		return result; \
	} \
	ENTRY(name, params, args)

// False: the driver's function is to be called with what the caller gave. A captured launch is none of the core's
// business, but that of a rewritten kernel is not complete.
static bool launched(const struct gp_hooks *hooks, struct gp_submission *s, const struct gp_launch_attribute *attributes,
	uint32_t attribute_count, bool in_capture, void **parameters, void **extra, CUresult *result) {
	if (!hooks->launch)
		return false;
	struct gp_launch launch = {
		.function = s->function,
		.grid = {s->blocks[0], s->blocks[1], s->blocks[2]},
		.block = {s->threads[0], s->threads[1], s->threads[2]},
		.shared_bytes = s->shared_bytes,
		.stream = s->stream,
		.attributes = attributes,
		.attribute_count = attribute_count,
		.cooperative = s->cooperative,
		.captured = in_capture,
		.parameters = parameters,
		.extra = extra,
	};
	return hooks->launch(s, &launch, result);
}

// A captured launch puts no work on a stream, but it may load the kernel's code.
static void launch_begins(const struct gp_hooks *hooks, struct gp_submission *s, bool in_capture) {
	if (in_capture)
		before_wait(hooks, GP_LOAD, s->function);
	else
		CALL(hooks, before_submit, s);
}

static void launch_ended(const struct gp_hooks *hooks, struct gp_submission *s, bool in_capture, CUresult result) {
	if (in_capture)
		after_wait(hooks, GP_LOAD, s->function, result);
	else
		CALL(hooks, after_submit, s, result);
}

#define ROW_LAUNCH(name, null, params, args, parameters_, extra_, ...) \
	static COLD CUresult armed_##name params { \
		const struct gp_hooks *hooks = gp_hooks(); \
		DEFAULT_STREAM(null); \
		struct gp_submission submission = {.work = GP_KERNEL, __VA_ARGS__}; \
		if (!hooks) \
			return REAL(name) args; \
		bool in_capture = captured(submission.stream); \
		CUresult result; \
		launch_begins(hooks, &submission, in_capture); \
		if (!launched(hooks, &submission, NULL, 0, in_capture, parameters_, extra_, &result)) \
			result = REAL(name) args; \
		launch_ended(hooks, &submission, in_capture, result); \
		return result; \
	} \
	ENTRY(name, params, args)

#define ROW_GRAPH(name, null, params, args, instance, on) \
	static COLD CUresult armed_##name params { \
		const struct gp_hooks *hooks = gp_hooks(); \
		DEFAULT_STREAM(null); \
		struct gp_submission submission = {.work = GP_GRAPH, .graph = instance, .stream = on}; \
		if (!hooks || captured(submission.stream)) \
			return REAL(name) args; \
		CUresult result; \
		CALL(hooks, before_submit, &submission); \
		if (!hooks->launch_graph || !hooks->launch_graph(&submission, &result)) { \
			CALL(hooks, before_barrier, &submission); \
			result = REAL(name) args; \
		} \
		CALL(hooks, after_submit, &submission, result); \
		return result; \
	} \
	ENTRY(name, params, args)

// An event takes a place in a stream's order. Without what the core does before, the driver's function is called; true: it
// is not to be.
#define ORDERED(name, null, params, args, event, on, before, after, done, captured_too) \
	static COLD CUresult armed_##name params { \
		const struct gp_hooks *hooks = gp_hooks(); \
		DEFAULT_STREAM(null); \
		struct gp_submission submission = {.work = GP_OTHER, .stream = on}; \
		if (!hooks || captured(submission.stream)) { \
			captured_too; \
			return REAL(name) args; \
		} \
		CALL(hooks, before_submit, &submission); \
		CUresult result = CUDA_SUCCESS; \
		if (!hooks->before || !hooks->before(&submission, event)) { \
			result = REAL(name) args; \
			CALL(hooks, after, &submission, event, result); \
		} \
		CALL(hooks, after_submit, &submission, result); \
		done; \
		return result; \
	} \
	ENTRY(name, params, args)

#define ROW_EVENT(name, null, params, args, event, on) \
	ORDERED(name, null, params, args, event, on, before_record, after_record, \
		if (result == CUDA_SUCCESS) CALL(hooks, event_recorded, event, submission.stream), \
		if (hooks) CALL(hooks, event_captured, event))

#define ROW_STREAM_WAIT(name, null, params, args, event, on) \
	ORDERED(name, null, params, args, event, on, before_stream_wait, after_stream_wait, , )

#define ROW_EVENT_DESTROY(name, null, params, args, event) \
	CUresult name params { \
		const struct gp_hooks *hooks = gp_hooks(); \
		if (hooks) \
			CALL(hooks, event_destroying, event); \
		return REAL(name) args; \
	}

#define ROW_EVENT_SHARED(name, null, params, args, event) \
	CUresult name params { \
		const struct gp_hooks *hooks = gp_hooks(); \
		bool waits = hooks && armed(); \
		if (waits) \
			before_wait(hooks, GP_WAIT_CONTEXT, NULL); \
		CUresult result = REAL(name) args; \
		if (waits) \
			after_wait(hooks, GP_WAIT_CONTEXT, NULL, result); \
		if (hooks && result == CUDA_SUCCESS) \
			CALL(hooks, event_shared, event); \
		return result; \
	}

// Kernel nodes of graphs: CUgraphNodeParams, cuda.h.

struct graph_node {
	int type, reserved[3];
	union {
		long long size[29];
		struct gp_kernel_node kernel;
	} of;
	long long reserved_too;
};

_Static_assert(sizeof(struct graph_node) == 256, "CUgraphNodeParams");

// What is handed to the driver in place of the caller's parameters.
struct completed {
	union {
		struct gp_kernel_node kernel;
		struct graph_node node;
	} copy;
	void *memory;
};

static bool completes(struct gp_kernel_node *node, CUfunction function, void **memory) {
	const struct gp_hooks *hooks = gp_hooks();
	struct gp_arguments arguments = {.parameters = node->parameters, .extra = node->extra};
	if (!hooks || !hooks->complete || !function || !hooks->complete(function, &arguments))
		return false;
	node->parameters = arguments.parameters;
	node->extra = arguments.extra;
	*memory = arguments.memory;
	return true;
}

static bool complete_v1(struct completed *c, const void *given) {
	memcpy(&c->copy.kernel, given, offsetof(struct gp_kernel_node, kernel));
	return completes(&c->copy.kernel, c->copy.kernel.function, &c->memory);
}

static bool complete_v2(struct completed *c, const void *given) {
	struct gp_kernel_node *k = &c->copy.kernel;
	*k = *(const struct gp_kernel_node *)given;
	return completes(k, k->function ? k->function : k->kernel, &c->memory);
}

static bool complete_any(struct completed *c, const void *given) {
	c->copy.node = *(const struct graph_node *)given;
	struct gp_kernel_node *k = &c->copy.node.of.kernel;
	return c->copy.node.type == CU_GRAPH_NODE_TYPE_KERNEL &&
	       completes(k, k->function ? k->function : k->kernel, &c->memory);
}

#define ROW_NODE(name, null, params, args, complete, instance) \
	CUresult name params { \
		struct completed completed = {.memory = NULL}; \
		const struct gp_hooks *hooks = gp_hooks(); \
		if (hooks && (instance)) \
			CALL(hooks, graph_changed, instance); \
		if (hooks && nodeParams && complete(&completed, nodeParams)) \
			nodeParams = &completed.copy; \
		CUresult result = REAL(name) args; \
		free(completed.memory); \
		return result; \
	}

#define ROW_WAIT(name, null, params, args, kind, object) \
	static COLD CUresult armed_##name params { \
		const struct gp_hooks *hooks = gp_hooks(); \
		DEFAULT_STREAM(null); \
		if (!hooks) \
			return REAL(name) args; \
		CUresult result = before_wait(hooks, kind, object) ? CUDA_SUCCESS : REAL(name) args; \
		if (hooks->answer) \
			result = hooks->answer(kind, object, result); \
		after_wait(hooks, kind, object, result); \
		return result; \
	} \
	ENTRY(name, params, args)

#define ROW_PINNED(name, null, params, args, ...) \
	static COLD CUresult armed_##name params { \
		const struct gp_hooks *hooks = gp_hooks(); \
		if (!hooks) \
			return REAL(name) args; \
		before_wait(hooks, GP_WAIT_CONTEXT, NULL); \
		CUresult result = REAL(name) args; \
		after_wait(hooks, GP_WAIT_CONTEXT, NULL, result); \
		if (result == CUDA_SUCCESS && !capturing_anywhere()) \
			CALL(hooks, pinned); \
		return result; \
	} \
	ENTRY(name, params, args)

#define ROW_INSTANTIATE(name, null, params, args, instance, graph) \
	CUresult name params { \
		const struct gp_hooks *hooks = gp_hooks(); \
		if (!hooks) \
			return REAL(name) args; \
		bool waits = armed(); \
		if (waits) \
			before_wait(hooks, GP_WAIT_CONTEXT, NULL); \
		CUresult result = REAL(name) args; \
		if (waits) \
			after_wait(hooks, GP_WAIT_CONTEXT, NULL, result); \
		if (result == CUDA_SUCCESS && instance) \
			CALL(hooks, graph_instantiated, *instance, graph); \
		return result; \
	}

#define ROW_CHANGE(name, null, params, args, instance) \
	CUresult name params { \
		const struct gp_hooks *hooks = gp_hooks(); \
		if (!hooks) \
			return REAL(name) args; \
		bool waits = armed(); \
		if (waits) \
			before_wait(hooks, GP_WAIT_CONTEXT, NULL); \
		CALL(hooks, graph_changed, instance); \
		CUresult result = REAL(name) args; \
		if (waits) \
			after_wait(hooks, GP_WAIT_CONTEXT, NULL, result); \
		return result; \
	}

#define ROW_DESTROY(name, null, params, args, hook, handle) \
	CUresult name params { \
		const struct gp_hooks *hooks = gp_hooks(); \
		if (!hooks) \
			return REAL(name) args; \
		bool waits = armed(); \
		if (waits) \
			before_wait(hooks, GP_WAIT_CONTEXT, NULL); \
		CALL(hooks, hook, handle); \
		CUresult result = REAL(name) args; \
		if (waits) \
			after_wait(hooks, GP_WAIT_CONTEXT, NULL, result); \
		return result; \
	}

#define ROW_CAPTURE_BEGIN(name, null, params, args, on) \
	CUresult name params { \
		DEFAULT_STREAM(null); \
		const struct gp_hooks *hooks = gp_hooks(); \
		if (hooks) \
			CALL(hooks, capture_beginning, on); \
		CUresult result = REAL(name) args; \
		if (hooks && result == CUDA_SUCCESS) \
			capture_began(on); \
		else if (hooks) \
			CALL(hooks, capture_ended); \
		return result; \
	}

// A capture also ends with some of the errors, so the driver is asked.
#define ROW_CAPTURE_END(name, null, params, args, on) \
	CUresult name params { \
		DEFAULT_STREAM(null); \
		CUresult result = REAL(name) args; \
		int status = 0; \
		if (capturing_anywhere() && \
		    (result == CUDA_SUCCESS || (REAL(cuStreamIsCapturing)(on, &status) == CUDA_SUCCESS && status == 0))) \
			capture_ended(on); \
		return result; \
	}

#define ROW_CONTEXT(name, null, params, args, context) \
	CUresult name params { \
		gp_start(); \
		CUresult result = REAL(name) args; \
		const struct gp_hooks *hooks = gp_hooks(); \
		if (hooks && result == CUDA_SUCCESS && (context)) \
			CALL(hooks, context_current, context); \
		return result; \
	}

#define ROW_STREAM_CREATE(name, null, params, args, stream, flags, asked) \
	CUresult name params { \
		const struct gp_hooks *hooks = gp_hooks(); \
		int given = asked; \
		if (!hooks) \
			return REAL(name) args; \
		bool waits = armed(), other = hooks->stream_creating && hooks->stream_creating(&given); \
		if (waits) \
			before_wait(hooks, GP_WAIT_CONTEXT, NULL); \
		CUresult result = other ? REAL(cuStreamCreateWithPriority)(stream, flags, given) : REAL(name) args; \
		if (waits) \
			after_wait(hooks, GP_WAIT_CONTEXT, NULL, result); \
		if (other && result == CUDA_SUCCESS && (stream)) \
			CALL(hooks, stream_created, *(stream), asked); \
		return result; \
	}

#include "exports/table.h"

CUresult cuInit(unsigned int flags) {
	gp_start();
	return REAL(cuInit)(flags);
}

// cuLaunchKernelEx. CUlaunchConfig, cuda.h.

struct launch_config {
	unsigned int grid[3], block[3], shared_bytes;
	CUstream stream;
	const struct gp_launch_attribute *attributes;
	unsigned int attribute_count;
};

_Static_assert(sizeof(struct gp_launch_attribute) == 72, "CUlaunchAttribute");
_Static_assert(sizeof(struct launch_config) == 56, "CUlaunchConfig");

static bool is_cooperative(const struct launch_config *config) {
	for (unsigned int i = 0; config->attributes && i < config->attribute_count; i++)
		if (config->attributes[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
			return config->attributes[i].value.cooperative != 0;
	return false;
}

static COLD CUresult armed_launch_ex(typeof(&cuLaunchKernelEx) real, CUstream default_stream,
	const struct launch_config *config, CUfunction f, void **params, void **extra) {
	const struct gp_hooks *hooks = gp_hooks();
	if (!hooks || !config)
		return real(config, f, params, extra);
	struct gp_submission submission = {
		.work = GP_KERNEL,
		.cooperative = is_cooperative(config),
		.stream = STREAM(config->stream),
		.function = f,
		.blocks = {config->grid[0], config->grid[1], config->grid[2]},
		.threads = {config->block[0], config->block[1], config->block[2]},
		.shared_bytes = config->shared_bytes,
	};
	bool in_capture = captured(submission.stream);
	CUresult result;
	launch_begins(hooks, &submission, in_capture);
	if (!launched(hooks, &submission, config->attributes, config->attributes ? config->attribute_count : 0, in_capture,
		params, extra, &result))
		result = real(config, f, params, extra);
	launch_ended(hooks, &submission, in_capture, result);
	return result;
}

CUresult cuLaunchKernelEx(const void *config, CUfunction f, void **params, void **extra) {
	if (likely(!armed()))
		return REAL(cuLaunchKernelEx)(config, f, params, extra);
	return armed_launch_ex(REAL(cuLaunchKernelEx), GP_STREAM_LEGACY, config, f, params, extra);
}

CUresult cuLaunchKernelEx_ptsz(const void *config, CUfunction f, void **params, void **extra) {
	if (likely(!armed()))
		return REAL(cuLaunchKernelEx_ptsz)(config, f, params, extra);
	return armed_launch_ex(REAL(cuLaunchKernelEx_ptsz), GP_STREAM_PER_THREAD, config, f, params, extra);
}

// One launch on several devices: a submission for each. CUDA_LAUNCH_PARAMS, cuda.h.

struct launch_params {
	CUfunction function;
	unsigned int grid[3], block[3], shared_bytes;
	CUstream stream;
	void **params;
};

_Static_assert(sizeof(struct launch_params) == 56, "CUDA_LAUNCH_PARAMS");

enum { MAX_DEVICES = 64 };

static COLD CUresult armed_multi_device(struct launch_params *list, unsigned int count, unsigned int flags) {
	DEFAULT_STREAM(GP_STREAM_LEGACY);
	const struct gp_hooks *hooks = gp_hooks();
	if (!hooks || !list || count > MAX_DEVICES)
		return REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
	struct gp_submission submissions[MAX_DEVICES];
	struct launch_params complete[MAX_DEVICES];
	void *memory[MAX_DEVICES] = {NULL};
	for (unsigned int i = 0; i < count; i++) {
		const struct launch_params *p = &list[i];
		submissions[i] = (struct gp_submission){
			.work = GP_KERNEL,
			.cooperative = true,
			.stream = STREAM(p->stream),
			.function = p->function,
			.blocks = {p->grid[0], p->grid[1], p->grid[2]},
			.threads = {p->block[0], p->block[1], p->block[2]},
			.shared_bytes = p->shared_bytes,
		};
		CALL(hooks, before_submit, &submissions[i]);
		CALL(hooks, before_barrier, &submissions[i]);
		struct gp_arguments arguments = {.parameters = p->params};
		complete[i] = *p;
		if (hooks->complete && hooks->complete(p->function, &arguments)) {
			complete[i].params = arguments.parameters;
			memory[i] = arguments.memory;
		}
	}
	CUresult result = REAL(cuLaunchCooperativeKernelMultiDevice)(complete, count, flags);
	for (unsigned int i = 0; i < count; i++) {
		free(memory[i]);
		CALL(hooks, after_submit, &submissions[i], result);
	}
	return result;
}

CUresult cuLaunchCooperativeKernelMultiDevice(void *list, unsigned int count, unsigned int flags) {
	if (likely(!armed()))
		return REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
	return armed_multi_device(list, count, flags);
}

// Streams.

static CUresult stream_priority(typeof(&cuStreamGetPriority) real, CUstream stream, int *priority) {
	CUresult result = real(stream, priority);
	const struct gp_hooks *hooks = gp_hooks();
	if (hooks && result == CUDA_SUCCESS && priority)
		CALL(hooks, stream_priority, stream, priority);
	return result;
}

CUresult cuStreamGetPriority(CUstream stream, int *priority) {
	return stream_priority(REAL(cuStreamGetPriority), stream, priority);
}

CUresult cuStreamGetPriority_ptsz(CUstream stream, int *priority) {
	return stream_priority(REAL(cuStreamGetPriority_ptsz), stream, priority);
}

static CUresult destroy_stream(typeof(&cuStreamDestroy) real, CUstream stream) {
	const struct gp_hooks *hooks = gp_hooks();
	if (!hooks)
		return real(stream);
	bool waits = armed();
	if (waits)
		before_wait(hooks, GP_WAIT_CONTEXT, NULL);
	CALL(hooks, stream_destroying, stream);
	CUresult result = real(stream);
	if (waits)
		after_wait(hooks, GP_WAIT_CONTEXT, NULL, result);
	if (result == CUDA_SUCCESS && stream && capturing_anywhere())
		capture_ended(stream);
	return result;
}

CUresult cuStreamDestroy(CUstream stream) {
	return destroy_stream(REAL(cuStreamDestroy), stream);
}

CUresult cuStreamDestroy_v2(CUstream stream) {
	return destroy_stream(REAL(cuStreamDestroy_v2), stream);
}

// Primary contexts are named by their device and counted by the driver; so that the core hears of their end,
// what was retained is remembered and counted here too.

static struct {
	_Atomic(CUcontext) context;
	_Atomic int retained;
} primary[MAX_DEVICES];

static bool known_device(CUdevice device) {
	return device >= 0 && device < MAX_DEVICES;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
	gp_start();
	CUresult result = REAL(cuDevicePrimaryCtxRetain)(context, device);
	const struct gp_hooks *hooks = gp_hooks();
	if (!hooks || result != CUDA_SUCCESS || !context || !known_device(device))
		return result;
	atomic_store(&primary[device].context, *context);
	atomic_fetch_add(&primary[device].retained, 1);
	CALL(hooks, context_current, *context);
	return result;
}

// end_primary calls the driver's release or reset. A release ends the context when it is the last one.
static CUresult end_primary(CUresult (*real)(CUdevice), CUdevice device, bool release) {
	const struct gp_hooks *hooks = gp_hooks();
	if (!hooks || !known_device(device))
		return real(device);
	CUcontext context = atomic_load(&primary[device].context);
	bool ends = context && (!release || atomic_load(&primary[device].retained) <= 1);
	bool waits = ends && armed();
	if (waits)
		before_wait(hooks, GP_WAIT_CONTEXT, NULL);
	if (ends)
		CALL(hooks, context_destroying, context);
	CUresult result = real(device);
	if (waits)
		after_wait(hooks, GP_WAIT_CONTEXT, NULL, result);
	if (release && result == CUDA_SUCCESS && atomic_load(&primary[device].retained) > 0)
		atomic_fetch_sub(&primary[device].retained, 1);
	return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
	return end_primary(REAL(cuDevicePrimaryCtxRelease), device, true);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
	return end_primary(REAL(cuDevicePrimaryCtxRelease_v2), device, true);
}

CUresult cuDevicePrimaryCtxReset(CUdevice device) {
	return end_primary(REAL(cuDevicePrimaryCtxReset), device, false);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
	return end_primary(REAL(cuDevicePrimaryCtxReset_v2), device, false);
}
