#!/usr/bin/env bash
# The main job in one command: `make demo`.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -c /dev/nvidiactl ] && build/gpreempt doctor >/dev/null 2>&1; then
	exec build/gpreempt bench --suite quick --library build/libgpreempt.so
fi
echo "No usable NVIDIA GPU here: running on the simulated driver. Its times are simulated."
export LD_LIBRARY_PATH="$PWD/build/sim${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export LD_PRELOAD="$PWD/build/sim/libcuda.so.1"
exec build/gpreempt bench --suite quick --library build/libgpreempt.so
