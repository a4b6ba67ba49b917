#!/usr/bin/env bash
# Says what make dist and make packages are about to do for architectures, or why they cannot.
set -euo pipefail
for architecture; do
	case $architecture in
	amd64 | arm64) ;;
	*)
		echo "make: ARCHS = $*: must be amd64, arm64 or both" >&2
		exit 2
		;;
	esac
done
echo "For $*, into build/; ARCHS=\"amd64 arm64\" is both. The first time a compiler comes from PyPI."
