#!/usr/bin/env bash
# All tests, in an order that shows cheap failures first. Each step prints how long it took.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}

step() {
	local name=$1 start=$SECONDS
	shift
	echo "== $name"
	"$@"
	echo "== $name: $((SECONDS - start)) s"
}

step "units, scripts, conformance, under the race detector" \
	$go test -race -count=1 -timeout 10m $($go list ./... | grep -vE '/internal/(sim|e2e)$')
step "simulation: fixed seeds and a fresh one" \
	$go test -count=1 -timeout 5m ./internal/sim
step "simulation: each mutant is caught" \
	$go test -count=1 -timeout 10m -tags mutant ./internal/sim -run Mutant
step "real processes: kill -9, lost answers, pauses, torn writes" \
	$go test -count=1 -timeout 10m ./internal/e2e
step "benchmarks still run" \
	$go test -run '^$' -bench . -benchtime 1x ./dispatcher/core ./store/filestore ./flowcontrol/...
