"""What the Python workers share of the protocol that PROTOCOL.md describes: orders are lines on standard input, each is
answered by one line of JSON on standard output. All else that a program prints goes to standard error.
"""
import ctypes
import gc
import json
import os
import select
import sys
import time

SPIN_BEFORE_NS = 200_000  # of an arrival: sleeping alone comes back too late
DRAIN_NS = 1_000_000_000  # how long requests that arrived in time are still served

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # vLLM writes its log to standard output


def begin():
    """Waits for the order init, before which CUDA is not used; False where it does not come."""
    return sys.stdin.readline() == "init\n"


def answer(facts):
    print(json.dumps(facts), file=answers, flush=True)


def orders():
    """The words of each order."""
    for line in sys.stdin:
        yield line.split()


def stop_waits():
    """Whether there is an order to read, which is to stop."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


def wait_for(at):
    ahead = at - SPIN_BEFORE_NS - time.monotonic_ns()
    if ahead > 0:
        time.sleep(ahead / 1e9)
    while time.monotonic_ns() < at:
        pass


def find_hint():
    """The library's gpreempt_hint, where it is preloaded and has it."""
    try:
        function = ctypes.CDLL(None).gpreempt_hint
    except AttributeError:
        return None
    function.argtypes, function.restype = [ctypes.c_int64, ctypes.c_double], ctypes.c_int
    return function


class Go:
    """The order go."""

    def __init__(self, line):
        _, start, end, prepare, hint, stop, count, *arrivals = line.split()
        self.start, self.end, self.prepare_ns = int(start), int(end), int(prepare)
        self.hint, self.stop = hint == "1", stop
        self.arrivals = None if count == "-1" else [int(arrival) for arrival in arrivals]

    def goes_on(self):
        """Whether requests are still to be served: after the end those that wait are, for a while. Best-effort
        programs go on for as long as latency-critical ones still serve such requests, and no longer."""
        now = time.monotonic_ns()
        return now < self.end or (now < self.end + DRAIN_NS and not (self.stop != "-" and os.path.exists(self.stop)))


def serve_rounds(facts, rounds_of):
    """Of programs under fire: answers init with facts, and then does rounds from each start to its stop. All must give
    what the first gave, facts["steps"]."""
    answer(facts)
    first = facts["steps"]
    while sys.stdin.readline() == "start\n":
        answer({})
        rounds = different = 0
        where = [0, 0]
        began = time.monotonic()
        while not rounds or not stop_waits():
            now = rounds_of()
            rounds += 1
            if now != first:
                different += 1
                if different == 1:
                    where = [rounds, next((i for i, (a, b) in enumerate(zip(now, first)) if a != b), len(first))]
        seconds = time.monotonic() - began
        if sys.stdin.readline().strip() != "stop":
            return
        answer({"rounds": rounds, "different": different, "first_different": where, "seconds": round(seconds, 3)})


def serve_continuously(request, go):
    """Requests back to back; one that is under way at the end counts in proportion."""
    completed = 0
    wait_for(go.start)
    after = time.monotonic_ns()
    while go.goes_on():
        before = after
        request()
        after = time.monotonic_ns()
        if before < go.end:
            completed += 1 if after <= go.end else (go.end - before) / (after - before)
    return {"completed": round(completed, 3)}


def serve_arrivals(request, go, hint):
    """A request is served when it arrives or, if others are still before it, after them; none is dropped."""
    done = []
    for arrival in go.arrivals:
        if not go.goes_on():
            break
        arrival += go.start
        wait_for(arrival)
        if hint:
            hint(go.prepare_ns // 1000, 1.0)
        if go.prepare_ns:
            until = time.monotonic_ns() + go.prepare_ns
            while time.monotonic_ns() < until:
                pass
        request()
        done.append(time.monotonic_ns() - arrival)
    in_time = sum(go.start + arrival + latency <= go.end for arrival, latency in zip(go.arrivals, done))
    return {"completed": in_time, "done_ns": done}


def serve(request, before=lambda: None):
    """Answers the orders go, and does something before each run. Garbage is collected between runs only."""
    hint = find_hint()
    gc.collect()
    gc.freeze()
    gc.disable()
    answer({})
    for line in sys.stdin:
        go = Go(line)
        before()
        facts = serve_continuously(request, go) if go.arrivals is None else serve_arrivals(request, go, hint if go.hint else None)
        answer(facts | {"hinted": go.hint and hint is not None})
        gc.collect()
