"""The result file that the benchmarks write."""
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys


def driver_version():
    try:
        text = pathlib.Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return "unknown"
    match = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return match.group(1) if match else "unknown"


def commit():
    if os.environ.get("GPREEMPT_COMMIT"):
        return os.environ["GPREEMPT_COMMIT"]
    for option in ("--command", "--top"):  # what is measured may have been built elsewhere
        if option in sys.argv[:-1]:
            version = subprocess.run([sys.argv[sys.argv.index(option) + 1], "--version"], capture_output=True, text=True)
            if version.returncode == 0 and version.stdout.split():
                return version.stdout.split()[-1]
    git = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=pathlib.Path(__file__).parent, capture_output=True, text=True)
    return git.stdout.strip() if git.returncode == 0 else "unknown"


def gpu():
    text = subprocess.run([sys.executable, "-c", "import torch; print(torch.cuda.get_device_name()); "
                           "print(torch.version.cuda)"], capture_output=True, text=True, check=True).stdout
    return text.splitlines()[:2]


def new(benchmark):
    name, cuda = gpu()
    return {"schema": 1, "benchmark": benchmark, "gpu": name, "driver": driver_version(), "cuda": cuda,
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(), "commit": commit(),
            "command": " ".join(pathlib.Path(word).name if word.startswith("/") else word for word in sys.argv), "mode": "time-sliced",
            "cases": []}


def write(report, path):
    pathlib.Path(path).write_text(json.dumps(report, indent=2) + "\n")
