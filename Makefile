# What people and CI do. `make help` lists it.

SHELL := /bin/bash
.DEFAULT_GOAL := help

# CI builds from a fresh clone each time: its cache lies outside.
ifdef CI
export CARGO_TARGET_DIR ?= $(or $(SEAWALL_CACHE),$(HOME)/.cache/seawall)/target
endif
TARGET := $(or $(CARGO_TARGET_DIR),target)
SEAWALL := $(TARGET)/debug/seawall

.PHONY: help setup build run try test quick test-docker test-v2 check bench bench-check soak hostile fuzz coverage audit clean openapi

help: ## this list
	@grep -E '^[a-z0-9-]+:.*## ' Makefile | awk -F':.*## ' '{printf "make %-12s %s\n", $$1, $$2}'

setup: ## installs what the build and the tests need, where it may
	@scripts/setup

build: setup ## the debug build
	cargo build --workspace

run: ## sets up what is needed, builds, and runs the service on 127.0.0.1:7777 until Ctrl-C
	@scripts/setup run
	cargo build --release --bin seawall
	@echo 'seawall: in a second shell: export PATH="$(abspath $(TARGET)/release):$$PATH"'
	@exec $(TARGET)/release/seawall serve

try: build ## builds, then runs a command in a sandbox, without a service; prints 42
	$(SEAWALL) run -- python3 -c 'print(6*7)'

test: ## every test; the last line counts
	@scripts/setup run
	@scripts/test

quick: ## tests that need no service and no root, in under a minute once they are built
	@scripts/run-tests --quick

test-docker: setup ## the provider docker: over the network too, on busybox, and fifty at once
	@SEAWALL_TEST_DOCKER_ALL=1 scripts/test -- docker

test-v2: setup ## native under control groups v2, in an emulated machine (QEMU)
	@scripts/test-v2

check: setup ## formatting, lints, licences
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	scripts/deny

bench: setup ## figures of a release build (SPECIFICATION.md)
	cargo build --release
	$(TARGET)/release/seawall-bench exec --provider local
	$(TARGET)/release/seawall-bench --compare
	$(TARGET)/release/seawall-bench cli
	$(TARGET)/release/seawall-bench turns
	$(TARGET)/release/seawall-bench http
	scripts/with-docker $(TARGET)/release/seawall-bench docker --image seawall-test/debian
	scripts/with-postgres $(TARGET)/release/seawall-bench stores
	scripts/with-s3 $(TARGET)/release/seawall-bench sync --compare
	scripts/bench-tenants $(TARGET)/release/seawall

bench-check: setup ## fails where a promise of SPECIFICATION.md is missed
	cargo build --release
	$(TARGET)/release/seawall-bench exec --provider local --check
	$(TARGET)/release/seawall-bench --compare --check
	$(TARGET)/release/seawall-bench cli --check
	$(TARGET)/release/seawall-bench turns --check
	$(TARGET)/release/seawall-bench http --check
	scripts/with-docker $(TARGET)/release/seawall-bench docker --image seawall-test/debian --check
	scripts/with-postgres $(TARGET)/release/seawall-bench stores --check
	scripts/with-s3 $(TARGET)/release/seawall-bench sync --compare --check
	scripts/bench-tenants $(TARGET)/release/seawall --check

soak: setup ## the conformance suite again and again, then turns with short retention (SOAK_MINUTES, default 30)
	@scripts/soak
	cargo build --release --bin seawall
	scripts/soak-turns $(TARGET)/release/seawall

hostile: setup ## a server in 1 GB under hostile load, beside another account (HOSTILE_MINUTES, default 30)
	cargo build --release --bin seawall
	scripts/hostile $(TARGET)/release/seawall

fuzz: ## each fuzz target for FUZZ_SECONDS (default 600)
	@scripts/fuzz

openapi: ## writes docs/openapi.json anew, from the code
	SEAWALL_WRITE_OPENAPI=1 cargo test -p seawall-server --test it openapi::

coverage: ## line coverage of core and sync, by cargo-llvm-cov
	scripts/coverage

audit: ## known vulnerabilities; needs the network
	cargo deny check advisories

clean:
	cargo clean
