#!/bin/sh
# Prints the folder of the pinned CUDA compiler and disassemblers; on first use they are installed from
# PyPI into a virtual environment under the build folder (or GPREEMPT_CUDA_VENV). ptxas of CUDA 12, for
# tests with cubins of its generation, is in ../../cuda_nvcc/bin from there.
set -eu
version=13.0.88
venv=${GPREEMPT_CUDA_VENV:-$(cd "$(dirname "$0")" && pwd)/../build/cuda-$version}

bin() { find "$venv" -path '*/bin/cuobjdump' 2>/dev/null | head -n 1; }
installed=$venv/installed-by-cuda-sh

if [ ! -e "$installed" ]; then
	python3 -m venv "$venv"
	# PyPI has no disassemblers of 13.0; those of 13.2 read what 13.0 makes.
	"$venv/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check \
		nvidia-cuda-nvcc==$version nvidia-cuda-crt==$version nvidia-nvvm==$version \
		nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 nvidia-cuda-nvdisasm==13.2.51 \
		nvidia-cuda-cuobjdump==13.2.51 nvidia-cuda-nvcc-cu12==12.8.93 >&2
	touch "$installed"
fi
readlink -f "$(dirname "$(bin)")"
