#!/usr/bin/env bash
# Runs every fuzz target for FUZZTIME (30 s by default).
set -euo pipefail
cd "$(dirname "$0")/.."
for pkg in $(go list ./...); do
	dir=${pkg#github.com/headrace/headrace}
	for target in $(grep -hoE '^func Fuzz[A-Za-z0-9_]*' ".$dir"/*_test.go 2>/dev/null | sed 's/^func //'); do
		echo "== $pkg $target"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-30s}" "$pkg"
	done
done
