"""PyTorch co-location: ResNet-50 inference as LC beside three BE programs, alone, with the driver's time
slicing and under the library; what the library costs in eager mode; BE alone under the library.

    python3 run.py --library build/libgpreempt.so --json h200-pytorch.json
"""
import argparse
import bisect
import json
import os
import pathlib
import select
import statistics
import subprocess
import sys
import tempfile
import time

import results

FOLDER = pathlib.Path(__file__).resolve().parent
NO_HINTS = "[hints]\nexplicit = false\ncopy = true\nsocket = false\narrival = false\n"
LC_LIMIT = 1.25
BE_LIMIT = 0.95
UNITS = "steps/s"


class Program:
    """A child, a script of this folder or another program, that answers each line it is sent with one line of
    JSON."""

    def __init__(self, script, *arguments, library=None, role=None, config=None, environment=(), stderr=None):
        everything = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "GPREEMPT_PRIORITY")}
        if role:
            everything |= {"LD_PRELOAD": library, "GPREEMPT_PRIORITY": role}
        if config:
            everything["GPREEMPT_CONFIG"] = str(config)
        everything.update(environment)
        self.name = f"{pathlib.Path(script).name} {' '.join(arguments)} ({role or 'no library'})"
        command = [sys.executable, str(FOLDER / script)] if str(script).endswith(".py") else [str(script)]
        self.process = subprocess.Popen([*command, *arguments], env=everything, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=stderr)
        self.buffer = b""

    def send(self, line):
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def answer(self, limit_s):
        deadline = time.monotonic() + limit_s
        while b"\n" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise RuntimeError(f"{self.name}: no answer in {limit_s} s")
            text = os.read(self.process.stdout.fileno(), 1 << 20)
            if not text:
                raise RuntimeError(f"{self.name}: ended with status {self.process.wait()}")
            self.buffer += text
        line, self.buffer = self.buffer.split(b"\n", 1)
        return json.loads(line)

    def end(self):
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            print(f"{self.name}: had to be killed", file=sys.stderr)


def summary(latencies_ns):
    ordered = sorted(latencies_ns)

    def at(fraction):
        return round(ordered[int(fraction * (len(ordered) - 1))] / 1000, 1)
    return {"n": len(ordered), "p50_us": at(.5), "p99_us": at(.99), "max_us": at(1)}


def ratio(now, alone):
    return {"p50": round(now["p50_us"] / alone["p50_us"], 3), "p99": round(now["p99_us"] / alone["p99_us"], 3)}


def completed(be, at):
    """Steps completed at a time; between two samples in proportion."""
    times, counts = be["times_ns"], be["counts"]
    after = bisect.bisect_left(times, at)
    if after == 0:
        return counts[0]
    if after == len(times):
        return counts[-1]
    part = (at - times[after - 1]) / (times[after] - times[after - 1])
    return counts[after - 1] + part * (counts[after] - counts[after - 1])


def rate(be, start, end):
    return (completed(be, end) - completed(be, start)) / ((end - start) / 1e9)


def busy(lc, mean_ns):
    """The part of the LC process's time that requests of this mean latency take."""
    return mean_ns * len(lc["latencies_ns"]) / (lc["end_ns"] - lc["start_ns"])


def requests(lc, count):
    lc.send(f"run {count}")
    return lc.answer(120)


def be_alone(be, seconds):
    be.send("start")
    time.sleep(seconds)
    be.send("stop")
    result = be.answer(30)
    return rate(result, result["times_ns"][0], result["times_ns"][-1])


def together(lc, be, count):
    be.send("start")
    time.sleep(0.5)
    result = requests(lc, count)
    time.sleep(0.5)  # a step of BE: it passes the end of the LC interval
    be.send("stop")
    return result, rate(be.answer(30), result["start_ns"], result["end_ns"])


def measure_pair(kind, options):
    """The rows of one BE program. Both processes hold contexts throughout; "alone" means that the other
    one has no work."""
    case = f"resnet50-graph-beside-{kind}"
    rows = []
    alone = mean_alone = be_rate = None
    for system, roles in (("default", (None, None)), ("gpreempt", ("lc", "be"))):
        lc = Program("lc.py", "--mode", "graph", "--gap-ms", str(options.gap_ms),
                     library=options.library, role=roles[0],
                     config=options.config)
        be = Program("be.py", kind, library=options.library, role=roles[1], config=options.config)
        try:
            lc.answer(120)
            be.answer(120)
            if alone is None:
                latencies = requests(lc, options.requests)["latencies_ns"]
                alone, mean_alone = summary(latencies), statistics.mean(latencies)
                be_rate = be_alone(be, options.be_seconds)
                rows.append({"case": case, "system": "alone", "lc": alone,
                             "be": {"share": 1, "alone": round(be_rate, 3), "now": round(be_rate, 3),
                                    "unit": UNITS}})
            else:
                unshared = be_alone(be, options.be_seconds)
                share = unshared / be_rate
                rows.append({"case": f"{kind}-alone", "system": system,
                             "be": {"share": round(share, 4), "alone": round(be_rate, 3),
                                    "now": round(unshared, 3), "unit": UNITS},
                             "target": "BE >= 0.99 of without the library", "pass": share >= 0.99})
            result, now = together(lc, be, options.requests)
        finally:
            lc.end()
            be.end()
        latencies = summary(result["latencies_ns"])
        # With the driver's time slicing requests mostly wait for BE; what they take alone counts there.
        mean = mean_alone if system == "default" else statistics.mean(result["latencies_ns"])
        row = {"case": case, "system": system, "lc": latencies, "lc_alone": alone,
               "ratio": ratio(latencies, alone),
               "be": {"share": round(now / be_rate / (1 - busy(result, mean)), 3), "alone": round(be_rate, 3),
                      "now": round(now, 3), "unit": UNITS}}
        if system == "gpreempt":
            row["target"] = f"lc p99 <= {LC_LIMIT} x alone, BE >= {BE_LIMIT} of alone"
            row["pass"] = row["ratio"]["p99"] <= LC_LIMIT and now / be_rate >= BE_LIMIT
            row["note"] = f"an LC request every {options.gap_ms:g} ms and its own time"
        rows.append(row)
    return rows


def measure_eager(options):
    """What the library costs an eager LC process that has the GPU to itself. That is less than processes of one
    kind differ among themselves (the later one is started, the slower), and than one of them differs from
    minute to minute. So several of each are started in a symmetric order on the same two cores, take short
    turns in changing order, and are compared round by round."""
    rounds, count = 24, 20
    systems = ["alone", "gpreempt", "gpreempt", "alone", "alone", "gpreempt"]
    cores = set(sorted(os.sched_getaffinity(0))[-2:])
    programs = []
    all_latencies = {"alone": [], "gpreempt": []}
    costs = []
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        for system in systems:
            programs.append((system, Program("lc.py", "--mode", "eager", "--gap-ms", "2", library=options.library,
                                             role="lc" if system == "gpreempt" else None,
                                             config=options.config)))
            programs[-1][1].answer(120)
        for i in range(rounds):
            p50 = {"alone": [], "gpreempt": []}
            for system, program in programs if i % 2 == 0 else reversed(programs):
                latencies = requests(program, count)["latencies_ns"]
                p50[system].append(statistics.median(latencies))
                all_latencies[system] += latencies
            costs.append(statistics.median(p50["gpreempt"]) / statistics.median(p50["alone"]) - 1)
    finally:
        os.sched_setaffinity(0, everywhere)
        for _, program in programs:
            program.end()
    alone, now = summary(all_latencies["alone"]), summary(all_latencies["gpreempt"])
    low, cost, high = (100 * part for part in statistics.quantiles(costs, n=4))
    return [{"case": "resnet50-eager-alone", "system": "alone", "lc": alone},
            {"case": "resnet50-eager-alone", "system": "gpreempt", "lc": now, "lc_alone": alone,
             "ratio": ratio(now, alone), "target": "library costs <= 1 % of p50", "pass": cost <= 1,
             "note": f"{cost:+.2f} %, median of {rounds} rounds of 3 processes each; "
                     f"half of the rounds between {low:+.2f} and {high:+.2f} %"}]


def print_table(rows):
    print(f"{'case':34} {'system':9} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8} {'p99/alone':>9} "
          f"{UNITS:>8} {'of alone':>8} {'of left':>8}  target")
    for row in rows:
        lc, be = row.get("lc"), row.get("be")
        latencies = [f"{lc[key] / 1000:8.3f}" for key in ("p50_us", "p99_us", "max_us")] if lc else [f"{'-':>8}"] * 3
        rates = [f"{be['now']:8.2f}", f"{be['now'] / be['alone']:8.3f}", f"{be['share']:8.3f}"] if be else [f"{'-':>8}"] * 3
        p99 = f"{row['ratio']['p99']:9.3f}" if "ratio" in row else f"{'-':>9}"
        target = row.get("target", "")
        if "pass" in row:
            target = ("reached: " if row["pass"] else "MISSED: ") + target
        if "note" in row:
            target += f" ({row['note']})"
        print(f"{row['case']:34} {row['system']:9} {' '.join(latencies)} {p99} {' '.join(rates)}  {target}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--json")
    parser.add_argument("--be", nargs="*", default=["train", "gemmfp64", "infer"])
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--gap-ms", type=float, default=40)
    parser.add_argument("--be-seconds", type=float, default=4)
    parser.add_argument("--no-eager", action="store_true")
    options = parser.parse_args()
    options.library = str(pathlib.Path(options.library).resolve(strict=True))

    report = results.new("pytorch")
    folder = tempfile.TemporaryDirectory()
    options.config = pathlib.Path(folder.name, "gpreempt.toml")
    options.config.write_text(NO_HINTS)

    def save():
        if options.json:
            results.write(report, options.json)

    parts = [(f"resnet50-graph-beside-{kind}", lambda kind=kind: measure_pair(kind, options)) for kind in options.be]
    if not options.no_eager:
        parts.append(("resnet50-eager-alone", lambda: measure_eager(options)))
    for case, part in parts:
        began = time.monotonic()
        try:
            report["cases"] += part()
        except (RuntimeError, OSError) as error:
            report["cases"].append({"case": case, "system": "gpreempt", "pass": False, "note": str(error)})
        print(f"{case}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        save()  # what was measured survives a time limit
    print_table(report["cases"])


if __name__ == "__main__":
    main()
