// What blocks can learn of each other while they run: kernels that can wait for another block, and ones that cannot. -G moves parts of
// some into functions. misjudged_ can wait, and are taken for ones that cannot: these, and no others.
#include <cuda.h>
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

extern "C" __global__ void waits_float(float *flag, int *out)
{
	while (!atomicAdd(flag, 0.0f))
		;
	*out = 1;
}

// Nobody uses the results of these atomics, but the load, though weak, must not miss what they brought.
extern "C" __global__ void waits_reduction(int *flag, int *out)
{
	do {
		atomicAdd(flag, 0);
		__syncthreads();
	} while (!*flag);
	*out = 1;
}

extern "C" __global__ void waits_reduction_float(float *flag, int *out)
{
	do {
		atomicAdd(flag, 0.0f);
		__syncthreads();
	} while (!*flag);
	*out = 1;
}

extern "C" __global__ void waits_store(int *flag, int *out)
{
	do {
		((volatile int *)flag)[threadIdx.x] = 0;
		__syncthreads();
	} while (!flag[threadIdx.x]);
	*out = 1;
}

__device__ __noinline__ void reduce(int *flag) { atomicAdd(flag, 0); }

extern "C" __global__ void waits_reducing_function(int *flag, int *out)
{
	do {
		reduce(flag);
		__syncthreads();
	} while (!*flag);
	*out = 1;
}

#if __CUDA_ARCH__ >= 1000
// 32 bytes in one instruction, which is one of its own.
#define LOAD_32(how, values, from) \
	asm volatile("ld" how ".v4.u64 {%0, %1, %2, %3}, [%4];" \
		     : "=l"(values[0]), "=l"(values[1]), "=l"(values[2]), "=l"(values[3]) \
		     : "l"(from) \
		     : "memory")
#define POLL_32(name, how) \
	extern "C" __global__ void name(unsigned long long *flag, int *out) \
	{ \
		unsigned long long values[4]; \
		do { \
			LOAD_32(how, values, flag); \
			__syncthreads(); \
		} while (!(values[0] | values[1] | values[2] | values[3])); \
		*out = 1; \
	}

POLL_32(waits_32_bytes, ".relaxed.gpu.global")
POLL_32(waits_no_allocate_32_bytes, ".global.L1::no_allocate")
POLL_32(free_evict_last_32_bytes, ".global.L1::evict_last")
POLL_32(free_32_bytes, ".global")

extern "C" __global__ void waits_store_32_bytes(unsigned long long *flag, int *out)
{
	do {
		asm volatile("st.relaxed.gpu.global.v4.u64 [%0], {%1, %1, %1, %1};" ::"l"(flag), "l"(0ull) : "memory");
		__syncthreads();
	} while (!*flag);
	*out = 1;
}

extern "C" __global__ void waits_reduction_32_bytes(unsigned long long *flag, int *out)
{
	unsigned long long values[4];
	do {
		atomicAdd(flag, 0);
		LOAD_32(".global", values, flag);
	} while (!(values[0] | values[1] | values[2] | values[3]));
	*out = 1;
}
#endif

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

// What is loaded in a loop, and added in others.
extern "C" __global__ void free_total(int *total, const int *in, int n)
{
	for (int i = threadIdx.x; i < n; i += blockDim.x)
		atomicAdd(total + i, n);
	int sum = 0;
	for (int i = threadIdx.x; i < n; i += blockDim.x)
		sum += in[i];
	for (int i = threadIdx.x; i < n; i += blockDim.x)
		atomicAdd(total + i, sum);
}

// A loop has both, but what it reads nobody writes.
extern "C" __global__ void free_histogram(int *__restrict__ total, const int *__restrict__ in, int n)
{
	for (int i = threadIdx.x; i < n; i += blockDim.x)
		atomicAdd(total + __ldg(in + i), 1);
}

extern "C" __global__ void free_evict_first(int *flag, int *out)
{
	int value;
	do {
		asm volatile("ld.global.L1::evict_first.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
		__syncthreads();
	} while (!value);
	*out = 1;
}

extern "C" __global__ void free_evict_last(int *flag, int *out)
{
	int value;
	do {
		asm volatile("ld.global.L1::evict_last.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
		__syncthreads();
	} while (!value);
	*out = 1;
}

extern "C" __global__ void free_evict_unchanged(int *flag, int *out)
{
	int value;
	do {
		asm volatile("ld.global.L1::evict_unchanged.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
		__syncthreads();
	} while (!value);
	*out = 1;
}

// Copies to shared memory ask L2.
extern "C" __global__ void misjudged_copy(const int *flag, int *out)
{
	__shared__ alignas(16) int shared[4];
	do {
		__pipeline_memcpy_async(shared, flag, 16);
		__pipeline_commit();
		__pipeline_wait_prior(0);
		__syncthreads();
	} while (!*(volatile int *)shared);
	*out = 1;
}

#if __CUDA_ARCH__ >= 900
extern "C" __global__ void misjudged_tensor(const __grid_constant__ CUtensorMap map, int *out)
{
	__shared__ alignas(128) int shared[32];
	__shared__ alignas(8) unsigned long long barrier;
	unsigned to = (unsigned)__cvta_generic_to_shared(shared), at = (unsigned)__cvta_generic_to_shared(&barrier);
	asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at) : "memory");
	unsigned phase = 0;
	do {
		asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 128;" ::"r"(at) : "memory");
		asm volatile("cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
			     "{%2}], [%3];" ::"r"(to),
			     "l"(&map), "r"(0), "r"(at)
			     : "memory");
		unsigned done;
		do
			asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 "
				     "%0, 1, 0, p; }"
				     : "=r"(done)
				     : "r"(at), "r"(phase)
				     : "memory");
		while (!done);
		phase ^= 1;
	} while (!*(volatile int *)shared);
	*out = 1;
}
#endif
