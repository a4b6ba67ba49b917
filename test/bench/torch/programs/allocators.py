"""PyTorch's ways to allocate: cudaMallocAsync, expandable segments, and pools of a program's own."""
import hashlib
import os
import pathlib
import subprocess
import sys

SETTINGS = ("backend:cudaMallocAsync", "expandable_segments:True", "max_split_size_mb:64")


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
        pools()
        return
    churn = pathlib.Path(__file__).with_name("memory_churn.py")
    for setting in SETTINGS:
        environment = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": setting, "PYTORCH_ALLOC_CONF": setting}
        subprocess.run([sys.executable, churn], env=environment, check=True)
    subprocess.run([sys.executable, __file__, "pools"], check=True)


main()
