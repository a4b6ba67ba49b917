"""What a Python program may tell libgpreempt.so, and ask of it; gpreempt.h says more.

A latency-critical program: that it will use the GPU soon.

    import gpreempt

    gpreempt.hint(300)                  # work in 300 us

    with gpreempt.request(300):         # the same, at the start of a block that prepares and runs a request
        batch = decode(body)
        model(batch)

    @gpreempt.request(300)              # ... or of each call of a function, also a coroutine function
    def infer(body): ...

A program that serves a model: how slow it may be, so that best-effort programs get the rest.

    gpreempt.objective(slowdown=1.5)    # once CUDA is initialised, else it returns False. Or step_ms=20, and first_ms=200 if wanted;
                                        # gpreempt.objective() for none
    gpreempt.step()                     # a step has ended: only where the library does not find steps by itself

A program that starts others: under the library, as the command `gpreempt run` does it.

    gpreempt.run(["python", "train.py"], priority="be", check=True)     # what it returns, and all else, is subprocess.run's

The library starts when the program initialises CUDA (in torch: torch.cuda.init(), or its first work on the GPU). Calls before that do
nothing: hint, objective and step return False, the others raise gpreempt.Error.

Without the library nothing happens at hints, so programs may keep this in. Wrong hints cost best-effort processes GPU time:
a program that gives too many of them is ignored for a while.

A program with urgent work on one stream and work that can wait on another: it can stop the second stream for a while.
This needs block-level preemption, mechanisms = ["blp"], and raises gpreempt.Error where that is not on. A stream may be one of
torch, cupy, numba or cuda-python, or the number of a CUstream; None is the legacy default stream.

    gpreempt.enable(background)         # level="block", or "queue": what is launched already runs to its end

    with gpreempt.preempted(background):
        model(batch)                    # on another stream; nothing runs on background
    gpreempt.preempt(background)        # the same in two calls, wherever
    gpreempt.restore(background)
    gpreempt.set_width(background, 32)  # it goes on with 32 SMs while it is stopped, rather than not at all

SPDX-License-Identifier: Apache-2.0
"""
import ctypes
import functools
import inspect
import os
import shutil
import subprocess
import sys
import sysconfig

__all__ = ["run", "hint", "request", "objective", "step", "enable", "disable", "preempt",
           "restore", "preempted", "set_priority", "set_width", "query", "State", "Error"]


def _find(name, *argtypes):
    try:
        function = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
    function.argtypes = argtypes
    function.restype = ctypes.c_int
    return function


_hint = _find("gpreempt_hint", ctypes.c_int64, ctypes.c_double)


def hint(delay_us=0, confidence=1.0):
    """Says that GPU work comes in delay_us microseconds. Returns whether the library considers it: False before CUDA is initialised."""
    if not delay_us >= 0:
        raise ValueError(f"delay_us = {delay_us}: must not be negative")
    if not 0 <= confidence <= 1:
        raise ValueError(f"confidence = {confidence}: must be from 0 to 1")
    return _hint is not None and _hint(int(min(delay_us, 2 ** 62)), confidence) == 0


_objective = _find("gpreempt_objective", ctypes.c_double, ctypes.c_double, ctypes.c_double)
_step = _find("gpreempt_step")


def objective(slowdown=0, step_ms=0, first_ms=0):
    """Sets how slow this latency-critical program may be. Returns whether the library takes that: False before CUDA is initialised.

    slowdown is how many times slower than alone a step may be, 1 to 20; step_ms instead of it the mean time between results.
    first_ms is the longest time from a request's arrival to its first result, 0 for any. Times are in milliseconds, 0.1 to
    60000. Without arguments there is no objective any more.
    """
    if (slowdown or step_ms or first_ms) and not (
            (1 <= slowdown <= 20 and step_ms == 0) or (slowdown == 0 and 0.1 <= step_ms <= 60000)):
        raise ValueError(f"slowdown = {slowdown}, step_ms = {step_ms}: must be slowdown from 1 to 20, or step_ms from 0.1 to 60000")
    if not (first_ms == 0 or 0.1 <= first_ms <= 60000):
        raise ValueError(f"first_ms = {first_ms}: must be from 0.1 to 60000, or 0 for any")
    return _objective is not None and _objective(slowdown, step_ms, first_ms) == 0


def step():
    """Says that a step of the engine has ended. Returns whether the library listens."""
    return _step is not None and _step() == 0


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


def _command():
    """The command gpreempt: of this Python's environment, of the prefix that this file is installed in, or on the PATH."""
    own = os.path.dirname(os.path.abspath(__file__))
    for folder in (sysconfig.get_path("scripts"), os.path.dirname(sys.executable or "."), os.path.join(own, "../../../bin")):
        found = os.path.join(folder, "gpreempt")
        if os.access(found, os.X_OK):
            return found
    found = shutil.which("gpreempt")
    if found is None:
        raise FileNotFoundError("the command gpreempt is neither in this Python's environment nor on the PATH")
    return found


def run(arguments, priority=None, config=None, log=None, objective=None, memory_limit=None, **keywords):
    """Runs a program under the library, and returns what subprocess.run() does, whose keywords it takes.

    arguments is a list, the program first. priority is "lc", "be", "off" or a level from 0 to 7, config the path of a
    configuration, log as GPREEMPT_LOG, objective as GPREEMPT_OBJECTIVE, memory_limit as GPREEMPT_MEMORY_LIMIT ("10GB", "40%");
    what is None is left to the environment.
    """
    if isinstance(arguments, (str, bytes, os.PathLike)):
        raise TypeError(f'arguments = {arguments!r}: must be a list, for example ["python", "train.py"]')
    command = [_command(), "run"]
    for name, value in (("priority", priority), ("config", config), ("log", log), ("objective", objective),
                        ("memory-limit", memory_limit)):
        if value is not None:
            command.append(f"--{name}={os.fspath(value) if name == 'config' else value}")
    return subprocess.run([*command, "--", *arguments], **keywords)


class Error(RuntimeError):
    """A stream could not be stopped, or let go on. code is enum gpreempt_result of gpreempt.h."""

    OFF, INVALID, NOT_ENABLED, CAPTURING, LIMIT, DRIVER, UNSUPPORTED, BUSY = range(1, 9)
    _texts = {
        OFF: "block-level preemption is not on in this process, or CUDA not initialised",
        INVALID: "no such stream in the current context",
        NOT_ENABLED: "the stream was not enabled, or ended since",
        CAPTURING: "the stream is being captured",
        LIMIT: "too many streams are enabled, or memory ran out",
        DRIVER: "the driver refused a call",
        UNSUPPORTED: "the driver lacks what is needed",
        BUSY: "the context had work all the time, for 2 s",
    }

    def __init__(self, function, code):
        super().__init__(f"{function}: {self._texts.get(code, code)}")
        self.function, self.code = function, code

    def __reduce__(self):  # or it could not come back from another process
        return type(self), (self.function, self.code)


class State(ctypes.Structure):
    """The state of a stream. level is "block", "queue" or None (not enabled)."""

    _fields_ = [("size", ctypes.c_size_t), ("_level", ctypes.c_int), ("_preempted", ctypes.c_int),
                ("preemptions", ctypes.c_uint64), ("preempted_ns", ctypes.c_uint64)]

    @property
    def level(self):
        return {number: name for name, number in _levels.items()}.get(self._level)

    @property
    def preempted(self):
        return bool(self._preempted)


_levels = {"queue": 1, "block": 2}
_functions = {name: _find("gpreempt_stream_" + name, ctypes.c_void_p, *more) for name, more in {
    "enable": [ctypes.c_int], "disable": [], "preempt": [ctypes.c_int], "restore": [ctypes.c_int],
    "set_priority": [ctypes.c_int], "set_width": [ctypes.c_int], "query": [ctypes.POINTER(State)],
}.items()}


def _handle(stream):
    if stream is None:
        return None
    if hasattr(stream, "__cuda_stream__"):  # cuda-python's protocol: (version, handle)
        return stream.__cuda_stream__()[1]
    for attribute in ("cuda_stream", "ptr", "handle"):  # torch, cupy, numba
        if hasattr(stream, attribute):
            stream = getattr(stream, attribute)
            break
    try:
        return int(getattr(stream, "value", stream) or 0)
    except (TypeError, ValueError):
        raise TypeError(f"stream = {stream!r}: must be a stream of torch, cupy, numba or cuda-python, the number of a CUstream, "
                        "or None for the legacy default stream") from None


def _call(name, stream, *arguments):
    handle = _handle(stream)
    function = _functions[name]
    code = function(handle, *arguments) if function else Error.OFF
    if code:
        raise Error("gpreempt_stream_" + name, code)


def enable(stream, level="block"):
    """Makes a stream one that can be stopped."""
    if level not in _levels:
        raise ValueError(f'level = {level!r}: must be "block" or "queue"')
    _call("enable", stream, _levels[level])


def disable(stream):
    """Makes a stream one that cannot be stopped. A stopped stream goes on."""
    _call("disable", stream)


def preempt(stream, wait=True):
    """Stops a stream, and waits until nothing of it runs any more."""
    _call("preempt", stream, wait)


def restore(stream, wait=False):
    """Lets a stream go on. With wait, returns when the stopped work has been launched again."""
    _call("restore", stream, wait)


def set_priority(stream, priority):
    """Sets the priority of later launches on a stream: lower numbers come first, 0 is the lowest priority."""
    _call("set_priority", stream, priority)


def set_width(stream, sms):
    """Sets on how many of the GPU's SMs a stream goes on while it is stopped; 0: on none.

    A width that the stream did not have before is made at a moment when the context has no work. Error.BUSY: there was none in 2 s."""
    if not sms >= 0:
        raise ValueError(f"sms = {sms}: must not be negative")
    _call("set_width", stream, int(min(sms, 2 ** 31 - 1)))


def query(stream):
    """Returns the State of a stream."""
    state = State(size=ctypes.sizeof(State))
    _call("query", stream, ctypes.byref(state))
    return state


class preempted:
    """A context manager: the stream is stopped in its block."""

    def __init__(self, stream, wait=True):
        self.stream, self.wait = stream, wait

    def __enter__(self):
        preempt(self.stream, self.wait)
        return self

    def __exit__(self, *_):
        restore(self.stream)
        return False
