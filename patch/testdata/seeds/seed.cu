__device__ int table[4];
static __device__ __noinline__ int twice(int n) { return n < 2 ? n : twice(n - 1) * 2; }
extern "C" __global__ void seed(int *p, int n)
{
	switch (n) {
	case 0: p[0] = twice(n); break;
	case 1: p[1] = n * n; break;
	case 2: p[2] = atomicAdd(p, 1); break;
	case 3: p[3] = n / 3; break;
	case 4: p[n] = __syncthreads_or(n); break;
	}
}
extern "C" __global__ void empty() {}
