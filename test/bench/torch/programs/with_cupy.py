"""CuPy: element-wise and raw kernels, reductions, streams, its memory pool."""
import hashlib

import cupy

mix = cupy.RawKernel(r"""
extern "C" __global__ void mix(unsigned int *data, unsigned int n, unsigned int round)
{
	unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n)
		data[i] = (data[i] ^ data[i] >> 15) * 0x2c1b3c6du + round;
}
""", "mix")
n = 1 << 20
data = cupy.arange(n, dtype=cupy.uint32)
digest = hashlib.sha256()
for i in range(200):
    mix((n // 256,), (256,), (data, cupy.uint32(n), cupy.uint32(i)))
    if i % 20 == 0:
        digest.update(cupy.sort(data[:65536]).get().tobytes())
        cupy.get_default_memory_pool().free_all_blocks()
with cupy.cuda.Stream(non_blocking=True) as stream:
    other = cupy.arange(n, dtype=cupy.int64) * 3
    total = other.sum()
    stream.synchronize()
digest.update(total.get().tobytes())
digest.update((data * cupy.uint32(5)).get().tobytes())
print(digest.hexdigest())
