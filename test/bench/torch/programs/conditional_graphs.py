"""Compiles and runs conditional_graphs.cu."""
from shared import native_program

native_program.run("conditional_graphs.cu", "-rdc=true", "-lcudadevrt")
