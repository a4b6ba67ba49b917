#!/usr/bin/env bash
# Fails if a library or a program asks for a glibc symbol newer than a version, or for another C library.
#   test/glibc.sh VERSION FILE...
set -euo pipefail
allowed=GLIBC_$1
shift
for file; do
	newest=$(readelf -W --dyn-syms "$file" | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -n 1)
	[ -n "$newest" ] || { echo "$file: no glibc symbol versions found" >&2; exit 1; }
	if [ "$(printf '%s\n%s\n' "$newest" "$allowed" | sort -V | tail -n 1)" != "$allowed" ]; then
		echo "$file: needs $newest, allowed is $allowed" >&2
		exit 1
	fi
	echo "$file: newest glibc symbol version $newest (allowed: $allowed)"
done
