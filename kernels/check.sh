#!/bin/sh
# Fails where the committed GPU code is not what the pinned compiler makes of its source.
set -eu
cd "$(dirname "$0")/.."
again=build/_generated
rm -rf "$again"
mkdir -p "$again"
cp -r --parents kernels test/simcuda/kernels "$again"
export GPREEMPT_CUDA_VENV="${GPREEMPT_CUDA_VENV:-$PWD/build/cuda-13.0.88}"
"$again/kernels/generate.sh"
"$again/test/simcuda/kernels/generate.sh"
for file in kernels/*.fatbin kernels/guard/guard.json test/simcuda/kernels/sim.cubin test/simcuda/kernels/sim.fatbin; do
	cmp "$file" "$again/$file" || {
		echo 'run make generate and commit the result' >&2
		exit 1
	}
done
