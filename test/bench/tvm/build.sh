#!/bin/sh
# Compiles the network of workload tvm, and gathers beside them what of TVM runs them, for the Python and the GPU of another
# machine. TVM and NVIDIA's compiler come from PyPI into virtual environments under the build folder.
#   test/bench/tvm/build.sh FOLDER
set -eu
folder=$1
cd "$(dirname "$0")/../../.."
version=0.27.0.post1 ffi=0.1.15.post2
arch=${TVM_ARCH:-sm_90} python=${TVM_PYTHON:-3.12}
venv=${GPREEMPT_TVM_VENV:-build/tvm-$version}
installed=$venv/installed-by-build-sh
pip="$venv/bin/pip --quiet --disable-pip-version-check --no-cache-dir"
if [ ! -e "$installed" ]; then
	python3 -m venv "$venv"
	$pip install apache-tvm==$version apache-tvm-ffi==$ffi
	touch "$installed"
fi
tools=$(kernels/cuda.sh)
rm -rf "$folder"
mkdir -p "$folder"
PATH=$tools:$PATH CUDA_HOME=$(dirname "$tools") "$venv/bin/python" test/bench/tvm/build.py "$folder" --cuda "$arch" \
	--libraries "$PWD/build/sim/libcuda.so.1" "$(dirname "$tools")/lib/libcudart.so.13"
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
$pip download --no-deps --only-binary :all: --implementation cp --python-version "$python" --platform manylinux_2_28_x86_64 \
	--platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --dest "$fresh" apache-tvm-ffi==$ffi
TVM_USE_RUNTIME_LIB=1 "$venv/bin/python" test/bench/tvm/gather.py "$folder/runtime" "$fresh"/*.whl
du -sh "$folder" | sed 's/\t.*/: the size of what has to be carried/'
