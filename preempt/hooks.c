// hooks.c - names the function that carries out each hook.
#define _GNU_SOURCE
#include "preempt/preempt.h"
#include "preempt/blp/blp.h"
#include "preempt/code/code.h"
#include "preempt/gpu/gpu.h"
#include "preempt/memory/memory.h"

const struct gp_hooks gp_core_hooks = {
	.begin = gp_queue_begin,
	.end = gp_operation_end,
	.begin_wait = gp_queue_begin_wait,
	.end_wait = gp_queue_end_wait,
	.context_current = gp_context_usable,
	.ending = gp_queue_ending,
	.ended = gp_ended,
	.stream_creating = gp_stream_creating,
	.stream_created = gp_stream_created,
	.stream_priority = gp_stream_priority,
	.stream_made = gp_stream_made,
	.graph_fits = gp_memory_graph_fits,
	.graph_instantiated = gp_graph_made,
	.graph_changing = gp_graph_changing,
	.node_given = gp_node_given,
	.event_shared = gp_event_shared,
	.rm_ioctl = gp_rm_ioctl,
	.capture_beginning = gp_queue_capture_beginning,
	.capture_ended = gp_capture_ended,
	.module_loading = gp_module_loading,
	.module_loaded = gp_module_loaded,
	.module_function = gp_module_function,
	.module_unload = gp_queue_module_unload,
	.module_unloading = gp_module_unloading,
	.library_loaded = gp_library_loaded,
	.library_used = gp_library_used,
	.library_of = gp_library_of,
	.library_unload = gp_queue_library_unload,
	.library_unloading = gp_library_unloading,
	.library_module = gp_library_module,
	.kernel_function = gp_kernel_function,
	.parameter_hidden = gp_code_parameter_hidden,
	.code_loading = gp_blp_loading,
	.clusters_changed = gp_queue_clusters_changed,
	.code_wanted = gp_blp_wanted,
	.unknown_function = gp_queue_unknown_function,
	.memory_used = gp_memory_used,
	.memory_done = gp_memory_done,
	.refused_memory = gp_refused_memory,
	.call_over = gp_memory_call_over,
	.checkpoint_begins = gp_queue_checkpoint_begins,
	.checkpoint_ended = gp_checkpoint_ended,
	.complete = gp_blp_complete,
};
