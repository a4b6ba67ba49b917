"""Compiles and runs virtual_memory.cu."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import native_program  # noqa: E402

native_program.run("virtual_memory.cu")
