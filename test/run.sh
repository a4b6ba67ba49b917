#!/usr/bin/env bash
# Runs a part of make test, or tests of packages as these do.
#   test/run.sh PART | [FLAG...] ./PACKAGE... [FLAG...]
# Tests of packages whose concurrency is Go's own run under the race detector. Most tests wait more than they compute, so more run at once than
# there are cores. No part has a low priority: on a busy machine it would never end. Each wait of a test has a bound of its own; the packages'
# is for a machine that is slow and busy. A make that a test runs has nothing of ours. With GPREEMPT_DEEP, which .ci/run sets, fuzzers run, and C
# tests under all sanitizers. More programs are rewritten, for all architectures, random disturbances come more often, and the bench runs under
# the race detector, too. Large memory has contents in every byte then, and tests run which a busy machine fails: fewer of these run at once.
set -euo pipefail
cd "$(dirname "$0")/.."
export GO=${GO:-go}
race=(./preempt/... ./patch/cache ./cmd/gpreempt ./broker/page)
compute=(./test/units ./patch ./preempt/agent ./test/models)
modules=(./... ./cluster/... ./test/bench/...)
bound=1h e2e_at_once=6 parts_at_once=3 # one part of three waits most of its time
[ -z "${GPREEMPT_CI-}" ] || bound=40m
[ -z "${GPREEMPT_DEEP-}" ] || e2e_at_once=4 parts_at_once=2 race+=(./test/bench)

go_test() {
	# shellcheck disable=SC2086 # several flags
	env -u MAKEFLAGS -u MAKEOVERRIDES ./test/go.sh test -count=1 -vet=off -timeout $bound -p 3 -parallel 4 ${GO_TEST_FLAGS-} "$@"
}

# The packages whose tests make test runs, but for some; those in test/ come first, since they take the longest. The others need large modules,
# which take minutes to compile: make lint looks at these.
tested() {
	./test/go.sh list "${modules[@]}" | grep -vxF "$(./test/go.sh list ./cluster/dist "$@")" | sort -r | sed 's#^github.com/gpreempt/gpreempt/\?#./#'
}

with_tools() { ./test/tools.sh ./test/run.sh "$@"; }

case ${1-} in
test) ./test/tools.sh env -u MAKEFLAGS -u MAKELEVEL "$GO" run ./test/suite -at-once "$parts_at_once" e2e compute race unit ${GPREEMPT_DEEP:+fuzz} glibc ;;
e2e) with_tools ./test/e2e -parallel $e2e_at_once ;;
vet)
	unformatted=$(find . -path ./build -prune -o -name '*.go' -print0 | xargs -0 gofmt -l)
	if [ -n "$unformatted" ]; then
		echo "gofmt would change: $unformatted" >&2
		exit 1
	fi
	mapfile -t packages < <(tested)
	./test/go.sh vet "${packages[@]}"
	;;
compute) with_tools "${compute[@]}" ;;
race) go_test -race "${race[@]}" ;;
unit)
	mapfile -t packages < <(tested "${race[@]}" "${compute[@]}" ./test/e2e)
	with_tools -p 6 "${packages[@]}" # it comes last, and waits most of its time
	;;
fuzz) ./test/fuzz.sh "${FUZZ_INPUTS:-20000}" ;;
sanitize) # what a sanitizer reports in any process fails the test; test/e2e/sanitizer_test.go says which tests do not run, and why
	status=0
	for sanitizer in thread address; do
		GPREEMPT_SANITIZER=$sanitizer go_test -run "${SANITIZE_TESTS:-.}" ./test/e2e || status=1
	done
	exit $status
	;;
generator) GPREEMPT_GENERATOR_TIME=${TIME:-1h} GPREEMPT_GENERATOR_SEED=${SEED-} "$GO" test -count=1 -vet=off -timeout 0 -v -run '^TestGeneratedPrograms$' ./test/e2e ;;
kills) GPREEMPT_HELPER_KILLS=${KILLS:-1000} "$GO" test -count=1 -vet=off -timeout 0 -v -run '^TestHelpersKilledAtRandom$' ./test/e2e ;;
-* | ./*) go_test "$@" ;;
*)
	sed -n '2,3s/^# //p' "$0" >&2
	exit 2
	;;
esac
