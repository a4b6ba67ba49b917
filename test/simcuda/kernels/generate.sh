#!/bin/sh
# Compiles sim.cu to the images that are committed beside it; needed only where it changes.
#   NVCC=/path/to/nvcc   as for kernels/generate.sh
set -eu
cd "$(dirname "$0")"
NVCC=${NVCC:-$(../../../kernels/cuda.sh)/nvcc}

"$NVCC" -cubin -arch=sm_90 -O3 -std=c++17 -o sim.cubin sim.cu
# One entry is as the simulated driver reads it, the others it passes over.
"$NVCC" -fatbin -O3 -std=c++17 --compress-mode=none -gencode 'arch=compute_80,code=[sm_80,compute_80]' \
	-gencode arch=compute_90,code=sm_90 -o sim.fatbin sim.cu
