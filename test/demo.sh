#!/usr/bin/env bash
# The main job in one command: `make demo`.
set -euo pipefail
cd "$(dirname "$0")/.."
bench=(build/gpreempt bench --suite quick --library build/libgpreempt.so --out build/demo)
rm -rf build/demo # what is in it would not be measured again
if [ -c /dev/nvidiactl ] && build/gpreempt doctor >/dev/null 2>&1; then
	exec "${bench[@]}"
fi
echo "No usable NVIDIA GPU here: running on the simulated driver. Its times are simulated."
export LD_LIBRARY_PATH="$PWD/build/sim${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export LD_PRELOAD="$PWD/build/sim/libcuda.so.1"
exec "${bench[@]}"
