"""Fixtures that every part of the tests may use. Anything specific to one part lives in that part's own conftest."""

from __future__ import annotations

import importlib.util
import os
import random
import re
from pathlib import Path

import pytest

SEED_VARIABLE = "KMIRROR_TEST_SEED"
REQUIRED_VARIABLE = "KMIRROR_PEERS_REQUIRED"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Write down what transcripts say now; read the difference before committing it."""
    parser.addoption("--rewrite", action="store_true", help="rewrite the transcripts with what happens now")


def pytest_report_header() -> str:
    header = f"seed: {SEED_VARIABLE}={_seed()} (set it to repeat a run)"
    if _peers_are_missing():
        header += "\npeers: not installed (make setup-peers); modules that need them are passed over"
    return header


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


PEER_PACKAGES = ("confluent_kafka", "aiokafka", "kafka", "kio")
_WHOLLY_MARKED = re.compile(r"^pytestmark = (?:\[\s*)?pytest\.mark\.(kafka|peers)\b", re.MULTILINE)


def _peers_are_missing() -> bool:
    return any(importlib.util.find_spec(name) is None for name in PEER_PACKAGES)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Modules that are all `kafka` or `peers` import the peers; without those they are not even looked at.

    The report's header says so. With KMIRROR_PEERS_REQUIRED=1 they are collected, and fail.
    """
    if collection_path.suffix != ".py" or os.environ.get(REQUIRED_VARIABLE) == "1" or not _peers_are_missing():
        return None
    return True if _WHOLLY_MARKED.search(collection_path.read_text(encoding="utf-8")) else None
