# Everything a contributor or a new user types. `make` alone lists it.
.DEFAULT_GOAL := help
SHELL := /bin/bash
READY := .venv/.ready
# First on PATH, so that `python`, `torchrun`, `deepspeed` and the one `ninja` are those of the lock.
run := PATH="$(CURDIR)/.venv/bin:$$PATH"

# Tests mostly wait. A file is run by one process: what its tests share, a model served or a Ray, is started once.
SIDE_BY_SIDE := -n 2 --dist loadfile --no-loadscope-reorder

# Which version of Kubeflow Trainer the cluster has: 2.1 (podTemplateOverrides) or 2.2 (runtimePatches).
TRAINER := 2.2

.PHONY: help setup demo test test-local test-cluster check lint fix bench-self cluster cluster-down cluster-status lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## .tools (uv) and .venv (locked dependencies, allranks); nothing to do the second time

$(READY): requirements.lock pyproject.toml scripts/setup.sh
	@bash scripts/setup.sh
	@touch $@

demo: setup ## train a DeepSpeed model on 2 local nodes x 2 ranks
	@$(run) allranks run examples/digits/job.yaml

test: lint test-local test-cluster ## lint, types and every test

test-local: setup ## the tests that need this machine alone
	@$(run) pytest $(SIDE_BY_SIDE) --ignore tests/cluster

test-cluster: setup ## those of the Kubernetes cluster; where none can be had they are skipped, and say why
	@$(run) pytest tests/cluster

check: lint ## the fast loop: lint, types and the tests that start no gang, under a minute
	@$(run) pytest -q $(SIDE_BY_SIDE) -m "not gang and not torch and not cluster" --ignore tests/cluster

lint: setup
	@$(run) ruff check
	@$(run) ruff format --check
	@$(run) mypy
	@$(run) lint-imports

fix: setup ## what ruff can mend by itself
	@$(run) ruff check --fix
	@$(run) ruff format

bench-self: setup ## allranks beside torchrun and the deepspeed launcher; writes the table of docs/performance.md
	@$(run) python bench/self.py

cluster: setup ## build (once, half an hour) and boot a real Kubernetes with the real operators: Linux, root, Go
	@$(run) python -m tests.cluster up --trainer $(TRAINER)

cluster-down: setup ## end the cluster; nothing is left but what was built
	@$(run) python -m tests.cluster down

cluster-status: setup ## what of the cluster is up, and why not
	@$(run) python -m tests.cluster status

# Fetched from whatever index this machine's pip or uv is set to; the lock names versions and hashes, never a host.
lock: setup ## resolve requirements.lock anew
	@bash scripts/lock.sh
	@$(MAKE) --no-print-directory setup

clean: ## remove what make made, .tools and .venv included
	rm -rf .tools .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache dist out
	find . -name __pycache__ -prune -exec rm -rf {} +
