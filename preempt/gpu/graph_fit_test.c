// graph_fit_test.c - with preempt/gpu/graph_fit.c preempt/objects/objects.c.
//
// Graphs that a hold would block, and graphs that may wait for the CPU: by their nodes, those of graphs within graphs, and what the
// driver refuses to tell.
#define _GNU_SOURCE
#include "preempt/gpu/gpu.h"
#include "preempt/objects/objects.h"
#include "test/units/check.h"

#include <string.h>

enum { NODES = 4, GRAPHS = 12, NONE = -1 };

// Graphs are numbers from 1 on; a node is its graph's number times 16, and its own.
static struct graph {
	size_t count;
	struct node {
		int type;
		uintptr_t child;
		bool cooperative;
		unsigned blocks;
	} node[NODES];
} graphs[GRAPHS];
static int refuses_from = NONE, calls; // the driver's calls

static uint32_t looked_at; // kernels: each is its node
void gp_rank_kernel(CUfunction kernel)
{
	CHECK(graphs[(uintptr_t)kernel / 16].node[(uintptr_t)kernel % 16].type == CU_GRAPH_NODE_TYPE_KERNEL);
	looked_at++;
}
static bool refuses(void) { return refuses_from != NONE && calls++ >= refuses_from; }
static struct node *node_of(CUgraphNode n) { return &graphs[(uintptr_t)n / 16].node[(uintptr_t)n % 16]; }

static CUresult get_nodes(CUgraph g, CUgraphNode *nodes, size_t *count)
{
	if (refuses())
		return CUDA_ERROR_INVALID_VALUE;
	if (nodes)
		CHECK(*count >= graphs[(uintptr_t)g].count);
	*count = graphs[(uintptr_t)g].count;
	for (size_t i = 0; nodes && i < *count; i++)
		nodes[i] = (CUgraphNode)((uintptr_t)g * 16 + i);
	return CUDA_SUCCESS;
}
static CUresult get_type(CUgraphNode n, int *type)
{
	*type = node_of(n)->type;
	return refuses() ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
static CUresult get_child(CUgraphNode n, CUgraph *child)
{
	*child = (CUgraph)node_of(n)->child;
	return refuses() ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
static CUresult get_attribute(CUgraphNode n, int attribute, void *value)
{
	CHECK(attribute == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && node_of(n)->type == CU_GRAPH_NODE_TYPE_KERNEL);
	*(int *)value = node_of(n)->cooperative;
	return refuses() ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
static CUresult get_parameters(CUgraphNode n, struct gp_kernel_node *k)
{
	memset(k, 0, sizeof *k);
	k->function = (CUfunction)n;
	k->grid[0] = node_of(n)->blocks;
	k->grid[1] = 2;
	k->grid[2] = 3;
	k->block[0] = 4;
	k->block[1] = 5;
	k->block[2] = 6;
	k->shared_bytes = 7;
	return refuses() ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

struct gp_driver gp_driver = {
	.cuGraphGetNodes = get_nodes,
	.cuGraphNodeGetType = get_type,
	.cuGraphChildGraphNodeGetGraph = get_child,
	.cuGraphKernelNodeGetAttribute = (void *)get_attribute,
	.cuGraphKernelNodeGetParams = (void *)get_parameters,
};
struct gp_settings gp_settings = {.hold = 1};
static bool is_current = true, reads = true;
struct gp_context gp_context[GP_CONTEXTS];
struct gp_context *gp_current_context(void) { return is_current ? gp_context : NULL; }
bool gp_driver_reads_graphs(void) { return reads; }

enum { MOST_BLOCKS = 100 };
enum gp_fit gp_hold_fit(struct gp_context *c, const struct gp_launch *l)
{
	CHECK(c == gp_context && l->cooperative && l->function);
	CHECK(l->grid[1] == 2 && l->grid[2] == 3 && l->block[0] == 4 && l->block[1] == 5 && l->block[2] == 6 &&
	      l->shared_bytes == 7);
	return l->grid[0] > MOST_BLOCKS ? GP_BLOCKED : GP_SPREADS;
}

static struct node *add(uintptr_t g, int type)
{
	struct node *n = &graphs[g].node[graphs[g].count++];
	*n = (struct node){.type = type};
	return n;
}
static struct node *add_kernel(uintptr_t g, bool cooperative, unsigned blocks)
{
	struct node *n = add(g, CU_GRAPH_NODE_TYPE_KERNEL);
	n->cooperative = cooperative;
	n->blocks = blocks;
	return n;
}

static uintptr_t execs = 0x1000;
static CUgraphExec instance(uintptr_t g, bool asked)
{
	CUgraphExec exec = (CUgraphExec)(execs += 0x40);
	calls = 0;
	gp_object_begin(GP_GRAPH_INSTANCE, exec, NULL);
	gp_graph_instantiated(exec, (CUgraph)g, asked);
	return exec;
}
static bool waits(uintptr_t g)
{
	CUgraphExec exec = instance(g, true);
	bool is = gp_graph_waits_for_cpu(exec);
	gp_object_end(GP_GRAPH_INSTANCE, exec);
	CHECK(gp_graph_waits_for_cpu(exec)); // nothing is known of the next one that has its address
	return is;
}
static bool blocked(uintptr_t g)
{
	CUgraphExec exec = instance(g, false);
	enum gp_fit fit = gp_graph_fit(exec);
	CHECK(fit == GP_BLOCKED || fit == GP_FITS);
	gp_object_end(GP_GRAPH_INSTANCE, exec);
	CHECK(gp_graph_fit(exec) == GP_FITS);
	return fit == GP_BLOCKED;
}

static void test_waits(void)
{
	static const int never[] = {CU_GRAPH_NODE_TYPE_KERNEL,           CU_GRAPH_NODE_TYPE_MEMCPY,
				    CU_GRAPH_NODE_TYPE_MEMSET,           CU_GRAPH_NODE_TYPE_EMPTY,
				    CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL, CU_GRAPH_NODE_TYPE_MEM_ALLOC,
				    CU_GRAPH_NODE_TYPE_MEM_FREE},
			 may[] = {CU_GRAPH_NODE_TYPE_HOST, CU_GRAPH_NODE_TYPE_WAIT_EVENT,
				  CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP};
	memset(graphs, 0, sizeof graphs);
	CHECK(!waits(1)); // without nodes
	for (size_t i = 0; i < sizeof never / sizeof *never; i++) {
		graphs[1].count = 0;
		add(1, never[i]);
		CHECK(!waits(1));
	}
	for (size_t i = 0; i < sizeof may / sizeof *may; i++) {
		graphs[1].count = 0;
		add(1, CU_GRAPH_NODE_TYPE_MEMCPY);
		add(1, may[i]);
		add(1, CU_GRAPH_NODE_TYPE_MEMCPY);
		CHECK(waits(1));
	}
	CHECK(!gp_graphs_record());
	graphs[1].count = 0;
	add(1, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
	CHECK(!waits(1) && gp_graphs_record());

	// In graphs within graphs, as deep as is looked.
	memset(graphs, 0, sizeof graphs);
	for (uintptr_t g = 1; g < 9; g++)
		add(g, CU_GRAPH_NODE_TYPE_GRAPH)->child = g + 1;
	CHECK(!waits(1));
	add(9, CU_GRAPH_NODE_TYPE_HOST);
	CHECK(waits(1));
	graphs[9].count = 0;
	add(9, CU_GRAPH_NODE_TYPE_GRAPH)->child = 10; // too deep: it may
	CHECK(waits(1) && !waits(2));
	graphs[9].count = 0;

	// Not asked, or not told: it may.
	CHECK(gp_graph_waits_for_cpu(instance(1, false)) && gp_graph_waits_for_cpu(NULL));
	refuses_from = 0;
	calls = 0;
	for (bool is = true; is; refuses_from++)
		is = waits(1);
	CHECK(refuses_from > 8 * 3);
	refuses_from = NONE;
	gp_driver.cuGraphChildGraphNodeGetGraph = NULL;
	CHECK(waits(9));
	gp_driver.cuGraphChildGraphNodeGetGraph = get_child;
	graphs[9].count = 0;
	add(9, 1234); // of a driver to come
	CHECK(waits(9));
}

static void test_blocked(void)
{
	memset(graphs, 0, sizeof graphs);
	CHECK(!blocked(1));
	add_kernel(1, true, MOST_BLOCKS);
	CHECK(!blocked(1));
	add_kernel(1, true, MOST_BLOCKS + 1);
	CHECK(blocked(1));
	graphs[1].node[1].cooperative = false;
	CHECK(!blocked(1));
	graphs[1].node[1].type = CU_GRAPH_NODE_TYPE_MEMCPY;
	CHECK(!blocked(1));
	add_kernel(9, true, MOST_BLOCKS + 1);
	for (uintptr_t g = 2; g < 9; g++)
		add(g, CU_GRAPH_NODE_TYPE_GRAPH)->child = g + 1;
	CHECK(blocked(2));
	add(1, CU_GRAPH_NODE_TYPE_GRAPH)->child = 2;
	CHECK(blocked(1));
	memset(&graphs[11], 0, sizeof graphs[11]);
	graphs[11].count = 0;
	add(11, CU_GRAPH_NODE_TYPE_GRAPH)->child = 1; // nine deep: not looked at
	CHECK(!blocked(11));

	// A rank is known by any kernel, also in graphs within graphs.
	looked_at = 0;
	add_kernel(4, false, 1);
	add_kernel(9, false, 1);
	CHECK(blocked(2) && looked_at >= 1);
	graphs[9].node[0].cooperative = false;
	looked_at = 0;
	CHECK(!blocked(2) && looked_at == 3);
	graphs[4].count = 1;
	graphs[9].count = 1;
	graphs[9].node[0].cooperative = true;

	// A node that the driver refuses to describe is not known to be blocked.
	refuses_from = 0;
	while (!blocked(2))
		refuses_from++;
	CHECK(refuses_from > 7 * 3);
	refuses_from = NONE;

	is_current = false;
	CHECK(!blocked(1));
	is_current = true;
	reads = false;
	CHECK(!blocked(1));
	reads = true;
	gp_settings.hold = 0;
	CHECK(!blocked(1));
	gp_settings.hold = 1;
}

// As many instances as there is room for, and more; places are used again.
static void test_tables(void)
{
	enum { MANY = 1 << 14, FREE = 1 << 13, BLOCKED = 200 };
	static CUgraphExec exec[MANY];
	uint32_t known = 0;
	memset(graphs, 0, sizeof graphs);
	add(1, CU_GRAPH_NODE_TYPE_MEMCPY);
	for (int round = 0; round < 2; round++) {
		known = 0;
		for (int i = 0; i < MANY; i++)
			exec[i] = instance(1, true);
		for (int i = 0; i < MANY; i++)
			known += !gp_graph_waits_for_cpu(exec[i]);
		CHECK(known <= FREE && known > FREE / 10 * 9);
		for (int i = 0; i < MANY; i++) {
			gp_object_end(GP_GRAPH_INSTANCE, exec[i]);
			CHECK(gp_graph_waits_for_cpu(exec[i]));
		}
	}
	add_kernel(1, true, MOST_BLOCKS + 1);
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < BLOCKED; i++) {
			exec[i] = instance(1, false);
			CHECK(gp_graph_fit(exec[i]) == GP_BLOCKED);
		}
		for (int i = 0; i < BLOCKED; i++) {
			gp_object_end(GP_GRAPH_INSTANCE, exec[i]);
			CHECK(gp_graph_fit(exec[i]) == GP_FITS);
			CHECK(i + 1 == BLOCKED || gp_graph_fit(exec[i + 1]) == GP_BLOCKED);
		}
	}
}

int main(void)
{
	CHECK(gp_graph_fit((CUgraphExec)1) == GP_FITS);
	gp_object_end(GP_GRAPH_INSTANCE, NULL);
	test_waits();
	test_blocked();
	test_tables();
	return 0;
}
