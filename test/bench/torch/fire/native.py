"""Compiles native.cu, once for all who run it at the same time, and becomes that program.

    python3 native.py CASE
"""
import os
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "programs"))
from shared import native_program  # noqa: E402

program = native_program.compiled("../fire/native.cu")
os.execv(program, [program, *sys.argv[1:]])
