"""Stands in for PyTorch and torchvision: whatever is asked of it does nothing and gives itself. Who waits for the GPU
sleeps for a millisecond; with STUB_CUDA it does so on the (simulated) GPU.

STUB_FAILS is what goes wrong, once where STUB_ONCE is a file, which then goes: "at-start" and "in-run" end the program,
"hangs-at-start" and "hangs-in-run" let it wait.
"""
import ctypes
import functools
import os
import sys
import time

import simulated

IN_RUN = 30  # replays of a graph, those that warm up before


def fail_at(place):
    fails, once = os.environ.get("STUB_FAILS"), os.environ.get("STUB_ONCE")
    if fails not in (place, "hangs-" + place) or once and not os.path.exists(once):
        return
    if once:
        os.remove(once)
    if fails != place:
        time.sleep(1000)
    sys.exit("as told by STUB_FAILS")


class Anything:
    def __call__(self, *_, **__):
        return self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Graph(Anything):
    def __init__(self):
        self.replays = 0

    def replay(self):
        self.replays += 1
        if self.replays > IN_RUN:
            fail_at("in-run")


gpu = functools.cache(simulated.spin)


class Stream(Anything):
    def synchronize(self):
        if "STUB_CUDA" in os.environ:
            gpu().launch(1, 1, None, ctypes.c_uint64(1000))
            gpu().call("cuCtxSynchronize")
        else:
            time.sleep(.001)


class Cuda(Stream):
    def current_stream(self):
        return self

    def CUDAGraph(self):
        fail_at("at-start")
        return Graph()


class Module(Anything):
    def register_buffer(self, name, value):
        setattr(self, name, value)


class Network(Anything):
    Module = Module

    def ModuleList(self, modules):
        return list(modules)


class Torch(Anything):
    cuda = Cuda()


for name in "torch", "torch.nn.functional", "torchvision":
    sys.modules[name] = Torch() if name == "torch" else Anything()
sys.modules["torch.nn"] = sys.modules["torch"].nn = Network()
