"""The brokers of a run, behind one small interface, and how each is told to keep what it acknowledges.

`page cache`: acknowledged means written (Kafka's default, log.flush.interval.messages = Long.MAX).
`flushed`: acknowledged means on disk (kmirror's default; Kafka with log.flush.interval.messages=1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from conformance.peers.kafka import KafkaBroker, KafkaInstallation
from conformance.peers.kfake import KfakeBroker
from conformance.peers.kmirror_process import KmirrorBroker
from conformance.peers.processes import PeerProcess

PAGE_CACHE, FLUSHED = "page cache", "flushed"
KMIRROR, KAFKA, KFAKE = "kmirror", "Kafka", "kfake"
NAMES = (KMIRROR, KAFKA, KFAKE)
_KAFKA_HEAP = "1g"
_NEVER = str((1 << 63) - 1)
_NO_SETTINGS: Mapping[str, str] = {}


class Contestant(Protocol):
    """What the measures need of a broker."""

    @property
    def bootstrap(self) -> str: ...
    @property
    def process(self) -> PeerProcess: ...
    @property
    def answered_s(self) -> float: ...
    def start(self) -> None: ...
    def kill(self) -> None: ...


def _kmirror(directory: Path, durability: str, settings: Mapping[str, str]) -> Contestant:
    settings = {"auto.create.topics.enable": "false", **settings}
    if durability == PAGE_CACHE:
        settings["log.flush.interval.messages"] = _NEVER
    return KmirrorBroker(directory, settings=settings)


def _kafka(directory: Path, durability: str, settings: Mapping[str, str]) -> Contestant:
    overrides = {"auto.create.topics.enable": "false", **settings}
    if durability == FLUSHED:
        overrides["log.flush.interval.messages"] = "1"
    # no class-data archive: Kafka as it is delivered
    return KafkaBroker(KafkaInstallation(), directory, overrides=overrides, heap=_KAFKA_HEAP, use_archive=False)


def _kfake(directory: Path, durability: str, _settings: Mapping[str, str]) -> Contestant:
    return KfakeBroker(directory, sync=durability == FLUSHED)


_FACTORIES: dict[str, Callable[[Path, str, Mapping[str, str]], Contestant]] = {
    KMIRROR: _kmirror,
    KAFKA: _kafka,
    KFAKE: _kfake,
}


def create(
    name: str, directory: Path, durability: str = PAGE_CACHE, settings: Mapping[str, str] = _NO_SETTINGS
) -> Contestant:
    """A contestant that is not started yet, with its data below `directory`; `settings` are broker properties."""
    return _FACTORIES[name](directory, durability, settings)
