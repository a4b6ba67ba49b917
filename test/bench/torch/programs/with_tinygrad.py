"""tinygrad: a network is trained by its CUDA backend, which calls the driver and NVRTC by ctypes."""
import ctypes
import hashlib
import os
import pathlib
import sys
import tempfile


def find_libraries():
    """tinygrad looks in few folders; these variables name files."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return  # it says so itself
    for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
        if pathlib.Path(path := line.split()[-1]).name.startswith("libcuda.so"):
            os.environ["CUDA_PATH"] = path
    for folder in [*(pathlib.Path(folder) / "nvidia/cu13/lib" for folder in sys.path), pathlib.Path("/usr/local/cuda/lib64")]:
        if (library := folder / "libnvrtc.so.13").is_file():
            os.environ["NVRTC_PATH"] = str(library)
            for builtins in folder.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)  # NVRTC looks for it by name
            break


find_libraries()
os.environ.setdefault("DEV", "CUDA")
os.environ.setdefault("PARALLEL", "0")  # what compiles in other processes would not find NVRTC's parts
os.environ["CACHEDB"] = os.path.join(tempfile.mkdtemp(dir="."), "cache.db")  # kernels are compiled anew

from tinygrad import Context, Device, Tensor, TinyJit, dtypes, nn  # noqa: E402

Tensor.manual_seed(0)


class Network:
    def __init__(self):
        self.narrow, self.wide = nn.Conv2d(3, 8, 3), nn.Linear(8 * 7 * 7, 10)

    def __call__(self, x):
        return self.wide(self.narrow(x).relu().max_pool2d().flatten(1))


network = Network()
optimizer = nn.optim.SGD(nn.state.get_parameters(network), lr=0.01, momentum=0.9)
images, labels = Tensor.randn(16, 3, 16, 16).realize(), Tensor([i % 10 for i in range(16)], dtype=dtypes.int).realize()


@TinyJit
def step():
    optimizer.zero_grad()
    loss = network(images).sparse_categorical_crossentropy(labels).backward()
    return loss.realize(*optimizer.schedule_step())


digest = hashlib.sha256()
with Context(TRAINING=1):
    for _ in range(20):
        digest.update(step().numpy().tobytes())
for value in nn.state.get_parameters(network):
    digest.update(value.numpy().tobytes())
x = Tensor.arange(1 << 18, dtype=dtypes.int).clone(Device.DEFAULT).realize()
for i in range(50):
    x = ((x * 31 + i) % 65521).contiguous().realize()
digest.update(x.numpy().tobytes())
print(digest.hexdigest())
