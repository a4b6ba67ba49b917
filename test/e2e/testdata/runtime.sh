#!/bin/sh
# Prints the path of NVIDIA's CUDA runtime 11.1, which PyPI has inside another project's package of 1 MB. It is kept under
# the build folder.
set -eu
folder=$(cd "$(dirname "$0")/../../.." && pwd)/build/cudart-11.1
library() { find "$folder" -name 'libcudart-*.so.11.1.*' 2>/dev/null; }
if [ -z "$(library)" ]; then
	fresh=$(mktemp -d)
	trap 'rm -rf "$fresh"' EXIT
	python3 -m pip download --quiet --no-cache-dir --disable-pip-version-check --no-deps --only-binary :all: --implementation cp \
		--python-version 39 --platform manylinux2014_x86_64 --dest "$fresh" cumm-cu111==0.2.9 >&2
	mkdir -p "$folder"
	python3 -m zipfile -e "$fresh"/*.whl "$fresh/unpacked"
	cp "$fresh"/unpacked/cumm_cu111.libs/libcudart-*.so.11.1.* "$folder"
fi
library
