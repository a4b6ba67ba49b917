"""PyTorch under MPS, on a server of its own: latency-critical requests (ResNet-50 inference as a graph, and fifty tiny
kernels synchronised one by one) beside best-effort programs, alone, as MPS has it, with BE clients of a lower priority,
and under the library.

    python3 mps_run.py --library build/libgpreempt.so --command build/gpreempt --json h200-blp-mps-pytorch.json
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import blp
import results
from run import UNITS, Program, be_alone, busy, print_table, rate, ratio, summary

GRAPH_LIMIT, SYNCED_LIMIT, SHARE_LIMIT = 1.3, 1.3, 0.85
TARGETED = ("train", "infer")
SYSTEMS = ("mps", "mps-priority", "gpreempt")
START_S = 100
MEASURED = "measured"


class Graph:
    """Requests of lc.py, a process that lives as long as the others."""

    def __init__(self, bench, system):
        self.program = bench.program("lc.py", "--mode", "graph", "--gap-ms", f"{bench.options.gap_ms:g}", system=system)

    def ready(self):
        self.program.answer(START_S)

    def run(self, requests, seconds):
        self.program.send(f"run {requests} {seconds}")
        return self.program.answer(60)

    def end(self):
        self.program.end()


class Synced:
    """Requests of fifty kernels of 10 us, synchronised one by one: a process for each run."""

    def __init__(self, bench, system):
        self.bench, self.system = bench, system
        self.options = ["--kernels", "50", "--sync-each", "1", "--gap-us", "3000", "--iterations", bench.iterations()]

    def ready(self):
        pass

    def end(self):
        pass

    def run(self, requests, seconds):
        return self.bench.worker("lc", *self.options, "--requests", str(requests), "--seconds", str(seconds),
                                 system=self.system)


class Bench:
    def __init__(self, options, workspace, server):
        self.options, self.workspace, self.server = options, workspace, server
        self.began = time.monotonic()
        self.config = workspace.config("mps", options.mechanisms, workspace.path("cache"))
        self.known_iterations = None

    def environment(self, system, role):
        added = dict(self.server.clients)
        if system == "mps-priority" and role == "be":
            added["CUDA_MPS_CLIENT_PRIORITY"] = "1"  # the lower one
        return added

    def program(self, script, *arguments, system, role="lc"):
        ours = system == "gpreempt"
        return Program(script, *arguments, library=self.options.library, role=role if ours else None,
                       config=self.config if ours else None, environment=self.environment(system, role))

    def worker(self, *arguments, system):
        """What a worker of gpreempt bench reports at its end."""
        environment = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "GPREEMPT_PRIORITY")}
        environment |= self.environment(system, "lc")
        if system == "gpreempt":
            environment |= {"LD_PRELOAD": self.options.library, "GPREEMPT_PRIORITY": "lc",
                            "GPREEMPT_CONFIG": str(self.config)}
        with open(blp.KERNELS, "rb") as module:
            done = subprocess.run([self.options.command + "-bench", "bench-worker", *arguments, "--limit", "30"], env=environment,
                                  stdin=module, capture_output=True, text=True, timeout=40)
        if done.returncode:
            raise RuntimeError(f"bench-worker {arguments[0]} ({system}): status {done.returncode}: {done.stderr.strip()[-200:]}")
        return json.loads(done.stdout.splitlines()[-1])

    def iterations(self):
        if self.known_iterations is None:
            self.known_iterations = str(self.worker("calibrate", "--us", "10", system="mps")["iterations"])
        return self.known_iterations


def together(lc, be, requests, seconds):
    be.send("start")
    time.sleep(0.5)
    result = lc.run(requests, seconds)
    time.sleep(0.5)  # a step of BE: it passes the end of the LC interval
    be.send("stop")
    return result, rate(be.answer(30), result["start_ns"], result["end_ns"])


def target_of(kind, of):
    if kind not in TARGETED:
        return None, None
    if of == "synced":
        return (f"lc p99 <= {SYNCED_LIMIT} x alone, BE >= {SHARE_LIMIT} of what LC leaves",
                lambda row: row["ratio"]["p99"] <= SYNCED_LIMIT and row["be"]["share"] >= SHARE_LIMIT)
    return f"lc p99 <= {GRAPH_LIMIT} x alone", lambda row: row["ratio"]["p99"] <= GRAPH_LIMIT


def measure_kind(bench, kind, lcs, add):
    """One BE program; lcs has the LC ones by name and system. Processes without work do not disturb."""
    programs = {system: bench.program("be.py", kind, system=system, role="be") for system in SYSTEMS}
    try:
        for program in programs.values():
            program.answer(START_S)
        be_rate = be_alone(programs["mps"], bench.options.be_seconds)
        now = be_alone(programs["gpreempt"], bench.options.be_seconds)
        add({"case": f"mps-{kind}-alone", "system": "gpreempt", "be": {
            "share": round(now / be_rate, 4), "alone": round(be_rate, 3), "now": round(now, 3), "unit": UNITS}})
        for of in ("graph", "synced") if kind == "train" else ("graph",):
            case = f"mps-resnet50-graph-beside-{kind}" if of == "graph" else f"mps-50x10us-synced-beside-{kind}"
            target, met = target_of(kind, of)
            try:
                plain = lcs[of, "mps"].run(bench.options.requests, bench.options.seconds)["latencies_ns"]
                alone, mean_alone = summary(plain), statistics.mean(plain)
                add({"case": case, "system": "alone", "lc": alone, "be": {
                    "share": 1, "alone": round(be_rate, 3), "now": round(be_rate, 3), "unit": UNITS}})
                for system in SYSTEMS:
                    lc = lcs[of, "gpreempt" if system == "gpreempt" else "mps"]
                    result, now = together(lc, programs[system], bench.options.requests, bench.options.seconds)
                    latencies = summary(result["latencies_ns"])
                    # Where nobody makes way for requests they mostly wait for BE; what they take alone counts there.
                    mean = statistics.mean(result["latencies_ns"]) if system == "gpreempt" else mean_alone
                    row = {"case": case, "system": system, "lc": latencies, "lc_alone": alone,
                           "ratio": ratio(latencies, alone),
                           "be": {"share": round(now / be_rate / (1 - busy(result, mean)), 3),
                                  "alone": round(be_rate, 3), "now": round(now, 3), "unit": UNITS}}
                    if system == "gpreempt":
                        counted = row["blp"] = blp.counters(bench.options.command, bench.config, programs[system].process.pid)
                        stops = max(counted.get("stops", 0), 1)
                        row["note"] = (f"in force: {' '.join(counted.get('mechanisms', '?'))}; {counted.get('stops', 0)} stops, "
                                       f"drain {counted.get('drain_ns', 0) / 1000 / stops:.0f} us mean; "
                                       f"{counted.get('launches', 0)} launches covered, {counted.get('uncovered', 0)} not")
                        if met:
                            row["target"], row["pass"] = target, met(row)
                    add(row)
            except (RuntimeError, OSError, ValueError, LookupError, subprocess.SubprocessError) as error:
                add({"case": case, "system": "gpreempt", "target": target or MEASURED, "pass": False, "note": str(error)})
                if any(program.process.poll() is not None for program in programs.values()):
                    return
    finally:
        for program in programs.values():
            program.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--command", required=True, help="path of gpreempt")
    parser.add_argument("--json")
    parser.add_argument("--mechanisms", default='"auto"', help="of the library, as in its configuration")
    parser.add_argument("--be", nargs="*", default=["train", "infer", "gemmfp64"])
    parser.add_argument("--requests", type=int, default=150, help="of a run")
    parser.add_argument("--seconds", type=int, default=6, help="after which a run ends early")
    parser.add_argument("--gap-ms", type=float, default=20)
    parser.add_argument("--be-seconds", type=float, default=2)
    parser.add_argument("--limit", type=float, default=160, help="seconds after which nothing begins; 25 more end it all")
    parser.add_argument("--logs", help="folder for what the library said")
    options = parser.parse_args()
    options.library = str(pathlib.Path(options.library).resolve(strict=True))
    options.command = str(pathlib.Path(options.command).resolve(strict=True))

    report = results.new("blp-mps-pytorch")
    report["mode"] = "MPS"

    def add(row):
        report["cases"].append(row)
        if options.json:
            results.write(report, options.json)  # what was measured survives a time limit

    with blp.Workspace(options.logs) as workspace:
        server = blp.Server(workspace)
        blp.end_by(options.limit + 25, report, print_table)
        bench = Bench(options, workspace, server)
        lcs = {}
        try:
            for system in ("mps", "gpreempt"):
                lcs["graph", system] = Graph(bench, system)
                lcs["synced", system] = Synced(bench, system)
            for lc in lcs.values():
                lc.ready()
            for kind in options.be:
                if time.monotonic() - bench.began > options.limit:
                    add({"case": f"mps-beside-{kind}", "system": "gpreempt", "target": MEASURED, "pass": False,
                         "note": "no time left"})
                    continue
                try:
                    measure_kind(bench, kind, lcs, add)
                except (RuntimeError, OSError, ValueError, LookupError) as error:
                    add({"case": f"mps-beside-{kind}", "system": "gpreempt", "target": MEASURED, "pass": False,
                         "note": str(error)})
                print(f"{kind}: after {time.monotonic() - bench.began:.0f} s", file=sys.stderr, flush=True)
        finally:
            for lc in lcs.values():
                lc.end()
    print_table(report["cases"])
    sys.exit(0 if all(row.get("pass", True) for row in report["cases"]) else 1)


main()
