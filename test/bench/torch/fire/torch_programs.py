"""PyTorch and Triton programs whose results show whether every block of every launch ran exactly once and in
order; they do in each round the same, bit by bit.

    python3 torch_programs.py CASE

A round starts from the same state each time and leaves a list of checksums. As a worker (PROTOCOL.md) it answers init with
those of the first round, {"steps": [...]}. start begins rounds, at least one; the answer to stop says how many there were, how
long they took, and which were different from the first. native.cu serves the same.
"""
import os
import pathlib
import sys
import warnings

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402
from torch import nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import protocol  # noqa: E402
from model import Layer, capture  # noqa: E402

warnings.simplefilter("ignore")
STEPS = 50
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksum(tensor):
    """On the GPU, without waiting for it. Integers wrap, so the order of summation changes nothing."""
    words = tensor.detach().reshape(-1)
    words = words.view(INTEGERS[words.element_size()]).long()
    places = torch.arange(words.numel(), device=words.device) * 2 + 1
    return ((words ^ words >> 7) * places).sum()


def hexadecimal(sums):
    return [f"{int(value) & (1 << 64) - 1:016x}" for value in torch.stack(sums).cpu()]


def filled(*shape, seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype).cuda()


# Matrix products that cuBLAS splits along the long dimension, beside scans, sorts and atomics of PyTorch.
def products():
    operands = []
    for i, (m, n, k, dtype) in enumerate((
            (128, 128, 65536, torch.float16), (256, 192, 32768, torch.bfloat16), (64, 512, 32768, torch.float32),
            (1, 4096, 8192, torch.float16), (96, 96, 16384, torch.float64), (2048, 2048, 2048, torch.float16),
            (1111, 777, 3333, torch.float32))):
        operands.append((filled(m, k, seed=2 * i, dtype=dtype) / k ** 0.5, filled(k, n, seed=2 * i + 1, dtype=dtype),
                         torch.empty(m, n, dtype=dtype, device="cuda")))
    whole = torch.randint(-1000, 1000, (1 << 21,), generator=torch.Generator().manual_seed(99)).cuda()
    places = torch.randint(0, 4096, (1 << 21,), generator=torch.Generator().manual_seed(98)).cuda()

    def round():
        sums = []
        for _, _, out in operands:
            out.zero_()
        counts = torch.zeros(4096, dtype=torch.long, device="cuda")
        for _ in range(10):
            for a, b, out in operands:
                for _ in range(5):
                    torch.addmm(out, a, b, beta=0.5, out=out)
                sums.append(checksum(out))
            scanned = torch.cumsum(whole, 0)
            ordered = torch.sort(scanned % 65521)[0]
            counts.index_add_(0, places, ordered)
            counts.scatter_add_(0, places, scanned)
            sums += [checksum(scanned), checksum(ordered), checksum(counts)]
        return sums
    return round


def triton_stream_k():
    from stream_k import stream_k

    order, side, depth = 2048, 64, 32
    programs = 8 * torch.cuda.get_device_properties(0).multi_processor_count - 5
    a, b = (filled(order, order, seed=i, dtype=torch.float16) / 45 for i in (1, 2))
    c = torch.empty(order, order, device="cuda")
    partial = torch.empty(programs, side, side, device="cuda")
    flags = torch.empty(programs, dtype=torch.int32, device="cuda")

    def round():
        sums = []
        c.zero_()
        for i in range(100):
            flags.zero_()
            stream_k[(programs,)](a, b, c, partial, flags, (order // side) ** 2 * (order // depth), order // depth,
                               order, SIDE=side, DEPTH=depth)
            if i % 5 == 0:
                sums.append(checksum(c))
        return sums
    return round


def parameters(model):
    return torch.cat([value.detach().reshape(-1) for value in model.parameters()])


def training_round(model, make_optimizer, loss_of):
    """Steps of training from the same weights each time."""
    initial = {name: value.clone() for name, value in model.state_dict().items()}

    def round():
        torch.manual_seed(7)
        model.load_state_dict(initial)
        optimizer = make_optimizer(model.parameters())
        sums = []
        for step in range(STEPS):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=torch.float16):
                loss = loss_of(step)
            loss.backward()
            optimizer.step()
            sums.append(checksum(loss))
            if step % 10 == 9:
                sums.append(checksum(parameters(model)))
        sums += [checksum(buffer) for buffer in model.buffers()]
        return sums
    return round


def resnet50_training():
    import torchvision
    torch.manual_seed(0)
    model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
    images = [torch.randn(16, 3, 224, 224).to(memory_format=torch.channels_last).pin_memory() for _ in range(4)]
    labels = [torch.randint(0, 1000, (16,)).pin_memory() for _ in range(4)]

    def loss_of(step):
        batch = images[step % 4].cuda(non_blocking=True)
        return F.cross_entropy(model(batch), labels[step % 4].cuda(non_blocking=True))
    return training_round(model, lambda weights: torch.optim.SGD(weights, lr=0.01, momentum=0.9), loss_of)


class Transformer(nn.Module):
    def __init__(self, words=8192, width=512, layers=6, heads=8, length=256, dropout=0.0):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Layer(width, heads, dropout) for _ in range(layers))
        self.head = nn.Linear(width, words)

    def forward(self, tokens, places, caches=None, mask=None):
        x = self.words(tokens) + self.places(places)
        for i, layer in enumerate(self.layers):
            x = layer(x, caches[i] if caches else None, places, mask, causal=not caches)
        return self.head(x)


def transformer_training():
    torch.manual_seed(0)
    model = Transformer(dropout=0.1).cuda()
    tokens = torch.randint(0, 8192, (4, 16, 257)).cuda()
    places = torch.arange(256, device="cuda")

    def loss_of(step):
        batch = tokens[step % 4]
        return F.cross_entropy(model(batch[:, :-1], places).flatten(0, 1), batch[:, 1:].flatten())
    return training_round(model, lambda weights: torch.optim.AdamW(weights, lr=1e-3), loss_of)


def transformer_generation():
    """Tokens one after another, each the most likely; every second half by a CUDA graph."""
    torch.manual_seed(0)
    batch, length, width, heads = 8, 256, 768, 12
    model = Transformer(width=width, layers=8, heads=heads, length=length).half().cuda().eval()
    caches = [torch.zeros(2, batch, heads, length, width // heads, dtype=torch.half, device="cuda") for _ in range(8)]
    pairs = [cache.unbind(0) for cache in caches]
    order = torch.arange(length, device="cuda")
    token, start = torch.zeros(batch, 1, dtype=torch.long, device="cuda"), torch.arange(batch).view(-1, 1).cuda()
    position = torch.zeros(1, dtype=torch.long, device="cuda")

    @torch.no_grad()
    def step():
        mask = (order <= position).view(1, 1, 1, -1)
        logits = model(token, position, pairs, mask)
        token.copy_(logits[:, -1:].argmax(-1))
        position.add_(1)
        return logits

    graph, captured = capture(step)

    def round():
        sums = []
        for cache in caches:
            cache.zero_()
        token.copy_(start)
        position.zero_()
        for i in range(length):
            if i < length // 2:
                logits = step()
            else:
                graph.replay()
                logits = captured
            sums.append(checksum(logits))
            if i % 16 == 0:
                token.tolist()  # somebody reads along
        sums.append(checksum(token))
        return sums
    return round


CASES = {"cublas": products, "triton-stream-k": triton_stream_k, "resnet50-training": resnet50_training,
         "transformer-training": transformer_training, "transformer-generation": transformer_generation}


def main():
    name = sys.argv[1]
    if not protocol.begin():
        return
    if "training" in name:
        torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    round = CASES[name]()
    first = hexadecimal(round())
    protocol.serve_rounds({"steps": first}, lambda: hexadecimal(round()))


main()
