#!/usr/bin/env bash
# A served model beside training: how fast each is alone, as the driver shares the GPU, and under gpreempt without an objective and with two.
# Both programs are stand-ins that run on the simulated driver alone.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly token_ms=5 seconds=4
dir=$(mktemp -d)
end() {
	exec 2>/dev/null # the shell would say of each program that it was terminated
	for group in $(jobs -p); do kill -- "-$group" 2>/dev/null || true; done
	wait
	rm -rf "$dir"
}
trap end EXIT
set -m # each program is a group of processes, which the trap ends
"${CC:-gcc}" -O2 -std=gnu11 -o "$dir/engine" test/e2e/testdata/engine.c -ldl -lpthread
printf '[segment]\ndirectory = "%s"\n' "$dir" >"$dir/gpreempt.toml"
environment=(GPREEMPT_CONFIG="$dir/gpreempt.toml" GPREEMPT_LOG=error LD_LIBRARY_PATH="$PWD/build/sim" SIMCUDA_DIR="$dir")
environment+=(LD_PRELOAD="$PWD/build/libgpreempt.so:$PWD/build/sim/libcuda.so.1")

# run NAME PRIORITY OBJECTIVE STEP_US: for the time of a row, in the background; its steps a second go to a file.
run() {
	{
		sleep $seconds | env "${environment[@]}" GPREEMPT_PRIORITY="$2" GPREEMPT_OBJECTIVE="$3" "$dir/engine" "$4" sync |
			awk -v s=$seconds '$1 == "steps" { print $2 / s }' >"$dir/$1"
	} &
}

# done_with NAME...: waits for programs.
done_with() {
	wait
	for name; do
		[ -s "$dir/$name" ] || { echo "demo: the $name ended early" >&2; exit 1; }
	done
}

# row TEXT PRIORITY_OF_SERVER PRIORITY_OF_TRAINING [OBJECTIVE]
row() {
	run server "$2" "${4-}" $((token_ms * 1000))
	run training "$3" "" 1000
	done_with server training
	awk -v text="$1" -v alone="$server" -v training="$training" '
		FNR == NR { tokens = $1; next }
		{ printf "  %-27s %8.0f %12.1f x %22.2f x\n", text, tokens, alone / tokens, $1 / training }' "$dir/server" "$dir/training"
}

echo "A served model that makes a token in $token_ms ms, beside training: about half a minute."
run server off "" $((token_ms * 1000))
done_with server
server=$(cat "$dir/server")
run training off "" 1000
done_with training
training=$(cat "$dir/training")
{
	row "default time slicing" off off
	row "gpreempt, no objective" lc be
	row "gpreempt, at most 10 ms" lc be step=10ms
	row "gpreempt, at most 20 ms" lc be step=20ms
} >"$dir/table"
echo
# An objective that is not held, or lends nothing, tells of the machine: an engine's threads got no processor in time.
if awk '/no objective/ { none = $(NF - 1) } /most 10 ms/ { held = 1000 / $6 <= 10.5; lent = $(NF - 1) > none } END { exit !(held && lent) }' "$dir/table"; then
	echo "Look at \"training\": it gets what the objective leaves, and tokens keep to it."
	echo
	echo "                              tokens/s   time of one   training, of alone"
	printf '  %-27s %8.0f %12.1f x\n' "alone" "$server" 1
	cat "$dir/table"
else
	echo "This machine is too busy to judge: $(cut -d' ' -f1 /proc/loadavg) programs want its $(nproc) processors."
fi
