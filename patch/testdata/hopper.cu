// since: sm_90
// Clusters, distributed shared memory, programmatic dependent launch, bulk copies.
#include <cooperative_groups.h>
#include <cuda/barrier>

namespace cg = cooperative_groups;

extern "C" __global__ void __cluster_dims__(2, 1, 1) cluster(int *out)
{
	__shared__ int shared[256];
	auto cluster = cg::this_cluster();
	shared[threadIdx.x] = threadIdx.x + cluster.block_rank();
	cluster.sync();
	out[blockIdx.x * blockDim.x + threadIdx.x] =
		cluster.map_shared_rank(shared, cluster.block_rank() ^ 1)[threadIdx.x];
	cluster.sync();
}

extern "C" __global__ void launched_in_clusters(int *out)
{
	auto cluster = cg::this_cluster();
	cluster.sync();
	out[blockIdx.x] = cluster.num_blocks() * 100 + cluster.block_rank();
}

extern "C" __global__ void dependent(int *out)
{
	asm volatile("griddepcontrol.wait;" ::: "memory");
	out[threadIdx.x]++;
	asm volatile("griddepcontrol.launch_dependents;");
}

extern "C" __global__ void bulk_copy(int *out, const int *in)
{
	__shared__ alignas(128) int shared[256];
#pragma nv_diag_suppress static_var_with_dynamic_init
	__shared__ cuda::barrier<cuda::thread_scope_block> barrier;
	if (threadIdx.x == 0) {
		init(&barrier, blockDim.x);
		asm volatile("fence.proxy.async.shared::cta;");
	}
	__syncthreads();
	cuda::barrier<cuda::thread_scope_block>::arrival_token token;
	if (threadIdx.x == 0) {
		cuda::device::experimental::cp_async_bulk_global_to_shared(shared, in, sizeof(shared), barrier);
		token = cuda::device::barrier_arrive_tx(barrier, 1, sizeof(shared));
	} else {
		token = barrier.arrive();
	}
	barrier.wait(std::move(token));
	out[threadIdx.x] = shared[threadIdx.x ^ 5];
}
