"""An engine that holds a part of the GPU's memory: vLLM with sleep mode.

    python3 engine.py MODEL PART          serves the orders generate, sleep and wake (PROTOCOL.md)

The weights are random, and the same at each start. So are the tokens.
"""
import hashlib
import os
import sys
import time

import protocol

SEQUENCES, TOKENS = 8, 24


class Engine:
    def __init__(self, model, part):
        from vllm import LLM, SamplingParams

        self.llm = LLM(model=model, load_format="dummy", gpu_memory_utilization=part, enforce_eager=True, max_model_len=2048,
                       max_num_seqs=2 * SEQUENCES, enable_prefix_caching=False, enable_sleep_mode=True, seed=0)
        self.sampling = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
        self.prompts = [{"prompt_token_ids": [3 + (i * 977 + k * 131) % 31000 for k in range(60 + 20 * i)]} for i in range(SEQUENCES)]

    def generate(self):
        answers = self.llm.generate(self.prompts, self.sampling, use_tqdm=False)
        return hashlib.sha256(repr([list(a.outputs[0].token_ids) for a in answers]).encode()).hexdigest()[:16]

    def sleep(self):
        self.llm.sleep(level=1)

    def wake(self):
        self.llm.wake_up()


def main():
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    if not protocol.begin():
        return
    engine = Engine(sys.argv[1], float(sys.argv[2]))
    protocol.answer({"tokens": engine.generate()})
    for (order,) in protocol.orders():
        began = time.perf_counter()
        tokens = getattr(engine, order)() or ""
        protocol.answer({"tokens": tokens, "ms": (time.perf_counter() - began) * 1e3})
    os._exit(0)  # vLLM's own end takes seconds


if __name__ == "__main__":
    main()
