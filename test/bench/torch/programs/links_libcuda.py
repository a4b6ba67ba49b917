"""Compiles and runs links_libcuda.c, a program that has libcuda.so.1 among its needed libraries."""
import os
import pathlib
import subprocess
import sys
import tempfile

FOLDER = pathlib.Path(__file__).resolve().parent
MODULE = FOLDER / "bench.fatbin"  # whoever runs it writes it there


def libcuda():
    """The driver's library as the dynamic linker finds it."""
    import ctypes
    ctypes.CDLL("libcuda.so.1")
    for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
        path = line.split()[-1]
        if pathlib.Path(path).name.startswith("libcuda.so"):
            return path
    sys.exit("libcuda.so.1 is not among the mapped files")


def main():
    if len(sys.argv) > 1:
        print(libcuda())
        return
    plain = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "GPREEMPT_PRIORITY")}
    path = subprocess.run([sys.executable, __file__, "path"], env=plain, check=True, capture_output=True,
                          text=True).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/links_libcuda"
        subprocess.run(["cc", "-O2", "-o", program, str(FOLDER / "links_libcuda.c"), path], env=plain, check=True)
        subprocess.run([program, str(MODULE)], check=True)


main()
