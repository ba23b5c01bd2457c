# The habits of the project. Whatever CI does, a person can run by one of these names.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

DURATION ?= 60s
OUTPUT ?=
BENCH ?=
CLUSTER ?=
CARGO_TARGET_DIR ?= $(CURDIR)/target
export CARGO_TARGET_DIR
BIN := $(CARGO_TARGET_DIR)/release

.PHONY: help setup build demo bench check fmt clippy deny tidy test test-unit test-gates gates-accept test-e2e clean cluster-up cluster-down image e2e

help: ## Shows this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: ## Installs what the demo and the tests need (Debian; needs root for that)
	@scripts/setup

RELEASE = WEFT_GIT_SHA=$$(git rev-parse --short=9 HEAD 2>/dev/null || true) \
	cargo build --locked --release -p weft -p weft-proxy

build: setup ## Builds weft and weft-proxy
	@$(RELEASE)

demo: build ## Runs a mesh on this machine (DURATION=20s OUTPUT=json)
	@$(BIN)/weft demo --duration $(DURATION) $(if $(OUTPUT),--output $(OUTPUT))

bench: setup ## Compares proxies side by side (BENCH="--quick", see docs/bench.md)
	@scripts/setup-bench
	@cargo build --locked --release -p weft -p weft-proxy -p weft-bench
	@$(BIN)/weft-bench run $(BENCH)

check: fmt clippy deny tidy ## Checks form, lints, licences and house rules

fmt:
	cargo fmt --all -- --check

clippy:
	cargo clippy --locked --workspace --all-targets -- -D warnings

deny: # cargo-deny reads an advisory database from the network, so only what is offline is checked here
	@if command -v cargo-deny >/dev/null; then cargo deny --offline check licenses bans sources; \
	else echo "cargo-deny is not installed: licences are not checked (cargo install cargo-deny)"; fi

tidy:
	cargo test --locked -q -p weft-core --test tidy

test: build ## Runs all tests: units, properties, the whole mesh in network namespaces and, where it can be, on a cluster
	$(MAKE) --no-print-directory test-unit test-gates test-e2e
	@if [ "$(CLUSTER)" = no ]; then echo "SKIPPED: the tests on a cluster did not run: CLUSTER=no"; else e2e/cluster/run --if-possible $(BIN); fi

test-unit:
	cargo test --locked --workspace --exclude weft-e2e

test-gates: ## Compares instructions and allocations of the hot paths with what was accepted (see docs/bench.md)
	@$(RELEASE) -p weft-gates
	@$(BIN)/weft-gates

gates-accept: ## Accepts what they are now
	@$(RELEASE) -p weft-gates
	@$(BIN)/weft-gates --accept

test-e2e: ## Runs only the tests of the whole mesh (after make build)
	WEFT_BIN_DIR=$(BIN) cargo test --locked -p weft-e2e -- --test-threads=2

clean:
	cargo clean

cluster-up: ## Starts a single-node Kubernetes on this machine (Debian, root; see e2e/cluster/README.md)
	@e2e/cluster/up

cluster-down: ## Ends it and removes what it made
	@e2e/cluster/down

image: build ## Packs both programs into a container image, without Docker (see images/README.md)
	@images/build

e2e: build ## Runs the tests of the mesh on a cluster (TEST=name for some; starts it and ends it, unless it runs)
	@e2e/cluster/run $(BIN) $(TEST)
