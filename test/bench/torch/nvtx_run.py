"""NVTX ranges of PyTorch as the source of hints: ResNet-50 inference as LC beside training. A range begins 0.5 ms before
each request, and is one that the configuration names or another.

    python3 nvtx_run.py --library build/libgpreempt.so --json h200-nvtx.json
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

import results
from run import UNITS, Program, be_alone, busy, print_table, rate, ratio, summary

REQUESTS, GAP_MS, PREPARE_US = 300, 5, 500
MET_LIMIT, LATER_US = 0.9, 40
HINTS = """[hints]
explicit = false
copy = false
socket = false
arrival = false
nvtx = ["request"]
log = "{}"
"""


def measure(options, config, log):
    rows = []
    lc = Program("lc.py", "--gap-ms", str(GAP_MS), library=options.library, role="lc", config=config)
    be = Program("be.py", "train", library=options.library, role="be", config=config)
    try:
        lc.answer(180)
        be.answer(180)
        alone, be_rate = None, be_alone(be, options.be_seconds)
        for system, name in (("alone", "other"), ("gpreempt", "other"), ("gpreempt-hints", "request")):
            lc.send(f"range {name} {PREPARE_US}")
            if system != "alone":
                be.send("start")
                time.sleep(0.5)
            lc.send(f"run {REQUESTS}")
            served = lc.answer(60)
            summed = summary(served["latencies_ns"])
            row = {"case": "nvtx-resnet50", "system": system, "lc": summed}
            rows.append(row)
            if system == "alone":
                alone = summed
                continue
            time.sleep(0.5)  # a step of BE: it passes the end of the interval
            be.send("stop")
            now = rate(be.answer(60), served["start_ns"], served["end_ns"])
            share = now / be_rate / (1 - busy(served, statistics.mean(served["latencies_ns"])))
            row |= {"lc_alone": alone, "ratio": ratio(summed, alone),
                    "be": {"share": round(share, 3), "alone": round(be_rate, 3), "now": round(now, 3), "unit": UNITS}}
            if system == "gpreempt-hints":
                lines = log.read_text().splitlines() if log.exists() else []
                counted = [json.loads(line) for line in lines]
                counted = [line for line in counted if line["at_ns"] >= served["start_ns"]]
                row["hints"] = {"requests": {"met": sum("held_us" in line for line in counted), "of": len(counted)}}
                met = row["hints"]["requests"]["met"] / REQUESTS
                row["target"] = f"{MET_LIMIT} of the requests meet a hint, p50 <= alone + {LATER_US} us"
                row["pass"] = met >= MET_LIMIT and summed["p50_us"] <= alone["p50_us"] + LATER_US
    finally:
        lc.end()
        be.end()
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--json")
    parser.add_argument("--be-seconds", type=float, default=2)
    options = parser.parse_args()
    options.library = str(pathlib.Path(options.library).resolve(strict=True))

    report = results.new("nvtx")
    with tempfile.TemporaryDirectory() as folder:
        config, log = pathlib.Path(folder, "nvtx.toml"), pathlib.Path(folder, "requests")
        base = os.environ.get("GPREEMPT_CONFIG")
        text = pathlib.Path(base).read_text() if base else ""
        config.write_text(f"{text}\n{HINTS.format(log)}")
        try:
            report["cases"] += measure(options, str(config), log)
        except (RuntimeError, OSError) as error:
            report["cases"].append({"case": "nvtx-resnet50", "system": "gpreempt-hints", "pass": False, "note": str(error)})
            print(error, file=sys.stderr)
    if options.json:
        results.write(report, options.json)
    print_table(report["cases"])


main()
