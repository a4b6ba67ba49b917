// Kernels of build/spatial-probe (test/gpu/README.md): latency-critical and best-effort work of several shapes.
//
// All but the last ones have the parameters of WORK, and do `blocks` pieces of work from number `first` on; a grid that is
// smaller goes round until they are done. The work of a piece is a fixed number of operations, never a time read from a clock: what
// is slowed down must show it.
#include <cstdint>

#include "spatial.h"

#define WORK \
	spatial_board *board, spatial_record *records, float *data, unsigned long long bytes, \
		unsigned long long iterations, unsigned long long first, unsigned long long blocks, \
		unsigned long long name
#define PASS_ON board, records, data, bytes, iterations, first, blocks, name

static __device__ unsigned long long nanoseconds()
{
	unsigned long long ns;
	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
	return ns;
}

static __device__ unsigned processor()
{
	unsigned sm;
	asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
	return sm;
}

static __device__ void tell(volatile uint64_t *word, unsigned long long name)
{
	__threadfence_system();
	*word = name;
}

// Whether the block's number is below the width; one thread asks.
static __device__ bool within(const uint32_t *width)
{
	bool beyond = threadIdx.x == 0 && blockIdx.x >= *(const volatile uint32_t *)width;
	return !__syncthreads_or(beyond);
}

template <bool GATED, typename Work> static __device__ __forceinline__ void pieces(WORK, Work work)
{
	if (blockIdx.x == 0 && threadIdx.x == 0)
		tell(&board->said->begun, name);
	for (unsigned long long b = blockIdx.x; b < blocks; b += gridDim.x) {
		unsigned long long begin_ns = 0, begin = 0;
		if (records && threadIdx.x == 0) {
			begin_ns = nanoseconds();
			begin = clock64();
		}
		if (!GATED || within(&board->width))
			work(first + b);
		__syncthreads();
		if (threadIdx.x == 0) {
			if (records)
				records[b] = {begin_ns, nanoseconds(), begin, (uint64_t)clock64(), processor(), 0};
			if (atomicAdd((unsigned long long *)&board->done, 1ull) + 1 == name)
				tell(&board->said->ended, name);
		}
	}
}

// Where no result is wanted, the compiler must not see that.
static __device__ void keep(float value, float *data)
{
	if (value == 0.123f)
		data[0] = value;
}

// Looks at a word again and again: few instructions are issued, by however many threads.
static __device__ __forceinline__ void spin(float *data, unsigned long long iterations)
{
	__shared__ volatile unsigned word[2];
	if (threadIdx.x < 2)
		word[threadIdx.x] = 0;
	__syncthreads();
	unsigned at = 0;
	for (unsigned long long i = 0; i < iterations; i++)
		at = word[at];
	keep((float)at, data);
}

// Four chains a thread: with all threads that an SM takes, an instruction is issued in each cycle.
static __device__ __forceinline__ void arithmetic(float *data, unsigned long long iterations)
{
	float v[4] = {(float)threadIdx.x, 1, 2, 3};
	for (unsigned long long i = 0; i < iterations; i++)
#pragma unroll
		for (int j = 0; j < 8; j++)
			v[j % 4] = fmaf(v[j % 4], 1.0001f, 0.5f);
	keep(v[0] + v[1] + v[2] + v[3], data);
}

extern "C" __global__ void __launch_bounds__(1024) spatial_spin(WORK)
{
	pieces<false>(PASS_ON, [=](unsigned long long) { spin(data, iterations); });
}

extern "C" __global__ void __launch_bounds__(1024, 2) spatial_fma(WORK)
{
	pieces<false>(PASS_ON, [=](unsigned long long) { arithmetic(data, iterations); });
}

extern "C" __global__ void __launch_bounds__(1024, 2) spatial_fma_gated(WORK)
{
	pieces<true>(PASS_ON, [=](unsigned long long) { arithmetic(data, iterations); });
}

// Reads and writes memory, each piece the next of it: all of it before any again.
static __device__ __forceinline__ void stream(float *data, unsigned long long bytes, unsigned long long iterations,
					      unsigned long long number)
{
	unsigned long long piece = iterations * blockDim.x, pieces_in_all = bytes / sizeof(float4) / piece;
	float4 *at = (float4 *)data + number % pieces_in_all * piece + threadIdx.x;
#pragma unroll 4
	for (unsigned long long i = 0; i < iterations; i++) {
		float4 v = at[i * blockDim.x];
		at[i * blockDim.x] = make_float4(v.x + 1, v.y + 1, v.z + 1, v.w + 1);
	}
}

extern "C" __global__ void __launch_bounds__(1024, 2) spatial_stream(WORK)
{
	pieces<false>(PASS_ON, [=](unsigned long long number) { stream(data, bytes, iterations, number); });
}

// The same, and then the block keeps its place and does nothing for a time.
extern "C" __global__ void __launch_bounds__(1024, 2) spatial_stream_sleeps(WORK)
{
	pieces<false>(PASS_ON, [=](unsigned long long number) {
		stream(data, bytes, iterations, number);
		if (threadIdx.x == 0)
			__nanosleep(board->sleep_ns);
	});
}

// Waits for memory most of the time: one thread a warp, and each address comes of what was read before.
extern "C" __global__ void __launch_bounds__(1024) spatial_waits(WORK)
{
	pieces<false>(PASS_ON, [=](unsigned long long number) {
		unsigned at = (unsigned)number * 1024 + threadIdx.x, words = (unsigned)(bytes / sizeof(float));
		if (threadIdx.x % 32)
			return;
		for (unsigned long long i = 0; i < iterations; i++)
			at = at * 1664525u + 1013904223u + (unsigned)__ldcg((const int *)data + at % words);
		keep(__int_as_float((int)at), data);
	});
}

// Works in all of its dynamic shared memory.
extern "C" __global__ void __launch_bounds__(1024) spatial_shared(WORK)
{
	extern __shared__ float shared[];
	pieces<false>(PASS_ON, [=](unsigned long long) {
		unsigned shared_bytes;
		asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(shared_bytes));
		unsigned words = shared_bytes / sizeof(float), at = threadIdx.x;
		for (unsigned long long i = 0; i < iterations; i++) {
			shared[at] = fmaf(shared[at], 1.0001f, 0.5f);
			at += blockDim.x;
			at = at < words ? at : threadIdx.x;
		}
		keep(shared[threadIdx.x], data);
	});
}

// Keeps so many registers in use that one block of 256 threads fills an SM.
extern "C" __global__ void __launch_bounds__(256, 1) spatial_registers(WORK)
{
	pieces<false>(PASS_ON, [=](unsigned long long) {
		constexpr int values = 208;
		float v[values], sum = 0;
#pragma unroll
		for (int j = 0; j < values; j++)
			v[j] = (float)(threadIdx.x + j);
		for (unsigned long long i = 0; i < iterations; i++)
#pragma unroll
			for (int j = 0; j < values; j++)
				v[j] = fmaf(v[j], 1.0001f, v[(j + 7) % values]);
#pragma unroll
		for (int j = 0; j < values; j++)
			sum += v[j];
		keep(sum, data);
	});
}

// Products of matrices in the tensor cores, four that do not wait for each other.
extern "C" __global__ void __launch_bounds__(1024) spatial_tensor(WORK)
{
	pieces<false>(PASS_ON, [=](unsigned long long) {
		float c[4][4] = {};
		uint32_t a = threadIdx.x, b = 0x3f803f80;
		for (unsigned long long i = 0; i < iterations; i++)
#pragma unroll
			for (int j = 0; j < 4; j++)
				asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
					     "{%0, %1, %2, %3}, {%4, %4, %4, %4}, {%5, %5}, {%0, %1, %2, %3};"
					     : "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])
					     : "r"(a), "r"(b));
		keep(c[0][0] + c[1][1] + c[2][2] + c[3][3], data);
	});
}

// What a width costs a block that has nothing else to do: not asked for; asked by each thread; by one for all.
extern "C" __global__ void spatial_ungated(const uint32_t *width, float *data) {}

extern "C" __global__ void spatial_gate_each(const uint32_t *width, float *data)
{
	if (blockIdx.x >= *(const volatile uint32_t *)width)
		return;
	if (width == (const uint32_t *)data)
		data[0] = 1; // never
}

extern "C" __global__ void spatial_gate_one(const uint32_t *width, float *data)
{
	if (!within(width))
		return;
	if (width == (const uint32_t *)data)
		data[0] = 1; // never
}

// The blocks of a cluster wait for each other some times.
extern "C" __global__ void spatial_cluster(WORK)
{
	pieces<false>(PASS_ON, [=](unsigned long long) {
		for (unsigned long long i = 0; i < iterations; i++) {
			asm volatile("barrier.cluster.arrive.aligned;");
			asm volatile("barrier.cluster.wait.aligned;");
		}
	});
}
