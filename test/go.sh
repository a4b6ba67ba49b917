#!/usr/bin/env bash
# Runs a command of Go on packages of any of the tree's modules: once in each module that has some of them, to the end of each.
#   test/go.sh COMMAND [FLAG...] ./PACKAGE... [FLAG...]
set -euo pipefail
cd "$(dirname "$0")/.."
export GOWORK=off
before=() after=() status=0
declare -A packages=()
for argument; do
	if [[ $argument != ./* ]]; then
		if [ ${#packages[@]} = 0 ]; then before+=("$argument"); else after+=("$argument"); fi
		continue
	fi
	module=${argument%%/...}
	until [ -e "$module/go.mod" ]; do
		module=$(dirname "$module")
	done
	packages[$module]+=" .${argument#"$module"}"
done
[ ${#packages[@]} -gt 0 ] || { echo "usage: $0 COMMAND [FLAG...] ./PACKAGE... [FLAG...]" >&2; exit 2; }
for module in $(printf '%s\n' "${!packages[@]}" | sort); do
	read -ra some <<<"${packages[$module]}"
	"${GO:-go}" "${before[0]}" -C "$module" "${before[@]:1}" "${some[@]}" "${after[@]}" || status=$?
done
exit $status
