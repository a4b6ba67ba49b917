"""numba-cuda: a compiled kernel, shared memory, atomics, streams."""
import hashlib

import numpy

from shared import numpy_names  # noqa: F401

from numba import cuda, int64


@cuda.jit
def mix(data, rounds):
    i = cuda.grid(1)
    if i < data.size:
        value = data[i]
        for j in range(rounds):
            value = (value * 1103515245 + j + i) & 0x7FFFFFFF
        data[i] = value


@cuda.jit
def total(data, out):
    part = cuda.shared.array(256, int64)
    part[cuda.threadIdx.x] = data[cuda.grid(1)]
    cuda.syncthreads()
    half = 128
    while half:
        if cuda.threadIdx.x < half:
            part[cuda.threadIdx.x] += part[cuda.threadIdx.x + half]
        cuda.syncthreads()
        half //= 2
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(out, 0, part[0])


n = 1 << 18
stream = cuda.stream()
data = cuda.to_device(numpy.arange(n, dtype=numpy.int64), stream=stream)
out = cuda.to_device(numpy.zeros(1, dtype=numpy.int64), stream=stream)
for i in range(100):
    mix[n // 256, 256, stream](data, i)
total[n // 256, 256, stream](data, out)
stream.synchronize()
digest = hashlib.sha256(data.copy_to_host().tobytes())
digest.update(out.copy_to_host().tobytes())
print(digest.hexdigest())
