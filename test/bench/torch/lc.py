"""The latency-critical process: ResNet-50, fp16, batch 1, copies to and from the GPU included. Serves the orders run, whose
answer has the requests' latencies, and range (PROTOCOL.md).
"""
import argparse
import time

import torch
import torchvision

import protocol

WARM_UP = 20


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=["graph", "eager"], default="graph")
    parser.add_argument("--gap-ms", type=float, default=20)
    parser.add_argument("--resident-bytes", type=int, default=0, help="device memory that it holds beside the model")
    options = parser.parse_args()
    if not protocol.begin():
        return

    torch.backends.cudnn.benchmark = True
    held = torch.ones(options.resident_bytes, dtype=torch.uint8, device="cuda") if options.resident_bytes else None
    model = torchvision.models.resnet50().half().cuda().eval().to(memory_format=torch.channels_last)
    on_host = torch.randn(1, 3, 224, 224).half().pin_memory()
    image = torch.empty(1, 3, 224, 224, device="cuda", dtype=torch.half)
    with torch.no_grad():
        for _ in range(10):
            scores = model(image)
        torch.cuda.synchronize()
        graph = None
        if options.mode == "graph":
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                scores = model(image)

        def request():
            nonlocal scores
            image.copy_(on_host, non_blocking=True)
            if graph:
                graph.replay()
            else:
                scores = model(image)
            return scores.float().cpu()

        protocol.answer({})
        name, prepare_us = None, 0
        for word, *rest in protocol.orders():
            if word == "range":
                name, prepare_us = rest[0], int(rest[1])
                protocol.answer({})
                continue
            requests, *seconds = (int(number) for number in rest)
            latencies, began = [], time.monotonic()
            for i in range(requests + WARM_UP):
                # Warm-up may take half of the time.
                if seconds and i < WARM_UP and time.monotonic() - began > seconds[0] / 2:
                    continue
                if seconds and latencies and time.monotonic() - began > seconds[0]:
                    break
                if i == WARM_UP:
                    start = time.monotonic_ns()
                time.sleep(options.gap_ms / 1000)
                if name:
                    torch.cuda.nvtx.range_push(name)
                    begun = time.monotonic_ns()
                    while time.monotonic_ns() - begun < prepare_us * 1000:
                        pass
                arrived = time.monotonic_ns()
                request()
                if i >= WARM_UP:
                    latencies.append(time.monotonic_ns() - arrived)
                if name:
                    torch.cuda.nvtx.range_pop()
                if held is not None and i % 20 == 0:  # an allocation, beside the requests
                    torch.empty(64 << 20, dtype=torch.uint8, device="cuda").fill_(1)
                    torch.cuda.empty_cache()
            protocol.answer({"start_ns": start, "end_ns": time.monotonic_ns(), "latencies_ns": latencies})


main()
