"""PyTorch's ways to allocate: cudaMallocAsync, expandable segments, and pools of a program's own."""
import hashlib
import os
import random
import subprocess
import sys

SETTINGS = ("backend:cudaMallocAsync", "expandable_segments:True", "max_split_size_mb:64")


def churn():
    import torch
    random.seed(0)
    digest = hashlib.sha256()
    kept = []
    side = torch.cuda.Stream()
    for i in range(200):
        kept.append(torch.full((random.randrange(1, 1 << 20),), i, device="cuda", dtype=torch.int64))
        kept[random.randrange(len(kept))].mul_(3).add_(i)
        if len(kept) > 16:
            gone = kept.pop(random.randrange(len(kept)))
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                gone.add_(1)
                gone.record_stream(side)
                digest.update(gone.sum().cpu().numpy().tobytes())
        if i % 50 == 0:
            torch.cuda.empty_cache()
    for tensor in kept:
        digest.update(tensor.cpu().numpy().tobytes())
    print(digest.hexdigest())


def pools():
    import torch
    digest = hashlib.sha256()
    pool = torch.cuda.MemPool()
    for i in range(20):
        with torch.cuda.use_mem_pool(pool):
            inside = torch.arange(1 << 18, device="cuda", dtype=torch.int64) * (i + 1)
        outside = inside + 1
        digest.update(outside.cpu().numpy().tobytes())
    print(digest.hexdigest())


def main():
    if len(sys.argv) > 1:
        {"churn": churn, "pools": pools}[sys.argv[1]]()
        return
    for setting in SETTINGS:
        environment = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": setting, "PYTORCH_ALLOC_CONF": setting}
        subprocess.run([sys.executable, __file__, "churn"], env=environment, check=True)
    subprocess.run([sys.executable, __file__, "pools"], check=True)


main()
