"""A network that TVM has compiled (tvm/build.py), run by TVM's runtime alone. Serves the order go (PROTOCOL.md).

    python3 tvm_model.py FOLDER NETWORK

FOLDER is what `make tvm` makes. A request copies its input to the GPU and the result back, which must be what the first one gave.
"""
import argparse
import ctypes
import json
import math
import os
import pathlib
import sys

import protocol


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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("network")
    options = parser.parse_args()
    if not protocol.begin():
        return
    request = load(options.folder, options.network)
    first = request()
    for _ in range(5):
        request()

    def serve(go, hint):
        different = 0

        def compared():
            nonlocal different
            different += request() != first
        return protocol.serve_requests(compared, go, hint) | {"identical": not different}

    hint = protocol.find_hint()
    protocol.collect_between()
    protocol.answer({})
    for order in protocol.orders():
        protocol.answer_go(" ".join(order), serve, hint)


main()
