"""The latency-critical process: ResNet-50 as a CUDA graph, batch 1 (fp16, copies to and from the GPU included).

    python3 lc.py GAP_MS BYTES      from the end of a request to the next one; device memory that it holds beside the model

Serves the orders run, whose answer has the requests' latencies (PROTOCOL.md).
"""
import sys
import time

import torch
import torchvision

import protocol

WARM_UP_REQUESTS = 20


def classifying():
    """A request that classifies an image."""
    network = torchvision.models.resnet50().half().cuda().eval().to(memory_format=torch.channels_last)
    on_host = torch.randn(1, 3, 224, 224).half().pin_memory()
    image = torch.empty(1, 3, 224, 224, device="cuda", dtype=torch.half)
    for _ in range(10):
        scores = network(image)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scores = network(image)

    def request():
        image.copy_(on_host, non_blocking=True)
        graph.replay()
        return scores.float().cpu()
    return request


def main():
    gap, held = float(sys.argv[1]) / 1000, int(sys.argv[2])
    if not protocol.begin():
        return
    torch.backends.cudnn.benchmark = True
    held = torch.ones(held, dtype=torch.uint8, device="cuda")
    with torch.no_grad():
        request = classifying()
        protocol.answer({})
        for _, count in protocol.orders():
            latencies = []
            for i in range(-WARM_UP_REQUESTS, int(count)):
                if i == 0:
                    start = time.monotonic_ns()
                time.sleep(gap)
                arrived = time.monotonic_ns()
                request()
                if i >= 0:
                    latencies.append(time.monotonic_ns() - arrived)
                if i % 20 == 0:  # an allocation, beside the requests
                    torch.empty(64 << 20, dtype=torch.uint8, device="cuda").fill_(1)
                    torch.cuda.empty_cache()
            protocol.answer({"start_ns": start, "end_ns": time.monotonic_ns(), "latencies_ns": latencies})


main()
