"""What a latency-critical Python program may tell libgpreempt.so: that it will use the GPU soon.

    import gpreempt

    gpreempt.hint(300)                  # work in 300 us

    with gpreempt.request(300):         # the same, at the start of a block that prepares and runs a request
        batch = decode(body)
        model(batch)

    @gpreempt.request(300)              # ... or of each call of a function, also a coroutine function
    def infer(body): ...

Without the library preloaded nothing happens, so programs may keep this in. A hint that turns out wrong costs
best-effort processes GPU time; a program that gives too many is not listened to for a while.

SPDX-License-Identifier: Apache-2.0
"""
import ctypes
import functools
import inspect

__all__ = ["hint", "request"]


def _find():
    try:
        function = ctypes.CDLL(None).gpreempt_hint
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_int64, ctypes.c_double]
    function.restype = ctypes.c_int
    return function


_hint = _find()


def hint(delay_us=0, confidence=1.0):
    """Says that work comes in delay_us microseconds. True where somebody listens."""
    if not delay_us >= 0:
        raise ValueError(f"delay_us = {delay_us}: must not be negative")
    if not 0 <= confidence <= 1:
        raise ValueError(f"confidence = {confidence}: must be from 0 to 1")
    return _hint is not None and _hint(int(min(delay_us, 2 ** 62)), confidence) == 0


class request:
    """A context manager and decorator that gives a hint at the start."""

    def __init__(self, delay_us=0, confidence=1.0):
        self.delay_us, self.confidence = delay_us, confidence

    def __enter__(self):
        hint(self.delay_us, self.confidence)
        return self

    def __exit__(self, *_):
        return False

    def __call__(self, function):
        if inspect.iscoroutinefunction(function):
            @functools.wraps(function)
            async def hinted(*arguments, **named):
                hint(self.delay_us, self.confidence)
                return await function(*arguments, **named)
        else:
            @functools.wraps(function)
            def hinted(*arguments, **named):
                hint(self.delay_us, self.confidence)
                return function(*arguments, **named)
        return hinted
