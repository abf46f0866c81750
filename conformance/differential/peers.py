"""The brokers that the runner starts, with the settings under which they can be compared."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from conformance.peers.kafka import KafkaBroker, KafkaInstallation
from conformance.peers.kmirror_process import KmirrorBroker

SETTINGS = {
    "log.retention.ms": "-1",  # the batches carry old times: nothing may be dropped while they are compared
    "num.partitions": "2",
    "offsets.topic.num.partitions": "5",  # transactions name the partition of a group
    "transaction.state.log.num.partitions": "5",
}


@contextlib.contextmanager
def started(peer: str, directory: Path) -> Iterator[str]:
    """Starts `kafka` or `kmirror` in `directory`; its address. Ended with the context."""
    if peer == "kafka":
        with KafkaBroker(KafkaInstallation(), directory, overrides=SETTINGS) as kafka:
            yield kafka.bootstrap
    else:
        with KmirrorBroker(directory, settings=SETTINGS) as kmirror:
            yield kmirror.bootstrap
