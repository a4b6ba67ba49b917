"""A latency-critical process that generates text with transformers: each token is a step. Serves the order run, whose answer has
the time of each token (PROTOCOL.md).
"""
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import protocol

PROMPT, TOKENS = 128, 32


class Times:
    """What generate() gives each token to."""

    def __init__(self):
        self.at = []

    def put(self, _):
        self.at.append(time.monotonic_ns())

    def end(self):
        pass


def main():
    if not protocol.begin():
        return
    config = LlamaConfig(vocab_size=32000, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
                         num_key_value_heads=8, bos_token_id=1, eos_token_id=None, pad_token_id=0)
    with torch.no_grad():
        model = LlamaForCausalLM(config).half().cuda().eval()
        prompt = (torch.arange(PROMPT, device="cuda") * 37 % 31000).view(1, PROMPT)
        mask = torch.ones_like(prompt)
        model.generate(prompt, attention_mask=mask, max_new_tokens=TOKENS, do_sample=False)
        torch.cuda.synchronize()
        protocol.answer({})
        for _, count in protocol.orders():
            start, latencies = time.monotonic_ns(), []
            for _ in range(int(count)):
                times, before = Times(), time.monotonic_ns()
                model.generate(prompt, attention_mask=mask, max_new_tokens=TOKENS, do_sample=False, streamer=times)
                # The streamer has the prompt first.
                for at in times.at[1:]:
                    latencies.append(at - before)
                    before = at
            protocol.answer({"start_ns": start, "end_ns": time.monotonic_ns(), "latencies_ns": latencies})


main()
