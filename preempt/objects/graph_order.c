// graph_order.c - an order for the nodes of a graph.
#include "preempt/driver/driver.h"
#include "preempt/objects/objects.h"

#include <stdlib.h>

struct place {
	CUgraphNode node;
	size_t ahead; // number of edges to it whose other end is not placed yet
};

struct edge { struct place *from, *to; };

static int by_node(const void *a, const void *b)
{
	uintptr_t x = (uintptr_t)((const struct place *)a)->node, y = (uintptr_t)((const struct place *)b)->node;
	return x < y ? -1 : x > y;
}

static int by_start(const void *a, const void *b)
{
	uintptr_t x = (uintptr_t)((const struct edge *)a)->from, y = (uintptr_t)((const struct edge *)b)->from;
	return x < y ? -1 : x > y;
}

static struct place *place_of(CUgraphNode node, struct place *places, size_t count)
{
	return bsearch(&(struct place){.node = node}, places, count, sizeof *places, by_node);
}

// Takes nodes without edges from nodes ahead first, then those that come behind them. places and edges are sorted.
static bool sort_nodes(CUgraphNode *nodes, struct place *places, size_t count, const struct edge *edge, size_t edges)
{
	size_t placed = 0;
	for (size_t i = 0; i < count; i++)
		if (!place_of(nodes[i], places, count)->ahead)
			nodes[placed++] = nodes[i];
	for (size_t i = 0; i < placed; i++) {
		struct place *from = place_of(nodes[i], places, count);
		size_t at = 0, end = edges; // of its edges, the first
		while (at < end) {
			size_t middle = (at + end) / 2;
			if (edge[middle].from < from)
				at = middle + 1;
			else
				end = middle;
		}
		for (; at < edges && edge[at].from == from; at++)
			if (!--edge[at].to->ahead)
				nodes[placed++] = edge[at].to->node;
	}
	return placed == count;
}

bool gp_graph_order(CUgraph graph, CUgraphNode *nodes, size_t count)
{
	size_t edges = 0;
	bool known = gp_driver.cuGraphGetEdges && !gp_driver.cuGraphGetEdges(graph, NULL, NULL, &edges);
	CUgraphNode *from = calloc(edges + 1, sizeof *from), *to = calloc(edges + 1, sizeof *to);
	struct place *places = calloc(count, sizeof *places);
	struct edge *edge = calloc(edges + 1, sizeof *edge);

	known = known && from && to && places && edge && (!edges || !gp_driver.cuGraphGetEdges(graph, from, to, &edges));
	if (known) {
		for (size_t i = 0; i < count; i++)
			places[i].node = nodes[i];
		qsort(places, count, sizeof *places, by_node);
	}
	for (size_t i = 0; known && i < edges; i++) {
		edge[i] = (struct edge){place_of(from[i], places, count), place_of(to[i], places, count)};
		if ((known = edge[i].from && edge[i].to))
			edge[i].to->ahead++;
	}
	if (known) {
		qsort(edge, edges, sizeof *edge, by_start);
		known = sort_nodes(nodes, places, count, edge, edges);
	}
	free(from);
	free(to);
	free(places);
	free(edge);
	return known;
}
