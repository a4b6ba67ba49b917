"""A PyTorch program of the evaluation: one kind of request, open-loop or back to back.

    python3 model.py MODEL          serves the order go (PROTOCOL.md)

Models have random weights, fp32 (convolutions in TF32, PyTorch's default), batch 1 and run as a CUDA graph; the
copies to and from the GPU belong to the request. `train` is a training step of ResNet-50, `decode` eight tokens
of a transformer one after another, each read by the host.
"""
import sys

import torch
from torch import nn
import torch.nn.functional as F
import torchvision

import protocol
import resnet

WARM_UP_REQUESTS = 10
DECODE_TOKENS = 8
VOCABULARY = 30522


class Layer(nn.Module):
    """A transformer layer. With a cache it is one of a decoder that gets one token at a time."""

    def __init__(self, width, heads, cached=0):
        super().__init__()
        self.heads = heads
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        if cached:
            shape = (1, heads, cached, width // heads)
            self.register_buffer("keys", torch.zeros(shape))
            self.register_buffer("values", torch.zeros(shape))

    def forward(self, x, position=None, mask=None):
        batch, length, width = x.shape
        shape = (batch, length, 3, self.heads, width // self.heads)
        query, key, value = self.project(self.before(x)).view(shape).permute(2, 0, 3, 1, 4)
        if position is not None:
            self.keys.index_copy_(2, position, key)
            self.values.index_copy_(2, position, value)
            key, value = self.keys, self.values
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.between(x))


class DistilBert(nn.Module):
    """An encoder of DistilBERT's size: 6 layers of 768, 12 heads, 128 tokens."""

    def __init__(self, tokens=128):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, 768), nn.Embedding(tokens, 768)
        self.layers = nn.ModuleList(Layer(768, 12) for _ in range(6))
        self.register_buffer("order", torch.arange(tokens))

    def forward(self, tokens):
        x = self.words(tokens) + self.places(self.order)
        for layer in self.layers:
            x = layer(x)
        return x[:, 0]


class Decoder(nn.Module):
    """A decoder of GPT-2's size: 12 layers of 768, 12 heads, a cache of 512 tokens. Makes one token a call."""

    def __init__(self, cached=512):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, 768), nn.Embedding(cached, 768)
        self.layers = nn.ModuleList(Layer(768, 12, cached) for _ in range(12))
        self.register_buffer("order", torch.arange(cached))
        self.register_buffer("token", torch.zeros(1, 1, dtype=torch.long))
        self.register_buffer("position", torch.full((1,), 256))

    def forward(self):
        x = self.words(self.token) + self.places(self.position)
        mask = (self.order <= self.position).view(1, 1, 1, -1)
        for layer in self.layers:
            x = layer(x, self.position, mask)
        self.token.copy_((x @ self.words.weight.T).argmax(-1))
        self.position.add_(1)
        return self.token


NETWORKS = {
    "vgg19": (lambda: torchvision.models.vgg19(init_weights=False), (1, 3, 224, 224)),
    "resnet152": (torchvision.models.resnet152, (1, 3, 224, 224)),
    "densenet201": (torchvision.models.densenet201, (1, 3, 224, 224)),
    "inception_v3": (lambda: torchvision.models.inception_v3(init_weights=False), (1, 3, 299, 299)),
    "distilbert": (DistilBert, (1, 128)),
}


def capture(work):
    """A CUDA graph of work, which it also warms up, and what work returns in it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()
    return graph, result


def inference(name):
    make, shape = NETWORKS[name]
    with torch.device("cuda"):
        model = make().eval()
    host = torch.randint(0, VOCABULARY, shape) if name == "distilbert" else torch.randn(shape)
    host = host.pin_memory()
    device = host.cuda()
    graph, result = capture(lambda: model(device))
    answer = torch.empty(result.shape, dtype=result.dtype).pin_memory()

    def request():
        device.copy_(host, non_blocking=True)
        graph.replay()
        answer.copy_(result, non_blocking=True)
        protocol.TRACE.mark_queued()
        torch.cuda.current_stream().synchronize()
    request.keep = model  # the graph uses its memory
    return request


def decoding():
    with torch.device("cuda"):
        model = Decoder().half().eval()
    graph, token = capture(model)
    start = torch.full((1,), 256).pin_memory()

    def request():
        model.position.copy_(start, non_blocking=True)
        for _ in range(DECODE_TOKENS):
            graph.replay()
            token.item()
    return request


def training():
    _, step = resnet.training(128, 0.01)

    def request():
        with torch.enable_grad():
            step()
        torch.cuda.current_stream().synchronize()
    return request


def main():
    name = sys.argv[1]
    if not protocol.begin():
        return
    # No trials of algorithms: beside other programs they would choose others from one process to the next.
    with torch.no_grad():
        request = {"train": training, "decode": decoding}.get(name, lambda: inference(name))()
        for _ in range(WARM_UP_REQUESTS):
            request()
        torch.cuda.synchronize()
        protocol.serve(lambda go, hint: protocol.serve_requests(request, go, hint))


if __name__ == "__main__":
    main()
