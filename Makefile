# Everything a contributor needs. Each target sets up what it uses: a virtual environment in .venv and nothing else.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help setup setup-peers demo test test-peers test-long wire lint format bench clean

help:
	@echo 'make demo        mirror, verify, fail over and go back between two brokers on this machine (under a minute)'
	@echo 'make test        the hermetic tests: no JVM, no network beyond loopback'
	@echo 'make test-peers  the tests against Apache Kafka and independent clients (needs Java and Maven)'
	@echo 'make wire        the black-box suite for any broker, against kmirror'
	@echo 'make lint        ruff and mypy --strict'
	@echo 'make bench       kmirror and its peers side by side'
	@echo '.ci/run          all of it, as the build machine does'

$(VENV)/.dev: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[dev]'
	touch $@

setup: $(VENV)/.dev

$(VENV)/.peers: $(VENV)/.dev
	$(PIP) -e '.[peers]'
	touch $@

setup-peers: $(VENV)/.peers

demo: setup
	$(BIN)/kmirror demo

test: setup
	$(BIN)/python -m pytest -m "not kafka and not peers"

test-peers: setup-peers
	$(BIN)/python -m conformance.peers install kafka
	$(BIN)/python -m pytest -m "kafka or peers"
	$(BIN)/python -m pytest -m kafka conformance/differential

# the same tests that `make test` runs in small, at the length that a release has to pass
test-long: setup
	KMIRROR_SIM_STEPS=100000 KMIRROR_STORAGE_RUNS=50 KMIRROR_STORAGE_OPERATIONS=2000 KMIRROR_KILL_ROUNDS=30 \
	  KMIRROR_COORDINATOR_STRIDE=1 KMIRROR_ENGINE_STRIDE=2 \
	  $(BIN)/python -m pytest tests/sim/test_walk.py tests/sim/test_coordinator_cuts.py \
	  tests/sim/test_engine_cuts.py::test_power_cuts_of_a_broker_at_work \
	  tests/storage/test_model.py::test_log_against_a_list tests/integration/test_kill.py

wire: setup
	$(BIN)/python -m conformance.wire --start kmirror

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup-peers
	$(BIN)/python -m conformance.bench

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
