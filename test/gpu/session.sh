#!/usr/bin/env bash
# Runs plans of measurements on one or more GPUs at once, and ends by itself in time (README.md).
#
#	test/gpu/session.sh PLAN[,PLAN...] FOLDER [SECONDS]
#
# A line of a plan is: GPU SECONDS NAME COMMAND. Lines of one GPU run one after another, those of different GPUs at the
# same time, each GPU with its part of the processors. The GPUs of a plan follow those of the plan before it. A command finds PARTS (a
# folder of its own for partial results, which stay from call to call), JSON (a file for its result) and MINUTES (for --minutes)
# in its environment. It is asked to end after SECONDS, or when the session's SECONDS (default 560) are nearly over, and killed
# 10 s later. All that they wrote (below build/session) comes into FOLDER/session.tar.gz (in parts of 15 MiB where it is
# larger); FOLDER/table.txt is also printed last.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
usage() {
	echo "usage: test/gpu/session.sh PLAN[,PLAN...] FOLDER [SECONDS]" >&2
	exit 2
}
[ $# -ge 2 ] && [ $# -le 3 ] || usage
IFS=, read -ra plans <<<"$1"
folder=$2 seconds=${3:-560}
for plan in "${plans[@]}"; do
	[ -r "$plan" ] || {
		echo "$0: no plan $plan" >&2
		exit 2
	}
done
began=$SECONDS
packing=15 # seconds for the archive and the table
deadline=$((began + seconds - packing))
mkdir -p "$folder" || exit 1
folder=$(cd "$folder" && pwd)
work=${SESSION_WORK:-build/session}
mkdir -p "$work" || exit 1
work=$(cd "$work" && pwd)

export PATH="$PATH:/usr/local/nvidia/bin"
gpus=${SESSION_GPUS:-$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')}
[ "$gpus" -ge 1 ] 2>/dev/null || gpus=1

# How many GPUs a plan is for.
gpus_of() {
	awk '/^[[:space:]]*(#|$)/ { next } $1 >= gpus { gpus = $1 + 1 } END { print gpus + 0 }' "$1"
}

# The lines for a GPU, with their plan's name first; those for GPUs that are not there come after those that are.
lines_of() {
	local plan first=0
	for plan in "${plans[@]}"; do
		awk -v gpu="$1" -v gpus="$gpus" -v first="$first" -v name="$(basename "$plan" .plan)" '
			/^[[:space:]]*(#|$)/ { next }
			($1 + first) % gpus == gpu { print ($1 + first >= gpus) "\t" ++lines "\t" name " " $0 }' "$plan"
		first=$((first + $(gpus_of "$plan")))
	done | sort -s -n -k1,1 | cut -f3-
}

# The processors of a GPU's lane: an equal part of ours.
processors_of() {
	python3 - "$1" "$gpus" <<'END'
import os, sys
lane, lanes = int(sys.argv[1]), int(sys.argv[2])
ours = sorted(os.sched_getaffinity(0))
part = len(ours) // lanes
print(",".join(map(str, ours[lane * part:(lane + 1) * part] if part else ours)))
END
}

run_line() {
	local gpu=$1 limit=$2 name=$3 command=$4 status
	local left=$((deadline - SECONDS - 10))
	[ "$limit" -le "$left" ] || limit=$left
	if [ "$limit" -lt 1 ]; then
		printf '%s\t%s\t0\tnot begun\n' "$name" "$gpu" >>"$work/status"
		return
	fi
	local start=$SECONDS
	mkdir -p "$work/$name"
	PARTS="$work/$name" JSON="$work/$name.json" MINUTES=$(awk -v s="$limit" 'BEGIN { printf "%.2f", (s > 40 ? s - 20 : s / 2) / 60 }') \
		CUDA_VISIBLE_DEVICES=$gpu \
		timeout --kill-after=10 "$limit" bash -c "$command" >"$work/$name.txt" 2>"$work/$name.log" </dev/null
	status=$?
	printf '%s\t%s\t%s\t%s\n' "$name" "$gpu" $((SECONDS - start)) "$status" >>"$work/status"
	echo "$name: status $status after $((SECONDS - start)) s"
}

run_lane() {
	local gpu=$1 plan limit name command
	taskset -pc "$(processors_of "$gpu")" "$BASHPID" >/dev/null
	while read -r plan _ limit name command; do
		run_line "$gpu" "$limit" "$plan/$name" "$command"
	done < <(lines_of "$gpu")
}

# A line's table: what it printed, or what its partial results give.
table_of() {
	local name=$1
	if [ -s "$work/$name.txt" ]; then
		head -n 60 "$work/$name.txt"
	elif ! timeout 3 build/gpreempt bench report "$work/$name" 2>/dev/null; then
		tail -n 3 "$work/$name.log"
	fi | cut -c 1-200
}

pack() {
	rm -f "$folder"/session.tar.gz*
	if ! timeout "$packing" tar -czf "$folder/session.tar.gz" -C "$work" status "${names[@]}"; then
		echo "the archive is not whole"
	fi
	if [ "$(stat -c %s "$folder/session.tar.gz")" -gt $((15 << 20)) ]; then
		split -b 15m "$folder/session.tar.gz" "$folder/session.tar.gz." && rm "$folder/session.tar.gz"
	fi
}

names=()
for plan in "${plans[@]}"; do
	names+=("$(basename "$plan" .plan)")
	mkdir -p "$work/${names[-1]}"
done
rm -f "$work/status"
touch "$work/status"
lanes=()
for ((gpu = 0; gpu < gpus; gpu++)); do
	run_lane "$gpu" &
	lanes+=($!)
done
trap 'kill "${lanes[@]}" 2>/dev/null' EXIT
wait "${lanes[@]}"
trap - EXIT
failed=0
{
	while IFS=$'\t' read -r name gpu took status; do
		echo "== $name, GPU $gpu, $took s, status $status"
		[ "$status" = 0 ] || failed=1
		[ "$status" = "not begun" ] || table_of "$name"
		echo
	done <"$work/status"
	[ -s "$work/status" ] || echo "the plan has no lines"
	exit $failed
} >"$folder/table.txt" 2>&1 &
wait $!
failed=$?
pack
cat "$folder/table.txt"
exit $failed
