// The tools look at launches of one kernel and, by the argument, at a write behind the end or a race.
//   tools [out-of-bounds|race]
#include "program.h"

#include <cstring>

__global__ void looked_at(uint32_t *data, unsigned words, unsigned beyond)
{
	unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
	uint32_t seen = data[i % words];
	data[i % words] = seen * 1664525u + i;
	if (i == 0 && beyond)
		data[words - 1 + beyond] = 1;
}

__global__ void races(uint32_t *data)
{
	__shared__ uint32_t shared[256];
	shared[threadIdx.x] = data[threadIdx.x];
	data[threadIdx.x] = shared[(threadIdx.x + 1) % 256]; // without waiting for the others
}

int main(int count, char **values)
{
	const char *kind = count > 1 ? values[1] : "";
	const unsigned words = 1 << 16;
	uint32_t *data;
	CHECK(cudaMalloc(&data, words * sizeof *data));
	CHECK(cudaMemset(data, 0, words * sizeof *data));
	for (int i = 0; i < 10; i++)
		looked_at<<<words / 256, 256>>>(data, words, 0);
	CHECK(cudaDeviceSynchronize());
	uint64_t sum = checksum(data, words);
	if (strcmp(kind, "out-of-bounds") == 0)
		looked_at<<<1, 256>>>(data, words, 1 << 20);
	if (strcmp(kind, "race") == 0)
		races<<<1, 256>>>(data);
	cudaDeviceSynchronize(); // what was planted may be an error
	printf("%016llx\n", (unsigned long long)sum);
	return 0;
}
