// What blocks can learn of each other while they run: kernels that can wait for another block, and ones that cannot. -G moves parts of
// some into functions.
#include <cuda/atomic>
#include <cuda_pipeline.h>

extern "C" __global__ void waits_volatile(volatile int *flag, int *out)
{
	while (!*flag)
		;
	*out = 1;
}

extern "C" __global__ void waits_acquire(int *flag, int *out)
{
	cuda::atomic_ref<int, cuda::thread_scope_device> word(*flag);
	while (!word.load(cuda::memory_order_acquire))
		;
	*out = 1;
}

extern "C" __global__ void waits_system(int *flag, int *out)
{
	cuda::atomic_ref<int, cuda::thread_scope_system> word(*flag);
	while (!word.load(cuda::memory_order_relaxed))
		;
	*out = 1;
}

extern "C" __global__ void waits_block(int *flag, int *out)
{
	cuda::atomic_ref<int, cuda::thread_scope_block> word(*flag);
	while (!word.load(cuda::memory_order_relaxed))
		;
	*out = 1;
}

extern "C" __global__ void waits_second_level(const int *flag, int *out)
{
	while (!__ldcg(flag))
		__threadfence();
	*out = 1;
}

extern "C" __global__ void waits_no_allocate(int *flag, int *out)
{
	int value;
	do {
		asm volatile("ld.global.L1::no_allocate.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
		__syncthreads();
	} while (!value);
	*out = 1;
}

extern "C" __global__ void waits_last_use(int *flag, int *out)
{
	int value;
	do {
		asm volatile("ld.global.lu.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
		__syncthreads();
	} while (!value);
	*out = 1;
}

// A weak load, behind which the fence's other half empties L1.
extern "C" __global__ void waits_fence(int *flag, int *out)
{
	int value;
	do {
		asm volatile("ld.global.u32 %0, [%1];" : "=r"(value) : "l"(flag));
		cuda::atomic_thread_fence(cuda::memory_order_acquire, cuda::thread_scope_device);
	} while (!value);
	*out = 1;
}

extern "C" __global__ void waits_atomic(int *flag, int *out)
{
	while (!atomicAdd(flag, 0))
		;
	*out = 1;
}

extern "C" __global__ void waits_compare(unsigned long long *flag, int *out)
{
	while (atomicCAS(flag, 1, 2) != 1)
		;
	*out = 1;
}

// Whether shared or global memory is meant shows as it runs.
extern "C" __global__ void waits_generic(int *flag, int *out, int where)
{
	__shared__ int shared;
	int *word = where ? &shared : flag;
	shared = 1;
	while (!*(volatile int *)word)
		;
	*out = 1;
}

__device__ __noinline__ int poll(int *flag) { return atomicExch(flag, 1); }

extern "C" __global__ void waits_function(int *flag, int *out)
{
	while (!poll(flag))
		;
	*out = 1;
}

extern "C" __global__ void free_copy(float *out, const float *in, int n)
{
	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		out[i] = in[i] / (1 + out[i]);
}

extern "C" __global__ void free_constant(float *__restrict__ out, const float *__restrict__ in)
{
	out[threadIdx.x] = __ldg(in + threadIdx.x) + in[0];
}

extern "C" __global__ void free_reduction(int *total, int *most, float *sum, const int *in)
{
	__shared__ int of_block;
	if (threadIdx.x == 0)
		of_block = 0;
	__syncthreads();
	atomicAdd(&of_block, in[threadIdx.x]);
	atomicCAS(&of_block, 1, 2);
	__syncthreads();
	if (threadIdx.x == 0) {
		atomicAdd(total, of_block);
		atomicMax(most, of_block);
		atomicAdd(sum, (float)of_block);
		__threadfence_block();
	}
}

extern "C" __global__ void free_asynchronous(int *out, const int *in, int n)
{
	__shared__ alignas(16) int shared[2][512];
	int sum = 0;
	for (int i = 0; i < n; i++) {
		__pipeline_memcpy_async(&shared[i & 1][threadIdx.x * 4], in + i * 512 + threadIdx.x * 4, 16);
		__pipeline_commit();
		__pipeline_wait_prior(0);
		__syncthreads();
		sum += shared[i & 1][threadIdx.x ^ 3];
	}
	out[threadIdx.x] = sum;
}

extern "C" __global__ void free_chase(const int *in, int *out)
{
	int at = threadIdx.x;
	while (in[at] >= 0)
		at = in[at];
	out[threadIdx.x] = at;
}
