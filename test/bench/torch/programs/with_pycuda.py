"""PyCUDA: kernels that nvcc compiles, streams, events, pinned memory, arrays on the GPU, a reduction."""
import hashlib

import numpy
import pycuda.autoinit  # noqa: F401 (makes a context)
import pycuda.driver as cuda
from pycuda import gpuarray
from pycuda.compiler import SourceModule

N = 1 << 20
SOURCE = """
__constant__ unsigned factor;
__global__ void mix(unsigned *data, unsigned n, unsigned step)
{
	unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n)
		data[i] = (data[i] ^ data[i] >> 15) * factor + step + i;
}
"""

module = SourceModule(SOURCE, cache_dir=False)
factor, size = module.get_global("factor")
cuda.memcpy_htod(factor, numpy.uint32(0x2C1B3C6D))
mix = module.get_function("mix")
mix.prepare("PII")

streams = [cuda.Stream(), cuda.Stream()]
host = cuda.pagelocked_empty(N, numpy.uint32)
host[:] = numpy.arange(N, dtype=numpy.uint32)
data = cuda.mem_alloc(host.nbytes)
cuda.memcpy_htod_async(data, host, streams[0])
for step in range(100):
    on, before = streams[step % 2], streams[(step + 1) % 2]
    on.wait_for_event(cuda.Event().record(before))
    mix.prepared_async_call((N // 256, 1), (256, 1, 1), on, data, N, step)
cuda.memcpy_dtoh_async(host, data, streams[1])
streams[1].synchronize()
digest = hashlib.sha256(host.tobytes())

array = gpuarray.arange(0, 1 << 18, 1, dtype=numpy.int32)
for step in range(20):
    array = array * 31 + step  # wraps round
digest.update(array.get().tobytes())
digest.update(gpuarray.sum(array, dtype=numpy.int64).get().tobytes())
print(digest.hexdigest())
