"""CuPy: graphs, stream-ordered and managed allocations, pinned memory, events, FFT, linear algebra, sparse matrices."""
import hashlib

import cupy
import cupyx

digest = hashlib.sha256()


def take(values):
    digest.update(values.get().tobytes())


def graphs():
    x = cupy.arange(1 << 18, dtype=cupy.int64)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x * 3 + 1  # compiled before the capture
        stream.synchronize()
        stream.begin_capture()
        for i in range(10):
            cupy.multiply(x, 3, out=x)
            cupy.add(x, i, out=x)
        graph = stream.end_capture()
        for _ in range(50):
            graph.launch()
        stream.synchronize()
    take(x)


def allocations():
    for allocator in (cupy.cuda.MemoryAsyncPool().malloc, cupy.cuda.MemoryPool(cupy.cuda.malloc_managed).malloc, None):
        cupy.cuda.set_allocator(allocator)
        total = cupy.zeros(1 << 16, dtype=cupy.int64)
        for i in range(40):
            total += cupy.full(1 << 16, i, dtype=cupy.int64)[::-1] * (i + 1)
        take(total)
        del total
    cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)


def copies():
    pinned = cupyx.empty_pinned((1 << 18,), dtype="int64")
    pinned[:] = range(1 << 18)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(4)]
    parts = []
    for i, stream in enumerate(streams):
        with stream:
            part = cupy.empty(pinned.shape, dtype=pinned.dtype)
            part.set(pinned, stream=stream)
            part *= i + 2
            event = stream.record()
        streams[(i + 1) % 4].wait_event(event)
        parts.append(part)
    for stream in streams:
        stream.synchronize()
    take(sum(parts))


def mathematics():
    # Whole numbers come out of these, whatever the algorithm.
    signal = (cupy.arange(1 << 14) % 5).astype(cupy.float64)
    take(cupy.rint(cupy.fft.irfft(cupy.fft.rfft(signal))).astype(cupy.int64))
    matrix = (cupy.arange(128 * 128) % 7 - 3).reshape(128, 128).astype(cupy.float64) + 200 * cupy.eye(128)
    whole = (cupy.arange(128) % 11).astype(cupy.float64)
    take(cupy.rint(cupy.linalg.solve(matrix, matrix @ whole)).astype(cupy.int64))
    from cupyx.scipy import sparse
    band = sparse.diags([cupy.ones(999), 2 * cupy.ones(1000), cupy.ones(999)], [-1, 0, 1], format="csr")
    take((band @ cupy.arange(1000, dtype=cupy.float64)).astype(cupy.int64))
    take(cupy.random.RandomState(1).randint(0, 1 << 30, 1 << 16))


for part in (graphs, allocations, copies, mathematics):
    part()
print(digest.hexdigest())
