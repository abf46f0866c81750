"""Fixtures that every part of the tests may use. Anything specific to one part lives in that part's own conftest."""

from __future__ import annotations

import os
import random

import pytest

SEED_VARIABLE = "KMIRROR_TEST_SEED"


def pytest_report_header() -> str:
    return f"seed: {SEED_VARIABLE}={_seed()} (set it to repeat a run)"


def _seed() -> int:
    """One seed a run: fixed unless the environment asks for another, so that two runs of one commit are equal."""
    return int(os.environ.get(SEED_VARIABLE, "20240601"))


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A seed that depends on the run's seed and on the test's name; printed, so a failure shows it."""
    value = random.Random(f"{_seed()}:{request.node.nodeid}").getrandbits(48)
    print(f"seed {value} (repeat with {SEED_VARIABLE}={_seed()} pytest '{request.node.nodeid}')")
    return value


@pytest.fixture
def rng(seed: int) -> random.Random:
    return random.Random(seed)
