"""Programs whose memory goes out at random and comes back: many operators of PyTorch, CuPy with its pool, JAX with memory that it
takes at the start, NCCL on two GPUs.

    python3 memory_programs.py CASE

They serve what torch_programs.py serves: in each round the same, bit by bit.
"""
import os
import pathlib
import sys
import zlib

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import protocol  # noqa: E402

SIDE = 2048
UNARY = """abs acos acosh angle asin asinh atan atanh ceil cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1 floor frac i0 lgamma
log log10 log1p log2 logit neg rad2deg reciprocal relu round rsqrt sgn sigmoid sign signbit sin sinc sinh sqrt square tan tanh trunc
isnan isfinite""".split()
BINARY = """add atan2 copysign div eq floor_divide fmax fmin fmod ge gt heaviside hypot le logaddexp lt maximum minimum mul ne nextafter
pow remainder sub""".split()


def operators():
    import torch
    import torch.nn.functional as F
    torch.use_deterministic_algorithms(True)  # those that are not raise an error here, and are left out
    torch.backends.cudnn.benchmark = False
    generator = torch.Generator().manual_seed(1)

    def filled(*shape):
        return torch.rand(*shape, generator=generator).cuda()
    x, y = filled(SIDE, SIDE), filled(SIDE, SIDE) + 0.5
    whole = torch.randint(0, 1000, (SIDE, SIDE), generator=generator).cuda()
    places = torch.randint(0, SIDE, (SIDE, SIDE), generator=generator).cuda()
    images, kernels = filled(16, 32, 128, 128), filled(64, 32, 3, 3)
    queries = filled(4, 8, 512, 64).half()
    definite = x[:512, :512] @ x[:512, :512].T + 512 * torch.eye(512, device="cuda")
    some = {
        "matmul": lambda: x @ y,
        "addmm": lambda: torch.addmm(x, x, y),
        "bmm": lambda: torch.bmm(x.view(16, 128, SIDE), y.view(16, SIDE, 128)),
        "einsum": lambda: torch.einsum("ij,kj->ik", x, y),
        "half": lambda: x.half() @ y.half(),
        "bfloat16": lambda: x.bfloat16() @ y.bfloat16(),
        "double": lambda: x.double() @ y.double(),
        "transpose": lambda: x.t().contiguous(),
        "sum": lambda: x.sum(0),
        "mean": lambda: x.mean(1),
        "var": lambda: x.var(0),
        "prod": lambda: y.prod(0),
        "logsumexp": lambda: x.logsumexp(1),
        "norm": lambda: x.norm(dim=1),
        "amax": lambda: x.amax(1),
        "argmin": lambda: x.argmin(1),
        "median": lambda: x.median(1)[0],
        "quantile": lambda: x[:64].quantile(.3, dim=1),
        "cumsum": lambda: whole.cumsum(0),
        "cumprod": lambda: whole.cumprod(1),
        "cummax": lambda: x.cummax(0)[0],
        "sort": lambda: x.sort()[0],
        "argsort": lambda: whole.argsort(stable=True),
        "topk": lambda: x.topk(17)[0],
        "kthvalue": lambda: x.kthvalue(9)[0],
        "unique": lambda: whole.unique(),
        "nonzero": lambda: (whole > 990).nonzero(),
        "masked_select": lambda: x.masked_select(whole > 500),
        "bincount": lambda: whole.view(-1).bincount(),
        "histc": lambda: x.histc(64),
        "searchsorted": lambda: torch.searchsorted(x.sort()[0], y),
        "gather": lambda: x.gather(1, places),
        "index_select": lambda: x.index_select(0, places[0]),
        "take": lambda: x.take(places),
        "scatter": lambda: x.scatter(1, places.sort(1)[0], y),
        "index_put": lambda: x.index_put((places[0],), y),
        "where": lambda: x.where(whole > 5, y),
        "flip": lambda: x.flip(0),
        "roll": lambda: x.roll(7, 1),
        "tril": lambda: x.tril(),
        "repeat": lambda: x.repeat(2, 2),
        "cat": lambda: torch.cat([x, y]),
        "stack": lambda: torch.stack([x, y], 2),
        "kron": lambda: torch.kron(x[:32, :32], y[:32, :32]),
        "one_hot": lambda: F.one_hot(whole[0]),
        "pad": lambda: F.pad(x, (3, 4, 5, 6)),
        "unfold": lambda: F.unfold(images, 3),
        "conv2d": lambda: F.conv2d(images, kernels),
        "conv1d": lambda: F.conv1d(images.view(16, 32, -1), kernels.view(64, 32, -1)),
        "conv_transpose2d": lambda: F.conv_transpose2d(images[:, :32], kernels[:32]),
        "max_pool2d": lambda: F.max_pool2d(images, 3),
        "avg_pool2d": lambda: F.avg_pool2d(images, 3),
        "layer_norm": lambda: F.layer_norm(x, (SIDE,)),
        "group_norm": lambda: F.group_norm(images, 8),
        "batch_norm": lambda: F.batch_norm(images, None, None, training=True),
        "softmax": lambda: x.softmax(1),
        "log_softmax": lambda: x.log_softmax(0),
        "gelu": lambda: F.gelu(x),
        "silu": lambda: F.silu(x),
        "interpolate": lambda: F.interpolate(images, scale_factor=2),
        "embedding": lambda: F.embedding(whole[:64], x),
        "attention": lambda: F.scaled_dot_product_attention(queries, queries, queries),
        "rfft": lambda: torch.view_as_real(torch.fft.rfft(x)),
        "fft2": lambda: torch.view_as_real(torch.fft.fft2(x)),
        "cholesky": lambda: torch.linalg.cholesky(definite),
        "solve": lambda: torch.linalg.solve(definite, x[:512]),
        "qr": lambda: torch.linalg.qr(x[:512, :256])[0],
        "det": lambda: torch.linalg.det(definite / 512).view(1),
        "inverse": lambda: torch.linalg.inv(definite),
    }
    some |= {name: lambda name=name: getattr(torch, name)(x) for name in UNARY}
    some |= {name: lambda name=name: getattr(torch, name)(x, y) for name in BINARY}
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

    def checksum(tensor):
        words = tensor.detach().contiguous().reshape(-1)
        words = words.view(integers[words.element_size()]).long()
        return ((words ^ words >> 7) * (torch.arange(words.numel(), device=words.device) * 2 + 1)).sum()

    def works(operator):
        try:
            checksum(operator())
            torch.cuda.synchronize()
        except (RuntimeError, NotImplementedError, TypeError, IndexError):
            return False
        return True
    kept = [operator for _, operator in sorted(some.items()) if works(operator)]

    def round():
        values = []
        for i, operator in enumerate(kept):
            values.append(checksum(operator()))
            if i % 8 == 0:
                torch.cuda.empty_cache()  # memory comes and goes, and there is less of it to swap
        return [f"{int(value) & (1 << 64) - 1:016x}" for value in torch.stack(values).cpu()]
    return round


def with_cupy():
    import cupy
    n = 1 << 24

    def round():
        data, sums = cupy.arange(n, dtype=cupy.uint32), []
        for i in range(60):
            data = (data ^ data >> 15) * cupy.uint32(0x2c1b3c6d) + cupy.uint32(i)
            if i % 10 == 0:
                sums.append(f"{zlib.crc32(cupy.sort(data[:1 << 20]).get().tobytes()):08x}")
            if i % 20 == 0:
                cupy.get_default_memory_pool().free_all_blocks()
        return sums + [f"{zlib.crc32(data.get().tobytes()):08x}"]
    return round


def with_jax():
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", ".03")  # taken at the start, in one piece
    import jax
    import jax.numpy as jnp
    import numpy

    @jax.jit
    def mix(x):
        def step(value, i):
            return (value * jnp.uint32(1664525) + i) ^ (value >> 7), value.sum()
        return jax.lax.scan(step, x, jnp.arange(100, dtype=jnp.uint32))
    start = jax.random.bits(jax.random.key(0), (1 << 24,))
    square = (jnp.arange(4096 * 4096) % 7).reshape(4096, 4096).astype(jnp.float32)

    def round():
        x, sums = start, []
        for _ in range(5):
            x, totals = mix(x)
            sums.append(f"{zlib.crc32(numpy.asarray(totals).tobytes()):08x}")
        product = jax.jit(lambda m: m @ m.T)(square)
        return sums + [f"{zlib.crc32(numpy.asarray(x).tobytes()):08x}", f"{zlib.crc32(numpy.asarray(product).tobytes()):08x}"]
    return round


def nccl():
    import torch
    assert torch.cuda.device_count() > 1, "needs two GPUs"

    def round():
        parts = [torch.arange(1 << 24, device=f"cuda:{i}", dtype=torch.int64) * (i + 3) for i in range(2)]
        sums = []
        for i in range(20):
            torch.cuda.nccl.all_reduce(parts)
            parts = [(part >> 1) ^ (i + number) for number, part in enumerate(parts)]
            sums += [int(part.sum()) for part in parts]
        return [f"{value & (1 << 64) - 1:016x}" for value in sums]
    return round


CASES = {"operators": operators, "cupy": with_cupy, "jax": with_jax, "nccl": nccl}


def main():
    if not protocol.begin():
        return
    rounds_of = CASES[sys.argv[1]]()
    protocol.serve_rounds({"steps": rounds_of()}, rounds_of)


main()
