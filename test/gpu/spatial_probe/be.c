// be.c - best-effort work without a pause, limited in one way: how many blocks are in flight, how many fit on an SM, how much of the
// grid is launched at once, or on which SMs it may run. Two launches are in flight, one behind the other.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "spatial.h"

static const struct kind {
	enum kernel kernel;
	unsigned threads, shared;
	bool cached; // its memory fits into the L2 cache
} kinds[BE_KINDS] = {
	{SPIN, 128, 0, false},      {FMA, 1024, 0, false},   {STREAM, 512, 0, false}, {SHARED, 256, 100 << 10, false},
	{REGISTERS, 256, 0, false}, {TENSOR, 256, 0, false}, {STREAM, 512, 0, true},
};
const char *const be_name[BE_KINDS] = {"spin", "fma", "stream", "shared", "registers", "tensor", "cache"};
#define BLOCK_US 10
#define LAUNCH_US (plan.quick ? 4 * BLOCK_US : 1000)
enum { IN_FLIGHT = 2 };

// ---- in the process that does it

static struct work works[BE_KINDS];
static struct feeder {
	pthread_t thread;
	atomic_bool stop;
	struct lane lane;
	struct work work;
} feeder;
static bool runs;
static CUstream plain, counting;
static uint64_t *counted;

void be_prepare(void)
{
	if (counted)
		return;
	size_t room = device_free() / 4, bytes = plan.quick ? 64 * MIB : 8 * GIB;
	bytes = bytes < room ? bytes : room / MIB * MIB;
	CUdeviceptr memory = zeroed(bytes);
	for (int i = 0; i < BE_KINDS; i++) {
		const struct kind *k = &kinds[i];
		struct work *w = &works[i];
		*w = (struct work){.kernel = k->kernel, .threads = k->threads, .shared = k->shared, .data = memory};
		w->bytes = k->cached && bytes > 24 * MIB ? 24 * MIB : bytes;
		use_shared(w);
		w->grid = resident(w) * (unsigned)gpu.sms;
		w->blocks = w->grid;
		w->iterations = iterations_for(*w, BLOCK_US, true);
	}
	plain = stream_of(gpu.low);
	counting = stream_of(gpu.low);
	CHECK(cuMemHostAlloc((void **)&counted, sizeof *counted, CU_MEMHOSTALLOC_PORTABLE));
}

const struct work *be_work(int kind)
{
	be_prepare();
	return &works[kind];
}

static unsigned at_least_one(double n) { return n < 1 ? 1 : (unsigned)n; }

// A launch of about LAUNCH_US where nothing else runs; a window takes as long as its waves do.
static const char *limited(const struct be_plan *p, struct work *w, CUstream *stream)
{
	struct green green;
	*w = *be_work(p->kind);
	w->iterations = (uint64_t)((double)w->iterations * p->us / BLOCK_US + .5);
	w->iterations += w->iterations == 0;
	*stream = plain;
	unsigned waves = at_least_one(LAUNCH_US / p->us), on_sm = resident(w), sms = (unsigned)gpu.sms;
	if (p->how == CAP) {
		w->shared = padding(w, at_least_one(p->width * on_sm));
		on_sm = resident(w);
	}
	use_shared(w); // back to its own, where a cap was before
	w->grid = sms * on_sm * waves;
	w->blocks = w->grid;
	switch (p->how) {
	case PERSISTENT:
		w->grid = at_least_one(p->width * on_sm);
		w->blocks = (uint64_t)w->grid * waves;
		break;
	case WINDOW:
		w->grid = at_least_one(p->width * sms * on_sm);
		w->blocks = w->grid;
		break;
	case GREEN: {
		const char *why = green_of((unsigned)p->width, &green);
		if (why)
			return why;
		w->grid = green.sms * on_sm * waves;
		w->blocks = w->grid;
		*stream = green.stream;
		break;
	}
	case SLEEP: w->kernel = STREAM_SLEEPS; break; // there is no other that does
	default: break;
	}
	return NULL;
}

static void *feed(void *argument)
{
	struct feeder *f = argument;
	uint64_t name[IN_FLIGHT];
	CHECK(cuCtxSetCurrent(context));
	for (int i = 0; i < IN_FLIGHT; i++)
		name[i] = f->lane.last;
	for (unsigned i = 0; !atomic_load(&f->stop); i++) {
		lane_wait(&f->lane, name[i % IN_FLIGHT]);
		lane_launch(&f->lane, &f->work);
		name[i % IN_FLIGHT] = f->lane.last;
		f->work.first += f->work.blocks;
	}
	lane_wait(&f->lane, f->lane.last);
	return NULL;
}

static const char *local_begin(const struct be_plan *p)
{
	CUstream stream;
	const char *why = limited(p, &feeder.work, &stream);
	if (why)
		return why;
	if (!feeder.lane.board)
		lane_make(&feeder.lane, stream);
	feeder.lane.stream = stream;
	if (p->how == SLEEP)
		lane_sleep(&feeder.lane, p->width);
	uint64_t first = feeder.lane.last;
	CUresult result = lane_try(&feeder.lane, &feeder.work);
	if (result != CUDA_SUCCESS)
		return text("launch: %s", error_name(result));
	lane_wait(&feeder.lane, first + feeder.work.blocks);
	atomic_store(&feeder.stop, false);
	if (pthread_create(&feeder.thread, NULL, feed, &feeder))
		give_up("no thread");
	runs = true;
	return NULL;
}

static double local_blocks(double *when_us)
{
	CHECK(cuMemcpyDtoHAsync(counted, feeder.lane.board + offsetof(struct spatial_board, done), sizeof *counted,
				counting));
	CHECK(cuStreamSynchronize(counting));
	*when_us = now_us();
	return (double)*counted;
}

static void local_end(void)
{
	if (!runs)
		return;
	atomic_store(&feeder.stop, true);
	pthread_join(feeder.thread, NULL);
	runs = false;
}

// ---- in a second process

static struct second second;

static void see(void)
{
	const char *share = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), *priority = getenv("CUDA_MPS_CLIENT_PRIORITY");
	printf("%d SMs, %u blocks of arithmetic on one; %s %%, priority %s\n", gpu.sms, resident(&works[1]),
	       share ? share : "100", priority ? priority : "0");
}

void be_serve(void)
{
	char line[128];
	struct be_plan p;
	int how;
	be_prepare();
	printf("ready\n");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		double when;
		if (sscanf(line, "begin %d %d %lf %lf", &p.kind, &how, &p.width, &p.us) == 4) {
			p.how = (enum how)how;
			const char *why = local_begin(&p);
			printf("%s\n", why ? why : "begun");
		} else if (*line == 'c') {
			double blocks = local_blocks(&when);
			printf("%.0f %.3f\n", blocks, when);
		} else if (*line == 's') {
			see();
		} else {
			local_end();
			printf("ended\n");
		}
		fflush(stdout);
	}
	local_end(); // where the other process is gone: a client that ends in a kernel is bad for the server
}

void be_use(char *const settings[])
{
	if (!under_mps) {
		be_prepare();
		return;
	}
	be_leave();
	second_start(&second, settings);
	second_answer(&second);
}

void be_leave(void)
{
	if (second.pid)
		second_end(&second);
	second.pid = 0;
}

const char *be_begin(const struct be_plan *p)
{
	if (!under_mps)
		return local_begin(p);
	second_order(&second, "begin %d %d %f %f", p->kind, p->how, p->width, p->us);
	const char *answer = second_answer(&second);
	return strcmp(answer, "begun") == 0 ? NULL : text("%s", answer);
}

double be_blocks(double *when_us)
{
	double blocks;
	if (!under_mps)
		return local_blocks(when_us);
	second_order(&second, "count");
	if (sscanf(second_answer(&second), "%lf %lf", &blocks, when_us) != 2)
		give_up("the second process does not count");
	return blocks;
}

void be_end(void)
{
	if (!under_mps) {
		local_end();
		return;
	}
	second_order(&second, "end");
	second_answer(&second);
}

const char *be_sees(void)
{
	second_order(&second, "see");
	return text("%s", second_answer(&second));
}
