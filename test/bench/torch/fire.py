"""Correctness under fire: programs run without the library (twice), as best-effort processes with block-level
preemption that nobody preempts, and while a latency-critical process preempts them at random, a thousand times and
more. What they compute must be the same, bit by bit, and nothing may hang.

    python3 fire.py --library build/libgpreempt.so --command build/gpreempt [--json FILE] [case ...]
"""
import argparse
import concurrent.futures
import pathlib
import shutil
import subprocess
import sys
import time

import blp
import results
from run import Program

FOLDER = pathlib.Path(__file__).resolve().parent / "fire"
NATIVE = ("in-place", "atomics", "scans", "stream-k", "cooperative", "clusters", "streams", "copies", "graphs",
          "marlin", "lamport", "exceeding")
TORCH = ("resnet50-training", "transformer-training", "transformer-generation", "cublas", "triton-stream-k")
START_S = 100  # many start at once
UNDISTURBED_S = 2.0
ANSWER_S = 40  # a round of the slowest, preempted all the time
TARGET = "bit-identical, no hang, >= {} stops, cuts"


def find_nvcc():
    for path in (shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"):
        if path and pathlib.Path(path).exists():
            return path
    raise RuntimeError("nvcc is neither on the PATH nor in /usr/local/cuda/bin")


def compile_native(workspace):
    program = workspace.path("native")
    done = subprocess.run([find_nvcc(), "-O3", "-std=c++17", "-arch=native", "-o", str(program),
                           str(FOLDER / "native.cu")], capture_output=True, text=True, timeout=150)
    if done.returncode:
        raise RuntimeError("compile native.cu: " + " | ".join(done.stderr.strip().splitlines()[-3:]))
    return program


class Case:
    def __init__(self, name, options, workspace, native, clients):
        self.name, self.options, self.workspace, self.native = name, options, workspace, native
        self.clients = clients  # variables of the environment
        self.notes, self.counted, self.hung, self.same = [], {}, False, True
        self.requests, self.config = 0, None

    def start(self, run, role=None, config=None):
        stderr = self.workspace.path(f"{self.name}-{run}.err")
        script = str(self.native.result()) if self.name in NATIVE else "fire/torch_programs.py"
        with open(stderr, "wb") as file:
            program = Program(script, self.name, library=self.options.library, role=role, config=config, stderr=file,
                              environment={"TRITON_CACHE_DIR": str(self.workspace.path("triton")), **self.clients})
        program.stderr_path = stderr
        return program

    def answer(self, program, limit_s, what):
        try:
            return program.answer(limit_s)
        except RuntimeError as error:
            if program.process.poll() is None:
                self.hung = True
                self.count(program)
                where = blp.where_it_hangs(program.process.pid)
                program.process.kill()
                raise RuntimeError(f"{what}: HANG: {error}; threads: {where}") from error
            raise RuntimeError(f"{what}: {error}: {blp.last_lines(program.stderr_path)}") from error

    def count(self, program):
        if self.config:
            counted = blp.counters(self.options.command, self.config, program.process.pid)
            self.counted = counted or self.counted
        return self.counted

    def rounds(self, program, what, enough):
        """Rounds until enough() says so; all must be like the first."""
        program.send("start")
        enough()
        program.send("stop")
        result = self.answer(program, ANSWER_S, what)
        if result["different"]:
            self.same = False
            at = "round {}, step {}".format(*result["first_different"])
            self.notes.append(f"{what}: {result['different']} of {result['rounds']} rounds different, first {at}")
        return result

    def compare(self, first, steps, what):
        if steps != first:
            self.same = False
            at = next((i for i, (a, b) in enumerate(zip(first, steps)) if a != b), min(len(first), len(steps)))
            self.notes.append(f"{what}: different from step {at} of {len(first)} on")

    def alone(self):
        """The steps of two processes without the library."""
        programs = [self.start(f"alone{i}") for i in (1, 2)]
        try:
            first, second = (self.answer(program, START_S, "without the library")["steps"] for program in programs)
            self.rounds(programs[0], "without the library", lambda: time.sleep(0.2))
        finally:
            for program in programs:
                program.end()
        if first != second or not self.same:
            raise RuntimeError(": ".join(["NOT DETERMINISTIC without the library", *self.notes]))
        return first

    def under_library(self, first):
        self.config = self.workspace.config(self.name, self.options.mechanisms, self.workspace.path("cache"))
        program, peer = self.start("be", "be", self.config), None
        try:
            self.compare(first, self.answer(program, START_S, "as BE")["steps"], "as BE")
            quiet = self.rounds(program, "as BE, undisturbed", lambda: time.sleep(UNDISTURBED_S))
            before = self.count(program).get("stops", 0)
            if "blp" not in self.counted.get("mechanisms", []):
                self.notes.append("in force: {mechanisms}, not in force: {fallbacks}".format(
                    **{"mechanisms": "?", "fallbacks": "?", **self.counted}))
            peer = blp.Peer(self.options.command, self.options.library, self.config, self.clients)
            peer.ready()

            def enough():
                deadline = time.monotonic() + self.options.fire_seconds
                while time.monotonic() < deadline and program.process.poll() is None and peer.process.poll() is None:
                    time.sleep(0.5)
                    if self.count(program).get("stops", 0) - before >= self.options.stops:
                        return
            fire = self.rounds(program, "under fire", enough)
            self.count(program)
            self.requests = len(peer.end())
            peer = None
        finally:
            if peer:
                peer.end()
            program.end()
        self.counted["stops"] = self.counted.get("stops", 0) - before
        return quiet, fire

    def row(self):
        problem, fire, quiet = "", None, None
        try:
            quiet, fire = self.under_library(self.alone())
        except (RuntimeError, OSError, ValueError, LookupError, subprocess.SubprocessError) as error:
            problem = str(error)
        c = self.counted
        stops, cuts = c.get("stops", 0), c.get("cuts", 0)
        passed = not problem and self.same and stops >= self.options.stops and cuts > 0
        notes = [problem] if problem else []
        notes += [note for note in self.notes if note not in problem]
        if fire:
            slower = fire["seconds"] / fire["rounds"] / (quiet["seconds"] / quiet["rounds"])
            notes.append(f"{fire['rounds']} rounds under fire, each {slower:.1f} x as long; {self.requests} LC requests")
        if c.get("launches"):
            notes.append(f"{cuts} launches cut, {c.get('resumed_blocks', 0)} blocks resumed, drain "
                         f"{c.get('drain_ns', 0) / 1000 / max(stops, 1):.0f} us mean, "
                         f"{c.get('drain_max_ns', 0) / 1000:.0f} us most; {c['launches']} launches covered, "
                         f"{c.get('uncovered', 0)} not, {c.get('barriers', 0)} barriers; kernels refused: "
                         f"{c.get('kernels_refused') or 'none'}")
            if c.get("beside"):
                notes.append(f"{c['beside']} launches were parted whose blocks wait for later ones")
            if c.get("given_up"):
                notes.append(f"GIVEN UP {c['given_up']} times")
                passed = False
        log = self.workspace.log(self.name).strip().splitlines()
        if not passed and log:
            notes.append("log: " + " | ".join(line[:200] for line in log[-3:]))
        return {"case": f"fire-{self.name}", "system": "gpreempt", "value": stops, "unit": "stops",
                "target": TARGET.format(self.options.stops), "pass": passed, "note": "; ".join(notes),
                "blp": c}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--command", required=True, help="path of gpreempt")
    parser.add_argument("--json")
    parser.add_argument("--mps", action="store_true", help="all are clients of an MPS server of their own")
    parser.add_argument("--mechanisms", help="""of the library, as in its configuration; ["blp"], with --mps "auto" """)
    parser.add_argument("--stops", type=int, default=1000)
    parser.add_argument("--fire-seconds", type=float, default=30, help="the longest under fire")
    parser.add_argument("--limit", type=float, default=215, help="seconds after which no case begins; 15 more end it all")
    parser.add_argument("--jobs", type=int, default=5, help="cases at once")
    parser.add_argument("--logs", help="folder for what the programs and the library said")
    parser.add_argument("cases", nargs="*")
    options = parser.parse_args()
    options.library = str(pathlib.Path(options.library).resolve(strict=True))
    options.command = str(pathlib.Path(options.command).resolve(strict=True))
    options.mechanisms = options.mechanisms or ('"auto"' if options.mps else '["blp"]')
    names = options.cases or [*TORCH, *NATIVE]  # the slow ones first
    for name in names:
        if name not in NATIVE + TORCH:
            parser.error(f"no case {name}; there are {', '.join(NATIVE + TORCH)}")

    began = time.monotonic()
    report = results.new("blp-fire")
    report["mode"] = "MPS" if options.mps else "block-level preemption"
    blp.end_by(options.limit + 15, report)
    rows, hangs = {}, []

    def measure(name, native):
        if time.monotonic() - began > options.limit:
            return {"case": f"fire-{name}", "system": "gpreempt", "pass": False, "note": "no time left",
                    "target": TARGET.format(options.stops)}
        case = Case(name, options, workspace, native, clients)
        row = case.row()
        hangs.extend([name] * case.hung)
        return row

    with blp.Workspace(options.logs) as workspace, concurrent.futures.ThreadPoolExecutor(options.jobs + 1) as pool, \
            concurrent.futures.ThreadPoolExecutor(options.jobs) as cases:
        clients = blp.Server(workspace).clients if options.mps else {}
        native = pool.submit(compile_native, workspace)
        futures = {cases.submit(measure, name, native): name for name in names}
        for future in concurrent.futures.as_completed(futures):
            row = future.result()
            rows[futures[future]] = row
            print(f"{row['case']}: {'passed' if row['pass'] else 'FAILED'} after {time.monotonic() - began:.0f} s",
                  file=sys.stderr, flush=True)
            report["cases"] = [rows[name] for name in names if name in rows]
            if options.json:
                results.write(report, options.json)  # what was measured survives a time limit
    blp.print_rows(report["cases"])
    print(f"{sum(row['pass'] for row in report['cases'])} of {len(names)} cases passed, "
          f"{len(hangs)} hangs, {time.monotonic() - began:.0f} s")
    sys.exit(0 if all(row["pass"] for row in report["cases"]) else 1)


main()
