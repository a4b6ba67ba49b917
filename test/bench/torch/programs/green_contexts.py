"""Compiles and runs green_contexts.cu."""
from shared import native_program

native_program.run("green_contexts.cu")
