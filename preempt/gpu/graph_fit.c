// graph_fit.c - finds graphs that a hold would block, whose cooperative kernels need every SM, and graphs that may wait for
// the CPU.
#define _GNU_SOURCE
#include "preempt/gpu/gpu.h"

#include <stdlib.h>

enum {
	DEEPEST = 8, // graphs within graphs
};

static bool blocked_node(struct gp_context *c, CUgraphNode node, int depth);

static bool blocked_graph(struct gp_context *c, CUgraph graph, int depth)
{
	size_t count = 0;
	if (depth > DEEPEST || gp_driver.cuGraphGetNodes(graph, NULL, &count) || !count)
		return false;
	CUgraphNode *nodes = calloc(count, sizeof *nodes);
	bool blocked = false;
	if (nodes && !gp_driver.cuGraphGetNodes(graph, nodes, &count))
		for (size_t i = 0; i < count && !blocked; i++)
			blocked = blocked_node(c, nodes[i], depth);
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
	if (type != CU_GRAPH_NODE_TYPE_KERNEL ||
	    gp_driver.cuGraphKernelNodeGetAttribute(node, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &attribute.value) ||
	    !attribute.value.cooperative || gp_driver.cuGraphKernelNodeGetParams(node, &k))
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

// Instances that a hold would block. Few programs have any. One that does not fit in the table waits until the hold expires.
static _Atomic(CUgraphExec) blocked[64];
static _Atomic uint32_t any;
enum { BLOCKED = sizeof blocked / sizeof *blocked };

// Instances that do not wait for the CPU. All others may: because of their nodes, because their making was not seen, or because
// the table was full.
enum { FREE_OF_CPU = 1 << 13, PROBES = 32 };
static _Atomic(CUgraphExec) free_of_cpu[FREE_OF_CPU];
static _Atomic uint32_t recording; // a graph with event nodes was seen: a graph may record any event
#define GONE ((CUgraphExec)~0ul)

static size_t place_of(CUgraphExec exec) { return (uintptr_t)exec * 0x9E3779B97F4A7C15ull >> 51; } // 13 bits

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

static void remember_free_of_cpu(CUgraphExec exec)
{
	for (size_t n = 0, at = place_of(exec); n < PROBES; n++, at = (at + 1) % FREE_OF_CPU) {
		CUgraphExec found = free_of_cpu[at];
		if ((!found || found == GONE) && __atomic_compare_exchange_n((CUgraphExec *)&free_of_cpu[at], &found, exec,
									     false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			return;
	}
}

static _Atomic(CUgraphExec) *find_free_of_cpu(CUgraphExec exec)
{
	for (size_t n = 0, at = place_of(exec); n < PROBES && free_of_cpu[at]; n++, at = (at + 1) % FREE_OF_CPU)
		if (free_of_cpu[at] == exec)
			return &free_of_cpu[at];
	return NULL;
}

bool gp_graph_waits_for_cpu(CUgraphExec exec) { return !find_free_of_cpu(exec); }

bool gp_graphs_record(void) { return recording; }

void gp_graph_instantiated(CUgraphExec exec, CUgraph graph, bool waits)
{
	if (exec && graph && waits && gp_driver.cuGraphGetNodes && gp_driver.cuGraphNodeGetType &&
	    gp_driver.cuGraphChildGraphNodeGetGraph && !may_wait(graph, 0))
		remember_free_of_cpu(exec);
	struct gp_context *c = gp_current_context();
	if (!c || !graph || !gp_settings.hold || !gp_driver_reads_graphs() || !blocked_graph(c, graph, 0))
		return;
	for (int i = 0; i < BLOCKED; i++) {
		CUgraphExec empty = NULL;
		if (__atomic_compare_exchange_n((CUgraphExec *)&blocked[i], &empty, exec, false, __ATOMIC_ACQ_REL,
						__ATOMIC_RELAXED)) {
			any = 1;
			return;
		}
	}
}

void gp_graph_destroying(CUgraphExec exec)
{
	_Atomic(CUgraphExec) *known = exec ? find_free_of_cpu(exec) : NULL;
	if (known)
		*known = GONE;
	for (int i = 0; any && i < BLOCKED; i++)
		if (blocked[i] == exec)
			blocked[i] = NULL;
}

enum gp_fit gp_graph_fit(CUgraphExec exec)
{
	for (int i = 0; any && i < BLOCKED; i++)
		if (blocked[i] == exec)
			return GP_BLOCKED;
	return GP_FITS;
}
