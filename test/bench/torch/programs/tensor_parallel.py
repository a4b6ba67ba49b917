"""Tensor parallel layers on two GPUs: a block is split by columns and then by rows."""
import torch

from shared import two_gpus


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = torch.nn.Linear(256, 1024), torch.nn.Linear(1024, 256)

    def forward(self, x):
        return x + self.narrow(torch.nn.functional.gelu(self.wide(x)))


def work(_):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    mesh = init_device_mesh("cuda", (two_gpus.GPUS,))
    model = torch.nn.Sequential(*(Block() for _ in range(4))).to("cuda")
    for block in model:
        parallelize_module(block, mesh, {"wide": ColwiseParallel(), "narrow": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
    for i in range(40):
        x = torch.randn(64, 256, generator=torch.Generator().manual_seed(i)).to("cuda")
        optimizer.zero_grad()
        (model(x) - x.flip(0)).square().mean().backward()
        optimizer.step()
    return two_gpus.digest(getattr(value, "full_tensor", lambda value=value: value)() for value in model.state_dict().values())


if __name__ == "__main__":
    two_gpus.run(work)
