# Every target works on a machine that has only make and Python 3.11 or newer.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# The first interpreter that is new enough; `make PYTHON=... <target>` overrides it.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python; do \
	if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	then echo $$python; break; fi; done)
TORCH := $(shell sed -n 's/^torch==/torch==/p' constraints.txt)
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help run demo test tiny verify extremes kill lint format clean

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

run: $(STAMP)  ## train on digits from label proportions alone and print the accuracies
	$(BIN)/fastbus demo --only label_proportion

demo: $(STAMP)  ## the same from every kind of weak label, in about two minutes
	$(BIN)/fastbus demo

# Problems are many and small here, so that more threads only wait for each other; tests run two workers.
export OMP_NUM_THREADS ?= 1

test: lint  ## format and lint checks, type checks, all tests
	$(BIN)/python -m pytest -q -n 2

tiny: $(STAMP)  ## the paper's experiments on real digits, one small cell of every setting, in about a minute
	@place=$$(mktemp -d) && trap "rm -rf $$place" EXIT && \
	$(BIN)/fastbus bench paper --tiny --workers 2 --out $$place --checkpoints $$place/unfinished

verify: $(STAMP)  ## compare every engine with enumeration and print the errors
	$(BIN)/python -m fastbus.bench.verify

extremes: $(STAMP)  ## long bags and extreme predictions against independent sources
	$(BIN)/python -m fastbus.bench.extremes

kill: $(STAMP)  ## kill -9 fifty training runs and compare the resumed ones with one left alone
	$(BIN)/python -m fastbus.bench.kill_runs --kills 50

lint: $(STAMP)  ## ruff check, ruff format --check, mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)  ## sort imports, repair what ruff can, reformat
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# pip repairs a half-finished environment but not a half-made one, so an environment without a
# working pip is made anew. The stamp comes last: an interrupted set-up leaves none behind. torch
# goes first and alone, because resolving it unpinned can bring gigabytes of CUDA libraries.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer found; set PYTHON=/path/to/python" >&2; exit 1; }
	@rm -f $@
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(PIP) $(TORCH)
	$(PIP) -e ".[dev]"
	@touch $@

clean:  ## remove the environment, caches and build outputs
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find src tests -name __pycache__ -type d -exec rm -rf {} +
