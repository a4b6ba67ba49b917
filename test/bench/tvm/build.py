"""Compiles networks with TVM, on a machine without a GPU; torch/tvm_model.py runs them by TVM's runtime alone.

    build.py FOLDER --cuda ARCH --libraries LIBCUDA LIBCUDART     # nvcc on the PATH, CUDA_HOME set
    build.py FOLDER --cpu                                         # the same networks, narrower, for the CPU

NETWORK.so is a module, NETWORK.json what it takes: the inputs and the weights, which are random and made by who runs it.
Kernels are compiled here, where TVM by itself would leave that to the program's start.
"""
import argparse
import ctypes
import json
import pathlib


def preload(libraries):
    """TVM's part for CUDA needs a driver and a runtime to be loaded, though nothing of them is called here."""
    for library in libraries:
        ctypes.CDLL(library, ctypes.RTLD_GLOBAL)


def networks(small):
    """Functions that make a network, the type of its numbers, and its input, by name."""
    from tvm import relax
    from tvm.relax.frontend import nn
    from tvm.relax.frontend.nn import op
    from tvm.relax.frontend.nn.core import wrap_nested

    part = 8 if small else 1

    def pool(kind, x, size, stride, padding):
        return wrap_nested(kind(x._expr, [size] * 2, [stride] * 2, [padding] * 2), "pool")

    class Block(nn.Module):
        """A bottleneck of ResNet-50. Its batch norms are folded into the convolutions, as is usual for inference."""

        def __init__(self, channels, middle, stride):
            super().__init__()
            self.narrow, self.widen = nn.Conv2D(channels, middle, 1), nn.Conv2D(middle, 4 * middle, 1)
            self.across = nn.Conv2D(middle, middle, 3, stride=stride, padding=1)
            self.beside = None
            if stride != 1 or channels != 4 * middle:
                self.beside = nn.Conv2D(channels, 4 * middle, 1, stride=stride)

        def forward(self, x):
            y = self.widen(op.relu(self.across(op.relu(self.narrow(x)))))
            return op.relu(y + (self.beside(x) if self.beside else x))

    class ResNet50(nn.Module):
        def __init__(self):
            super().__init__()
            channels = 64 // part
            self.stem = nn.Conv2D(3, channels, 7, stride=2, padding=3)
            blocks = []
            for middle, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
                for i in range(count):
                    blocks.append(Block(channels, middle // part, stride if i == 0 else 1))
                    channels = 4 * middle // part
            self.blocks, self.scores = nn.ModuleList(blocks), nn.Linear(channels, 1000)

        def forward(self, x):
            x = pool(relax.op.nn.max_pool2d, op.relu(self.stem(x)), 3, 2, 1)
            for block in self.blocks:
                x = block(x)
            x = pool(relax.op.nn.avg_pool2d, x, 7, 1, 0)
            return self.scores(op.reshape(x, (x.shape[0], x.shape[1])))

    image = 224 // (4 if small else 1)
    if small:  # the last layers' images are 2 x 2, and none is left to pool
        def pool(kind, x, size, stride, padding):  # noqa: F811
            return wrap_nested(kind(x._expr, [min(size, int(x.shape[2]))] * 2, [stride] * 2, [padding] * 2), "pool")
    return {"resnet50": (ResNet50, (1, 3, image, image), "float32")}


def compile_kernels(arch):
    """Has TVM compile CUDA's kernels as it builds a module, and not as that is loaded."""
    import tvm_ffi
    from tvm.support import nvcc

    create = tvm_ffi.get_global_func("ffi.Module.create.cuda")
    number = arch.removeprefix("sm_")

    def compiled(code, form, functions, sources):
        if form == "cuda":
            gencode = ["-gencode", f"arch=compute_{number},code={arch}"]
            code = bytes(nvcc.compile_cuda(bytes(code).decode(), "cubin", gencode, compiler="nvcc"))
            form = "cubin"
        return create(code, form, functions, sources)

    tvm_ffi.register_global_func("ffi.Module.create.cuda", compiled, override=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--cuda", metavar="ARCH")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--libraries", nargs="+", default=[])
    options = parser.parse_args()
    preload(options.libraries)
    import tvm
    from tvm import relax
    from tvm.relax.frontend import nn
    from tvm.s_tir import dlight

    target = tvm.target.Target("llvm")
    if options.cuda:
        # Attributes that do not depend on the GPU, which this machine does not have.
        target = tvm.target.Target({"kind": "cuda", "arch": options.cuda, "max_threads_per_block": 1024,
                                    "max_shared_memory_per_block": 49152, "thread_warp_size": 32}, host="llvm")
        compile_kernels(options.cuda)
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, (make, shape, kind) in networks(options.cpu).items():
        network = make()
        network.to(kind)
        module, weights = network.export_tvm({"forward": {"x": nn.spec.Tensor(shape, kind)}})
        with target, tvm.transform.PassContext():
            module = relax.get_pipeline("zero")(module)
            if options.cuda:
                gpu = dlight.gpu
                module = dlight.ApplyDefaultSchedule(gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(),
                                                     gpu.Fallback())(module)
            relax.build(module, target=target).export_library(str(options.folder / f"{name}.so"))
        facts = {"device": "cuda" if options.cuda else "cpu", "type": kind, "input": list(shape),
                 "weights": [[int(size) for size in weight.shape] for _, weight in weights]}
        (options.folder / f"{name}.json").write_text(json.dumps(facts) + "\n")
        print(f"{name}: {(options.folder / f'{name}.so').stat().st_size >> 10} KiB, {len(weights)} weights")


if __name__ == "__main__":
    main()
