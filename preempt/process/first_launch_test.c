// first_launch_test.c - with preempt/process/*.c preempt/objects/objects.c preempt/driver/driver.c.
//
// A kernel that was launched in one context was not launched in another, nor where code was unloaded since.
#define _GNU_SOURCE
#include "preempt/objects/objects.h"
#include "preempt/process/process.h"
#include "test/units/check.h"

#include <stdint.h>

void gp_thread_ends(void) {}

static const void *handle(uintptr_t n) { return (const void *)(0x7f0000000000 + 64 * n); }

int main(void)
{
	const struct gp_context *one = &gp_context[0], *two = &gp_context[1], *last = &gp_context[GP_CONTEXTS - 1];

	CHECK(!gp_is_loaded(one, handle(1)));
	gp_remember_loaded(one, handle(1));
	gp_remember_loaded(one, handle(1));
	CHECK(gp_is_loaded(one, handle(1)) && !gp_is_loaded(one, handle(2)));
	CHECK(!gp_is_loaded(two, handle(1)) && !gp_is_loaded(last, handle(1)));
	gp_remember_loaded(two, handle(1));
	gp_remember_loaded(last, handle(1));

	gp_forget_loaded(two); // code of that context is unloaded, or it ends
	CHECK(gp_is_loaded(one, handle(1)) && !gp_is_loaded(two, handle(1)) && gp_is_loaded(last, handle(1)));

	gp_context[1].handle = (CUcontext)0x1000;
	gp_context[GP_CONTEXTS - 1].handle = (CUcontext)0x2000;
	CUgraphExec exec = (CUgraphExec)handle(3);
	CHECK(!gp_graph_is_loaded(two, exec)); // it is not known
	gp_remember_loaded_graph(two, exec);
	CHECK(gp_graph_is_loaded(two, exec) && !gp_graph_is_loaded(last, exec));
	gp_object_begin(GP_GRAPH_INSTANCE, exec, NULL);
	CHECK(!gp_graph_is_loaded(two, exec) && !gp_graph_is_loaded(last, exec));
	gp_remember_loaded_graph(two, exec);
	gp_remember_loaded_graph(last, exec);
	gp_forget_loaded(two);
	CHECK(!gp_graph_is_loaded(two, exec) && gp_graph_is_loaded(last, exec));
	gp_object_begin(GP_GRAPH_INSTANCE, exec, NULL); // another one
	CHECK(!gp_graph_is_loaded(last, exec));
	gp_remember_loaded_graph(one, exec);

	gp_remember_loaded(two, handle(4));
	gp_graph_kernel(two, handle(4));
	gp_graph_changes(exec); // to kernels that were launched
	CHECK(gp_graph_is_loaded(one, exec));
	gp_graph_kernel(two, handle(5));
	gp_graph_changes(exec);
	CHECK(!gp_graph_is_loaded(one, exec));
	gp_remember_loaded_graph(one, exec);
	gp_graph_kernel(two, handle(5)); // which only graphs have, and is given anew before each launch
	gp_graph_changes(exec);
	CHECK(gp_graph_is_loaded(one, exec));
	gp_forget_loaded(two);
	gp_graph_kernel(two, handle(5)); // another function of this address
	gp_graph_changes(exec);
	CHECK(!gp_graph_is_loaded(one, exec));
	gp_remember_loaded_graph(one, exec);

	CHECK(!gp_name_is_known(handle(1)) && gp_name_is_due(handle(1)) && gp_name_is_known(handle(1)));
	CHECK(!gp_name_is_due(handle(1)) && gp_name_is_due(handle(2)));
	gp_forget_loaded(two); // another function may have its address
	CHECK(!gp_name_is_known(handle(1)));
	CHECK(gp_name_is_due(handle(1)) && !gp_name_is_due(handle(1)));

	gp_forget_loaded(NULL); // a library, which may be loaded in all
	CHECK(gp_name_is_due(handle(1)) && !gp_is_loaded(one, handle(1)) && !gp_is_loaded(last, handle(1)) &&
	      !gp_graph_is_loaded(one, exec));

	enum { MANY = 100000 };
	for (uintptr_t n = 0; n < MANY; n++)
		gp_remember_loaded(one, handle(n));
	CHECK(gp_is_loaded(one, handle(MANY + 1))); // nothing is known: else every launch would end the hold
	gp_forget_loaded(one);
	CHECK(!gp_is_loaded(one, handle(1)));

	for (uintptr_t n = 0; n < MANY; n++)
		gp_remember_loaded_graph(one, (CUgraphExec)handle(n));
	CHECK(!gp_graph_is_loaded(one, (CUgraphExec)handle(MANY + 1))); // a launch that waits for a hold takes longer than one that ends it
	return 0;
}
