"""The best-effort process: steps back to back. Serves the orders start and stop (PROTOCOL.md); the answer to stop says when
each step had completed.
"""
import argparse
import os
import time

import torch
import torchvision

import protocol
import resnet


def training():
    return resnet.training(128, 0.01)[1]


def fp64_product():
    matrix = torch.randn(16384, 16384, device="cuda", dtype=torch.float64)
    return lambda: torch.mm(matrix, matrix)


def inference():
    model = torchvision.models.resnet152().half().cuda().eval().to(memory_format=torch.channels_last)
    images = torch.randn(64, 3, 224, 224, device="cuda", dtype=torch.half)
    images = images.to(memory_format=torch.channels_last)

    def step():
        with torch.no_grad():
            return model(images)
    return step


def offline():
    """vLLM without a server: batches of prompts, greedily. The model lies where the environment says."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_LOGGING_STREAM"] = "ext://sys.stderr"  # orders and answers have the standard output
    from vllm import LLM, SamplingParams
    model = LLM(os.environ["GPREEMPT_BENCH_MODEL"], load_format="dummy", max_model_len=1024, gpu_memory_utilization=0.2,
                kv_cache_memory_bytes=2 << 30, enable_prefix_caching=False, max_num_seqs=32, seed=0)
    prompts = [{"prompt_token_ids": [3 + (i * 37 + k) % 31000 for k in range(128)]} for i in range(32)]
    tokens = SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True)

    def step():
        answers = model.generate(prompts, tokens, use_tqdm=False)
        return torch.tensor([answer.outputs[0].token_ids for answer in answers])
    return step


KINDS = {"train": training, "gemmfp64": fp64_product, "infer": inference, "offline": offline}


def with_ballast(step, part):
    """A step reads a page of each 2 MiB of the ballast, so that all of it has to be there."""
    ballast = torch.full((int(torch.cuda.get_device_properties(0).total_memory * part) >> 21, 1 << 19), 3, device="cuda", dtype=torch.int32)

    def both():
        return step() + (ballast[:, 0].sum() - 3 * ballast.shape[0])
    return both


def bits(result):
    """What is compared: numbers that are none are equal to nothing, and weights that nobody trained make such."""
    return result.contiguous().view(torch.uint8)


def run(step, first):
    """Steps until stop. Each result is compared with the first one, unless that is None."""
    times = [time.monotonic_ns()]
    different = 0
    while len(times) == 1 or not protocol.stop_waits():
        result = step()
        torch.cuda.synchronize()
        times.append(time.monotonic_ns())
        if first is not None:
            different += not torch.equal(bits(result), bits(first))
        if len(times) == 2:
            protocol.answer({})  # the work is under way
    return {"times_ns": times, "counts": list(range(len(times))), "different": different}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--fixed-algorithms", action="store_true",
                        help="those that cuDNN thinks best, not those that were the fastest just now")
    parser.add_argument("--same", action="store_true", help="results are compared with the first")
    parser.add_argument("--ballast", type=float, default=0, help="this part of the GPU's memory is taken, and read in each step")
    options = parser.parse_args()
    if not protocol.begin():
        return
    torch.backends.cudnn.benchmark = not options.fixed_algorithms
    torch.backends.cudnn.deterministic = options.same
    step = KINDS[options.kind]()
    if options.ballast:
        step = with_ballast(step, options.ballast)
    for _ in range(5):
        first = step()
    torch.cuda.synchronize()
    protocol.answer({})
    for order in protocol.orders():
        if order == ["start"]:
            result = run(step, first if options.same else None)
        elif order == ["stop"]:
            protocol.answer(result)


main()
