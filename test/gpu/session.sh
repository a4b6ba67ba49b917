#!/usr/bin/env bash
# Runs plans of measurements on one or more GPUs at once, and ends by itself in time (README.md).
#
#	test/gpu/session.sh PLAN[,PLAN...] FOLDER [SECONDS]
#	test/gpu/session.sh --next [PLAN...]      # which lines are open
#	test/gpu/session.sh --take ARCHIVE|PART...
#	test/gpu/session.sh --merge [FOLDER]      # results of finished lines into FOLDER, or test/bench/results and the documents
#
# A line of a plan is: GPU SECONDS NAME COMMAND. Lines of one GPU run one after another, those of different GPUs at the same time, each GPU
# with its part of the processors. The GPUs of a plan follow those of the plan before it. A command's environment has PARTS, a folder of its
# own for partial results, which stay from call to call. It has JSON (a file for its result) and MINUTES (for --minutes), and the wheels of
# the folder WHEELS, where that is set, on PYTHONPATH. It is asked to end after SECONDS, or when the session's SECONDS (default 560) are
# nearly over, and killed 10 s later. A line whose command ended with status 0 is finished, and not started again. The session packs all
# results (build/session/KIND/PLAN, KIND being the GPU's name) into FOLDER/session.tar.gz. The archive comes in parts of 15 MiB where it is
# larger. FOLDER/table.txt is also printed last. All of build/session is of one commit.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
export PATH="$PATH:/usr/local/nvidia/bin"
work=${SESSION_WORK:-build/session}
mkdir -p "$work" || exit 1
work=$(cd "$work" && pwd)
commit=${SESSION_COMMIT:-$(build/gpreempt-bench --version | sed 's/.* //')}
[ -n "$commit" ] || exit 1

usage() {
	echo "usage: test/gpu/session.sh PLAN[,PLAN...] FOLDER [SECONDS], or --next [PLAN...], --take ARCHIVE|PART..., --merge [FOLDER]" >&2
	exit 2
}

# The lines of a plan without comments.
lines() {
	awk '!/^[[:space:]]*(#|$)/' "$1"
}

# Whether the command of a line, KIND/PLAN/NAME, ended with status 0.
finished() {
	local status command
	{ IFS=$'\t' read -r status _ command <"$work/$1.status"; } 2>/dev/null && [ "$status" = 0 ] && [ "$command" = "$2" ]
}

# The commit that build/session is of; "" where it has nothing.
commit_there() {
	if [ -e "$work/commit" ]; then
		cat "$work/commit"
	elif [ -n "$(ls -A "$work")" ]; then
		echo "unknown commit"
	fi
}

# Prints the open lines of a plan, with what became of them; status 1 where there are none.
open_lines() {
	local kind=$1 plan=$2 gpu limit name command line state open=1
	while read -r gpu limit name command; do
		line=$kind/$(basename "$plan" .plan)/$name
		finished "$line" "$command" && continue
		open=0 state="not begun"
		[ ! -d "$work/$line" ] || state="cut off"
		[ ! -e "$work/$line.status" ] || state=$(awk -F '\t' '{ print "status " $1 " after " $2 " s" }' "$work/$line.status")
		printf '%s\t%s\t%s\t%s s\t%s\n' "$(basename "$plan" .plan)" "$name" "GPU $gpu" "$limit" "$state"
	done < <(lines "$plan")
	return $open
}

next() {
	[ $# -gt 0 ] || set -- test/gpu/plans/*.plan
	local folder folders=() kind plan there open
	there=$(commit_there)
	echo "${there:-$commit}"
	[ "${there:-$commit}" = "$commit" ] || echo "the build is of $commit: it needs another folder, or this one emptied"
	for folder in "$work"/*/; do
		[ ! -d "$folder" ] || folders+=("$(basename "$folder")")
	done
	for kind in "${folders[@]:-any GPU}"; do
		open=$(for plan in "$@"; do open_lines "$kind" "$plan"; done)
		awk -F '\t' -v kind="$kind" 'NF { print kind "\t" $0; lines++; seconds += $4 } END { printf "%s\t%d lines are open, at most %d s of one GPU\n", kind, lines, seconds }' <<<"$open"
	done
}

# Takes an archive into build/session. A line that is finished there and not in the archive stays unchanged.
take() {
	python3 - "$work" "$(commit_there)" "$commit" "$@" <<'END'
import gzip, io, os, re, shutil, sys, tarfile, tempfile, zlib

work, there, build, *parts = sys.argv[1:]
limit = 1 << 30  # bytes; more is no session's


def refuse(why):
    sys.exit(f"{', '.join(parts)}: {why}; nothing was taken")


def is_name(name):
    return all(re.fullmatch(r"[^\x00-\x1f\x7f\\]+", part) and part not in (".", "..") for part in name.split("/"))


files, size = {}, 0
try:
    packed = b"".join(open(part, "rb").read() for part in parts)
    with tarfile.open(fileobj=gzip.GzipFile(fileobj=io.BytesIO(packed)), mode="r|") as archive:
        for member in archive:
            name = member.name
            if not is_name(name):
                refuse(f"it has {name!r}, which is no name below a folder")
            if member.isdir():
                continue
            if not member.isreg():
                print(f"left out: {name}, which is no file")
                continue
            size += member.size
            if size > limit:
                refuse(f"it has more than {limit >> 20} MiB")
            files[name] = archive.extractfile(member).read()
        while archive.fileobj.read(1 << 20):  # to the checksum
            pass
except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
    refuse(f"it is not whole, or no archive ({error})")

of = files.get("commit", b"").decode(errors="replace").strip()
if not of:
    refuse("it names no commit")
if of != (there or build):
    refuse(f"it is of {of}, " + (f"{work} of {there}" if there else f"the build of {build}"))

ended = ".status"
kept = []
for name in [name for name in files if name.endswith(ended) and not files[name].startswith(b"0\t")]:
    try:
        with open(os.path.join(work, name), "rb") as status:
            if status.read(2) == b"0\t":
                kept.append(name.removesuffix(ended))
    except FileNotFoundError:
        pass
folder = tempfile.mkdtemp(prefix=".taken-", dir=work)
try:
    taken = [name for name in files if not name.startswith(tuple(line + after for line in kept for after in "/."))]
    taken.sort(key=lambda name: name.endswith(ended))  # a line is finished when its results are there
    for i, name in enumerate(taken):
        with open(os.path.join(folder, str(i)), "wb") as file:
            file.write(files[name])
    for i, name in enumerate(taken):
        os.makedirs(os.path.dirname(os.path.join(work, name)), exist_ok=True)
        os.replace(os.path.join(folder, str(i)), os.path.join(work, name))
finally:
    shutil.rmtree(folder)
for line in kept:
    print(f"{line} stays: it is finished, and in the archive it is not")
print(f"took {len(taken)} files of {of}")
END
}

merge() {
	local kind status line folders failed=0
	for kind in "$work"/*/; do
		folders=()
		for status in "$kind"*/*.status; do
			[ -e "$status" ] && [ "$(cut -f 1 "$status")" = 0 ] || continue
			line=${status%.status}
			if compgen -G "$line/*.json" >/dev/null; then
				folders+=("$line")
			else
				echo "${line#"$work/"}: no suite's, left out"
			fi
		done
		[ ${#folders[@]} = 0 ] || build/gpreempt-bench report --into "${1:-test/bench/results}" "${folders[@]}" || failed=1
	done
	[ $# -gt 0 ] || make readme || failed=1
	return "$failed"
}

case ${1:-} in
--next)
	shift
	next "$@"
	exit
	;;
--take)
	shift
	[ $# -ge 1 ] || usage
	take "$@"
	exit
	;;
--merge)
	shift
	merge "$@"
	exit
	;;
esac
[ $# -ge 2 ] && [ $# -le 3 ] || usage
IFS=, read -ra plans <<<"$1"
folder=$2 seconds=${3:-560}
for plan in "${plans[@]}"; do
	[ -r "$plan" ] || {
		echo "$0: no plan $plan" >&2
		exit 2
	}
done
there=$(commit_there)
if [ "${there:-$commit}" != "$commit" ]; then
	echo "$0: $work is of $there, the build of $commit: empty it, or name another folder in SESSION_WORK" >&2
	exit 2
fi
echo "$commit" >"$work/commit" || exit 1
began=$SECONDS
packing=15 # seconds for the archive and the table
deadline=$((began + seconds - packing))
mkdir -p "$folder" || exit 1
folder=$(cd "$folder" && pwd)
lanes=() wheels=
trap '[ ${#lanes[@]} = 0 ] || kill "${lanes[@]}" 2>/dev/null; [ -z "$wheels" ] || rm -rf "$wheels"' EXIT
if [ -n "${WHEELS:-}" ]; then
	wheels=$(mktemp -d) || exit 1
	python3 -m pip install --quiet --disable-pip-version-check --no-index --no-deps --target "$wheels" "$WHEELS"/*.whl || exit 1
	export PYTHONPATH=$wheels${PYTHONPATH:+:$PYTHONPATH}
fi

kinds=$(timeout 30 nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null)
gpus=${SESSION_GPUS:-$(grep -c . <<<"$kinds")}
[ "$gpus" -ge 1 ] 2>/dev/null || gpus=1
kind=$(head -n 1 <<<"$kinds" | tr -cs 'A-Za-z0-9\n' -)
kind=${kind:-none}

# How many GPUs a plan is for: none, where all is finished.
gpus_of() {
	open_lines "$kind" "$1" >/dev/null || set -- /dev/null
	lines "$1" | awk '$1 >= gpus { gpus = $1 + 1 } END { print gpus + 0 }'
}

# The first GPU of each plan, as they are before a lane begins: what ends meanwhile moves none.
firsts=() first=0
for plan in "${plans[@]}"; do
	firsts+=("$first")
	first=$((first + $(gpus_of "$plan")))
done

# The lines for a GPU, with their plan's name first; those for GPUs that are not there come after those that are.
lines_of() {
	local i
	for i in "${!plans[@]}"; do
		lines "${plans[i]}" | awk -v gpu="$1" -v gpus="$gpus" -v first="${firsts[i]}" -v name="$kind/$(basename "${plans[i]}" .plan)" '
			($1 + first) % gpus == gpu { print ($1 + first >= gpus) "\t" ++lines "\t" name " " $0 }'
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
	if finished "$name" "$command"; then
		printf '%s\t%s\t0\tfinished before\n' "$name" "$gpu" >>"$work/status"
		return
	fi
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
	printf '%s\t%s\t%s\n' "$status" $((SECONDS - start)) "$command" >"$work/$name.status.new" && mv "$work/$name.status.new" "$work/$name.status"
	echo "$name: status $status after $((SECONDS - start)) s"
}

run_lane() {
	local gpu=$1 plan limit name command
	taskset -pc "$(processors_of "$gpu")" "$BASHPID" >/dev/null
	while read -r plan _ limit name command; do
		run_line "$gpu" "$limit" "$plan/$name" "$command"
	done < <(lines_of "$gpu")
}

# A line's table: its output, or the table of its partial results.
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
	if ! timeout "$packing" tar -czf "$folder/session.tar.gz" -C "$work" commit status "${names[@]}"; then
		echo "the archive is not whole"
	fi
	if [ "$(stat -c %s "$folder/session.tar.gz")" -gt $((15 << 20)) ]; then
		split -b 15m "$folder/session.tar.gz" "$folder/session.tar.gz." && rm "$folder/session.tar.gz"
	fi
}

names=()
for plan in "${plans[@]}"; do
	names+=("$kind/$(basename "$plan" .plan)")
	mkdir -p "$work/${names[-1]}"
done
rm -f "$work/status"
touch "$work/status"
for ((gpu = 0; gpu < gpus; gpu++)); do
	run_lane "$gpu" &
	lanes+=($!)
done
wait "${lanes[@]}"
lanes=()
failed=0
{
	while IFS=$'\t' read -r name gpu took status; do
		echo "== $name, GPU $gpu, $took s, status $status"
		case $status in
		0) table_of "$name" ;;
		"finished before") ;;
		"not begun") failed=1 ;;
		*) failed=1 && table_of "$name" ;;
		esac
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
