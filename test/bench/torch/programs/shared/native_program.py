"""Compiles and runs a program in CUDA C++ for scripts of the folder above."""
import fcntl
import os
import pathlib
import shutil
import subprocess
import sys

USUAL = "/usr/local/cuda/bin"
FOLDER = pathlib.Path(__file__).resolve().parents[1]


def tool(name):
    """The path of a tool of the CUDA toolkit; ends the script where there is none."""
    path = shutil.which(name) or shutil.which(name, path=USUAL)
    if not path:
        print(f"{name} is not there", file=sys.stderr)
        sys.exit(77)
    return path


def plain():
    """The environment without the library, for compilers."""
    return {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "GPREEMPT_PRIORITY")}


def compiled(source, *options):
    """The program's path. It is compiled once for all who run it at the same time."""
    program = FOLDER / (pathlib.Path(source).stem + "".join(options) + ".program")
    with open(program.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            made = program.with_suffix(".new")
            subprocess.run([tool("nvcc"), "-O2", "-std=c++17", "-arch=native", *options, "-o", made, FOLDER / source], env=plain(),
                           check=True, stdout=sys.stderr)
            made.rename(program)
    return str(program)


def run(source, *options):
    """Runs it; it prints what it computed."""
    subprocess.run([compiled(source, *options)], check=True)
