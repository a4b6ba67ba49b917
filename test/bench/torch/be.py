"""The best-effort process: steps back to back. Serves the orders start and stop (PROTOCOL.md); the answer to stop says when
each step had completed.
"""
import argparse
import time

import torch
import torchvision

import protocol


def training():
    """ResNet-50 with AMP."""
    model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(128, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (128,), device="cuda")
    loss = torch.nn.CrossEntropyLoss()

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            value = loss(model(images), labels)
        value.backward()
        optimizer.step()
    return step


def fp64_product():
    matrix = torch.randn(16384, 16384, device="cuda", dtype=torch.float64)
    return lambda: torch.mm(matrix, matrix)


def inference():
    model = torchvision.models.resnet152().half().cuda().eval().to(memory_format=torch.channels_last)
    images = torch.randn(64, 3, 224, 224, device="cuda", dtype=torch.half)
    images = images.to(memory_format=torch.channels_last)

    def step():
        with torch.no_grad():
            model(images)
    return step


KINDS = {"train": training, "gemmfp64": fp64_product, "infer": inference}


def run(step):
    """Steps until stop."""
    times = [time.monotonic_ns()]
    while len(times) == 1 or not protocol.stop_waits():
        step()
        torch.cuda.synchronize()
        times.append(time.monotonic_ns())
        if len(times) == 2:
            protocol.answer({})  # the work is under way
    return {"times_ns": times, "counts": list(range(len(times)))}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--fixed-algorithms", action="store_true",
                        help="those that cuDNN thinks best, not those that were the fastest just now")
    options = parser.parse_args()
    if not protocol.begin():
        return
    torch.backends.cudnn.benchmark = not options.fixed_algorithms
    step = KINDS[options.kind]()
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    protocol.answer({})
    for order in protocol.orders():
        if order == ["start"]:
            result = run(step)
        elif order == ["stop"]:
            protocol.answer(result)


main()
