"""Stands in for torch_programs.py: computes what its name says."""
import os
import pathlib
import random
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import protocol  # noqa: E402

name = sys.argv[1]
role = os.environ.get("GPREEMPT_PRIORITY")
if not protocol.begin():
    sys.exit()
if name == "ends":
    sys.exit("as told")
steps = ["a", "b", "c"]
if name == "random":
    steps[0] = str(random.random())
if name == "different-as-be" and role == "be":
    steps[1] = "x"
protocol.answer({} if name == "silent" else {"steps": steps})
for order in protocol.orders():
    if order == ["start"]:
        protocol.answer({})
    else:
        wrong = name == "different-rounds" and role == "be"
        protocol.answer({"rounds": 5, "different": 2 if wrong else 0, "first_different": [3, 1] if wrong else [0, 0], "seconds": 0.5})
