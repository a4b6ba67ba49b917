#!/usr/bin/env bash
# Measures all that docs/results.md shows, on a machine with a GPU (about 40 minutes), and writes its tables and plots. A suite that lacks cases
# which the committed file of this kind of GPU has leaves the figures that are there. Interrupted, it goes on where it was.
#   RESULT_SUITES=... PAPER_FLAGS=... test/bench/results.sh
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
results=build/results
mkdir -p "$results"
for suite in ${RESULT_SUITES:-foundation identity blp-fire blp-cost blp-mps blp-stream paper}; do
	flags=
	[ "$suite" != paper ] || flags=${PAPER_FLAGS:---seconds 1.2 --repeats 2}
	# shellcheck disable=SC2086 # several words
	build/gpreempt-bench --suite "$suite" $flags --out "$results"
	status=$?
	[ $status -lt 128 ] || exit $status
done
build/gpreempt-bench report --into test/bench/results "$results"
make readme
