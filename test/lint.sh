#!/usr/bin/env bash
# Runs the linters, one configuration each, and fails where clang-format would change a file.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/build/tools/lint/bin
export GOLANGCI_LINT_CACHE=$PWD/build/tools/lint/cache
for module in $(git ls-files go.mod '*/go.mod'); do
	(cd "$(dirname "$module")" && "$bin/golangci-lint" run ./...)
done
mapfile -t shell < <(git ls-files .ci/run '*.sh')
mapfile -t python < <(git ls-files '*.py')
mapfile -t c < <(git ls-files '*.c' '*.h' '*.cu')
"$bin/shellcheck" "${shell[@]}"
"$bin/ruff" check --no-cache --quiet "${python[@]}"
"$bin/clang-format" --dry-run --Werror "${c[@]}"
git ls-files -z '*.md' '*.c' '*.h' '*.cu' '*.go' '*.py' | grep -zv testdata/ | xargs -0 "$bin/vale" --output line
