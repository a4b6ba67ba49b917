"""Allocates device memory until there is none.

    python3 limit.py WAY       answers init with how many MiB it got (PROTOCOL.md)
"""
import ctypes
import os
import sys

import protocol

PIECE = 16 << 20  # bytes
ENVIRONMENT = {
    "expandable": {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "async": {"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync", "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    # JAX keeps to three quarters by itself.
    "jax": {"JAX_PLATFORMS": "cuda", "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_MEM_FRACTION": "1"},
    "jax-platform": {"JAX_PLATFORMS": "cuda", "XLA_PYTHON_CLIENT_ALLOCATOR": "platform"},
}


def driver_allocator():
    driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    for status in driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), driver.cuCtxSetCurrent(context):
        if status:
            sys.exit(f"no context: CUDA error {status}")

    def allocate():
        if driver.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(PIECE)):
            raise MemoryError("out of memory")
    return allocate


def allocator(way):
    if way.startswith("jax"):
        from jax import numpy

        return lambda: numpy.zeros(PIECE // 4, "float32").block_until_ready()
    if way.startswith("cupy"):
        import cupy

        if way == "cupy-async":
            cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
        return lambda: cupy.zeros(PIECE // 4, "float32")
    if way == "driver":
        return driver_allocator()
    import torch

    torch.zeros(1, device="cuda")

    def graph():
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured, stream=torch.cuda.Stream()):
            memory = torch.zeros(PIECE // 4, device="cuda")
        captured.replay()
        return captured, memory

    return graph if way == "graph" else lambda: torch.zeros(PIECE // 4, device="cuda")


def main():
    way = sys.argv[1]
    os.environ.update(ENVIRONMENT.get(way, {}))
    if not protocol.begin():
        return
    have = []
    try:
        allocate = allocator(way)
        while True:
            have.append(allocate())
    except Exception as error:  # each package has its own
        if "out of memory" not in str(error).lower():
            raise
        protocol.answer({"mib": len(have) * PIECE >> 20})
    sys.stdin.readline()


if __name__ == "__main__":
    main()
