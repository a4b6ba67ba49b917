#!/usr/bin/env bash
# Everything that is measured on a GPU: the foundation suite, PyTorch co-location and the identity of
# results, within about 9 minutes. Tables come last; result files go to OUT, what was said to OUT/suite.log.
#   test/bench/gpu_suite.sh LIBRARY_DIR OUT     LIBRARY_DIR has gpreempt and libgpreempt.so
# GPREEMPT_PARTS picks parts: "foundation pytorch identity unprivileged" (default); hints, http, nvtx, within about 9
# minutes; of block-level preemption blp-fire, blp-cost, blp-mps, blp-stream, within about 9 minutes; stalls, which goes on
# where it was when it is called again with the same OUT, 9 minutes at a time, about half an hour in all.
set -uo pipefail
if [ $# -ne 2 ]; then
	echo "usage: $0 LIBRARY_DIR OUT" >&2
	exit 2
fi
library_dir=$(cd "$1" && pwd) || exit 2
mkdir -p "$2"
out=$(cd "$2" && pwd)
torch=$(cd "$(dirname "$0")" && pwd)/torch
library=$library_dir/libgpreempt.so
parts=${GPREEMPT_PARTS:-foundation pytorch identity unprivileged}
gpu=${GPREEMPT_GPU:-h200}
GPREEMPT_COMMIT=$("$library_dir/gpreempt" --version | sed 's/.* //')
export GPREEMPT_COMMIT PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
failed=0

# part NAME SECONDS COMMAND...: a part that outlives its time is killed, its children too, and the rest
# goes on. NAME.MORE belongs to part NAME.
names=()
part() {
	local name=$1 seconds=$2 began=$SECONDS status
	shift 2
	case " $parts " in *" ${name%.*} "*) ;; *) return ;; esac
	names+=("$name")
	timeout --kill-after=10 "$seconds" "$@" >"$logs/$name.out" 2>"$logs/$name.err" </dev/null
	status=$?
	printf '%s: status %d, %d s\n' "$name" "$status" $((SECONDS - began))
	[ "$status" -eq 0 ] || failed=1
	if [ -s "$logs/$name.err" ]; then
		tail -n 40 "$logs/$name.err" | cut -c1-300
	fi
}

part foundation 300 "$library_dir/gpreempt-bench" --suite foundation --library "$library" \
	--json "$out/$gpu-foundation.json"
part pytorch 240 python3 "$torch/run.py" --library "$library" --json "$out/$gpu-pytorch.json"
part identity 180 python3 "$torch/identity.py" --library "$library" --limit 120 --jobs 12 \
	--json "$out/$gpu-identity.json"

# The same as a user without privileges (65534, nobody), where this is root.
if [ "$(id -u)" -eq 0 ] && [[ " $parts " == *" unprivileged "* ]]; then
	nobody=$(mktemp -d)
	chmod 777 "$nobody"
	cp "$library_dir/gpreempt-bench" "$library" "$nobody"
	part unprivileged 60 setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs --bounding-set -all \
		env HOME=/nonexistent "$nobody/gpreempt-bench" --suite quick --library "$nobody/libgpreempt.so" \
		--json "$nobody/$gpu-unprivileged.json"
	cp "$nobody/$gpu-unprivileged.json" "$out" || failed=1
	rm -rf "$nobody"
fi

part hints 340 "$library_dir/gpreempt-bench" --suite hints --library "$library" --json "$out/$gpu-hints.json"
part http 240 python3 "$torch/http_run.py" --library "$library" --top "$library_dir/gpreempt" \
	--json "$out/$gpu-http.json"
part nvtx 90 python3 "$torch/nvtx_run.py" --library "$library" --json "$out/$gpu-nvtx.json"

part blp-fire 240 python3 "$torch/fire.py" --library "$library" --command "$library_dir/gpreempt" \
	--logs "$logs/blp-fire" --json "$out/$gpu-blp-fire.json"
part blp-cost 240 python3 "$torch/cost.py" --library "$library" --command "$library_dir/gpreempt" \
	--logs "$logs/blp-cost" --json "$out/$gpu-blp-cost.json"
part blp-mps 100 "$library_dir/gpreempt-bench" --suite blp-mps --library "$library" --json "$out/$gpu-blp-mps.json"
part blp-mps.pytorch 200 python3 "$torch/mps_run.py" --library "$library" --command "$library_dir/gpreempt" \
	--logs "$logs/blp-mps.pytorch" --json "$out/$gpu-blp-mps-pytorch.json"
part blp-stream 100 "$library_dir/gpreempt-bench" --suite blp-stream --library "$library" \
	--json "$out/$gpu-blp-stream.json"

part stalls 560 "$library_dir/gpreempt-bench" --suite stalls --library "$library" --minutes 8.7 --out "$out/stalls" \
	--json "$out/$gpu-stalls.json"

for name in $parts; do
	case " ${names[*]} unprivileged " in
	*" $name "*) ;;
	*)
		echo "$0: there is no part $name" >&2
		failed=1
		;;
	esac
done
for name in "${names[@]}"; do
	printf '\n== %s\n' "$name"
	cat "$logs/$name.out"
	tail -n 1000 "$logs/$name".[oe]* >>"$logs/log"
	if [ -d "$logs/$name" ]; then
		tail -n 100 "$logs/$name"/* >>"$logs/log"
	fi
done
cp "$logs/log" "$out/suite.log"
exit "$failed"
