# Everything a newcomer needs: `make up` and `make test`. Both set up what they need first.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
PORT ?= 8080
# Most tests wait for real processes most of the time, so more of them run at once than there are cores.
JOBS ?= 4
# Whole fleets of processes are another matter: each takes some ten seconds of a core to start.
FLEETS ?= 3
STATE ?= .chimera
# Services and tests are many processes: each would compile all that it imports again (2 s of a core).
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help up down test check bench fmt schemas lock clean

help: ## show this
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

# The environment is as new as the files that describe it, or it is made again.
.venv/ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Chimera needs Python 3.11 or newer; found " + sys.version.split()[0] + ". Name one: make PYTHON=python3.12 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

up: .venv/ready ## set up, start the whole fleet on this machine, print a working curl
	@$(BIN)/chimera up --detach --port $(PORT) --state-dir $(STATE)

down: .venv/ready ## stop exactly what `make up` started
	@$(BIN)/chimera down --state-dir $(STATE)

test: .venv/ready ## all tests, with the real brokers and databases that they start themselves
	@$(BIN)/pytest -q -n $(JOBS) --dist loadfile --ignore tests/e2e
	@$(BIN)/pytest -q -n $(FLEETS) --dist loadfile --no-loadscope-reorder tests/e2e

check: .venv/ready ## lint, format, types, import contracts, generated schemas
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/chimera schemas check

bench: .venv/ready ## what the path costs over a direct call, beside the floor of the same broker
	@$(BIN)/chimera loadtest overhead

fmt: .venv/ready ## format and fix what can be fixed
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format --quiet .

schemas: .venv/ready ## write the JSON Schemas and the AsyncAPI document
	@$(BIN)/chimera schemas write

lock: .venv/ready ## pin again: hashes of every package, no address
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --all-extras --upgrade pyproject.toml -o requirements.lock
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header -c requirements.lock pyproject.toml -o requirements-services.lock

clean: ## remove the environment and what runs left behind
	@rm -rf .venv .chimera .pytest_cache .mypy_cache .ruff_cache
