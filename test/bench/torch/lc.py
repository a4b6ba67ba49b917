"""The latency-critical process: ResNet-50, fp16, batch 1, copies to and from the GPU included.

Prints one line of JSON when ready, then serves the lines on standard input: "run N" makes N requests, "run N S"
as many of them as S seconds allow, and prints their latencies as JSON; "range NAME US" has an NVTX range of that name
begin so long before each request from then on; the end of the input ends the process.
"""
import argparse
import json
import sys
import time

import torch
import torchvision

WARM_UP = 20


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=["graph", "eager"], default="graph")
    parser.add_argument("--gap-ms", type=float, default=20)
    options = parser.parse_args()

    torch.backends.cudnn.benchmark = True
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

        print(json.dumps({"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}), flush=True)
        name, prepare_us = None, 0
        for line in sys.stdin:
            if line.startswith("range"):
                _, name, us = line.split()
                prepare_us = int(us)
                continue
            requests, *seconds = (int(word) for word in line.split()[1:])
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
            print(json.dumps({"start_ns": start, "end_ns": time.monotonic_ns(),
                              "latencies_ns": latencies}), flush=True)


main()
