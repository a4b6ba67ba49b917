#!/usr/bin/env bash
# Runs every fuzzer of the tree on so many inputs, beside its committed corpus, and fails where one ran on fewer.
#   test/fuzz.sh INPUTS
set -euo pipefail
if [ $# -ne 1 ] || [[ ! $1 =~ ^[1-9][0-9]*$ ]]; then
	echo "usage: $0 INPUTS" >&2
	exit 2
fi
inputs=$1
cd "$(dirname "$0")/.."
fuzzers=$(grep -rEo '^func Fuzz\w+' --include='*_test.go' --exclude-dir=build . | sed -E 's|^\./(.*)/[^/]*:func (.*)|\1 \2|' | sort)
if [ -z "$fuzzers" ]; then
	echo "$0: there are no fuzzers" >&2
	exit 1
fi
while read -r package name; do
	# Without a bound the minimisation of the first inputs that reach new code, a minute for each, leaves no time for others.
	if ! output=$(./test/go.sh test -run '^$' -fuzz "^$name\$" -fuzztime "${inputs}x" -fuzzminimizetime 10x "./$package" 2>&1 </dev/null); then
		printf '%s\n' "$output" >&2
		echo "$0: $name of $package failed" >&2
		exit 1
	fi
	ran=$(sed -nE 's/.*execs: ([0-9]+) .*/\1/p' <<<"$output" | tail -n 1)
	if [ "${ran:-0}" -lt "$inputs" ]; then
		printf '%s\n' "$output" >&2
		echo "$0: $name of $package ran on ${ran:-0} of $inputs inputs" >&2
		exit 1
	fi
	echo "$name of $package: $ran inputs"
done <<<"$fuzzers"
