#!/usr/bin/env bash
# Links the library, Go's part with the C archives beside it, for the compiler CC with CGO_CFLAGS.
#   exports/link.sh LIBRARY EXPORTS VERSION [FLAGS of Go's linker]
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
folder=$(cd "$(dirname "$1")" && pwd)
linker="-Wl,--version-script=$root/$2 -Wl,-T,$root/exports/go_runtime.ld -Wl,-e,gp_helper_entry -Wl,-z,nodelete -Wl,--build-id=sha1"
rm -f "$1" # Go would keep it if only the linker's scripts have changed
: "${CGO_CFLAGS:=}"
sanitizer=$(grep -oE -- '-fsanitize=\w+' <<<"$CGO_CFLAGS" || true)
export CGO_ENABLED=1 CGO_CFLAGS CGO_LDFLAGS="$sanitizer $folder/exports.a $folder/core.a"
# The tag gpreempt_dist tells Go's files not to name the archives.
"${GO:-go}" build -C "$root" -buildmode=c-shared -trimpath -buildvcs=false -tags gpreempt_dist,netgo \
	-ldflags "${4-} -X \"main.version=@(#)libgpreempt.so($3)\" -extldflags \"$linker\"" -o "$folder/$(basename "$1")" ./shim
rm -f "${1%.so}.h"
GOARCH='' CGO_ENABLED=0 "${GO:-go}" run -C "$root" ./exports/deferred "$folder/$(basename "$1")" || {
	rm -f "$1"
	exit 1
}
