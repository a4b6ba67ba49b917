// graph_nodes.c - memory nodes of graphs. The driver takes their memory as a graph is first launched. Here a graph is refused when it is
// instantiated, if what its nodes have at once exceeds memory.limit. The driver may need more than that, since branches share less.
#define _GNU_SOURCE
#include "preempt/driver/cancel.h"
#include "preempt/memory/own.h"
#include "preempt/objects/objects.h"

#include <stdlib.h>

enum {
	DEEPEST = 8, // graphs within graphs
};

struct needs {
	struct made {
		CUdeviceptr at;
		uint64_t bytes;
		int gpu;
	} *made; // what is allocated so far and not freed
	size_t count, room;
	uint64_t now[GP_GPUS], most[GP_GPUS];
};

static void allocated(struct needs *n, CUgraphNode node)
{
	struct gp_memory_node q;
	const struct gp_gpu *gpu = gp_driver.cuGraphMemAllocNodeGetParams(node, &q) ?
					   NULL :
					   gp_gpu_at(q.pool.location.type, q.pool.location.id);
	if (!gpu)
		return;
	if (n->count == n->room) {
		size_t room = n->room ? 2 * n->room : 64;
		struct made *made = realloc(n->made, room * sizeof *made);
		if (!made)
			return;
		n->made = made;
		n->room = room;
	}
	int i = (int)(gpu - gp_gpu);
	if (__builtin_add_overflow(n->now[i], q.bytes, &n->now[i]))
		n->now[i] = UINT64_MAX;
	n->most[i] = n->now[i] > n->most[i] ? n->now[i] : n->most[i];
	n->made[n->count++] = (struct made){q.at, q.bytes, i};
}

static void freed(struct needs *n, CUgraphNode node)
{
	CUdeviceptr at;
	if (gp_driver.cuGraphMemFreeNodeGetParams(node, &at))
		return;
	for (size_t i = n->count; i-- > 0;) // the newest first, as programs free
		if (n->made[i].at == at) {
			n->now[n->made[i].gpu] -= n->made[i].bytes;
			n->made[i] = n->made[--n->count];
			return;
		}
}

// A graph whose nodes have no known order counts as one without memory.
static void count_nodes(struct needs *n, CUgraph graph, int depth)
{
	size_t count = 0;
	if (depth > DEEPEST || gp_driver.cuGraphGetNodes(graph, NULL, &count) || !count)
		return;
	CUgraphNode *nodes = calloc(count, sizeof *nodes);
	bool known = nodes && !gp_driver.cuGraphGetNodes(graph, nodes, &count) && gp_graph_order(graph, nodes, count);
	for (size_t i = 0; known && i < count; i++) {
		CUgraph child;
		int type;
		if (gp_driver.cuGraphNodeGetType(nodes[i], &type))
			break;
		if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
			allocated(n, nodes[i]);
		else if (type == CU_GRAPH_NODE_TYPE_MEM_FREE)
			freed(n, nodes[i]);
		else if (type == CU_GRAPH_NODE_TYPE_GRAPH && !gp_driver.cuGraphChildGraphNodeGetGraph(nodes[i], &child))
			count_nodes(n, child, depth + 1);
	}
	free(nodes);
}

// Graphs share what the driver keeps for them.
static bool fits(const struct gp_gpu *gpu, uint64_t bytes)
{
	uint64_t kept = gp_graphs_reserved(gpu);
	if (bytes <= kept || !gp_memory_is_beyond(gpu, bytes - kept))
		return true;
	gp_pools_trim(gpu);
	return !gp_memory_is_beyond(gpu, bytes - kept);
}

bool gp_memory_graph_fits(CUgraph graph)
{
	struct gp_context *c = graph ? gp_current_context() : NULL;
	if (!c || !gp_memory_limit(gp_memory_total(c->gpu)) || !gp_driver.cuGraphMemAllocNodeGetParams ||
	    !gp_driver.cuGraphMemFreeNodeGetParams || !gp_driver.cuGraphGetNodes || !gp_driver.cuGraphNodeGetType ||
	    !gp_driver.cuGraphChildGraphNodeGetGraph)
		return true;
	struct needs n = {0};
	int cancel = gp_cancel_off();
	count_nodes(&n, graph, 0);
	free(n.made);
	bool all = true;
	for (int i = 0; i < GP_GPUS && all; i++)
		all = !n.most[i] || fits(&gp_gpu[i], n.most[i]);
	gp_cancel_on(cancel);
	return all;
}
