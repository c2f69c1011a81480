# `make demo` shows what it does, `make quick` is for while you work, `make test` must pass before a
# merge, and `make full` runs the rest. Each target installs what it needs into .venv on first use.
PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
ALL_CORES := -n logical --maxprocesses 4 --dist loadfile --durations 30
# What needs no model, no server and no browser.
PURE := tests/test_*.py $(addprefix tests/,benchmarks decoders readings stats) src

# One thread per process: several that all use all cores get in each other's way.
export OMP_NUM_THREADS := 1
# The types are checked while the tests run.
MAKEFLAGS += --jobs=2

.PHONY: demo quick quick-tests test most full longest lowest coverage lint format docs wheel clean

demo: .venv/demo.stamp
	$(BIN)/discode demo --output demo.png

quick: lint quick-tests

quick-tests: | .venv/dev.stamp
	$(PYTEST) $(ALL_CORES) -m "not slow and not full and not data" $(PURE)

test: lint most

most: .venv/dev.stamp
	$(PYTEST) $(ALL_CORES) -m "not full"

full: longest lowest

longest: .venv/dev.stamp
	$(PYTEST) $(ALL_CORES) -m full

lowest: | $(BIN)/python
	$(BIN)/python tests/lowest.py

coverage: .venv/dev.stamp
	$(PYTEST) $(ALL_CORES) --cov --cov-report term:skip-covered

lint: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@if $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then $(BIN)/mypy; \
	else echo "types are checked from Python 3.11 on: the last numpy for 3.10 has other ones"; fi

format: .venv/dev.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/docs.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

wheel: | $(BIN)/python
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

clean:
	rm -rf .venv build dist demo.png .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "discode needs Python 3.10 or newer; run: make PYTHON=python3.x"; exit 2; }
	$(PYTHON) -m venv .venv

.venv/demo.stamp: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[plot]'
	touch $@

.venv/docs.stamp: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[docs]'
	touch $@

.venv/dev.stamp: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	touch $@ .venv/demo.stamp .venv/docs.stamp
