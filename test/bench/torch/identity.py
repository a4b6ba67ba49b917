"""Runs every program of programs/ without the library and with it as off, lc and be, all four at once on
one GPU, and compares what they print.

    python3 identity.py --library build/libgpreempt.so [--json FILE] [program ...]
"""
import argparse
import concurrent.futures
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import results

PROGRAMS = pathlib.Path(__file__).resolve().parent / "programs"
ROLES = ("", "off", "lc", "be")


def run(program, role, library, limit_s):
    environment = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "GPREEMPT_PRIORITY")}
    environment |= {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
                    "PYTHONHASHSEED": "0"}
    if role:
        environment |= {"LD_PRELOAD": library, "GPREEMPT_PRIORITY": role}
    with tempfile.TemporaryDirectory() as folder:
        # Nothing compiled by one run serves another.
        environment |= {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton",
                        "CUPY_CACHE_DIR": f"{folder}/cupy", "NUMBA_CACHE_DIR": f"{folder}/numba"}
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            process = subprocess.Popen([sys.executable, str(program)], env=environment, stdout=out, stderr=errors,
                                       stdin=subprocess.DEVNULL, start_new_session=True, cwd=folder)
            try:
                status = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return None, f"no end in {limit_s} s"
            out.seek(0)
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines()
            if status:
                return None, f"status {status}: " + " | ".join(lines[-3:])
            return out.read().decode().strip(), ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--json")
    parser.add_argument("--limit", type=float, default=100, help="seconds for one run")
    parser.add_argument("--jobs", type=int, default=8, help="runs at once")
    parser.add_argument("programs", nargs="*")
    options = parser.parse_args()
    library = str(pathlib.Path(options.library).resolve(strict=True))
    names = options.programs or sorted(p.stem for p in PROGRAMS.glob("*.py"))

    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        runs = {name: {role: pool.submit(run, PROGRAMS / f"{name}.py", role, library, options.limit)
                       for role in ROLES} for name in names}
        rows = []
        for name in names:
            outcomes = {role: future.result() for role, future in runs[name].items()}
            plain, problem = outcomes[""]
            notes = [f"without the library: {problem}"] if problem else []
            identical = 0
            for role in ROLES[1:]:
                printed, problem = outcomes[role]
                if problem:
                    notes.append(f"{role}: {problem}")
                elif printed != plain:
                    notes.append(f"{role}: printed {printed!r}, not {plain!r}")
                else:
                    identical += 1
            row = {"case": f"identity-{name}", "system": "gpreempt", "value": identical,
                   "unit": "of 3 identical", "target": "identical with role off, lc and be",
                   "pass": identical == 3}
            if notes:
                row["note"] = "; ".join(notes)
            rows.append(row)
            print(f"{row['case']:32} {identical} of 3 {row.get('note', plain)}", flush=True)
    print(f"{sum(row['pass'] for row in rows)} of {len(rows)} programs identical, {time.monotonic() - began:.0f} s")
    if options.json:
        report = results.new("identity")
        report["cases"] = rows
        results.write(report, options.json)
    sys.exit(0 if all(row["pass"] for row in rows) else 1)


main()
