"""Compiles and runs virtual_memory.cu."""
from shared import native_program

native_program.run("virtual_memory.cu")
