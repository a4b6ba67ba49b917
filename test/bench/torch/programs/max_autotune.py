"""torch.compile as max-autotune, which times many kernels and keeps the fastest, with CUDA graphs. All values are small
whole numbers: whichever kernel is the fastest, and whatever it sums up first, no bit changes."""
import hashlib
import os

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")  # several of these run at once

import torch  # noqa: E402


def model(x, weights, more):
    hidden = torch.relu(x @ weights - 8)
    return torch.clamp(hidden, max=3) @ more


def main():
    torch.backends.cuda.matmul.allow_tf32 = False
    weights = (torch.arange(256 * 128, device="cuda") % 5 - 2).view(256, 128).float()
    more = (torch.arange(128 * 64, device="cuda") % 3 - 1).view(128, 64).float()
    compiled = torch.compile(model, mode="max-autotune")
    digest = hashlib.sha256()
    with torch.no_grad():
        for i in range(20):
            x = (torch.arange(128 * 256, device="cuda") % (5 + i % 3) - 2).view(128, 256).float()
            digest.update(compiled(x, weights, more).cpu().numpy().tobytes())
    print(digest.hexdigest())


if __name__ == "__main__":
    main()
