// Kernels whose results tell whether every block ran exactly once. All take (data, bins, spin_ns) first:
// data has one word for every thread of the grid, bins 4096 words, and every block spends spin_ns.
#ifndef __CUDA_ARCH__
#define __CUDA_ARCH__ 0
#endif
#if __CUDA_ARCH__ >= 900 || __CUDA_ARCH__ == 0
#include <cooperative_groups.h>
#endif

static __device__ __forceinline__ void spend(unsigned ns)
{
	unsigned long long start, now;
	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
	do {
		asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
	} while (now - start < ns);
}

static __device__ __forceinline__ unsigned block_number()
{
	return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
}

static __device__ __forceinline__ unsigned thread_number()
{
	unsigned in_block = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
	return block_number() * blockDim.x * blockDim.y * blockDim.z + in_block;
}

extern "C" __global__ void in_place(unsigned *data, unsigned *bins, unsigned spin_ns)
{
	unsigned i = thread_number();
	spend(spin_ns);
	data[i] = data[i] * 3 + 1;
}

extern "C" __global__ void atomics(unsigned *data, unsigned *bins, unsigned spin_ns)
{
	unsigned i = thread_number();
	spend(spin_ns);
	// Each bin with one operation only: then their order does not matter. The sums are below 2^24, so exact.
	atomicAdd(&bins[data[i] & 2047], 1);
	atomicXor(&bins[2048 + (block_number() & 1023)], data[i]);
	atomicAdd((float *)&bins[3072 + (data[i] & 1023)], (float)(data[i] >> 10 & 15));
}

extern "C" __global__ void shared_memory(unsigned *data, unsigned *bins, unsigned spin_ns)
{
	__shared__ unsigned fixed[1024];
	extern __shared__ unsigned dynamic[];
	unsigned t = threadIdx.x, i = thread_number();
	fixed[t] = data[i];
	dynamic[t] = data[i] ^ t;
	spend(spin_ns);
	__syncthreads();
	unsigned any = __syncthreads_count(fixed[t] & 1);
	data[i] = fixed[(t + 1) % blockDim.x] + dynamic[(t + 7) % blockDim.x] + any;
}

static __device__ __noinline__ unsigned fibonacci(unsigned n)
{
	return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}

extern "C" __global__ void functions(unsigned *data, unsigned *bins, unsigned spin_ns)
{
	unsigned i = thread_number(), v = data[i];
	spend(spin_ns);
	switch (v % 11) {
	case 0: v = fibonacci(v & 7); break;
	case 1: v = v * v; break;
	case 2: v = v / 7; break;
	case 3: v = (unsigned)(sinf(v) * 1000); break;
	case 4: v <<= 2; break;
	case 5: v ^= 77; break;
	case 6: v = __popc(v); break;
	case 7: v = __ffs(v); break;
	case 8: v = __brev(v); break;
	case 9: v = fibonacci(v & 3) + 4; break;
	}
	data[i] += v;
}

// Every block waits for the one before it.
extern "C" __global__ void look_back(unsigned *data, unsigned *bins, unsigned spin_ns)
{
	unsigned i = thread_number(), b = block_number();
	volatile unsigned *done = bins;
	spend(spin_ns);
	if (threadIdx.x == 0 && b > 0)
		while (done[b - 1] == 0)
			;
	__syncthreads();
	data[i] += b == 0 ? 1 : done[b - 1];
	__syncthreads();
	__threadfence();
	if (threadIdx.x == 0)
		done[b] = b + 1;
}

// Blocks take numbers of their own.
extern "C" __global__ void tickets(unsigned *data, unsigned *bins, unsigned spin_ns)
{
	__shared__ unsigned ticket;
	spend(spin_ns);
	if (threadIdx.x == 0)
		ticket = atomicAdd(&bins[0], 1);
	__syncthreads();
	data[ticket * blockDim.x + threadIdx.x] += ticket + 1;
}

template <int bytes> struct Block { unsigned char bytes_[bytes]; };

template <int bytes> static __device__ __forceinline__ void use(unsigned *data, unsigned spin_ns, const Block<bytes> &b)
{
	unsigned i = thread_number();
	spend(spin_ns);
	data[i] = data[i] * 5 + b.bytes_[data[i] % bytes];
}

// 4095, 4096 and 32752 bytes of parameters.
extern "C" __global__ void parameters_4095(unsigned *data, unsigned *bins, unsigned spin_ns,
					   const __grid_constant__ Block<4075> b)
{
	use(data, spin_ns, b);
}
extern "C" __global__ void parameters_4096(unsigned *data, unsigned *bins, unsigned spin_ns,
					   const __grid_constant__ Block<4076> b)
{
	use(data, spin_ns, b);
}
extern "C" __global__ void parameters_32752(unsigned *data, unsigned *bins, unsigned spin_ns,
					    const __grid_constant__ Block<32732> b)
{
	use(data, spin_ns, b);
}

extern "C" __global__ void __launch_bounds__(1024) full_block(unsigned *data, unsigned *bins, unsigned spin_ns)
{
	unsigned i = thread_number();
	spend(spin_ns);
	data[i] = __reduce_add_sync(0xffffffff, data[i]) + __shfl_xor_sync(0xffffffff, data[i], 5);
}

// For the cost of the guard: blocks that do nothing, that take some time and nothing else, and that copy
// 16 bytes a thread from data to bins.
extern "C" __global__ void empty(unsigned *data, unsigned *bins, unsigned spin_ns) {}

// Work, not time: while the warps of other blocks have the issue slots, the guard of a new one waits for them,
// and nothing is lost. With 64 warps on an SM, 16 on each scheduler, an instruction of each takes 16 cycles.
extern "C" __global__ void busy(unsigned *data, unsigned *bins, unsigned cycles)
{
	float x = threadIdx.x, y = cycles;
#pragma unroll 32
	for (unsigned i = 0; i < cycles / 16; i++)
		x = fmaf(x, y, 1.0f);
	if (x == 0.5f)
		data[0] = 1;
}

extern "C" __global__ void copy(const uint4 *from, uint4 *to, unsigned spin_ns)
{
	size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
	to[i] = from[i];
}

#if __CUDA_ARCH__ >= 900
extern "C" __global__ void __cluster_dims__(2, 2, 1) clusters(unsigned *data, unsigned *bins, unsigned spin_ns)
{
	__shared__ unsigned shared[256];
	auto cluster = cooperative_groups::this_cluster();
	unsigned i = thread_number(), t = threadIdx.x;
	shared[t] = data[i];
	spend(spin_ns);
	cluster.sync();
	data[i] += cluster.map_shared_rank(shared, cluster.block_rank() ^ 1)[t] * 3 + cluster.block_rank();
	cluster.sync();
}

extern "C" __global__ void launched_in_clusters(unsigned *data, unsigned *bins, unsigned spin_ns)
{
	auto cluster = cooperative_groups::this_cluster();
	unsigned i = thread_number();
	spend(spin_ns);
	cluster.sync();
	data[i] = data[i] * 7 + cluster.block_rank() + 100 * cluster.num_blocks();
}
#endif
