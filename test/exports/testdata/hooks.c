// A core that prints its calls.
#include "exports/layer.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAY(...) (printf("  " __VA_ARGS__), puts(""), fflush(stdout), (void)0)
static const char *const works[] = {"kernel", "graph", "copy", "memset", "record", "await", "other"};
static const char *const waits[] = {"stream", "event", "work",   "context", "pin",  "stream?",
				    "event?", "all",   "memory", "load",    "array"};
static const char *const things[] = {"context", "stream", "graph", "event"};

static bool quiet; // the core is being timed

static bool begin(struct gp_operation *o)
{
	if (quiet)
		return true;
	o->sequence = 42;
	printf("  begin %s%s on %p:", works[o->work], o->blocking ? " blocking" : "", (void *)o->stream);
	const struct gp_launch *l = &o->launch;
	if (o->work == GP_KERNEL)
		printf(" %p%s %u.%u.%u %u.%u.%u %u %p %p", (void *)l->function, l->cooperative ? " cooperative" : "",
		       l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1], l->block[2], l->shared_bytes,
		       (void *)l->parameters, (void *)l->extra);
	else if (o->work == GP_GRAPH)
		printf(" %p", (void *)o->graph);
	else if (o->work == GP_RECORD || o->work == GP_AWAIT)
		printf(" %p", (void *)o->event);
	puts("");
	fflush(stdout);
	if (!getenv("TEST_CARRY_OUT") || o->work != GP_COPY)
		return true;
	o->result = 77;
	return false;
}
static CUresult end(struct gp_operation *o, CUresult r)
{
	if (!quiet)
		SAY("end %s: %d %d", works[o->work], (int)o->sequence, r);
	return r;
}
static bool begin_wait(enum gp_wait w, void *o)
{
	SAY("begin wait for %s %p", waits[w], o);
	return !getenv("TEST_CARRY_OUT") || w != GP_WAIT_EVENT;
}
static CUresult end_wait(enum gp_wait w, void *o, CUresult r)
{
	SAY("end wait for %s %p: %d", waits[w], o, r);
	return w == GP_WAIT_STREAM && getenv("TEST_CARRY_OUT") ? 78 : r;
}
static void context_current(CUcontext c) { SAY("context %p current", (void *)c); }
static void ending(enum gp_thing t, void *h) { SAY("%s %p ending", things[t], h); }
static void ended(enum gp_thing t, void *h, bool is) { SAY("%s %p ended: %d", things[t], h, is); }
static bool stream_creating(int *priority)
{
	SAY("stream of priority %d?", *priority);
	if (*priority == 7) // as it is
		return false;
	*priority -= 3;
	return true;
}
static void stream_created(CUstream s, int asked) { SAY("stream %p created, asked %d", (void *)s, asked); }
static void stream_made(CUstream stream) { SAY("stream %p made", (void *)stream); }
static void stream_priority(CUstream s, int *priority)
{
	SAY("priority of %p is %d", (void *)s, *priority);
	*priority = 1;
}
static bool graph_fits(CUgraph g) { return true; }
static void graph_instantiated(CUgraphExec e, CUgraph g) { SAY("graph %p instantiated from %p", (void *)e, (void *)g); }
static void graph_changing(CUgraphExec e) { SAY("graph %p changing", (void *)e); }
static void event_shared(CUevent e) { SAY("event %p shared", (void *)e); }
static void capture_beginning(CUstream s) { SAY("capture of %p beginning", (void *)s); }
static void capture_ended(CUstream s) { SAY("capture of %p ended, or none", (void *)s); }
static void rm_ioctl(int fd, unsigned long request, void *argument) { SAY("ioctl %#lx %p", request, argument); }
void *gp_nvtx_beside(void *found)
{
	SAY("in front of an NVTX tool");
	return found;
}
static void clusters_changed(void) { SAY("clusters changed"); }
static bool code_wanted(void) { return getenv("TEST_NO_CODE") == NULL; }

// No test comes by these.
static const void *module_loading(struct gp_load *l) { return NULL; }
static void module_loaded(struct gp_load *l, CUmodule m) {}
static void module(CUmodule m) {}
static void library_loaded(const struct gp_load *l, CUlibrary library) {}
static CUlibrary library(CUlibrary l) { return l; }
static bool module_unload(CUmodule m, CUresult *result) { return false; }
static bool library_unload(CUlibrary l, CUresult *result) { return false; }
static void library_unloading(CUlibrary l) {}
static void code_loading(bool begins) {}
static void library_module(CUlibrary l, CUmodule m) {}
static void kernel_function(CUfunction kernel, CUfunction function) {}
static bool parameter_hidden(CUfunction f, size_t i) { return false; }
static void unknown_function(const char *name) {}
static void memory_used(const void *frame) {}
static void memory_done(void) {}
static bool refused_memory(struct gp_retry *retry, CUdevice device)
{
	SAY("out of memory on %d, %u", device, retry->refused);
	return ++retry->refused < 3;
}
static void checkpoint_begins(enum gp_checkpoint step) { SAY("checkpoint %d", step); }
static void checkpoint_ended(enum gp_checkpoint step, CUresult result) { SAY("checkpointed %d, %d", step, result); }
static bool complete(CUfunction f, struct gp_arguments *a) { return false; }

static const struct gp_hooks hooks = {
	.begin = begin,
	.end = end,
	.begin_wait = begin_wait,
	.end_wait = end_wait,
	.context_current = context_current,
	.ending = ending,
	.ended = ended,
	.stream_creating = stream_creating,
	.stream_created = stream_created,
	.stream_made = stream_made,
	.stream_priority = stream_priority,
	.graph_fits = graph_fits,
	.graph_instantiated = graph_instantiated,
	.graph_changing = graph_changing,
	.event_shared = event_shared,
	.rm_ioctl = rm_ioctl,
	.capture_beginning = capture_beginning,
	.capture_ended = capture_ended,
	.module_loading = module_loading,
	.module_loaded = module_loaded,
	.module_function = module,
	.module_unload = module_unload,
	.module_unloading = module,
	.library_loaded = library_loaded,
	.library_used = library,
	.library_of = library,
	.library_unload = library_unload,
	.library_unloading = library_unloading,
	.library_module = library_module,
	.kernel_function = kernel_function,
	.parameter_hidden = parameter_hidden,
	.code_loading = code_loading,
	.clusters_changed = clusters_changed,
	.code_wanted = code_wanted,
	.unknown_function = unknown_function,
	.memory_used = memory_used,
	.memory_done = memory_done,
	.refused_memory = refused_memory,
	.checkpoint_begins = checkpoint_begins,
	.checkpoint_ended = checkpoint_ended,
	.complete = complete,
};

// Stand-ins for two functions of the driver, and for one that it lacks.
static CUresult free_instead(CUdeviceptr address) { return SAY("free of %#llx", address), 31; }
static CUresult attribute_instead(void *data, int attribute, CUdeviceptr address)
{
	return SAY("attribute %d of %#llx", attribute, address), 32;
}
static CUresult info_instead(size_t *free, size_t *total) { return 33; }

static const char *start(char **environment)
{
	bool priority = false;
	for (char **e = environment; *e; e++)
		priority |= strcmp(*e, "GPREEMPT_PRIORITY=5") == 0;
	SAY("start, environment %s", priority ? "kept" : "lost");
	CUresult (*count)(int *) = (CUresult (*)(int *))gp_driver_symbol("cuDeviceGetCount");
	int n;
	if (count)
		count(&n);
	cuInit(0); // a start that comes back through the library passes
	if (getenv("TEST_SUBSTITUTE")) {
		gp_substitute("cuMemFree_v2", (void *)free_instead);
		gp_substitute("cuPointerGetAttribute", (void *)attribute_instead);
		gp_substitute("cuMemGetInfo_v2", (void *)info_instead);
	}
	quiet = getenv("TEST_QUIET") != NULL;
	gp_install_hooks(&hooks);
	atomic_store(&gp_armed, getenv("TEST_UNARMED") == NULL);
	return NULL;
}

__attribute__((constructor)) static void loaded(void)
{
	if (!getenv("TEST_NO_START"))
		gp_set_start(start);
}
