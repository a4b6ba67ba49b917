// graph_memory.c - memory nodes of graphs. A node's memory is there from the node on, and stays until the process ends. The device is charged as
// a graph is launched, with what its nodes need at once. Graphs share that, and keep it until the program trims it.
#include "sim.h"

#include <stdlib.h>

#define DEVICES 8

static uint64_t reserved[DEVICES], most[DEVICES];

// CUDA_MEM_ALLOC_NODE_PARAMS.
struct parameters {
	int type, handle_types, location, id; // CUmemPoolProps, to rest
	unsigned char rest[72];
	const void *accesses;
	size_t count, bytes;
	CUdeviceptr at;
};
_Static_assert(sizeof(struct parameters) == 120, "CUDA_MEM_ALLOC_NODE_PARAMS");

CUresult graph_memory_of(struct graph_memory *m, int device, uint64_t bytes)
{
	struct pool *p = pool_of_graphs(device, bytes);
	uint64_t at = p ? memory_allocate(bytes, MEMORY_DEVICE, p) : 0;
	if (!at && p)
		pool_take_back(p, bytes);
	if (!at)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*m = (struct graph_memory){GRAPH_ALLOCATES, device, at, bytes};
	return CUDA_SUCCESS;
}

uint64_t graph_memory_needs(const CUgraphNode *nodes, int count, int device)
{
	uint64_t now = 0, needs = 0;
	for (int i = 0; i < count; i++) {
		const struct graph_memory *m = &nodes[i]->memory;
		if (m->is == GRAPH_ALLOCATES && m->device == device)
			now += memory_pages(m->bytes);
		for (int k = 0; k < i && m->is == GRAPH_FREES; k++) {
			const struct graph_memory *of = &nodes[k]->memory;
			if (of->is == GRAPH_ALLOCATES && of->device == device && of->at == m->at)
				now -= memory_pages(of->bytes);
		}
		needs = now > needs ? now : needs;
	}
	return needs;
}

bool graph_memory_take(const uint64_t *needs)
{
	for (int i = 0; i < sim_devices(); i++) {
		if (needs[i] <= reserved[i])
			continue;
		if (!memory_charge(i, needs[i] - reserved[i]))
			return false;
		reserved[i] = needs[i];
		most[i] = needs[i] > most[i] ? needs[i] : most[i];
	}
	return true;
}

CALL(cuGraphAddMemAllocNode, (CUgraphNode * out, CUgraph g, const CUgraphNode *on, size_t count, struct parameters *p),
     (out, g, on, count, p))
{
	struct graph_memory m;
	CUresult r = out && p && p->bytes && p->type == 1 && p->location == 1 ? enter(NULL) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	if (p->id < 0 || p->id >= sim_devices())
		return leave(CUDA_ERROR_INVALID_DEVICE);
	r = graph_memory_of(&m, p->id, p->bytes);
	if (r == CUDA_SUCCESS)
		r = graph_add_node(out, g, on, count, &(struct work){.kind = OP_MARK});
	if (r != CUDA_SUCCESS)
		return leave(r);
	(*out)->memory = m;
	p->at = m.at;
	return leave(CUDA_SUCCESS);
}

CALL(cuGraphAddMemFreeNode, (CUgraphNode * out, CUgraph g, const CUgraphNode *on, size_t count, CUdeviceptr at),
     (out, g, on, count, at))
{
	CUresult r = out ? enter(NULL) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	r = memory_known(at, MEMORY_DEVICE) ? graph_add_node(out, g, on, count, &(struct work){.kind = OP_MARK}) :
					      CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS)
		(*out)->memory = (struct graph_memory){.is = GRAPH_FREES, .at = at};
	return leave(r);
}

static CUresult enter_memory(CUgraphNode n, const void *out, enum graph_memory_node is)
{
	CUresult r = out ? enter(NULL) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	return handle_is(n, H_NODE) && n->memory.is == is ? r : leave(CUDA_ERROR_INVALID_VALUE);
}

CALL(cuGraphMemAllocNodeGetParams, (CUgraphNode n, struct parameters *out), (n, out))
{
	CUresult r = enter_memory(n, out, GRAPH_ALLOCATES);
	if (r != CUDA_SUCCESS)
		return r;
	*out = (struct parameters){
		.type = 1, .location = 1, .id = n->memory.device, .bytes = n->memory.bytes, .at = n->memory.at};
	return leave(r);
}

CALL(cuGraphMemFreeNodeGetParams, (CUgraphNode n, CUdeviceptr *out), (n, out))
{
	CUresult r = enter_memory(n, out, GRAPH_FREES);
	if (r != CUDA_SUCCESS)
		return r;
	*out = n->memory.at;
	return leave(r);
}

static CUresult enter_device(CUdevice d)
{
	CUresult r = enter(NULL);
	return r == CUDA_SUCCESS && (d < 0 || d >= sim_devices()) ? leave(CUDA_ERROR_INVALID_DEVICE) : r;
}

// Besides, graphs keep so much memory as SIMCUDA_GRAPH_MB says, which is a part of SIMCUDA_CONTEXT_MB.
CALL(cuDeviceGetGraphMemAttribute, (CUdevice d, int attribute, uint64_t *value), (d, attribute, value))
{
	enum { USED, USED_HIGH, RESERVED, RESERVED_HIGH }; // CUgraphMem_attribute
	CUresult r = value && attribute >= USED && attribute <= RESERVED_HIGH ? enter_device(d) : CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	const char *kept = attribute >= RESERVED ? getenv("SIMCUDA_GRAPH_MB") : NULL;
	*value = (attribute == RESERVED      ? reserved[d] :
		  attribute == RESERVED_HIGH ? most[d] :
					       0) +
		 (kept ? strtoull(kept, NULL, 10) << 20 : 0);
	return leave(r);
}

CALL(cuDeviceGraphMemTrim, (CUdevice d), (d))
{
	CUresult r = enter_device(d);
	if (r != CUDA_SUCCESS)
		return r;
	if (reserved[d])
		memory_discharge(d, reserved[d]);
	reserved[d] = 0;
	return leave(r);
}
