"""compute-sanitizer finds nothing in a right program, and in wrong ones what was planted."""
import re
import subprocess
import sys

from shared import native_program

sanitizer = native_program.tool("compute-sanitizer")
program = native_program.compiled("tools.cu", "-lineinfo")
for tool, planted in (("memcheck", ""), ("memcheck", "out-of-bounds"), ("racecheck", ""), ("racecheck", "race")):
    run = subprocess.run([sanitizer, "--tool", tool, program, *planted.split()], capture_output=True, text=True)
    said = run.stdout + run.stderr
    summary = re.search(r"SUMMARY: (\d+) (errors?|hazards?)", said)
    found = re.search(r"(Invalid __global__ write|Race reported).* (looked_at|races)", said.replace("\n", " "))
    checksum = re.findall(r"^[0-9a-f]{16}$", said, re.MULTILINE)
    if not summary:
        sys.exit(f"{tool} {planted}: no summary: {said[-600:]}")
    wrong = re.search(r"^========= (?!COMPUTE-SANITIZER|(?:ERROR|RACECHECK) SUMMARY)(.+)$", said, re.MULTILINE)
    if wrong and not planted:
        sys.exit(f"{said[-1500:]}\n{tool}: found in a right program: {wrong[1]}")  # the last line is what a reader sees
    print(tool, planted or "nothing", "clean" if summary[1] == "0" else "found", found[2] if found else "-", *checksum)
