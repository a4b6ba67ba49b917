#!/bin/sh
# Compiles every .cu here to the .fatbin that is committed beside it, and makes guard/guard.json; needed only
# where their sources change. The same compiler gives the same bytes, which CI checks.
#   NVCC=/path/to/nvcc   use this compiler; it must be of the version below
# Without NVCC the compiler comes from PyPI (cuda.sh).
set -eu
cd "$(dirname "$0")"
version=13.0.88

NVCC=$(readlink -f "${NVCC:-$(./cuda.sh)/nvcc}")
export NVCC
if ! "$NVCC" --version | grep -q "V$version\$"; then
	echo "generate.sh: $NVCC is not version $version" >&2
	exit 1
fi

architectures=$(./architectures.sh)
targets=
for sm in $architectures; do
	if [ -z "$targets" ]; then # the oldest one's PTX goes with it
		targets="-gencode arch=compute_$sm,code=[sm_$sm,compute_$sm]"
	else
		targets="$targets -gencode arch=compute_$sm,code=sm_$sm"
	fi
done
for source in *.cu; do
	# shellcheck disable=SC2086 # targets are several words
	"$NVCC" -fatbin -O3 -std=c++17 --compress-mode=size $targets -o "${source%.cu}.fatbin" "$source"
done
# shellcheck disable=SC2086 # architectures are several words
(cd guard && ${GO:-go} run ./generate $architectures)
