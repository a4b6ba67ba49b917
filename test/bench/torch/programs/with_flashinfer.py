"""FlashInfer: attention of prompts and of single tokens, normalisation, rotary positions, an activation, compiled at first use."""
import hashlib

import flashinfer
import torch

HEADS, KV_HEADS, WIDTH, PROMPT, TOKENS = 8, 2, 128, 384, 16

torch.manual_seed(0)
digest = hashlib.sha256()


def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.half)


def add(tensor):
    digest.update(tensor.cpu().numpy().tobytes())


hidden, weight = random(PROMPT, HEADS * WIDTH), random(HEADS * WIDTH)
query = flashinfer.rmsnorm(hidden, weight).view(PROMPT, HEADS, WIDTH)
keys, values = random(PROMPT + TOKENS, KV_HEADS, WIDTH), random(PROMPT + TOKENS, KV_HEADS, WIDTH)
# A prompt is one request of this length.
start, offset = torch.tensor([0, PROMPT], device="cuda", dtype=torch.int32), torch.tensor([0], device="cuda", dtype=torch.int32)
query, prompt_keys = flashinfer.apply_rope(query, keys[:PROMPT].contiguous(), start, offset)
add(flashinfer.single_prefill_with_kv_cache(query, prompt_keys, values[:PROMPT].contiguous(), causal=True))
keys = torch.cat([prompt_keys, keys[PROMPT:]])
for token in range(TOKENS):
    length = PROMPT + token + 1
    out = flashinfer.single_decode_with_kv_cache(random(HEADS, WIDTH), keys[:length].contiguous(), values[:length].contiguous())
    add(flashinfer.silu_and_mul(out.reshape(1, HEADS * WIDTH)))
print(digest.hexdigest())
