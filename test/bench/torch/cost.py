"""What block-level preemption costs where nobody preempts, and what it covers: launches of PyTorch programs that can be
stopped, throughput of best-effort programs beside the same without the library, and what rewriting adds to a program's
start.

    python3 cost.py --library build/libgpreempt.so --command build/gpreempt [--json FILE] [coverage|throughput|load ...]
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

import blp
import results
from run import UNITS, Program, be_alone

COVERED = ("resnet50-training", "transformer-training", "transformer-generation", "cublas")
START_S = 100
COVERED_LIMIT, SHARE_LIMIT = 0.95, 0.98
FIRST_LIMIT, CACHED_LIMIT = 30, 3  # %


class Bench:
    def __init__(self, options, workspace):
        self.options, self.workspace = options, workspace
        self.began = time.monotonic()

    def config(self, name, cache="cache"):
        return self.workspace.config(name, self.options.mechanisms, self.workspace.path(cache))

    def program(self, script, *arguments, config=None):
        return Program(script, *arguments, library=self.options.library, role="be" if config else None, config=config,
                       environment={"TRITON_CACHE_DIR": str(self.workspace.path("triton"))})

    def counters(self, config, program):
        return blp.counters(self.options.command, config, program.process.pid)


def missed(case, error, target):
    return {"case": case, "system": "gpreempt", "target": target, "pass": False, "note": str(error)}


def not_in_force(counted):
    """For a note; where nothing can be stopped no figure counts."""
    if "blp" in counted.get("mechanisms", []):
        return ""
    return f"; in force: {counted.get('mechanisms', '?')}, not in force: {counted.get('fallbacks', '?')}"


def refused_names(command, pid):
    """Demangled names of the kernels in a process's libraries that are not rewritten, with the reason."""
    libraries = {line.split()[-1] for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines()
                 if re.search(r"lib(torch_cuda|cublas|cudnn|cusparse|cusolver|cufft|curand|nccl)[^/]*\.so", line)}

    def look(library):
        try:
            text = subprocess.run([command, "patch", "--json", "--sm", "90", library], capture_output=True, text=True,
                                  timeout=60, check=True).stdout
            images = json.loads(text)
        except (subprocess.SubprocessError, ValueError):
            return {}
        return {kernel["name"]: kernel.get("reason", "?") for image in images for entry in image or []
                for kernel in entry["report"].get("kernels") or [] if not kernel["guarded"]}

    refused = {}
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for found in pool.map(look, libraries):
            refused |= found
    if not refused:
        return {}
    names = subprocess.run(["c++filt"], input="\n".join(refused), capture_output=True, text=True, check=True).stdout
    return dict(zip(names.splitlines(), refused.values()))


def measure_coverage(bench, case):
    names = [f"blp-coverage-{case}-{what}" for what in ("launches", "gpu-time")]
    target = f">= {COVERED_LIMIT} of {{}} can be stopped"
    config = bench.config(f"coverage-{case}")
    plain = bench.program("fire/torch_programs.py", case, "kernels")
    program = bench.program("fire/torch_programs.py", case, config=config)
    try:
        kernels = plain.answer(START_S)["kernels"]
        program.answer(START_S)
        program.send("start")
        time.sleep(3)
        program.send("stop")
        program.answer(START_S)
        time.sleep(1)  # the counters are copied to where others see them from time to time
        counted = bench.counters(config, program)
        refused = refused_names(bench.options.command, program.process.pid) if counted.get("kernels_refused") else {}
    finally:
        plain.end()
        program.end()
    launches, uncovered = counted.get("launches", 0), counted.get("uncovered", 0)
    share = round(launches / max(launches + uncovered, 1), 4)
    note = (f"{launches} launches covered, {uncovered} not; kernels: {counted.get('kernels_seen', 0)} seen, "
            f"{counted.get('kernels_guarded', 0)} rewritten, refused: {counted.get('kernels_refused') or 'none'}"
            + not_in_force(counted))
    own = {name: times for name, times in kernels.items() if not name.startswith(("Memcpy", "Memset"))}
    total = sum(time_us for time_us, _ in own.values())
    lost = {name: time_us for name, (time_us, _) in own.items() if name in refused}
    # Which of the rewritten kernels' launches were not covered (cooperative ones, say) nobody tells: at worst the longest.
    passed = round(sum(count for _, count in own.values()) * uncovered / max(launches + uncovered, 1))
    at_worst = 0
    for name in sorted(own.keys() - lost.keys(), key=lambda name: -own[name][0] / own[name][1]):
        time_us, count = own[name]
        at_worst += time_us * min(count, passed) / count
        passed -= min(count, passed)
    of_time = round(1 - (sum(lost.values()) + at_worst) / max(total, 1e-9), 4) if launches else 0
    longest = sorted(own, key=lambda name: -own[name][0])[:4]
    time_note = (f"at least, the launches that were not covered being the longest: {len(own)} kernels, {total / 1000:.1f} ms a round, refused: "
                 + ("; ".join(f"{name[:60]} ({refused[name]}, {100 * us / total:.1f} %)" for name, us in lost.items())
                    or "none") + "; longest: " + ", ".join(name[:50] for name in longest))
    return [
        {"case": names[0], "system": "gpreempt", "value": share, "unit": "of launches",
         "target": target.format("launches"), "pass": share >= COVERED_LIMIT, "note": note, "blp": counted},
        {"case": names[1], "system": "gpreempt", "value": of_time, "unit": "of GPU time",
         "target": target.format("GPU time"), "pass": of_time >= COVERED_LIMIT, "note": time_note}]


def measure_throughput(bench, kind, rounds=10, seconds=0.6):
    """Both processes live throughout and take short turns on the same processors, so that what drifts does so for
    both: a step of training keeps a processor busy for two thirds of its time, and processors differ by more than
    the library costs."""
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(everywhere)[-4:]))
    config = bench.config(f"throughput-{kind}")
    rates = {"alone": [], "gpreempt": []}
    programs = {}
    try:
        programs["alone"] = bench.program("be.py", kind, "--fixed-algorithms")
        programs["gpreempt"] = bench.program("be.py", kind, "--fixed-algorithms", config=config)
        for program in programs.values():
            program.answer(START_S)
        order = list(programs)
        for system in order:
            be_alone(programs[system], 1)
        for _ in range(rounds):
            for system in order:
                rates[system].append(be_alone(programs[system], seconds))
            order.reverse()
        time.sleep(1)
        counted = bench.counters(config, programs["gpreempt"])
    finally:
        os.sched_setaffinity(0, everywhere)
        for program in programs.values():
            program.end()
    ratios = [now / alone for now, alone in zip(rates["gpreempt"], rates["alone"])]
    share, alone, now = statistics.median(ratios), *(statistics.median(rates[s]) for s in ("alone", "gpreempt"))
    return [{"case": f"blp-throughput-{kind}", "system": "gpreempt",
             "be": {"share": round(share, 4), "alone": round(alone, 3), "now": round(now, 3), "unit": UNITS},
             "target": f"BE >= {SHARE_LIMIT} of without the library", "blp": counted,
             "pass": share >= SHARE_LIMIT and bool(counted.get("launches")),
             "note": f"median of {rounds} rounds from {min(ratios):.4f} to {max(ratios):.4f}; "
                     f"{counted.get('launches', 0)} launches covered, {counted.get('uncovered', 0)} not"
                     + not_in_force(counted)}]


def first_step(bench, config=None):
    """Seconds from the start of a process to the end of its first step, and what the library counted."""
    began = time.monotonic()
    program = bench.program("first_step.py", config=config)
    try:
        program.answer(START_S)
        taken = time.monotonic() - began
        if not config:
            return taken, {}
        time.sleep(1)
        return taken, bench.counters(config, program)
    finally:
        program.end()


def measure_load(bench, rounds=4):
    """Programs that start one after another, with and without the library in turn."""
    first_step(bench)  # what the disk has to give is then in memory
    plain, first, cached, counted = [], [], [], {}
    for i in range(rounds):
        if i < 2:
            taken, counted["first"] = first_step(bench, bench.config(f"load-{i}", cache=f"cache-{i}"))
            first.append(taken)
        plain.append(first_step(bench)[0])
        taken, counted["cached"] = first_step(bench, bench.config("load-0", cache="cache-0"))
        cached.append(taken)
        if time.monotonic() - bench.began > bench.options.limit:
            break
    usual = statistics.median(plain)
    rows = []
    for case, taken, limit, what in (("first", first, FIRST_LIMIT, "first time"),
                                     ("cached", cached, CACHED_LIMIT, "from the cache")):
        added = round(100 * (statistics.median(taken) / usual - 1), 2)
        c = counted[case]
        rows.append({"case": f"blp-load-{case}", "system": "gpreempt", "value": added, "unit": "% added",
                     "target": f"<= {limit} % added to import torch and a first step, {what}", 
                     "pass": added <= limit and bool(c.get("launches")),
                     "note": f"median of {len(taken)}: {statistics.median(taken):.2f} s ({min(taken):.2f} to "
                             f"{max(taken):.2f}), without {usual:.2f} s ({min(plain):.2f} to {max(plain):.2f}, "
                             f"{len(plain)} runs); {c.get('images', 0)} images, {c.get('images_cached', 0)} from the "
                             f"cache, loads waited {c.get('load_ns', 0) / 1e6:.0f} ms" + not_in_force(c), "blp": c})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--command", required=True, help="path of gpreempt")
    parser.add_argument("--json")
    parser.add_argument("--mechanisms", default='["blp"]', help="of the library, as in its configuration")
    parser.add_argument("--limit", type=float, default=215, help="seconds after which nothing begins; 15 more end it all")
    parser.add_argument("--logs", help="folder for what the library said")
    parser.add_argument("parts", nargs="*", default=["coverage", "throughput", "load"])
    options = parser.parse_args()
    options.library = str(pathlib.Path(options.library).resolve(strict=True))
    options.command = str(pathlib.Path(options.command).resolve(strict=True))

    report = results.new("blp-cost")
    report["mode"] = "block-level preemption"
    blp.end_by(options.limit + 15, report)

    with blp.Workspace(options.logs) as workspace:
        bench = Bench(options, workspace)

        def measure(case, target, work):
            try:
                if time.monotonic() - bench.began > options.limit:
                    raise RuntimeError("no time left")
                return work()
            except (RuntimeError, OSError, ValueError, LookupError, ZeroDivisionError,
                    subprocess.SubprocessError) as error:
                return [missed(case, error, target)]

        def add(rows):
            report["cases"] += rows
            print(f"{rows[0]['case']}: after {time.monotonic() - bench.began:.0f} s", file=sys.stderr, flush=True)
            if options.json:
                results.write(report, options.json)  # what was measured survives a time limit

        if "coverage" in options.parts:
            with concurrent.futures.ThreadPoolExecutor(len(COVERED)) as pool:
                for rows in pool.map(lambda case: measure(f"blp-coverage-{case}", f">= {COVERED_LIMIT}",
                                                          lambda: measure_coverage(bench, case)), COVERED):
                    add(rows)
        if "throughput" in options.parts:
            for kind in ("train", "infer", "gemmfp64"):
                add(measure(f"blp-throughput-{kind}", f">= {SHARE_LIMIT}", lambda: measure_throughput(bench, kind)))
        if "load" in options.parts:
            add(measure("blp-load", f"<= {FIRST_LIMIT} %, <= {CACHED_LIMIT} %", lambda: measure_load(bench)))
    blp.print_rows(report["cases"])
    sys.exit(0 if all(row["pass"] for row in report["cases"]) else 1)


main()
