# make demo, make test: all that a newcomer needs. Both install what they miss into .venv and a cache folder.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# One more than there are cores: some tests wait for a clock.
WORKERS = $(shell expr $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1) + 1)

.PHONY: help
help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(READY): requirements-dev.lock pyproject.toml
	@echo "installing into $(VENV) (once; a minute or three) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@set -o pipefail; $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off --require-hashes -r $< | \
	  awk -v all=$$(grep -c == $<) '/^Collecting/ && ++n % 10 == 0 { print "  " n " of " all " packages"; fflush() } \
	    /^Installing/ { print "  unpacking ..."; fflush() }'
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(BIN)/punctual compile
	@touch $@

.PHONY: install
install: $(READY) ## install punctual and its tools into .venv

.PHONY: demo
demo: $(READY) ## the main job in under a minute: simulated cluster, real sidecar, real control loop
	@$(BIN)/punctual demo

.PHONY: test
test: $(READY) ## all tests: fast ones first, then those on a real Kueue (built once into a cache folder)
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile -m "not kueue and not long"
	@$(BIN)/punctual cluster build
	@$(BIN)/python -m pytest -v -m "kueue and not long"

.PHONY: test-fast
test-fast: $(READY) ## the fast tests only
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile -m "not kueue and not long"

.PHONY: test-long
test-long: $(READY) ## the slow and statistical tests
	@$(BIN)/punctual cluster build
	@$(BIN)/python -m pytest -v -m long --timeout 3600

.PHONY: cluster
cluster: $(READY) ## a real local Kueue to play with, Punctual's manifests applied
	@$(BIN)/punctual cluster up

.PHONY: lint
lint: $(READY) ## ruff, mypy --strict, import-linter
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

.PHONY: api
api: $(READY) ## generate solver/api and advisor/api from proto/
	@$(BIN)/python -m grpc_tools.protoc -Isolver/api=proto --python_out=. --pyi_out=. --grpc_python_out=. solver/api/planner.proto
	@$(BIN)/python -m grpc_tools.protoc -Iadvisor/api=proto --python_out=. --pyi_out=. --grpc_python_out=. advisor/api/outcomes.proto

COMPILE = uv pip compile -q --no-header --generate-hashes --no-emit-index-url --no-emit-find-links --universal \
  --python-version 3.11 pyproject.toml

.PHONY: lock
lock: ## renew both lock files from pyproject.toml (needs uv)
	@$(COMPILE) --group build -o requirements.lock
	@$(COMPILE) --group dev -o requirements-dev.lock
