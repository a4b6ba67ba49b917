"""A small network trained with deterministic algorithms; the weights are compared bit by bit."""
import hashlib

import torch

torch.manual_seed(0)
torch.use_deterministic_algorithms(True)
torch.backends.cudnn.benchmark = False
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU(),
    torch.nn.Conv2d(32, 32, 3, stride=2), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(10)).cuda()
images, labels = torch.randn(32, 3, 32, 32, device="cuda"), torch.arange(32, device="cuda") % 10
model(images)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(50):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
digest = hashlib.sha256()
for value in model.state_dict().values():
    digest.update(value.cpu().numpy().tobytes())
print(digest.hexdigest())
