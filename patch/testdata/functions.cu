// Device functions, recursion, function pointers, printf, assert, traps, heap, local memory.
#include <cassert>
#include <cstdio>

static __device__ __noinline__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
static __device__ __noinline__ float square(float x) { return x * x; }
static __device__ __noinline__ float cube(float x) { return x * x * x; }

typedef float (*function)(float);
__device__ function chosen = square;

extern "C" __global__ void recursion(int *p, int n) { p[threadIdx.x] = fibonacci(n); }

extern "C" __global__ void print(int *p, int n)
{
	p[threadIdx.x] = fibonacci(n);
	printf("thread %d of %d: %f\n", threadIdx.x, n, (double)n / 3);
}

extern "C" __global__ void pointer(float *p, int n)
{
	function f = n ? chosen : cube;
	p[threadIdx.x] = f(p[threadIdx.x]);
}

extern "C" __global__ void asserts(int *p)
{
	assert(p[threadIdx.x] != 3);
	if (p[threadIdx.x] == 4)
		__trap();
	p[threadIdx.x]++;
}

extern "C" __global__ void heap(int **p, int n)
{
	int *block = (int *)malloc(n * sizeof(int));
	if (block)
		block[n - 1] = n;
	p[threadIdx.x] = block;
}

extern "C" __global__ void local_memory(int *p, int n)
{
	int local[64];
	for (int i = 0; i < 64; i++)
		local[i] = p[i] * n;
	for (int i = 0; i < n; i++)
		p[i] = local[local[i & 63] & 63];
}

extern "C" __global__ void mathematics(double *p, float *q)
{
	p[threadIdx.x] = sin(p[threadIdx.x]) / sqrt(p[threadIdx.x]) + pow(p[0], p[1]);
	q[threadIdx.x] = tgammaf(q[threadIdx.x]) + fmodf(q[0], q[1]);
}

extern "C" __global__ void divergent(int *p, int n)
{
	for (int i = 0; i < n; i++) {
		if (p[i] == 0)
			return;
		if (p[i] & 1)
			p[i] = fibonacci(p[i] & 7);
		else if (p[i] & 2)
			continue;
		else
			p[i] += __shfl_sync(__activemask(), p[i], 0);
	}
}
