"""pytest fixtures that hand out peers. A test that asks for a peer this machine cannot run is skipped with the reason,
except where KMIRROR_PEERS_REQUIRED=1 (CI) makes that a failure: a suite that silently runs nothing proves nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from conformance.peers.kafka import KafkaBroker, KafkaInstallation
from conformance.peers.kmirror_process import KmirrorBroker
from conformance.peers.processes import PeerUnavailable

MakeKafka = Callable[..., KafkaBroker]
MakeKmirror = Callable[..., KmirrorBroker]


def peer_missing(reason: str) -> NoReturn:
    """Skips the test, or fails it where peers are required."""
    if os.environ.get("KMIRROR_PEERS_REQUIRED") == "1":
        pytest.fail(f"required peer missing: {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def kafka_installation() -> Callable[[str], KafkaInstallation]:
    """Gives an installed Kafka version, with its class-data archive."""
    installed: dict[str, KafkaInstallation] = {}

    def get(version: str) -> KafkaInstallation:
        if version not in installed:
            try:
                installation = KafkaInstallation(version)
                if installation.kraft:
                    installation.build_archive()
            except PeerUnavailable as error:
                peer_missing(str(error))
            installed[version] = installation
        return installed[version]

    return get


@pytest.fixture(scope="module")
def make_kafka(
    kafka_installation: Callable[[str], KafkaInstallation], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MakeKafka]:
    """make_kafka(version="4.4.0", **KafkaBroker options) -> a started broker, ended with the module."""
    brokers: list[KafkaBroker] = []

    def make(version: str = "4.4.0", **options: object) -> KafkaBroker:
        directory = tmp_path_factory.mktemp("kafka") / "broker"
        broker = KafkaBroker(kafka_installation(version), directory, **options)  # type: ignore[arg-type]
        brokers.append(broker)
        broker.start()
        return broker

    yield make
    for broker in brokers:
        broker.kill()
        shutil.rmtree(broker.directory.parent, ignore_errors=True)


@pytest.fixture
def make_kmirror(tmp_path: Path) -> Iterator[MakeKmirror]:
    """make_kmirror(name="kmirror", **KmirrorBroker options) -> a started kmirror, ended with the test."""
    brokers: list[KmirrorBroker] = []

    def make(name: str = "kmirror", **options: object) -> KmirrorBroker:
        broker = KmirrorBroker(tmp_path / name, **options)  # type: ignore[arg-type]
        brokers.append(broker)
        broker.start()
        return broker

    yield make
    for broker in brokers:
        broker.kill()


@pytest.fixture(scope="session")
def kcat() -> str:
    """The path of kcat."""
    found = shutil.which("kcat")
    if found is None:
        peer_missing("kcat is not installed (Debian package `kcat`)")
    return found
