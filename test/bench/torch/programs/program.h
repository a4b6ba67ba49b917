// The programs in CUDA C++ share this: checks, a kernel whose result depends on every step before, and a checksum.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call) \
	do { \
		if (int result = (int)(call)) { \
			fprintf(stderr, "%s:%d: %s: error %d\n", __FILE__, __LINE__, #call, result); \
			exit(1); \
		} \
	} while (0)

// A function of the driver: nothing is linked with it.
template <typename Function> Function *driver_function(const char *name)
{
	void *found = nullptr;
	cudaDriverEntryPointQueryResult status;
	CHECK(cudaGetDriverEntryPointByVersion(name, &found, 12080, cudaEnableDefault, &status));
	if (status != cudaDriverEntryPointSuccess || !found) {
		fprintf(stderr, "the driver has no %s\n", name);
		exit(77);
	}
	return (Function *)found;
}

#define DRIVER(name) driver_function<decltype(name)>(#name)

constexpr unsigned WORDS = 1 << 20;

static __global__ void mix(uint32_t *data, unsigned words, uint32_t step)
{
	for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += gridDim.x * blockDim.x) {
		uint32_t value = data[i];
		for (int round = 0; round < 20; round++)
			value = (value ^ value >> 15) * 0x2c1b3c6du + step + i;
		data[i] = value;
	}
}

inline uint64_t checksum(const uint32_t *device, unsigned words, uint64_t sum = 14695981039346656037ull)
{
	std::vector<uint32_t> host(words);
	CHECK(cudaMemcpy(host.data(), device, words * sizeof(uint32_t), cudaMemcpyDeviceToHost));
	for (uint32_t value : host)
		sum = (sum ^ value) * 1099511628211ull;
	return sum;
}
