"""numba-cuda: grids that synchronise, reductions, random numbers, a generated ufunc, pinned and mapped memory."""
import hashlib

import numpy

from shared import numpy_names  # noqa: F401

from numba import cuda, vectorize
from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float64


@cuda.jit
def rounds(data, count):
    i = cuda.grid(1)
    grid = cuda.cg.this_grid()
    for _ in range(count):
        value = data[(i + 1) % data.size]
        grid.sync()
        data[i] = (data[i] * 31 + value) & 0x7FFFFFFF
        grid.sync()


@cuda.reduce
def largest(a, b):
    return max(a, b)


@cuda.jit
def throw(states, hits):
    i = cuda.grid(1)
    for _ in range(100):
        x, y = xoroshiro128p_uniform_float64(states, i), xoroshiro128p_uniform_float64(states, i)
        if x * x + y * y < 1:
            cuda.atomic.add(hits, 0, 1)


@vectorize(["int64(int64, int64)"], target="cuda")
def mixed(a, b):
    return (a ^ (b << 3)) + (a >> 2)


digest = hashlib.sha256()
data = cuda.to_device(numpy.arange(64 * 64, dtype=numpy.int64))
for _ in range(20):
    rounds[64, 64](data, 5)
digest.update(data.copy_to_host().tobytes())
digest.update(str(largest(data)).encode())
hits = cuda.to_device(numpy.zeros(1, dtype=numpy.int64))
states = create_xoroshiro128p_states(64 * 64, seed=1)
throw[64, 64](states, hits)
digest.update(hits.copy_to_host().tobytes())
digest.update(numpy.asarray(mixed(numpy.arange(1 << 16), numpy.arange(1 << 16)[::-1].copy())).tobytes())
pinned = cuda.pinned_array(1 << 16, dtype=numpy.int64)
pinned[:] = numpy.arange(1 << 16)
on_device = cuda.to_device(pinned, stream=cuda.stream())
cuda.synchronize()
digest.update(on_device.copy_to_host().tobytes())
print(digest.hexdigest())
