"""The brokers that the runner starts, with the settings under which they can be compared."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from conformance.peers.kafka import KafkaBroker, KafkaInstallation
from conformance.peers.kmirror_process import PROGRAM, KmirrorBroker

SETTINGS = {
    "log.retention.ms": "-1",  # the batches carry old times: nothing may be dropped while they are compared
    "num.partitions": "2",
    "offsets.topic.num.partitions": "5",  # transactions name the partition of a group
    "transaction.state.log.num.partitions": "5",
}


@contextlib.contextmanager
def started(peer: str, directory: Path, *, mistake: str | None = None) -> Iterator[str]:
    """Starts `kafka` or `kmirror`, with a mistake of `planted` or as it is, in `directory`; its address."""
    if peer == "kafka":
        with KafkaBroker(KafkaInstallation(), directory, overrides=SETTINGS) as kafka:
            yield kafka.bootstrap
    else:
        program = PROGRAM if mistake is None else ("conformance.differential.planted", mistake)
        with KmirrorBroker(directory, settings=SETTINGS, program=program) as kmirror:
            yield kmirror.bootstrap
