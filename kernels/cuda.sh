#!/bin/sh
# Prints the folder of the pinned CUDA compiler and disassemblers; on first use they are installed from
# PyPI into a virtual environment under the build folder (or GPREEMPT_CUDA_VENV). ptxas of CUDA 12, for
# tests with cubins of its generation, is in ../../cuda_nvcc/bin from there.
set -eu
version=13.0.88
venv=${GPREEMPT_CUDA_VENV:-$(cd "$(dirname "$0")" && pwd)/../build/cuda-$version}

bin() { find "$venv" -path '*/bin/cuobjdump' 2>/dev/null | head -n 1; }
installed=$venv/installed-by-cuda-sh

# PyPI has no disassemblers of 13.0; those of 13.5 read what 13.0 and later ones make.
packages="nvidia-cuda-nvcc==$version nvidia-cuda-crt==$version nvidia-nvvm==$version \
	nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 nvidia-cuda-nvdisasm==13.5.37 \
	nvidia-cuda-cuobjdump==13.5.37 nvidia-cuda-nvcc-cu12==12.8.93"

if [ "$(cat "$installed" 2>/dev/null)" != "$packages" ]; then
	python3 -m venv --clear "$venv"
	# shellcheck disable=SC2086 # several words
	"$venv/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check $packages >&2
	printf '%s\n' "$packages" >"$installed"
fi
readlink -f "$(dirname "$(bin)")"
