"""The latency-critical process, batch 1: a network for images (fp16, copies to and from the GPU included) or a transformer's decoder.
Serves the orders run, whose answer has the requests' latencies, rate and range (PROTOCOL.md).
"""
import argparse
import time

import torch
import torchvision

import model
import protocol

NETWORKS = {"resnet50": torchvision.models.resnet50, "vgg19": lambda: torchvision.models.vgg19(init_weights=False)}


def classifying(name, mode):
    """A request that classifies an image."""
    network = NETWORKS[name]().half().cuda().eval().to(memory_format=torch.channels_last)
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
    parser.add_argument("--model", choices=[*NETWORKS, "decode"], default="resnet50")
    parser.add_argument("--mode", choices=["graph", "eager"], default="graph")
    parser.add_argument("--gap-ms", type=float, default=20, help="from the end of a request to the next one, without a rate")
    parser.add_argument("--warm-up", type=int, default=20, help="requests of a run that do not count")
    parser.add_argument("--fixed-algorithms", action="store_true",
                        help="those that cuDNN thinks best, not those that were the fastest just now")
    parser.add_argument("--resident-bytes", type=int, default=0, help="device memory that it holds beside the model")
    options = parser.parse_args()
    if options.model == "decode" and options.mode != "graph":
        parser.error("decode: there is only the graph")
    if not protocol.begin():
        return

    torch.backends.cudnn.benchmark = not options.fixed_algorithms
    held = torch.ones(options.resident_bytes, dtype=torch.uint8, device="cuda") if options.resident_bytes else None
    with torch.no_grad():
        request = model.decoding() if options.model == "decode" else classifying(options.model, options.mode)
        protocol.answer({})
        name, prepare_us, period_ns = None, 0, 0
        for word, *rest in protocol.orders():
            if word == "range":
                name, prepare_us = rest[0], int(rest[1])
                protocol.answer({})
                continue
            if word == "rate":
                period_ns = int(1e9 / float(rest[0])) if float(rest[0]) else 0
                protocol.answer({})
                continue
            requests, *seconds = (int(number) for number in rest)
            latencies, began = [], time.monotonic()
            due = time.monotonic_ns()
            for i in range(requests + options.warm_up):
                # Warm-up may take half of the time.
                if seconds and i < options.warm_up and time.monotonic() - began > seconds[0] / 2:
                    continue
                if seconds and latencies and time.monotonic() - began > seconds[0]:
                    break
                if i == options.warm_up:
                    start = time.monotonic_ns()
                if period_ns:
                    due += period_ns
                    protocol.wait_for(due)
                else:
                    time.sleep(options.gap_ms / 1000)
                if name:
                    torch.cuda.nvtx.range_push(name)
                    begun = time.monotonic_ns()
                    while time.monotonic_ns() - begun < prepare_us * 1000:
                        pass
                arrived = due if period_ns else time.monotonic_ns()
                request()
                if i >= options.warm_up:
                    latencies.append(time.monotonic_ns() - arrived)
                if name:
                    torch.cuda.nvtx.range_pop()
                if held is not None and i % 20 == 0:  # an allocation, beside the requests
                    torch.empty(64 << 20, dtype=torch.uint8, device="cuda").fill_(1)
                    torch.cuda.empty_cache()
            protocol.answer({"start_ns": start, "end_ns": time.monotonic_ns(), "latencies_ns": latencies})


main()
