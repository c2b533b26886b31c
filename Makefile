# The commands of a checkout. `make demo` and `make test` also set up .venv.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup demo lr-bs-demo test quick test-all test-lowest fuzz box audit lock docs lint format

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
AUDIT := $(VENV)-audit
LOWEST := $(VENV)-lowest
DOCS := $(VENV)-docs
# Prefers the interpreter that the pins were resolved with; set PYTHON=... to choose another of those that pass the tests.
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13; do \
	$$python -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$python && break; done)
REQUIRE_PYTHON = @test -n "$(PYTHON)" || \
	{ echo "Python 3.11, 3.12 or 3.13 with venv is needed: set PYTHON=/path/to/python" >&2; exit 1; }
ARGS ?=
# The build of torch that `make setup` installs: cpu, or default for the index's own, which is for GPUs on Linux.
TORCH ?= $(shell command -v nvidia-smi > /dev/null && echo default || echo cpu)
CPU_BUILDS := https://download.pytorch.org/whl/cpu

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-11s %s\n", $$1, $$2}'

setup: $(STAMP) ## install the pinned dependencies and this project into .venv

$(STAMP): pyproject.toml constraints.txt
	$(REQUIRE_PYTHON)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@index=; size="about 6 GB, with torch for GPUs"; \
	if [ "$(TORCH)" = cpu ] && $(BIN)/python -c "from urllib import request; request.urlopen('$(CPU_BUILDS)/torch/', timeout=15)" 2>/dev/null; \
	then index="--extra-index-url $(CPU_BUILDS)"; size="2.3 GB, with torch for CPUs (TORCH=default: for GPUs too)"; \
	elif [ "$(TORCH)" = cpu ]; then echo "$(CPU_BUILDS) cannot be reached: torch comes from the default index" >&2; fi; \
	echo "installing into $(VENV): $$size, one to three minutes"; set -x; \
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --quiet --no-compile $$index -c constraints.txt -e '.[dev]'
	@$(BIN)/python -m compileall -q -q -j 0 $(VENV)/lib || true # pip would do it on one core; some files are no Python of today
	@touch $@

demo: setup ## run the scaling study on generated stories, on a Ray of its own
	RAY_ADDRESS=local $(BIN)/python experiments/scaling.py --preset demo $(ARGS)

lr-bs-demo: setup ## run the grid of learning rate and batch size at three model sizes
	RAY_ADDRESS=local $(BIN)/python experiments/lr_bs_grid.py --preset demo $(ARGS)

test: lint ## run lint, then all tests except the slow ones, two files at a time
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

# What one edits most; these start neither Ray nor MLflow.
QUICK := $(addprefix tests/,config methods model analysis record train store)
NOT_QUICK := $(addprefix --ignore=tests/,train/test_sharding.py train/test_compilation.py train/test_probe.py model/test_cpu.py \
	analysis/test_sweeps.py analysis/test_variants.py analysis/test_notebook_lines.py store/test_listing.py store/test_kill.py \
	analysis/test_lr_grid.py analysis/test_composing.py analysis/test_elicited.py train/test_passes.py store/test_streaming.py \
	store/test_properties.py store/test_damaged_study.py store/test_damaged_json.py store/test_hostile.py store/test_data.py \
	analysis/test_published_law.py analysis/test_trials.py train/test_fused_loss.py)

quick: setup ## run the tests of configs, routes, the loop, ratios and the storage: a minute and a half on two cores
	$(BIN)/python -m pytest -q -m "not slow and not ray" -n 2 --dist loadfile --no-loadscope-reorder $(QUICK) $(NOT_QUICK) $(ARGS)

test-all: lint ## run lint, then every test
	$(BIN)/python -m pytest $(ARGS)

test-lowest: $(LOWEST)/.installed ## run all tests except the slow ones with the lowest versions that pyproject.toml allows
	$(LOWEST)/bin/python -m pytest -m "not slow" -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

$(LOWEST)/.installed: pyproject.toml
	$(REQUIRE_PYTHON)
	@echo "installing into $(LOWEST): 6 GB, two to five minutes"
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python -m pip install --disable-pip-version-check --quiet --quiet uv==0.13.9
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct -e '.[dev]'
	@touch $@

fuzz: setup ## fuzz every parser of text from outside for a minute each; ARGS="records --seconds 600" for one
	$(BIN)/python -m tests.fuzz $(ARGS)

box: setup ## run the smoke study on a cluster of five hosts that are namespaces of this machine; needs root and the extra s3-tests
	$(BIN)/python -m tests.cluster.box $(ARGS)

audit: ## look the pinned versions up among known vulnerabilities; needs a network, and fails without one
	$(REQUIRE_PYTHON)
	test -x $(AUDIT)/bin/pip-audit || { $(PYTHON) -m venv $(AUDIT) && $(AUDIT)/bin/python -m pip install --quiet pip-audit==2.10.1; }
	$(AUDIT)/bin/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt $(ARGS)

lock: setup ## write constraints.lock: the pins with the hashes of the files that pip would install on this kind of machine
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --dry-run --ignore-installed \
		--report $(VENV)/report.json -c constraints.txt '.[dev]'
	$(BIN)/python -m tests.lock $(VENV)/report.json > constraints.lock
	@echo "pip install --require-hashes --no-deps -r constraints.lock && pip install --no-deps -e . installs these files and no others"

docs: $(DOCS)/.installed ## build the documents as a site in site/; a link that leads nowhere fails
	$(DOCS)/bin/mkdocs build --strict $(ARGS)

$(DOCS)/.installed: docs/requirements.txt
	$(REQUIRE_PYTHON)
	$(PYTHON) -m venv --clear $(DOCS)
	$(DOCS)/bin/python -m pip install --disable-pip-version-check --quiet --quiet -r docs/requirements.txt
	@touch $@

lint: setup ## check style, format and types
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

format: setup ## fix style and format in place
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .
