"""The HTTP service beside training: alone, with the driver's time slicing, under the library without hints and
with the default ones (of which the sockets' matter here).

    python3 http_run.py --library build/libgpreempt.so --json h200-http.json
"""
import argparse
import bisect
import collections
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import results
from run import NO_HINTS, Program, be_alone, print_table, rate, ratio, summary, UNITS

GPU_LIMIT, END_LIMIT, BE_LIMIT = 1.05, 1.02, 0.93
WARM_UP = 100  # of http_load.py
SLOWEST_KEPT = 40


def load(server, port, requests):
    """One run of the load: end-to-end latencies, and the GPU parts of the same requests."""
    generator = Program("http_load.py")
    try:
        server.send("take")
        server.answer(30)
        generator.send(f"run {requests} {port}")
        end_to_end = generator.answer(120)
        server.send("take")
        gpu = server.answer(30)
    finally:
        generator.end()
    return end_to_end, {name: values[WARM_UP:] for name, values in gpu.items()}


def outcome(request):
    """What became of the hints for a request (a line of hints.log), in the words of the hints suite."""
    if request.get("ready"):
        return "ready"
    if "held_us" in request:
        return "on the way"
    if "due_us" in request:
        return "before its hint" if request["due_us"] > 0 else "overslept"
    return request.get("dropped", "not hinted")


def followed(log, gpu):
    """What became of the GPU parts' hints: how many had which, and the slowest. A part that came while the GPU was still
    the service's has no line of the log."""
    requests = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    times = [request["at_ns"] for request in requests]
    counts, parts = collections.Counter(), []
    for n, (began, latency) in enumerate(zip(gpu["began_ns"], gpu["latencies_ns"])):
        line = bisect.bisect_left(times, began)
        found = requests[line] if line < len(times) and times[line] < began + latency else None
        counts[outcome(found) if found else "had the GPU"] += 1
        parts.append({"n": n, "latency_us": round(latency / 1000, 1)} |
                     {name: value for name, value in (found or {}).items() if name != "at_ns"})
    parts.sort(key=lambda part: -part["latency_us"])
    return {"requests": dict(counts), "slowest": parts[:SLOWEST_KEPT]}


def counted(top, pid):
    """What became of a process's hints by source, warm-up included, as gpreempt top has it."""
    text = subprocess.run([top, "top", "--once", "--json"], capture_output=True, text=True).stdout
    for gpu in json.loads(text)["gpus"] if text else []:
        for peer in gpu["peers"]:
            if peer["pid"] == pid:
                return {"switch_us": peer["hint_switch_us"], "spun_ns": peer["hint_spun_ns"], "sources": peer["hints"] or []}
    return {}


def measure(options, configs, log):
    rows = {"gpu": [], "end-to-end": []}
    alone, be_rate, mean_alone = {}, None, None
    hints = {}
    for system, lc_role, be_role in (("default", None, None), ("gpreempt", "lc", "be"), ("gpreempt-hints", "lc", "be")):
        server = Program("http_server.py", library=options.library, role=lc_role, config=configs[system])
        be = Program("be.py", "train", library=options.library, role=be_role, config=configs[system])
        try:
            port = server.answer(180)["port"]
            be.answer(180)
            if not alone:
                end_to_end, gpu = load(server, port, options.requests)
                alone = {"gpu": summary(gpu["latencies_ns"]), "end-to-end": summary(end_to_end["latencies_ns"])}
                mean_alone = statistics.mean(gpu["latencies_ns"])
                be_rate = be_alone(be, options.be_seconds)
                for part, summed in alone.items():
                    rows[part].append({"case": f"http-resnet50-{part}", "system": "alone", "lc": summed})
            be.send("start")
            time.sleep(0.5)
            end_to_end, gpu = load(server, port, options.requests)
            time.sleep(0.5)  # a step of BE: it passes the end of the interval
            if system == "gpreempt-hints" and options.top:
                hints = counted(options.top, server.process.pid)
            be.send("stop")
            now = rate(be.answer(60), end_to_end["start_ns"], end_to_end["end_ns"])
        finally:
            server.end()
            be.end()
        mean = mean_alone if system == "default" else statistics.mean(gpu["latencies_ns"])
        busy = mean * len(gpu["latencies_ns"]) / (end_to_end["end_ns"] - end_to_end["start_ns"])
        share = now / be_rate / (1 - busy)
        for part, latencies, limit in (("gpu", gpu["latencies_ns"], GPU_LIMIT), ("end-to-end", end_to_end["latencies_ns"], END_LIMIT)):
            summed = summary(latencies)
            row = {"case": f"http-resnet50-{part}", "system": system, "lc": summed, "lc_alone": alone[part],
                   "ratio": ratio(summed, alone[part]),
                   "be": {"share": round(share, 3), "alone": round(be_rate, 3), "now": round(now, 3), "unit": UNITS}}
            if system == "gpreempt-hints":
                row["target"] = f"p99 <= {limit} x alone, BE >= {BE_LIMIT} of what LC leaves"
                row["pass"] = row["ratio"]["p99"] <= limit and share >= BE_LIMIT
                if part == "gpu":
                    row["hints"] = hints | followed(log, gpu)
            rows[part].append(row)
    return rows["gpu"] + rows["end-to-end"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--json")
    parser.add_argument("--top", help="path of gpreempt, to count the hints by source")
    parser.add_argument("--requests", type=int, default=1500)
    parser.add_argument("--be-seconds", type=float, default=4)
    options = parser.parse_args()
    options.library = str(pathlib.Path(options.library).resolve(strict=True))

    report = results.new("http")
    with tempfile.TemporaryDirectory() as folder:
        configs, log = {"default": None}, pathlib.Path(folder, "requests")
        base = os.environ.get("GPREEMPT_CONFIG")
        text = pathlib.Path(base).read_text() if base else ""
        for system, section in (("gpreempt", NO_HINTS), ("gpreempt-hints", f'[hints]\nlog = "{log}"\n')):
            configs[system] = str(pathlib.Path(folder, f"{system}.toml"))
            pathlib.Path(configs[system]).write_text(f"{text}\n{section}")
        try:
            report["cases"] += measure(options, configs, log)
        except (RuntimeError, OSError) as error:
            report["cases"].append({"case": "http-resnet50", "system": "gpreempt", "pass": False, "note": str(error)})
            print(error, file=sys.stderr)
    if options.json:
        results.write(report, options.json)
    print_table(report["cases"])
    for row in report["cases"]:
        if "hints" in row:
            print(json.dumps({name: value for name, value in row["hints"].items() if name != "slowest"}, indent=1))


main()
