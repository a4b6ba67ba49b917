"""Allocations and frees of many sizes, by two streams, emptied caches, pinned memory, statistics."""
import hashlib
import random

import torch

random.seed(0)
digest = hashlib.sha256()
kept = []
side = torch.cuda.Stream()
for i in range(400):
    kept.append(torch.full((random.randrange(1, 1 << 20),), i, device="cuda", dtype=torch.int64))
    kept[random.randrange(len(kept))].mul_(3).add_(i)
    if len(kept) > 20:
        gone = kept.pop(random.randrange(len(kept)))
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            gone.add_(1)
            gone.record_stream(side)
            digest.update(gone.sum().cpu().numpy().tobytes())
    if i % 40 == 0:
        gone = None
        torch.cuda.empty_cache()
    if i % 50 == 0:
        pinned = torch.arange(1 << 16, dtype=torch.int64).pin_memory()
        digest.update((pinned.cuda(non_blocking=True) * 5).cpu().numpy().tobytes())
        del pinned
assert torch.cuda.memory_stats()["num_alloc_retries"] == 0
assert torch.cuda.mem_get_info()[0] > 0
for tensor in kept:
    digest.update(tensor.cpu().numpy().tobytes())
print(digest.hexdigest())
