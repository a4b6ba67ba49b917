"""Copies what of TVM a program needs that only runs modules into a folder, which is then on its path.

    TVM_USE_RUNTIME_LIB=1 gather.py FOLDER TVM_FFI_WHEEL

The wheel is that of apache-tvm-ffi for the Python that will run it, which may be another than this one.
"""
import pathlib
import shutil
import sys
import zipfile

import tvm
import tvm_ffi
from tvm.runtime import vm  # noqa: F401

# The second of the latter: the module in C of tvm_ffi is linked with it.
LIBRARIES = {tvm: ["libtvm_runtime.so", "libtvm_runtime_cuda.so"], tvm_ffi: ["libtvm_ffi.so", "libtvm_ffi_testing.so"]}


def main():
    folder, wheel = pathlib.Path(sys.argv[1]), sys.argv[2]
    packages = pathlib.Path(tvm.__file__).parents[1]

    def take(source):
        target = folder / source.relative_to(packages)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)

    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None) or ""
        if module.__name__.partition(".")[0] in ("tvm", "tvm_ffi") and path.endswith(".py"):
            take(pathlib.Path(path))
    for package, names in LIBRARIES.items():
        for name in names:
            take(pathlib.Path(package.__file__).parent / "lib" / name)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist()
                                    if name.startswith("tvm_ffi/core.") and name.endswith(".so") or ".dist-info/" in name])


main()
