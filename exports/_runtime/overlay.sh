#!/usr/bin/env bash
# Writes an overlay for go build, by which the library gets a runtime of Go's that is edited: what is a convenience in a Go program would
# change the program that the library is loaded into.
#   exports/_runtime/overlay.sh FILE
# The runtime always unblocks some signals in its threads. A program that blocks SIGCHLD in all its threads, to wait for it with sigwait or
# signalfd, would lose it to one of them. So would one that waits for SIGPROF, SIGSTKFLT or signal 34, which is SIGRTMIN of glibc: Go unblocks
# that for musl, where it is one of the C library's own, also in threads that end. A processor of the scheduler's does not wait for a thread
# that cannot be made (threads.go). The runtime's poller, which any timer starts, ends the process when its descriptors are gone, and daemons
# close all that they do not know: ours has none (poller.go). The runtime calls no C for any of this. Where it calls C, the linker puts ours
# in its place (../link.sh).
set -euo pipefail
own=$(cd "$(dirname "$0")" && pwd)
go=${GO:-go}
runtime=$("$go" env GOROOT)/src/runtime
mkdir -p "$(dirname "$1")/_overlay" # a name that ./... passes over
edited=$(cd "$(dirname "$1")/_overlay" && pwd)
replaced=()

another_go() {
	echo "$0: the library cannot be built with $("$go" env GOVERSION): $runtime/$1 is not as expected" >&2
	exit 1
}

# edit FILE LINES EXPRESSION: LINES go or come.
edit() {
	sed -E "$3" "$runtime/$1" >"$edited/$1"
	[ "$(diff "$runtime/$1" "$edited/$1" | grep -c '^[<>]')" = "$2" ] || another_go "$1"
	replaced+=("\"$runtime/$1\": \"$edited/$1\"")
}

edit signal_unix.go 1 '/^\t\tsigdelset\(&res, 34\)$/d'
edit sigtab_linux_generic.go 8 '/"(SIG(CHLD|PROF|STKFLT):|signal 34")/s/ \+ _SigUnblock//'
edit proc.go 4 's/^\tmp := allocm\(pp, fn, id\)$/\tif idleRuns(fn, pp, id) {\n\t\treleasem(getg().m)\n\t\treturn\n\t}\n&/'
[ -f "$runtime/netpoll_epoll.go" ] || another_go netpoll_epoll.go
replaced+=("\"$runtime/gpreempt_threads.go\": \"$own/threads.go\"" "\"$runtime/netpoll_epoll.go\": \"$own/poller.go\"")
(
	IFS=,
	echo "{\"Replace\": {${replaced[*]}}}"
) >"$1"
