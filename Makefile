# make train       set up what the default run needs, train Pong, print the cross-backend result
# make test        set up everything, run lint and the whole suite
# make test-fast   the suite without its slow tests
# make help        all targets
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup setup-torch pong train test test-fast lint format bench lock clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.9
STAMPS := $(VENV)/.stamps
key = $(shell cat $(1) | sha256sum | cut -c1-16)
BASE := $(STAMPS)/base-$(call key,requirements.lock pyproject.toml)
TORCH := $(STAMPS)/torch-$(call key,requirements.lock requirements-torch.lock)

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(BASE):
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' || \
	  { echo "error: Python 3.11 or 3.12 is needed; name one with: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@echo "setup: creating $(VENV) from requirements.lock"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { echo "error: python venv failed; on Debian: apt-get install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@$(BIN)/uv pip install --quiet --python $(BIN)/python -r requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	@mkdir -p $(STAMPS) && rm -f $(STAMPS)/base-* && touch $@

$(TORCH): $(BASE)
	@echo "setup: adding torch and stable-baselines3 (several gigabytes)"
	@$(BIN)/uv pip install --quiet --python $(BIN)/python -r requirements-torch.lock
	@mkdir -p $(STAMPS) && rm -f $(STAMPS)/torch-* && touch $@

setup: $(BASE) ## the virtual environment, without torch

setup-torch: $(TORCH) ## torch and stable-baselines3 as well

pong: setup ## build PufferLib's C Pong, the reference
	@$(BIN)/python scripts/build_pong.py

train: setup ## train the default environment and print its cross-backend result
	@$(BIN)/python scripts/build_pong.py || echo "going on without the reference"
	@$(BIN)/python train/main.py $(ARGS)

lint: setup ## formatting, lint, types, import direction
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: setup ## rewrite the sources in the house format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

test: setup-torch pong lint ## lint and the whole suite, with coverage
	@$(BIN)/pytest --cov --cov-report=term:skip-covered --cov-fail-under=90
	@echo "make test: all passed"

test-fast: setup pong ## the suite without its slow tests
	@$(BIN)/pytest -m "not slow" -n 2 --dist loadfile

bench: setup pong ## speed, side by side with peers
	@$(BIN)/python scripts/bench.py

lock: setup ## resolve the lock files anew
	@$(BIN)/uv pip compile -q pyproject.toml --extra wandb --extra dev --universal -p 3.11 \
	  --no-emit-index-url --no-emit-find-links -o requirements.lock
	@$(BIN)/uv pip compile -q pyproject.toml --extra torch --universal -p 3.11 \
	  -c requirements.lock --no-emit-index-url --no-emit-find-links -o requirements-torch.lock

clean: ## remove the virtual environment and everything built
	rm -rf $(VENV) build *.egg-info
