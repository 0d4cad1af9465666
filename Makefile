# Headrace. `make` lists the targets.
SHELL := /bin/bash
GO    ?= go
TOOL  := $(GO) tool -modfile=tools/go.mod
ARGS  ?=
SEED  ?=
ROW   ?=
N     ?= 2000

.DEFAULT_GOAL := help
.PHONY: help run build cluster cluster-down check test test-deps generate generate-check sim sim-limits soak chaos fuzz bench bench-peers ci clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 18

run: build ## the guided tour on real files, on the embedded default (ARGS=--once ends by itself)
	./bin/headrace demo $(ARGS)

build: ## bin/headrace, one static binary without C
	@mkdir -p bin
	CGO_ENABLED=0 $(GO) build -o bin/headrace ./cmd/headrace

cluster: build test-deps ## 3 nodes, 3 etcd members and 2 Postgres servers on this machine, until cluster-down
	$(GO) run ./internal/localcluster/cmd/cluster up

cluster-down: ## end exactly what `make cluster` started; the data stay in .cluster
	$(GO) run ./internal/localcluster/cmd/cluster down

check: ## seconds; run it before each commit
	@fmt=$$(gofmt -l $$(git ls-files '*.go' ':!*.pb.go')); [ -z "$$fmt" ] || { echo "gofmt -w these:"; echo "$$fmt"; exit 1; }
	$(GO) vet ./...
	$(TOOL) staticcheck ./...
	$(TOOL) buf lint
	$(GO) test -short . ./task/... ./flowcontrol/... ./shard ./dispatcher/core/... ./executor/engine/...

test: test-deps ## everything under the race detector, the simulation and its mutants, real processes that are killed
	./scripts/test.sh

test-deps: ## what tests need from Debian's packages (as root or with sudo)
	./scripts/test-deps.sh

generate: ## Go code from the protos, with the pinned tools
	$(TOOL) buf generate

generate-check: generate ## fails when the committed generated code is not current
	git diff --exit-code -- proto

sim: ## the cluster's simulation: SEED=0x… for one seed, N=… for how many
	$(GO) test ./internal/sim -run 'TestSim$$' -count=1 -timeout 60m -v $(if $(SEED),-seed=$(SEED)) -seeds=$(N)

sim-limits: ## the adaptive limit against its goals: the whole grid, five seeds
	$(GO) test ./flowcontrol/adaptive -count=1 -timeout 60m -args -whole

soak: build ## half an hour of load, kills and restarts, with a ledger at the end
	HEADRACE_SOAK=30m $(GO) test ./internal/e2e -run TestSoak -count=1 -timeout 60m -v

chaos: test-deps ## a cluster that is killed, paused, cut off and restarted under load: all rows, or ROW=TestKillOwner
	HEADRACE_CHAOS=long $(GO) test ./internal/chaos -count=1 -timeout 120m -parallel 1 -v $(if $(ROW),-run '^$(ROW)$$')

fuzz: ## each fuzz target for FUZZTIME (30s)
	./scripts/fuzz.sh

bench: ## micro-benchmarks, for benchstat
	$(GO) test -run '^$$' -bench . -benchmem ./dispatcher/core ./store/... ./client ./executor/... ./flowcontrol/...

bench-peers: build ## Headrace beside River and Asynq, a quarter of an hour (ARGS="-quick" for a look)
	./scripts/test-deps.sh redis-server
	cd bench && $(GO) build -o ../bin/bench-peers .
	./bin/bench-peers -headrace bin/headrace -out bench/results/latest.json -page docs/benchmarks.md $(ARGS)

bench-pinned: ## Postgres while somebody's transaction pins xmin for PINNED (10m), and another without, in turns: CPU a task
	HEADRACE_PINNED=$(or $(PINNED),10m) $(GO) test -run '^$$' -bench Pinned -benchtime 1x -timeout 30m ./store/pgstore

ci: check generate-check test ## what .ci/run does

clean: ## what make built, the local cluster and its data
	@[ ! -e .cluster/state.json ] || $(MAKE) --no-print-directory cluster-down
	rm -rf bin .cluster
