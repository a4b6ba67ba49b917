"""transformers: a small GPT-2 with random weights generates, greedily, by sampling, by beams, and with a static cache."""
import hashlib

import torch
from transformers import GPT2Config, GPT2LMHeadModel, set_seed


def main():
    torch.backends.cuda.matmul.allow_tf32 = False
    set_seed(0)
    # No token ends a text: all are as long.
    config = GPT2Config(vocab_size=2048, n_positions=256, n_embd=128, n_layer=4, n_head=4, bos_token_id=0, eos_token_id=None,
                        pad_token_id=0)
    model = GPT2LMHeadModel(config).to("cuda").eval()
    prompt = (torch.arange(2 * 16, device="cuda") * 37 % 2048).view(2, 16)
    mask = torch.ones_like(prompt)
    digest = hashlib.sha256()
    for options in ({"do_sample": False}, {"do_sample": True, "top_k": 50, "temperature": 1.5}, {"num_beams": 4},
                    {"do_sample": False, "cache_implementation": "static"}):
        set_seed(1)
        tokens = model.generate(prompt, attention_mask=mask, max_new_tokens=48, **options)
        digest.update(tokens.cpu().numpy().tobytes())
    print(digest.hexdigest())


main()
