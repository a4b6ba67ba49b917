"""Fully sharded training on two GPUs: parameters are gathered layer by layer, gradients scattered."""
import torch

from shared import two_gpus


def work(rank):
    from torch.distributed.fsdp import fully_shard
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU()) for _ in range(6))).to("cuda")
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for i in range(40):
        generator = torch.Generator().manual_seed(2 * i + rank)
        x = torch.randn(64, 256, generator=generator).to("cuda")
        optimizer.zero_grad()
        (model(x) - x).square().mean().backward()
        optimizer.step()
    return two_gpus.digest(value.full_tensor() for value in model.state_dict().values())


if __name__ == "__main__":
    two_gpus.run(work)
