// work.c - kernels, launches, how long they take, and where their blocks ran.
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "spatial.h"

CUfunction kernel[KERNELS];
struct gpu gpu;

static const char *const names[KERNELS] = {
	[SPIN] = "spatial_spin",
	[FMA] = "spatial_fma",
	[FMA_GATED] = "spatial_fma_gated",
	[STREAM] = "spatial_stream",
	[STREAM_SLEEPS] = "spatial_stream_sleeps",
	[SHARED] = "spatial_shared",
	[REGISTERS] = "spatial_registers",
	[TENSOR] = "spatial_tensor",
	[WAITS] = "spatial_waits",
	[CLUSTER] = "spatial_cluster",
	[UNGATED] = "spatial_ungated",
	[GATE_EACH] = "spatial_gate_each",
	[GATE_ONE] = "spatial_gate_one",
};

__asm__(".section .rodata\n"
	".balign 16\n"
	"spatial_image: .incbin \"test/gpu/spatial_probe/kernels/spatial.cubin\"\n"
	".previous");
extern const char spatial_image[];

void work_begin(void)
{
	enum { SHARED_PER_BLOCK_OPTIN = 97 }; // CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
	for (int i = 0; i < KERNELS; i++)
		kernel[i] = function_of(spatial_image, names[i]);
	gpu.sms = device_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
	gpu.threads_per_sm = device_attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
	gpu.registers_per_sm = device_attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
	gpu.shared_per_sm = device_attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
	gpu.shared_per_block = device_attribute(SHARED_PER_BLOCK_OPTIN);
	CHECK(cuCtxGetStreamPriorityRange(&gpu.low, &gpu.high));
}

void spin_us(double us)
{
	for (double until = now_us() + us; now_us() < until;)
		;
}

CUdeviceptr zeroed(size_t bytes)
{
	CUdeviceptr memory;
	CHECK(cuMemAlloc(&memory, bytes));
	CHECK(cuMemsetD8Async(memory, 0, bytes, NULL));
	CHECK(cuStreamSynchronize(NULL));
	return memory;
}

// ---- launches

void lane_make(struct lane *l, CUstream stream)
{
	*l = (struct lane){.stream = stream};
	CHECK(cuMemHostAlloc((void **)&l->said, sizeof *l->said, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
	memset(l->said, 0, sizeof *l->said);
	CHECK(cuMemAlloc(&l->board, sizeof(struct spatial_board)));
	struct spatial_board board = {.said = l->said, .width = UINT32_MAX};
	CHECK(cuMemcpyHtoD(l->board, &board, sizeof board));
}

static void change(struct lane *l, size_t offset, uint32_t value)
{
	static CUstream stream;
	static uint32_t *word;
	if (!stream) {
		stream = stream_of(gpu.high);
		CHECK(cuMemHostAlloc((void **)&word, sizeof *word, CU_MEMHOSTALLOC_PORTABLE));
	}
	*word = value;
	CHECK(cuMemcpyHtoDAsync(l->board + offset, word, sizeof *word, stream));
	CHECK(cuStreamSynchronize(stream));
}

void lane_gate(struct lane *l, uint32_t width) { change(l, offsetof(struct spatial_board, width), width); }

void lane_sleep(struct lane *l, double us)
{
	change(l, offsetof(struct spatial_board, sleep_ns), (uint32_t)(us * 1000));
}

CUresult lane_try(struct lane *l, const struct work *w)
{
	uint64_t name = l->last + w->blocks;
	CUdeviceptr board = l->board, records = w->records, data = w->data;
	unsigned long long bytes = w->bytes, iterations = w->iterations, first = w->first, blocks = w->blocks;
	void *parameters[] = {&board, &records, &data, &bytes, &iterations, &first, &blocks, &name};
	struct gp_launch_attribute cluster = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
					      .value.cluster = {w->cluster, 1, 1}};
	struct launch launch = {{w->grid, 1, 1}, {w->threads, 1, 1}, w->shared, l->stream, &cluster, w->cluster != 0};
	CUresult result = w->cluster ? ASK(cuLaunchKernelEx, &launch, kernel[w->kernel], parameters, NULL) :
				       cu.cuLaunchKernel(kernel[w->kernel], w->grid, 1, 1, w->threads, 1, 1, w->shared,
							 l->stream, parameters, NULL);
	if (result == CUDA_SUCCESS)
		l->last = name;
	return result;
}

void lane_launch(struct lane *l, const struct work *w)
{
	CUresult result = lane_try(l, w);
	if (result != CUDA_SUCCESS)
		give_up("launch of %s, %u blocks: %s", names[w->kernel], w->grid, error_name(result));
}

bool lane_has_begun(const struct lane *l, uint64_t name)
{
	return __atomic_load_n(&l->said->begun, __ATOMIC_ACQUIRE) >= name;
}

bool lane_has_ended(const struct lane *l, uint64_t name)
{
	return __atomic_load_n(&l->said->ended, __ATOMIC_ACQUIRE) >= name;
}

void lane_wait(struct lane *l, uint64_t name)
{
	for (unsigned looks = 1; !lane_has_ended(l, name); looks++) {
		if (looks < 300) {
			sched_yield();
			continue;
		}
		pause_us(20);
		CUresult result = looks % 256 ? CUDA_ERROR_NOT_READY : cu.cuStreamQuery(l->stream);
		if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY)
			give_up("a stream: %s", error_name(result));
	}
}

// ---- how much fits, and how long it takes

void use_shared(const struct work *w)
{
	CHECK(cuFuncSetAttribute(kernel[w->kernel], CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)w->shared));
}

unsigned resident(const struct work *w)
{
	int blocks = 0;
	CHECK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel[w->kernel], (int)w->threads, w->shared));
	return blocks > 0 ? (unsigned)blocks : 1;
}

unsigned padding(const struct work *w, unsigned most)
{
	struct work padded = *w;
	for (; padded.shared + 1024 <= (unsigned)gpu.shared_per_block; padded.shared += 1024) {
		use_shared(&padded);
		if (resident(&padded) <= most)
			break;
	}
	return padded.shared;
}

// Each launch goes on in memory where the one before it ended.
static double us_of(struct lane *l, struct work w, unsigned launches)
{
	lane_launch(l, &w);
	CHECK(cuStreamSynchronize(l->stream));
	double began = now_us();
	for (unsigned i = 0; i < launches; i++) {
		w.first += w.blocks;
		lane_launch(l, &w);
	}
	CHECK(cuStreamSynchronize(l->stream));
	return (now_us() - began) / launches;
}

uint64_t iterations_for(struct work w, double us, bool in_one)
{
	static struct lane lane;
	if (!lane.stream)
		lane_make(&lane, stream_of(gpu.low));
	unsigned times = plan.quick ? 4 : 40;
	w.records = 0;
	w.grid *= in_one ? times : 1;
	w.blocks = w.grid;
	w.iterations = 4;
	for (int i = 0; i < 8; i++) {
		double took = us_of(&lane, w, in_one ? 1 : times) / (in_one ? times : 1), factor = us / took;
		if (factor > .95 && factor < 1.05)
			break;
		factor = factor > 32 ? 32 : factor;
		w.iterations = (uint64_t)((double)w.iterations * factor + .5);
		w.iterations += w.iterations == 0;
	}
	return w.iterations;
}

// ---- records

CUdeviceptr records_make(unsigned count) { return zeroed(count * sizeof(struct spatial_record)); }

struct spatial_record *records_read(CUdeviceptr from, unsigned count)
{
	struct spatial_record *records = malloc(count * sizeof *records);
	if (!records)
		give_up("no memory");
	CHECK(cuMemcpyDtoH(records, from, count * sizeof *records));
	return records;
}

unsigned sms_of(const struct spatial_record *r, unsigned count)
{
	unsigned different = 0;
	bool seen[1024] = {false};
	for (unsigned i = 0; i < count; i++) {
		bool *one = &seen[r[i].sm % 1024];
		different += !*one;
		*one = true;
	}
	return different;
}

unsigned most_at_once(const struct spatial_record *r, unsigned count)
{
	unsigned most = 0;
	for (unsigned i = 0; i < count; i++) {
		unsigned now = 0;
		for (unsigned j = 0; j < count; j++)
			now += r[j].sm == r[i].sm && r[j].begin <= r[i].begin && r[i].begin < r[j].end;
		most = now > most ? now : most;
	}
	return most;
}
