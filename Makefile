# The commands of a checkout. `make demo` and `make test` do all the set-up they need.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup demo lr-bs-demo test test-all stop lint format

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The interpreter the pins were tried with comes first; set PYTHON=... to choose another (3.11 or newer).
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13; do \
	$$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
ARGS ?=

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-10s %s\n", $$1, $$2}'

setup: $(STAMP) ## install the pinned dependencies and this project into .venv

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer with venv is needed: set PYTHON=/path/to/python" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV): 2.3 GB, one to three minutes"
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --quiet -c constraints.txt -e '.[dev]'
	@touch $@

demo: setup ## the scaling study on generated stories, on a private local Ray; KEEP=1 leaves Ray and MLflow running
	$(BIN)/python -m gram_platform.engine.local_cluster run $(if $(KEEP),--keep) -- python experiments/scaling.py --preset demo $(ARGS)

lr-bs-demo: setup ## the learning-rate and batch grid at three sizes, the same way
	$(BIN)/python -m gram_platform.engine.local_cluster run $(if $(KEEP),--keep) -- python experiments/lr_bs_grid.py --preset demo $(ARGS)

test: lint ## style, format and all tests but the slow ones, two files at a time
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

test-all: lint ## every test
	$(BIN)/python -m pytest $(ARGS)

stop: ## stop what a demo left running, and nothing else
	@if test -x $(BIN)/python; then $(BIN)/python -m gram_platform.engine.local_cluster stop; else echo "nothing is running"; fi

lint: setup ## check style and format
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

format: setup ## put every file into the one format
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .
