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

static __device__ unsigned first() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }

static __device__ unsigned step() { return blockDim.x * blockDim.y * blockDim.z; }

static __device__ void increment(int *data, int n_per_block)
{
	for (unsigned i = first(); i < (unsigned)n_per_block; i += step())
		data[number() * n_per_block + i]++;
}

// Adds 1 to each of the block's n_per_block elements.
extern "C" __global__ void sim_increment(int *data, int n_per_block, unsigned us_total)
{
	take(us_total);
	increment(data, n_per_block);
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

static __device__ unsigned total() { return gridDim.x * gridDim.y * gridDim.z; }

static __device__ unsigned look(unsigned *word) { return atomicAdd(word, 0); }

// The next three wait for blocks of their own launch without being launched cooperatively. Their word is 0 at first.
// sim_marlin: each block waits for the one of the next higher number, as the reduction of Marlin does.
extern "C" __global__ void sim_marlin(unsigned *word, int *data, int n_per_block, unsigned us_total)
{
	unsigned turn = total() - 1 - (unsigned)number();
	take(us_total);
	if (first() == 0)
		while (look(word) != turn)
			__nanosleep(100);
	__syncthreads();
	increment(data, n_per_block);
	__threadfence();
	__syncthreads();
	if (first() == 0)
		atomicExch(word, number() ? turn + 1 : 0);
}

// Block 0 waits for all others, as the Lamport protocols of FlashInfer and TensorRT-LLM do.
extern "C" __global__ void sim_lamport(unsigned *word, int *data, int n_per_block, unsigned us_total)
{
	take(us_total);
	increment(data, n_per_block);
	__syncthreads();
	if (first() == 0)
		atomicAdd(word, 1);
	if (number() == 0 && first() == 0) {
		while (look(word) != total())
			__nanosleep(100);
		atomicExch(word, 0);
	}
}

// All wait for all, in the middle: a grid barrier written by hand. The word counts on, from launch to launch of as
// many blocks. More blocks than the GPU holds at once never end.
extern "C" __global__ void sim_barrier(unsigned *word, int *data, int n_per_block, unsigned us_total)
{
	take(us_total);
	increment(data, n_per_block);
	__threadfence();
	__syncthreads();
	if (first() == 0) {
		unsigned target = (atomicAdd(word, 1) / total() + 1) * total();
		while ((int)(look(word) - target) < 0)
			__nanosleep(100);
	}
	__syncthreads();
	increment(data, n_per_block);
}

// A kernel of which the simulated driver knows no more than its image says.
extern "C" __global__ void sim_unknown(unsigned long long *out) { *out = ++sim_counter; }
