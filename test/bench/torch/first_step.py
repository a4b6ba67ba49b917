"""What a user waits for at the start: PyTorch and a first step of training, after which it answers init (PROTOCOL.md)."""
import sys

import protocol

if not protocol.begin():
    sys.exit()

import torch  # noqa: E402

model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3, stride=2), torch.nn.BatchNorm2d(64), torch.nn.ReLU(),
                            torch.nn.AdaptiveAvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(4096, 1000)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
images, labels = torch.randn(32, 3, 224, 224, device="cuda"), torch.randint(0, 1000, (32,), device="cuda")
with torch.autocast("cuda", dtype=torch.float16):
    loss = torch.nn.functional.cross_entropy(model(images), labels)
loss.backward()
optimizer.step()
protocol.answer({"loss": loss.item()})
sys.stdin.read()
