// graph.c - the calls for graphs. A launch puts the nodes on the stream in the order in which they were made: branches of one graph
// do not overlap here.
#include "sim.h"

#include <stdlib.h>
#include <string.h>

#define DEVICES 8

CALL(cuGraphCreate, (CUgraph * out, unsigned flags), (out, flags))
{
	CUresult r = out && !flags ? enter(NULL) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	*out = graph_new();
	return leave(CUDA_SUCCESS);
}

CALL(cuGraphDestroy, (CUgraph g), (g))
{
	CUresult r = enter(NULL);
	if (r != CUDA_SUCCESS)
		return r;
	if (!handle_is(g, H_GRAPH))
		return leave(CUDA_ERROR_INVALID_HANDLE);
	graph_free(g);
	return leave(CUDA_SUCCESS);
}

// Gives the newest first, since CUDA promises no order.
CALL(cuGraphGetNodes, (CUgraph g, CUgraphNode *out, size_t *n), (g, out, n))
{
	CUresult r = n ? enter(NULL) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	if (!handle_is(g, H_GRAPH))
		return leave(CUDA_ERROR_INVALID_HANDLE);
	if (out) {
		size_t nodes = (size_t)g->nodes, room = *n, i = nodes;
		for (CUgraphNode at = g->first; at; at = at->next)
			if (--i < room)
				out[i] = at;
		for (size_t k = nodes; k < room; k++)
			out[k] = NULL;
		*n = room < nodes ? room : nodes;
	} else {
		*n = (size_t)g->nodes;
	}
	return leave(CUDA_SUCCESS);
}

// Each node has an edge from the one that was made before it.
CALL(cuGraphGetEdges, (CUgraph g, CUgraphNode *from, CUgraphNode *to, size_t *n), (g, from, to, n))
{
	CUresult r = n ? enter(NULL) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	if (!handle_is(g, H_GRAPH) || !from != !to)
		return leave(CUDA_ERROR_INVALID_VALUE);
	size_t i = 0, room = from ? *n : 0;
	for (CUgraphNode at = g->first; at && at->next; at = at->next, i++)
		if (i < room) {
			from[i] = at;
			to[i] = at->next;
		}
	*n = from && i > room ? room : i;
	return leave(CUDA_SUCCESS);
}

CALL(cuGraphNodeGetType, (CUgraphNode n, int *out), (n, out))
{
	CUresult r = out ? enter(NULL) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	if (!handle_is(n, H_NODE))
		return leave(CUDA_ERROR_INVALID_HANDLE);
	if (n->child || n->memory.is) {
		*out = n->child ? 4 : n->memory.is == GRAPH_ALLOCATES ? 10 : 11; // GRAPH, MEM_ALLOC, MEM_FREE
		return leave(CUDA_SUCCESS);
	}
	switch (n->work.kind) { // CUgraphNodeType
	case OP_KERNEL: *out = 0; break;
	case OP_COPY: *out = 1; break;
	case OP_MEMSET: *out = 2; break;
	case OP_HOST: *out = 3; break;
	case OP_WAIT_VALUE:
	case OP_WRITE_VALUE: *out = 12; break; // BATCH_MEM_OP
	default: *out = 5;                     // EMPTY
	}
	return leave(CUDA_SUCCESS);
}

// ---- kernel nodes

typedef struct {
	CUfunction func;
	unsigned grid[3], block[3], sharedMemBytes;
	void **kernelParams, **extra;
	void *kern; // from here on not in v1
	CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS;

static CUresult enter_node(CUgraphNode n, const void *parameters)
{
	CUresult r = parameters ? enter(NULL) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	return handle_is(n, H_NODE) && n->work.kind == OP_KERNEL ? r : leave(CUDA_ERROR_INVALID_HANDLE);
}

// A node keeps the SMs of the stream on which it was captured.
static CUresult node_work(struct work *w, const CUDA_KERNEL_NODE_PARAMS *p, bool cooperative, const struct sm_set *sms,
			  bool v1)
{
	return launch_work(w,
			   p->func ? p->func :
			   v1      ? NULL :
				     p->kern,
			   p->grid, p->block, p->sharedMemBytes, cooperative, sms, p->kernelParams, p->extra);
}

static CUresult get_parameters(CUgraphNode n, CUDA_KERNEL_NODE_PARAMS *out, bool v1)
{
	CUresult r = enter_node(n, out);
	if (r != CUDA_SUCCESS)
		return r;
	bool kernel = !v1 && handle_is(n->work.function, H_KERNEL);
	out->func = kernel ? NULL : n->work.function;
	memcpy(out->grid, n->work.grid, sizeof out->grid);
	memcpy(out->block, n->work.block, sizeof out->block);
	out->sharedMemBytes = n->work.shared_bytes;
	out->kernelParams = n->parameters;
	out->extra = NULL;
	if (!v1) {
		out->kern = kernel ? n->work.function : NULL;
		out->ctx = NULL;
	}
	return leave(CUDA_SUCCESS);
}

static CUresult set_parameters(CUgraphNode n, const CUDA_KERNEL_NODE_PARAMS *p, bool v1)
{
	struct work w;
	CUresult r = enter_node(n, p);
	if (r != CUDA_SUCCESS)
		return r;
	r = node_work(&w, p, n->work.cooperative, &n->work.sms, v1);
	if (r == CUDA_SUCCESS)
		graph_set_work(n, &w);
	return leave(r);
}

CUresult graph_add_node(CUgraphNode *out, CUgraph g, const CUgraphNode *on, size_t count, const struct work *w)
{
	if (!handle_is(g, H_GRAPH) || (count && !on))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++)
		if (!handle_is(on[i], H_NODE))
			return CUDA_ERROR_INVALID_VALUE;
	*out = graph_append(g, w);
	return CUDA_SUCCESS;
}

static CUresult add_kernel(CUgraphNode *out, CUgraph g, const CUgraphNode *on, size_t count,
			   const CUDA_KERNEL_NODE_PARAMS *p, bool v1)
{
	struct work w;
	CUresult r = out && p ? enter(NULL) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	r = node_work(&w, p, false, &(struct sm_set){{0}}, v1);
	return leave(r == CUDA_SUCCESS ? graph_add_node(out, g, on, count, &w) : r);
}

CALL(cuGraphAddKernelNode,
     (CUgraphNode * out, CUgraph g, const CUgraphNode *on, size_t count, const CUDA_KERNEL_NODE_PARAMS *p),
     (out, g, on, count, p))
{
	return add_kernel(out, g, on, count, p, true);
}

CALL(cuGraphAddKernelNode_v2,
     (CUgraphNode * out, CUgraph g, const CUgraphNode *on, size_t count, const CUDA_KERNEL_NODE_PARAMS *p),
     (out, g, on, count, p))
{
	return add_kernel(out, g, on, count, p, false);
}

CALL(cuGraphAddEmptyNode, (CUgraphNode * out, CUgraph g, const CUgraphNode *on, size_t count), (out, g, on, count))
{
	CUresult r = out ? enter(NULL) : CUDA_ERROR_INVALID_VALUE;
	return r == CUDA_SUCCESS ? leave(graph_add_node(out, g, on, count, &(struct work){.kind = OP_MARK})) : r;
}

CALL(cuGraphKernelNodeGetParams, (CUgraphNode n, CUDA_KERNEL_NODE_PARAMS *out), (n, out))
{
	return get_parameters(n, out, true);
}

CALL(cuGraphKernelNodeGetParams_v2, (CUgraphNode n, CUDA_KERNEL_NODE_PARAMS *out), (n, out))
{
	return get_parameters(n, out, false);
}

CALL(cuGraphKernelNodeSetParams, (CUgraphNode n, const CUDA_KERNEL_NODE_PARAMS *p), (n, p))
{
	return set_parameters(n, p, true);
}

CALL(cuGraphKernelNodeSetParams_v2, (CUgraphNode n, const CUDA_KERNEL_NODE_PARAMS *p), (n, p))
{
	return set_parameters(n, p, false);
}

CALL(cuGraphKernelNodeGetAttribute, (CUgraphNode n, int attribute, void *value), (n, attribute, value))
{ // CUlaunchAttributeValue
	CUresult r = enter_node(n, value);
	if (r != CUDA_SUCCESS)
		return r;
	memset(value, 0, 64);
	if (attribute == LAUNCH_ATTRIBUTE_COOPERATIVE)
		*(int *)value = n->work.cooperative;
	else if (attribute == LAUNCH_ATTRIBUTE_PRIORITY)
		*(int *)value = n->work.priority;
	return leave(CUDA_SUCCESS);
}

// CUgraphNodeParams; of its union only the kernel's.
typedef struct {
	int type, reserved[3];
	CUDA_KERNEL_NODE_PARAMS kernel;
} CUgraphNodeParams;

static CUresult any_node(CUgraphNode *out, CUgraph g, const CUgraphNode *on, size_t count, const CUgraphNodeParams *p)
{
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	switch (p->type) { // CUgraphNodeType
	case 0: return add_kernel(out, g, on, count, &p->kernel, false);
	case 5: return cuGraphAddEmptyNode(out, g, on, count);
	default: return CUDA_ERROR_NOT_SUPPORTED;
	}
}

CALL(cuGraphAddNode, (CUgraphNode * out, CUgraph g, const CUgraphNode *on, size_t count, CUgraphNodeParams *p),
     (out, g, on, count, p))
{
	return any_node(out, g, on, count, p);
}

CALL(cuGraphAddNode_v2,
     (CUgraphNode * out, CUgraph g, const CUgraphNode *on, const void *edges, size_t count, CUgraphNodeParams *p),
     (out, g, on, edges, count, p))
{
	(void)edges;
	return any_node(out, g, on, count, p);
}

CALL(cuGraphNodeSetParams, (CUgraphNode n, CUgraphNodeParams *p), (n, p))
{
	if (!p || p->type)
		return p ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
	return set_parameters(n, &p->kernel, false);
}

// ---- graphs in graphs

static bool has_memory(CUgraph g)
{
	CUgraphNode n = g->first;
	while (n && !n->memory.is && !(n->child && has_memory(n->child)))
		n = n->next;
	return n;
}

CALL(cuGraphAddChildGraphNode, (CUgraphNode * out, CUgraph g, const CUgraphNode *on, size_t count, CUgraph child),
     (out, g, on, count, child))
{
	CUresult r = out ? enter(NULL) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	if (handle_is(child, H_GRAPH) && has_memory(child))
		return leave(CUDA_ERROR_NOT_SUPPORTED);
	r = handle_is(child, H_GRAPH) ? graph_add_node(out, g, on, count, &(struct work){.kind = OP_MARK}) :
					CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS)
		(*out)->child = graph_copy(child);
	return leave(r);
}

CALL(cuGraphChildGraphNodeGetGraph, (CUgraphNode n, CUgraph *out), (n, out))
{
	CUresult r = out ? enter(NULL) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	if (!handle_is(n, H_NODE) || !n->child)
		return leave(CUDA_ERROR_INVALID_HANDLE);
	*out = n->child;
	return leave(CUDA_SUCCESS);
}

// Counts the nodes of a graph and of the graphs in it, and puts them into at unless that is NULL.
static int all_nodes(CUgraph g, CUgraphNode *at)
{
	int count = 0;
	for (CUgraphNode n = g->first; n; n = n->next) {
		if (at)
			at[count] = n;
		count++;
		if (n->child)
			count += all_nodes(n->child, at ? at + count : NULL);
	}
	return count;
}

// ---- executable graphs

struct CUgraphExec_st {
	struct work *work;
	CUgraphNode *node; // the nodes of the graph that it was made from
	int n;
	struct op *last; // latest launch: launches of one executable graph do not overlap
	bool with_memory;
	uint64_t memory[DEVICES];
};

CALL(cuGraphInstantiateWithFlags, (CUgraphExec * out, CUgraph g, unsigned long long flags), (out, g, flags))
{
	enum { USE_NODE_PRIORITY = 8 }; // CUgraphInstantiate_flags
	struct CUctx_st *c;
	CUresult r = out ? enter(&c) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	if (sim_making_waits())
		call_wait(c, CALL_SUBMIT);
	if (!handle_is(g, H_GRAPH))
		return leave(CUDA_ERROR_INVALID_HANDLE);
	CUgraphExec e = calloc(1, sizeof *e);
	size_t nodes = (size_t)all_nodes(g, NULL);
	if (!e || !(e->work = calloc(nodes + 1, sizeof *e->work)) || !(e->node = calloc(nodes + 1, sizeof *e->node)))
		abort();
	e->n = all_nodes(g, e->node);
	for (int i = 0; i < e->n; i++) {
		e->work[i] = e->node[i]->work;
		e->work[i].prioritized = flags & USE_NODE_PRIORITY;
	}
	e->with_memory = has_memory(g);
	for (int i = 0; i < sim_devices() && i < DEVICES; i++)
		e->memory[i] = graph_memory_needs(e->node, e->n, i);
	handle_add(e, H_EXEC);
	*out = e;
	return leave(CUDA_SUCCESS);
}

typedef struct {
	unsigned long long flags;
	CUstream upload;
	CUgraphNode error_node;
	int result; // CU_GRAPH_INSTANTIATE_SUCCESS 0, ERROR 1
} CUDA_GRAPH_INSTANTIATE_PARAMS;

static CUresult instantiate_with(CUgraphExec *out, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS *p)
{
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = cuGraphInstantiateWithFlags(out, g, p->flags);
	p->error_node = NULL;
	p->result = r != CUDA_SUCCESS;
	return r;
}

CALL(cuGraphInstantiateWithParams, (CUgraphExec * out, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS *p), (out, g, p))
{
	return instantiate_with(out, g, p);
}

CALL(cuGraphInstantiateWithParams_ptsz, (CUgraphExec * out, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS *p), (out, g, p))
{
	return instantiate_with(out, g, p);
}

CALL(cuGraphInstantiate_v2, (CUgraphExec * out, CUgraph g, CUgraphNode *node, char *log, size_t bytes),
     (out, g, node, log, bytes))
{
	if (node)
		*node = NULL;
	if (log && bytes)
		*log = 0;
	return cuGraphInstantiateWithFlags(out, g, 0);
}

CALL(cuGraphExecDestroy, (CUgraphExec e), (e))
{
	CUresult r = enter(NULL);
	if (r != CUDA_SUCCESS)
		return r;
	if (!handle_is(e, H_EXEC))
		return leave(CUDA_ERROR_INVALID_HANDLE);
	handle_remove(e);
	op_unref(e->last);
	free(e->work);
	free(e->node);
	free(e);
	return leave(CUDA_SUCCESS);
}

static CUresult exec_set(CUgraphExec e, CUgraphNode n, const CUDA_KERNEL_NODE_PARAMS *p, bool v1)
{
	struct work w;
	CUresult r = enter_node(n, p);
	if (r != CUDA_SUCCESS)
		return r;
	if (!handle_is(e, H_EXEC))
		return leave(CUDA_ERROR_INVALID_HANDLE);
	int i = 0;
	while (i < e->n && e->node[i] != n)
		i++;
	r = i == e->n ? CUDA_ERROR_INVALID_VALUE : node_work(&w, p, n->work.cooperative, &e->work[i].sms, v1);
	w.priority = i == e->n ? 0 : e->work[i].priority;
	w.prioritized = i < e->n && e->work[i].prioritized;
	if (r == CUDA_SUCCESS)
		e->work[i] = w;
	return leave(r);
}

CALL(cuGraphExecKernelNodeSetParams, (CUgraphExec e, CUgraphNode n, const CUDA_KERNEL_NODE_PARAMS *p), (e, n, p))
{
	return exec_set(e, n, p, true);
}

CALL(cuGraphExecKernelNodeSetParams_v2, (CUgraphExec e, CUgraphNode n, const CUDA_KERNEL_NODE_PARAMS *p), (e, n, p))
{
	return exec_set(e, n, p, false);
}

CALL(cuGraphExecNodeSetParams, (CUgraphExec e, CUgraphNode n, CUgraphNodeParams *p), (e, n, p))
{
	if (!p || p->type)
		return p ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
	return exec_set(e, n, &p->kernel, false);
}

static CUresult update(CUgraphExec e, CUgraph g, bool *same)
{
	CUresult r = enter(NULL);
	if (r != CUDA_SUCCESS)
		return r;
	if (!handle_is(e, H_EXEC) || !handle_is(g, H_GRAPH))
		return leave(CUDA_ERROR_INVALID_HANDLE);
	*same = g->nodes == e->n;
	int i = 0;
	for (CUgraphNode n = g->first; n && *same; n = n->next)
		*same = n->work.kind == e->work[i++].kind;
	i = 0;
	for (CUgraphNode n = g->first; n && *same; n = n->next)
		e->work[i++] = n->work;
	return leave(*same ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
}

#define UPDATE_TOPOLOGY_CHANGED 2 // CUgraphExecUpdateResult

typedef struct {
	int result;
	CUgraphNode node, from;
} CUgraphExecUpdateResultInfo;

CALL(cuGraphExecUpdate_v2, (CUgraphExec e, CUgraph g, CUgraphExecUpdateResultInfo *info), (e, g, info))
{
	bool same = false;
	CUresult r = info ? update(e, g, &same) : CUDA_ERROR_INVALID_VALUE;
	if (info) {
		info->result = r == CUDA_SUCCESS ? 0 : same ? 1 : UPDATE_TOPOLOGY_CHANGED;
		info->node = info->from = NULL;
	}
	return r;
}

CALL(cuGraphExecUpdate, (CUgraphExec e, CUgraph g, CUgraphNode *node, int *result), (e, g, node, result))
{
	bool same = false;
	CUresult r = update(e, g, &same);
	if (node)
		*node = NULL;
	if (result)
		*result = r == CUDA_SUCCESS ? 0 : same ? 1 : UPDATE_TOPOLOGY_CHANGED;
	return r;
}

static CUresult load_nodes(CUgraphExec e)
{
	struct CUctx_st *c;
	CUresult r = enter(&c);
	if (r != CUDA_SUCCESS)
		return r;
	for (int i = 0; !capture_in_context(c, false) && handle_is(e, H_EXEC) && i < e->n; i++)
		if (e->work[i].kind == OP_KERNEL && is_function(e->work[i].function))
			function_load(e->work[i].function, c);
	return leave(CUDA_SUCCESS);
}

DUAL(cuGraphLaunch, _ptsz, (CUgraphExec e, CUstream s), (e, s))
{
	struct CUstream_st *st;
	CUresult r = load_nodes(e);
	if (r == CUDA_SUCCESS)
		r = enter_submission(s, &st);
	if (r != CUDA_SUCCESS)
		return r;
	if (!handle_is(e, H_EXEC))
		return leave(CUDA_ERROR_INVALID_HANDLE);
	if (st->capture && e->with_memory)
		return leave(CUDA_ERROR_NOT_SUPPORTED);
	if (st->capture) {
		for (int i = 0; i < e->n && r == CUDA_SUCCESS; i++)
			r = capture_node(st, &e->work[i]);
		return leave(r);
	}
	if (st->legacy && capture_in_context(st->ctx, true))
		return leave(put(st, &(struct work){.kind = OP_MARK}, NULL)); // refuses
	if (!graph_memory_take(e->memory))
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	if (e->last && !e->last->done)
		op_unref(stream_submit(st, &(struct work){.kind = OP_MARK}, e->last));
	stream_submit_many(st, e->work, e->n);
	op_unref(e->last);
	e->last = stream_submit(st, &(struct work){.kind = OP_MARK}, NULL);
	leave(CUDA_SUCCESS);
	sim_doorbell(NULL);
	return CUDA_SUCCESS;
}

DUAL(cuGraphUpload, _ptsz, (CUgraphExec e, CUstream s), (e, s))
{
	struct CUstream_st *st;
	CUresult r = enter_stream(s, &st);
	if (r != CUDA_SUCCESS)
		return r;
	if (!handle_is(e, H_EXEC))
		return leave(CUDA_ERROR_INVALID_HANDLE);
	return leave(graph_memory_take(e->memory) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}
