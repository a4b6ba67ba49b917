"""DataLoader with forked and spawned workers, pinned memory."""
import hashlib

import torch
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        return torch.arange(1024, dtype=torch.float64) % 17 + index % 13


def main():
    weights = (torch.arange(1024 * 256, device="cuda", dtype=torch.float64) % 11).view(1024, 256)
    digest = hashlib.sha256()
    for start in ("fork", "spawn"):
        loader = DataLoader(Squares(), batch_size=64, num_workers=3, pin_memory=True,
                            multiprocessing_context=start)
        total = torch.zeros(256, device="cuda", dtype=torch.float64)
        for batch in loader:
            total += (batch.cuda(non_blocking=True) @ weights).sum(0)
        digest.update(total.cpu().numpy().tobytes())
    print(digest.hexdigest())


if __name__ == "__main__":
    main()
