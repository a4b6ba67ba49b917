"""numba-cuda's own tests: of its layer on the driver, and of kernels in streams, threads and processes. Prints what became of each."""
import hashlib
import io
import sys
import unittest

from shared import numpy_names  # noqa: F401

import numba.cuda.testing  # noqa: F401 (needs filecheck)

# Without those that compare what a debugger, a linker, an earlier version of CUDA or another program says, and those that end all contexts.
LAYER = ("array_attr", "context_stack", "cuda_array_slicing", "cuda_auto_context", "cuda_devicerecord", "cuda_driver", "cuda_memory",
         "cuda_ndarray", "events", "host_alloc", "managed_alloc", "pinned", "streams")
KERNELS = ("cooperative_groups", "cuda_array_interface", "forall", "ipc", "multiprocessing", "multithreads", "reduction", "sm",
           "stream_api", "sync", "transpose", "warp_ops")
PATIENCE = 120  # seconds for a further process to begin and to answer, instead of 4: on a busy machine it takes longer


class Outcomes(unittest.TextTestResult):
    """What became of each test, by its name."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.became = {}

    def addSuccess(self, test):
        super().addSuccess(test)
        self.became.setdefault(test.id(), "passed")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.became[test.id()] = "skipped"

    def addError(self, test, error):
        super().addError(test, error)
        self.became[test.id()] = "failed"

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.became[test.id()] = "failed"

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.became[test.id()] = "failed"


def run():
    names = [f"numba.cuda.tests.{part}.test_{name}" for part, names in (("cudadrv", LAYER), ("cudapy", KERNELS)) for name in names]
    tests = unittest.defaultTestLoader.loadTestsFromNames(names)
    if between_processes := sys.modules.get("numba.cuda.tests.cudapy.test_ipc"):
        between_processes.FUTURE_TIMEOUT = PATIENCE
    said = io.StringIO()
    outcomes = unittest.TextTestRunner(stream=said, resultclass=Outcomes).run(tests)
    became = outcomes.became
    print(said.getvalue()[-20000:], file=sys.stderr)
    counts = {kind: list(became.values()).count(kind) for kind in ("passed", "skipped", "failed")}
    if not counts["passed"]:
        sys.exit("none of numba-cuda's tests passed")
    every = "\n".join(f"{name} {kind}" for name, kind in sorted(became.items()))
    print(*(f"{count} {kind}" for kind, count in counts.items()), hashlib.sha256(every.encode()).hexdigest()[:16])
    for name, kind in sorted(became.items()):
        if kind == "failed":
            print(kind, name)


if __name__ == "__main__":  # tests of processes start others of this program
    run()
