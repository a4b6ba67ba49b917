#!/usr/bin/env bash
# The main jobs in one command: `make demo`.
set -euo pipefail
cd "$(dirname "$0")/.."
on_gpu=false
if [ -c /dev/nvidiactl ] && build/gpreempt doctor >/dev/null 2>&1; then
	on_gpu=true
else
	echo "No usable NVIDIA GPU here: running on the simulated driver. Its times are simulated."
fi

# A latency-critical program beside a best-effort one.
time_part() {
	rm -rf build/demo # what is in it would not be measured again
	if ! $on_gpu; then
		export LD_LIBRARY_PATH="$PWD/build/sim${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
		export LD_PRELOAD="$PWD/build/sim/libcuda.so.1"
	fi
	build/gpreempt bench --suite quick --library build/libgpreempt.so --out build/demo
}

(time_part)
echo
test/demo_memory.sh "$on_gpu"
