// graph.c - finds the graphs that a hold would block: those with cooperative kernels that need every SM.
#define _GNU_SOURCE
#include "blp.h"
#include "core.h"

#include <stdlib.h>

enum { // cuda.h
	CU_GRAPH_NODE_TYPE_KERNEL = 0,
	CU_GRAPH_NODE_TYPE_GRAPH = 4,
	CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2,
	DEEPEST = 8, // graphs within graphs
};

struct kernel_node { // CUDA_KERNEL_NODE_PARAMS_v2, cuda.h
	CUfunction function;
	unsigned blocks[3], threads[3], shared_bytes;
	void **parameters, **extra;
	CUfunction kernel; // where function is NULL
	CUcontext context;
};
_Static_assert(sizeof(struct kernel_node) == 72, "CUDA_KERNEL_NODE_PARAMS_v2");

union attribute_value { int cooperative; char size[64]; }; // CUlaunchAttributeValue, cuda.h

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
	union attribute_value value = {0};
	struct kernel_node k;
	CUgraph child;
	int type;

	if (gp_driver.cuGraphNodeGetType(node, &type))
		return false;
	if (type == CU_GRAPH_NODE_TYPE_GRAPH)
		return !gp_driver.cuGraphChildGraphNodeGetGraph(node, &child) && blocked_graph(c, child, depth + 1);
	if (type != CU_GRAPH_NODE_TYPE_KERNEL ||
	    gp_driver.cuGraphKernelNodeGetAttribute(node, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &value) || !value.cooperative ||
	    gp_driver.cuGraphKernelNodeGetParams(node, &k))
		return false;
	struct gp_submission s = {
		.work = GP_KERNEL, .cooperative = true, .function = k.function ? k.function : k.kernel,
		.blocks = {k.blocks[0], k.blocks[1], k.blocks[2]},
		.threads = {k.threads[0], k.threads[1], k.threads[2]},
		.shared_bytes = k.shared_bytes,
	};
	return gp_hold_fit(c, &s) == GP_BLOCKED;
}

// Instances of such graphs. Few programs have any; one that does not fit in the table runs beside the hold
// until that expires.
static _Atomic(CUgraphExec) blocked[64];
static _Atomic uint32_t any;
enum { BLOCKED = sizeof blocked / sizeof *blocked };

void gp_graph_instantiated(CUgraphExec exec, CUgraph graph)
{
	gp_blp_graph_instantiated(exec, graph);
	struct gp_context *c = gp_current_context();
	if (!c || !graph || !gp_settings.hold || !gp_driver.cuGraphKernelNodeGetParams || !blocked_graph(c, graph, 0))
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
