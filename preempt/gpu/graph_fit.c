// graph_fit.c - reads graphs: whether a hold would block one, since its cooperative kernels need every SM, and whether it may wait for the
// CPU. Kernels of ranks are found on the way.
#define _GNU_SOURCE
#include "preempt/gpu/gpu.h"
#include "preempt/gpu/objective.h"
#include "preempt/objects/objects.h"

#include <stdlib.h>

enum {
	DEEPEST = 8, // graphs within graphs
};

// Whether a hold would block the graph. All its kernels are looked at.
static bool blocked_node(struct gp_context *c, CUgraphNode node, int depth);

static bool blocked_graph(struct gp_context *c, CUgraph graph, int depth)
{
	size_t count = 0;
	if (depth > DEEPEST || gp_driver.cuGraphGetNodes(graph, NULL, &count) || !count)
		return false;
	CUgraphNode *nodes = calloc(count, sizeof *nodes);
	bool blocked = false;
	if (nodes && !gp_driver.cuGraphGetNodes(graph, nodes, &count))
		for (size_t i = 0; i < count; i++)
			blocked |= blocked_node(c, nodes[i], depth);
	free(nodes);
	return blocked;
}

static bool blocked_node(struct gp_context *c, CUgraphNode node, int depth)
{
	struct gp_launch_attribute attribute = {0};
	struct gp_kernel_node k;
	CUgraph child;
	int type;

	if (gp_driver.cuGraphNodeGetType(node, &type))
		return false;
	if (type == CU_GRAPH_NODE_TYPE_GRAPH)
		return !gp_driver.cuGraphChildGraphNodeGetGraph(node, &child) && blocked_graph(c, child, depth + 1);
	if (type != CU_GRAPH_NODE_TYPE_KERNEL || gp_driver.cuGraphKernelNodeGetParams(node, &k))
		return false;
	gp_rank_kernel(k.function ? k.function : k.kernel);
	if (gp_driver.cuGraphKernelNodeGetAttribute(node, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &attribute.value) ||
	    !attribute.value.cooperative)
		return false;
	struct gp_launch launch = {
		.cooperative = true,
		.function = k.function ? k.function : k.kernel,
		.grid = {k.grid[0], k.grid[1], k.grid[2]},
		.block = {k.block[0], k.block[1], k.block[2]},
		.shared_bytes = k.shared_bytes,
	};
	return gp_hold_fit(c, &launch) == GP_BLOCKED;
}

static _Atomic uint32_t any;       // instance that a hold would block was seen
static _Atomic uint32_t recording; // a graph with event nodes was seen: a graph may record any event

// Whether a graph may wait for the CPU; notes whether it may record events. Node types never change after instantiation, nor do
// those of child graphs and bodies.
static bool may_wait(CUgraph graph, int depth)
{
	size_t count = 0;
	CUgraphNode *nodes = NULL;
	bool known = depth <= DEEPEST && !gp_driver.cuGraphGetNodes(graph, NULL, &count) &&
		     (nodes = calloc(count + 1, sizeof *nodes)) &&
		     (!count || !gp_driver.cuGraphGetNodes(graph, nodes, &count));
	bool waits = false;
	for (size_t i = 0; known && i < count; i++) {
		CUgraph child;
		int type;
		if (gp_driver.cuGraphNodeGetType(nodes[i], &type)) {
			known = false;
			break;
		}
		switch (type) {
		case CU_GRAPH_NODE_TYPE_KERNEL:
		case CU_GRAPH_NODE_TYPE_MEMCPY:
		case CU_GRAPH_NODE_TYPE_MEMSET:
		case CU_GRAPH_NODE_TYPE_EMPTY:
		case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
		case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		case CU_GRAPH_NODE_TYPE_MEM_FREE: break;
		case CU_GRAPH_NODE_TYPE_EVENT_RECORD: recording = 1; break;
		case CU_GRAPH_NODE_TYPE_GRAPH:
			if (gp_driver.cuGraphChildGraphNodeGetGraph(nodes[i], &child))
				known = false;
			else
				waits |= may_wait(child, depth + 1);
			break;
		case CU_GRAPH_NODE_TYPE_HOST:
		case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
		case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
		case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: waits = true; break;
		default: known = false; // bodies of conditional nodes, and what is not known
		}
	}
	free(nodes);
	if (!known)
		recording = 1;
	return waits || !known;
}

// All graphs may, but those whose nodes are known not to. A graph may wait whose making was not seen, or that got no place.
bool gp_graph_waits_for_cpu(CUgraphExec exec)
{
	const struct gp_object *o = gp_graph_find(exec);
	return !o || !o->graph.free_of_cpu;
}

bool gp_graphs_record(void) { return recording; }

void gp_graph_instantiated(CUgraphExec exec, CUgraph graph, bool waits)
{
	struct gp_context *c = gp_current_context();
	struct gp_object *o = gp_graph_find(exec);
	bool free_of_cpu = exec && graph && waits && gp_driver.cuGraphGetNodes && gp_driver.cuGraphNodeGetType &&
			   gp_driver.cuGraphChildGraphNodeGetGraph && !may_wait(graph, 0);
	bool blocked = c && graph && gp_driver_reads_graphs() && blocked_graph(c, graph, 0);
	if (!o)
		return;
	o->graph.free_of_cpu = free_of_cpu;
	if (blocked && gp_settings.hold)
		any = o->graph.blocked = true;
}

enum gp_fit gp_graph_fit(CUgraphExec exec)
{
	const struct gp_object *o = any ? gp_graph_find(exec) : NULL;
	return o && o->graph.blocked ? GP_BLOCKED : GP_FITS;
}
