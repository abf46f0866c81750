"""Which broker the suite runs against: `--broker HOST:PORT`, or `--broker kafka` / `--broker kmirror` to start one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from conformance.peers.kafka import KafkaBroker, KafkaInstallation
from conformance.peers.kmirror_process import KmirrorBroker
from conformance.peers.processes import PeerUnavailable
from conformance.wire.batches import batch
from conformance.wire.client import Broker, Row, Topic
from conformance.wire.groups import Member, stable_group

QUICK = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
"""Settings of a broker that is started for the suite: as any broker, only sooner. None is needed."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--broker", metavar="HOST:PORT|kafka|kmirror", help="the broker under test")


@pytest.fixture(scope="session")
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    wanted = request.config.getoption("--broker")
    if not wanted:
        pytest.exit("conformance/wire needs --broker HOST:PORT (or kafka, or kmirror)", returncode=2)
    directory: Path = tmp_path_factory.mktemp("broker") / "data"
    if wanted == "kafka":
        try:
            with KafkaBroker(KafkaInstallation(), directory, overrides=QUICK) as kafka:
                yield kafka.bootstrap
        except PeerUnavailable as error:
            pytest.exit(str(error), returncode=2)
    elif wanted == "kmirror":
        with KmirrorBroker(directory, settings=QUICK) as kmirror:
            yield kmirror.bootstrap
    else:
        yield wanted


@pytest.fixture(scope="session")
def broker(address: str) -> Broker:
    return Broker(address)


@pytest.fixture
def topic(broker: Broker) -> Topic:
    """A fresh topic with one partition."""
    return broker.create_topic()


@pytest.fixture
def make_group(broker: Broker, group: str) -> Iterator[Callable[..., list[Member]]]:
    """make_group(count, **options) -> members of the module's own `group`, all in sync; they end with the test."""
    with ExitStack() as stack:

        def form(count: int = 1, **options: Any) -> list[Member]:
            return [stack.enter_context(member) for member in stable_group(broker, group, count, **options)]

        yield form


@pytest.fixture(scope="session")
def probe_topic(broker: Broker) -> Topic:
    return broker.create_topic()


@pytest.fixture(autouse=True)
def broker_stays_healthy(broker: Broker, probe_topic: Topic) -> Iterator[None]:
    """After every case, on a new connection: Metadata, Produce and Fetch still work."""
    yield
    assert broker.describe_topic(probe_topic.name).error_code == 0
    answer = broker.produce(probe_topic, batch())
    assert answer.error_code == 0, answer
    assert broker.fetch(Row(probe_topic, answer.base_offset)).batches()[0].base_offset == answer.base_offset
