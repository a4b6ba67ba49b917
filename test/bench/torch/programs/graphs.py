"""CUDA graphs: capture, replay, several at once, updates between replays, a captured training step."""
import hashlib

import torch

digest = hashlib.sha256()
x = torch.zeros(1 << 20, device="cuda", dtype=torch.int32)
other = torch.arange(1 << 20, device="cuda", dtype=torch.int32)
graphs = []
for step in range(4):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(25):
            x.mul_(1664525 + 2 * step).add_(other)
    graphs.append(graph)
for i in range(200):
    graphs[i % 4].replay()
    if i % 40 == 0:
        other.add_(i)
digest.update(x.cpu().numpy().tobytes())

torch.use_deterministic_algorithms(True)
torch.manual_seed(0)
layer = torch.nn.Linear(512, 512, device="cuda")
optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3, momentum=0.9)
batch = torch.randn(64, 512, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        layer(batch).square().mean().backward()
        optimizer.step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    layer(batch).square().mean().backward()
    optimizer.step()
for _ in range(100):
    graph.replay()
digest.update(layer.weight.detach().cpu().numpy().tobytes())
print(digest.hexdigest())
