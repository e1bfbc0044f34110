# Needs Python 3.11 or newer with pip, and make; everything else goes into .venv.

PYTHON ?= python3
# Extra arguments for pytest: make test ARGS='-k window'
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet --constraint constraints.txt

# One stamp per level of installation. Each is written last, so that an interrupted installation is done again.
CORE := $(VENV)/.core
DEV := $(VENV)/.dev

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench drift docs clean

help: ## say what each target does
	@sed -n 's/^\([a-z]*\):.*## /  make \1	/p' $(MAKEFILE_LIST)

demo: $(CORE) ## predict a windowed MTP step of a 35B hybrid at 1M context on one H200, and write its page
	$(BIN)/wmtp estimate qwen3.5-35b-a3b --gpu h200 --context 1M --depth 6 --window 4032 --sink 64 --accept-length 4.5
	@mkdir -p build
	$(BIN)/wmtp breakeven qwen3.5-35b-a3b --gpu h200 --accept-length 4.5 --at depth=6 -o build/breakeven.html

test: $(DEV) ## run every test but the benchmarks
	$(BIN)/python -m pytest -n 2 --dist loadgroup --ignore tests/bench $(ARGS)

lint: $(DEV) ## check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy wmtp_sim

bench: $(DEV) ## run the benchmarks
	$(BIN)/python -m pytest -s --benchmark-enable --benchmark-only tests/bench $(ARGS)

drift: $(DEV) ## rewrite the committed grid of estimates after a deliberate change of the model
	$(BIN)/python -m tests.drift.grid

docs: $(DEV) ## rewrite the outputs that README.md and docs/ show
	$(BIN)/python -m tests.refresh_docs

clean: ## remove .venv, caches and builds
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A Python without ensurepip (Debian's, unless python3-venv is installed) lends its own pip to fill the new one.
$(BIN)/python:
	$(PYTHON) -m venv --clear $(VENV) || { \
	  $(PYTHON) -m venv --clear --without-pip $(VENV) && $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }

# The build backend comes first, pinned like all else, so that no build fetches one of its own.
$(CORE): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) hatchling
	$(INSTALL) --no-build-isolation --editable .
	@touch $@

$(DEV): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) hatchling
	$(INSTALL) --no-build-isolation --editable '.[dev,gpu]'
	@touch $(CORE) $@
