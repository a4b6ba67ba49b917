#!/bin/sh
# Prints the compute capabilities of architectures.txt, one a line.
set -eu
sed -n 's/^\([0-9][0-9]*\) .*/\1/p' "$(dirname "$0")/architectures.txt"
