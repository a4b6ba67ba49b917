// No parameters, odd sizes of parameters, barriers, shared memory, switch tables, variables of the module.
#include <cstdint>

__device__ int table[64];
__device__ int counter = 7;
__constant__ float coefficients[8];
__constant__ int lookup[4] = {3, 1, 4, 1};

extern "C" __global__ void nothing() {}

extern "C" __global__ void no_parameters() { atomicAdd(&counter, 1); }

extern "C" __global__ void one_byte(char c)
{
	if (c == 17)
		table[threadIdx.x] = c;
}

extern "C" __global__ void three_bytes(char a, char b, char c) { table[threadIdx.x] = a + b * c; }

extern "C" __global__ void barrier(int *out, int n)
{
	__shared__ int shared[256];
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	shared[threadIdx.x & 255] = i;
	__syncthreads();
	if (i < n)
		out[i] = shared[(threadIdx.x ^ 1) & 255] * (int)coefficients[i & 7] + table[i & 63] + lookup[i & 3];
}

extern "C" __global__ void barriers_16(int *out)
{
	asm volatile("bar.sync 0;\n bar.sync 1;\n bar.sync 15;");
	int any = __syncthreads_or(out[threadIdx.x]), all = __syncthreads_and(out[threadIdx.x]);
	out[threadIdx.x] = any + all + __syncthreads_count(out[1]);
}

extern "C" __global__ void named_barrier(int *out, int id)
{
	asm volatile("bar.sync %0, 64;" ::"r"(id));
	if (threadIdx.x < 32)
		asm volatile("{ .reg .pred p; setp.ne.s32 p, %1, 0; bar.red.popc.u32 %0, 0, 32, p; }"
			     : "=r"(out[0])
			     : "r"(id));
}

extern "C" __global__ void dynamic_shared(float *out)
{
	extern __shared__ float dynamic[];
	dynamic[threadIdx.x] = out[threadIdx.x];
	__syncthreads();
	out[threadIdx.x] = dynamic[blockDim.x - 1 - threadIdx.x];
}

extern "C" __global__ void switch_table(int *p, int n)
{
	int v = p[threadIdx.x];
	switch (n) {
	case 0: v = sinf(v); break;
	case 1: v = v * v; break;
	case 2: v = atomicAdd(p, 1); break;
	case 3: v = v / 3; break;
	case 4: v <<= 2; break;
	case 5: v ^= 77; break;
	case 6: v = __popc(v); break;
	case 7: v = __ffs(v); break;
	case 8: v = __brev(v); break;
	}
	p[threadIdx.x] = v;
}

extern "C" __global__ void loop(float *a, const float *b, int n)
{
	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
		float sum = 0;
		for (int k = 0; k < n; k++)
			sum += a[k] * b[i];
		a[i] = sum / (b[i] + 1);
	}
}

extern "C" __global__ void wide_index(uint64_t *out)
{
	out[blockIdx.x + (uint64_t)gridDim.x * (blockIdx.y + (uint64_t)gridDim.y * blockIdx.z)] = clock64();
}
