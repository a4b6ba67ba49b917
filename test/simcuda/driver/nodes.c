// nodes.c - a graph as the list of its nodes, in the order in which they were made.
#include "sim.h"

#include <stdlib.h>

void graph_set_work(CUgraphNode n, const struct work *w)
{
	n->work = *w;
	for (int i = 0; i < KERNEL_PARAMETERS; i++)
		n->parameters[i] = &n->work.argument[i];
	if (w->guarded)
		n->parameters[w->kernel->parameters] = &n->work.hidden;
}

CUgraphNode graph_append(CUgraph g, const struct work *w)
{
	CUgraphNode n = calloc(1, sizeof *n);
	if (!n)
		abort();
	graph_set_work(n, w);
	if (g->last)
		g->last->next = n;
	else
		g->first = n;
	g->last = n;
	g->nodes++;
	handle_add(n, H_NODE);
	return n;
}

void graph_free(CUgraph g)
{
	while (g->first) {
		CUgraphNode n = g->first;
		g->first = n->next;
		handle_remove(n);
		if (n->child)
			graph_free(n->child);
		free(n);
	}
	handle_remove(g);
	free(g);
}

CUgraph graph_new(void)
{
	CUgraph g = calloc(1, sizeof *g);
	if (!g)
		abort();
	handle_add(g, H_GRAPH);
	return g;
}

bool graph_replace(CUgraph to, CUgraph from)
{
	bool same = to->nodes == from->nodes;
	for (CUgraphNode a = to->first, b = from->first; a && b && same; a = a->next, b = b->next)
		same = a->work.kind == b->work.kind;
	for (CUgraphNode a = to->first, b = from->first; a && b && same; a = a->next, b = b->next)
		graph_set_work(a, &b->work);
	return same;
}

CUgraph graph_copy(CUgraph g)
{
	CUgraph copy = graph_new();
	for (CUgraphNode n = g->first; n; n = n->next)
		graph_append(copy, &n->work)->child = n->child ? graph_copy(n->child) : NULL;
	return copy;
}
