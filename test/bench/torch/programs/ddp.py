"""DistributedDataParallel on two GPUs: training with buckets of gradients, joined by NCCL."""
import torch

from shared import two_gpus


def work(rank):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU(), torch.nn.Flatten(),
                                torch.nn.Linear(32 * 256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)).to("cuda")
    wrapped = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank], bucket_cap_mb=1)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01, momentum=0.9)
    for i in range(40):
        generator = torch.Generator().manual_seed(2 * i + rank)
        images = torch.randn(32, 3, 16, 16, generator=generator).to("cuda")
        labels = (torch.arange(32, device="cuda") + rank) % 10
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(wrapped(images), labels).backward()
        optimizer.step()
    return two_gpus.digest(model.state_dict().values())


if __name__ == "__main__":
    two_gpus.run(work)
