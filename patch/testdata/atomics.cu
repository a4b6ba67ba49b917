// Atomics, warp-wide instructions, cooperative groups, asynchronous copies.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cuda/barrier>
#include <cuda_fp16.h>

namespace cg = cooperative_groups;

extern "C" __global__ void atomics(int *i, float *f, double *d, unsigned long long *l)
{
	atomicAdd(i, 1);
	atomicAdd_system(i + 1, 2);
	atomicMax(i + 2, threadIdx.x);
	atomicCAS(l, 1ULL, 2ULL);
	atomicAdd(f, 1.5f);
	atomicAdd(d, 2.5);
	atomicExch(i + 3, 4);
	__threadfence();
	__threadfence_system();
	atomicInc((unsigned int *)i + 5, 77);
}

extern "C" __global__ void half_atomics(__half *h, __half2 *h2)
{
	atomicAdd(h + threadIdx.x, __float2half(1));
	atomicAdd(h2, __float2half2_rn(2));
}

extern "C" __global__ void warp(int *p)
{
	int v = p[threadIdx.x];
	for (int i = 16; i; i /= 2)
		v += __shfl_down_sync(0xffffffff, v, i);
	p[threadIdx.x] = v + __ballot_sync(0xffffffff, v > 3) + __match_any_sync(0xffffffff, v) +
			 __reduce_add_sync(0xffffffff, v) + __any_sync(0xffffffff, v == 9);
}

extern "C" __global__ void groups(int *p)
{
	auto block = cg::this_thread_block();
	auto tile = cg::tiled_partition<8>(block);
	int sum = cg::reduce(tile, p[threadIdx.x], cg::plus<int>());
	block.sync();
	auto coalesced = cg::coalesced_threads();
	if (p[7])
		sum += coalesced.shfl(sum, 0);
	p[threadIdx.x] = sum + tile.any(sum > 3);
}

extern "C" __global__ void grid_sync(int *p)
{
	p[threadIdx.x]++;
	cg::this_grid().sync();
	p[threadIdx.x + 1] += p[threadIdx.x];
}

extern "C" __global__ void asynchronous_copy(int *out, const int *in)
{
	__shared__ int shared[256];
	auto block = cg::this_thread_block();
	cg::memcpy_async(block, shared, in, sizeof(shared));
	cg::wait(block);
	out[threadIdx.x] = shared[threadIdx.x ^ 3];
}

// refused: before sm_90 memory_barrier: EIATTR_INSTR_REG_MAP
extern "C" __global__ void memory_barrier(int *p, const int *q)
{
	__shared__ alignas(16) int shared[1024];
#pragma nv_diag_suppress static_var_with_dynamic_init
	__shared__ cuda::barrier<cuda::thread_scope_block> first, others[3];
	if (threadIdx.x == 0) {
		init(&first, blockDim.x);
		for (auto &other : others)
			init(&other, blockDim.x);
	}
	__syncthreads();
	cuda::memcpy_async(shared + threadIdx.x, q + threadIdx.x, 4, first);
	first.arrive_and_wait();
	others[p[3]].arrive_and_wait();
	p[threadIdx.x] = shared[threadIdx.x ^ 3];
}

extern "C" __global__ void matrix(const __half *a, const __half *b, float *c)
{
	unsigned int x[4], y[2];
	float z[4] = {};
	for (int i = 0; i < 4; i++)
		x[i] = ((const unsigned int *)a)[threadIdx.x * 4 + i];
	for (int i = 0; i < 2; i++)
		y[i] = ((const unsigned int *)b)[threadIdx.x * 2 + i];
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
		     "{%0,%1,%2,%3};"
		     : "+f"(z[0]), "+f"(z[1]), "+f"(z[2]), "+f"(z[3])
		     : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
	for (int i = 0; i < 4; i++)
		c[threadIdx.x * 4 + i] = z[i];
}
