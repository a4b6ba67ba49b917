"""The training step that best-effort programs do: ResNet-50 with AMP."""
import torch
import torchvision


def training(batch, learning_rate):
    """The model, and a function that does a step."""
    model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)
    images = torch.randn(batch, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (batch,), device="cuda")
    loss = torch.nn.CrossEntropyLoss()

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            value = loss(model(images), labels)
        value.backward()
        optimizer.step()
    return model, step
