"""The latency-critical process: ResNet-50, batch 1 (fp16, copies to and from the GPU included).
Serves the orders run, whose answer has the requests' latencies (PROTOCOL.md).
"""
import argparse
import time

import torch
import torchvision

import protocol

def classifying(mode):
    """A request that classifies an image."""
    network = torchvision.models.resnet50().half().cuda().eval().to(memory_format=torch.channels_last)
    on_host = torch.randn(1, 3, 224, 224).half().pin_memory()
    image = torch.empty(1, 3, 224, 224, device="cuda", dtype=torch.half)
    for _ in range(10):
        scores = network(image)
    torch.cuda.synchronize()
    graph = None
    if mode == "graph":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            scores = network(image)

    def request():
        nonlocal scores
        image.copy_(on_host, non_blocking=True)
        if graph:
            graph.replay()
        else:
            scores = network(image)
        return scores.float().cpu()
    return request


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=["graph", "eager"], default="graph")
    parser.add_argument("--gap-ms", type=float, default=20, help="from the end of a request to the next one")
    parser.add_argument("--warm-up", type=int, default=20, help="requests of a run that do not count")
    parser.add_argument("--resident-bytes", type=int, default=0, help="device memory that it holds beside the model")
    options = parser.parse_args()
    if not protocol.begin():
        return

    torch.backends.cudnn.benchmark = True
    held = torch.ones(options.resident_bytes, dtype=torch.uint8, device="cuda") if options.resident_bytes else None
    with torch.no_grad():
        request = classifying(options.mode)
        protocol.answer({})
        for _, *rest in protocol.orders():
            requests, latencies = int(rest[0]), []
            for i in range(requests + options.warm_up):
                if i == options.warm_up:
                    start = time.monotonic_ns()
                time.sleep(options.gap_ms / 1000)
                arrived = time.monotonic_ns()
                request()
                if i >= options.warm_up:
                    latencies.append(time.monotonic_ns() - arrived)
                if held is not None and i % 20 == 0:  # an allocation, beside the requests
                    torch.empty(64 << 20, dtype=torch.uint8, device="cuda").fill_(1)
                    torch.cuda.empty_cache()
            protocol.answer({"start_ns": start, "end_ns": time.monotonic_ns(), "latencies_ns": latencies})


main()
