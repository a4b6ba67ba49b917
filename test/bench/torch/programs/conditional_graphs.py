"""Compiles and runs conditional_graphs.cu."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import native_program  # noqa: E402

native_program.run("conditional_graphs.cu", "-rdc=true", "-lcudadevrt")
