#!/usr/bin/env bash
# Two programs that do not fit together: each wants 0.7 of the GPU's memory, in seven buffers, computes with all of it, and checks
# every byte. The argument says whether there is a GPU; without one, they run on the simulated driver.
set -euo pipefail
cd "$(dirname "$0")/.."
on_gpu=$1
rounds=5 # each is a kernel on every buffer
dir=$(mktemp -d)
program=$dir/memory
trap 'rm -rf "$dir"' EXIT
"${CC:-gcc}" -O2 -std=gnu11 -o "$program" test/e2e/testdata/memory.c -ldl -lpthread
printf 'mechanisms = ["swap"]\n[memory]\nturn_min_ms = 200\n' >"$dir/gpreempt.toml"

preload=$PWD/build/libgpreempt.so
environment=(GPREEMPT_CONFIG="$dir/gpreempt.toml" GPREEMPT_LOG=error)
if ! $on_gpu; then
	environment+=(LD_LIBRARY_PATH="$PWD/build/sim" SIMCUDA_DIR="$dir" SIMCUDA_MEMORY_MB=1000 SIMCUDA_CONTEXT_MB=50)
	printf '[segment]\ndirectory = "%s"\n' "$dir" >>"$dir/gpreempt.toml"
	preload+=:$PWD/build/sim/libcuda.so.1
fi

declare -A to from
# start NAME PRIORITY
start() {
	rm -f "$dir/$1.in" "$dir/$1.out"
	mkfifo "$dir/$1.in" "$dir/$1.out"
	env "${environment[@]}" LD_PRELOAD="$preload" GPREEMPT_PRIORITY="$2" \
		"$program" test/simcuda/kernels/sim.fatbin <"$dir/$1.in" >"$dir/$1.out" &
	# shellcheck disable=SC1083,SC2086 # not known to it: the shell puts the descriptors' numbers there
	exec {to[$1]}>"$dir/$1.in" {from[$1]}<"$dir/$1.out"
}

# tell NAME COMMAND: says it, and sets answer.
tell() {
	echo "$2" >&"${to[$1]}"
	read -r answer <&"${from[$1]}"
}

# fill NAME: the number of buffers that it got is in got.
fill() {
	for ((got = 0; got < 7; got++)); do
		tell "$1" "alloc memory $bytes"
		[ "${answer##* }" = 0 ] || return 0 # 2: out of memory
		tell "$1" "fill $got $got"
	done
}

# compute NAME: all rounds, then the check of every byte; what it says last goes to a file.
compute() {
	for ((round = 0; round < rounds; round++)); do
		for ((b = 0; b < 7; b++)); do
			tell "$1" "step $b 1"
		done
	done
	tell "$1" "check all"
	echo "$answer" >"$dir/$1"
}

pair() { # PRIORITY
	start first "$1"
	start second "$1"
	tell first info
	total=${answer##* }
	bytes=$((total / 10))
	fill first
	fill second
}

end() {
	# shellcheck disable=SC1083 # as above
	exec {to[first]}>&- {to[second]}>&-
	wait
}

pair off
echo "Two programs with $((7 * bytes >> 20)) MiB each, on a GPU with $((total >> 20)) MiB:"
echo "  without swap: the second one is out of memory after $((got * bytes >> 20)) MiB"
[ "$got" -lt 7 ] || { echo "demo: the second program should have been out of memory" >&2; exit 1; }
end

began=$(date +%s%3N)
pair be
[ "$got" = 7 ] || { echo "demo: the second program is out of memory with swap, too; is there host memory for what leaves?" >&2; exit 1; }
compute first &
one=$!
compute second &
wait "$one" "$!"
took=$(($(date +%s%3N) - began))
build/gpreempt top --once --json --config "$dir/gpreempt.toml" >"$dir/top"
# moved COUNTER: the sum of both programs'.
moved() { grep -o "\"$1\": *[0-9]*" "$dir/top" | awk -F: '{ sum += $2 } END { printf "%d", sum }'; }
went=$(moved out_bytes) came=$(moved in_bytes) times=$(moved evictions)
echo "  with swap: both finish, in $((took / 1000)).$((took / 100 % 10)) s;" \
	"$(cut -d' ' -f2- "$dir/first") and $(cut -d' ' -f2- "$dir/second") buffers are wrong;"
echo "    $((went >> 20)) MiB went out in $times evictions, $((came >> 20)) MiB came back"
[ "$(cat "$dir/first" "$dir/second" | sort -u)" = "wrong 0 of 7" ] || { echo "demo: a buffer is wrong" >&2; exit 1; }
end
