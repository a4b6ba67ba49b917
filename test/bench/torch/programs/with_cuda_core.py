"""cuda-python: kernels that NVRTC compiles, launched by cuda.core and by cuda.bindings, streams, events, buffers, a graph."""
import ctypes
import hashlib
import sys

from cuda.bindings import driver
try:
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch
except ImportError:  # before 0.5
    from cuda.core.experimental import Device, LaunchConfig, Program, ProgramOptions, launch

SOURCE = r"""
extern "C" __global__ void mix(unsigned *data, unsigned n, unsigned step)
{
	unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n)
		data[i] = (data[i] ^ data[i] >> 15) * 0x2c1b3c6du + step + i;
}
"""
N = 1 << 20


def check(result, *values):
    if result != driver.CUresult.CUDA_SUCCESS:
        sys.exit(f"the driver says {result}")
    return values[0] if len(values) == 1 else values


device = Device(0)
device.set_current()
arch = "".join(f"{part}" for part in device.compute_capability)
code = Program(SOURCE, code_type="c++", options=ProgramOptions(std="c++17", arch=f"sm_{arch}")).compile("cubin")
mix = code.get_kernel("mix")
stream, other = device.create_stream(), device.create_stream()
memory = device.allocate(4 * N, stream=stream)
address = int(memory.handle)
check(*driver.cuMemsetD32Async(address, 1, N, driver.CUstream(int(stream.handle))))
for step in range(100):
    on, waits = (stream, other) if step % 2 == 0 else (other, stream)
    on.wait(waits.record())
    launch(on, LaunchConfig(grid=N // 256, block=256), mix, address, ctypes.c_uint32(N), ctypes.c_uint32(step))
stream.wait(other)
stream.sync()

# The same through the driver's own calls, captured.
raw = driver.CUstream(int(stream.handle))
values = (ctypes.c_void_p(address), ctypes.c_uint32(N), ctypes.c_uint32(7))
parameters = (ctypes.c_void_p * 3)(*(ctypes.addressof(value) for value in values))
function = check(*driver.cuKernelGetFunction(driver.CUkernel(int(mix.handle))))
check(*driver.cuStreamBeginCapture(raw, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
for _ in range(10):
    check(*driver.cuLaunchKernel(function, N // 256, 1, 1, 256, 1, 1, 0, raw, ctypes.addressof(parameters), 0))
graph = check(*driver.cuStreamEndCapture(raw))
runnable = check(*driver.cuGraphInstantiate(graph, 0))
for _ in range(20):
    check(*driver.cuGraphLaunch(runnable, raw))
stream.sync()
host = bytearray(4 * N)
check(*driver.cuMemcpyDtoH((ctypes.c_char * len(host)).from_buffer(host), address, len(host)))
check(*driver.cuGraphExecDestroy(runnable))
check(*driver.cuGraphDestroy(graph))
memory.close(stream)
stream.sync()
print(hashlib.sha256(host).hexdigest())
