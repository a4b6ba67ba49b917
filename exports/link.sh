#!/usr/bin/env bash
# Links the library, Go's part with the C archives beside it, for the compiler CC with CGO_CFLAGS.
#   exports/link.sh LIBRARY EXPORTS VERSION [FLAGS of Go's linker]
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
folder=$(cd "$(dirname "$1")" && pwd)
# Functions that the linker puts ours in the place of, __wrap_NAME: libc's, and those of Go's package cgo by which its runtime makes threads
# and maps memory (go_runtime.c, go_memory.c). The linker fails where Go has one of them no more (go_runtime.ld).
wrapped=(sigaction x_cgo_init x_cgo_mmap x_cgo_sys_thread_create x_cgo_thread_start)
linker="-Wl,--version-script=$root/$2 -Wl,-T,$root/exports/go_runtime.ld ${wrapped[*]/#/-Wl,--wrap=} -Wl,-z,nodelete -Wl,--build-id=sha1"
"$root/exports/_runtime/overlay.sh" "$folder/overlay.json"
rm -f "$1" # Go would keep it if only the linker's scripts have changed
: "${CGO_CFLAGS:=}"
sanitizer=$(grep -oE -- '-fsanitize=\w+' <<<"$CGO_CFLAGS" || true)
export CGO_ENABLED=1 CGO_CFLAGS CGO_LDFLAGS="$sanitizer $folder/exports.a $folder/core.a"
# The tag gpreempt_dist tells Go's files not to name the archives.
"${GO:-go}" build -C "$root" -buildmode=c-shared -trimpath -buildvcs=false -tags gpreempt_dist,netgo -overlay "$folder/overlay.json" \
	-ldflags "${4-} -X \"main.version=@(#)libgpreempt.so($3)\" -extldflags \"$linker\"" -o "$folder/$(basename "$1")" ./shim
rm -f "${1%.so}.h"
