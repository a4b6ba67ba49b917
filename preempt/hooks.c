// hooks.c - which function of which house carries out each hook.
#define _GNU_SOURCE
#include "preempt/preempt.h"
#include "hints/hints.h"
#include "preempt/blp/blp.h"
#include "preempt/code/code.h"
#include "preempt/gpu/gpu.h"

static struct gp_hooks hooks = {
	.before_submit = gp_before_submit,
	.after_submit = gp_after_submit,
	.event_recorded = gp_event_recorded,
	.before_wait = gp_before_wait,
	.after_wait = gp_after_wait,
	.context_current = gp_context_current,
	.context_destroying = gp_context_destroying,
	.stream_creating = gp_stream_creating,
	.stream_created = gp_stream_created,
	.stream_priority = gp_stream_priority,
	.stream_destroying = gp_stream_destroying,
	.graph_instantiated = gp_graph_made,
	.graph_destroying = gp_graph_ending,
	.capture_beginning = gp_capture_beginning,
	.capture_ended = gp_capture_ended,
	.rm_ioctl = gp_rm_ioctl,
	.pinned = gp_hint_pinned,
	.module_loading = gp_module_loading,
	.module_loaded = gp_module_loaded,
	.module_function = gp_module_function,
	.module_unloading = gp_module_unloading,
	.library_loaded = gp_library_loaded,
	.library_used = gp_library_used,
	.library_of = gp_library_of,
	.library_unloading = gp_library_unloading,
	.library_module = gp_library_module,
	.kernel_function = gp_kernel_function,
	.parameter_hidden = gp_code_parameter_hidden,
	.code_wanted = gp_blp_wanted,
	.code_missed = gp_load_failed,
	.unknown_function = gp_unknown_function,
};

static void complete(void)
{
	if (!gp_blp_started())
		return;
	hooks.launch = gp_blp_launch;
	hooks.launch_graph = gp_blp_launch_graph;
	hooks.graph_changed = gp_blp_graph_changed;
	hooks.before_barrier = gp_blp_before_barrier;
	hooks.fill = gp_fill;
	hooks.before_record = gp_blp_before_record;
	hooks.after_record = gp_blp_after_record;
	hooks.before_stream_wait = gp_blp_before_stream_wait;
	hooks.after_stream_wait = gp_blp_after_stream_wait;
	hooks.event_captured = gp_blp_event_captured;
	hooks.answer = gp_blp_answer;
	hooks.event_destroying = gp_blp_event_destroying;
	hooks.event_shared = gp_blp_event_shared;
	hooks.complete = gp_blp_complete;
}

const struct gp_hooks *gp_core_hooks(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT; // others read them from the first time on
	pthread_once(&once, complete);
	return &hooks;
}
