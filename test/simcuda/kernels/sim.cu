// Kernels whose every block leaves a trace that a second run of it would spoil. The simulated driver has the
// same by name (driver/kernels.c); these are for their images, and run on a GPU too.

__device__ unsigned long long sim_counter = 7;

// The number that a guard gives the block.
static __device__ unsigned long long number()
{
	return blockIdx.x + (unsigned long long)gridDim.x * (blockIdx.y + (unsigned long long)gridDim.y * blockIdx.z);
}

// Takes a block's part of a launch that takes us, as far as nothing else runs beside it.
static __device__ void take(unsigned us)
{
	unsigned long long blocks = (unsigned long long)gridDim.x * gridDim.y * gridDim.z, start, now;
	unsigned threads = blockDim.x * blockDim.y * blockDim.z, resident = 2048 / ((threads + 31) / 32 * 32);
	unsigned long long at_once = 132ull * (resident < 32 ? resident : 32), waves = (blocks + at_once - 1) / at_once;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
	do {
		__nanosleep(500);
		asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
	} while (now - start < us * 1000ull / waves);
}

static __device__ unsigned first()
{
	return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

static __device__ unsigned step()
{
	return blockDim.x * blockDim.y * blockDim.z;
}

// Adds 1 to each of the block's n_per_block elements.
extern "C" __global__ void sim_increment(int *data, int n_per_block, unsigned us_total)
{
	take(us_total);
	for (unsigned i = first(); i < (unsigned)n_per_block; i += step())
		data[number() * n_per_block + i]++;
}

// Multiplies each of the block's elements by 3 and adds: the order of launches shows in the result. The hidden
// parameter of the rewritten one stands behind padding.
extern "C" __global__ void sim_chain(unsigned *data, int n_per_block, unsigned add, unsigned us_total)
{
	take(us_total);
	for (unsigned i = first(); i < (unsigned)n_per_block; i += step()) {
		unsigned *at = &data[number() * n_per_block + i];
		*at = *at * 3 + add;
	}
}

// A kernel of which the simulated driver knows no more than its image says.
extern "C" __global__ void sim_unknown(unsigned long long *out)
{
	*out = ++sim_counter;
}
