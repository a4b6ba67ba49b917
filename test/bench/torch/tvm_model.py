"""A network that TVM has compiled (tvm/build.py), run by TVM's runtime alone: as the latency-critical process or as the
best-effort one. Serves the orders go, run, prepare, start and stop (PROTOCOL.md).

    python3 tvm_model.py FOLDER NETWORK

FOLDER is what `make tvm` makes. A request copies its input to the GPU and the result back, which must be what the first one
gave; the answer to init has a checksum of that.
"""
import argparse
import ctypes
import hashlib
import json
import math
import os
import pathlib
import sys
import time

import protocol

WARM_UP = 20


def load_cuda(runtime):
    """TVM's part for CUDA, and NVIDIA's runtime that it needs: the machine's or that of PyTorch's packages."""
    folders = [pathlib.Path(folder) / "nvidia/cu13/lib" for folder in sys.path] + [pathlib.Path("/usr/local/cuda/lib64")]
    name = "libcudart.so.13"
    for path in [name, *(str(folder / name) for folder in folders)]:
        try:
            ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
            break
        except OSError:
            continue
    ctypes.CDLL(str(runtime / "tvm/lib/libtvm_runtime_cuda.so"))


def load(folder, name):
    """What carries out a request, and returns the result's bytes."""
    runtime = folder / "runtime"
    sys.path.insert(0, str(runtime))
    os.environ["TVM_USE_RUNTIME_LIB"] = "1"
    import numpy
    import tvm
    from tvm.runtime import vm

    facts = json.loads((folder / f"{name}.json").read_text())
    device = tvm.runtime.device(facts["device"], 0)
    if facts["device"] == "cuda":
        load_cuda(runtime)
    random = numpy.random.default_rng(0)

    def weight(shape):
        scale = math.sqrt(2 / math.prod(shape[1:])) if len(shape) > 1 else .1
        return tvm.runtime.tensor((random.standard_normal(shape, dtype="float32") * scale).astype(facts["type"]), device)

    weights = [weight(shape) for shape in facts["weights"]]
    image = random.standard_normal(facts["input"], dtype="float32").astype(facts["type"])
    on_device = tvm.runtime.empty(tuple(facts["input"]), facts["type"], device)
    forward = vm.VirtualMachine(tvm.runtime.load_module(str(folder / f"{name}.so")), device)["forward"]

    def request():
        on_device.copyfrom(image)
        return forward(on_device, *weights).numpy().tobytes()
    return request


class Worker:
    """Counts results that are not the first one."""
    def __init__(self, request, gap_ms):
        self.request, self.gap_ms = request, gap_ms
        self.first = request()
        self.prepare_us, self.hint = 0, None

    def go(self, go, hint):
        different = 0

        def request():
            nonlocal different
            different += self.request() != self.first
        return protocol.serve_requests(request, go, hint) | {"identical": not different}

    def prepared(self):
        """Prepares a request, which it announces where it is told to; returns when its work begins."""
        if self.hint:
            self.hint(self.prepare_us, 1.0)
        until = time.monotonic_ns() + 1000 * self.prepare_us
        while time.monotonic_ns() < until:
            pass
        return time.monotonic_ns()

    def run(self, requests):
        latencies, different = [], 0
        for i in range(requests + WARM_UP):
            if i == WARM_UP:
                start = time.monotonic_ns()
            time.sleep(self.gap_ms / 1000)
            begun = self.prepared()
            result = self.request()
            if i >= WARM_UP:
                latencies.append(time.monotonic_ns() - begun)
            different += result != self.first
        return {"start_ns": start, "end_ns": time.monotonic_ns(), "latencies_ns": latencies, "different": different}

    def run_until_stop(self):
        times, different = [time.monotonic_ns()], 0
        while len(times) == 1 or not protocol.stop_waits():
            different += self.request() != self.first
            times.append(time.monotonic_ns())
            if len(times) == 2:
                protocol.answer({})  # the work is under way
        return {"times_ns": times, "counts": list(range(len(times))), "different": different}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("network")
    parser.add_argument("--gap-ms", type=float, default=20)
    options = parser.parse_args()
    if not protocol.begin():
        return
    worker = Worker(load(options.folder, options.network), options.gap_ms)
    for _ in range(5):
        worker.request()
    hint = protocol.find_hint()
    protocol.collect_between()
    protocol.answer({"sum": hashlib.sha256(worker.first).hexdigest()})
    for word, *rest in protocol.orders():
        if word == "go":
            protocol.answer_go(" ".join([word, *rest]), worker.go, hint)
        elif word == "run":
            protocol.answer(worker.run(int(rest[0])))
        elif word == "prepare":
            worker.prepare_us = int(rest[0])
            worker.hint = hint if rest[1] == "1" else None
            protocol.answer({"hinted": worker.hint is not None})
        elif word == "start":
            result = worker.run_until_stop()
        elif word == "stop":
            protocol.answer(result)


main()
