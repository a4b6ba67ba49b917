"""Kernels on the simulated GPU, by the driver."""
import ctypes
import sys


class Driver:
    def __init__(self, image, name):
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.context, self.module, self.kernel = (ctypes.c_void_p() for _ in range(3))
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self.call("cuCtxSetCurrent", self.context)
        self.call("cuModuleLoadData", ctypes.byref(self.module), image)
        self.call("cuModuleGetFunction", ctypes.byref(self.kernel), self.module, name)

    def call(self, name, *arguments):
        status = getattr(self.driver, name)(*arguments)
        if status:
            sys.exit(f"{name}: CUDA error {status}")

    def launch(self, blocks, threads, stream, *values):
        parameters = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        self.call("cuLaunchKernel", self.kernel, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, None)


def spin():
    """A kernel that takes as many microseconds as it is told, a c_uint64."""
    return Driver(b"simulated image", b"sim_spin_us")
