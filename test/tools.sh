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
# The python3 of a version manager is a script, which takes longer to find the program than most tests' programs run. The program's folder
# comes first then, unless that may change what other commands are found.
python=$(command -v python3 || true)
if [ -n "$python" ] && [ "$(head -c 2 "$python")" = '#!' ] &&
	folder=$("$python" -c 'import os, sys; print(os.path.dirname(sys.executable))' 2>/dev/null) &&
	[ ! -e "$folder/go" ] && [ ! -e "$folder/cc" ] && [ ! -e "$folder/bash" ] && "$folder/python3" -c '' 2>/dev/null; then
	PATH=$folder:$PATH
	export PATH
fi
exec "$@"
