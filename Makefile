# `make` alone lists the targets. Everything is built in one folder outside the clone, with
# one profile and one flag set (.cargo/config.toml), so that RocksDB is compiled once.

export CARGO_TARGET_DIR ?= $(HOME)/.cache/longhaul/target
export CARGO_TERM_COLOR ?= auto

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-slurm soak chaos bench lint deps build dist corpus

# What `make chaos` does, if nobody says.
SEED ?= 1
EPISODES ?= 200
CONTAINED ?= 16

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: ## Install what it needs, build, run the example benchmark, show the verdicts
	@scripts/demo

test: ## Install what it needs, check, and run every test that fits into CI
	@scripts/test

test-all: ## The same, and the long sets
	@scripts/test --all

test-slurm: ## Those of them against a real Slurm of four nodes alone (as root)
	@scripts/deps
	@scripts/prepare-tests
	@cargo nextest run --locked -p longhaul-tests -E 'binary(/^slurm_/)'

soak: ## The long ones against it: each fault with 16 sandboxes, 128 on a node, ... (as root)
	@scripts/deps
	@scripts/prepare-tests
	@cargo nextest run --locked --profile all -p longhaul-tests -E 'binary(slurm_faults) | binary(slurm_soak) | binary(slurm_handover) | binary(slurm_drill)'

chaos: ## SEED=1 EPISODES=200: kill, stop, cut and fill all that episodes rest on, and check (as root)
	@scripts/deps
	@scripts/prepare-tests
	@cargo build --locked --quiet -p longhaul-tests --bins
	@cargo run --locked --quiet -p longhaul-tests --bin longhaul-chaos -- --seed $(SEED) --episodes $(EPISODES) \
		--contained $(CONTAINED) $(if $(SCHEDULE),--schedule $(SCHEDULE))

bench: ## Measure, and print the figures of docs/performance.md; ARGS="slurm ..." over Slurm
	@scripts/bench $(ARGS)

lint: ## Check the formatting, clippy without warnings, the licences of dependencies
	@scripts/lint

deps: ## Install what is missing (Debian 12; as root)
	@scripts/deps

build: ## Build the program, and the node's; prints where it is
	@scripts/deps build
	@cargo build --locked --workspace --bin longhaul --bin longhaul-node
	@echo "$(CARGO_TARGET_DIR)/x86_64-unknown-linux-gnu/debug/longhaul"

dist: ## Make one tarball (program, base image, examples) that an ordinary user unpacks and runs
	@scripts/deps
	@scripts/dist

corpus: ## CLONE=path [ARGS=...]: run envs of a clone of Gym-Anything, and write docs/reach.md
	@scripts/corpus "$(CLONE)" $(ARGS)
