"""Best-effort programs of PyTorch that take about so many bytes of device memory, and do in each step the same, bit by bit.

    python3 memory_program.py KIND BYTES

Serves steps N, whose answer says when they began and ended, and sum, a checksum of what they have come to (PROTOCOL.md).
nvshare-add and nvshare-matmul are the shapes of nvshare's own tests: sums and products of matrices of ones.
"""
import gc
import math
import os
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402

import protocol  # noqa: E402
import resnet  # noqa: E402

PROBE = 64  # images of the batches that tell how much memory an image takes
PIECE = 1 << 24  # words of a checksum at a time
PARTS = 64  # of a product of two matrices that fill a GPU: as a whole it takes 7 s in half, 40 s in single precision (H200)


def side(memory, matrices, element_bytes):
    """Of square matrices that take the memory together."""
    return int(math.sqrt(memory / matrices / element_bytes)) // 8 * 8


def by_rows(n, product):
    """A step that makes a part of the product's n rows, and the next one the next: product(from, to)."""
    rows = -(-n // PARTS)
    state = {"next": 0}

    def step():
        first = state["next"]
        product(first, min(first + rows, n))
        state["next"] = first + rows if first + rows < n else 0
    return step


def adds(memory):
    n = side(memory, 4, 4)  # a sum lives before the last one goes
    x, y = torch.ones(n, n, device="cuda"), torch.ones(n, n, device="cuda")
    state = {"x": x}
    del x

    def step():
        state["x"] = torch.add(state["x"], y)
    return step, lambda: [state["x"]]


def nvshare_add(memory):
    n = side(memory, 4, 4)
    x, y = torch.ones(n, n, device="cuda"), torch.ones(n, n, device="cuda")
    state = {}

    def step():
        state["z"] = torch.add(x, y)
    return step, lambda: [state["z"]]


def nvshare_matmul(memory):
    n = side(memory, 3, 4)
    x, y, z = (torch.ones(n, n, device="cuda") for _ in range(3))
    return by_rows(n, lambda a, b: torch.mm(x[a:b], y, out=z[a:b])), lambda: [z]


def gemm(memory):
    n = side(memory, 3, 2)
    generator = torch.Generator("cuda")
    generator.manual_seed(1)
    x, y = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16, generator=generator) / n ** 0.5 for _ in range(2))
    z = torch.zeros(n, n, device="cuda", dtype=torch.bfloat16)
    return by_rows(n, lambda a, b: torch.addmm(z[a:b], x[a:b], y, beta=0.5, out=z[a:b])), lambda: [z]


def training_bytes(images):
    """What a step takes at most. It follows from the shapes, so it is the same in every run."""
    torch.cuda.reset_peak_memory_stats()
    _, step = resnet.training(images, 0.001)
    step()
    step()
    most = int(torch.cuda.max_memory_allocated())
    del step
    gc.collect()
    torch.cuda.empty_cache()
    return most


def images_for(memory, bytes_of):
    """The batch whose step takes the memory. What an image takes depends on the algorithms, and these on the batch: batches
    are tried until the one that is asked for is at most twice as large as one that was."""
    fewer, more = PROBE, 2 * PROBE
    less, most = bytes_of(fewer), bytes_of(more)
    while True:
        images = int(more + (memory - most) * (more - fewer) / (most - less)) if most > less else more
        if images <= 2 * more:
            return max(images, 1)
        fewer, less, more = more, most, 2 * more
        most = bytes_of(more)


def training(memory):
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    images = images_for(memory, training_bytes)
    torch.manual_seed(1)
    model, step = resnet.training(images, 0.001)
    return step, lambda: [torch.nn.utils.parameters_to_vector(p.contiguous() for p in model.parameters())]


KINDS = {"adds": adds, "nvshare-add": nvshare_add, "nvshare-matmul": nvshare_matmul, "gemm": gemm, "training": training}


def checksum(tensors):
    """In pieces: its intermediate results take memory, too."""
    total = 0
    for tensor in tensors:
        words = tensor.detach().reshape(-1).view(torch.int16)
        for at in range(0, int(words.numel()), PIECE):
            part = words[at:at + PIECE].long()
            places = torch.arange(part.numel(), device=part.device) * 2 + 1 + at
            total = (total * 31 + int(((part ^ part >> 3) * places).sum())) & (1 << 64) - 1
    return f"{total:016x}"


def main():
    kind, memory = sys.argv[1], int(sys.argv[2])
    if not protocol.begin():
        return
    step, results = KINDS[kind](memory)
    step()
    torch.cuda.synchronize()
    protocol.answer({})
    for word, *rest in protocol.orders():
        if word == "steps":
            began = time.monotonic_ns()
            for _ in range(int(rest[0])):
                step()
                torch.cuda.synchronize()
            protocol.answer({"began_ns": began, "ended_ns": time.monotonic_ns()})
        elif word == "sum":
            protocol.answer({"sum": checksum(results())})


main()
