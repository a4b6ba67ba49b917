"""Compiles and runs stream_ordered.cu."""
from shared import native_program

native_program.run("stream_ordered.cu")
