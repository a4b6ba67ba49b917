"""What the measurements of block-level preemption share: configurations with segments of their own, an LC peer
that preempts at random, and what the library counted."""
import json
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
KERNELS = ROOT / "kernels" / "bench.fatbin"
NO_HINTS = "[hints]\nexplicit = false\ncopy = false\nsocket = false\narrival = false\n"


class Workspace:
    """A folder for files and, on a memory-backed file system, one for segments; both go at the end, after a call of
    at_end. What programs and the library said is copied to the folder `logs`, where one is given."""
    open = []

    def __init__(self, logs=None):
        self.logs, self.at_end = logs, None
        self.open.append(self)
        self.files = tempfile.TemporaryDirectory(ignore_cleanup_errors=True, prefix="gpreempt-bench-")
        self.segments = tempfile.TemporaryDirectory(ignore_cleanup_errors=True, prefix="gpreempt-bench-", dir="/dev/shm")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.open.remove(self)
        if self.at_end:
            self.at_end()
        if self.logs:
            shutil.copytree(self.files.name, self.logs, dirs_exist_ok=True, ignore=lambda folder, names: [
                name for name in names if pathlib.Path(folder, name).suffix not in (".err", ".log")])
        for folder in (self.files, self.segments):
            folder.cleanup()

    def path(self, name):
        return pathlib.Path(self.files.name, name)

    def config(self, name, mechanisms, cache):
        """A configuration whose processes know only of one another; cache is the folder of rewritten code."""
        segment = pathlib.Path(self.segments.name, name)
        segment.mkdir(mode=0o700, exist_ok=True)
        pathlib.Path(cache).mkdir(mode=0o700, exist_ok=True)
        path = self.path(f"{name}.toml")
        path.write_text(f"mechanisms = {mechanisms}\n{NO_HINTS}[segment]\ndirectory = \"{segment}\"\n"
                        f"[blp]\ncache_directory = \"{cache}\"\n[log]\nlevel = \"info\"\n"
                        f"file = \"{self.path(name)}.log\"\n")
        return path

    def log(self, name):
        try:
            return self.path(f"{name}.log").read_text(errors="replace")
        except OSError:
            return ""


def counters(command, config, pid):
    """What the library counted for a process: the object "blp" of gpreempt top; {} where there is none."""
    try:
        text = subprocess.run([command, "top", "--once", "--json", "--config", str(config)], capture_output=True,
                              text=True, timeout=10, check=True).stdout
        for gpu in json.loads(text.splitlines()[0])["gpus"]:
            for peer in gpu.get("peers") or []:
                if peer.get("pid") == pid:
                    found = dict(peer.get("blp") or {})
                    found["mechanisms"] = peer.get("mechanisms") or []
                    found["fallbacks"] = peer.get("fallbacks") or []
                    return found
    except (OSError, ValueError, LookupError, subprocess.SubprocessError):
        pass
    return {}


class Server:
    """An MPS control daemon of our own, in the foreground, with its pipes in a workspace, with which it
    ends."""

    def __init__(self, workspace):
        folder = pathlib.Path(workspace.files.name)
        self.tool = shutil.which("nvidia-cuda-mps-control", path=os.environ["PATH"] + ":/usr/local/nvidia/bin")
        if not self.tool:
            raise RuntimeError("nvidia-cuda-mps-control is neither on the PATH nor in /usr/local/nvidia/bin")
        self.clients = {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "mps"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "mps-log")}
        for path in self.clients.values():
            os.makedirs(path, mode=0o700)
        self.process = subprocess.Popen([self.tool, "-f"], env=os.environ | self.clients, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=sys.stderr, start_new_session=True)
        workspace.at_end = self.end
        deadline = time.monotonic() + 10
        while not pathlib.Path(folder, "mps", "control").exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the MPS control daemon does not start")
            time.sleep(0.05)

    def end(self):
        """Ends the daemon and its server, whatever state they are in."""
        try:
            subprocess.run([self.tool], input="quit -t 5\n", text=True, env=os.environ | self.clients, timeout=8,
                           stdout=subprocess.DEVNULL)
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(self.process.pid, 9)  # the server is in the daemon's session
        except ProcessLookupError:
            pass
        self.process.wait()


class Peer:
    """An LC process with a tiny kernel every 0.3 to 3 ms: each of its windows stops the BE processes."""

    def __init__(self, command, library, config, added=()):
        environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
        environment |= {"LD_PRELOAD": library, "GPREEMPT_PRIORITY": "lc", "GPREEMPT_CONFIG": str(config)}
        environment.update(added)
        with open(KERNELS, "rb") as module:
            self.process = subprocess.Popen(
                [command + "-bench", "bench-worker", "lc", "--blocks", "1", "--threads", "32", "--iterations", "2000",
                 "--kernels", "1", "--requests", "1000000", "--warm-up", "0", "--gap-us", "6000", "--gap-least-us", "1000",
                 "--jitter", "1", "--seconds", "170", "--limit", "180"],
                env=environment, stdin=module, stdout=subprocess.PIPE, text=True)

    def ready(self):
        if not select.select([self.process.stdout], [], [], 30)[0]:
            raise RuntimeError("the LC process is not ready in 30 s")
        if self.process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"the LC process ended with status {self.process.wait()}")

    def end(self):
        """How long its requests took, in nanoseconds; [] where it had to be killed."""
        self.process.send_signal(signal.SIGTERM)
        try:
            text, _ = self.process.communicate(timeout=10)
            return json.loads(text)["latencies_ns"]
        except (subprocess.TimeoutExpired, ValueError, KeyError):
            self.process.kill()
            self.process.communicate()
            return []


def where_it_hangs(pid):
    """The system calls that a process's threads are in."""
    waits = {}
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*"):
        try:
            key = f"{(task / 'comm').read_text().strip()}:{(task / 'wchan').read_text().strip() or '0'}"
        except OSError:
            continue
        waits[key] = waits.get(key, 0) + 1
    return " ".join(f"{key}{'' if count == 1 else f' x{count}'}" for key, count in sorted(waits.items()))


def last_lines(path, count=3):
    try:
        lines = pathlib.Path(path).read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return " | ".join(re.sub(r"\s+", " ", line)[:200] for line in lines[-count:])


def end_by(seconds, report, show=None):
    """Prints what there is and ends, children too, when the time is over or the process is told to end."""
    def end(number, _):
        for children in pathlib.Path("/proc/self/task").glob("*/children"):
            for pid in children.read_text().split():
                os.kill(int(pid), signal.SIGKILL)
        for workspace in list(Workspace.open):
            workspace.__exit__()
        (show or print_rows)(report["cases"])
        print(f"not everything was measured: {signal.strsignal(number)}", flush=True)
        os._exit(1)
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGALRM, end)
    signal.alarm(int(seconds))


def print_rows(rows):
    print(f"{'case':34} {'system':12} {'figure':>24}  target")
    for row in rows:
        figure = f"{row['value']:g} {row.get('unit', '')}" if "value" in row else "-"
        if "be" in row and "value" not in row:
            figure = f"{row['be']['share']:g} of {row['be']['alone']:g} {row['be']['unit']}"
        target = row.get("target", "")
        if "pass" in row:
            target = ("reached: " if row["pass"] else "MISSED: ") + target
        if row.get("note"):
            target += f" ({row['note']})"
        print(f"{row['case']:34} {row['system']:12} {figure:>24}  {target}")
