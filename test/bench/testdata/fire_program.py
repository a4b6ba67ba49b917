"""Stands in for torch_programs.py: computes what its name says, which "kernels" has the GPU do."""
import ctypes
import os
import pathlib
import random
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import protocol  # noqa: E402
import simulated  # noqa: E402


class Kernels(simulated.Driver):
    """Launches of as many blocks as take a while to run one after another."""

    def __init__(self):
        super().__init__((pathlib.Path(__file__).resolve().parents[1] / "programs" / "bench.fatbin").read_bytes(), b"bench_work")
        self.memory = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(self.memory), ctypes.c_size_t(2 << 20))

    def round(self):
        for _ in range(2):
            self.launch(20_000, 1024, None, self.memory, ctypes.c_uint64(100_000))
        self.call("cuCtxSynchronize")


name = sys.argv[1]
role = os.environ.get("GPREEMPT_PRIORITY")
if not protocol.begin():
    sys.exit()
if name == "ends":
    sys.exit("as told")
kernels = Kernels() if name == "kernels" else None
steps = ["a", "b", "c"]
if name == "random":
    steps[0] = str(random.random())
if name == "different-as-be" and role == "be":
    steps[1] = "x"
protocol.answer({} if name == "silent" else {"steps": steps})
for order in protocol.orders():
    if order == ["start"]:
        protocol.answer({})
        while kernels and not protocol.stop_waits():
            kernels.round()
    else:
        wrong = name == "different-rounds" and role == "be"
        protocol.answer({"rounds": 5, "different": 2 if wrong else 0, "first_different": [3, 1] if wrong else [0, 0], "seconds": 0.5})
