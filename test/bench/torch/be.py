"""The best-effort process: steps back to back. Serves the orders start and stop (PROTOCOL.md); the answer to stop says when
each step had completed.
"""
import argparse
import os
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


def products(count, size, dtype):
    matrix = torch.randn(size, size, device="cuda", dtype=dtype)

    def step():
        for _ in range(count):
            torch.mm(matrix, matrix)
    return step


def elementwise():
    """Reads and writes 8 GB each time: the memory's bandwidth."""
    numbers = torch.ones(8 * 10**9 // 4, device="cuda")

    def step():
        for _ in range(5):
            numbers.mul_(1.0)
    return step


def inference():
    model = torchvision.models.resnet152().half().cuda().eval().to(memory_format=torch.channels_last)
    images = torch.randn(64, 3, 224, 224, device="cuda", dtype=torch.half)
    images = images.to(memory_format=torch.channels_last)

    def step():
        with torch.no_grad():
            model(images)
    return step


def offline(folder):
    """vLLM without a server: a batch of prompts, greedily."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams

    model = LLM(model=folder, load_format="dummy", max_model_len=1024, gpu_memory_utilization=0.2, kv_cache_memory_bytes=2 << 30,
                enable_prefix_caching=False, max_num_seqs=32, seed=0)
    prompts = [{"prompt_token_ids": [3 + (i * 37 + k) % 31000 for k in range(128)]} for i in range(32)]
    tokens = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)
    return lambda: model.generate(prompts, tokens, use_tqdm=False)


KINDS = {"train": training, "infer": inference, "elementwise": elementwise, "offline": offline,
         "gemmfp64": lambda: products(1, 16384, torch.float64), "gemmfp16": lambda: products(10, 8192, torch.float16)}


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
    parser.add_argument("of", nargs="*", help="the folder of the model, where the kind is offline")
    parser.add_argument("--fixed-algorithms", action="store_true",
                        help="those that cuDNN thinks best, not those that were the fastest just now")
    options = parser.parse_args()
    if not protocol.begin():
        return
    torch.backends.cudnn.benchmark = not options.fixed_algorithms
    step = KINDS[options.kind](*options.of)
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    protocol.answer({})
    for order in protocol.orders():
        if order == ["start"]:
            result = run(step)
        elif order == ["stop"]:
            protocol.answer(result)
    if options.kind == "offline":
        os._exit(0)  # vLLM's own end takes seconds


main()
