"""numba-cuda may look these up where NumPy no longer has them (2.5). Imported before it; the programs use none of them."""
import numpy

for old, new in (("row_stack", "vstack"), ("trapz", "trapezoid"), ("in1d", "isin")):
    if not hasattr(numpy, old):
        setattr(numpy, old, getattr(numpy, new))
