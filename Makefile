# Everything a contributor needs. `make demo` and `make test` set up a virtual environment first.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: setup setup-peers demo test lint bench clean

$(VENV)/.dev: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

setup: $(VENV)/.dev

$(VENV)/.peers: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[peers]'
	touch $@

setup-peers: $(VENV)/.peers

demo: setup
	$(BIN)/kmirror demo

test: setup
	$(BIN)/python -m pytest -m "not kafka and not peers"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup-peers
	$(BIN)/python -m conformance.bench

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
