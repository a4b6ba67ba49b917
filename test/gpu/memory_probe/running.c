// running.c - memory that goes and comes while something runs: beside a second process's kernels and allocations, beside
// launches of the same process, and below a graph that was made before.
#include <stdlib.h>
#include <string.h>

#include "memory.h"

// Movements of memory by a swap, one at a time.
enum movement { NOTHING, CREATE_RELEASE, MAP_UNMAP, ALL, ALLOC_FREE, MOVEMENTS };
static const char *const movement_names[] = {"nothing", "create and release", "map and unmap",
					     "create, map, unmap and release", "cuMemAlloc and cuMemFree"};

struct mover {
	enum movement what;
	size_t bytes;
	pthread_t thread;
	atomic_bool stop;
	struct samples us[5]; // of each call, where they are printed
};

static void move_once(struct mover *m, CUdeviceptr address, mem_handle kept)
{
	struct access access = own_access();
	mem_handle handle = kept;
	CUdeviceptr p;
	if (m->what == NOTHING) {
		pause_us(1000);
		return;
	}
	if (m->what == ALLOC_FREE) {
		CHECK(cuMemAlloc(&p, m->bytes));
		CHECK(cuMemFree(p));
		return;
	}
	if (m->what != MAP_UNMAP)
		TIMED(&m->us[0], cuMemCreate(&handle, m->bytes, &on_device, 0));
	if (m->what != CREATE_RELEASE) {
		TIMED(&m->us[1], cuMemMap(address, m->bytes, 0, handle, 0));
		TIMED(&m->us[2], cuMemSetAccess(address, m->bytes, &access, 1));
		TIMED(&m->us[3], cuMemUnmap(address, m->bytes));
	}
	if (m->what != MAP_UNMAP)
		TIMED(&m->us[4], cuMemRelease(handle));
}

static void *keep_moving(void *argument)
{
	struct mover *m = argument;
	CUdeviceptr address;
	mem_handle kept;
	CHECK(cuCtxSetCurrent(context));
	CHECK(cuMemAddressReserve(&address, m->bytes, 0, 0, 0));
	CHECK(cuMemCreate(&kept, m->bytes, &on_device, 0));
	do // once at least, however late the thread is
		move_once(m, address, kept);
	while (!atomic_load(&m->stop));
	CHECK(cuMemRelease(kept));
	CHECK(cuMemAddressFree(address, m->bytes));
	return NULL;
}

static void mover_start(struct mover *m, enum movement what, size_t bytes)
{
	*m = (struct mover){.what = what, .bytes = bytes};
	if (pthread_create(&m->thread, NULL, keep_moving, m))
		give_up("no thread");
}

static void mover_stop(struct mover *m)
{
	atomic_store(&m->stop, true);
	pthread_join(m->thread, NULL);
}

static void mover_drop(struct mover *m)
{
	for (int i = 0; i < 5; i++)
		free(m->us[i].value);
}

// The kernels, allocations and memory-bound work of a second process, which holds no memory of ours.
void section_neighbour(void)
{
	static const char *const kinds[] = {"launch", "alloc", "memset"};
	static const size_t sizes[] = {2 * MIB, 256 * MIB};
	neighbour_start();
	for (int size = 0; size < 2; size++)
		for (int kind = 0; kind < 3; kind++)
			for (enum movement what = NOTHING; what < MOVEMENTS; what++) {
				struct mover m;
				if (size && what == NOTHING)
					continue;
				mover_start(&m, what, sizes[size]);
				neighbour_begin(kinds[kind]);
				pause_us(2 * plan.seconds * 1e6);
				if (what == NOTHING)
					neighbour_end("nothing");
				else
					neighbour_end("%s of %llu MiB", movement_names[what], sizes[size] / MIB);
				mover_stop(&m);
				mover_drop(&m);
			}
}

struct launcher {
	pthread_t thread;
	atomic_bool stop;
	struct samples us;
	CUdeviceptr scratch;
};

// Launches as fast as the driver takes them.
static void *keep_launching(void *argument)
{
	struct launcher *l = argument;
	CUstream stream;
	CHECK(cuCtxSetCurrent(context));
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	size_t launches = 0;
	do { // once at least, however late the thread is
		double began = now_us();
		launch_small(stream, l->scratch);
		add(&l->us, now_us() - began);
		if (++launches % 4096 == 0)
			CHECK(cuStreamSynchronize(stream));
	} while (!atomic_load(&l->stop));
	CHECK(cuStreamSynchronize(stream));
	return NULL;
}

static void launcher_start(struct launcher *l)
{
	*l = (struct launcher){0};
	CHECK(cuMemAlloc(&l->scratch, 4096));
	if (pthread_create(&l->thread, NULL, keep_launching, l))
		give_up("no thread");
}

static void launcher_stop(struct launcher *l, const char *beside)
{
	atomic_store(&l->stop, true);
	pthread_join(l->thread, NULL);
	figure(sum_up(&l->us), "us", "a launch, beside %s", beside);
	CHECK(cuMemFree(l->scratch));
	free(l->us.value);
}

// Do the calls of a swap get through while another thread of the process launches without a pause?
void section_threads(void)
{
	static const char *const calls[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease"};
	struct launcher l;
	struct mover m;
	struct samples copy = {0};
	size_t bytes = plan.quick ? 2 * MIB : 256 * MIB;
	CUdeviceptr p;
	CUstream stream;
	char *host;
	launcher_start(&l);
	pause_us(plan.seconds * 1e6);
	launcher_stop(&l, "nothing");
	launcher_start(&l);
	mover_start(&m, ALL, bytes);
	pause_us(2 * plan.seconds * 1e6);
	mover_stop(&m);
	launcher_stop(&l, text("%s of %llu MiB in another thread", movement_names[ALL], bytes / MIB));
	for (int i = 0; i < 5; i++)
		figure(sum_up(&m.us[i]), "us", "%s of %llu MiB, beside launches of another thread", calls[i], bytes / MIB);
	mover_drop(&m);
	CHECK(cuMemAlloc(&p, bytes));
	CHECK(cuMemHostAlloc((void **)&host, bytes, 0));
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	launcher_start(&l);
	double began = now_us();
	do {
		double at = now_us();
		CHECK(cuMemcpyDtoHAsync(host, p, bytes, stream));
		CHECK(cuStreamSynchronize(stream));
		add(&copy, now_us() - at);
	} while (now_us() - began < plan.seconds * 1e6);
	launcher_stop(&l, text("copies of %llu MiB in another thread", bytes / MIB));
	figure(sum_up(&copy), "us", "a copy of %llu MiB to the host, beside launches of another thread", bytes / MIB);
	free(copy.value);
}

// A graph of a copy to the device, a memset, a kernel that changes all words, and a copy to the host, on mapped memory.
struct graph {
	struct mapped memory;
	CUgraphExec exec;
	CUstream stream;
	uint32_t *in, *out;
	size_t bytes;
};

static void graph_make(struct graph *g)
{
	CUgraph graph;
	uint32_t words, for_a_block = 4096, summand = 5, us = 10;
	mapped_make(&g->memory, 2 * MIB, 2);
	g->bytes = g->memory.bytes;
	words = (uint32_t)(g->bytes / 4);
	CHECK(cuStreamCreate(&g->stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuMemHostAlloc((void **)&g->in, g->bytes, 0));
	CHECK(cuMemHostAlloc((void **)&g->out, g->bytes, 0));
	for (uint32_t i = 0; i < words; i++)
		g->in[i] = i * 2654435761u;
	CUdeviceptr p = g->memory.address;
	void *parameters[] = {&p, &for_a_block, &summand, &us};
	CHECK(cuStreamBeginCapture(g->stream, CAPTURE_GLOBAL));
	CHECK(cuMemcpyHtoDAsync(p, g->in, g->bytes, g->stream));
	CHECK(cuMemsetD8Async(p + MIB, 7, MIB, g->stream));
	CHECK(cuLaunchKernel(kernel_chain, words / for_a_block, 1, 1, 256, 1, 1, 0, g->stream, parameters, NULL));
	CHECK(cuMemcpyDtoHAsync(g->out, p, g->bytes, g->stream));
	CHECK(cuStreamEndCapture(g->stream, &graph));
	CHECK(cuGraphInstantiate(&g->exec, graph, 0));
}

static void graph_run(struct graph *g)
{
	memset(g->out, 0, g->bytes);
	CHECK(cuGraphLaunch(g->exec, g->stream));
	CHECK(cuStreamSynchronize(g->stream));
}

// Is a graph right whose memory went away and came back at the same addresses, behind the graph's back?
void section_graphs(void)
{
	struct graph g;
	struct samples us = {0};
	int rounds = plan.quick ? 5 : 100, same = 0;
	graph_make(&g);
	graph_run(&g);
	uint32_t *expected = malloc(g.bytes);
	if (!expected)
		give_up("no memory");
	memcpy(expected, g.out, g.bytes);
	fact(memcmp(expected, g.in, g.bytes) ? "yes" : "no", "the graph changes its memory");
	for (int round = 0; round < rounds; round++) {
		mem_handle other;
		mapped_away(&g.memory);
		CHECK(cuMemCreate(&other, 2 * MIB, &on_device, 0)); // so that others come back
		mapped_back(&g.memory);
		double began = now_us();
		graph_run(&g);
		add(&us, now_us() - began);
		same += memcmp(expected, g.out, g.bytes) == 0;
		CHECK(cuMemRelease(other));
	}
	fact(text("%d of %d", same, rounds),
	     "runs of a graph after its memory was mapped again that give the same bits");
	figure(sum_up(&us), "us", "a graph's first run after its memory was mapped again");
	for (int round = 0; round < rounds; round++) {
		double began = now_us();
		graph_run(&g);
		add(&us, now_us() - began);
	}
	figure(sum_up(&us), "us", "a graph's run");
	free(expected), free(us.value);
}
