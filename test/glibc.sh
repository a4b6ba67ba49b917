#!/usr/bin/env bash
# Fails if a library asks for a glibc symbol newer than 2.34.
set -euo pipefail
library=$1
newest=$(readelf -W --dyn-syms "$library" | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -n 1)
[ -n "$newest" ] || { echo "$library: no glibc symbol versions found" >&2; exit 1; }
if [ "$(printf '%s\nGLIBC_2.34\n' "$newest" | sort -V | tail -n 1)" != GLIBC_2.34 ]; then
	echo "$library: needs $newest, allowed is GLIBC_2.34" >&2
	exit 1
fi
echo "$library: newest glibc symbol version $newest (allowed: GLIBC_2.34)"
