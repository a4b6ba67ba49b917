#!/bin/sh
# Fails where the committed GPU code is not what the pinned compiler makes of its source.
set -eu
cd "$(dirname "$0")/.."
./generate.sh
git diff --exit-code -- '*.fatbin' guard/guard.json || { echo "check.sh: committed GPU code differs from its source: run make generate" >&2; exit 1; }
