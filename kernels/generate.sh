#!/bin/sh
# generate.sh [folder]: compiles every kernels/*.cu to a .fatbin in the folder. The default is to put it beside the
# source, where it is committed; needed only where a .cu changes. The same compiler gives the same bytes, which CI checks.
#   NVCC=/path/to/nvcc   use this compiler; it must be of the version below
# Without NVCC the compiler comes from PyPI into a virtual environment under the build folder.
set -eu
out=$(cd "${1:-$(dirname "$0")}" && pwd)
cd "$(dirname "$0")"
version=13.0.88

if [ -z "${NVCC:-}" ]; then
	venv=${GPREEMPT_CUDA_VENV:-$PWD/../build/cuda-$version}
	NVCC=$venv/nvcc
	if [ ! -x "$NVCC" ]; then
		python3 -m venv "$venv"
		"$venv/bin/pip" install --quiet --disable-pip-version-check \
			nvidia-cuda-nvcc==$version nvidia-cuda-crt==$version nvidia-nvvm==$version \
			nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
		ln -s "$(find "$venv" -path '*/bin/nvcc' | head -n 1)" "$NVCC"
	fi
	NVCC=$(readlink -f "$NVCC")
fi
if ! "$NVCC" --version | grep -q "V$version\$"; then
	echo "generate.sh: $NVCC is not version $version" >&2
	exit 1
fi

targets="-gencode arch=compute_80,code=[sm_80,compute_80]"
for sm in 86 89 90 100 120; do
	targets="$targets -gencode arch=compute_$sm,code=sm_$sm"
done
for source in *.cu; do
	# shellcheck disable=SC2086 # targets are several words
	"$NVCC" -fatbin -O3 -std=c++17 --compress-mode=size $targets -o "$out/${source%.cu}.fatbin" "$source"
done
