"""Stands in for vLLM's engine with sleep mode: it keeps a part of the (simulated) GPU's memory, and makes tokens by what that holds."""
import ctypes
import types

import simulated

HOLDS = 7


class SamplingParams:
    def __init__(self, **_):
        pass


class LLM:
    def __init__(self, gpu_memory_utilization, **_):
        print("INFO 12-01 09:00:00 the engine starts", flush=True)  # as vLLM does, on standard output
        self.gpu = simulated.spin()
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.gpu.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        self.words = int(total.value * gpu_memory_utilization) // 4
        if free.value < 4 * self.words:
            raise ValueError(f"{free.value} bytes are free")
        self.wake_up()

    def wake_up(self):
        self.memory = ctypes.c_void_p()
        self.gpu.call("cuMemAlloc_v2", ctypes.byref(self.memory), ctypes.c_size_t(4 * self.words))
        self.gpu.call("cuMemsetD32_v2", self.memory, HOLDS, ctypes.c_size_t(self.words))

    def sleep(self, level):
        self.gpu.call("cuMemFree_v2", self.memory)

    def generate(self, prompts, *_, **__):
        self.gpu.launch(1, 1, None, ctypes.c_uint64(1000))
        held = (ctypes.c_uint32 * 1)()
        self.gpu.call("cuMemcpyDtoH_v2", held, ctypes.c_void_p(self.memory.value + 4 * (self.words - 1)), ctypes.c_size_t(4))
        output = types.SimpleNamespace(token_ids=[held[0]])
        return [types.SimpleNamespace(outputs=[output]) for _ in prompts]
