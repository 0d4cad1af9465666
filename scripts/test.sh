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

# The race detector makes the stores' long random walks ten times slower and finds nothing there: they are
# one goroutine. Their tests with several run under it.
packages=$($go list -f '{{.ImportPath}} {{.Imports}} {{.TestImports}} {{.XTestImports}}' ./... |
	grep -vE '^[^ ]*(/internal/(sim|e2e|chaos)|/store/(filestore|memstore)) ')
step "units, scripts, under the race detector" \
	$go test -race -count=1 -timeout 10m $(grep -v 'testing/synctest' <<<"$packages" | cut -d' ' -f1)
# On one processor: Go 1.26 crashes in the race detector's own runtime when two threads run timers of one bubble
# (docs/TESTING.md, "Bubbles under the race detector").
bubbles() {
	step "bubbles, under the race detector" \
		$go test -race -cpu 1 -count=1 -timeout 10m $(grep 'testing/synctest' <<<"$packages" | cut -d' ' -f1)
}
# One goroutine each: two processes share the table.
mutants() {
	$go test -count=1 -timeout 10m -tags mutant ./internal/sim -run Mutant -share=0 &
	local first=$! ok=0
	$go test -count=1 -timeout 10m -tags mutant ./internal/sim -run Mutant -share=1 || ok=1
	wait "$first" || ok=1
	return "$ok"
}
# Nothing here looks at real time, so it shares the machine; what the bubbles print comes in one piece after it.
out=$(mktemp)
bubbles >"$out" 2>&1 &
bubbling=$!
ended() {
	local ok=0
	trap - EXIT
	wait "$bubbling" || ok=$?
	cat "$out"
	rm -f "$out"
	return "$ok"
}
trap 'ended || true' EXIT
step "stores: conformance, kill -9, damaged files" \
	$go test -count=1 -timeout 10m ./store/filestore ./store/memstore
step "stores: readers beside writers, under the race detector" \
	$go test -race -count=1 -timeout 5m ./store/filestore -run 'Together'
step "simulation: fixed seeds, then fresh ones for the rest of a minute" \
	$go test -count=1 -timeout 5m -v -run 'Sim|Seed|Regressions' ./internal/sim -for=60s
step "simulation: each mutant is caught" mutants
ended
step "real processes: kill -9, lost answers, pauses, torn writes" \
	$go test -count=1 -timeout 10m ./internal/e2e
step "a cluster of real processes: nodes killed, paused, restarted under load" \
	$go test -count=1 -timeout 10m -parallel 1 ./internal/chaos
step "the peers' benchmark builds, and runs without the peers that need Redis" \
	$go -C bench test -count=1 -timeout 5m ./...
step "benchmarks still run" \
	$go test -run '^$' -bench . -benchtime 1x ./dispatcher/core ./store/filestore ./flowcontrol/...
