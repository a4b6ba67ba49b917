"""A PyTorch program of the evaluation: one kind of request, open-loop or back to back.

    python3 model.py MODEL [BYTES]          serves the order go (PROTOCOL.md)

With BYTES it holds as much device memory beside the model, and allocates some more before each run. Models have random
weights, fp32 (convolutions in TF32, PyTorch's default), batch 1 and run as a CUDA graph; the copies to and from the GPU
belong to the request.
"""
import sys

import torch
from torch import nn
import torch.nn.functional as F
import torchvision

import protocol

WARM_UP_REQUESTS = 10
VOCABULARY = 30522


class Layer(nn.Module):
    """A transformer layer. With a cache, of keys and values, it is one of a decoder that gets one token at a time."""

    def __init__(self, width, heads, dropout=0.0):
        super().__init__()
        self.heads, self.dropout = heads, nn.Dropout(dropout)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x, cache=None, position=None, mask=None, causal=False):
        batch, length, width = x.shape
        shape = (batch, length, 3, self.heads, width // self.heads)
        query, key, value = self.project(self.before(x)).view(shape).permute(2, 0, 3, 1, 4)
        if cache is not None:
            cache[0].index_copy_(2, position, key)
            cache[1].index_copy_(2, position, value)
            key, value = cache
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal)
        x = x + self.dropout(self.out(attended.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.feed(self.between(x)))


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


NETWORKS = {
    "vgg19": (lambda: torchvision.models.vgg19(init_weights=False), (1, 3, 224, 224)),
    "resnet50": (torchvision.models.resnet50, (1, 3, 224, 224)),
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
        torch.cuda.current_stream().synchronize()
    request.keep = model  # the graph uses its memory
    return request


def main():
    name = sys.argv[1]
    if not protocol.begin():
        return
    # No trials of algorithms: beside other programs they would choose others from one process to the next.
    with torch.no_grad():
        request = inference(name)
        for _ in range(WARM_UP_REQUESTS):
            request()
        torch.cuda.synchronize()
        if len(sys.argv) < 3:
            protocol.serve(request)
            return
        held = torch.ones(int(sys.argv[2]), dtype=torch.uint8, device="cuda")

        def allocate():
            torch.empty(64 << 20, dtype=torch.uint8, device="cuda").fill_(1)
            torch.cuda.empty_cache()
        protocol.serve(request, allocate)
        del held


if __name__ == "__main__":
    main()
