"""Breaks one line of the code at a time and says which tests notice it.

The mutants are universalmutator's, of the files that folders.toml names. A sample of each folder, the same for the same seed, is
tried in a copy of the tree. What was found out is kept, so an interrupted run goes on; a survivor is tried again when a test or its
file has changed. With --readme the table and the lists of test/README.md are written from what is kept.
"""

import argparse
import collections
import contextlib
import dataclasses
import fnmatch
import hashlib
import html
import io
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib

from universalmutator import mutator

ROOT = pathlib.Path(__file__).resolve().parents[2]
OWN = ROOT / "test/mutants"
WORK = ROOT / "build/_mutants"  # a name that ./... passes over
README = ROOT / "test/README.md"

# Lines that are no code, or that the compiler checks.
NO_LINES = [r"^\s*#", r"^package\b", r"^import\b", r'^\s*"[\w./-]+"$', r"\b(_S|s)tatic_assert\b", r"json:\""]

MEMORY = 6 << 30  # of all processes that a mutant's tests start: a mutant may allocate without end
POLL = 0.2

NO_TEST = b"no test"  # of a package
UNTRIED = ("invalid", "same")  # does not compile; compiles to the same code


@dataclasses.dataclass(frozen=True)
class Mutant:
    file: str
    line: int
    before: str
    after: str
    nth: int  # among equal changes of equal lines of the file

    @property
    def name(self):
        return hashlib.sha256("\0".join([self.file, self.before, self.after, str(self.nth)]).encode()).hexdigest()[:16]

    def apply(self, lines):
        return lines[: self.line - 1] + [self.after + "\n"] + lines[self.line :]


@dataclasses.dataclass
class Folder:
    name: str
    files: list  # patterns
    tests: list  # commands, the quickest first; the first that fails kills
    watch: list  # patterns of tests: where one changes, survivors are tried again
    leave: list = dataclasses.field(default_factory=list)  # patterns of files that are not mutated

    def sources(self):
        left = [re.compile(r".*(_test\.go|_test\.c|\.h)")] + [re.compile(fnmatch.translate(p)) for p in self.leave]
        return [f for f in matching(self.files) if not any(p.fullmatch(f) for p in left)]


def matching(patterns):
    return sorted({str(p.relative_to(ROOT)) for pattern in patterns for p in ROOT.glob(pattern) if p.is_file()})


def folders():
    with open(OWN / "folders.toml", "rb") as f:
        return {name: Folder(name, **keys) for name, keys in tomllib.load(f).items()}


def explanations(folder):
    """What was found out by hand about mutants that no test kills: {(file, before, after): (equivalent, reason)}."""
    path = OWN / "explained" / (folder.name.replace("/", "-") + ".toml")
    if not path.exists():
        return {}
    with open(path, "rb") as f:
        rows = tomllib.load(f)["mutant"]
    return {(r["file"], r["before"].strip(), r["after"].strip()): (r.get("equivalent", False), r["reason"]) for r in rows}


def mutants_of(file):
    lines, seen = (ROOT / file).read_text().splitlines(keepends=True), collections.Counter()
    with contextlib.redirect_stdout(io.StringIO()):
        found = mutator.mutants_regexp(lines, [str(OWN / "go-and-c.rules")], ignorePatterns=NO_LINES, ignoreStringOnly=True)
    for number, after, *_ in found:
        before, after = lines[number - 1].rstrip("\n"), after.rstrip("\n")
        yield Mutant(file, number, before, after, seen[before, after])
        seen[before, after] += 1


def sample(folder, seed):
    """All mutants of a folder, in an order that other changes of the code do not touch."""
    found = [m for file in folder.sources() for m in mutants_of(file)]
    return sorted(found, key=lambda m: hashlib.sha256(f"{seed} {m.name}".encode()).digest())


def digest(files, root=ROOT, also=()):
    h = hashlib.sha256("\0".join(also).encode())
    for file in files:
        h.update(file.encode() + b"\0" + (root / file).read_bytes())
    return h.hexdigest()[:16]


class Kept:
    """Results of a folder, a line of JSON each; the last one of a mutant counts."""

    def __init__(self, folder):
        self.path = WORK / (folder.name.replace("/", "-") + ".jsonl")
        self.rows = {}
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                row = json.loads(line)
                self.rows[row["name"]] = row

    def get(self, m, source, tests):
        row = self.rows.get(m.name)
        if row and row["source"] == source and (row["result"] != "survived" or row["tests"] == tests):
            return row
        return None

    def put(self, m, source, tests, result, by=""):
        row = dataclasses.asdict(m) | {"name": m.name, "source": source, "tests": tests, "result": result, "by": by}
        self.rows[m.name] = row
        with open(self.path, "a") as f:
            f.write(json.dumps(row) + "\n")
        return row


def copy_tree(folder):
    """The tree as git sees it and what make has built, in a copy of its own."""
    tree = WORK / "tree" / folder.name.replace("/", "-")
    tree.mkdir(parents=True, exist_ok=True)
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    files = {f for f in listed.stdout.decode().split("\0") if f and (ROOT / f).is_file()}
    files |= {str(p.relative_to(ROOT)) for p in ROOT.glob("preempt/*/headers_checksum.h")}
    for old in [p for p in tree.rglob("*") if p.is_file() and p.relative_to(tree).parts[0] != "build"]:
        if str(old.relative_to(tree)) not in files:
            old.unlink()
    for file in files:
        if not same(ROOT / file, tree / file):
            (tree / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, tree / file)
    (tree / "build").mkdir(exist_ok=True)
    for entry in sorted((ROOT / "build").iterdir()):
        target = tree / "build" / entry.name
        if entry.name == "corpus":  # compiled once
            if not target.exists():
                target.symlink_to(entry)
        elif not entry.name.startswith("cuda-") and entry.name not in (WORK.name, "tools", "test", "dist", "packages", "sanitize"):
            subprocess.run(["cp", "-a", "-T", "--update", entry, target], check=True)
    return tree


def same(a, b):
    return b.exists() and a.stat().st_size == b.stat().st_size and a.read_bytes() == b.read_bytes()


def session(leader):
    """The processes of a session, with the pages that each has in memory."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = pathlib.Path("/proc", entry, "stat").read_text().rsplit(")", 1)[1].split()
                if int(fields[3]) == leader:
                    yield int(entry), int(fields[21])


def run(command, tree, limit, scratch):
    """Runs a command with all its processes in a session of their own; says whether it succeeded, or "time" or "memory"."""
    started, outcome = time.monotonic(), None
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")} | {"TMPDIR": str(scratch)}
    for tools in ROOT.glob("build/cuda-*"):  # the copy has none of its own
        env.setdefault("GPREEMPT_CUDA_VENV", str(tools.resolve()))
    with open(scratch / "output", "wb") as output:
        process = subprocess.Popen(
            ["sh", "-c", command], cwd=tree, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            while outcome is None:
                try:
                    outcome = process.wait(POLL) == 0
                except subprocess.TimeoutExpired:
                    if time.monotonic() - started > limit:
                        outcome = "time"
                    elif sum(pages for _, pages in session(process.pid)) * os.sysconf("SC_PAGE_SIZE") > MEMORY:
                        outcome = "memory"
        finally:
            for pid, _ in list(session(process.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
    return outcome, time.monotonic() - started


class Trial:
    """The copy of the tree in which a folder's mutants are tried, and what its tests say of the unchanged code."""

    def __init__(self, folder, timeout):
        self.folder, self.tree = folder, copy_tree(folder)
        self.limits, self.code = {}, {}
        print(f"{folder.name}: the tests, without a mutant", flush=True)
        for command in folder.tests:
            outcome, took, output = self.run(command, 3600)
            if outcome is not True:
                sys.exit(f"{folder.name}: without a mutant, {command} ends with {outcome}\n{output}")
            self.limits[command] = timeout or 60 + 5 * took
            print(f"{folder.name}: {took:5.1f} s {command}", flush=True)

    def run(self, command, limit):
        with tempfile.TemporaryDirectory(prefix="gp", ignore_cleanup_errors=True) as scratch:
            os.chmod(scratch, 0o711)  # tests of root start processes of other users
            outcome, took = run(command, self.tree, limit, pathlib.Path(scratch))
            return outcome, took, (pathlib.Path(scratch) / "output").read_text(errors="replace")[-4000:]

    def compiled(self, file):
        """What the compiler makes of a file, without what tells of lines; None where it makes nothing."""
        with tempfile.TemporaryDirectory() as scratch:
            out = pathlib.Path(scratch, "out")
            if file.endswith(".c"):
                command = ["cc", "-O2", "-g0", "-std=gnu11", "-w", "-fPIC", "-I.", "-c", "-o", out, file]
            else:
                package = "./" + str(pathlib.Path(file).parent)
                command = ["test/go.sh", "test", "-c", "-trimpath", "-ldflags=-s -w -buildid=", "-o", out, package]
            done = subprocess.run(command, cwd=self.tree, capture_output=True)
            if done.returncode != 0:
                return None
            return hashlib.sha256(out.read_bytes()).digest() if out.exists() else NO_TEST

    def of(self, m):
        """Tries a mutant: invalid, same (to the compiler), killed, time, memory or survived; and the command that decided."""
        path = self.tree / m.file
        original = path.read_text()
        if m.file not in self.code:
            self.code[m.file] = self.compiled(m.file)
        try:
            path.write_text("".join(m.apply(original.splitlines(keepends=True))))
            if m.file.endswith(".c") and self.compiled(m.file) is None:
                return "invalid", ""
            for command in self.folder.tests:
                outcome, _, output = self.run(command, self.limits[command])
                if "[build failed]" in output:
                    return "invalid", ""
                if outcome is not True:
                    return ("killed" if outcome is False else outcome), command
            code = self.compiled(m.file)
            return "same" if code == self.code[m.file] and code != NO_TEST else "survived", ""
        finally:
            path.write_text(original)


def carry_out(folder, seed, count, timeout):
    """The rows of the first `count` mutants of the sample that can be tried: of those that were tried before, what is kept."""
    kept, trial, rows = Kept(folder), None, []
    tests, sources = digest(matching(folder.watch), also=folder.tests), {f: digest([f]) for f in folder.sources()}
    for m in sample(folder, seed):
        if len(rows) == count:
            break
        row = kept.get(m, sources[m.file], tests)
        if row is None:
            trial = trial or Trial(folder, timeout)
            result, by = trial.of(m)
            row = kept.put(m, sources[m.file], tests, result, by)
            if result not in UNTRIED:
                change = f"    - {m.before.strip()}\n    + {m.after.strip()}"
                print(f"{folder.name} {len(rows) + 1}/{count}: {result} {m.file}:{m.line}\n{change}", flush=True)
        if row["result"] not in UNTRIED:
            rows.append(row | {"line": m.line})
    return rows


def report(folder, rows):
    """The lines of a folder's row, and of its mutants that no test kills."""
    explained = explanations(folder)
    survivors = []
    for r in rows:
        if r["result"] == "survived":
            change = (r["file"], r["before"].strip(), r["after"].strip())
            survivors.append((*change, r["line"], *explained.get(change, (False, "not explained"))))
    equivalent = sum(same for *_, same, _ in survivors)
    killed = len(rows) - len(survivors)
    limits = sum(1 for r in rows if r["result"] in ("time", "memory"))
    share = 100 * killed / max(1, len(rows) - equivalent)
    row = f"| `{folder.name}` | {len(rows)} | {killed} ({limits}) | {equivalent} | {len(survivors) - equivalent} | {share:.0f} % |"
    details = []
    for wanted, title in ((True, "equivalent"), (False, "survivors")):
        chosen = sorted(s for s in survivors if s[4] == wanted)
        if chosen:
            details += ["", f"`{folder.name}`, {title}:", ""]
            details += [f"- `{file}` {code(before)} became {code(after)}: {reason}" for file, before, after, _, _, reason in chosen]
    return row, details


def code(text):
    """A line of code as HTML: text between backticks is taken for a command (docs/docs_test.go)."""
    return "<code>" + re.sub(r"[*_`\[\]]", lambda m: f"&#{ord(m[0])};", html.escape(text, quote=False)) + "</code>"


HEAD = "| folder | mutants | killed (by a limit) | equivalent | survivors | of the non-equivalent killed |\n|---|---|---|---|---|---|"


def write_readme(results):
    """Replaces the rows and lists of the folders that were tried; those of others stay."""
    text = README.read_text()
    for folder, rows in results:
        row, details = report(folder, rows)
        mark = re.escape(f"| `{folder.name}` |")
        text = re.sub(rf"(?m)^{mark}.*\n", lambda _: row + "\n", text)  # noqa: B023
        begin, end = f"<!-- mutants of {folder.name} -->", "<!-- end -->"
        text = re.sub(re.escape(begin) + r"(?s:.*?)" + re.escape(end), lambda _: "\n".join([begin, *details, end]), text)  # noqa: B023
    README.write_text(text)


def main():
    every = folders()
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--count", type=int, default=40, help="mutants of each folder")
    arguments.add_argument("--seed", default="1", help="which ones")
    limit = "seconds for each command; 0: a minute and five times what it takes without a mutant"
    arguments.add_argument("--timeout", type=float, default=0, help=limit)
    arguments.add_argument("--readme", action="store_true", help="write test/README.md")
    arguments.add_argument("folder", nargs="*", help=f"of {', '.join(every)}")
    given = arguments.parse_args()
    chosen = [every[name] for name in given.folder or every]
    WORK.mkdir(parents=True, exist_ok=True)
    results = [(folder, carry_out(folder, given.seed, given.count, given.timeout)) for folder in chosen]
    print(HEAD)
    for folder, rows in results:
        row, details = report(folder, rows)
        print("\n".join([row, *details]))
    if given.readme:
        write_readme(results)


if __name__ == "__main__":
    main()
