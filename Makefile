# `make plan` sets up and prints the lecture's plan; `make test` sets up, lints and runs the tests.
# PYTHON, VENV and PYTEST_ARGS can be given: make test PYTHON=python3.13 VENV=~/env PYTEST_ARGS="-k optimum"
PYTHON ?= python3
VENV ?= $(CURDIR)/.venv
PYTEST_ARGS ?= -n 2 --dist worksteal
BIN = $(VENV)/bin
SETUP = VENV="$(VENV)" $(PYTHON) scripts/setup_env.py

.PHONY: plan test lint format setup clean

plan: setup
	@"$(BIN)/allocator" plan

test: lint
	"$(BIN)/python" -m pytest $(PYTEST_ARGS)

lint: setup
	"$(BIN)/ruff" check .
	"$(BIN)/ruff" format --check .
	"$(BIN)/pyright" --pythonpath "$(BIN)/python"
	"$(BIN)/lint-imports" --no-logo

format: setup
	"$(BIN)/ruff" check --fix .
	"$(BIN)/ruff" format .

setup:
	@$(SETUP)

clean:
	rm -rf .venv dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
