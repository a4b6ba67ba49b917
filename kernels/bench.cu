// Kernels of `gpreempt bench`.
//
// The work of a thread is a fixed number of dependent operations, never a time read from a clock: a
// kernel that spins on the clock "finishes" while it is switched out, which would flatter the
// throughput of whoever was preempted.
#include <cstdint>

static __device__ __forceinline__ float chain(float value, unsigned long long iterations)
{
#pragma unroll 16
	for (unsigned long long i = 0; i < iterations; i++)
		value = fmaf(value, 1.0001f, 0.5f);
	return value;
}

// Every thread runs a chain of `iterations` fused multiply-adds. out[0 .. gridDim.x-1] is written, so
// that nothing is optimised away.
extern "C" __global__ void __launch_bounds__(1024) bench_work(float *out, unsigned long long iterations)
{
	float value = chain(threadIdx.x, iterations);
	if (threadIdx.x == 0)
		out[blockIdx.x] = value;
}

// The same with blocks that take from half of that to one and a half, without order, and as long all in all.
extern "C" __global__ void __launch_bounds__(1024) bench_work_uneven(float *out, unsigned long long iterations)
{
	unsigned long long part =
		512 + (blockIdx.x * 2654435761u >> 22); // of 1024; the upper 10 bits of a multiplicative hash
	float value = chain(threadIdx.x, iterations * part >> 10);
	if (threadIdx.x == 0)
		out[blockIdx.x] = value;
}

// The same as bench_work with the block's dynamic shared memory in use.
extern "C" __global__ void __launch_bounds__(1024) bench_work_shared(float *out, unsigned long long iterations)
{
	extern __shared__ float shared[];
	uint32_t bytes;
	asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
	uint32_t words = bytes / sizeof(float);
	for (uint32_t i = threadIdx.x; i < words; i += blockDim.x)
		shared[i] = i;
	__syncthreads();
	float value = chain(words ? shared[threadIdx.x % words] : 0, iterations);
	if (threadIdx.x == 0)
		out[blockIdx.x] = value;
}

// The same for the system `reset`: as long as *requests is not 0 the kernel ends at once, wherever it is, says so in *incomplete, and
// has to be launched again. A thread of each block reads the word, which is in host memory, while the others work.
extern "C" __global__ void __launch_bounds__(1024)
	bench_work_reset(float *out, unsigned long long iterations, const volatile uint32_t *requests,
			 volatile uint32_t *incomplete)
{
	constexpr unsigned long long PIECE = 256; // iterations between two looks: about a microsecond where an SM is full
	__shared__ volatile uint32_t raised;
	if (threadIdx.x == 0)
		raised = *requests;
	__syncthreads();
	float value = threadIdx.x;
	for (unsigned long long done = 0; done < iterations && !raised; done += PIECE) {
		uint32_t seen = threadIdx.x == 0 ? *requests : 0;
		value = chain(value, iterations - done < PIECE ? iterations - done : PIECE);
		if (seen)
			raised = seen;
	}
	if (threadIdx.x == 0) {
		out[blockIdx.x] = value;
		if (raised)
			*incomplete = 1;
	}
}

extern "C" __global__ void bench_empty() {}

// Updates data in place; the result of a series of launches depends on every one of them having run
// exactly once and in order.
extern "C" __global__ void __launch_bounds__(1024) bench_mix(uint32_t *data, uint32_t n, uint32_t rounds)
{
	uint32_t stride = gridDim.x * blockDim.x;
	for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
		uint32_t word = data[i];
		for (uint32_t round = 0; round < rounds; round++)
			word = (word ^ (word >> 15)) * 0x2c1b3c6du + i + round;
		data[i] = word;
	}
}
