#!/bin/sh
# Runs a command after it has fetched from PyPI what tests need of NVIDIA's. Where that cannot be had, one line says so, and
# the tests that need it are skipped. In CI (GPREEMPT_CI is set) that is a failure.
#   test/tools.sh COMMAND...
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
log=$root/build/tools.log
if [ -z "${GPREEMPT_NO_CUDA_TOOLS:-}" ]; then
	mkdir -p "$root/build"
	if ! (PIP_RETRIES=${PIP_RETRIES:-1} && export PIP_RETRIES && "$root/kernels/cuda.sh") >"$log" 2>&1; then
		if [ -n "${GPREEMPT_CI:-}" ]; then
			cat "$log" >&2
			exit 1
		fi
		echo "No CUDA tools from PyPI ($log says why): tests with NVIDIA's compiler or disassembler are skipped." >&2
		export GPREEMPT_NO_CUDA_TOOLS=1
	fi
fi
# The python3 of a version manager is a script, which takes longer to find the program than most tests' programs run.
python=$(command -v python3 || true)
if [ -n "$python" ] && [ "$(head -c 2 "$python")" = '#!' ] &&
	program=$("$python" -c 'import sys; print(sys.executable)' 2>/dev/null) && [ -x "$program" ]; then
	PATH=$(dirname "$program"):$PATH
	export PATH
fi
exec "$@"
