#!/bin/sh
# Compiles order.cu to the cubin that is committed beside it, for H100 and H200; needed only where it changes.
#   NVCC=/path/to/nvcc   as for kernels/generate.sh
set -eu
cd "$(dirname "$0")"
NVCC=${NVCC:-$(../../../../kernels/cuda.sh)/nvcc}

"$NVCC" -cubin -arch=sm_90 -O3 -std=c++17 -o order.cubin order.cu
